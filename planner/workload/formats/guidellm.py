"""GuideLLM ``benchmarks.json``: the successful requests of every benchmark in the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from planner.errors import InputError
from planner.workload.formats.base import JSON, Clock, Format, ReadOptions, TraceBuilder
from planner.workload.formats.rows import found_at, iterate_json

if TYPE_CHECKING:
    from planner.workload.source import Head, Source

INPUT = ("prompt_tokens", "input_metrics.text_tokens", "input_metrics.total_tokens", "request_metrics.prompt_tokens")
OUTPUT = ("output_tokens", "output_metrics.text_tokens", "output_metrics.total_tokens", "request_metrics.output_tokens")
TIME = (
    "request_start_time",
    "start_time",
    "info.timings.request_start",
    "scheduler_info.request_timings.request_start",
)


def _recognise(head: Head) -> bool:
    return "benchmarks" in head.keys and bool({"requests", "type_", "successful"} & head.keys)


def _requests(benchmark: Any, builder: TraceBuilder) -> Iterator[Any]:
    """The requests of a benchmark, in the layout of either version."""
    requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
    if isinstance(requests, list):
        yield from requests
    elif isinstance(requests, dict):
        yield from requests.get("successful") or ()
        for kind, reason in (("incomplete", "incomplete request"), ("errored", "failed request")):
            for _ in requests.get(kind) or ():
                builder.drop(reason)
    else:
        raise InputError(f"{builder.path}: a benchmark without its requests", "Save the full JSON output of GuideLLM.")


def _read(source: Source, options: ReadOptions) -> TraceBuilder:
    """Requests of all benchmarks of a report, one after the other."""
    builder = TraceBuilder(source.name, FORMAT.name, Clock(options.time_unit or "s"))
    runs = 0
    for line, document in iterate_json(source, builder):
        benchmarks = document.get("benchmarks") if isinstance(document, dict) else None
        if not isinstance(benchmarks, list):
            raise InputError(f"{source.name}:{line}: no list of benchmarks")
        for benchmark in benchmarks:
            runs += 1
            for number, request in enumerate(_requests(benchmark, builder), 1):
                sent, got, time = (found_at(request, names)[1] for names in (INPUT, OUTPUT, TIME))
                if sent is None or got is None:
                    builder.bad(line, f"benchmark {runs}, request {number}: no token counts")
                    continue
                builder.add(line, sent, got, time)
    return builder.without_users(runs, "benchmarks")


FORMAT = Format("guidellm", "GuideLLM benchmarks JSON", JSON, _recognise, _read)
