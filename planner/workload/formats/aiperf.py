"""AIPerf ``profile_export.jsonl``: one record per request; warm-up, cancelled and failed ones are dropped and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.errors import InputError
from planner.workload.formats.base import JSON, Clock, Format, ReadOptions, TraceBuilder
from planner.workload.formats.rows import dig, found_at, iterate_json

if TYPE_CHECKING:
    from planner.workload.source import Head, Source

TIME = ("metadata.request_start_ns", "metadata.timestamp_ns", "metrics.min_request_timestamp.value")


def _recognise(head: Head) -> bool:
    return "input_sequence_length" in head.keys


def _value(record: Any, name: str) -> Any:
    found = dig(record, f"metrics.{name}")
    return found.get("value") if isinstance(found, dict) else found


def _read(source: Source, options: ReadOptions) -> TraceBuilder:
    """Requests of a run's JSON lines, warm-up and failures left out."""
    builder = TraceBuilder(source.name, FORMAT.name, Clock(options.time_unit or "ns", absolute=True))
    for line, record in iterate_json(source, builder):
        if isinstance(record, dict) and "metrics" not in record and "input_sequence_length" in record:
            raise InputError(
                f"{source.name}:{line}: a summary of AIPerf without the lengths of single requests",
                "Give profile_export.jsonl from the same folder.",
            )
        phase = dig(record, "metadata.benchmark_phase") or dig(record, "metadata.credit_phase")
        if phase == "warmup":
            builder.drop("warm-up request")
            continue
        if isinstance(record, dict) and record.get("error"):
            builder.drop("failed request")
            continue
        if dig(record, "metadata.was_cancelled"):
            builder.drop("cancelled request")
            continue
        sent, got = _value(record, "input_sequence_length"), _value(record, "output_sequence_length")
        if got is None:
            parts = [_value(record, "output_token_count"), _value(record, "reasoning_token_count")]
            got = sum(p for p in parts if isinstance(p, (int, float))) if any(p is not None for p in parts) else None
        if sent is None or got is None:
            builder.bad(line, "no sequence lengths")
            continue
        builder.add(line, sent, got, found_at(record, TIME)[1])
    return builder.without_users()


FORMAT = Format("aiperf", "AIPerf profile_export.jsonl", JSON, _recognise, _read)
