"""What fleets cost over hours and months, and between services that share a purchase."""

from __future__ import annotations

from collections.abc import Iterator

from planner.ask.asked import MORE
from planner.ask.classes import TieredPlan
from planner.ask.costs import Costs
from planner.ask.growth import Growth
from planner.ask.peaks import Peak
from planner.ask.schedule import Schedule
from planner.ask.services import ServicePlan, ServicesPlan
from planner.report.blocks import Block, Table, Text
from planner.report.pages import month, pages
from planner.report.text.plan import of_plan, unfit
from planner.units import DAY_S, format_count, format_gpus, format_percent, format_usd

_page = pages(__file__)


def of_costs(found: Costs) -> list[Block]:
    """The answer, then a table of each kind: ways to pay, commitments, APIs, peaks, energy."""
    best, dearest, e = found.cheapest, found.ways[0], found.energy
    saved = 1.0 - best.cost_usd_per_hour / dearest.cost_usd_per_hour
    return _page(
        "costs",
        found,
        below=f"; {format_percent(saved)} below {dearest.name}" if saved > 0.0 else "",
        peaks=_peaks(found.peaks),
        metered="" if e is None else f"PUE {e.pue:g}" if e.pue > 1.0 else "GPUs alone",
        estimated="" if e is None else "; ".join(f"{gpu} ({', '.join(points)})" for gpu, points in e.estimated.items()),
        reserved=[f"reserved {c.gpu}, {c.term}: {c.source}" for c in found.commitments],
    )


def _owned(best: Peak) -> str:
    """What to own where the peak is rented."""
    if best.saving <= 0.0:
        return "rent no peak: own all replicas"
    owned = ", ".join(f"{p.replicas:,} of {p.peak_replicas:,}" for p in best.pools)
    rented = "the peak" if any(p.replicas for p in best.pools) else "all requests"
    costs = f"{month(best.cost_usd_per_hour)}/month, {format_percent(best.saving)} below owning all"
    return f"own {owned} replicas, {rented} on {best.rent}: {costs}"


def _peaks(peaks: tuple[Peak, ...]) -> list[Block]:
    """A row per way to rent the peak and pool."""
    if not peaks:
        return []
    named = len(peaks[0].pools) > 1
    more = f"{format_percent(MORE)} more traffic"
    columns = ["peak on", *["pool"] * named, "own", "$/month", "all owned", "rented", "next leaves at", "all rented"]
    columns += [more, "which carry"]
    rows = []
    for peak in peaks:
        usd = peak.cost_usd_per_hour, peak.all_owned_usd_per_hour, peak.all_rented_usd_per_hour, peak.more_usd_per_hour
        for k, p in enumerate(peak.pools):
            leaves = "" if p.in_flight is None else f"{p.in_flight:,} under way"
            cost, owned, all_rented, busier = ("" if k else month(x) for x in usd)
            rows.append(
                [
                    "" if k else peak.rent, *[p.pool] * named, f"{p.replicas:,} of {p.peak_replicas:,}", cost, owned,
                    format_percent(p.rented_share), leaves, all_rented, busier, f"{format_count(p.rate_per_s)}/s",
                ]
            )  # fmt: skip
    return [
        Text([_owned(peaks[0])], "bold"),
        Table(columns, rows, {"peak on", "pool"}, drop=["which carry", "all rented", more, "all owned"]),
    ]


def of_growth(found: Growth) -> list[Block]:
    """Growing traffic: today, then what to order by when, a row per month."""
    first = next((m for m in found.months if m.new_gpus), None)
    order = "enough for all these months"
    if first is not None:
        order = f"the first order is due {first.order_by}{' (late)' if first.late else ''}"
    return _page(
        "growth",
        found,
        days=found.lead_time_s / DAY_S,
        have=", ".join(f"{n:,} {gpu}" for gpu, n in found.gpus.items()),
        order=order,
        all_gpus=lambda month: sum(month.gpus.values()),
        ordered=lambda month: ", ".join(f"{n:,} {gpu}" for gpu, n in month.new_gpus.items()) or None,
        parts=lambda month: " + ".join(f"{n:,}" for n in month.replicas),
    )


def of_schedule(found: Schedule) -> list[Block]:
    """The answer, static against scaled, and every hour."""
    rates, pools = found.rates_per_s, found.pools
    needed = [sum(p.needed[h] for p in pools) for h in range(found.hours)]
    return _page(
        "schedule",
        found,
        period="day" if found.hours == 24 else "week",
        least=min(rates),
        most=max(rates),
        rate=sum(rates) / len(rates),
        kinds=[
            _kind("static", found.peak_replicas, None, found.static_gpu_hours, found.static_cost_usd),
            _kind("scaled", found.peak_replicas, found.mean_replicas, found.gpu_hours, found.cost_usd),
            _kind(
                "perfect autoscaler",
                max(needed),
                sum(needed) / found.hours,
                found.perfect_gpu_hours,
                found.perfect_cost_usd,
            ),
        ],
        hours=_by_hour(found),
    )


