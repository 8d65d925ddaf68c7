"""Any CSV or JSON with one request per row: common names of columns, or those the user gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.workload.formats.base import Format, ReadOptions, TraceBuilder
from planner.workload.formats.rows import CsvColumns, read_csv, read_json_records
from planner.workload.source import normal_name

if TYPE_CHECKING:
    from planner.workload.source import Head, Source

__all__ = ["FORMAT"]

FIELDS = CsvColumns(
    input=(
        "input_tokens", "prompt_tokens", "num_prefill_tokens", "prompt_len", "prompt_length", "input_length", "input_len",
        "isl", "ContextTokens", "num_input_tokens", "num_prompt_tokens", "tokens_in", "usage.prompt_tokens",
        "usage.input_tokens",
    ),
    output=(
        "output_tokens", "generated_tokens", "completion_tokens", "num_decode_tokens", "output_length", "output_len", "osl",
        "GeneratedTokens", "response_tokens", "num_output_tokens", "num_generated_tokens", "tokens_out",
        "usage.completion_tokens", "usage.output_tokens",
    ),
    time=(
        "timestamp", "timestamp_s", "time", "arrival_time", "arrived_at", "arrival_timestamp", "start_time", "startTime",
        "request_time", "created_at", "created", "ts", "datetime",
    ),
    category=("category",),
)  # fmt: skip


def _has(names: frozenset[str], candidates: tuple[str, ...]) -> bool:
    return any(normal_name(c) in names for c in candidates if "." not in c)


def _recognise(head: Head) -> bool:
    if head.kind not in ("csv", "json", "jsonl", "array"):
        return False
    names = frozenset(head.columns) if head.kind == "csv" else frozenset(normal_name(k) for k in head.keys)
    return _has(names, tuple(FIELDS.input)) and _has(names, tuple(FIELDS.output))


def _read(source: Source, options: ReadOptions) -> TraceBuilder:
    if source.head().kind == "csv":
        return read_csv(source, options, FORMAT.name, FIELDS)
    return read_json_records(source, options, FORMAT.name, FIELDS)


FORMAT = Format("generic", "CSV or JSON with one request per row (--map for other names)", _recognise, _read)
