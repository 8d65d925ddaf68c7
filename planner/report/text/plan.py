"""A plan: the question and the answer, its pools, why, and how to start the engines."""

from __future__ import annotations

import shlex

from planner.catalog.profiles import engine_of
from planner.plans import LatencyValue, Plan, PoolPlan
from planner.report.blocks import Block, Table, Text
from planner.report.text import choices
from planner.units import format_band, format_count, format_duration, format_percent, format_share, format_usd


def blocks(plan: Plan) -> list[Block]:
    """Headline, pools, why, how to start the engines, other choices; a document also keeps what was assumed."""
    question, answer, cost = headline(plan)
    columns, rows = pool_table(plan)
    return [
        Text([question], "heading"),
        Text([answer], "bold", near=True),
        Text([cost], near=True),
        Table(columns, rows, {*columns[:2]}, drop=DROPPED),
        Text([savings(plan)]),
        Text(plan.explanation, "bullets", "Why", near=True),
        *(() if plan.choices is None else choices.blocks(plan.choices)),
        Text(plan.assumptions, "bullets", "Assumed", only="document"),
        Text(plan.warnings, "bullets", "Warnings", only="document"),
        Text(engine_flags(plan), "command", only="terminal"),
        Text(plan.notes, "bullets", "Notes", label="note: ", near=True),
        Text([f"fleetopt {plan.version}, method `{plan.method}`"], only="document"),
    ]


def engine_flags(plan: Plan) -> list[str]:
    """How the engines of every pool are started, in the words of the engine planned for."""
    engine = engine_of(plan.inputs)
    return [f"{pool.name}: {shlex.join(engine.arguments(pool.settings.to_dict()))}" for pool in plan.pools]


def gpu_phrase(pool: PoolPlan) -> str:
    """``"5 replicas x TP8 of h100-80gb"``."""
    replicas = f"{pool.replicas:,} replica{'s' if pool.replicas != 1 else ''}"
    spares = f" ({pool.spares} of them spare)" if pool.spares else ""
    return f"{replicas} x {pool.parallel} of {pool.gpu}{spares}"


def headline(plan: Plan) -> list[str]:
    """The question, what to buy for how much, and of what; three lines."""
    promises = ", ".join(p.told for p in plan.slo.promises)
    name = plan.workload.get("name", "workload")
    requests = plan.workload.get("requests")
    known = f" ({format_count(float(requests))} requests)" if isinstance(requests, (int, float)) else ""
    model = plan.inputs.get("model", "")
    hourly = plan.cost_usd_per_hour
    return [
        f"{name}{known} at {format_count(plan.arrival_rate_per_s)} requests/s, {model}: {promises}",
        f"{plan.gpus:,} GPU{'s' if plan.gpus != 1 else ''}, {format_usd(round(choices.HOURS_PER_MONTH * hourly))}/month, "
        f"{format_usd(round(plan.cost_usd_per_year))}/year: {' + '.join(gpu_phrase(p) for p in plan.pools)}",
        f"{format_usd(hourly)}/hour, ${format_count(plan.cost_usd_per_million_tokens)} per million tokens; "
        + "; ".join(prices(plan)),
    ]


def prices(plan: Plan) -> list[str]:
    """What a GPU costs and whose price that is, by type."""
    told = {str(r.values["gpu"]): r.values for r in plan.remarks.get("assumptions", ()) if r.code == "gpu_price"}
    return [
        f"{gpu} at {format_usd(float(str(v['price'])))} per GPU and hour{v['source'] or ' (--price)'}"
        for gpu, v in told.items()
    ]


def savings(plan: Plan) -> str:
    """What the pools save against one pool, or why there is one."""
    base = plan.baseline_cost_usd_per_hour
    if plan.shape == "disaggregated":
        return f"Prefill and decode on pools of their own (searched: {plan.search.description})."
    if plan.inputs.get("pools") == 1:
        return f"One pool, as asked (searched: {plan.search.description})."
    if plan.baseline is None or base is None:
        return "One pool: splitting by length does not pay here (searched: " + plan.search.description + ")."
    replicas = sum(p.replicas for p in plan.baseline)
    noun = "replica" if replicas == 1 else "replicas"
    return (
        f"One pool would take {replicas:,} {noun} at {format_usd(base)}/hour: "
        f"{len(plan.pools)} pools save {format_percent(plan.saving)}."
    )


