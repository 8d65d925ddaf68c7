"""Pages as they are written: the YAML beside a module, a page by its name, filled with what a result has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from planner.plans import HOURS_PER_MONTH
from planner.report.blocks import STYLES, Block, Table, Text, rows_table
from planner.shared.documents import shipped
from planner.shared.record import Record, placed, plain, spelled
from planner.shared.remarks import Writer
from planner.units import format_bytes, format_count, format_usd


def month(usd_per_hour: float) -> str:
    """What is paid in a month."""
    return format_usd(round(HOURS_PER_MONTH * usd_per_hour))


def usd(value: float) -> str:
    """Money as people say it, three digits.

    >>> [usd(v) for v in (940.4, 23564.0, 612674.0, 1858012.0, 2.1e9)]
    ['$940', '$23.6k', '$613k', '$1.86M', '$2.1B']
    """
    for least, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * least:
            return f"${format_count(float(f'{value / least:.3g}'))}{letter}"
    return f"${value:,.0f}"


class _NothingToSay(Exception):
    """A place holds nothing."""


class _Page(Writer):
    """Format strings over a thing and further values, in our units.

    ``!d``, ``!m`` put a word in place of nothing, ``!o`` takes what is empty for nothing, ``!u`` writes capitals. Items of a list
    stand beside each other, and ``:?yes|no`` is one of two texts.
    """

    units: Mapping[str, Callable[[Any], str]] = {
        **Writer.units,
        "bytes": format_bytes,
        "tokens": lambda n: format_count(round(n) if n >= 100 else n),
        "giga4": lambda n: f"{n / 1e9:,.4g}",
        "giga3": lambda n: f"{n / 1e9:,.3g}",
        "tera": lambda n: f"{n / 1e12:,.0f}",
        "us": lambda s: f"{1e6 * s:.3g} us",
        "kilo": lambda w: f"{w / 1000.0:,.3g}",
        "kilo_month": lambda w: f"{w / 1000.0 * HOURS_PER_MONTH:,.0f}",
        "in_month": lambda per_hour: f"{per_hour * HOURS_PER_MONTH:,.0f}",
        "dollars": lambda usd: format_usd(round(usd)),
        "month": month,
    }
    conversions: Mapping[str, Callable[[Any], Any]] = {
        "d": lambda value: "-" if value is None else value,
        "m": lambda value: "not measured" if value is None else value,
        "o": lambda value: value or None,
        "u": str.upper,
    }

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        """What lies at a place, first among the further values; what a function there says of the thing."""
        return found_at(field_name, args[0], kwargs), field_name

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        """A value, or what stands in its place."""
        return self.conversions[conversion](value) if conversion else value

    def format_field(self, value: Any, format_spec: str) -> str:
        """One value, in a unit or as usual; a word in place of a number as it is."""
        if format_spec[:1] == "?":
            return format_spec[1:].split("|")[0 if value else 1]
        if value is None:
            raise _NothingToSay
        if isinstance(value, (list, tuple)):
            return ", ".join(self.format_field(one, format_spec) for one in value)
        return value if isinstance(value, str) else super().format_field(value, format_spec)


_PAGE = _Page()


def found_at(place: str, thing: Any, values: Mapping[str, Any]) -> Any:
    """What lies at a place of a thing, or of the values given beside it; a function among them is asked of the thing."""
    name, _, below = place.partition(".")
    if name not in values:
        return placed(thing, place)
    found = values[name](thing) if callable(values[name]) else values[name]
    return placed(found, below) if below else found


def written(text: str, thing: Any, values: Mapping[str, Any]) -> str | None:
    """A format string filled; ``None`` where something in it is not known.

    >>> written("{n:count} of {gpu}", {"n": 1200.0}, {"gpu": "h100"}), written("{n:percent} more", {}, {})
    ('1,200 of h100', None)
    """
    try:
        return _PAGE.vformat(text, (thing,), values)
    except _NothingToSay:
        return None


def rows_of(places: Sequence[str], things: Iterable[Any], **values: Any) -> list[dict[str, Any]]:
    """A row for every thing; `places` as those of :attr:`planner.shared.record.Record.written`."""
    return [{key: found_at(place, one, values) for key, place in map(spelled, places)} for one in things]


def cells_of(texts: Iterable[str], thing: Any, values: Mapping[str, Any]) -> list[str]:
    """A text for every column; a dash where something in it is not known."""
    return ["-" if (text := written(str(told), thing, values)) is None else text for told in texts]


@cache
def told_beside(module: str) -> Any:
    """What the YAML beside a module says."""
    return shipped(Path(module).with_suffix(".yaml"))


def pages(module: str) -> Callable[..., list[Block]]:
    """What fills the pages of the YAML beside a module: called with a page's name, a thing, and further values.

    A page is a list of blocks; ``$name`` is one of the further values, a block or several.

    A table says ``of`` which place its rows lie, and for each of its ``columns`` a format string over one of them; without rows it
    is left out where it is ``optional``. Rows that name themselves stand as they are, those ``first`` in front, ``without`` what is
    said elsewhere. Lines stand under their style (``lines`` = none): one in which something is not known is left out, one that is a
    list gives its items. What else a block says are fields of its record.

    Parameters
    ----------
    module
        ``__file__`` of the module.
    """

    def fill(page: str, thing: Any, /, **values: Any) -> list[Block]:
        told = told_beside(module)[page]
        found = [values[b[1:]] if isinstance(b, str) else _block(dict(b), thing, values) for b in told]
        return [block for one in found for block in (one if isinstance(one, list) else [one])]

    return fill


def _block(told: dict[str, Any], thing: Any, values: Mapping[str, Any]) -> Block | list[Block]:
    """One block of a page."""
    if "columns" in told:
        columns, rows = told.pop("columns"), found_at(told.pop("of"), thing, values)
        if told.pop("optional", False) and not rows:
            return []
        cells = [cells_of(columns.values(), one, values) for one in rows]
        return Table(tuple(columns), cells, frozenset(told.pop("left", ())), **told)
    if "first" in told:
        unsaid = told.get("without", ())
        rows = [{k: v for k, v in row.items() if k not in unsaid} for row in found_at(told["of"], thing, values)]
        return rows_table(rows, told["first"])
    style = next(name for name in told if name in STYLES or name == "lines")
    lines: list[str] = []
    for text in told.pop(style):
        whole = found_at(text[1:-1], thing, values) if text[1:-1].isidentifier() else None
        if isinstance(whole, (list, tuple)):
            lines += whole
        elif (one := written(text, thing, values)) is not None:
            lines.append(one)
    return Text(lines, "" if style == "lines" else style, **told)


@dataclass(frozen=True, slots=True)
class Listing:
    """Something looked up, as every format has it.

    Parameters
    ----------
    rows
        What is written as CSV.
    page
        What people read.
    data
        What is written as JSON and YAML.
    """

    rows: Sequence[dict[str, Any]]
    page: Sequence[Block]
    data: Mapping[str, Any]

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per thing."""
        return [*self.rows]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**self.data}


def listed(rows: Sequence[dict[str, Any]], page: Sequence[Block], **data: Any) -> Listing:
    """Things looked up, their data a document of its own."""
    return Listing(rows, page, {"schema_version": Record.schema_version, **plain(data)})
