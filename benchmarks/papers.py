"""Fill the tables of docs/papers.md from ``fleetopt reproduce``: ``python benchmarks/papers.py`` (seconds)."""

from __future__ import annotations

import re
from pathlib import Path

from planner.report.markdown import rows_to_markdown
from planner.reproduce.papers import PAPERS, reproduce

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "papers.md"
COLUMNS = ["quantity", "reading", "printed", "ours", "verdict", "reason"]


def table(paper: str) -> str:
    """The findings of one paper as a Markdown table, and their count."""
    found = reproduce(paper)
    rows = [[str(row[c]) for c in COLUMNS] for row in found.to_rows()]
    counts = ", ".join(f"{n} {verdict}" for verdict, n in found.counts().items())
    return f"`fleetopt reproduce {paper}`: {len(rows)} numbers, {counts}.\n\n{rows_to_markdown(COLUMNS, rows)}"


def filled(text: str) -> str:
    """The document with every block ``<!-- reproduce NAME --> ... <!-- end -->`` made anew."""
    for paper in PAPERS:
        block = f"<!-- reproduce {paper} -->\n{table(paper)}\n<!-- end -->"
        pattern = rf"<!-- reproduce {re.escape(paper)} -->.*?<!-- end -->"
        text, count = re.subn(pattern, lambda _, block=block: block, text, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{DOCUMENT.name}: expected one block for {paper}, found {count}")
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(filled(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {DOCUMENT}")
