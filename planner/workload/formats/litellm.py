"""LiteLLM spend logs, CSV or JSON; failures, cache hits and calls that generate nothing are dropped and counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from planner.workload.formats.base import Format, ReadOptions, TraceBuilder
from planner.workload.formats.rows import CsvColumns, Filter, read_csv, read_json_records

if TYPE_CHECKING:
    from planner.workload.source import Head, Source

__all__ = ["FORMAT"]

FIELDS = CsvColumns(("prompt_tokens",), ("completion_tokens",), ("startTime", "start_time"))


def _recognise(head: Head) -> bool:
    wanted = {"prompttokens", "completiontokens", "starttime"}
    if head.kind == "csv":
        return wanted <= set(head.columns) and bool({"calltype", "spend", "requestid"} & set(head.columns))
    return {"prompt_tokens", "completion_tokens", "startTime"} <= head.keys and bool({"call_type", "spend"} & head.keys)


def _why(call: str, status: str, cached: str) -> str | None:
    if status.lower() in ("failure", "failed", "error"):
        return "failed request"
    if cached.lower() == "true":
        return "answered from LiteLLM's cache"
    if call and not any(word in call for word in ("completion", "response", "message", "generate_content")):
        return f"not a generation ({call})"
    return None


def _filter(place: Callable[[str], int | None]) -> Filter:
    call, status, cached = place("call_type"), place("status"), place("cache_hit")

    def cell(row: Sequence[str], at: int | None) -> str:
        return row[at].strip() if at is not None else ""

    return lambda row: _why(cell(row, call), cell(row, status), cell(row, cached))


def _reason(record: Any) -> str | None:
    def word(key: str) -> str:
        return str(record.get(key) or "")

    return _why(word("call_type"), word("status"), word("cache_hit"))


def _read(source: Source, options: ReadOptions) -> TraceBuilder:
    if source.head().kind == "csv":
        return read_csv(source, options, FORMAT.name, FIELDS, _filter)
    return read_json_records(source, options, FORMAT.name, FIELDS, _reason)


FORMAT = Format("litellm", "LiteLLM spend logs (CSV or JSON)", _recognise, _read)
