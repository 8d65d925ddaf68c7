"""Services over one purchase: what to buy, who is not served, each service, each GPU type, and the hours."""

from __future__ import annotations

from planner.report.blocks import Block, Table, Text
from planner.report.text.plan import unfit
from planner.studies.services import ServicePlan, ServicesPlan
from planner.units import format_count, format_percent, format_usd

SERVICES = ("service", "priority", "model", "rate/s", "promises", "fleet", "$/hour", "alone")
TYPES = ("GPU", "there are", "each alone", "peak together", "spares", "buy", "$/hour")


def blocks(result: ServicesPlan) -> list[Block]:
    """The page."""
    shared = [s for s in result.shared if s.gpus]
    buy = " + ".join(f"{s.gpus:,} {s.gpu}" for s in shared) or "nothing"
    saved = result.apart_usd_per_hour - result.cost_usd_per_hour
    budget = "" if result.budget_usd_per_hour is None else f" of a budget of {format_usd(result.budget_usd_per_hour)}"
    lines = [f"{format_usd(result.cost_usd_per_hour)}/hour{budget}, {format_usd(result.cost_usd_per_year)}/year"]
    if saved > 0.005:
        lines.append(f"each service for itself: {format_usd(saved)}/hour more, {format_percent(result.saving)} saved")
    missed = [f"NOT SERVED  {s.name} (priority {s.priority}): {s.reason}" for s in result.services if s.plan is None]
    types = [
        [
            s.gpu, "-" if s.have is None else f"{s.have:,}", f"{s.apart:,}",
            f"{max(s.by_hour):,}" + ("" if s.busiest_hour is None else f" ({_time(s.busiest_hour)})"),
            f"{s.spares:,}", f"{s.gpus:,}", format_usd(s.cost_usd_per_hour),
        ]
        for s in shared
    ]  # fmt: skip
    return [
        Text(
            [f"{len(result.services)} service{'s' if len(result.services) != 1 else ''} over one purchase"], "heading"
        ),
        Text([f"BUY  {buy}"], "bold"),
        Text(lines, label="     ", near=True),
        Text(missed, "bold"),
        Table(
            SERVICES, [_row(s) for s in result.services], {"service", "model", "promises", "fleet"}, drop=["promises"]
        ),
        Table(TYPES, types, {"GPU"}),
        *_hours(result),
        Text(
            [f"{s.name}: {line}" for s in result.services if s.plan for line in unfit(s.plan)], "bullets", label="  ! "
        ),
        Text(result.assumptions, "bullets", label="  assumed: "),
    ]


def _row(service: ServicePlan) -> list[str]:
    """One service."""
    plan = service.plan
    if plan is None:
        return [service.name, str(service.priority), "-", "-", "-", "not served", "-", "-"]
    fleet = " + ".join(f"{p.replicas:,} x {p.parallel} {p.gpu}" for p in plan.pools)
    promises = ", ".join(p.told for p in plan.slo.promises)
    costs = [format_usd(service.cost_usd_per_hour), format_usd(service.alone_usd_per_hour)]
    rate = format_count(plan.arrival_rate_per_s)
    return [service.name, str(service.priority), str(plan.inputs["model"]), rate, promises, fleet, *costs]


def _hours(result: ServicesPlan) -> list[Block]:
    """GPUs by the hour of each type whose need changes, the services beside each other."""
    found: list[Block] = []
    for s in result.shared:
        using = [one for one in result.services if s.gpu in one.gpus_by_hour]
        if s.busiest_hour is None:
            continue
        rows = [
            [_time(h), *(f"{one.gpus_by_hour[s.gpu][h]:,}" for one in using), f"{n:,}"] for h, n in enumerate(s.by_hour)
        ]
        found.append(Table([f"{s.gpu} at", *(one.name for one in using), "together"], rows, {f"{s.gpu} at"}))
    return found


def _time(hour: int) -> str:
    """An hour of the day or, of a week, its day and hour."""
    return f"{hour % 24:02d}:00" if hour < 24 else f"day {hour // 24 + 1} {hour % 24:02d}:00"
