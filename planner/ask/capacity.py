"""Capacity: the largest rate at which a fleet keeps every promise; the inverse of a plan."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Unpack

from planner.ask.asked import refuse_bought
from planner.ask.evaluation import Served, latencies, served_of
from planner.ask.hourly import Hourly
from planner.ask.options import OwnOptions
from planner.catalog.load import gpu as find_gpu
from planner.errors import InfeasibleError, InputError, refuse
from planner.plans import Plan
from planner.question.compiled import CompiledQuestion
from planner.question.options import OPTIONS
from planner.shared.arguments import told_types
from planner.shared.kept import keeping
from planner.shared.notebook import InNotebooks
from planner.shared.record import Record
from planner.size.fleet import Fleet
from planner.size.pool import Shortfall, pool_keeps
from planner.size.unknowns import settled, with_users
from planner.units import format_gpus
from planner.workload.importing import Frame
from planner.workload.workload import Workload

if TYPE_CHECKING:
    from concurrent.futures import Executor

PRECISION, COARSE = 1.0 / 256.0, 1.0 / 32.0
"""Share to which a largest rate is known: the first rate that is refused lies no further above it; and to which largest numbers of
jobs and of requests under way are, as jobs wait and nobody else does [1]."""

STEP = 1.04
"""Factor of the first step away from where a largest rate is thought to lie."""

MOST_STEPS = 40
"""Rates looked at for one answer at most."""

MOST_ROUNDS = 8
"""Numbers of users whose rate is looked up for one answer at most."""

SOME_USERS = 100
"""Users from whom on the largest number is looked for, where nobody says about how many it is."""

LEAST_PART = 1e-4
"""A fleet that keeps its promises below this share of the rate its load alone allows keeps them at none [1]."""


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
        Promise, as tables call it -> its value as predicted [s], of one about several latencies the share that keeps it [1].
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
    served
        That fleet and its traffic.
    """

    inputs: Mapping[str, object]
    have: Mapping[str, int]
    rate_per_s: float
    refused_per_s: float
    binding: str
    pools: tuple[CapacityPool, ...]
    served: Served

    document: ClassVar[str] = "fleetopt-capacity"
    written: ClassVar[tuple[str, ...]] = (
        "inputs", "have", "rate_per_s", "users", "refused_per_s", "binding", "gpus", "unused", "cost_usd_per_hour", "served",
        "pools",
    )  # fmt: skip

    def __repr__(self) -> str:
        return f"<Capacity: {self.rate_per_s:,.4g} requests/s on {format_gpus(self.gpus)}, then {self.binding}>"

    @property
    def gpus(self) -> int:
        """GPUs of the fleet."""
        return sum(p.gpus for p in self.pools)

    @property
    def unused(self) -> dict[str, int]:
        """GPUs by type that the fleet leaves idle."""
        left = Counter(self.have)
        for p in self.pools:
            left[p.gpu] -= p.gpus
        return {gpu: n for gpu, n in left.items() if n > 0}

    @property
    def users(self) -> int | None:
        """The largest number of users, where the traffic is a closed population."""
        per_rate = self.served.users_per_rate
        return None if per_rate is None else math.floor(self.rate_per_s * per_rate * (1.0 + 1e-9))

    @property
    def cost_usd_per_hour(self) -> float:
        """Cost of the fleet [USD/hour]."""
        return math.fsum(p.cost_usd_per_hour for p in self.pools)

    def to_rows(self) -> list[dict[str, object]]:
        """One row per pool."""
        rows = [{k: v for k, v in p.to_dict().items() if k not in ("latency", "rate_per_s")} for p in self.pools]
        return [
            {"rate_per_s": self.rate_per_s, **row, "pool_rate_per_s": p.rate_per_s, **p.latency}
            for p, row in zip(self.pools, rows, strict=True)
        ]


