"""A result that was only looked up: what of it a file, a row and a page hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.report.blocks import Table, Text
from planner.shared.record import Record, plain


@dataclass(frozen=True, slots=True)
class Listing(Record):
    """Something looked up, as every format has it.

    Parameters
    ----------
    rows
        What is written as CSV.
    page
        What people read.
    content
        What JSON and YAML have: named things, or the one thing, which writes itself.
    """

    rows: Sequence[dict[str, Any]] = field(repr=False)
    page: Sequence[Table | Text] = field(repr=False)
    content: Any

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        named = isinstance(self.content, Mapping)
        found: dict[str, Any] = plain(self.content)
        return {"schema_version": self.schema_version, **found} if named else found

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per thing."""
        return [*self.rows]
