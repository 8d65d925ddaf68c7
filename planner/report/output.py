"""Results as text: a function per format, each takes a result."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from planner.plans import Plan
from planner.report.blocks import Block, rows_table, to_markdown, to_terminal
from planner.report.pages import Listing

WORDS = {
    "plan": ("Plan",),
    "why": ("Explanation",),
    "choices": ("Choices", "Difference", "InfeasibleError", "Sweep"),
    "standing": ("BatchRoom", "Capacity", "Evaluation"),
    "money": ("Costs", "Growth", "Schedule", "ServicesPlan", "TieredPlan"),
    "measured": (
        "Batching", "CalibrationSet", "Comparison", "CompressionMeasurement", "Reproduction", "Stability", "Verification",
        "WaitSettings", "WorkloadSummary",
    ),
}  # fmt: skip
"""Module of ``planner/report/text`` -> classes of results that it has words for."""


def blocks_of(result: Any) -> Sequence[Block]:
    """The blocks of any result."""
    if isinstance(result, Listing):
        return result.page
    kind = type(result).__name__
    module = next((module for module, kinds in WORDS.items() if kind in kinds), None)
    if module is None:
        return [rows_table(result.to_rows())]
    words = import_module(f"planner.report.text.{module}")
    return list(getattr(words, function_of(kind))(result))


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


def table(result: Any, width: int | None = None) -> str:
    """Words and tables for a terminal, on a page of that many characters; ``None`` = any number, nothing left out."""
    return to_terminal(blocks_of(result), width)


def markdown(result: Any) -> str:
    """Words and tables for a design document."""
    return to_markdown(blocks_of(result))


def as_json(result: Any) -> str:
    """The machine's contract, with its schema version; numbers that JSON cannot hold are ``null`` already."""
    return json.dumps(_documented(result), indent=2, ensure_ascii=False, allow_nan=False)


def as_yaml(result: Any) -> str:
    """The same content, keys in their order, in the form that verbs read back."""
    import yaml

    return yaml.safe_dump(_documented(result), sort_keys=False, allow_unicode=True, width=120).rstrip("\n")


def _documented(result: Any) -> dict[str, object]:
    """A result as a dictionary, with the page that people read of it."""
    lines = summary_of(result)
    return {**result.to_dict(), **({"summary": lines} if lines else {})}


def rows_to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV; the columns are the union of all keys in order of appearance.

    >>> rows_to_csv([{"a": 1, "b": None}, {"a": 2, "c": 3}]).splitlines()
    ['a,b,c', '1,,', '2,,3']
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "table": table,
    "markdown": markdown,
    "json": as_json,
    "yaml": as_yaml,
    "csv": lambda result: rows_to_csv(result.to_rows()),
}
"""Name of a format -> what makes it."""
