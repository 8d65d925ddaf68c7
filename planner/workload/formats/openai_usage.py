"""OpenAI API records with a ``usage`` object: chat completions, completions, responses, batch outputs; one per line or an array."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from planner.errors import InputError
from planner.workload.formats.base import JSON, CsvColumns
from planner.workload.formats.rows import dig, table_format
from planner.workload.source import Head


def _recognise(head: Head) -> bool:
    if {"num_model_requests", "input_tokens"} <= head.keys:
        return True
    lengths = {"prompt_tokens", "completion_tokens"} <= head.keys or {"input_tokens", "output_tokens"} <= head.keys
    return "usage" in head.keys and lengths and not {"startTime", "traceId", "type_"} & head.keys


def _unpack(record: Any) -> Iterator[Any]:
    """Records inside exports, pages and batch results."""
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


def _drop(value: Callable[[str], Any]) -> str | None:
    """Failures and embeddings."""
    kind = value("object")
    if value("error"):
        return "failed request"
    return "not a generation (embedding)" if kind == "list" or "embedding" in str(kind or "") else None


FORMAT = table_format(
    "openai",
    "OpenAI API records with usage (JSON lines, array, batch output)",
    JSON,
    _recognise,
    CsvColumns(
        ("usage.prompt_tokens", "usage.input_tokens"),
        ("usage.completion_tokens", "usage.output_tokens"),
        ("created", "created_at", "timestamp"),
    ),
    drop=_drop,
    unpack=_unpack,
)
