"""Results of ``vllm bench serve`` (and SGLang's ``bench_serving``) saved with the details of every request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.errors import InputError
from planner.workload.formats.base import JSON, Clock, Format, ReadOptions, TraceBuilder
from planner.workload.formats.rows import iterate_json

if TYPE_CHECKING:
    from planner.workload.source import Head, Source


def _recognise(head: Head) -> bool:
    return {"input_lens", "output_lens"} <= head.keys or (
        bool({"total_input_tokens", "total_output_tokens"} <= head.keys)
        and bool({"request_rate", "request_throughput"} & head.keys)
    )


def _read(source: Source, options: ReadOptions) -> TraceBuilder:
    builder = TraceBuilder(source.name, FORMAT.name, Clock(options.time_unit or "s", absolute=False))
    runs = 0
    for line, record in iterate_json(source, builder):
        if not isinstance(record, dict) or "input_lens" not in record or "output_lens" not in record:
            raise InputError(
                f"{source.name}:{line}: a benchmark result without the lengths of single requests",
                "Run the benchmark again with --save-detailed (SGLang: --output-details).",
            )
        runs += 1
        _one_run(builder, line, record)
    return builder.without_users(runs)


def _one_run(builder: TraceBuilder, line: int, record: dict[str, Any]) -> None:
    """The requests of one run of `vllm bench serve`."""
    inputs, outputs = record["input_lens"], record["output_lens"]
    times, errors = record.get("start_times"), record.get("errors")
    sizes = {
        name: len(column)
        for name, column in (("input_lens", inputs), ("output_lens", outputs))
        if isinstance(column, list)
    }
    if len(sizes) < 2 or len(set(sizes.values())) > 1:
        raise InputError(
            f"{builder.path}:{line}: input_lens and output_lens must be lists of the same length, got {sizes}"
        )
    count = len(inputs)
    moments = times if isinstance(times, list) and len(times) == count else [None] * count
    problems = errors if isinstance(errors, list) and len(errors) == count else [""] * count
    for sent, got, moment, problem in zip(inputs, outputs, moments, problems, strict=True):
        if problem or (got == 0 and errors is None and record.get("failed", 0)):
            builder.drop("failed request")
        else:
            builder.add(line, sent, got, moment)


FORMAT = Format("vllm-bench", "vllm bench serve / SGLang bench_serving results with details", JSON, _recognise, _read)
