"""Mooncake JSON lines: ``timestamp`` in milliseconds, ``input_length``, ``output_length``, ``hash_ids`` of 512-token blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.workload.formats.base import Format, ReadOptions, TraceBuilder
from planner.workload.formats.rows import CsvColumns, read_json_records

if TYPE_CHECKING:
    from planner.workload.source import Head, Source

__all__ = ["FORMAT"]

FIELDS = CsvColumns(("input_length",), ("output_length",), ("timestamp",), time_unit="ms")


def _recognise(head: Head) -> bool:
    return {"input_length", "output_length"} <= head.keys and bool({"hash_ids", "timestamp"} & head.keys)


def _read(source: Source, options: ReadOptions) -> TraceBuilder:
    return read_json_records(source, options, FORMAT.name, FIELDS)


FORMAT = Format("mooncake", "Mooncake trace JSON lines", _recognise, _read)
