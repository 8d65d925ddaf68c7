"""What a table cannot say of a format: the records of one request inside a record of the file, by the name its row gives.

Each takes a record, its line and the collector, and gives the requests one by one; what it leaves out itself it counts there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.errors import InputError
from planner.workload.formats.base import TraceBuilder
from planner.workload.formats.rows import Unpack, dig, found_at

DEFAULT_TOKENS_PER_CHARACTER = 0.25
"""English prose in today's vocabularies: about four characters per token [tokens/character]."""

_REPLIES = frozenset({"gpt", "chatgpt", "assistant", "model", "bot", "bing", "bard", "claude"})
_SPANS = ("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans")


def _inside(record: Any, *keys: str) -> Iterator[Any]:
    """Records in lists and in lists under these keys, however deep; one that tells its usage is no envelope."""
    if isinstance(record, dict) and "usage" not in record:
        record = next((record[key] for key in keys if isinstance(record.get(key), list)), record)
    if not isinstance(record, list):
        yield record
        return
    for inner in record:
        yield from _inside(inner, *keys)


def aiperf(record: Any, line: int, builder: TraceBuilder) -> Iterator[Any]:
    """Metrics by their values; answers and reasoning may be counted apart."""
    metrics = record.get("metrics", {}) if isinstance(record, dict) else None
    if not isinstance(metrics, dict):
        yield record
        return
    if "metrics" not in record and "input_sequence_length" in record:
        raise InputError(
            f"{builder.path}:{line}: a summary of AIPerf without the lengths of single requests",
            "Give profile_export.jsonl from the same folder.",
        )
    values = {name: found.get("value") if isinstance(found, dict) else found for name, found in metrics.items()}
    parts = [values.get(name) for name in ("output_token_count", "reasoning_token_count")]
    if values.get("output_sequence_length") is None and any(p is not None for p in parts):
        values["output_sequence_length"] = sum(p for p in parts if isinstance(p, (int, float)))
    yield {**record, "metrics": values}


def guidellm(record: Any, line: int, builder: TraceBuilder) -> Iterator[Any]:
    """The requests of every benchmark of a report, in the layout of either version."""
    benchmarks = record.get("benchmarks") if isinstance(record, dict) else None
    if not isinstance(benchmarks, list):
        raise InputError(f"{builder.path}:{line}: no list of benchmarks")
    for benchmark in benchmarks:
        builder.runs += 1
        requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
        if isinstance(requests, dict):
            for kind, reason in (("incomplete", "incomplete request"), ("errored", "failed request")):
                for _ in requests.get(kind) or ():
                    builder.dropped[reason] += 1
            requests = requests.get("successful") or []
        if not isinstance(requests, list):
            raise InputError(
                f"{builder.path}: a benchmark without its requests", "Save the full JSON output of GuideLLM."
            )
        for number, request in enumerate(requests, 1):
            builder.place = f"benchmark {builder.runs}, request {number}: "
            yield request


def langfuse(record: Any, line: int, builder: TraceBuilder) -> Iterator[Any]:
    """Observations of a page or a line; details by kind of token become one input and one output."""
    for one in _inside(record, "data"):
        if not isinstance(one, dict):
            yield one
            continue
        details = one.get("usageDetails") or one.get("usage_details")
        if isinstance(details, dict) and details:
            sent, got = _side(details, "input", "prompt_tokens"), _side(details, "output", "completion_tokens")
        else:
            sent, got = (
                found_at(one, (f"{side}Usage", f"{other}Tokens", f"usage.{side}", f"usage.{other}Tokens", f"{side}Tokens"))[1]
                for side, other in (("input", "prompt"), ("output", "completion"))
            )  # fmt: skip
        # an answer that was never begun has no output
        yield {**one, "inputUsage": sent, "outputUsage": 0 if got is None and sent is not None else got}


def _side(details: dict[str, Any], side: str, other: str) -> Any:
    """Tokens of one side: cached, audio and reasoning parts have keys of their own beside ``input`` and ``output``."""
    parts = [v for k, v in details.items() if side in k and isinstance(v, (int, float)) and not isinstance(v, bool)]
    return sum(parts) if parts else details.get(other)


