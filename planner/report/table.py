"""The table people read in a terminal."""

from __future__ import annotations

import io
import os
import shutil
import sys
from typing import Any

__all__ = ["render", "rows_to_table"]


def rows_to_table(columns: list[str], rows: list[list[str]], right: set[str] | None = None) -> str:
    """Any table as text; cells are never cut, whatever the width of the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if right is None or column in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    plain = bool(os.environ.get("NO_COLOR")) or not sys.stdout.isatty()
    width = max(
        shutil.get_terminal_size((160, 24)).columns,
        sum(max(map(len, c)) + 3 for c in zip(columns, *rows, strict=True)) + 4,
    )
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=not plain, no_color=plain, highlight=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines())


def render(result: Any) -> str:
    """A result in words and tables."""
    from planner.report.blocks import to_terminal
    from planner.report.text import blocks_of

    return to_terminal(blocks_of(result))
