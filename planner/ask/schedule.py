"""A fleet over the hours of a day or a week: replicas per pool, started ahead of time, held a minimum time, and the cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Unpack

from planner.ask.dwell import cheapest_holding, paid_replicas
from planner.ask.hourly import Elasticity, Hourly
from planner.ask.options import PlanOptions
from planner.errors import InfeasibleError
from planner.plans import Plan
from planner.promise import Slo
from planner.shared.arguments import spelled_out, told_types
from planner.shared.notebook import InNotebooks
from planner.shared.record import Record
from planner.size.fleet import Fleet
from planner.size.pool import Pool, Shortfall
from planner.units import (
    HOUR_S,
    HOURS_PER_DAY,
    LEAST_RATE,
    format_count,
    format_duration,
    format_percent,
    parse_duration,
    parse_fraction,
)
from planner.workload.hours import HourlyRates
from planner.workload.importing import Frame
from planner.workload.workload import Workload

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def needs_of(fleet: Fleet, fleet_rates_per_s: Sequence[float]) -> dict[float, list[int]]:
    """Replicas that must serve in every pool, for each of many rates; every rate is sized once, as a plan of it is.

    The highest is sized from nothing, so that the busiest hour is the plan's own number; where others lie it says about.

    Raises
    ------
    InfeasibleError
        No number of replicas keeps the promises at some rate.
    """
    known: dict[float, list[int]] = {}
    for rate in sorted(set(fleet_rates_per_s), reverse=True):
        if rate < LEAST_RATE:
            known[rate] = [fleet.promises.min_replicas] * len(fleet.pools)
            continue
        # a rate nearby is known: the number is nearly proportional
        near = min((r for r in known if r >= LEAST_RATE), key=lambda r: abs(math.log(r / rate)), default=None)
        sizes = fleet.size(rate, None if near is None else [math.ceil(n * rate / near) for n in known[near]])
        if isinstance(sizes, Shortfall):
            p = sizes.promise
            raise InfeasibleError(
                f"{p.told} cannot be kept at {format_count(rate)} requests/s by any number of replicas of these pools",
                "Relax the promise, or plan anew for the busiest hour's rate.",
            )
        known[rate] = [size.replicas for size in sizes]
    return known


@dataclass(frozen=True, slots=True)
class ScheduledPool(Record):
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

    written: ClassVar[tuple[str, ...]] = (
        *("name", "gpu", "gpus_per_replica", "share", "capacity_per_s", "peak_replicas=peak", "mean_replicas=mean"),
        *("least_replicas=least", "gpu_hours=total_gpu_hours", "cost_usd=total_usd", "static_cost_usd=static_usd"),
        "perfect_autoscaler_cost_usd=least_usd",
    )

    @property
    def peak(self) -> int:
        """Most replicas: the static plan's."""
        return max(self.replicas)

    @property
    def mean(self) -> float:
        """Replicas that serve on average over the hours."""
        return sum(self.replicas) / len(self.replicas)

    @property
    def least(self) -> int:
        """Fewest replicas."""
        return min(self.replicas)

    @property
    def total_gpu_hours(self) -> float:
        """Of all hours [GPU h]."""
        return math.fsum(self.gpu_hours)

    @property
    def total_usd(self) -> float:
        """Of all hours [USD]."""
        return math.fsum(self.cost_usd)

    @property
    def static_usd(self) -> float:
        """Of the busiest hour's replicas over all hours [USD]."""
        return self.static_usd_per_hour * len(self.replicas)


