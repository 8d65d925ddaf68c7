"""Holds a plan's promises against a simulation: holds, fails, or cannot tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.papers.measure import Sample, SimulationResult
from planner.papers.statistics import BATCHES, Estimate, enough_for, mean_of_batches
from planner.predict.replayed import weighted_quantiles
from planner.promise import GOODPUT, MEAN, Promise

HOLDS, FAILS, CANNOT_TELL = "holds", "fails", "cannot tell"

MAX_REQUESTS = 4_000_000
"""Requests of a pool that a check replays, a trace in each of its runs."""

RUNS = 6
"""Draws of the traffic: the one in the middle of all lies between the least and the most of six in 97 of 100."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise: what was predicted, what the simulation says, and the verdict.

    Parameters
    ----------
    where
        Pool name, or ``"fleet"``.
    promise
        The promise.
    predicted
        The plan's value [s], of a joint promise the share within its limits [1]; ``None`` = none given.
    simulated
        Estimate of the same with its 95% interval.
    verdict
        ``holds``, ``fails`` or ``cannot tell``.
    reason
        Why, in one line.
    """

    where: str
    promise: Promise
    predicted: float | None
    simulated: Estimate
    verdict: str
    reason: str

    def to_dict(self) -> dict[str, object]:
        """One flat row, JSON-ready."""
        predicted = self.predicted if self.predicted is not None and math.isfinite(self.predicted) else None
        finite = math.isfinite(self.simulated.half_width)
        joint = self.promise.kind == GOODPUT
        unit = "share" if joint else "s"
        return {
            "pool": self.where,
            "promise": self.promise.told if joint else self.promise.label,
            "metric": self.promise.metric,
            "quantile": self.promise.quantile,
            **({} if joint else {"limit_s": self.promise.limit_s}),
            f"predicted_{unit}": predicted,
            f"simulated_{unit}": self.simulated.value if math.isfinite(self.simulated.value) else None,
            f"low_{unit}": self.simulated.low if finite else None,
            f"high_{unit}": self.simulated.high if finite else None,
            "verdict": self.verdict,
            "reason": self.reason,
        }


def judge(simulated: Estimate, limit: float, stable: bool = True, share: bool = False) -> tuple[str, str]:
    """Verdict and reason from an interval and a limit [s], or where it is of a share within limits from the share promised [1].

    >>> judge(Estimate(0.40, 0.02), 0.5)
    ('holds', 'the whole interval lies within the limit')
    >>> judge(Estimate(0.49, 0.02), 0.5)
    ('cannot tell', 'the limit lies inside the interval')
    >>> judge(Estimate(0.40, 0.02), 0.5, stable=False)
    ('fails', 'unstable: the pool cannot keep up with its arrivals')
    >>> judge(Estimate(0.995, 0.002), 0.99, share=True)[0], judge(Estimate(0.98, 0.002), 0.99, share=True)[0]
    ('holds', 'fails')
    """
    if not stable:
        return FAILS, "unstable: the pool cannot keep up with its arrivals"
    if not simulated.enough:
        return CANNOT_TELL, f"the run is too short for this {'share' if share else 'percentile'}"
    if simulated.low >= limit if share else simulated.high <= limit:
        return HOLDS, f"the whole interval lies {'above the share promised' if share else 'within the limit'}"
    if simulated.high < limit if share else simulated.low > limit:
        return FAILS, f"the whole interval lies {'below the share promised' if share else 'beyond the limit'}"
    return CANNOT_TELL, f"the {'share promised' if share else 'limit'} lies inside the interval"


def verdict_on(promise: Promise, simulated: Estimate, stable: bool) -> tuple[str, str]:
    """Verdict and reason on a promise from the interval of what it is about."""
    joint = promise.kind == GOODPUT
    return judge(simulated, promise.quantile if joint else promise.limit_s, stable, joint)


def judge_draws(kept: Sequence[bool]) -> tuple[str, str]:
    """Verdict and reason from draws of the same traffic, each of which keeps the promise or does not.

    >>> judge_draws([True, True, False])
    ('cannot tell', '2 of 3 draws of the traffic keep it')
    """
    count = sum(kept)
    verdict = HOLDS if count == len(kept) else FAILS if count == 0 else CANNOT_TELL
    return verdict, f"{count} of {len(kept)} draws of the traffic keep it"


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of one simulated pool.

    Parameters
    ----------
    name
        Pool name, for the report.
    promises
        What was promised of it.
    predicted
        (metric, quantile) -> the plan's value [s], of a joint promise the share within its limits [1].
    """

    name: str
    promises: Sequence[Promise]
    predicted: Mapping[tuple[str, float], float] = field(default_factory=dict)


