"""Langfuse observations, JSON or CSV; only generations with token counts are requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from planner.workload.formats.base import JSON, CsvColumns
from planner.workload.formats.rows import found_at, table_format
from planner.workload.source import Head

FIELDS = CsvColumns(
    ("inputUsage", "promptTokens", "usage.input", "usage.promptTokens", "inputTokens"),
    ("outputUsage", "completionTokens", "usage.output", "usage.completionTokens", "outputTokens"),
    ("startTime", "start_time", "timestamp"),
    session=("sessionId", "session_id", "traceId", "trace_id"),
    ended=("endTime", "end_time"),
)


def _recognise(head: Head) -> bool:
    """A start time, token counts as Langfuse names them, and for common names a trace."""
    if head.kind == "csv":
        columns = set(head.columns)
        return "starttime" in columns and (
            {"inputusage", "outputusage"} <= columns
            or ({"traceid"} <= columns and {"prompttokens", "completiontokens"} <= columns)
        )
    return "startTime" in head.keys and bool(
        {"usageDetails", "promptTokens", "inputUsage"} & head.keys or {"traceId", "usage"} <= head.keys
    )


def _observations(record: Any) -> Iterator[Any]:
    """Observations of a page or a line; details by kind of token become one input and one output."""
    if isinstance(record, dict) and isinstance(record.get("data"), list):
        for inner in record["data"]:
            yield from _observations(inner)
        return
    if isinstance(record, dict):
        details = record.get("usageDetails") or record.get("usage_details")
        if isinstance(details, dict) and details:
            sent, got = _side(details, "input", "prompt_tokens"), _side(details, "output", "completion_tokens")
        else:
            sent, got = found_at(record, FIELDS.input)[1], found_at(record, FIELDS.output)[1]
        # an answer that was never begun has no output
        record = {**record, "inputUsage": sent, "outputUsage": 0 if got is None and sent is not None else got}
    yield record


def _side(details: dict[str, Any], side: str, other: str) -> Any:
    """Tokens of one side: cached, audio and reasoning parts have keys of their own beside ``input`` and ``output``."""
    parts = [v for k, v in details.items() if side in k and isinstance(v, (int, float)) and not isinstance(v, bool)]
    return sum(parts) if parts else details.get(other)


def _drop(value: Callable[[str], Any]) -> str | None:
    """Observations that are no generation, and those without token counts."""
    kind = str(value("type") or "")
    if kind.upper() not in ("", "GENERATION"):
        return f"not a generation ({kind.lower()})"
    if all(value(name) is None for name in (*FIELDS.input, *FIELDS.output)):
        return "failed request" if value("level") == "ERROR" else "observation without token counts"
    return None


FORMAT = table_format(
    "langfuse",
    "Langfuse observations (JSON or CSV)",
    ("csv", *JSON),
    _recognise,
    FIELDS,
    drop=_drop,
    unpack=_observations,
)
