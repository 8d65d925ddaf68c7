"""A fleet over the hours of a day or a week: replicas per pool, started ahead of time, held a minimum time, and the cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import planner
from planner.errors import InfeasibleError, InputError
from planner.fleet.assemble import make_plan, pool_names
from planner.fleet.disaggregated import DECODE, PREFILL, Disaggregated, is_disaggregated
from planner.fleet.explain import infeasible
from planner.fleet.pool import Shortfall, broken, evaluate_pool, prediction_levels, smallest_pool
from planner.fleet.problem import FleetProblem
from planner.fleet.scope import TAIL_LEVELS, ScopedPool, cheapest_allocation
from planner.methods.base import PoolModel
from planner.plans import json_number
from planner.promise import Promise
from planner.question.files import SavedPool, saved_pools
from planner.question.inputs import PlanInputs
from planner.replica.engine import EngineOption, engine_options
from planner.replica.floor import hardware_floor
from planner.replica.price import PriceRule
from planner.studies.dwell import cheapest_holding, paid_replicas
from planner.studies.standing import FixedFleet
from planner.studies.standing_disaggregated import standing_disaggregated
from planner.units import format_count, format_duration, format_percent
from planner.workload import pools as m
from planner.workload.hours import HOURS_PER_DAY, HourlyRates
from planner.workload.pools import PoolLaw
from planner.workload.workload import Workload

__all__ = [
    "Demand",
    "Elasticity",
    "Schedule",
    "ScheduledPool",
    "make_schedule",
    "planned_demands",
    "standing_demands",
]

HOUR_S = 3600.0

NEAR = 6
"""Steps from a guessed number of replicas before the general search takes over."""
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True, slots=True)
class Elasticity:
    """How replicas come and go.

    Parameters
    ----------
    startup_s
        From starting a replica until it serves [s]; it is paid for from the start.
    dwell_s
        A pool keeps its number of replicas at least this long, in whole hours [s].
    buffer
        Added to the traffic of every hour, e.g. 0.1 [1].
    rate_is
        ``mean``: the rate is the mean over the hours; ``peak``: that of the busiest hour.
    """

    startup_s: float = 240.0
    dwell_s: float = 0.0
    buffer: float = 0.0
    rate_is: str = "mean"

    def __post_init__(self) -> None:
        problems = [
            f"{name}: must not be negative or infinite, got {getattr(self, name)!r}"
            for name in ("startup_s", "dwell_s", "buffer")
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0.0)
        ]
        if self.rate_is not in ("mean", "peak"):
            problems.append(f"rate_is: {self.rate_is!r} is none of mean, peak")
        if problems:
            raise InputError.from_problems(problems)

    @property
    def startup_hours(self) -> float:
        """Start-up time [h]."""
        return self.startup_s / HOUR_S

    @property
    def dwell_hours(self) -> int:
        """Whole hours a count is kept [h]."""
        return max(1, math.ceil(self.dwell_s / HOUR_S - 1e-9))


class _Candidate(Protocol):
    """What a solved or a standing pool has in common."""

    @property
    def law(self) -> PoolLaw: ...
    @property
    def option(self) -> EngineOption: ...
    @property
    def model(self) -> PoolModel: ...


class Demand:
    """Replicas one pool needs at any rate of the fleet; every rate is solved once.

    Parameters
    ----------
    name
        Of the pool.
    option
        Its engine.
    share
        Fraction of the requests it serves.
    capacity_per_s
        Largest stable rate of one replica [1/s].
    solve
        Rate of the fleet [1/s] and a number thought to be near -> replicas that must serve.
    """

    def __init__(
        self,
        name: str,
        option: EngineOption,
        share: float,
        capacity_per_s: float,
        solve: Callable[[float, int | None], int],
    ) -> None:
        self.name, self.option, self.share, self.capacity_per_s = name, option, share, capacity_per_s
        self._solve = solve
        self._known: dict[float, int] = {}

    @property
    def price(self) -> PriceRule:
        """Cost rule."""
        return self.option.price

    def serving(self, fleet_rate_per_s: float) -> int:
        """Replicas that must serve at a rate of the fleet [1/s].

        Raises
        ------
        InfeasibleError
            No number of replicas keeps the promises.
        """
        if fleet_rate_per_s not in self._known:
            # a rate nearby is known: the number is nearly proportional
            others = [r for r in self._known if r > 0.0] if fleet_rate_per_s > 0.0 else []
            near = min(others, key=lambda r: abs(math.log(r / fleet_rate_per_s)), default=None)
            start = None if near is None else math.ceil(self._known[near] * fleet_rate_per_s / near)
            self._known[fleet_rate_per_s] = self._solve(fleet_rate_per_s, start)
        return self._known[fleet_rate_per_s]


def _smallest_near(keeps: Callable[[int], bool], guess: int, least: int) -> int | None:
    """Smallest number >= `least` that keeps the promises when it is within a few of a guess, else ``None``."""
    n = max(guess, least)
    for _ in range(NEAR):
        if not keeps(n):
            n += 1
        elif n == least or not keeps(n - 1):
            return n
        else:
            n -= 1
    return None


def demands_of(names: Sequence[str], pools: Sequence[_Candidate], inputs: PlanInputs) -> list[Demand]:
    """Demands of pools between lengths; together where promises are about the whole fleet."""
    together = [p for p in inputs.promises if p.scope == "fleet"]
    own = [p for p in inputs.promises if p.scope == "pool"]
    levels = prediction_levels(inputs.promises, TAIL_LEVELS if together else (0.5, 0.9, 0.99))

    def least(pool: _Candidate, rate: float, start: int | None) -> int:
        if rate <= 0.0:
            return inputs.min_replicas
        fewest = max(inputs.min_replicas, _hardware_least(pool, rate, inputs))
        size = smallest_pool(pool.model, rate, own, inputs.utilization_cap, fewest, levels, start)
        if isinstance(size, Shortfall):
            raise _unkept(size.promise, rate / pool.law.share)
        return size.replicas

    def alone(pool: _Candidate) -> Callable[[float, int | None], int]:
        def need(rate: float, start: int | None) -> int:
            rate *= pool.law.share
            if start is not None and rate > 0.0:
                by_cap = math.ceil(rate / (inputs.utilization_cap * pool.model.capacity_per_s) * (1.0 - 1e-12))
                fewest = max(by_cap, inputs.min_replicas, _hardware_least(pool, rate, inputs))

                def keeps(n: int) -> bool:
                    prediction = evaluate_pool(pool.model, rate, n, levels)
                    return prediction.load < 1.0 and broken(prediction, own) is None

                found = _smallest_near(keeps, start, fewest)
                if found is not None:
                    return found
            return least(pool, rate, start)

        return need

    if not together:
        return [
            Demand(n, p.option, p.law.share, p.model.capacity_per_s, alone(p))
            for n, p in zip(names, pools, strict=True)
        ]
    known: dict[float, list[int]] = {}

    def shared(rate: float) -> list[int]:
        if rate not in known:
            fewest = [least(pool, rate * pool.law.share, None) for pool in pools]
            known[rate] = fewest
            if rate > 0.0:
                scoped = [
                    ScopedPool(p.model, rate * p.law.share, p.law.share, n, p.option.price.cost_of_need)
                    for p, n in zip(pools, fewest, strict=True)
                ]
                found = cheapest_allocation(scoped, together, levels)
                if found is None:
                    raise _unkept(together[0], rate)
                known[rate] = [size.replicas for size in found[1]]
        return known[rate]

    def part(k: int) -> Callable[[float, int | None], int]:
        return lambda rate, start: shared(rate)[k]

    return [
        Demand(n, p.option, p.law.share, p.model.capacity_per_s, part(k))
        for k, (n, p) in enumerate(zip(names, pools, strict=True))
    ]


def demands_of_shape(fleet: Disaggregated) -> list[Demand]:
    """Demands of a prefill and a decode pool, which keep an end-to-end promise together."""
    inputs = fleet.inputs
    known: dict[float, tuple[int, int]] = {}

    def both(rate: float) -> tuple[int, int]:
        if rate not in known:
            if rate <= 0.0:
                known[rate] = (inputs.min_replicas, inputs.min_replicas)
            else:
                sizes = fleet.size(rate, inputs.promises)
                if isinstance(sizes, Shortfall):
                    raise _unkept(sizes.promise, rate)
                known[rate] = (sizes.prefill.replicas, sizes.decode.replicas)
        return known[rate]

    first = fleet.prefill
    found = [Demand(PREFILL, fleet.prefill_option, 1.0, first.capacity_per_s, lambda r, _: both(r)[0])]
    if fleet.decode is not None:
        capacity, share = fleet.decode.capacity_per_s, fleet.decode_share
        found.append(Demand(DECODE, fleet.decode_option, share, capacity, lambda r, _: both(r)[1]))
    return found


def _unkept(promise: Promise, fleet_rate: float) -> InfeasibleError:
    return InfeasibleError(
        f"{promise.label} <= {format_duration(promise.limit_s)} cannot be kept at {format_count(fleet_rate)} requests/s "
        "by any number of replicas of these pools",
        "Relax the promise, or plan anew for the busiest hour's rate.",
    )


def _hardware_least(pool: _Candidate, rate: float, inputs: PlanInputs) -> int:
    """Physics, for the method that takes prefill for free."""
    if inputs.method != "mgc" or not pool.option.profile.automatic:
        return 1
    law = pool.law
    floor = hardware_floor(
        pool.option.gpu, pool.option.model, rate, law.mean(m.NEW_INPUT), law.mean(m.OUTPUT), law.mean(m.KV)
    )
    return math.ceil(float(floor.gpus) / pool.option.profile.gpus)


@dataclass(frozen=True, slots=True)
class ScheduledPool:
    """One pool over the hours.

    Parameters
    ----------
    name, gpu, gpus_per_replica
        As in the plan.
    share
        Fraction of the requests it serves.
    capacity_per_s
        Largest stable rate of one replica [1/s].
    needed
        Replicas a perfect autoscaler would have in every hour, spares included; no buffer, no dwell.
    replicas
        Replicas of the schedule in every hour, spares included.
    spares
        How many of them are redundancy.
    starting
        Replicas starting up at the end of every hour, paid and not serving yet.
    cost_usd
        Cost of every hour, start-ups included [USD].
    gpu_hours
        GPU-hours of every hour, start-ups included [GPU h].
    static_usd_per_hour, least_usd
        Cost of the busiest hour's replicas held for ever [USD/hour]; cost of the perfect autoscaler [USD] over the period.
    """

    name: str
    gpu: str
    gpus_per_replica: int
    share: float
    capacity_per_s: float
    needed: tuple[int, ...]
    replicas: tuple[int, ...]
    spares: tuple[int, ...]
    starting: tuple[int, ...]
    cost_usd: tuple[float, ...]
    gpu_hours: tuple[float, ...]
    static_usd_per_hour: float
    least_usd: float

    @property
    def peak(self) -> int:
        """Most replicas: the static plan's."""
        return max(self.replicas)

    @property
    def mean(self) -> float:
        """Replicas that serve on average over the hours."""
        return sum(self.replicas) / len(self.replicas)

    def stretches(self) -> list[tuple[int, int, int]]:
        """(first hour, hours, replicas) of every stretch of one count; the first may begin before hour 0 of the list.

        >>> [s for s in _stretches((3, 1, 1, 3))]
        [(1, 2, 1), (3, 2, 3)]
        """
        return _stretches(self.replicas)

    def to_dict(self) -> dict[str, object]:
        """JSON-ready, hours left to the rows."""
        return {
            "name": self.name,
            "gpu": self.gpu,
            "gpus_per_replica": self.gpus_per_replica,
            "share": self.share,
            "capacity_per_s": json_number(self.capacity_per_s),
            "peak_replicas": self.peak,
            "mean_replicas": self.mean,
            "least_replicas": min(self.replicas),
            "gpu_hours": math.fsum(self.gpu_hours),
            "cost_usd": math.fsum(self.cost_usd),
            "static_cost_usd": self.static_usd_per_hour * len(self.replicas),
            "perfect_autoscaler_cost_usd": self.least_usd,
        }