def verify_pools(
    asked: Sequence[Asked],
    simulated: Callable[[Sequence[int], Sequence[float]], Sequence[SimulationResult]],
    seeds: Sequence[int],
    most: int,
) -> tuple[Sequence[SimulationResult], list[Check]]:
    """Simulate pools together until every promise is decided or `most` runs are spent.

    Parameters
    ----------
    asked
        One per pool.
    simulated
        Simulates the pools, a run for each of these seeds, with these quantiles.
    seeds, most
        Of the runs at first; where they leave a verdict open there are four times as many, up to `most`. Draws of a trace that
        is all there is are as many as were asked for.

    Returns
    -------
    tuple
        The last simulation of each pool, and the verdicts on the promises.
    """
    quantiles = sorted({0.5, 0.9, 0.99} | {p.quantile for pool in asked for p in pool.promises if p.quantile != MEAN})
    while True:
        results = simulated(seeds, quantiles)
        checks = [
            _check(pool, promise, result)
            for pool, result in zip(asked, results, strict=True)
            for promise in pool.promises
        ]
        decided = all(c.verdict != CANNOT_TELL for c in checks)
        more = min(4 * len(seeds), most)
        if decided or results[0].whole or more <= len(seeds):
            return results, checks
        seeds = [*seeds, *(max(seeds) + 1 + k for k in range(more - len(seeds)))]


def _check(pool: Asked, promise: Promise, result: SimulationResult) -> Check:
    """One promise of a pool against its simulation."""
    if promise.kind == GOODPUT:
        estimate = result.share_within(promise.limits, promise.quantile)
    else:
        estimate = result.quantile(promise.metric, promise.quantile)
    if result.whole and estimate.enough and result.stable:
        verdict, reason = judge_draws([_keeps(promise, sample) for sample in result.samples])
    else:
        verdict, reason = verdict_on(promise, estimate, result.stable)
    value = pool.predicted.get((promise.metric, promise.quantile))
    return Check(pool.name, promise, value, estimate, verdict, reason)


def _keeps(promise: Promise, sample: Sample) -> bool:
    """Whether one run keeps a promise."""
    if promise.kind == GOODPUT:
        return float(sample.within(promise.limits).mean()) >= promise.quantile
    times = getattr(sample, promise.metric)
    return float(times.mean() if promise.quantile == MEAN else np.quantile(times, promise.quantile)) <= promise.limit_s


def fleet_estimate(results: Sequence[SimulationResult], shares: Sequence[float], promise: Promise) -> Estimate:
    """What is promised of all requests of a fleet, its pools mixed in the given shares, with an interval from batches.

    A quantile or a mean [s]; of a joint promise the share within its limits [1].

    Parameters
    ----------
    results
        One per pool.
    shares
        Share of the fleet's requests each pool serves.
    promise
        The promise.
    """
    quantile, joint = promise.quantile, promise.kind == GOODPUT

    def times(sample: Sample) -> NDArray[np.float64]:
        found: NDArray[np.float64] = sample.within(promise.limits) if joint else getattr(sample, promise.metric)
        return found

    pools = [np.concatenate([times(s) for s in r.samples]) for r in results]

    def value(parts: Sequence[NDArray[np.float64]]) -> float:
        x = np.concatenate(parts)
        w = np.concatenate([np.full(p.size, share / max(p.size, 1)) for p, share in zip(parts, shares, strict=True)])
        return weighted_quantiles(x, w, (MEAN if joint else quantile,))[0]

    if not any(p.size for p in pools):
        return Estimate(math.nan, math.inf, False)
    point, enough = value(pools), quantile == MEAN or enough_for(quantile, sum(p.size for p in pools))
    if all(r.whole for r in results):
        runs = zip(*(r.samples for r in results), strict=True)
        apart = [value([times(s) for s in samples]) for samples in runs]
        return Estimate(point, max(abs(v - point) for v in apart), enough)
    batches = [np.array_split(p, BATCHES) for p in pools]
    spread = mean_of_batches(np.array([value([b[i] for b in batches]) for i in range(BATCHES)]))
    return Estimate(point, spread.half_width, enough)
