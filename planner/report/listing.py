"""A result that was only looked up: what of it a file, a row and a page hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.record import Record, plain
from planner.report.blocks import Block


@dataclass(frozen=True, slots=True)
class Listing:
    """Something looked up, as every format has it.

    Parameters
    ----------
    whole
        What is written as JSON and YAML: one thing that writes itself, or names and what they hold.
    rows
        What is written as CSV.
    page
        What people read.
    """

    whole: Any
    rows: Sequence[Mapping[str, Any]]
    page: Sequence[Block]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        head = {"schema_version": Record.schema_version} if isinstance(self.whole, Mapping) else {}
        return {**head, **plain(self.whole)}

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per thing."""
        return [dict(row) for row in self.rows]
