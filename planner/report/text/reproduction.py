"""A reproduction: printed beside ours, reasons as numbered notes below."""

from __future__ import annotations

from planner.report.blocks import Block, Table, Text
from planner.reproduce.result import Reproduction

__all__ = ["blocks"]

COLUMNS = ("quantity", "reading", "printed", "ours", "verdict", "why")


def blocks(result: Reproduction) -> list[Block]:
    """The table, and the notes that its last column refers to."""
    notes: dict[str, int] = {}
    rows = []
    for f in result.findings:
        number = notes.setdefault(f.reason, len(notes) + 1)
        quantity = f.quantity if len(result.papers) == 1 else f"{f.paper}: {f.quantity}"
        rows.append([quantity, f.reading, f.printed, f.ours, f.verdict, f"[{number}]"])
    told = [f"[{n}] {reason}" for reason, n in notes.items()]
    return [Table(COLUMNS, rows, set(COLUMNS) - {"printed", "ours"}), Text(told, "bullets")]
