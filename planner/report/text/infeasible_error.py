"""A question without an answer: what would make it possible, and at what price."""

from __future__ import annotations

from planner.errors import InfeasibleError
from planner.report.blocks import Block, Text
from planner.report.text import choices


def blocks(error: InfeasibleError) -> list[Block]:
    """What would make it possible; the reason itself is told on stderr, and in a document here."""
    told = Text([error.message], "bold", only="document")
    return [told] if error.choices is None else [told, *choices.blocks(error.choices)]
