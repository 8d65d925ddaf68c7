"""The largest rate with all promises: the answer, what binds, the fleet that carries it."""

from __future__ import annotations

from planner.report.blocks import Block, Text, rows_table
from planner.studies.capacity import PRECISION, Capacity
from planner.units import format_count, format_percent, format_usd

FIRST = ("name", "gpus", "replicas", "parallel", "share", "pool_rate_per_s", "load")

TOLD_ABOVE = ("rate_per_s", "gpu", "spares", "low_tokens", "high_tokens", "slots", "cost_usd_per_hour")
"""Columns that the lines above or the names of the pools say already, or that only a machine needs."""


def blocks(capacity: Capacity) -> list[Block]:
    """The rate, what breaks beyond it, GPUs left over, a row per pool."""
    of = " + ".join(f"{n:,} {gpu}" for gpu, n in capacity.have.items()) or "this fleet"
    confidence = capacity.inputs.get("confidence")
    sure = f", with {format_percent(confidence)} confidence" if isinstance(confidence, float) else ""
    lines = [
        f"{of}: {format_count(capacity.rate_per_s)} requests/s with every promise kept{sure}",
        f"at {format_count(capacity.refused_per_s)}/s: {capacity.binding} breaks (the rate is known to "
        f"{format_percent(PRECISION)})",
        f"{capacity.gpus:,} GPUs, {format_usd(capacity.cost_usd_per_hour)}/hour",
    ]
    if capacity.unused:
        idle = " and ".join(f"{n:,} {gpu}" for gpu, n in capacity.unused.items())
        lines[2] += f"; {idle} would not raise it"
    if len(capacity.pools) > 1:
        lines += [_cut(capacity)]
    rows = [{k: v for k, v in row.items() if k not in TOLD_ABOVE} for row in capacity.to_rows()]
    return [
        Text([lines[0]], "heading"),
        Text([lines[1]], "bold", near=True),
        Text(lines[2:], near=True),
        rows_table(rows, FIRST),
    ]


def _cut(capacity: Capacity) -> str:
    """How the gateway cuts the traffic."""
    parts = [
        f"{format_percent(p.share)} to {p.name} ({p.low_tokens:,.0f} to {p.high_tokens:,.0f} tokens)"
        for p in capacity.pools
    ]
    return "the gateway sends " + ", ".join(parts)
