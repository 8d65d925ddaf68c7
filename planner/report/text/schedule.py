"""A schedule: the answer, static against scaled, and every hour."""

from __future__ import annotations

from planner.report.blocks import Block, Table, Text
from planner.studies.schedule import Schedule
from planner.units import format_count, format_duration, format_percent, format_usd


def blocks(schedule: Schedule) -> list[Block]:
    """Headline, costs side by side, hours."""
    question, answer, cost = headline(schedule)
    return [
        Text([question], "heading"),
        Text([answer], "bold", near=True),
        Text([cost], near=True),
        Table(COLUMNS, summary(schedule), {""}),
        Table(*by_hour(schedule), {"time"}, drop=[*(f"{p.name} load" for p in schedule.pools), "starting"]),
    ]


def headline(schedule: Schedule) -> list[str]:
    """The answer, three lines."""
    period = "day" if schedule.hours == 24 else "week"
    e = schedule.elasticity
    rates = schedule.rates_per_s
    return [
        f"{format_count(min(rates))} to {format_count(max(rates))} requests/s over a {period} (mean "
        f"{format_count(sum(rates) / len(rates))}); replicas start {format_duration(e.startup_s)} ahead, "
        f"held {e.dwell_hours} h at least" + (f", {format_percent(e.buffer)} buffer" if e.buffer else ""),
        f"{schedule.peak_gpus:,} GPU{'s' if schedule.peak_gpus != 1 else ''} at the peak ({schedule.peak_replicas:,} "
        f"replica{'s' if schedule.peak_replicas != 1 else ''}, {schedule.mean_replicas:.1f} on average)",
        f"{format_usd(schedule.cost_usd)} per {period} scaled, {format_usd(schedule.static_cost_usd)} static: "
        f"{format_percent(schedule.saving)} saved; a perfect autoscaler pays {format_usd(schedule.perfect_cost_usd)}",
    ]


COLUMNS = ("", "peak", "mean", "GPU-hours", "cost")


def summary(schedule: Schedule) -> list[list[str]]:
    """Static, scaled and perfect side by side, under :data:`COLUMNS`."""
    mean_perfect = sum(sum(p.needed) for p in schedule.pools) / schedule.hours
    peak = format_count(schedule.peak_replicas)
    return [
        ["static", peak, peak, format_count(round(schedule.static_gpu_hours)), format_usd(schedule.static_cost_usd)],
        ["scaled", peak, f"{schedule.mean_replicas:.1f}", format_count(round(schedule.gpu_hours)), format_usd(schedule.cost_usd)],
        ["perfect autoscaler", format_count(max(sum(p.needed[h] for p in schedule.pools) for h in range(schedule.hours))),
         f"{mean_perfect:.1f}", format_count(round(schedule.perfect_gpu_hours)), format_usd(schedule.perfect_cost_usd)],
    ]  # fmt: skip


HOUR_COLUMNS = ("time", "rate/s")


def by_hour(schedule: Schedule) -> tuple[list[str], list[list[str]]]:
    """Columns and one row per hour, all pools beside each other."""
    columns = [*HOUR_COLUMNS]
    for pool in schedule.pools:
        columns += [f"{pool.name} replicas", f"{pool.name} load"]
    columns += ["starting", "GPUs", "cost"]
    rows = []
    for h, rate in enumerate(schedule.rates_per_s):
        row = [schedule.label(h), format_count(rate)]
        for pool in schedule.pools:
            serving = pool.replicas[h] - pool.spares[h]
            row += [format_count(pool.replicas[h]), f"{rate * pool.share / (serving * pool.capacity_per_s):.2f}"]
        starting = sum(p.starting[h] for p in schedule.pools)
        gpus = sum(p.replicas[h] * p.gpus_per_replica for p in schedule.pools)
        row += [format_count(starting) if starting else "", format_count(gpus)]
        row.append(format_usd(sum(p.cost_usd[h] for p in schedule.pools)))
        rows.append(row)
    return columns, rows
