"""What the papers print beside ours: ``python benchmarks/papers.py`` writes docs/data/papers.csv and the summary in docs/papers.md.

It takes about a minute.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from planner.report.blocks import to_markdown
from planner.report.text.measured import agreement
from planner.reproduce.papers import reproduce

DOCS = Path(__file__).resolve().parents[1] / "docs"


def written() -> dict[Path, str]:
    """The files and what they should hold: every finding as a row, and the page with its table made anew."""
    found = reproduce("all")
    rows = io.StringIO()
    table = csv.DictWriter(rows, list(found.to_rows()[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(found.to_rows())
    page = DOCS / "papers.md"
    block = f"<!-- reproduce all -->\n{to_markdown([agreement(found)]).strip()}\n<!-- end -->"
    text = re.sub(
        r"<!-- reproduce all -->.*?<!-- end -->", lambda _: block, page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    return {DOCS / "data" / "papers.csv": rows.getvalue(), page: text}


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
