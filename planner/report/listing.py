"""A result that was only looked up: what of it a file, a row and a page hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.report.blocks import Table, Text
from planner.shared.record import Record


@dataclass(frozen=True, slots=True)
class Listing(Record):
    """Something looked up, as every format has it; what JSON and YAML have are the fields of its kind.

    Parameters
    ----------
    rows
        What is written as CSV.
    page
        What people read.
    """

    rows: Sequence[dict[str, Any]] = field(repr=False)
    page: Sequence[Table | Text] = field(repr=False)

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per thing."""
        return [*self.rows]


@dataclass(frozen=True, slots=True)
class Alone(Listing):
    """One thing that writes itself, with a page.

    Parameters
    ----------
    thing
        That thing.
    """

    thing: Any

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        found: dict[str, Any] = self.thing.to_dict()
        return found