def cron_time(seconds: float, weekly: bool) -> str:
    """Minute, hour and day fields of a moment of the day or week (Monday 0:00 first), whole minutes, never later.

    >>> cron_time(8 * 3600 - 240, weekly=False), cron_time(30 * 3600, weekly=True), cron_time(-60, weekly=True)
    ('56 7 * * *', '0 6 * * 2', '59 23 * * 0')
    """
    period = HOUR_S * (HOURS_PER_DAY * 7 if weekly else HOURS_PER_DAY)
    moment = int(seconds % period // 60)
    day = str((moment // (24 * 60) + 1) % 7) if weekly else "*"
    return f"{moment % 60} {moment // 60 % 24} * * {day}"


def cron_spans(replicas: Sequence[int], startup_s: float) -> tuple[int, list[tuple[str, str, int]]]:
    """Least replicas of all hours, and (start, end, replicas) of every stretch above it, begun `startup_s` ahead [s]."""
    period = len(replicas) * HOUR_S
    spans = [(first * HOUR_S - startup_s, (first + n) * HOUR_S, count) for first, n, count in _stretches(replicas)]
    # a stretch that, begun early, fills the whole period cannot be a trigger: start and end would coincide
    least = max([min(replicas), *(count for start, end, count in spans if end - start >= period)])
    weekly = len(replicas) > HOURS_PER_DAY
    return least, [(cron_time(a, weekly), cron_time(b, weekly), count) for a, b, count in spans if count > least]


def _stretches(replicas: Sequence[int]) -> list[tuple[int, int, int]]:
    """(first hour, hours, replicas) of every stretch of one count; the first may begin before hour 0 of the list.

    >>> _stretches((3, 1, 1, 3))
    [(1, 2, 1), (3, 2, 3)]
    """
    hours = len(replicas)
    starts = [h for h in range(hours) if replicas[h] != replicas[h - 1]]
    if not starts:
        return [(0, hours, replicas[0])]
    ends = [*starts[1:], starts[0] + hours]
    return [(a, b - a, replicas[a]) for a, b in zip(starts, ends, strict=True)]


@dataclass(frozen=True, slots=True)
class Schedule(InNotebooks):
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

    document: ClassVar[str] = "fleetopt-schedule"
    written: ClassVar[tuple[str, ...]] = (
        "inputs", "hours=source", "period_hours=hours", "startup_s=elasticity.startup_s", "dwell_s=elasticity.dwell_s",
        "buffer=elasticity.buffer", "mean_rate_per_s", "peak_rate_per_s", "peak_replicas", "mean_replicas", "peak_gpus",
        "gpu_hours", "static_gpu_hours", "perfect_autoscaler_gpu_hours=perfect_gpu_hours", "cost_usd", "static_cost_usd",
        "perfect_autoscaler_cost_usd=perfect_cost_usd", "saving", "reactive_buffer", "pools", "schedule=to_rows", "notes",
    )  # fmt: skip

    def __repr__(self) -> str:
        return f"<Schedule: {self.hours} hours, {self.peak_replicas} replicas at the peak, {self.mean_replicas:.1f} on average>"

    @property
    def hours(self) -> int:
        """Hours of the period: 24 or 168."""
        return len(self.rates_per_s)

    @property
    def mean_rate_per_s(self) -> float:
        """Of all hours [1/s]."""
        return math.fsum(self.rates_per_s) / self.hours

    @property
    def peak_rate_per_s(self) -> float:
        """Of the busiest hour [1/s]."""
        return max(self.rates_per_s)

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
        return [
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
                "load": rate * p.share / ((p.replicas[h] - p.spares[h]) * p.capacity_per_s),
                "cost_usd": p.cost_usd[h],
            }
            for h, rate in enumerate(self.rates_per_s)
            for p in self.pools
        ]


@spelled_out
@told_types
def schedule(
    fleet: Plan | Workload | str | Path | None = None,
    *,
    hours: str | Path | None = None,
    startup: float | str = "4min",
    dwell: float | str = 0.0,
    buffer: float | str = 0.0,
    workload: Workload | Frame | str | Path | None = None,
    slo: Slo | float | str | Sequence[float | str] | None = None,
    scenario: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Unpack[PlanOptions],
) -> Schedule:
    """Replicas per hour and pool over a day or a week, and what scaling saves.

    Parameters
    ----------
    fleet
        A plan or a plan file: its pools, boundaries and engines, scaled by the hour. A configuration file or ``None``:
        the pools are planned for the busiest hour first.
    hours
        File with 24 or 168 rates, or a shipped service (servegen-m-small, ...). Default: the workload's own hours.
    startup
        From starting a replica until it serves [s]; it is started, and paid, that much ahead.
    dwell
        Least time a pool keeps its number of replicas, in whole hours [s].
    buffer
        Added to every hour's traffic, e.g. 0.1 or ``"10%"``: the older name of `headroom`.
    workload
        The traffic, when it is not the plan's.
    slo, scenario
        As for :func:`plan`, as are all other options.
    progress
        Told (done, all) after every pool.

    Returns
    -------
    Schedule

    Examples
    --------
    >>> import planner as fo
    >>> asked = {"slo": 2.0, "rate": 100, "method": "occupancy", "burst": "poisson"}
    >>> s = fo.schedule(workload="azure", hours="servegen-m-small", **asked)
    >>> s.perfect_cost_usd <= s.cost_usd <= s.static_cost_usd
    True
    """
    times = parse_duration(startup, "startup"), parse_duration(dwell, "dwell"), parse_fraction(buffer, "buffer")
    hourly = Hourly(fleet, workload, scenario, {**options, "slo": slo}, hours, Elasticity(*times))
    return make_schedule(hourly.fleet(), hourly.rates, hourly.rate, hourly.elasticity, progress)


def make_schedule(
    fleet: Fleet,
    hours: HourlyRates,
    rate_per_s: float,
    elasticity: Elasticity,
    progress: Callable[[int, int], None] | None = None,
) -> Schedule:
    """Replicas by hour for pools whose boundaries and engines are given.

    Parameters
    ----------
    fleet
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
        A pool that keeps its promises at no size in some hour.
    """
    rates = hours.rates_per_s(rate_per_s, elasticity.rate_is)
    held = [rate * (1.0 + elasticity.buffer) for rate in rates]
    known = needs_of(fleet, [*held, *rates])
    pools, tell = [], progress or (lambda done, total: None)
    for k, pool in enumerate(fleet.pools):
        perfect = [known[rate][k] for rate in rates]
        # bursts shrink relative to a higher rate: where more traffic needs less, the buffer must not take replicas away
        serving = [max(known[rate][k], n) for rate, n in zip(held, perfect, strict=True)]
        pools.append(scheduled_pool(pool, serving, perfect, elasticity))
        tell(k + 1, len(fleet.pools))
    notes = []
    if elasticity.rate_is == "mean":
        notes.append(
            f"{format_count(rate_per_s)} requests/s is the mean over {len(rates)} hours; the busiest has "
            f"{format_count(max(rates))} (--rate-is peak takes it for the busiest hour's)"
        )
    notes.append(
        f"hours from {hours.source}; replicas start {format_duration(elasticity.startup_s)} before they are needed; "
        "within an hour the rate is taken as constant (--headroom adds to it)"
    )
    found = Schedule(fleet.question.asked, rates, elasticity, hours.source, tuple(pools))
    if found.reactive_buffer > 0.0:
        notes.append(
            f"a scaler that reacts to the traffic instead of the clock needs {format_percent(found.reactive_buffer)} in "
            "reserve to bridge the start-up time where the traffic grows fastest"
        )
    return replace(found, notes=tuple(notes))


def scheduled_pool(pool: Pool, serving: Sequence[int], perfect: Sequence[int], elasticity: Elasticity) -> ScheduledPool:
    """One pool over the hours, from the replicas that must serve in each with and without the buffer."""
    price = pool.option.price
    bought = {n: price.bought(n) for n in {*serving, *perfect}}
    needed = tuple(bought[n] for n in perfect)
    replicas = cheapest_holding([bought[n] for n in serving], elasticity.dwell_hours, elasticity.startup_hours)
    paid = paid_replicas(replicas, elasticity.startup_hours)
    per_replica = price.gpus_per_replica
    return ScheduledPool(
        name=pool.name,
        gpu=pool.option.gpu.name,
        gpus_per_replica=per_replica,
        share=pool.law.share,
        capacity_per_s=pool.capacity_per_s,
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
