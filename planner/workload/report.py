"""What an import read, dropped and assumed: nothing is lost without being said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from planner.record import Record


@dataclass(frozen=True, slots=True)
class ImportReport(Record):
    """Account of one import.

    Parameters
    ----------
    path, format
        What was read, and as which format.
    rows_read
        Records found, good and bad.
    requests
        Records in the workload.
    dropped
        Records left out on purpose, by reason (failed request, not a generation, ...).
    unreadable
        Records that could not be read (only with leave to drop them, or at most 0.1% of the file).
    unreadable_examples
        The first of them, with their lines.
    span_s
        Time from the first to the last request [s]; ``None`` without times.
    rate_per_s
        Requests over span [requests/s]; ``None`` without times.
    notes
        What was assumed or mended.
    """

    path: str
    format: str
    rows_read: int
    requests: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    unreadable: int = 0
    unreadable_examples: tuple[str, ...] = ()
    span_s: float | None = None
    rate_per_s: float | None = None
    notes: tuple[str, ...] = ()

    versioned: ClassVar[bool] = True

    def lines(self) -> list[str]:
        """The account in sentences, for people.

        >>> ImportReport("t.csv", "azure", 300, 299, {"no output": 1}).lines()
        ['t.csv: read as azure, 300 rows, 299 requests', 'dropped 1: no output']
        """
        text = [f"{self.path}: read as {self.format}, {self.rows_read:,} rows, {self.requests:,} requests"]
        text += [f"dropped {count:,}: {reason}" for reason, count in sorted(self.dropped.items())]
        if self.unreadable:
            text.append(f"dropped {self.unreadable:,}: unreadable")
            text += [f"  {example}" for example in self.unreadable_examples[:5]]
        if self.span_s is not None and self.rate_per_s is not None:
            text.append(f"time span {self.span_s:,.1f} s, rate {self.rate_per_s:.4g} requests/s")
        return [*text, *self.notes]
