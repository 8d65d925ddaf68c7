"""A what-if: a row per point, what was changed in front."""

from __future__ import annotations

from planner.report.blocks import Block, Table, Text, rows_table
from planner.report.text.choices import HOURS_PER_MONTH
from planner.studies.what_if import PINNED, Sweep
from planner.units import format_usd

FIRST = ("gpus", "cost_usd_per_hour", "fleet", "load")

DROPPED = ("gamma", "$/million tokens", "pools", "replicas", "$/hour", "$/year", "saving")
"""Columns that a narrow page leaves out first; the promises stay as long as they can."""


def blocks(sweep: Sweep) -> list[Block]:
    """GPUs and the price of a month and a year behind the changes; why there is no fleet below, each reason once."""
    changed = list(dict.fromkeys(name for point in sweep.points for name in point.changes))
    rows = sweep.to_rows()
    if all(row["feasible"] for row in rows):
        rows = [{k: v for k, v in row.items() if k != "feasible"} for row in rows]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if reason := row.pop("reason", None):
            told = " ".join(f"{name}={row[name]}" for name in changed if row.get(name) is not None)
            reasons.setdefault(str(reason), []).append(told)
    table = rows_table(rows, [*changed, "feasible", *FIRST])
    why = Text([f"{'; '.join(points)}: {reason}" for reason, points in reasons.items()], "bullets", near=True)
    kept = dict.fromkeys(str(row["pinned"]) for row in rows if row.get("pinned"))
    lines = [f"pinned: {name} = {PINNED[name]}" for name in kept]
    if sweep.base_usd_per_hour is not None:
        lines.append(f"savings are against the base, {format_usd(sweep.base_usd_per_hour)}/hour")
    said = Text(lines, "bullets", near=True)
    costs = [_cost(p.to_row()) for p in sweep.points]
    if all(cost is None for cost in costs):
        return [table, why, said]
    at = table.columns.index("$/hour")
    priced = [_prices(cost) for cost in costs]
    cells = [[*row[:at], *money, *row[at:]] for row, money in zip(table.rows, priced, strict=True)]
    return [
        Table([*table.columns[:at], "$/month", "$/year", *table.columns[at:]], cells, table.left, drop=DROPPED),
        why,
        said,
    ]


def _cost(row: dict[str, object]) -> float | None:
    """Cost of a point [USD/hour]."""
    found = row.get("cost_usd_per_hour")
    return found if isinstance(found, float) else None


def _prices(usd_per_hour: object) -> list[str]:
    """What a point costs in a month and in a year."""
    if not isinstance(usd_per_hour, (int, float)):
        return ["-", "-"]
    return [format_usd(round(hours * usd_per_hour)) for hours in (HOURS_PER_MONTH, 12.0 * HOURS_PER_MONTH)]
