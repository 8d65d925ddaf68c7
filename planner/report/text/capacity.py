"""The largest rate with all promises: the answer, what binds, the fleet that carries it."""

from __future__ import annotations

from planner.report.blocks import Block, Text, rows_table
from planner.report.text import served as of_served
from planner.studies.capacity import PRECISION, Capacity
from planner.units import format_count, format_percent

FIRST = ("name", "gpus", "replicas", "parallel", "share", "pool_rate_per_s", "load")

TOLD_ABOVE = ("rate_per_s", "gpu", "spares", "low_tokens", "high_tokens", "slots", "cost_usd_per_hour")
"""Columns that the lines above or the names of the pools say already, or that only a machine needs."""


def blocks(capacity: Capacity) -> list[Block]:
    """The rate, what breaks beyond it, GPUs left over, a row per pool."""
    served = capacity.served
    confidence = capacity.inputs.get("confidence")
    sure = f" with {format_percent(confidence)} confidence" if isinstance(confidence, float) else ""
    users = "" if capacity.users is None else f" ({capacity.users:,} users)"
    lines = [
        of_served.fleet(served),
        f"at {format_count(capacity.refused_per_s)}/s: {capacity.binding} breaks (the rate is known to "
        f"{format_percent(PRECISION)})",
    ]
    if capacity.unused:
        idle = " and ".join(f"{n:,} {gpu}" for gpu, n in capacity.unused.items())
        lines[0] += f"; {idle} would not raise it"
    if len(capacity.pools) > 1:
        lines += [_cut(capacity)]
    rows = [{k: v for k, v in row.items() if k not in TOLD_ABOVE} for row in capacity.to_rows()]
    checks = of_served.before_signing(served)
    return [
        Text([of_served.question(served)], "heading"),
        Text(
            [
                f"BEARS  {format_count(capacity.rate_per_s)} requests/s{users}   keeps {of_served.promised(served)}{sure}"
            ],
            "bold",
        ),
        Text(lines, label="     ", near=True),
        rows_table(rows, FIRST),
        Text(["BEFORE YOU SIGN"] if checks else []),
        Text(checks, "bullets", label="  ! ", near=True),
    ]


def _cut(capacity: Capacity) -> str:
    """How the gateway cuts the traffic."""
    parts = [
        f"{format_percent(p.share)} to {p.name} ({p.low_tokens:,.0f} to {p.high_tokens:,.0f} tokens)"
        for p in capacity.pools
    ]
    return "the gateway sends " + ", ".join(parts)
