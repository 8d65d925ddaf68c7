"""What a result says to people, block by block: the same words for a terminal and for a document."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from planner.units import format_count, format_duration, format_percent, format_usd

GAP = "  "
"""Between columns."""

NARROWEST = 16
"""A column of words is never folded to less than this, nor a page."""

LONGEST_WORD = 48
"""Words longer than this, addresses mostly, are broken where a page has no room for them."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of cells.

    Parameters
    ----------
    columns, rows
        What it shows.
    left
        Columns that align left, the others right: those of words, which may be folded.
    near
        Follows the block above without an empty line in a terminal.
    drop
        Columns that a narrow page leaves out, the first to go first; those that are absent are passed over. All others but the
        first column follow, from the right, where these are not enough.
    words
        Characters below which columns of words are folded only when all of `drop` are left out.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Collection[str] = ()
    near: bool = False
    drop: Sequence[str] = ()
    words: int = NARROWEST

    def fitting(self, width: int | None) -> list[int]:
        """Which columns a page of so many characters shows (``None`` = any number): their indices."""
        kept = list(range(len(self.columns)))
        named = [self.columns.index(name) for name in self.drop if name in self.columns]
        others = [k for k in range(len(self.columns) - 1, 0, -1) if k not in named]
        for going, narrowest in ((named, self.words), (others, NARROWEST)):
            while width is not None and going and _taken([self._least(k, narrowest) for k in kept]) > width:
                kept.remove(going.pop(0))
        return kept

    def _width(self, k: int) -> int:
        """Characters of a column as it stands."""
        return max(len(self.columns[k]), *(len(row[k]) for row in self.rows), 0)

    def _least(self, k: int, narrowest: int = NARROWEST) -> int:
        """Characters that a column needs at least: words fold between them."""
        words = [word for row in self.rows for word in row[k].split()]
        longest = min(max((len(word) for word in [self.columns[k], *words]), default=1), LONGEST_WORD)
        return min(self._width(k), max(longest, narrowest)) if self.columns[k] in self.left else self._width(k)

    def to_text(self, width: int | None = None) -> str:
        """On a page of so many characters: numbers are never cut; columns are left out in the order of `drop`, then words are
        folded.

        >>> print(Table(["name", "n"], [["a b", "1"]], {"name"}).to_text())
        name  n
        ───────
        a b   1

        A column with nothing in it takes no room.

        >>> print(Table(["name", ""], [["a", ""]], {"name", ""}).to_text().splitlines()[-1])
        a
        """
        kept = self.fitting(width)
        widths, least = [self._width(k) for k in kept], [self._least(k) for k in kept]
        while width is not None and (over := _taken(widths) - width) > 0:
            # the column that can give most gives first
            give = max(range(len(kept)), key=lambda c: widths[c] - least[c])
            if widths[give] == least[give]:
                break
            widths[give] -= min(over, widths[give] - least[give])
        bold, plain = ("", "") if os.environ.get("NO_COLOR") or not sys.stdout.isatty() else ("\033[1m", "\033[0m")
        left = [self.columns[k] in self.left for k in kept]

        def lines(cells: Sequence[str]) -> list[str]:
            """One row, on as many lines as its folded words take."""
            parts = [
                textwrap.wrap(cell, max(size, 1), break_on_hyphens=False) or [""] if words else [cell]
                for cell, size, words in zip(cells, widths, left, strict=True)
            ]
            out = []
            for at in range(max(map(len, parts), default=1)):
                found = [part[at] if at < len(part) else "" for part in parts]
                aligned = [f"{w:{'<' if ls else '>'}{n}}" for w, n, ls in zip(found, widths, left, strict=True)]
                out.append(GAP.join(aligned).rstrip())
            return out

        head = [f"{bold}{text}{plain}" for text in lines([self.columns[k] for k in kept])]
        return "\n".join(
            [*head, "─" * _taken(widths), *(t for row in self.rows for t in lines([row[k] for k in kept]))]
        )

    def to_markdown(self) -> str:
        """A pipe table.

        >>> print(Table(["a", "b"], [["1", "2"]], {"a"}).to_markdown())
        | a | b |
        | :-- | --: |
        | 1 | 2 |
        """
        rule = [":--" if c in self.left else "--:" for c in self.columns]
        rows = [[cell.replace("|", "\\|") for cell in row] for row in self.rows]
        return "\n".join(f"| {' | '.join(row)} |" for row in (self.columns, rule, *rows))


def _taken(widths: Sequence[int]) -> int:
    """Characters of a page for columns of these widths."""
    return sum(widths) + len(GAP) * (len(widths) - 1)


@dataclass(frozen=True, slots=True)
class Text:
    """Lines of text; nothing where there are none.

    Parameters
    ----------
    lines
        What it says.
    style
        In a document: ``heading``, ``bold``, ``bullets``, or as it is. ``command``: a line for a shell, continued with a
        backslash where it is folded.
    title
        In a document: the heading above.
    label
        In a terminal: what each line begins with.
    near
        Follows the block above without an empty line in a terminal.
    only
        ``terminal`` or ``document``; empty = both.
    """

    lines: Sequence[str]
    style: str = ""
    title: str = ""
    label: str = ""
    near: bool = False
    only: str = ""


