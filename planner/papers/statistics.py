"""Statistics of runs: what a run measured, intervals from batch means, and whether the run was long enough to say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from planner.shared.record import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from planner.papers.run import Run
    from planner.predict.engine import Request

BATCHES = 20
"""Batches altogether; a run is never split into fewer than 4. With 30 runs or more each run is one batch."""

EXCEEDANCES = 100
"""Observations above a percentile below which a run is called too short for it."""


@dataclass(frozen=True, slots=True)
class Estimate(Record):
    """A simulated value with its 95% confidence interval.

    Parameters
    ----------
    value
        Point estimate.
    half_width
        Half of the 95% interval; inf when it cannot be estimated.
    enough
        Whether the run was long enough for this percentile.
    """

    value: float
    half_width: float
    enough: bool = True

    written: ClassVar[tuple[str, ...]] = ("value", "ci95=half_width", "enough")

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.value - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.value + self.half_width


def student_t(degrees: int) -> float:
    """Two-sided 95% quantile of Student's t.

    >>> round(student_t(19), 4)
    2.093
    """
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))


def enough_for(quantile: float, observations: int) -> bool:
    """Whether at least :data:`EXCEEDANCES` observations lie beyond the quantile."""
    return observations * min(quantile, 1.0 - quantile) >= EXCEEDANCES


def too_short(quantile: float, observations: int) -> str:
    """The sentence for a run that is too short."""
    needed = math.ceil(EXCEEDANCES / min(quantile, 1.0 - quantile))
    return (
        f"the run is too short for P{100 * quantile:.10g}: {observations:,} requests measured, "
        f"about {needed:,} are needed"
    )


def estimate_of(runs: Sequence[NDArray[np.float64]], quantile: float | None = None, whole: bool = False) -> Estimate:
    """Mean or quantile of all observations in order of arrival, with an interval.

    Parameters
    ----------
    runs
        One array per independent run, in order of arrival.
    quantile
        Share in (0, 1), or ``None`` for the mean.
    whole
        Whether runs are draws of the same traffic: then the largest deviation of a run is the half-width; with six of them the
        median draw lies within their range in 97 of 100. Otherwise a 95% interval from the means of :data:`BATCHES`.

    Notes
    -----
    The interval of batches is Student's t over their values: they must be long against the correlation time, so it is too
    narrow close to saturation.
    """
    runs = [r for r in runs if r.size]
    if not runs:
        return Estimate(math.nan, math.inf, False)

    def value(x: NDArray[np.float64]) -> float:
        return float(np.mean(x) if quantile is None else np.quantile(x, quantile))

    point = value(np.concatenate(runs))
    enough = quantile is None or enough_for(quantile, sum(r.size for r in runs))
    if whole:
        return Estimate(point, max(abs(value(r) - point) for r in runs), enough)
    per_run = 1 if len(runs) >= 30 else max(4, BATCHES // len(runs))
    parts = [p for r in runs for p in np.array_split(r, per_run) if p.size >= 2]
    spread = mean_of_batches(np.array([value(p) for p in parts]))
    return Estimate(point, spread.half_width, spread.enough and enough)


def mean_of_batches(values: NDArray[np.float64]) -> Estimate:
    """Mean of independent values with its 95% interval (Student's t).

    >>> mean_of_batches(np.array([1.0, 3.0])).value
    2.0
    """
    if values.size < 2:
        return Estimate(float(values[0]) if values.size else math.nan, math.inf, False)
    half = student_t(values.size - 1) * float(values.std(ddof=1)) / math.sqrt(values.size)
    return Estimate(float(values.mean()), half)


def latencies(requests: Sequence[Request]) -> dict[str, NDArray[np.float64]]:
    """TTFT, TPOT (of those with more than one token) and E2E of requests that are complete [s]."""
    several = [r for r in requests if r.output_tokens > 1]
    return {
        "ttft_s": np.array([r.first_token_s - r.arrival for r in requests]),
        "tpot_s": np.array([(r.done_s - r.first_token_s) / (r.output_tokens - 1) for r in several]),
        "e2e_s": np.array([r.done_s - r.arrival for r in requests]),
    }


def summarize(run: Run, measured: tuple[float, float] = (0.1, 0.9), ttft_s: float = math.inf) -> dict[str, float]:
    """The statistics of one run of R requests: window, percentiles and throughput by fixed rules.

    Measured are the positions floor(u R) .. floor(v R) - 1 in order of arrival; percentiles interpolate linearly; TBT
    pools all token gaps of the measured requests; throughput is (j - i)/(T_j - T_i) over the sorted completion times
    with i = floor(0.1 n), j = floor(0.9 n) - 1; unfinished counts measured requests. Times in seconds, memory in tokens.
    A measured request attains its objective within `ttft_s` and with no gap beyond its own deadline between tokens.
    """
    ordered = sorted(run.requests, key=lambda r: (r.arrival, r.index))
    total = len(ordered)
    positions = ordered[math.floor(measured[0] * total) : math.floor(measured[1] * total)]
    window = [r for r in positions if r.done_s == r.done_s]
    times = {**latencies(window), "tbt_s": np.array([g for r in window for g in r.gaps])}
    done = np.sort(np.array([r.done_s for r in ordered if r.done_s == r.done_s]))
    i, j = math.floor(0.1 * done.size), math.floor(0.9 * done.size) - 1
    out = {"throughput_per_s": (j - i) / (done[j] - done[i]) if j > i and done[j] > done[i] else math.nan}
    for metric, values in times.items():
        if values.size:
            name = metric.removesuffix("_s")
            out[f"{name}_mean_s"] = float(values.mean())
            for percent in (50, 90, 95, 99):
                out[f"{name}_p{percent}_s"] = float(np.percentile(values, percent))
    out["evictions_per_1000"] = 1000.0 * run.evictions / total if total else 0.0
    out["peak_kv_tokens"] = float(run.peak_held)
    out["iterations"] = float(run.iterations)
    out["unfinished"] = float(len(positions) - len(window))
    out["rejected"] = float(len(run.rejected))
    kept = [r.first_token_s - r.arrival <= ttft_s and max(r.gaps, default=0.0) <= r.tbt for r in window]
    out["attainment"] = sum(kept) / max(len(positions), 1)
    out["goodput_per_s"] = out["attainment"] * out["throughput_per_s"]
    # a stable run finishes about as fast as requests arrive
    span = positions[-1].arrival - positions[0].arrival if positions else 0.0
    offered = (len(positions) - 1) / span if span > 0.0 else math.inf
    out["keeps_up"] = float(out["throughput_per_s"] >= 0.95 * offered)
    return out
