"""A reproduction as a table people can read: reasons as numbered notes below it."""

from __future__ import annotations

from planner.reproduce.result import Reproduction

__all__ = ["COLUMNS", "noted_rows"]

COLUMNS = ("quantity", "reading", "printed", "ours", "verdict", "why")


def noted_rows(result: Reproduction) -> tuple[list[list[str]], list[str]]:
    """Cells under :data:`COLUMNS` and the notes that the last one refers to."""
    notes: dict[str, int] = {}
    rows = []
    for f in result.findings:
        number = notes.setdefault(f.reason, len(notes) + 1)
        quantity = f.quantity if len(result.papers) == 1 else f"{f.paper}: {f.quantity}"
        rows.append([quantity, f.reading, f.printed, f.ours, f.verdict, f"[{number}]"])
    return rows, [f"[{n}] {reason}" for reason, n in notes.items()]
