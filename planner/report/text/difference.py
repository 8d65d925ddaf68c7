"""How two plans differ: the answers first, then every input with what it alone changes."""

from __future__ import annotations

from typing import Any

from planner.plans import HOURS_PER_YEAR
from planner.report.blocks import Block, Table, Text
from planner.report.text.choices import change
from planner.report.text.plan import usd
from planner.studies.difference import Difference

COLUMNS = ("input", "old", "new", "GPUs", "$/year", "change", "")


def blocks(found: Difference) -> list[Block]:
    """``4 GPUs -> 6``, and a row per option that differs."""
    old, new = found.old, found.new
    money = [usd(HOURS_PER_YEAR * side["cost_usd_per_hour"]) for side in (old, new)]
    ratio = new["cost_usd_per_hour"] / old["cost_usd_per_hour"] - 1.0
    lines = [f"{old['gpus']:,.0f} GPUs -> {new['gpus']:,.0f}   {money[0]} a year -> {money[1]} ({change(ratio)})"]
    if old["arrival_rate_per_s"] != new["arrival_rate_per_s"]:
        lines.append(f"{old['arrival_rate_per_s']:.4g} requests/s -> {new['arrival_rate_per_s']:.4g}")
    if found.again["gpus"] != old["gpus"]:
        lines.append(
            f"the old question answered by this version: {found.again['gpus']:,.0f} GPUs (saved by {found.versions[0]})"
        )
    base = found.again["cost_usd_per_hour"]
    rows = [
        [
            c.option,
            _told(c.old),
            _told(c.new),
            "-" if c.gpus is None else f"{c.gpus:,}",
            "-" if c.cost_usd_per_hour is None else usd(HOURS_PER_YEAR * c.cost_usd_per_hour),
            "" if c.cost_usd_per_hour is None else change(c.cost_usd_per_hour / base - 1.0),
            c.reason or "",
        ]
        for c in found.changed
    ]
    if not rows:
        return [Text(lines, "bold"), Text(["the questions are the same"])]
    told = Text(["each difference applied alone to the old question"])
    return [Text(lines, "bold"), told, Table(COLUMNS, rows, {*COLUMNS[:3], ""})]


def _told(value: Any) -> str:
    """A value as people write it; promises in a few words."""
    if isinstance(value, list):
        return ", ".join(map(_told, value)) or "none"
    if isinstance(value, dict) and "metric" in value:
        return f"{value['metric'].removesuffix('_s')} {value.get('limit_s', value.get('limits_s'))} at {value.get('quantile')}"
    return "not given" if value in (None, {}) else str(value)
