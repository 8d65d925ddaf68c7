"""inference-perf ``per_request_lifecycle_metrics.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.workload.formats.base import Format, ReadOptions, TraceBuilder
from planner.workload.formats.rows import CsvColumns, read_json_records

if TYPE_CHECKING:
    from planner.workload.source import Head, Source

__all__ = ["FORMAT"]

FIELDS = CsvColumns(("info.input_tokens",), ("info.output_tokens",), ("start_time",))


def _recognise(head: Head) -> bool:
    return {"info", "input_tokens", "start_time"} <= head.keys


def _reason(record: Any) -> str | None:
    return "failed request" if record.get("error") else None


def _read(source: Source, options: ReadOptions) -> TraceBuilder:
    builder = read_json_records(source, options, FORMAT.name, FIELDS, _reason)
    builder.notes.append("times are those of a load generator, not of users")
    return builder


FORMAT = Format("inference-perf", "inference-perf per-request metrics (JSON)", _recognise, _read)
