"""Why a plan is what it is, made or read from its file."""

from __future__ import annotations

from planner.report import explained
from planner.report.blocks import Block, Text, rows_table


def blocks(found: explained.Explanation) -> list[Block]:
    """All of a plan at hand; of a file what stands in it."""
    if found.plan is not None:
        return explained.blocks(found.plan)
    return [
        rows_table(found.to_rows()),
        Text(found.explanation, "bullets", "Why"),
        Text(found.warnings, "bullets", "Warnings", label="warning: "),
        Text(found.assumptions, "bullets", "Assumed", label="assumed: "),
        Text(found.notes, "bullets", "Notes", label="note: "),
        Text([f"searched: {found.searched}"] if found.searched else []),
    ]
