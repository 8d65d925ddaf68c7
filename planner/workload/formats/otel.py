"""OpenTelemetry GenAI spans: one span per line or OTLP export documents; spans that are no generation are dropped and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from planner.workload.formats.base import JSON, CsvColumns
from planner.workload.formats.rows import table_format
from planner.workload.source import Head

FIELDS = CsvColumns(
    ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt", "llm.usage.prompt_tokens"),
    (
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.completion_tokens",
        "llm.token_count.completion",
        "llm.usage.completion_tokens",
    ),
    ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime"),
    session=("gen_ai.conversation.id", "session.id", "traceId", "trace_id"),
    ended=("endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime"),
)
GENERATIONS = frozenset({"chat", "text_completion", "generate_content", "completion"})


def _recognise(head: Head) -> bool:
    """An OTLP document, or spans by themselves."""
    exported = bool({"resourceSpans", "resource_spans"} & head.keys)
    return exported or ("attributes" in head.keys and bool(set(FIELDS.time) & head.keys))


def _spans(record: Any) -> Iterator[Any]:
    """Spans of a document, however deep, each with its attributes beside its own fields."""
    if isinstance(record, list):
        for inner in record:
            yield from _spans(inner)
        return
    if not isinstance(record, dict):
        yield record
        return
    for key in ("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans"):
        if isinstance(record.get(key), list):
            yield from _spans(record[key])
            return
    yield {**_attributes(record.get("attributes")), **record}


def _attributes(raw: Any) -> dict[str, Any]:
    """Attributes of a span: a mapping, or OTLP's list of keys and typed values."""
    if isinstance(raw, dict):
        return raw
    found: dict[str, Any] = {}
    for item in raw if isinstance(raw, list) else ():
        if isinstance(item, dict) and "key" in item:
            value = item.get("value")
            found[item["key"]] = next(iter(value.values()), None) if isinstance(value, dict) else value
    return found


def _drop(value: Callable[[str], Any]) -> str | None:
    """Spans that generate nothing, and those that failed before they counted tokens."""
    operation = value("gen_ai.operation.name")
    if operation is not None and operation not in GENERATIONS:
        return f"not a generation ({operation})"
    if any(value(name) is not None for name in (*FIELDS.input, *FIELDS.output)):
        return None
    status = value("status")
    failed = isinstance(status, dict) and status.get("code") in (2, "STATUS_CODE_ERROR", "ERROR")
    return "failed request" if failed else "span without token counts"


FORMAT = table_format(
    "otel", "OpenTelemetry GenAI spans (JSON lines or OTLP)", JSON, _recognise, FIELDS, drop=_drop, unpack=_spans
)
