"""From which load on the promises of a pool break: the prediction, inverted per replica."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from planner.autoscale.windows import WINDOW_S, Windows, as_sized, kept_windows
from planner.errors import InfeasibleError
from planner.fleet.caches import sessions_of
from planner.fleet.fleet import Fleet
from planner.methods.base import MEAN_LEVELS
from planner.promise import MEAN
from planner.shared.record import Record
from planner.studies.capacity import largest, pool_keeps
from planner.workload import pools as m

UTILIZATION = "utilization"
"""What binds where no promise does: the cap on the share of the maximum throughput in use."""

SOLVED = 6
"""Numbers of replicas that are solved; between them the rate per replica is taken as linear in log(n)."""

PROMISED = 0.95
"""Share of the windows that are to keep the promises, where they are about windows [1]."""

SURE = 1.645
"""Standard deviations below the rate at which every second window breaks where so many are kept."""

IDLE = 1e-6
"""Share of the capacity at which nobody waits [1]."""


@dataclass(frozen=True, slots=True, eq=False)
class Capacity:
    """The largest rate within the promises by number of replicas.

    Parameters
    ----------
    replicas, rates_per_s
        Solved numbers of replicas that serve, ascending, and the rate each serves within all promises as a plan is sized, and
        where they are about windows in 95% of them [1/s].
    spares
        Replicas kept beyond the need.
    least, most
        Fewest and most replicas, spares included.
    windows
        What windows keep, over those rates.
    quantiles
        Share of the requests within its limits that each promise of the pool asks for [1].
    windows_s
        Length of the windows that the promises are about [s]; ``None`` = they are about the whole period.
    """

    replicas: np.ndarray
    rates_per_s: np.ndarray
    spares: int
    least: int
    most: int
    windows: Windows
    quantiles: tuple[float, ...] = ()
    windows_s: float | None = None

    @property
    def window_s(self) -> float:
        """Length of the windows that are looked at [s]."""
        return self.windows_s or WINDOW_S

    @property
    def promised(self) -> float:
        """Share of the windows, or of the requests, that are to be within the promises [1]."""
        return PROMISED if self.windows_s else max(self.quantiles, default=1.0)

    def attained(self, came: np.ndarray, held: np.ndarray) -> float:
        """That share, of windows of rates whose replicas are sized for others [1/s]; with several promises, one minus the allowed
        share times the largest part of it that is used."""
        if self.windows_s or not self.quantiles:
            return float(self.windows.kept(came, held).mean())
        late = (self.windows.late_share(came, held) * came).sum(axis=1) / max(float(came.sum()), 1e-300)
        used = max(share / (1.0 - q) for share, q in zip(late.tolist(), self.quantiles, strict=True))
        return float(max(0.0, 1.0 - used * (1.0 - self.promised)))

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
    pool, promises = fleet.pools[k], [p for p in fleet.promises_on(k) if p.quantile != MEAN]
    # as sure as the plan is
    slow = fleet.margins(fleet.promises.confidence)[k].slow
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
    found = Capacity(
        numbers[some].astype(float),
        rates[some],
        spares,
        fleet.promises.min_replicas + spares,
        most,
        as_sized([p.quantile for p in promises]),
        tuple(p.quantile for p in promises),
        fleet.promises.windows_s,
    )
    if fleet.linked and sessions_of(pool) is not None:
        return found
    replicas, least = pool.size.replicas, int(found.replicas[0])

    def held_by(n: int) -> tuple[Windows, float]:
        windows = kept_windows(fleet, k, n, found.rate_per_s(n) / n, pool.capacity_per_s / slow, slow)
        return windows, min(1.0, windows.factor * math.exp(-windows.spread * SURE)) if found.windows_s else 1.0

    windows, held = held_by(replicas)
    by_number = np.full(found.replicas.size, held)
    full = fleet.promises.utilization_cap * pool.model.capacity_per_s
    if fleet.linked and least < replicas and found.rate_per_s(least) >= 0.99 * full * least:
        # where sizes are fixed by the cap they do not say how much less few replicas bear; other pools kept their windows without
        share = np.log(found.replicas / least) / math.log(replicas / least)
        few = held_by(least)[1]
        by_number = few + np.minimum(share, 1.0) * (held - few)
    moved = replace(windows, factor=windows.factor / held, log_rates=windows.log_rates - math.log(held))
    return replace(found, rates_per_s=by_number * found.rates_per_s, windows=moved)


def largest_rate(fleet: Fleet, k: int, replicas: int) -> float:
    """Largest rate at which so many replicas of the k-th pool keep every promise on it and the utilization cap, as a plan has
    them [1/s]; 0 where there is none."""
    promises, levels, pool = fleet.promises_on(k), fleet.promises.levels(), fleet.pools[k]
    margin = fleet.margins(fleet.promises.confidence)[k]
    own = replace(pool, size=replace(pool.size, replicas=replicas))
    slowed = fleet.slowed(margin.deviations) if fleet.linked else fleet

    def keeps(rate: float) -> bool:
        if not fleet.linked:
            return pool_keeps(own, rate, fleet.promises.only(promises), margin.slow)
        found = slowed.pool_at(k, rate, replicas, levels)
        held = all(found.value(p.metric, p.quantile) <= p.limit_s for p in promises)
        return held and pool_keeps(own, rate, fleet.promises.only(()))

    return largest(keeps, replicas * pool.arrival_rate_per_s / pool.size.replicas)[0]


def threshold_of(fleet: Fleet, k: int, capacity: Capacity) -> Threshold:
    """The threshold of the k-th pool at the plan's number of replicas."""
    pool = fleet.pools[k]
    replicas = pool.size.replicas
    rate = capacity.rate_per_s(replicas)
    each = rate / replicas
    levels = tuple(sorted({*fleet.promises.levels(), *MEAN_LEVELS}))
    at, idle = (fleet.pool_at(k, r, replicas, levels) for r in (rate, IDLE * rate))
    full = fleet.promises.utilization_cap * replicas * pool.model.capacity_per_s
    tightest = max(fleet.promises_on(k), key=lambda p: at.value(p.metric, p.quantile) / p.limit_s, default=None)
    law = pool.law
    inputs, outputs = fleet.work_tokens(k)
    context = law.mean(m.KV) / law.mean(m.DECODE) if outputs > 0.0 and law.mean(m.DECODE) > 0.0 else law.mean(m.INPUT)

    return Threshold(
        pool.name,
        UTILIZATION if tightest is None or rate >= 0.99 * full else tightest.label,
        each,
        each * inputs,
        each * outputs,
        at.mean_running,
        each * max(0.0, at.mean("ttft_s") - idle.mean("ttft_s")),
        min(1.0, at.mean_running * context / max(pool.setup.kv_tokens, 1.0)),
        rate / (replicas * pool.model.capacity_per_s),
    )
