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
        "isl", "ContextTokens", "num_input_tokens", "num_prompt_tokens", "n_prompt_tokens", "n_input_tokens", "prefill_tokens",
        "context_tokens", "request_tokens", "in_tokens", "tokens_in", "usage.prompt_tokens", "usage.input_tokens",
    ),
    output=(
        "output_tokens", "generated_tokens", "completion_tokens", "num_decode_tokens", "output_length", "output_len", "osl",
        "GeneratedTokens", "response_tokens", "num_output_tokens", "num_generated_tokens", "n_output_tokens",
        "n_generated_tokens", "decode_tokens", "generation_tokens", "out_tokens", "tokens_out", "output_size",
        "usage.completion_tokens", "usage.output_tokens",
    ),
    time=(
        "timestamp", "timestamp_s", "time", "arrival_time", "arrived_at", "arrival_timestamp", "start_time", "startTime",
        "request_time", "created_at", "created", "ts", "datetime", "timestamp_ms", "timestamp_us", "timestamp_ns", "time_s",
        "time_ms", "arrival", "arrival_s", "arrival_ms", "arrival_time_s", "arrival_time_ms", "request_timestamp", "date",
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
