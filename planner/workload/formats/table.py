"""Formats of one request a row that need no code: the rows of ``table.yaml``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import Any

from planner.shared.documents import load_document
from planner.workload.formats.base import JSON, CsvColumns, Format
from planner.workload.formats.rows import table_format
from planner.workload.source import Head, normal_name


@cache
def table() -> Mapping[str, Format]:
    """The formats that are rows of a table, by name."""
    rows = load_document(Path(__file__).with_name("table.yaml"))
    return {name: _format(name, row) for name, row in rows.items()}


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
    recognise: Callable[[Head], bool] = partial(_fits, columns) if last else partial(_has, row)
    drop = partial(_why, row["drop"]) if "drop" in row else None
    return table_format(
        name, row["title"], kinds, recognise, columns,
        drop=drop, load_generator=row.get("load_generator", False), last_resort=last,
    )  # fmt: skip


def _has(row: Mapping[str, Any], head: Head) -> bool:
    """Whether one of the format's sets of columns or keys is there."""
    if head.kind == "csv":
        return any({normal_name(c) for c in one} <= set(head.columns) for one in row.get("csv", ()))
    return any(set(one) <= head.keys for one in row.get("json", ()))


def _fits(columns: CsvColumns, head: Head) -> bool:
    """Whether there is a known name for the input and one for the output."""
    names = frozenset(head.columns) if head.kind == "csv" else frozenset(normal_name(k) for k in head.keys)
    return all(
        any(normal_name(c) in names for c in side if head.kind == "csv" or "." not in c)
        for side in (columns.input, columns.output)
    )


def _why(rules: Sequence[Mapping[str, Any]], value: Callable[[str], Any]) -> str | None:
    """The first rule that leaves a record out, as words; ``None`` where none does."""
    for rule in rules:
        found = value(rule["field"])
        text = str(found or "")
        if "among" in rule:
            out = text.lower() in rule["among"]
        elif "without" in rule:
            out = bool(text) and not any(word in text for word in rule["without"])
        else:
            out = bool(found)
        if out:
            return str(rule["why"]).format(text)
    return None
