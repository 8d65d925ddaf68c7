"""The known formats: rows of ``table.yaml``, and every module of this folder that has a ``FORMAT``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from planner.shared.documents import shipped
from planner.workload.formats.base import JSON, CsvColumns, Format
from planner.workload.formats.rows import read_parquet, read_table
from planner.workload.source import Head, normal_name

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
    yield from (found for found in table().values() if not found.last_resort)
    for stem in sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if path.stem != _OWN):
        if (found := getattr(import_module(f"{__package__}.{stem}"), "FORMAT", None)) is not None:
            yield found
    yield from (found for found in table().values() if found.last_resort)


@cache
def table() -> Mapping[str, Format]:
    """The formats that are rows of a table, by name."""
    rows = shipped(Path(__file__).with_name("table.yaml"))
    found = {name: _format(name, row) for name, row in rows.items()}
    title, common = "Parquet with one request per row (extra: parquet)", found["generic"].fields or CsvColumns((), ())
    read = partial(read_parquet, names=common)
    return found | {"parquet": Format("parquet", title, ("parquet",), lambda head: True, read, fields=common)}


def common_fields() -> CsvColumns:
    """Names that columns of one request per row commonly have."""
    found = table()["generic"].fields
    assert found is not None
    return found


def _format(name: str, row: Mapping[str, Any]) -> Format:
    """One row of the table."""
    known = {f.name for f in fields(CsvColumns)}
    columns = CsvColumns(**{role: found for role, found in row.items() if role in known})
    last = row.get("last", False)
    kinds = ("csv", *JSON) if last or {"csv", "json"} <= row.keys() else ("csv",) if "csv" in row else JSON
    special: dict[str, Any] = {"load_generator": row["load_generator"]} if "load_generator" in row else {}
    if "drop" in row:
        special["drop"] = partial(_why, row["drop"], (*columns.input, *columns.output))
    if "unpack" in row:
        # loaded where a file needs the table
        from planner.workload.formats.unpack import READERS

        special["unpack"] = READERS[row["unpack"]]
    read = partial(read_table, format_name=name, names=columns, **special)
    recognise: Callable[[Head], bool] = partial(_fits, columns) if last else partial(_has, row)
    return Format(name, row["title"], kinds, recognise, read, last, None if special else columns)


def _has(row: Mapping[str, Any], head: Head) -> bool:
    """Whether one of the format's sets of columns or keys is there, without those that a dash leaves out."""
    there = frozenset(head.columns) if head.kind == "csv" else head.keys
    spelt: Callable[[str], str] = normal_name if head.kind == "csv" else str
    return any(
        all((spelt(name.removeprefix("-")) in there) != name.startswith("-") for name in one)
        for one in row.get("csv" if head.kind == "csv" else "json", ())
    )


def _fits(columns: CsvColumns, head: Head) -> bool:
    """Whether there is a known name for the input and one for the output."""
    names = frozenset(head.columns) if head.kind == "csv" else frozenset(normal_name(k) for k in head.keys)
    return all(
        any(normal_name(c) in names for c in side if head.kind == "csv" or "." not in c)
        for side in (columns.input, columns.output)
    )


def _why(rules: Sequence[Mapping[str, Any]], lengths: Sequence[str], value: Callable[[str], Any]) -> str | None:
    """The first rule that leaves a record out, as words; ``None`` where none does."""
    for rule in rules:
        if rule.get("uncounted") and any(value(name) is not None for name in lengths):
            continue
        found = value(rule["field"]) if "field" in rule else True
        text = str(found or "")
        if "among" in rule:
            out = text.lower() in rule["among"]
        elif "beyond" in rule:
            out = bool(text) and text.lower() not in rule["beyond"]
        elif "with" in rule:
            out = any(word in text for word in rule["with"])
        elif "without" in rule:
            out = bool(text) and not any(word in text for word in rule["without"])
        else:
            out = bool(found)
        if out:
            return str(rule["why"]).format(text.lower() if "beyond" in rule else text)
    return None
