"""Classes of requests: the plan of every group that shares a fleet."""

from __future__ import annotations

from planner.report.blocks import Block, Text
from planner.report.text.plan import blocks as plan_blocks
from planner.studies.classes import TieredPlan
from planner.units import format_usd


def blocks(result: TieredPlan) -> list[Block]:
    """The whole, then group by group."""
    found: list[Block] = [Text([f"{result.gpus:,} GPUs, {format_usd(result.cost_usd_per_hour)}/hour in all"])]
    for group, plan in zip(result.groups, result.plans, strict=True):
        first, *others = plan_blocks(plan)
        assert isinstance(first, Text)
        found += [Text([f"== {' + '.join(group)}"]), Text(first.lines, first.style, near=True), *others]
    return found