def openai(record: Any, line: int, builder: TraceBuilder) -> Iterator[Any]:
    """Records inside exports, pages and batch results."""
    for one in _inside(record, "data"):
        if isinstance(one, dict) and (
            "num_model_requests" in one or (isinstance(one.get("results"), list) and "start_time" in one)
        ):
            raise InputError(
                "OpenAI's usage buckets add requests up: they hold no lengths of single requests",
                "Export the requests themselves (one usage object each).",
            )
        body = dig(one, "response.body")
        yield body if isinstance(body, dict) else one


def otel(record: Any, line: int, builder: TraceBuilder) -> Iterator[Any]:
    """Spans of a document, however deep, each with its attributes (a mapping, or OTLP's list of keys and typed values)."""
    for span in _inside(record, *_SPANS):
        raw = span.get("attributes") if isinstance(span, dict) else None
        if isinstance(raw, list):
            known = {item["key"]: item.get("value") for item in raw if isinstance(item, dict) and "key" in item}
            raw = {key: next(iter(v.values()), None) if isinstance(v, dict) else v for key, v in known.items()}
        yield {**raw, **span} if isinstance(raw, dict) else span


def sharegpt(record: Any, line: int, builder: TraceBuilder) -> Iterator[Any]:
    """Every answer with all of the conversation before it as its prompt, as a chat server sees it; lengths from characters."""
    rate = builder.options.tokens_per_character
    told = "" if rate is not None else " assumed (--tokens-per-character to change)"
    rate = DEFAULT_TOKENS_PER_CHARACTER if rate is None else rate
    if not 0.0 < rate <= 4.0:
        raise InputError(f"tokens per character must lie in (0, 4], got {rate!r}")
    builder.runs += 1
    if builder.runs == 1:
        builder.notes.append(f"lengths estimated: {rate:g} tokens per character{told}")
    turns = record
    if isinstance(record, dict):
        turns = next((record[k] for k in ("conversations", "conversation", "messages", "items") if k in record), None)
    if not isinstance(turns, list):
        builder.bad(line, "no list of turns")
        return
    before = replies = 0
    try:
        for turn in turns:
            size = len(_text(turn))
            if str(turn.get("from", turn.get("role", ""))).lower() in _REPLIES and size and before:
                lengths = {"input": max(round(before * rate), 1), "output": max(round(size * rate), 1)}
                yield {**lengths, "session": builder.runs - 1}
                replies += 1
            before += size
    except (AttributeError, ValueError) as error:
        builder.bad(line, f"a turn that cannot be read: {error}")
        return
    if not replies:
        builder.dropped["conversation without a reply"] += 1


def _text(turn: dict[str, Any]) -> str:
    value = turn.get("value", turn.get("content", turn.get("text")))
    if isinstance(value, list):
        # content parts: only their text counts
        return "".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
    if not isinstance(value, (str, type(None))):
        raise ValueError("a turn without text")
    return value or ""


def vllm_bench(record: Any, line: int, builder: TraceBuilder) -> Iterator[Any]:
    """The requests of one run, whose details are a list each."""
    if not isinstance(record, dict) or "input_lens" not in record or "output_lens" not in record:
        raise InputError(
            f"{builder.path}:{line}: a benchmark result without the lengths of single requests",
            "Run the benchmark again with --save-detailed (SGLang: --output-details).",
        )
    builder.runs += 1
    lists = {name: record[name] for name in ("input_lens", "output_lens") if isinstance(record[name], list)}
    sizes = {name: len(found) for name, found in lists.items()}
    if len(sizes) < 2 or len(set(sizes.values())) > 1:
        raise InputError(
            f"{builder.path}:{line}: input_lens and output_lens must be lists of the same length, got {sizes}"
        )
    count = sizes["input_lens"]
    times, errors = (
        found if isinstance(found := record.get(name), list) and len(found) == count else [None] * count
        for name in ("start_times", "errors")
    )
    for sent, got, time, error in zip(*lists.values(), times, errors, strict=True):
        if error or (got == 0 and record.get("errors") is None and record.get("failed", 0)):
            builder.dropped["failed request"] += 1
        else:
            yield {"input": sent, "output": got, "time": time}


READERS: dict[str, Unpack] = {
    one.__name__: one for one in (aiperf, guidellm, langfuse, openai, otel, sharegpt, vllm_bench)
}
"""Each by its name."""
