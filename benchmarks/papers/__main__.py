"""What the papers print beside ours: ``python -m benchmarks.papers [simulator|compression]``.

Without a word it writes docs/data/papers.csv and the summary in docs/papers.md from `fleetopt reproduce`, in about a minute. With
one it prints what the scheduling papers claim, on the simulator, or what FleetOpt measured of its compressor, on public text.
"""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

from planner.papers.printed import reproduce
from planner.report.blocks import to_markdown
from planner.report.text.measured import agreement
from tools.tables import ROOT, renewed

DOCS = ROOT / "docs"


def written() -> dict[Path, str]:
    """The files and what they should hold: every finding as a row, and the page with its table made anew."""
    found = reproduce("all")
    rows = io.StringIO()
    table = csv.DictWriter(rows, list(found.to_rows()[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(found.to_rows())
    page = DOCS / "papers.md"
    text = renewed(page.read_text(encoding="utf-8"), "reproduce all", to_markdown([agreement(found)]))
    return {DOCS / "data" / "papers.csv": rows.getvalue(), page: text}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["simulator"]:
            from benchmarks.papers.simulator import main

            main()
        case ["compression"]:
            from benchmarks.papers.compression import main

            main()
        case _:
            for path, text in written().items():
                path.write_text(text, encoding="utf-8")
                print(f"wrote {path}")
