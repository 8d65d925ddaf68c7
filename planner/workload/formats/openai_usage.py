"""OpenAI API records with a ``usage`` object: chat completions, completions, responses, batch outputs; one per line or an array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from planner.errors import InputError
from planner.workload.formats.base import Format, ReadOptions, TraceBuilder
from planner.workload.formats.rows import CsvColumns, dig, read_json_records

if TYPE_CHECKING:
    from planner.workload.source import Head, Source

__all__ = ["FORMAT"]

FIELDS = CsvColumns(
    ("usage.prompt_tokens", "usage.input_tokens"),
    ("usage.completion_tokens", "usage.output_tokens"),
    ("created", "created_at", "timestamp"),
)


def _recognise(head: Head) -> bool:
    if {"num_model_requests", "input_tokens"} <= head.keys:
        return True
    lengths = {"prompt_tokens", "completion_tokens"} <= head.keys or {"input_tokens", "output_tokens"} <= head.keys
    return "usage" in head.keys and lengths and not {"startTime", "traceId", "type_"} & head.keys


def _unpack(record: Any) -> Iterator[Any]:
    if isinstance(record, dict):
        if "usage" not in record and isinstance(record.get("data"), list):
            for inner in record["data"]:
                yield from _unpack(inner)
            return
        body = dig(record, "response.body")
        if isinstance(body, dict):
            yield body
            return
        if "num_model_requests" in record or (isinstance(record.get("results"), list) and "start_time" in record):
            raise InputError(
                "OpenAI's usage buckets add requests up: they hold no lengths of single requests",
                "Export the requests themselves (one usage object each).",
            )
    yield record


def _reason(record: Any) -> str | None:
    if record.get("error"):
        return "failed request"
    if record.get("object") in ("embedding", "list") or "embedding" in str(record.get("object", "")):
        return "not a generation (embedding)"
    return None


def _read(source: Source, options: ReadOptions) -> TraceBuilder:
    return read_json_records(source, options, FORMAT.name, FIELDS, _reason, _unpack)


FORMAT = Format("openai", "OpenAI API records with usage (JSON lines, array, batch output)", _recognise, _read)
