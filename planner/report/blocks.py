"""What a result says to people, block by block: the same words for a terminal and for a document."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from planner.report.markdown import rows_to_markdown
from planner.report.table import rows_to_table

__all__ = ["Block", "Table", "Text", "cell", "rows_table", "to_markdown", "to_terminal"]


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
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Collection[str] = ()
    near: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """Lines of text; nothing where there are none.

    Parameters
    ----------
    lines
        What it says.
    style
        In a document: ``heading``, ``bold``, ``bullets``, or as it is.
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

_STYLES = {"heading": "## {}", "bold": "**{}**", "bullets": "- {}", "": "{}"}


def to_terminal(blocks: Sequence[Block]) -> str:
    """Blocks with an empty line between them."""
    out = ""
    for block in blocks:
        if isinstance(block, Table):
            text = rows_to_table([*block.columns], [[*r] for r in block.rows], set(block.columns) - set(block.left))
        else:
            text = "" if block.only == "document" else "\n".join(block.label + line for line in block.lines)
        out += ("\n" if block.near else "\n\n") * bool(out and text) + text
    return out


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
    return Table(columns, [[cell(row.get(c)) for c in columns] for row in rows])


def cell(value: object) -> str:
    """One value of a row: four significant digits, a dash for nothing."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