def largest(
    keeps: Callable[[float], bool],
    start: float,
    low: float = 0.0,
    high: float = math.inf,
    step: float = STEP,
    precision: float = PRECISION,
) -> tuple[float, float]:
    """The largest rate that is kept, and the next one that was refused; (0, ...) where none is.

    Growing steps from `start`, up while rates are kept or down while they are not, then bisection to a `precision`: what is
    kept at `start` has at least that, what is not has less.

    Parameters
    ----------
    keeps
        Whether a rate [1/s] is kept.
    start
        Where it is thought to lie [1/s].
    low, high
        A rate that is kept and one that is not, where they are known [1/s].
    step
        Factor of the first step.
    precision
        Share to which it is known [1].

    >>> low, high = largest(lambda rate: rate <= 70.0, 100.0)
    >>> low <= 70.0 < high <= low * (1.0 + PRECISION)
    True
    """
    at, least = start, LEAST_PART * start
    for _ in range(MOST_STEPS):
        if keeps(at):
            low = at
        else:
            high = at
        if high <= low * (1.0 + precision) or high < least:
            break
        if low > 0.0 and high < math.inf:
            at = math.sqrt(low * high)
            continue
        at, step = (low * step if low > 0.0 else high / step), min(step * step, 2.0)
    return low, high


def keeps_at(fleet: Fleet, rate_per_s: float) -> bool:
    """Whether the sizer takes no more of any pool than stands at a rate [1/s]."""
    margins = fleet.margins(fleet.promises.confidence)
    about = fleet.sizes_for(rate_per_s, margins, fleet.counts, quick=True)
    if isinstance(about, Shortfall):
        return False
    # as :meth:`Fleet.size` decides, but for the predictions of other sizes
    return fleet.stands(rate_per_s, fleet.sized(about).margins_at(rate_per_s))


def largest_rate(fleet: Fleet, start_per_s: float) -> tuple[float, float]:
    """The largest rate of a fleet as it stands and the next one, which is refused [1/s].

    About by a sample of the requests, then by all of them with the margin of that rate. What the sizer takes at the start has at
    least that rate, what it does not has less, and it has the last word.
    """
    kept = keeps_at(fleet, start_per_s)
    least, low, high = (start_per_s if kept else 0.0), *((start_per_s, math.inf) if kept else (0.0, start_per_s))
    about = largest(fleet.holds, start_per_s)[0]
    at = (
        max(about, start_per_s * (1.0 + PRECISION))
        if kept
        else min(about or start_per_s, start_per_s / (1.0 + PRECISION))
    )
    margins, step = fleet.margins_at(at), 1.0 + 1.5 * PRECISION
    low, high = largest(lambda rate: fleet.stands(rate, margins), at, low, high, step)
    return as_sized(fleet, low, high, least)


def as_sized(fleet: Fleet, low: float, high: float, least: float = 0.0) -> tuple[float, float]:
    """A largest rate and the next one as the sizer has them, which keeps `least` and has the last word [1/s]."""
    if low <= least or keeps_at(fleet, low):
        return low, high
    step = 1.0 + 1.5 * PRECISION
    return largest(partial(keeps_at, fleet), low / step, least, low, step)


