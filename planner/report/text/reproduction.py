"""A reproduction: how many numbers agree first, then printed beside ours, reasons as numbered notes below."""

from __future__ import annotations

from planner.report.blocks import Block, Table, Text
from planner.reproduce.papers import VERDICTS, Reproduction

COLUMNS = ("quantity", "reading", "printed", "ours", "verdict", "why")
DROPPED = ("reading", "why")


def blocks(result: Reproduction) -> list[Block]:
    """The counts by paper, the table, and the notes that its last column refers to."""
    notes: dict[str, int] = {}
    rows = []
    for f in result.findings:
        number = notes.setdefault(f.reason, len(notes) + 1)
        quantity = f.quantity if len(result.papers) == 1 else f"{f.paper}: {f.quantity}"
        rows.append([quantity, f.reading, f.printed, f.ours, f.verdict, f"[{number}]"])
    told = [f"[{n}] {reason}" for reason, n in notes.items()]
    return [summary(result), Table(COLUMNS, rows, set(COLUMNS), drop=DROPPED), Text(told, "bullets")]


def summary(result: Reproduction) -> Table:
    """Printed numbers by paper and verdict; one that is read in several ways counts once, by its best verdict."""
    papers: list[str | None] = [*result.papers, *([None] if len(result.papers) > 1 else [])]
    rows = []
    for paper in papers:
        counts = result.counts(paper)
        cells = [f"{counts.get(verdict, 0):,}" for verdict in VERDICTS]
        rows.append([paper or "all", f"{sum(counts.values()):,}", *cells])
    return Table(("paper", "printed numbers", *VERDICTS), rows, {"paper"})
