"""A question without an answer: what would make it possible, and at what price."""

from __future__ import annotations

from planner.errors import InfeasibleError
from planner.report.blocks import Block, Text
from planner.report.text import choices


def blocks(error: InfeasibleError) -> list[Block]:
    """That there is none and why, and what would make it possible; stderr tells the reason too, and what helps in words."""
    told = Text([f"NO FLEET  {error.message}"], "bold")
    return [told] if error.choices is None else [told, *choices.blocks(error.choices)]