COLUMNS = (
    "pool", "input tokens", "share", "rate/s", "replicas", "GPUs", "slots", "load", "running",
)  # fmt: skip

TOTAL = "total tokens"
"""Heads the second column where the pools are not cut by the input alone."""

DROPPED = ("share", "slots", "running", "rate/s", "cost/hour", TOTAL, "input tokens", "load")
"""Columns that a narrow page leaves out, the first to go first."""


MANY = 10.0
"""More than this many times the replicas at the slow end of the band is told as that."""


def pool_cells(pool: PoolPlan) -> list[str]:
    """The cells of one pool, under :data:`COLUMNS` and then its latencies and cost."""
    top = format_count(round(pool.high_tokens))
    band = f"..{top}" if pool.low_tokens <= 0 else f"{format_count(round(pool.low_tokens))}..{top}"
    if pool.gamma > 1.0:
        band += f" (+{format_percent(pool.compressed_share)} compressed, gamma {pool.gamma:g})"
    replicas = format_count(pool.replicas)
    if pool.replicas_low and (pool.replicas_low, pool.replicas_high) != (pool.replicas, pool.replicas):
        high = pool.replicas_high
        # near the least that can be had the slow end of the band takes any number: no digit of it means anything
        most = f"more than {MANY:g}x" if high is not None and high > MANY * pool.replicas else format_count(high or 0)
        low = format_count(pool.replicas_low)
        replicas += f" ({low}, at worst no number)" if high is None else f" ({low}-{most})"
    return [
        pool.name,
        band,
        format_percent(pool.share),
        format_count(pool.arrival_rate_per_s),
        replicas,
        format_count(pool.gpus),
        format_count(pool.slots),
        f"{pool.load:.2f}",
        f"{pool.slot_occupancy * pool.slots:.1f}",
    ]


def latency_cell(value: LatencyValue) -> str:
    """``"341 ms (320-380)"`` with the promise it is held against kept for the header."""
    if value.share is not None:
        return f"{format_share(value.share)} ({format_share(value.share_low or 0.0)}-{format_share(value.share_high or 1.0)})"
    if value.low_s < value.value_s < value.high_s:
        return format_band(value.value_s, value.low_s, value.high_s)
    return format_duration(value.value_s)


def reported(plan: Plan) -> list[tuple[str, float]]:
    """The (metric, quantile) columns shown: what is promised, and P99 TTFT and TPOT always."""
    values = [v for pool in plan.pools for v in pool.latency]
    shown = list(dict.fromkeys((v.metric, v.quantile) for v in values if v.limit_s is not None))
    for pair in (("ttft_s", 0.99), ("tpot_s", 0.99)):
        if pair not in shown and any((v.metric, v.quantile) == pair for v in values):
            shown.append(pair)
    return shown


def pool_table(plan: Plan) -> tuple[list[str], list[list[str]]]:
    """Columns and a row per pool; fleets of other shapes, if asked for, below the plan's own."""
    shown = reported(plan)
    columns = [*COLUMNS, *(LatencyValue(m, q, 0, 0, 0).label for m, q in shown), "cost/hour"]
    if plan.shape == "disaggregated" or plan.inputs.get("compress") or plan.inputs.get("route_on") == "total":
        columns[1] = TOTAL
    listed = [(plan.shape, pool) for pool in plan.pools]
    listed += [(other.shape, pool) for other in plan.alternatives for pool in other.pools]
    rows = []
    for shape, pool in listed:
        values = [latency_of(pool, m, q) for m, q in shown]
        cells = pool_cells(pool)
        if plan.alternatives:
            cells[0] = f"{shape}: {pool.name}"
        latencies = [latency_cell(v) if v else "-" for v in values]
        rows.append([*cells, *latencies, format_usd(pool.cost_usd_per_hour)])
    return columns, rows


def latency_of(pool: PoolPlan, metric: str, quantile: float) -> LatencyValue | None:
    """The pool's value of one metric at one level."""
    return next((v for v in pool.latency if v.metric == metric and abs(v.quantile - quantile) < 1e-12), None)
