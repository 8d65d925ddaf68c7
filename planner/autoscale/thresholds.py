"""From which load on the promises of a pool break: the prediction, inverted per replica."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import InfeasibleError
from planner.fleet.fleet import Fleet
from planner.fleet.pool import Pool
from planner.methods.base import Prediction
from planner.plans import json_number
from planner.workload import pools as m

__all__ = ["UTILIZATION", "Capacity", "Threshold", "capacity_of", "threshold_of"]

UTILIZATION = "utilization"
"""What binds where no promise does: the cap on the share of the maximum throughput in use."""

PRECISION = 1.0 / 250.0
"""Share to which a largest rate is found: a path has too few requests to tell smaller steps apart [1]."""

FAR = 20.0
"""Values over their limit further from 1 than this say nothing of where they cross it [1]."""

SOLVED = 6
"""Numbers of replicas that are solved; between them the rate per replica is taken as linear in log(n)."""

MEAN_LEVELS = tuple((k + 0.5) / 10.0 for k in range(10))
"""Levels whose quantiles are averaged for a mean."""

FULL = 0.87
"""Share of the capacity beyond which nothing is called kept: five minutes are no steady state there [1]."""

SURE = 0.4
"""Misses over those allowed that are planned for where nothing but chance makes one window of five minutes worse than another [1]:
they come in clumps, behind one long prompt. Simulated pools kept 96% of their windows at 0.3 to 0.7. Predictions with bursts of
every time scale hold more than that."""

IDLE = 1e-6
"""Share of the capacity at which nobody waits [1]."""


@dataclass(frozen=True, slots=True, eq=False)
class Capacity:
    """The largest rate within the promises by number of replicas.

    Parameters
    ----------
    replicas, rates_per_s
        Solved numbers of replicas that serve, ascending, and the rate each serves within all promises [1/s].
    kept_per_s
        The same by the prediction alone, without the margin for the method's error that sizes are held to [1/s].
    spares
        Replicas kept beyond the need.
    least, most
        Fewest and most replicas, spares included.
    """

    replicas: np.ndarray
    rates_per_s: np.ndarray
    kept_per_s: np.ndarray
    spares: int
    least: int
    most: int

    def rate_per_s(self, replicas: float) -> float:
        """Largest rate that many serving replicas are sized for [1/s]."""
        return self._of(self.rates_per_s, replicas)

    def predicted_per_s(self, replicas: float) -> float:
        """Largest rate at which that many serving replicas are predicted to keep the promises, margin or not [1/s]."""
        return self._of(self.kept_per_s, replicas)

    def _of(self, rates: np.ndarray, replicas: float) -> float:
        if replicas <= 0.0:
            return 0.0
        return float(replicas * np.interp(math.log(replicas), np.log(self.replicas), rates / self.replicas))

    def needed(self, rate_per_s: float) -> int:
        """Replicas a rate needs, spares included, no more than the most."""
        low, high = 1, self.most
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.rate_per_s(middle) >= rate_per_s else (middle + 1, high)
        return min(max(low + self.spares, self.least), self.most)


@dataclass(frozen=True, slots=True)
class Threshold:
    """The load of one replica at which the first promise of its pool is about to break.

    Parameters
    ----------
    pool
        Name.
    binding
        The promise, or ``utilization`` where the cap on throughput comes first.
    requests_per_s, input_tokens_per_s, output_tokens_per_s
        Of one replica [1/s].
    running, waiting
        Mean requests running and waiting (about: the growth of the mean TTFT times the rate) of one replica.
    kv_usage
        Mean share of its KV cache in use [1].
    load
        Rate over capacity [1].
    """

    pool: str
    binding: str
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    running: float
    waiting: float
    kv_usage: float
    load: float

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            name: json_number(v) if isinstance(v, float) else v
            for name in self.__slots__
            for v in (getattr(self, name),)
        }


def capacity_of(fleet: Fleet, k: int, most: int | None = None) -> Capacity:
    """The largest rates of the k-th pool by its number of replicas.

    Parameters
    ----------
    fleet
        The fleet.
    k
        Which pool.
    most
        Most replicas, spares included; default twice the plan's.

    Raises
    ------
    InfeasibleError
        No rate keeps the promises.
    """
    pool = fleet.pools[k]
    spares = pool.bought - pool.size.replicas
    most = max(most or 2 * pool.bought, pool.bought)
    numbers = np.unique(np.round(np.geomspace(1, max(most, 1), SOLVED)).astype(int))
    if fleet.question.routing.by_rate_per_replica and not fleet.question.traffic.bursts:
        numbers = numbers[:1]
    found = np.array([largest_rates(fleet, pool, int(n)) for n in numbers])
    rates = found[:, 0]
    if not rates[-1] > 0.0:
        p = next((p for p in fleet.promises.latency), None)
        told = p.told if p else "the promises"
        raise InfeasibleError(f"pool {pool.name}: {told} cannot be kept at any rate by {numbers[-1]} replicas")
    least = fleet.promises.min_replicas + spares
    some = rates > 0.0
    return Capacity(numbers[some].astype(float), rates[some], found[some, 1], spares, least, most)


def largest_rates(fleet: Fleet, pool: Pool, replicas: int) -> tuple[float, float]:
    """Largest rates at which so many replicas keep every promise, with the margin of the method's error and without [1/s].

    The first keeps the utilization cap too, as a plan does; 0 where no rate keeps them. Without bursts both keep windows of five
    minutes (:data:`SURE`).
    """
    capacity, arrivals = replicas * pool.model.capacity_per_s, fleet.question.traffic.arrivals
    part = 1.0 if arrivals is not None and arrivals.dispersion else SURE
    sure = {q: 1.0 - part * (1.0 - q) for q in fleet.promises.levels()}
    levels = tuple(sorted({*sure, *sure.values()}))
    known: dict[float, Prediction] = {}

    def predicted(rate: float) -> Prediction:
        if rate not in known:
            known[rate] = pool.model.predict(rate, replicas, levels)
        return known[rate]

    def kept(rate: float) -> float:
        found = predicted(rate)
        return _excess(found.value(p.metric, sure[p.quantile]) / p.limit_s for p in fleet.promises.latency)

    def held(rate: float) -> float:
        found = predicted(rate)
        return max(kept(rate), _excess(found.held(p.metric, p.quantile) / p.limit_s for p in fleet.promises.latency))

    sized = _last_kept(held, 0.0, fleet.promises.utilization_cap * capacity)
    return sized, _last_kept(kept, sized, FULL * capacity, [*known])


def _excess(ratios: Iterable[float]) -> float:
    """Logarithm of the largest value over its limit, within what a secant step can use."""
    worst = max(ratios, default=0.0)
    return math.log(min(max(worst, 1.0 / FAR), FAR))


def _last_kept(excess: Callable[[float], float], low: float, top: float, known: Sequence[float] = ()) -> float:
    """Largest rate of an interval whose excess is not above 0, to :data:`PRECISION`; `low` where there is none.

    Rates that are `known` cost nothing to look at.
    """
    below, least, moved = math.nan, PRECISION * top, 0
    broken_at = [rate for rate in known if low < rate < top and excess(rate) > 0.0]
    top = min(broken_at, default=top)
    above = excess(top)
    if above <= 0.0:
        return top
    if kept_at := [rate for rate in known if low < rate < top and excess(rate) <= 0.0]:
        low = max(kept_at)
        below = excess(low)
    while top - low > max(PRECISION * top, least):
        # where one end stays, the middle closes the interval
        secant = abs(moved) < 2 and not math.isnan(below)
        part = min(max(below / (below - above), 0.05), 0.95) if secant else 0.5
        middle = low + part * (top - low)
        value = excess(middle)
        if value <= 0.0:
            low, below, moved = middle, value, max(moved, 0) + 1
        else:
            top, above, moved = middle, value, min(moved, 0) - 1
    return low


def threshold_of(fleet: Fleet, k: int, capacity: Capacity) -> Threshold:
    """The threshold of the k-th pool at the plan's number of replicas."""
    pool = fleet.pools[k]
    replicas = pool.size.replicas
    rate = capacity.rate_per_s(replicas)
    each = rate / replicas
    levels = tuple(sorted({*fleet.promises.levels(), *MEAN_LEVELS}))
    at, idle = (pool.model.predict(r, replicas, levels) for r in (rate, IDLE * rate))
    full = fleet.promises.utilization_cap * replicas * pool.model.capacity_per_s
    tightest = max(fleet.promises.latency, key=lambda p: at.held(p.metric, p.quantile) / p.limit_s, default=None)
    law = pool.law
    context = law.mean(m.KV) / law.mean(m.DECODE) if law.mean(m.DECODE) > 0.0 else law.mean(m.INPUT)

    def mean_ttft(prediction: Prediction) -> float:
        return math.fsum(prediction.value("ttft_s", level) for level in MEAN_LEVELS) / len(MEAN_LEVELS)

    return Threshold(
        pool.name,
        UTILIZATION if tightest is None or rate >= 0.99 * full else tightest.label,
        each,
        each * law.mean(m.INPUT),
        each * law.mean(m.OUTPUT),
        at.mean_running,
        each * max(0.0, mean_ttft(at) - mean_ttft(idle)),
        min(1.0, at.mean_running * context / max(pool.setup.kv_tokens, 1.0)),
        rate / (replicas * pool.model.capacity_per_s),
    )
