"""Why a plan is what it is: its pools, what binds, what was assumed from where, what was searched, how far off it may be."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from planner.catalog.profiles import engine_of
from planner.plans import LatencyValue, Plan, PoolPlan
from planner.report.blocks import Block, Table, rows_table
from planner.report.pages import cells_of, pages, told_beside
from planner.shared.record import Record
from planner.units import format_band, format_count, format_duration, format_percent, format_share, format_usd

_page = pages(__file__)


def why(plan: Plan) -> list[Block]:
    """Pools, what binds, assumptions with their sources, warnings, notes, the search, and how the engines are started."""
    columns, rows = pool_table(plan)
    pools = Table(columns, rows, {*columns[:2]}, drop=DROPPED)
    return _page("plan", plan, pools=pools, savings=savings(plan), prices=prices(plan), flags=engine_flags(plan))


def of_explanation(found: Explanation) -> list[Block]:
    """All of a plan at hand; of a file what stands in it."""
    return _page("read", found, pools=rows_table(found.to_rows())) if found.plan is None else why(found.plan)


def engine_flags(plan: Plan) -> list[str]:
    """How the engines of every pool are started, in the words of the engine planned for."""
    engine = engine_of(plan.inputs)
    return [f"{pool.name}: {shlex.join(engine.arguments(pool.settings.to_dict()))}" for pool in plan.pools]


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
        told = "Prefill and decode on pools of their own"
    elif plan.inputs.get("pools") == 1:
        told = "One pool, as asked"
    elif plan.baseline is None or base is None:
        told = "One pool: splitting by length does not pay here"
    else:
        replicas = sum(p.replicas for p in plan.baseline)
        one = f"One pool would take {replicas:,} replica{'' if replicas == 1 else 's'} at {format_usd(base)}/hour"
        return f"{one}: {len(plan.pools)} pools save {format_percent(plan.saving)}."
    return f"{told} (searched: {plan.search.description})."


TOTAL = "total tokens"
"""Heads the second column where the pools are not cut by the input alone."""

DROPPED = ("share", "slots", "running", "rate/s", "cost/hour", TOTAL, "input tokens", "load")
"""Columns that a narrow page leaves out, the first to go first."""


def pool_cells(pool: PoolPlan) -> list[str]:
    """The cells of one pool, before its latencies and cost."""
    top = format_count(round(pool.high_tokens))
    band = f"..{top}" if pool.low_tokens <= 0 else f"{format_count(round(pool.low_tokens))}..{top}"
    if pool.gamma > 1.0:
        band += f" (+{format_percent(pool.compressed_share)} compressed, gamma {pool.gamma:g})"
    replicas = format_count(pool.replicas)
    if pool.replicas_low and (pool.replicas_low, pool.replicas_high) != (pool.replicas, pool.replicas):
        high = pool.replicas_high
        # near the least that can be had the slow end of the band takes any number: no digit of it means anything
        most = "more than 10x" if high is not None and high > 10 * pool.replicas else format_count(high or 0)
        low = format_count(pool.replicas_low)
        replicas += f" ({low}, at worst no number)" if high is None else f" ({low}-{most})"
    told = {"band": band, "replicas_told": replicas, "running": pool.slot_occupancy * pool.slots}
    return cells_of(told_beside(__file__)["pools"].values(), pool, told)


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
    columns = [*told_beside(__file__)["pools"], *(LatencyValue(m, q, 0, 0, 0).label for m, q in shown), "cost/hour"]
    if plan.shape == "disaggregated" or plan.inputs.get("compress") or plan.inputs.get("route_on") == "total":
        columns[1] = TOTAL
    listed = [(plan.shape, pool) for pool in plan.pools]
    listed += [(other.shape, pool) for other in plan.alternatives for pool in other.pools]
    rows = []
    for shape, pool in listed:
        values = [pool.latency_at(m, q) for m, q in shown]
        cells = pool_cells(pool)
        if plan.alternatives:
            cells[0] = f"{shape}: {pool.name}"
        latencies = [latency_cell(v) if v else "-" for v in values]
        rows.append([*cells, *latencies, format_usd(pool.cost_usd_per_hour)])
    return columns, rows


@dataclass(frozen=True, slots=True)
class Explanation(Record):
    """Why a plan is what it is.

    Parameters
    ----------
    pools
        What each pool is and what fixes its size, under the names of the plan's file.
    explanation, warnings, assumptions, notes
        Lines of the plan.
    searched
        Which fleets were looked at, and whether none of them is proven to be cheaper.
    plan
        The plan, where it was made and not read.
    """

    pools: tuple[Mapping[str, Any], ...]
    explanation: tuple[str, ...]
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
    searched: str
    plan: Plan | None = field(default=None, repr=False)

    document: ClassVar[str] = "fleetopt-explanation"

    @classmethod
    def of(cls, data: Mapping[str, Any], plan: Plan | None = None) -> Explanation:
        """Of a plan as its file has it, nothing computed again."""
        kept = ("name", "gpu", "tp", "replicas", "gpus", "slots", "load", "cost_usd_per_hour", "binding")
        pools = tuple({key: pool.get(key) for key in kept} for pool in data.get("pools", ()))
        lines = {
            name: tuple(str(line) for line in data.get(name) or ())
            for name in ("explanation", "warnings", "assumptions", "notes")
        }
        search = data.get("search") or {}
        searched, fleets = str(search.get("description", "")), int(search.get("candidates") or 0)
        if fleets > 1 and search.get("gap_usd_per_hour") == 0.0:
            searched += f"; proven: none of {format_count(fleets)} fleets is cheaper by the requests that were replayed"
        return cls(pools, **lines, searched=searched, plan=plan)

    def to_rows(self) -> list[Mapping[str, Any]]:
        """One row per pool."""
        return [*self.pools]