Block = Table | Text

STYLES = {"heading": "## {}", "bold": "**{}**", "bullets": "- {}", "command": "    {}", "": "{}"}


def to_terminal(blocks: Sequence[Block], width: int | None = None) -> str:
    """Blocks with an empty line between them, on a page of that many characters; ``None`` = any number."""
    out = ""
    for block in blocks:
        if isinstance(block, Table):
            text, kept = block.to_text(width), block.fitting(width)
            if gone := [name for k, name in enumerate(block.columns) if k not in kept]:
                text += "\n" + folded(f"left out for the width: {', '.join(gone)} (--wide)", width)
        elif block.only == "document":
            text = ""
        else:
            text = "\n".join(folded(block.label + line, width, block.style == "command") for line in block.lines)
        out += ("\n" if block.near else "\n\n") * bool(out and text) + text
    return out


def folded(line: str, width: int | None, command: bool = False) -> str:
    """A line on as many lines as it takes, the further ones indented; those of a command end in a backslash."""
    if width is None or len(line) <= width:
        return line
    inner = width - 2 * command
    parts = textwrap.wrap(line, inner, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return (" \\\n" if command else "\n").join(parts)


def to_markdown(blocks: Sequence[Block]) -> str:
    """Blocks as paragraphs, headings, lists and pipe tables."""
    parts = []
    for block in blocks:
        if isinstance(block, Table):
            parts.append(block.to_markdown())
        elif block.lines and block.only != "terminal":
            title = [f"### {block.title}\n"] if block.title else []
            parts.append("\n".join([*title, *(STYLES[block.style].format(line) for line in block.lines)]))
    return "\n\n".join(parts)


def rows_table(rows: Sequence[Mapping[str, object]], first: Sequence[str] = ()) -> Table:
    """Any rows as people read them: columns named and values written by the unit that ends their key.

    Parameters
    ----------
    rows
        Of :meth:`to_rows`; a half width ``..._ci95`` goes into the cell of its value.
    first
        Keys in front, the most wanted first: a narrow page leaves columns out from the right. Keys without a value in
        any row are left out.
    """
    present = dict.fromkeys(key for row in rows for key, value in row.items() if value is not None)
    keys = [k for k in dict.fromkeys([*first, *present]) if k in present and not k.endswith("_ci95")]
    words = {label(k) for k in keys if any(isinstance(row.get(k), str) for row in rows)}
    cells = [[_with_interval(k, row) for k in keys] for row in rows]
    return Table([label(k) for k in keys], cells, words)


def _with_interval(key: str, row: Mapping[str, object]) -> str:
    """A value, with its half width where the row has one."""
    text, half = cell(row.get(key), key), row.get(f"{key}_ci95")
    return f"{text} ±{cell(half, key)}" if isinstance(half, float) and half > 0.0 else text


_QUANTILE = re.compile(r"(?:(ttft|tpot|tbt|e2e)_p([\d.]+)|p([\d.]+)_(ttft|tpot|tbt|e2e))_s")
_MONEY = {"cost_usd": "$", "cost_usd_per_hour": "$/hour", "cost_usd_per_million_tokens": "$/million tokens"}
_ABBREVIATED = ("ttft", "tpot", "tbt", "e2e", "gpu", "gpus", "tp", "kv")


def label(key: str) -> str:
    """What a column of rows is called.

    >>> [label(k) for k in ("ttft_p99_s", "arrival_rate_per_s", "cost_usd_per_hour", "tpot_mean_s", "replicas")]
    ['P99 TTFT', 'arrival rate/s', '$/hour', 'mean TPOT', 'replicas']
    """
    if found := _QUANTILE.fullmatch(key):
        metric, level = (found[1], found[2]) if found[1] else (found[4], found[3])
        return f"P{level} {metric.upper()}"
    if key in _MONEY:
        return _MONEY[key]
    if key.endswith("_mean_s"):
        return f"mean {key.removesuffix('_mean_s').upper()}"
    name = key.removesuffix("_per_s") + "/s" if key.endswith("_per_s") else key.removesuffix("_s")
    words = name.replace("_tokens", ", tokens").replace("_", " ").split(" ")
    words = ["GPUs" if w == "gpus" else w.upper() if w in _ABBREVIATED else w for w in words]
    return " ".join(words).replace("per 1000", "per 1,000")


def cell(value: object, key: str = "") -> str:
    """One value of a row, in the unit its key ends with; a dash for nothing.

    >>> cell(0.2331, "ttft_p99_s"), cell(True), cell(10760.0, "cost_usd_per_hour"), cell(None), cell(0.41527)
    ('233 ms', 'yes', '$10,760', '-', '0.415')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return str(value)
    if key in _MONEY:
        return format_usd(value) if value >= 1.0 else f"${format_count(value)}"
    if key.endswith("_s") and not key.endswith("_per_s"):
        return format_duration(value)
    if key == "saving":
        return format_percent(value)
    return format_count(value)
