"""OpenTelemetry GenAI spans: one span per line or OTLP export documents; spans that are no generation are dropped and counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from planner.workload.formats.base import Clock, Format, ReadOptions, TraceBuilder
from planner.workload.formats.rows import iterate_json

if TYPE_CHECKING:
    from planner.workload.source import Head, Source

__all__ = ["FORMAT"]

INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt", "llm.usage.prompt_tokens")
OUTPUT = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
    "llm.usage.completion_tokens",
)
TIME = ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime")
GENERATIONS = frozenset({"chat", "text_completion", "generate_content", "completion"})


def _recognise(head: Head) -> bool:
    keys = head.keys
    if "resourceSpans" in keys or "resource_spans" in keys:
        return True
    return "attributes" in keys and bool(set(TIME) & keys)


def _spans(record: Any) -> Iterator[Any]:
    if isinstance(record, list):
        for inner in record:
            yield from _spans(inner)
    elif isinstance(record, dict):
        for key in ("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans"):
            if isinstance(record.get(key), list):
                for inner in record[key]:
                    yield from _spans(inner)
                return
        yield record
    else:
        yield record


def _attributes(raw: Any, wanted: frozenset[str]) -> dict[str, Any]:
    """The wanted attributes of a span: a mapping, or OTLP's list of keys and typed values."""
    if isinstance(raw, dict):
        return raw
    found: dict[str, Any] = {}
    if isinstance(raw, list):
        for item in raw:
            if isinstance(item, dict) and item.get("key") in wanted:
                value = item.get("value")
                found[item["key"]] = next(iter(value.values()), None) if isinstance(value, dict) else value
    return found


def _first(values: dict[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        found = values.get(name)
        if found is not None:
            return found
    return None


def _read(source: Source, options: ReadOptions) -> TraceBuilder:
    builder = TraceBuilder(source.name, FORMAT.name, Clock(options.time_unit))
    by = options.columns.get("category")
    wanted = frozenset({*INPUT, *OUTPUT, "gen_ai.operation.name", *([by] if by else [])})
    for line, record in iterate_json(source, builder):
        plain = isinstance(record, dict) and "attributes" in record
        for span in (record,) if plain else _spans(record):
            if not isinstance(span, dict):
                builder.bad(line, "not a span")
                continue
            attributes = _attributes(span.get("attributes"), wanted)
            operation = attributes.get("gen_ai.operation.name")
            if operation is not None and operation not in GENERATIONS:
                builder.drop(f"not a generation ({operation})")
                continue
            sent, got = _first(attributes, INPUT), _first(attributes, OUTPUT)
            if sent is None and got is None:
                status = span.get("status")
                failed = isinstance(status, dict) and status.get("code") in (2, "STATUS_CODE_ERROR", "ERROR")
                builder.drop("failed request" if failed else "span without token counts")
                continue
            time = _first(span, TIME)
            if time is None:
                builder.bad(line, "no start time")
                continue
            builder.add(line, sent, got, time, None if by is None else str(attributes.get(by) or ""))
    return builder


FORMAT = Format("otel", "OpenTelemetry GenAI spans (JSON lines or OTLP)", _recognise, _read)
