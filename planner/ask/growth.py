"""Growing traffic: how many GPUs to order by when, month by month, from a rate of growth and a lead time."""

from __future__ import annotations

import calendar
import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Unpack

from planner.ask.hourly import Elasticity, Hourly
from planner.ask.options import OwnOptions
from planner.ask.schedule import needs_of
from planner.errors import InputError
from planner.plans import Plan
from planner.shared.arguments import told_types
from planner.shared.notebook import InNotebooks
from planner.shared.record import Record
from planner.size.fleet import Fleet
from planner.size.pool import Pool, gpus_by_type
from planner.units import DAY_S, parse_duration, parse_fraction
from planner.workload.importing import Frame
from planner.workload.workload import Workload

MOST_MONTHS = 120
"""Ten years: no rate of growth lasts longer, nor does a reservation."""


@dataclass(frozen=True, slots=True)
class Month(Record):
    """One month of growth.

    Parameters
    ----------
    starts
        Its first day, ISO 8601.
    rate_per_s
        Rate at its end, which its fleet must carry [1/s].
    gpus, replicas
        GPUs by type, and replicas of every pool, that serve from its first day.
    new_gpus
        GPUs by type beyond those of the month before.
    order_by
        Last day to order them, ISO 8601; ``None`` = none are new.
    late
        Whether that day is past when the plan begins.
    cost_usd_per_hour
        Cost of the month's fleet [USD/hour].
    """

    starts: str
    rate_per_s: float
    gpus: Mapping[str, int]
    replicas: tuple[int, ...]
    new_gpus: Mapping[str, int]
    order_by: str | None
    late: bool
    cost_usd_per_hour: float

    written: ClassVar[tuple[str, ...]] = (
        "month=starts", "rate_per_s", "gpus", "order=new_gpus", "order_by", "late", "replicas", "cost_usd_per_hour",
    )  # fmt: skip

    def to_row(self) -> dict[str, object]:
        """One flat row."""
        order = ", ".join(f"{n:,} {gpu}" for gpu, n in self.new_gpus.items()) or None
        replicas = " + ".join(f"{n:,}" for n in self.replicas)
        return self.to_dict() | {"gpus": sum(self.gpus.values()), "order": order, "replicas": replicas}


@dataclass(frozen=True, slots=True)
class Growth(InNotebooks):
    """GPUs to have in each month, and by when to order them.

    Parameters
    ----------
    inputs
        The question, in the options' own names.
    monthly_growth
        Growth of the traffic from one month to the next, 0.08 = 8% [1].
    lead_time_s
        From ordering a GPU until it serves [s].
    gpus
        GPUs by type that stand when the plan begins.
    rate_per_s
        Rate the fleet carries when the plan begins: the busiest hour's [1/s].
    months
        In their order.
    """

    inputs: Mapping[str, object]
    monthly_growth: float
    lead_time_s: float
    gpus: Mapping[str, int]
    rate_per_s: float
    months: tuple[Month, ...]

    document: ClassVar[str] = "fleetopt-growth"

    def __repr__(self) -> str:
        last = self.months[-1]
        return f"<Growth: {sum(self.gpus.values())} to {sum(last.gpus.values())} GPUs in {len(self.months)} months>"

    def to_rows(self) -> list[dict[str, object]]:
        """One row per month."""
        return [month.to_row() for month in self.months]