@told_types
@keeping()
def capacity(
    fleet: Plan | Workload | str | Path | None = None,
    *,
    have: Mapping[str, int] | Sequence[str] | None = None,
    workload: Workload | Frame | str | Path | None = None,
    scenario: str | None = None,
    executor: Executor | None = None,
    **options: Unpack[OwnOptions],
) -> Capacity:
    """The largest rate with all promises: of a fleet that stands, or of the best of the GPUs there are; the inverse of a plan.

    Parameters
    ----------
    fleet
        A plan or a plan file: its fleet stands, unless `have` says what there is instead. A configuration file or ``None``: the
        question of what `have` bears. Of users the largest number is told; how many are named does not matter.
    have
        GPUs there are: h100=24; traffic is cut by length and by share.
    workload, scenario
        As for :func:`schedule`.
    executor
        Looks at the ranges of lengths elsewhere: any :class:`concurrent.futures.Executor`.
    **options
        Options of :func:`plan`; of a fleet that stands those that change nothing of it.

    Returns
    -------
    Capacity

    Raises
    ------
    InfeasibleError
        The promises are kept at no rate.

    Examples
    --------
    >>> import planner as fo
    >>> p = fo.plan("azure", slo=2.0, rate=100, method="occupancy", burst="poisson", pools=1)
    >>> fo.capacity(p).rate_per_s >= 100
    True
    """
    if {options.get("think_time"), options.get("requests_per_hour")} != {None} and options.get("users") is None:
        options["users"] = SOME_USERS
    hourly = Hourly(fleet, workload, scenario, options, stated=have is None)
    if have is not None:
        from planner.ask.stock import capacity_of_stock

        counts = OPTIONS["inventory"].kind.read(have if isinstance(have, Mapping) else [*have], "have")
        refuse([f"have: {gpu}={count} is no number of GPUs" for gpu, count in counts.items() if count < 0])
        there = {find_gpu(name).name: count for name, count in counts.items() if count}
        if not there:
            raise InputError("have: no GPU at all", "Write it as h100=24.")
        return capacity_of_stock(hourly.question, hourly.loaded, there, executor)
    if not hourly.standing:
        raise InputError(
            "capacity: of what fleet?",
            "Give a plan file, or the GPUs there are: fleetopt capacity --have h100=24 --have a100=40",
        )
    refuse_bought([k for k, v in options.items() if v is not None])
    stands = hourly.fleet()
    rate, refused = largest_rate(stands, hourly.peak)
    if rate <= 0.0:
        raise InfeasibleError(
            "this fleet keeps its promises at no rate", "What breaks them:", [_binding(stands, refused)]
        )
    return with_its_users(stands, capacity_at(stands, rate, refused))


def with_its_users(fleet: Fleet, found: Capacity) -> Capacity:
    """The largest number of users: more of them wait longer and ask less often each, which is looked up anew."""
    for _ in range(MOST_ROUNDS):
        if found.users is None or as_many(fleet.question, found.users):
            break
        fleet = settled(with_users(fleet.question, found.users), fleet.routed)[1]
        found = capacity_at(fleet, *largest_rate(fleet, found.rate_per_s), found.have)
    return found


def as_many(question: CompiledQuestion, users: int) -> bool:
    """Whether a question asks about so many users, as far as a largest rate is known."""
    population = question.traffic.sending.population
    return population is not None and abs(users - population.users) <= max(PRECISION * population.users, 0.5)


def capacity_at(fleet: Fleet, rate: float, refused: float, have: Mapping[str, int] | None = None) -> Capacity:
    """The record of a fleet at its largest rate and the next one, which it does not keep [1/s]."""
    pools = []
    for pool, found in zip(fleet.pools, fleet.predict(rate, fleet.counts), strict=True):
        latency = latencies(fleet.promises.latency, found)
        pools.append(
            CapacityPool(
                pool.name, pool.option.gpu.name, str(pool.option.parallel), pool.bought, pool.bought - pool.replicas,
                pool.gpus, pool.law.lower.boundary, pool.law.upper.boundary, pool.law.share, rate * pool.law.share,
                found.load, pool.option.token_budget, pool.setup.slots * pool.option.copies, pool.cost_usd_per_hour,
                {k: v for k, v in latency.items() if v is not None},
            )
        )  # fmt: skip
    return Capacity(
        fleet.question.asked, dict(have or {}), rate, refused, _binding(fleet, refused), tuple(pools), served_of(fleet)
    )


def _binding(fleet: Fleet, rate: float) -> str:
    """What is broken at a rate [1/s] that is too much: of each pool by itself, else the promise that is used up most."""
    promises = fleet.promises
    margins = fleet.margins(promises.confidence)
    alone = () if fleet.linked or fleet.shared_promises else fleet.own_promises
    for pool, margin in zip(fleet.pools, margins, strict=True):
        where = "" if len(fleet.pools) == 1 else f"{pool.name}: "
        own = rate * pool.law.share
        if not pool_keeps(pool, own, promises.only(())):
            return f"{where}utilization cap {promises.utilization_cap:.0%}"
        for promise in alone:
            if not pool_keeps(pool, own, promises.only((promise,)), margin.slow):
                return f"{where}{promise.told}"
    used = [(x.value(p.metric, p.quantile) / p.limit_s, p.told) for x in fleet.look(rate) for p in promises.latency]
    return max((row for row in used if not math.isnan(row[0])), default=(0.0, "the promises"))[1]
