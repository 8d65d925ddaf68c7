"""Fill the tables of docs/papers.md from ``fleetopt reproduce``: ``python benchmarks/papers.py`` (about a minute)."""

from __future__ import annotations

import re
from pathlib import Path

from planner.report.blocks import to_markdown
from planner.report.text.reproduction import blocks, summary
from planner.reproduce.papers import PAPERS, reproduce
from planner.reproduce.result import Finding, Reproduction

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "papers.md"


def filled(text: str) -> str:
    """The document with every block ``<!-- reproduce NAME --> ... <!-- end -->`` made anew."""
    found: list[Finding] = []
    for paper in PAPERS:
        one = reproduce(paper)
        found += one.findings
        text = replaced(text, paper, f"`fleetopt reproduce {paper}`\n\n{to_markdown(blocks(one))}")
    return replaced(text, "all", to_markdown([summary(Reproduction(tuple(PAPERS), tuple(found)))]))


def replaced(text: str, name: str, content: str) -> str:
    """The document with one block replaced."""
    block = f"<!-- reproduce {name} -->\n{content.strip()}\n<!-- end -->"
    pattern = rf"<!-- reproduce {re.escape(name)} -->.*?<!-- end -->"
    text, count = re.subn(pattern, lambda _: block, text, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{DOCUMENT.name}: expected one block for {name}, found {count}")
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(filled(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {DOCUMENT}")
