"""Tables of documents: parts of a page between two marks made anew, tables of Markdown and of ``docs/data/``."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

Cells = tuple[str, str, str, str, str, str]
"""A line of the index: part, against what, cases, typical error, worst optimistic one, and where that is."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a script writes into a part of ``docs/accuracy.md``, or into the page of its own that measured systems have.

    Parameters
    ----------
    blocks
        Name of a mark -> what stands between ``<!-- part name -->`` (``<!-- name -->`` in a page of its own), ``<!-- end -->``.
    index
        Its lines in ``docs/accuracy.md``.
    """

    blocks: Mapping[str, str]
    index: Sequence[Cells]

    def write(self, name: str) -> None:
        """Bring the page and its lines in the index up to date."""
        index, own_page = ROOT / "docs" / "accuracy.md", ROOT / "docs" / "accuracy" / f"{name}.md"
        alone = own_page.exists()
        page, link = (own_page, f"](accuracy/{name}.md)") if alone else (index, f"](#{name})")
        text = page.read_text(encoding="utf-8")
        for mark, block in self.blocks.items():
            text = renewed(text, mark if alone else f"{name} {mark}", block)
        page.write_text(text, encoding="utf-8")
        lines = index.read_text(encoding="utf-8").splitlines()
        own = [number for number, line in enumerate(lines) if line.startswith("| ") and link in line]
        lines[own[0] : own[-1] + 1] = [f"| [{part}{link} | {' | '.join(rest)} |" for part, *rest in self.index]
        index.write_text("\n".join(lines) + "\n", encoding="utf-8")


def renewed(text: str, mark: str, block: str) -> str:
    """A document with what stands between ``<!-- mark -->`` and ``<!-- end -->`` made anew.

    >>> renewed("a\\n<!-- m -->\\nold\\n<!-- end -->\\nb", "m", "new")
    'a\\n<!-- m -->\\nnew\\n<!-- end -->\\nb'
    """
    begin, end = f"<!-- {mark} -->\n", "\n<!-- end -->"
    before, _, rest = text.partition(begin)
    if end not in rest:
        raise LookupError(f"no <!-- {mark} --> with its end")
    return before + begin + block.strip() + end + rest.partition(end)[2]


def write_csv(name: str, rows: Iterable[Sequence[object]]) -> None:
    """A table of ``docs/data/``."""
    with (ROOT / "docs" / "data" / name).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """A table of Markdown whose first `left` columns are words, the others numbers."""
    rule = [":--" if number < left else "--:" for number in range(len(head))]
    lines = (" | ".join(map(str, cells)) for cells in (head, rule, *rows))
    return "\n".join(f"| {line} |" for line in lines)
