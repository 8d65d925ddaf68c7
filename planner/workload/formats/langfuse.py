"""Langfuse observations, JSON or CSV; only generations with token counts are requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from planner.workload.formats.base import Clock, Format, ReadOptions, TraceBuilder
from planner.workload.formats.rows import CsvColumns, Filter, dig, iterate_json, read_csv

if TYPE_CHECKING:
    from planner.workload.source import Head, Source

__all__ = ["FORMAT"]

COLUMNS = CsvColumns(
    ("inputUsage", "promptTokens", "usage.input", "inputTokens"),
    ("outputUsage", "completionTokens", "usage.output", "outputTokens"),
    ("startTime", "timestamp"),
)


def _recognise(head: Head) -> bool:
    if head.kind == "csv":
        columns = set(head.columns)
        return "starttime" in columns and (
            {"inputusage", "outputusage"} <= columns
            or ({"traceid"} <= columns and {"prompttokens", "completiontokens"} <= columns)
        )
    return "startTime" in head.keys and bool(
        {"usageDetails", "promptTokens", "inputUsage"} & head.keys or {"traceId", "usage"} <= head.keys
    )


def _records(record: Any) -> Iterator[Any]:
    if isinstance(record, dict) and isinstance(record.get("data"), list):
        yield from record["data"]
    else:
        yield record


def _length(record: dict[str, Any], side: str) -> Any:
    details = record.get("usageDetails") or record.get("usage_details")
    if isinstance(details, dict):
        # cached, audio and reasoning parts have keys of their own beside "input" and "output"
        parts = [v for k, v in details.items() if side in k and isinstance(v, (int, float)) and not isinstance(v, bool)]
        if parts:
            return sum(parts)
        if details:
            return details.get({"input": "prompt_tokens", "output": "completion_tokens"}[side])
    names = {
        "input": ("usage.input", "usage.promptTokens", "promptTokens", "inputUsage"),
        "output": ("usage.output", "usage.completionTokens", "completionTokens", "outputUsage"),
    }[side]
    return next((found for name in names if (found := dig(record, name)) is not None), None)


def _kind(kind: str) -> str | None:
    return None if kind.upper() in ("", "GENERATION") else f"not a generation ({kind.lower()})"


def _filter(place: Callable[[str], int | None]) -> Filter:
    at = place("type")

    def reason(row: Sequence[str]) -> str | None:
        return _kind(row[at].strip()) if at is not None else None

    return reason


def _read(source: Source, options: ReadOptions) -> TraceBuilder:
    if source.head().kind == "csv":
        return read_csv(source, options, FORMAT.name, COLUMNS, _filter)
    builder = TraceBuilder(source.name, FORMAT.name, Clock(options.time_unit))
    by = options.columns.get("category")
    for line, outer in iterate_json(source, builder):
        for record in _records(outer):
            if not isinstance(record, dict):
                builder.bad(line, "not a JSON object")
                continue
            why = _kind(str(record.get("type") or ""))
            if why is not None:
                builder.drop(why)
                continue
            sent, got = _length(record, "input"), _length(record, "output")
            if sent is None and got is None:
                builder.drop("failed request" if record.get("level") == "ERROR" else "observation without token counts")
                continue
            time = record.get("startTime") or record.get("start_time")
            if time is None:
                builder.bad(line, "no startTime")
                continue
            builder.add(line, sent, 0 if got is None else got, time, None if by is None else str(dig(record, by) or ""))
    return builder


FORMAT = Format("langfuse", "Langfuse observations (JSON or CSV)", _recognise, _read)
