"""LiteLLM spend logs, CSV or JSON; failures, cache hits and calls that generate nothing are dropped and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.workload.formats.base import JSON, CsvColumns
from planner.workload.formats.rows import table_format
from planner.workload.source import Head


def _recognise(head: Head) -> bool:
    """Token counts and a start time, and something that only LiteLLM logs."""
    wanted = {"prompttokens", "completiontokens", "starttime"}
    if head.kind == "csv":
        return wanted <= set(head.columns) and bool({"calltype", "spend", "requestid"} & set(head.columns))
    return {"prompt_tokens", "completion_tokens", "startTime"} <= head.keys and bool({"call_type", "spend"} & head.keys)


def _drop(value: Callable[[str], Any]) -> str | None:
    """Failures, answers from a cache, and calls that generate nothing."""
    call, status, cached = (str(value(name) or "") for name in ("call_type", "status", "cache_hit"))
    if status.lower() in ("failure", "failed", "error"):
        return "failed request"
    if cached.lower() == "true":
        return "answered from LiteLLM's cache"
    if call and not any(word in call for word in ("completion", "response", "message", "generate_content")):
        return f"not a generation ({call})"
    return None


FORMAT = table_format(
    "litellm",
    "LiteLLM spend logs (CSV or JSON)",
    ("csv", *JSON),
    _recognise,
    CsvColumns(("prompt_tokens",), ("completion_tokens",), ("startTime", "start_time")),
    drop=_drop,
)