def _stretches(replicas: Sequence[int]) -> list[tuple[int, int, int]]:
    hours = len(replicas)
    starts = [h for h in range(hours) if replicas[h] != replicas[h - 1]]
    if not starts:
        return [(0, hours, replicas[0])]
    ends = [*starts[1:], starts[0] + hours]
    return [(a, b - a, replicas[a]) for a, b in zip(starts, ends, strict=True)]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Replicas per hour and pool, and what they cost beside a fleet that never changes and one that changes for free.

    Parameters
    ----------
    inputs
        The question, in the options' own names.
    rates_per_s
        Mean rate of the fleet in every hour [1/s], buffer not included.
    elasticity
        Start-up, dwell, buffer.
    source
        Where the hours are from.
    pools
        The pools.
    notes
        Worth knowing.
    """

    inputs: Mapping[str, object]
    rates_per_s: tuple[float, ...]
    elasticity: Elasticity
    source: str
    pools: tuple[ScheduledPool, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Schedule: {self.hours} hours, {self.peak_replicas} replicas at the peak, {self.mean_replicas:.1f} on average>"

    @property
    def hours(self) -> int:
        """Hours of the period: 24 or 168."""
        return len(self.rates_per_s)

    @property
    def peak_replicas(self) -> int:
        """Replicas in the busiest hour: the static plan's."""
        return max(sum(p.replicas[h] for p in self.pools) for h in range(self.hours))

    @property
    def mean_replicas(self) -> float:
        """Replicas that serve on average."""
        return math.fsum(p.mean for p in self.pools)

    @property
    def peak_gpus(self) -> int:
        """GPUs in the busiest hour."""
        return max(sum(p.replicas[h] * p.gpus_per_replica for p in self.pools) for h in range(self.hours))

    @property
    def gpu_hours(self) -> float:
        """GPU-hours over the period, start-ups included."""
        return math.fsum(x for p in self.pools for x in p.gpu_hours)

    @property
    def static_gpu_hours(self) -> float:
        """GPU-hours of the busiest hour's fleet over the period."""
        return float(sum(p.peak * p.gpus_per_replica for p in self.pools) * self.hours)

    @property
    def perfect_gpu_hours(self) -> float:
        """GPU-hours of a perfect autoscaler over the period."""
        return float(sum(sum(p.needed) * p.gpus_per_replica for p in self.pools))

    @property
    def cost_usd(self) -> float:
        """Cost over the period, start-ups included [USD]."""
        return math.fsum(x for p in self.pools for x in p.cost_usd)

    @property
    def static_cost_usd(self) -> float:
        """Cost of the busiest hour's fleet over the period [USD]."""
        return math.fsum(p.static_usd_per_hour for p in self.pools) * self.hours

    @property
    def perfect_cost_usd(self) -> float:
        """Cost of a perfect autoscaler over the period: every hour its need, no start-up time, dwell or buffer [USD]."""
        return math.fsum(p.least_usd for p in self.pools)

    @property
    def saving(self) -> float:
        """Share of the static cost saved, in [0, 1)."""
        return 1.0 - self.cost_usd / self.static_cost_usd

    @property
    def reactive_buffer(self) -> float:
        """Growth of the traffic within one start-up time where it grows fastest, hours joined by lines [1].

        What a scaler that reacts to the traffic instead of the clock has to hold in reserve.
        """
        reach = min(self.elasticity.startup_hours, 1.0)
        pairs = zip(self.rates_per_s, (*self.rates_per_s[1:], self.rates_per_s[0]), strict=True)
        return max((reach * (later / now - 1.0) for now, later in pairs if now > 0.0 and later > now), default=0.0)

    def label(self, hour: int) -> str:
        """``"08:00"``, or ``"Tue 08:00"`` in a week."""
        clock = f"{hour % HOURS_PER_DAY:02d}:00"
        return clock if self.hours == HOURS_PER_DAY else f"{DAYS[hour // HOURS_PER_DAY]} {clock}"

    def to_rows(self) -> list[dict[str, object]]:
        """One row per hour and pool."""
        rows = []
        for h, rate in enumerate(self.rates_per_s):
            for p in self.pools:
                serving = p.replicas[h] - p.spares[h]
                rows.append(
                    {
                        "hour": h,
                        "time": self.label(h),
                        "pool": p.name,
                        "rate_per_s": rate,
                        "pool_rate_per_s": rate * p.share,
                        "replicas": p.replicas[h],
                        "gpus": p.replicas[h] * p.gpus_per_replica,
                        "starting": p.starting[h],
                        "perfect_replicas": p.needed[h],
                        "load": rate * p.share / (serving * p.capacity_per_s),
                        "cost_usd": p.cost_usd[h],
                    }
                )
        return rows

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        e = self.elasticity
        return {
            "schema_version": 1,
            "kind": "fleetopt-schedule",
            "version": planner.__version__,
            "inputs": dict(self.inputs),
            "hours": self.source,
            "period_hours": self.hours,
            "startup_s": e.startup_s,
            "dwell_s": e.dwell_s,
            "buffer": e.buffer,
            "mean_rate_per_s": math.fsum(self.rates_per_s) / self.hours,
            "peak_rate_per_s": max(self.rates_per_s),
            "peak_replicas": self.peak_replicas,
            "mean_replicas": self.mean_replicas,
            "peak_gpus": self.peak_gpus,
            "gpu_hours": self.gpu_hours,
            "static_gpu_hours": self.static_gpu_hours,
            "perfect_autoscaler_gpu_hours": self.perfect_gpu_hours,
            "cost_usd": self.cost_usd,
            "static_cost_usd": self.static_cost_usd,
            "perfect_autoscaler_cost_usd": self.perfect_cost_usd,
            "saving": self.saving,
            "reactive_buffer": self.reactive_buffer,
            "pools": [p.to_dict() for p in self.pools],
            "schedule": self.to_rows(),
            "notes": list(self.notes),
        }


