"""What a result is in a notebook: a small table, and a data frame where pandas is installed."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from typing import Any, ClassVar

from planner.errors import InputError
from planner.shared.record import Record

MOST_ROWS = 48
"""Rows shown at most; :meth:`InNotebooks.to_frame` has them all."""

_CELL = 'style="text-align:{align};padding:2px 8px;white-space:nowrap"'


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as notebooks show it.

    Parameters
    ----------
    svg
        The drawing.
    """

    svg: str = field(repr=False)

    def _repr_svg_(self) -> str:
        return self.svg


class InNotebooks(Record):
    """A result with rows, as notebooks show it."""

    __slots__ = ()

    shown: ClassVar[tuple[str, ...]] = ()
    """Columns of the table in a notebook; empty = all."""

    def to_rows(self) -> list[dict[str, object]]:
        """Its rows."""
        raise NotImplementedError

    def to_frame(self) -> Any:
        """The rows as a pandas data frame.

        Raises
        ------
        InputError
            pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise InputError(
                "to_frame: pandas is not installed", "Install it: pip install pandas; or take to_rows()."
            ) from None
        return pandas.DataFrame(self.to_rows())

    def plot(self, path: str | None = None) -> Picture:
        """Its picture: shown by a notebook, and written to a file (SVG; PNG and PDF by matplotlib) where one is named.

        Raises
        ------
        InputError
            Nothing of it can be drawn; a file that cannot be written.
        """
        # drawing lives above: who has a result need not have loaded it
        pictures, svg = (import_module(f"planner.report.{name}") for name in ("pictures", "svg"))
        if path is not None:
            pictures.save(self, path)
        return Picture(svg.document(pictures.charts_of(self)))

    def _repr_html_(self) -> str:
        """What it is, and its rows; nothing outside this text is needed to show it."""
        rows = self.to_rows()
        present = list(dict.fromkeys(key for row in rows for key in row))
        columns = [c for c in self.shown if c in present] or present
        texts = {c: any(isinstance(row.get(c), str) for row in rows) for c in columns}
        head = "".join(f"<th {_aligned(texts[c])}>{escape(c)}</th>" for c in columns)
        body = "".join(
            "<tr>" + "".join(f"<td {_aligned(texts[c])}>{escape(_cell(row.get(c)))}</td>" for c in columns) + "</tr>"
            for row in rows[:MOST_ROWS]
        )
        more = f"<p>and {len(rows) - MOST_ROWS:,} more rows: to_frame()</p>" if len(rows) > MOST_ROWS else ""
        page = import_module("planner.report.output").summary_of(self)
        title = escape("\n".join(page) or repr(self).strip("<>"))
        title = f"<pre>{title}</pre>" if page else f"<p><b>{title}</b></p>"
        return f'<div style="overflow-x:auto">{title}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}</div>'


def _aligned(text: bool) -> str:
    """Numbers to the right."""
    return _CELL.format(align="left" if text else "right")


def _cell(value: object) -> str:
    """One value: four significant digits, a dash for nothing."""
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
