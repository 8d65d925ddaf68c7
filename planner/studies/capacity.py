"""Capacity: the largest rate at which a fleet keeps every promise; the inverse of a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from planner.errors import InfeasibleError
from planner.fleet.fleet import Fleet
from planner.fleet.pool import Pool
from planner.notebook import InNotebooks
from planner.promise import GOODPUT, Promise
from planner.question.compiled import CompiledQuestion
from planner.record import Record, json_number

PRECISION = 1.0 / 256.0
"""Share to which a largest rate is known: the first rate that is refused lies no further above it [1]."""

STEP = 1.04
"""Factor of the first step away from where a largest rate is thought to lie."""

MOST_STEPS = 40
"""Rates looked at for one answer at most."""

LEAST_PART = 1e-4
"""A fleet that keeps its promises below this share of the rate its load alone allows keeps them at none [1]."""

CAP = "utilization cap"


@dataclass(frozen=True, slots=True)
class CapacityPool(Record):
    """One pool at the largest rate.

    Parameters
    ----------
    name, gpu, parallel
        Its name; what its replicas are.
    replicas, spares, gpus
        Replicas, those among them that stand by, GPUs of all.
    low_tokens, high_tokens
        Requests it serves, by what the gateway cuts by [tokens].
    share
        Part of all requests that comes here [1].
    rate_per_s, load
        Its rate [1/s]; that over the largest stable one [1].
    token_budget, slots
        Settings of its engines.
    cost_usd_per_hour
        Its cost [USD/hour].
    latency
        Promise -> its value as predicted [s], of a promise about several latencies the share that keeps it [1].
    """

    name: str
    gpu: str
    parallel: str
    replicas: int
    spares: int
    gpus: int
    low_tokens: float
    high_tokens: float
    share: float
    rate_per_s: float
    load: float
    token_budget: int
    slots: int
    cost_usd_per_hour: float
    latency: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Capacity(InNotebooks):
    """The largest rate with all promises.

    Parameters
    ----------
    inputs
        The question, in the options' own names.
    have
        GPU -> how many there are; empty of a fleet that stands.
    rate_per_s
        The largest rate [1/s].
    refused_per_s
        The next rate that was looked at, which breaks a promise [1/s].
    binding
        What is broken there: pool and promise, or the utilization cap.
    pools
        The fleet that carries it.
    """

    inputs: Mapping[str, object]
    have: Mapping[str, int]
    rate_per_s: float
    refused_per_s: float
    binding: str
    pools: tuple[CapacityPool, ...]

    document: ClassVar[str] = "fleetopt-capacity"
    written: ClassVar[tuple[str, ...]] = (
        "inputs", "have", "rate_per_s", "refused_per_s", "binding", "gpus", "unused", "cost_usd_per_hour", "pools",
    )  # fmt: skip

    def __repr__(self) -> str:
        return f"<Capacity: {self.rate_per_s:,.4g} requests/s on {self.gpus:,} GPUs, then {self.binding}>"

    @property
    def gpus(self) -> int:
        """GPUs of the fleet."""
        return sum(p.gpus for p in self.pools)

    @property
    def unused(self) -> dict[str, int]:
        """GPUs by type that the fleet leaves idle."""
        used: dict[str, int] = {}
        for p in self.pools:
            used[p.gpu] = used.get(p.gpu, 0) + p.gpus
        return {gpu: n - used.get(gpu, 0) for gpu, n in self.have.items() if n > used.get(gpu, 0)}

    @property
    def cost_usd_per_hour(self) -> float:
        """Cost of the fleet [USD/hour]."""
        return math.fsum(p.cost_usd_per_hour for p in self.pools)

    def to_rows(self) -> list[dict[str, object]]:
        """One row per pool."""
        rows = []
        for p in self.pools:
            row = {k: v for k, v in p.to_dict().items() if k != "latency"}
            rows.append({"rate_per_s": self.rate_per_s, **row, "pool_rate_per_s": p.rate_per_s, **p.latency})
        return [{**row, "rate_per_s": self.rate_per_s} for row in rows]


def largest(keeps: Callable[[float], bool], start: float, top: float = math.inf) -> tuple[float, float]:
    """The largest rate that is kept, and the next one that was refused; (0, ...) where none is.

    Growing steps from `start`, up while rates are kept or down while they are not, then bisection to :data:`PRECISION`: what is
    kept at `start` has at least that, what is not has less.

    Parameters
    ----------
    keeps
        Whether a rate [1/s] is kept.
    start
        Where it is thought to lie [1/s].
    top
        No rate above it is kept [1/s].

    >>> low, high = largest(lambda rate: rate <= 70.0, 100.0)
    >>> low <= 70.0 < high <= low * (1.0 + PRECISION)
    True
    """
    at, step, least = min(start, top), STEP, LEAST_PART * min(start, top)
    low, high = 0.0, math.inf
    for _ in range(MOST_STEPS):
        if keeps(at):
            low = at
            if low >= top:
                return top, math.nextafter(top, math.inf)
        else:
            high = at
        if low == 0.0:
            at, step = high / step, step * step
            if at < least:
                break
        elif math.isinf(high):
            at, step = min(low * step, top), min(step * step, 2.0)
        elif high <= low * (1.0 + PRECISION):
            break
        else:
            at = math.sqrt(low * high)
    return low, high


def keeps_at(fleet: Fleet, fleet_rate_per_s: float) -> bool:
    """Whether a fleet as it stands is what the sizer takes, or more, at a rate [1/s]: all requests decide."""
    if fleet.linked or fleet.shared_promises:
        return fleet.holds(fleet_rate_per_s)
    return all(
        pool_keeps(fleet.question, p, fleet_rate_per_s * p.law.share, fleet.own_promises, sure=True)
        for p in fleet.pools
    )


def pool_keeps(
    question: CompiledQuestion, pool: Pool, rate_per_s: float, promises: Sequence[Promise], sure: bool = False
) -> bool:
    """Whether a pool keeps promises and utilization cap at a rate of its own [1/s]."""
    n, cap = pool.size.replicas, question.promises.utilization_cap
    if rate_per_s > cap * n * pool.model.capacity_at(n) * (1.0 + 1e-12):
        return False
    return not promises or pool.model.keeps(rate_per_s, n, tuple(promises), sure)


def capacity_of(fleet: Fleet, start_per_s: float) -> Capacity:
    """The largest rate of a fleet as it stands, looked for from a rate on [1/s].

    Raises
    ------
    InfeasibleError
        It keeps its promises at no rate.
    """
    rate, refused = largest(partial(keeps_at, fleet), start_per_s)
    if rate <= 0.0:
        raise InfeasibleError(
            "this fleet keeps its promises at no rate", "What breaks them:", [_binding(fleet, refused)]
        )
    return capacity_at(fleet, rate, refused)


def capacity_at(fleet: Fleet, rate: float, refused: float, have: Mapping[str, int] | None = None) -> Capacity:
    """The record of a fleet at its largest rate and the next one, which it does not keep [1/s]."""
    pools = []
    for pool, found in zip(fleet.pools, fleet.predict(rate, fleet.counts), strict=True):
        latency = {
            p.label: json_number(found.share(p) if p.kind == GOODPUT else found.value(p.metric, p.quantile))
            for p in fleet.promises.latency
        }
        pools.append(
            CapacityPool(
                pool.name, pool.option.gpu.name, str(pool.option.parallel), pool.bought, pool.bought - pool.size.replicas,
                pool.gpus, pool.law.lower.boundary, pool.law.upper.boundary, pool.law.share, rate * pool.law.share,
                found.load, pool.option.token_budget, pool.setup.slots * pool.option.copies, pool.cost_usd_per_hour,
                {k: v for k, v in latency.items() if v is not None},
            )
        )  # fmt: skip
    return Capacity(fleet.question.asked, dict(have or {}), rate, refused, _binding(fleet, refused), tuple(pools))


def _binding(fleet: Fleet, rate: float) -> str:
    """What is broken at a rate [1/s] that is too much."""
    for pool in fleet.pools:
        own = rate * pool.law.share
        where = "" if len(fleet.pools) == 1 else f"{pool.name}: "
        if not pool_keeps(fleet.question, pool, own, ()):
            return f"{where}{CAP} {fleet.promises.utilization_cap:.0%}"
        if fleet.linked or fleet.shared_promises:
            continue
        for promise in fleet.own_promises:
            if not pool_keeps(fleet.question, pool, own, (promise,), sure=True):
                return f"{where}{promise.told}"
    worst = max(
        ((x.held(p.metric, p.quantile) / p.limit_s, p) for x in fleet.look(rate) for p in fleet.promises.latency),
        key=lambda row: -1.0 if math.isnan(row[0]) else row[0],
    )
    return worst[1].told
