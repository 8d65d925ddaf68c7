"""What each result says: a file per kind of result, named as its class, with ``blocks(result)``; what was looked up brings
its page along; any other by its rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from planner.plans import Plan
from planner.report.blocks import Block, rows_table
from planner.report.listing import Listing

__all__ = ["blocks_of", "documented", "summary_of"]


def blocks_of(result: Any) -> Sequence[Block]:
    """The blocks of any result."""
    if isinstance(result, Listing):
        return result.page
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(result).__name__).lower()
    if not Path(__file__).with_name(f"{name}.py").is_file():
        return [rows_table(result.to_rows())]
    blocks: Sequence[Block] = import_module(f"planner.report.text.{name}").blocks(result)
    return blocks


def summary_of(result: Any) -> list[str]:
    """The page of a plan as lines of 100 characters; nothing of other results."""
    from planner.report.text.plan import summary

    return summary(result) if isinstance(result, Plan) else []


def documented(result: Any) -> dict[str, object]:
    """A result as a dictionary, with the page that people read of it."""
    lines = summary_of(result)
    found: dict[str, object] = result.to_dict()
    return found if not lines else {**found, "summary": lines}
