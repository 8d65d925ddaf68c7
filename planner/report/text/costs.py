"""Costs: ways to pay, commitments, tokens, APIs, energy."""

from __future__ import annotations

from planner.report.blocks import Block, Table, Text
from planner.report.text.choices import HOURS_PER_MONTH
from planner.studies.costs import Costs
from planner.studies.peaks import MORE
from planner.units import format_count, format_percent, format_usd


def blocks(costs: Costs) -> list[Block]:
    """The answer, then a table of each kind."""
    t, best, dearest = costs.tokens, costs.cheapest, costs.ways[0]
    saved = 1.0 - best.cost_usd_per_hour / dearest.cost_usd_per_hour
    head = (
        f"{_month(best.cost_usd_per_hour)}/month, {best.name}; {format_percent(saved)} below {dearest.name}"
        if saved > 0.0
        else f"{_month(best.cost_usd_per_hour)}/month, {best.name}"
    )
    found: list[Block] = [
        Text(
            [f"{format_count(costs.mean_rate_per_s)} requests/s on average over {costs.hours} hours ({costs.source})"],
            "heading",
        ),
        Text([head], "bold", near=True),
        Text(
            [
                f"${t.usd_per_mtok:.3g} per million tokens: ${t.input_usd_per_mtok:.3g} in, ${t.output_usd_per_mtok:.3g} out, "
                f"by GPU time (inputs cause {format_percent(t.input_share)} of it)"
            ],
            near=True,
        ),
        Table(
            ["way to pay", "reserved GPUs", "on demand", "spot", "$/month"],
            [
                [
                    w.name,
                    *(f"{n:,.1f}" for n in (w.reserved_gpus, w.on_demand_gpus, w.spot_gpus)),
                    _month(w.cost_usd_per_hour),
                ]
                for w in costs.ways
            ],
            {"way to pay"},
        ),
    ]
    if costs.commitments:
        columns = ["GPU", "term", "$/GPU-hour", "pays from", "or months", "reserve", "commits", "saves $/month"]
        rows = [
            [
                c.gpu, c.term, f"{c.usd_per_gpu_hour:.4g}", f"{format_percent(c.break_even_utilization)} of hours",
                f"{c.break_even_months:.1f}", format_count(c.reserved_gpus), format_usd(round(c.committed_usd)),
                _month(c.saving_usd_per_hour),
            ]
            for c in costs.commitments
        ]  # fmt: skip
        found.append(Table(columns, rows, {"GPU", "term"}, drop=["or months"]))
    if costs.apis:
        columns = ["API", "$/month", "times the fleet", "fleet cheaper from", "of this traffic"]
        rows = [
            [
                a.name, _month(a.cost_usd_per_hour), f"{a.ratio:.2f}", f"{format_count(a.break_even_rate_per_s)}/s",
                format_percent(a.break_even_utilization),
            ]
            for a in costs.apis
        ]  # fmt: skip
        found.append(Table(columns, rows, {"API"}))
    found += _peaks(costs)
    lines = [f"reserved {c.gpu}, {c.term}: {c.source}" for c in costs.commitments]
    return [*found, Text(_energy(costs)), Text([*lines, *costs.notes], "bullets", "Notes", near=True)]


def _peaks(costs: Costs) -> list[Block]:
    """What to own where the peak is rented."""
    if not costs.peaks:
        return []
    best = costs.peaks[0]
    owned = ", ".join(f"{p.replicas:,} of {p.peak_replicas:,}" for p in best.pools)
    rented = "the peak" if any(p.replicas for p in best.pools) else "all requests"
    told = f"own {owned} replicas, {rented} on {best.rent}: {_month(best.cost_usd_per_hour)}/month, "
    told += f"{format_percent(best.saving)} below owning all"
    named = len(costs.peaks[0].pools) > 1
    more = f"{format_percent(MORE)} more traffic"
    columns = ["peak on", *["pool"] * named, "own", "$/month", "all owned", "rented", "next leaves at", "all rented"]
    columns += [more, "which carry"]
    rows = []
    for peak in costs.peaks:
        usd = peak.cost_usd_per_hour, peak.all_owned_usd_per_hour, peak.all_rented_usd_per_hour, peak.more_usd_per_hour
        for k, p in enumerate(peak.pools):
            leaves = "" if p.in_flight is None else f"{p.in_flight:,} under way"
            cost, owned, all_rented, busier = ("" if k else _month(x) for x in usd)
            rows.append(
                [
                    "" if k else peak.rent, *[p.pool] * named, f"{p.replicas:,} of {p.peak_replicas:,}", cost, owned,
                    format_percent(p.rented_share), leaves, all_rented, busier, f"{format_count(p.rate_per_s)}/s",
                ]
            )  # fmt: skip
    table = Table(columns, rows, {"peak on", "pool"}, drop=["which carry", "all rented", more, "all owned"])
    return [Text([told if best.saving > 0.0 else "rent no peak: own all replicas"], "bold"), table]


def _energy(costs: Costs) -> list[str]:
    """Power, energy and what follows from it."""
    e = costs.energy
    if e is None:
        return []
    kwh = e.mean_w / 1000.0
    meter = f" (PUE {e.pue:g})" if e.pue > 1.0 else " (GPUs alone)"
    told = f"energy: {kwh:,.3g} kW on average, {e.peak_w / 1000.0:,.3g} at most{meter}; "
    told += f"{kwh * HOURS_PER_MONTH:,.0f} kWh/month, {e.kwh_per_mtok:.3g} kWh per million tokens"
    lines = [told]
    if e.cost_usd_per_hour is not None:
        lines.append(f"electricity {_month(e.cost_usd_per_hour)}/month; rented GPUs have it in their price")
    if e.co2_kg_per_hour is not None:
        lines.append(f"CO2 {e.co2_kg_per_hour * HOURS_PER_MONTH:,.0f} kg/month at the intensity stated")
    if e.estimated:
        what = "; ".join(f"{gpu} ({', '.join(points)})" for gpu, points in e.estimated.items())
        lines.append(f"estimated from the power limit, not measured on that GPU: {what}")
    return lines


def _month(usd_per_hour: float) -> str:
    return format_usd(round(HOURS_PER_MONTH * usd_per_hour))
