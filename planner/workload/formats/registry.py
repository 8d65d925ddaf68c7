"""The known formats: rows of ``table.yaml``, and every module of this folder that has a ``FORMAT``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path

from planner.shared.documents import shipped
from planner.workload.formats.base import JSON, Format, Layout
from planner.workload.formats.rows import Unpack, read_parquet, read_table
from planner.workload.source import Source, normal_name

_OWN = "project_csv"


def formats(kind: str | None = None) -> Iterator[Format]:
    """Formats that a file of this kind can have, those that fit almost any file last; all of them for ``None``.

    Modules are imported as they are asked for, the project's own format first: most runs need no other.

    >>> [f.name for f in formats("csv")][0]
    'fleetopt'
    """
    return (found for found in _all() if kind is None or kind in found.kinds)


def format_names() -> tuple[str, ...]:
    """What ``--input-format`` takes."""
    own, *others, last = (f.name for f in formats())
    return (own, *sorted(others), last)


def _all() -> Iterator[Format]:
    """The project's own, those of the table, those with code of their own, and what fits almost any file."""
    yield import_module(f"{__package__}.{_OWN}").FORMAT
    from planner.workload.formats.unpack import READERS

    rows = [_format(name, layout, READERS.get(layout.get("unpack", ""))) for name, layout in table().items()]
    yield from (found for found in rows if not found.last_resort)
    title, read = "Parquet with one request per row (extra: parquet)", partial(read_parquet, layout=common_layout())
    yield Format("parquet", title, ("parquet",), lambda source: True, read, layout=common_layout())
    for stem in sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if path.stem != _OWN):
        if (found := getattr(import_module(f"{__package__}.{stem}"), "FORMAT", None)) is not None:
            yield found
    yield from (found for found in rows if found.last_resort)


@cache
def table() -> Mapping[str, Layout]:
    """The formats that are rows of a table, by name."""
    found: Mapping[str, Layout] = shipped(Path(__file__).with_name("table.yaml"))
    return found


def common_layout() -> Layout:
    """Names that columns of one request per row commonly have."""
    return table()["generic"]


def _format(name: str, layout: Layout, unpack: Unpack | None) -> Format:
    """One row of the table."""
    last = layout.get("last", False)
    kinds = ("csv", *JSON) if last or {"csv", "json"} <= layout.keys() else ("csv",) if "csv" in layout else JSON
    read = partial(read_table, format_name=name, layout=layout, unpack=unpack)
    plain = layout.keys().isdisjoint(("drop", "unpack", "load_generator"))
    recognise: Callable[[Source], bool] = partial(_fits if last else _has, layout)
    return Format(name, layout["title"], kinds, recognise, read, last, layout if plain else None)


def _has(layout: Layout, source: Source) -> bool:
    """Whether one of the format's sets of columns or keys is there, without those that a dash leaves out."""
    there = frozenset(source.columns) if source.kind == "csv" else source.keys
    spelt: Callable[[str], str] = normal_name if source.kind == "csv" else str
    return any(
        all((spelt(name.removeprefix("-")) in there) != name.startswith("-") for name in one)
        for one in layout.get("csv" if source.kind == "csv" else "json", ())
    )


def _fits(layout: Layout, source: Source) -> bool:
    """Whether there is a known name for the input and one for the output."""
    names = frozenset(source.columns) if source.kind == "csv" else frozenset(normal_name(k) for k in source.keys)
    return all(
        any(normal_name(c) in names for c in side if source.kind == "csv" or "." not in c)
        for side in (layout["input"], layout["output"])
    )
