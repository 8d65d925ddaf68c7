"""What a result says to people, block by block: the same words for a terminal and for a document."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from planner.report.markdown import rows_to_markdown
from planner.report.table import fitting, rows_to_table

__all__ = ["Block", "Table", "Text", "cell", "folded", "rows_table", "to_markdown", "to_terminal"]


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
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Collection[str] = ()
    near: bool = False
    drop: Sequence[str] = ()


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

_STYLES = {"heading": "## {}", "bold": "**{}**", "bullets": "- {}", "command": "    {}", "": "{}"}


def to_terminal(blocks: Sequence[Block], width: int | None = None) -> str:
    """Blocks with an empty line between them, on a page of that many characters; ``None`` = any number."""
    out = ""
    for block in blocks:
        if isinstance(block, Table):
            text = rows_to_table(block.columns, block.rows, block.left, width, block.drop)
            kept = fitting(block.columns, block.rows, block.left, width, block.drop)
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
            parts.append("\n".join([*title, *(_STYLES[block.style].format(line) for line in block.lines)]))
    return "\n\n".join(parts)


def rows_table(rows: Sequence[dict[str, object]]) -> Table:
    """Any rows; the columns are the union of all keys in order of appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    words = {c for c in columns if any(isinstance(row.get(c), str) for row in rows)}
    return Table(columns, [[cell(row.get(c)) for c in columns] for row in rows], words, drop=columns[:0:-1])


def cell(value: object) -> str:
    """One value of a row: four significant digits, a dash for nothing."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
