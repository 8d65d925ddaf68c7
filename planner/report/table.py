"""The table people read in a terminal."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Collection, Sequence
from typing import Any

GAP = "  "
"""Between columns."""

NARROWEST = 16
"""A column of words is never folded to less than this."""

LONGEST_WORD = 48
"""Words longer than this, addresses mostly, are broken where a page has no room for them."""


def fitting(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Collection[str],
    width: int | None,
    drop: Sequence[str],
    words: int = NARROWEST,
) -> list[int]:
    """Which columns a page of that width shows.

    Parameters
    ----------
    columns, rows
        The table.
    left
        Columns of words, which may be folded.
    width
        Characters; ``None`` = any number.
    drop
        Columns that may be left out, the first to go first; those that are absent are passed over. All others but the
        first column follow, from the right, where these are not enough.
    words
        Characters below which words are folded only when all of `drop` are left out.

    Returns
    -------
    list of int
        Indices of the columns kept.
    """
    kept = list(range(len(columns)))
    named = [columns.index(name) for name in drop if name in columns]
    others = [k for k in range(len(columns) - 1, 0, -1) if k not in named]
    for going, narrowest in ((named, words), (others, NARROWEST)):
        while width is not None and going and _taken(columns, rows, left, kept, narrowest) > width:
            kept.remove(going.pop(0))
    return kept


def _taken(
    columns: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[str], kept: Sequence[int], narrowest: int
) -> int:
    """Characters of the narrowest page for these columns."""
    return sum(_least(columns, rows, left, kept, narrowest)) + len(GAP) * (len(kept) - 1)


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]], kept: Sequence[int]) -> list[int]:
    """Characters of every column as it stands."""
    return [max(len(columns[k]), *(len(row[k]) for row in rows)) if rows else len(columns[k]) for k in kept]


def _least(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Collection[str],
    kept: Sequence[int],
    narrowest: int = NARROWEST,
) -> list[int]:
    """Characters that every column needs at least: words fold between them."""
    found = []
    for k, width in zip(kept, _widths(columns, rows, kept), strict=True):
        words = [word for row in rows for word in row[k].split()]
        longest = min(max((len(word) for word in [columns[k], *words]), default=1), LONGEST_WORD)
        found.append(min(width, max(longest, narrowest)) if columns[k] in left else width)
    return found


def rows_to_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Collection[str] = (),
    width: int | None = None,
    drop: Sequence[str] = (),
    words: int = NARROWEST,
) -> str:
    """Any table as text: numbers are never cut; columns are left out in the order of `drop`, then words are folded.

    Parameters are as for :func:`fitting`.

    >>> print(rows_to_table(["name", "n"], [["a b", "1"]], {"name"}))
    name  n
    ───────
    a b   1
    """
    kept = fitting(columns, rows, left, width, drop, words)
    widths = _widths(columns, rows, kept)
    least = _least(columns, rows, left, kept)
    while width is not None and (over := sum(widths) + len(GAP) * (len(kept) - 1) - width) > 0:
        # the column that can give most gives first
        give = max(range(len(kept)), key=lambda c: widths[c] - least[c])
        if widths[give] == least[give]:
            break
        widths[give] -= min(over, widths[give] - least[give])
    bold, plain = ("", "") if os.environ.get("NO_COLOR") or not sys.stdout.isatty() else ("\033[1m", "\033[0m")

    def line(cells: Sequence[str]) -> list[str]:
        """One row, on as many lines as its folded words take."""
        parts = [
            textwrap.wrap(cell, size, break_on_hyphens=False) or [""] if columns[k] in left else [cell]
            for k, cell, size in zip(kept, cells, widths, strict=True)
        ]
        out = []
        for at in range(max(map(len, parts), default=1)):
            words = [part[at] if at < len(part) else "" for part in parts]
            aligned = [
                word.ljust(size) if columns[k] in left else word.rjust(size)
                for k, word, size in zip(kept, words, widths, strict=True)
            ]
            out.append(GAP.join(aligned).rstrip())
        return out

    head = [f"{bold}{text}{plain}" for text in line([columns[k] for k in kept])]
    rule = "─" * (sum(widths) + len(GAP) * (len(kept) - 1))
    return "\n".join([*head, rule, *(text for row in rows for text in line([row[k] for k in kept]))])


def render(result: Any, width: int | None = None) -> str:
    """A result in words and tables, on a page of that many characters; ``None`` = any number, nothing left out."""
    from planner.report.blocks import to_terminal
    from planner.report.text import blocks_of

    return to_terminal(blocks_of(result), width)