@told_types
def growth(
    fleet: Plan | Workload | str | Path | None = None,
    monthly_growth: float | str = 0.0,
    *,
    lead_time: float | str = "90d",
    months: int = 12,
    start: str | None = None,
    hours: str | Path | None = None,
    workload: Workload | Frame | str | Path | None = None,
    scenario: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Unpack[OwnOptions],
) -> Growth:
    """GPUs to have in every month of growing traffic, and by when to order them.

    Parameters
    ----------
    fleet
        A plan or a plan file, whose fleet stands; a configuration file or ``None``: it is planned for today's rate.
    monthly_growth
        Growth of the traffic from one month to the next, 8%: what to order by when, instead of hours.
    lead_time
        From ordering a GPU until it serves [s].
    months
        Months ahead.
    start
        Day the months begin, 2027-01-31. Default: today.
    hours, workload, scenario
        As for :func:`schedule`; without `hours` the rate is the one that a plan is sized for.
    progress
        Told (done, all) after every month.
    **options
        Options of :func:`plan`.

    Returns
    -------
    Growth
        The same pools with the replicas that each month's traffic takes; replicas are never given back.

    Raises
    ------
    InputError
        No growth, or no months.
    InfeasibleError
        Some month's traffic keeps the promises with no number of replicas.

    Examples
    --------
    >>> import planner as fo
    >>> p = fo.plan("azure", slo=2.0, rate=100, method="occupancy", burst="poisson", pools=1)
    >>> g = fo.growth(p, "10%", lead_time="60d", months=3, start="2027-01-01")
    >>> [(m.starts, m.order_by) for m in g.months][1]
    ('2027-02-01', '2026-12-03')
    """
    try:
        today = datetime.date.today() if start is None else datetime.date.fromisoformat(start)
    except ValueError:
        raise InputError(f"start: {start!r} is not a day", "Write it as 2027-01-31.") from None
    share, lead_s = parse_fraction(monthly_growth, "monthly_growth"), parse_duration(lead_time, "lead_time")
    hourly = Hourly(fleet, workload, scenario, options, hours, None if hours is None else Elasticity())
    built, rate = hourly.fleet(), hourly.peak
    if not share > 0.0:
        raise InputError(f"monthly_growth: must be positive, got {share:.10g}", "Write it as 8% or 0.08.")
    if not 1 <= months <= MOST_MONTHS:
        raise InputError(f"months: must lie between 1 and {MOST_MONTHS}, got {months}")
    if lead_s < 0.0:
        raise InputError(f"lead_time: must not be negative, got {lead_s:.10g} s")
    tell = progress or (lambda done, total: None)
    held = [pool.replicas for pool in sorted(hourly.standing, key=lambda p: p.low_tokens)] or _bought(built, rate)
    gpus = now = gpus_by_type(_with(built, held))
    rows = []
    for k in range(months):
        grown = rate * (1.0 + share) ** (k + 1)
        before, held = gpus, [max(a, b) for a, b in zip(held, _bought(built, grown), strict=True)]
        pools = _with(built, held)
        gpus = gpus_by_type(pools)
        first = _months_after(today, k)
        new = {gpu: n - before.get(gpu, 0) for gpu, n in gpus.items() if n > before.get(gpu, 0)}
        order = first - datetime.timedelta(days=math.ceil(lead_s / DAY_S))
        cost = math.fsum(pool.cost_usd_per_hour for pool in pools)
        by = order.isoformat() if new else None
        rows.append(Month(first.isoformat(), grown, gpus, tuple(held), new, by, bool(new) and order < today, cost))
        tell(k + 1, months)
    return Growth(dict(built.question.asked), share, lead_s, now, rate, tuple(rows))


def _bought(fleet: Fleet, rate_per_s: float) -> list[int]:
    """Replicas bought for those that must serve at a rate [1/s]."""
    needed = needs_of(fleet, [rate_per_s])[rate_per_s]
    return [pool.option.price.bought(n) for pool, n in zip(fleet.pools, needed, strict=True)]


def _with(fleet: Fleet, bought: Sequence[int]) -> list[Pool]:
    """The pools with so many replicas bought."""
    return [replace(pool, bought=n) for pool, n in zip(fleet.pools, bought, strict=True)]


def _months_after(day: datetime.date, months: int) -> datetime.date:
    """The same day of a later month, or the last there is.

    >>> _months_after(datetime.date(2027, 1, 31), 1).isoformat()
    '2027-02-28'
    """
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    return datetime.date(year, month + 1, min(day.day, calendar.monthrange(year, month + 1)[1]))
