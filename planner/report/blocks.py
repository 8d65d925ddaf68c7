"""What a result says to people, block by block: the same words for a terminal and for a document."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from planner.report.markdown import rows_to_markdown
from planner.report.table import NARROWEST, fitting, rows_to_table
from planner.units import format_count, format_duration, format_percent, format_usd


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of cells.

    Parameters
    ----------
    columns, rows
        What it shows.
    left
        Columns that align left, the others right.
    near
        Follows the block above without an empty line in a terminal.
    drop
        Columns that a narrow page leaves out, the first to go first.
    words
        Characters below which columns of words are folded only when all of `drop` are left out.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Collection[str] = ()
    near: bool = False
    drop: Sequence[str] = ()
    words: int = NARROWEST


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
            text = rows_to_table(block.columns, block.rows, block.left, width, block.drop, block.words)
            kept = fitting(block.columns, block.rows, block.left, width, block.drop, block.words)
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
            parts.append(rows_to_markdown([*block.columns], [[*r] for r in block.rows], block.left))
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
