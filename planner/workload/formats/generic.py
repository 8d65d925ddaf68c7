"""Any CSV or JSON with one request per row: common names of columns, or those the user gives."""

from __future__ import annotations

from planner.workload.formats.base import JSON, CsvColumns
from planner.workload.formats.rows import table_format
from planner.workload.source import Head, normal_name

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
        "time_ms", "arrival", "arrival_s", "arrival_ms", "arrival_time_s", "arrival_time_ms", "request_timestamp", "date", "t_s",
    ),
    category=("category",),
    session=("session", "session_id", "conversation_id", "conversation", "chat_id", "thread_id", "trace_id"),
    cached=("cached_prefix_tokens", "prefix_tokens", "reused_tokens"),
    duration=("duration_s", "api_s", "latency_s", "request_latency_s", "e2e_s"),
    blocks=("hash_ids", "block_hashes"),
)  # fmt: skip


def _recognise(head: Head) -> bool:
    """A known name for the input and one for the output."""
    names = frozenset(head.columns) if head.kind == "csv" else frozenset(normal_name(k) for k in head.keys)
    return all(any(normal_name(c) in names for c in side if "." not in c) for side in (FIELDS.input, FIELDS.output))


FORMAT = table_format(
    "generic",
    "CSV or JSON with one request per row (--map for other names)",
    ("csv", *JSON),
    _recognise,
    FIELDS,
    last_resort=True,
)