def _kind(kind: str, peak: int, mean: float | None, gpu_hours: float, usd: float) -> dict[str, object]:
    """One way to follow the traffic; without a mean it stays at its peak."""
    told = format_count(peak) if mean is None else f"{mean:.1f}"
    return {"kind": kind, "peak": peak, "mean": told, "gpu_hours": round(gpu_hours), "usd": usd}


def _by_hour(found: Schedule) -> Table:
    """One row per hour, all pools beside each other."""
    columns = ["time", "rate/s"]
    for pool in found.pools:
        columns += [f"{pool.name} replicas", f"{pool.name} load"]
    rows = []
    for h, rate in enumerate(found.rates_per_s):
        row = [found.label(h), format_count(rate)]
        for pool in found.pools:
            serving = pool.replicas[h] - pool.spares[h]
            row += [format_count(pool.replicas[h]), f"{rate * pool.share / (serving * pool.capacity_per_s):.2f}"]
        starting = sum(p.starting[h] for p in found.pools)
        gpus = sum(p.replicas[h] * p.gpus_per_replica for p in found.pools)
        cost = format_usd(sum(p.cost_usd[h] for p in found.pools))
        rows.append([*row, format_count(starting) if starting else "", format_count(gpus), cost])
    drop = [*(f"{p.name} load" for p in found.pools), "starting"]
    return Table([*columns, "starting", "GPUs", "cost"], rows, {"time"}, drop=drop)


def of_services_plan(found: ServicesPlan) -> list[Block]:
    """Services over one purchase: what to buy, who is not served, each service, each GPU type, and the hours."""
    shared = [s for s in found.shared if s.gpus]
    saved = found.apart_usd_per_hour - found.cost_usd_per_hour

    def fleet(service: ServicePlan) -> str:
        pools = () if service.plan is None else service.plan.pools
        return " + ".join(f"{p.replicas:,} x {p.parallel} {p.gpu}" for p in pools) or "not served"

    return _page(
        "services",
        found,
        count=len(found.services),
        buy=" + ".join(f"{s.gpus:,} {s.gpu}" for s in shared) or "nothing",
        saved=saved if saved > 0.005 else None,
        missed=[f"NOT SERVED  {s.name} (priority {s.priority}): {s.reason}" for s in found.services if s.plan is None],
        promises=lambda service: service.plan and ", ".join(p.told for p in service.plan.slo.promises),
        fleet=fleet,
        paid=lambda service: service.plan and service.cost_usd_per_hour,
        alone=lambda service: service.plan and service.alone_usd_per_hour,
        shared_types=shared,
        peak=lambda s: f"{max(s.by_hour):,}" + ("" if s.busiest_hour is None else f" ({_time(s.busiest_hour)})"),
        hours=[*_hours(found)],
        unfit=[f"{s.name}: {line}" for s in found.services if s.plan for line in unfit(s.plan)],
    )


def _hours(found: ServicesPlan) -> Iterator[Block]:
    """GPUs by the hour of each type whose need changes, the services beside each other."""
    for s in found.shared:
        using = [one for one in found.services if s.gpu in one.gpus_by_hour]
        if s.busiest_hour is not None:
            rows = [
                [_time(h), *(f"{one.gpus_by_hour[s.gpu][h]:,}" for one in using), f"{n:,}"]
                for h, n in enumerate(s.by_hour)
            ]
            yield Table([f"{s.gpu} at", *(one.name for one in using), "together"], rows, {f"{s.gpu} at"})


def _time(hour: int) -> str:
    """An hour of the day or, of a week, its day and hour."""
    return f"{hour % 24:02d}:00" if hour < 24 else f"day {hour // 24 + 1} {hour % 24:02d}:00"


def of_tiered_plan(found: TieredPlan) -> list[Block]:
    """Classes of requests: the whole, then the plan of every group that shares a fleet."""
    page: list[Block] = [Text([f"{format_gpus(found.gpus)}, {format_usd(found.cost_usd_per_hour)}/hour in all"])]
    for group, plan in zip(found.groups, found.plans, strict=True):
        first, *others = of_plan(plan)
        assert isinstance(first, Text)
        page += [Text([f"== {' + '.join(group)}"]), Text(first.lines, first.style, near=True), *others]
    return page
