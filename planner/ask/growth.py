"""Growing traffic: how many GPUs to order by when, month by month, from a rate of growth and a lead time."""

from __future__ import annotations

import calendar
import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from planner.ask.schedule import needs_of
from planner.errors import InputError
from planner.shared.notebook import InNotebooks
from planner.shared.record import Record
from planner.size.fleet import Fleet
from planner.size.pool import Pool, gpus_by_type
from planner.units import DAY_S


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


def growth_of(
    fleet: Fleet,
    standing: Sequence[int] | None,
    rate_per_s: float,
    monthly_growth: float,
    lead_time_s: float,
    months: int,
    start: datetime.date,
    progress: Callable[[int, int], None] | None = None,
) -> Growth:
    """The same pools with the replicas that each month's traffic takes; replicas are never given back.

    Parameters
    ----------
    fleet
        Its pools and engines.
    standing
        Replicas of every pool, spares included, that are there already; ``None`` = those of today's rate.
    rate_per_s
        Rate today, of the busiest hour [1/s].
    monthly_growth, lead_time_s, months
        Growth a month [1]; from ordering to serving [s]; how many months.
    start
        Today.
    progress
        Told (done, all) after every month.

    Raises
    ------
    InputError
        No growth, or no months.
    InfeasibleError
        Some month's traffic keeps the promises with no number of replicas.
    """
    if not monthly_growth > 0.0:
        raise InputError(f"monthly_growth: must be positive, got {monthly_growth:.10g}", "Write it as 8% or 0.08.")
    if not 1 <= months <= MOST_MONTHS:
        raise InputError(f"months: must lie between 1 and {MOST_MONTHS}, got {months}")
    if lead_time_s < 0.0:
        raise InputError(f"lead_time: must not be negative, got {lead_time_s:.10g} s")
    tell = progress or (lambda done, total: None)
    held = [*standing] if standing is not None else _bought(fleet, needs_of(fleet, [rate_per_s])[rate_per_s])
    gpus = now = gpus_by_type(_with(fleet, held))
    rows = []
    for k in range(months):
        rate = rate_per_s * (1.0 + monthly_growth) ** (k + 1)
        needed = _bought(fleet, needs_of(fleet, [rate])[rate])
        before, held = gpus, [max(a, b) for a, b in zip(held, needed, strict=True)]
        pools = _with(fleet, held)
        gpus = gpus_by_type(pools)
        first = _months_after(start, k)
        new = {gpu: n - before.get(gpu, 0) for gpu, n in gpus.items() if n > before.get(gpu, 0)}
        order = first - datetime.timedelta(days=math.ceil(lead_time_s / DAY_S))
        cost = math.fsum(pool.cost_usd_per_hour for pool in pools)
        by = order.isoformat() if new else None
        rows.append(Month(first.isoformat(), rate, gpus, tuple(held), new, by, bool(new) and order < start, cost))
        tell(k + 1, months)
    asked = dict(fleet.question.asked)
    return Growth(asked, monthly_growth, lead_time_s, now, rate_per_s, tuple(rows))


MOST_MONTHS = 120
"""Ten years: no rate of growth lasts longer."""


def _bought(fleet: Fleet, needed: Sequence[int]) -> list[int]:
    """Replicas bought for those that must serve."""
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
