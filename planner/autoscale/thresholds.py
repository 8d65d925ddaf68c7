"""From which load on the promises of a pool break: the prediction, inverted per replica."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from planner.autoscale.windows import AS_SIZED, Windows, kept_windows
from planner.errors import InfeasibleError
from planner.fleet.caches import sessions_of
from planner.fleet.fleet import Fleet
from planner.methods.base import Prediction
from planner.record import Record
from planner.workload import pools as m

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

SURE = 1.645
"""Standard deviations below the rate at which every second window breaks where 95% are kept."""

IDLE = 1e-6
"""Share of the capacity at which nobody waits [1]."""


@dataclass(frozen=True, slots=True, eq=False)
class Capacity:
    """The largest rate within the promises by number of replicas.

    Parameters
    ----------
    replicas, rates_per_s
        Solved numbers of replicas that serve, ascending, and the rate each serves within all promises as a plan is sized, and in
        95% of all windows [1/s].
    spares
        Replicas kept beyond the need.
    least, most
        Fewest and most replicas, spares included.
    windows
        Over those rates, at which windows break.
    """

    replicas: np.ndarray
    rates_per_s: np.ndarray
    spares: int
    least: int
    most: int
    windows: Windows = AS_SIZED

    def rate_per_s(self, replicas: float) -> float:
        """Largest rate that many serving replicas are sized for [1/s]."""
        if replicas <= 0.0:
            return 0.0
        each = np.interp(math.log(replicas), np.log(self.replicas), self.rates_per_s / self.replicas)
        return float(replicas * each)

    def needed(self, rate_per_s: float) -> int:
        """Replicas a rate needs, spares included, no more than the most."""
        low, high = 1, self.most
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.rate_per_s(middle) >= rate_per_s else (middle + 1, high)
        return min(max(low + self.spares, self.least), self.most)


@dataclass(frozen=True, slots=True)
class Threshold(Record):
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
    rates = np.array([largest_rate(fleet, k, int(n)) for n in numbers])
    if not rates[-1] > 0.0:
        p = next(iter(fleet.promises_on(k)), None)
        told = p.told if p else "the promises"
        raise InfeasibleError(f"pool {pool.name}: {told} cannot be kept at any rate by {numbers[-1]} replicas")
    some = rates > 0.0
    found = Capacity(numbers[some].astype(float), rates[some], spares, fleet.promises.min_replicas + spares, most)
    if fleet.linked and sessions_of(pool) is not None:
        return found
    replicas, least = pool.size.replicas, int(found.replicas[0])

    def held_by(n: int) -> tuple[Windows, float]:
        windows = kept_windows(fleet, k, n, found.rate_per_s(n) / n, pool.capacity_per_s)
        return windows, min(1.0, windows.factor * math.exp(-windows.spread * SURE))

    windows, held = held_by(replicas)
    by_number = np.full(found.replicas.size, held)
    full = fleet.promises.utilization_cap * pool.model.capacity_per_s
    if fleet.linked and least < replicas and found.rate_per_s(least) >= 0.99 * full * least:
        # where sizes are fixed by the cap they do not say how much less few replicas bear; other pools kept their windows without
        share = np.log(found.replicas / least) / math.log(replicas / least)
        few = held_by(least)[1]
        by_number = few + np.minimum(share, 1.0) * (held - few)
    return replace(
        found, rates_per_s=by_number * found.rates_per_s, windows=replace(windows, factor=windows.factor / held)
    )


def largest_rate(fleet: Fleet, k: int, replicas: int) -> float:
    """Largest rate at which so many replicas of the k-th pool keep every promise on it with the margin of the method's error, and
    the utilization cap, as a plan does [1/s]; 0 where there is none."""
    promises, levels = fleet.promises_on(k), fleet.promises.levels()

    def held(rate: float) -> float:
        found = fleet.pool_at(k, rate, replicas, levels)
        return _excess(found.held(p.metric, p.quantile) / p.limit_s for p in promises)

    return _last_kept(held, fleet.promises.utilization_cap * replicas * fleet.pools[k].model.capacity_per_s)


def _excess(ratios: Iterable[float]) -> float:
    """Logarithm of the largest value over its limit, within what a secant step can use."""
    worst = max(ratios, default=0.0)
    return math.log(min(max(worst, 1.0 / FAR), FAR))


def _last_kept(excess: Callable[[float], float], top: float) -> float:
    """Largest rate up to the top whose excess is not above 0, to :data:`PRECISION`; 0 where there is none."""
    low, below, least, moved = 0.0, math.nan, PRECISION * top, 0
    above = excess(top)
    if above <= 0.0:
        return top
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
    at, idle = (fleet.pool_at(k, r, replicas, levels) for r in (rate, IDLE * rate))
    full = fleet.promises.utilization_cap * replicas * pool.model.capacity_per_s
    tightest = max(fleet.promises_on(k), key=lambda p: at.held(p.metric, p.quantile) / p.limit_s, default=None)
    law = pool.law
    inputs, outputs = fleet.work_tokens(k)
    context = law.mean(m.KV) / law.mean(m.DECODE) if outputs > 0.0 and law.mean(m.DECODE) > 0.0 else law.mean(m.INPUT)

    def mean_ttft(prediction: Prediction) -> float:
        return math.fsum(prediction.value("ttft_s", level) for level in MEAN_LEVELS) / len(MEAN_LEVELS)

    return Threshold(
        pool.name,
        UTILIZATION if tightest is None or rate >= 0.99 * full else tightest.label,
        each,
        each * inputs,
        each * outputs,
        at.mean_running,
        each * max(0.0, mean_ttft(at) - mean_ttft(idle)),
        min(1.0, at.mean_running * context / max(pool.setup.kv_tokens, 1.0)),
        rate / (replicas * pool.model.capacity_per_s),
    )
