"""Markdown, for a design document."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def rows_to_markdown(columns: list[str], rows: list[list[str]], left: Collection[str] | None = None) -> str:
    """A pipe table; columns in `left` align left, the others right.

    >>> print(rows_to_markdown(["a", "b"], [["1", "2"]], left={"a"}))
    | a | b |
    | :-- | --: |
    | 1 | 2 |
    """
    rule = "|" + "---|" * len(columns)
    if left is not None:
        rule = "| " + " | ".join(":--" if c in left else "--:" for c in columns) + " |"
    lines = ["| " + " | ".join(columns) + " |", rule]
    lines.extend("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    return "\n".join(lines)


def render(result: Any) -> str:
    """A result in words and tables."""
    from planner.report.blocks import to_markdown
    from planner.report.text import blocks_of

    return to_markdown(blocks_of(result))