def make_schedule(
    inputs: PlanInputs,
    demands: Sequence[Demand],
    hours: HourlyRates,
    rate_per_s: float,
    elasticity: Elasticity,
    progress: Callable[[int, int], None] | None = None,
) -> Schedule:
    """Replicas by hour for pools whose boundaries and engines are given.

    Parameters
    ----------
    inputs
        The question.
    demands
        The pools.
    hours
        Traffic by hour.
    rate_per_s
        Rate of the fleet, mean or peak as `elasticity` says [1/s].
    elasticity
        Start-up time, dwell, buffer.
    progress
        Told (done, all) after every pool.

    Raises
    ------
    InfeasibleError
        A pool that keeps its promises at no size in the busiest hour.
    """
    rates = hours.rates_per_s(rate_per_s, elasticity.rate_is)
    pools = []
    for done, demand in enumerate(demands, start=1):
        pools.append(_scheduled(demand, rates, elasticity))
        if progress is not None:
            progress(done, len(demands))
    notes = []
    if elasticity.rate_is == "mean":
        notes.append(
            f"{format_count(rate_per_s)} requests/s is the mean over {len(rates)} hours; the busiest has "
            f"{format_count(max(rates))} (--rate-is peak takes it for the busiest hour's)"
        )
    notes.append(
        f"hours from {hours.source}; replicas start {format_duration(elasticity.startup_s)} before they are needed; "
        "within an hour the rate is taken as constant (--buffer adds to it)"
    )
    found = Schedule(inputs.to_dict(), rates, elasticity, hours.source, tuple(pools))
    if found.reactive_buffer > 0.0:
        notes.append(
            f"a scaler that reacts to the traffic instead of the clock needs {format_percent(found.reactive_buffer)} in "
            "reserve to bridge the start-up time where the traffic grows fastest"
        )
    return replace(found, notes=tuple(notes))


