"""What each result says: a function per kind of result, called as its class; what was looked up brings its page along; any other
by its rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from planner.plans import Plan
from planner.report.blocks import Block, rows_table
from planner.report.pages import Listing

__all__ = ["blocks_of", "summary_of"]

WORDS = {
    "plan": ("Plan",),
    "why": ("Explanation",),
    "choices": ("Choices", "Difference", "InfeasibleError", "Sweep"),
    "standing": ("BatchRoom", "Capacity", "Evaluation"),
    "money": ("Costs", "Growth", "Schedule", "ServicesPlan", "TieredPlan"),
    "scheduler": ("Batching", "Stability", "WaitSettings"),
    "measured": (
        *("CalibrationSet", "Comparison", "CompressionMeasurement", "Reproduction", "Verification", "WorkloadSummary"),
    ),
}
"""Module here -> classes of results that it has words for."""


def blocks_of(result: Any) -> Sequence[Block]:
    """The blocks of any result."""
    if isinstance(result, Listing):
        return result.page
    kind = type(result).__name__
    module = next((module for module, kinds in WORDS.items() if kind in kinds), None)
    if module is None:
        return [rows_table(result.to_rows())]
    words = import_module(f"planner.report.text.{module}")
    blocks: Sequence[Block] = getattr(words, function_of(kind))(result)
    return blocks


def function_of(kind: str) -> str:
    """What the function is called that has the words for a class.

    >>> function_of("WaitSettings")
    'of_wait_settings'
    """
    return "of" + re.sub(r"(?=[A-Z])", "_", kind).lower()


def summary_of(result: Any) -> list[str]:
    """The page of a plan as lines of 100 characters; nothing of other results."""
    from planner.report.text.plan import summary

    return summary(result) if isinstance(result, Plan) else []