def _scheduled(demand: Demand, rates: tuple[float, ...], elasticity: Elasticity) -> ScheduledPool:
    price = demand.price
    held_rates = [r * (1.0 + elasticity.buffer) for r in rates]
    perfect = [demand.serving(r) for r in rates]
    # bursts shrink relative to a higher rate: where more traffic needs less, the buffer must not take replicas away
    serving = [max(demand.serving(held), n) for held, n in zip(held_rates, perfect, strict=True)]
    bought = {n: price.bought(n) for n in {*serving, *perfect}}
    needed = tuple(bought[n] for n in perfect)
    replicas = cheapest_holding([bought[n] for n in serving], elasticity.dwell_hours, elasticity.startup_hours)
    paid = paid_replicas(replicas, elasticity.startup_hours)
    per_replica = price.gpus_per_replica
    return ScheduledPool(
        name=demand.name,
        gpu=demand.option.gpu.name,
        gpus_per_replica=per_replica,
        share=demand.share,
        capacity_per_s=demand.capacity_per_s,
        needed=needed,
        replicas=replicas,
        spares=tuple(bought[n] - n for n in serving),
        starting=tuple(max(0, after - n) for n, (_, _, after) in zip(replicas, paid, strict=True)),
        cost_usd=tuple(
            (1.0 - late) * price.cost_usd_per_hour(before) + late * price.cost_usd_per_hour(after)
            for late, before, after in paid
        ),
        gpu_hours=tuple(per_replica * ((1.0 - late) * before + late * after) for late, before, after in paid),
        static_usd_per_hour=price.cost_usd_per_hour(max(replicas)),
        least_usd=math.fsum(price.cost_usd_per_hour(n) for n in needed),
    )


def planned_demands(inputs: PlanInputs, workload: Workload, peak_rate_per_s: float) -> list[Demand]:
    """The pools of the cheapest fleet for the busiest hour.

    Raises
    ------
    InputError, InfeasibleError
        As :func:`planner.fleet.assemble.make_plan`.
    """
    if inputs.shape != "colocated":
        busiest = replace(inputs, rate=peak_rate_per_s)
        return standing_demands(busiest, workload, saved_pools(make_plan(busiest, workload)))
    problem = FleetProblem(inputs, workload, peak_rate_per_s, engine_options(inputs, workload.max_total))
    fleet = problem.solve()
    if not fleet.pools:
        raise infeasible(problem, fleet)
    return demands_of(pool_names(len(fleet.pools)), fleet.pools, inputs)


def standing_demands(inputs: PlanInputs, workload: Workload, pools: Sequence[SavedPool]) -> list[Demand]:
    """The pools of a plan file: its boundaries and engines, any number of replicas."""
    if is_disaggregated(pools):
        return demands_of_shape(standing_disaggregated(inputs, workload, pools))
    standing = FixedFleet(inputs, workload, pools).pools
    return demands_of([p.saved.name for p in standing], standing, inputs)
