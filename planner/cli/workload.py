"""``fleetopt workload``: take the data people have, look at it, combine it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from planner.cli import options as opt
from planner.cli.output import emit, progress_bar, say
from planner.errors import InputError, refuse_below_1
from planner.units import parse_duration, parse_fraction, parse_number, parse_tokens

app = opt.group("Workloads: list the shipped ones, import traces, show, mix and compare.")

UNSAID = "What the file does not say"
FORMAT: opt.Rows = {"input_format": "Force a format; default: recognised by content (`import --help` lists them)."}
SHARE: opt.Rows = {"output_share": "For totals alone: share of the output, e.g. 0.2 or 20%."}


@app.command("list")
@opt.verb()
def list_shipped() -> Any:
    """The workloads that come with the program."""
    from planner.report.listings import workload_list
    from planner.workload.hours import load_profile, profile_names
    from planner.workload.resolve import shipped_names
    from planner.workload.workload import Workload

    shipped = [Workload.from_file(name) for name in shipped_names()]
    return workload_list(shipped, {name: load_profile(name) for name in profile_names()})


ROLES = ("input", "output", "time", "category", "total", "session", "cached", "duration", "images")

IMPORT: opt.Table = {
    "": {
        **FORMAT,
        "columns --map": (list[str], "Own column names or JSON paths: input=A,output=B,time=C,category=D,total=E,session=F."),
        "where": (list[str], "Only requests whose column or JSON path has this value: model=gpt-x. Repeat."),
        "name": "Name of the workload. Default: of the file.",
        "rows": (
            int, "Most requests of the file: of a longer trace the busiest hour and other whole stretches. Default 250,000."
        ),
        "keep_ids --keep-ids/--no-keep-ids": (False, "Keep the names of sessions; else a hash stands for each."),
        "compressible": (list[str], "Probability that a prompt of a category can be compressed: conv=1,code=0."),
        "rate": (float, "Arrival rate instead of the trace's own, requests/s."),
        "allow_bad_rows --allow-bad-rows/--no-allow-bad-rows": (False, "Drop unreadable rows even if they are more than 0.1%."),
        "source": "Origin to write into the file.",
        "licence": "Licence of the data to write into the file.",
    },
    UNSAID: {
        "tokens_per_character": (float, "For text without token counts. Default 0.25."),
        **SHARE,
        "mean_output": (float, "For totals alone: mean output, tokens."),
        "time_unit": "Unit of numeric times: s, ms, us, ns. Default: by size.",
        "baseline": "The earlier of two scrapes of a server's histograms.",
        "interval": "Time the histograms cover, e.g. 1h.",
    },
    opt.OUTPUT: {"report": (Path, "Write the account of the import as JSON.")},
}  # fmt: skip


@app.command("import")
@opt.has(IMPORT)
def import_(
    files: Annotated[
        list[str],
        typer.Argument(help="Files, patterns or addresses, or CATEGORY=FILE; several traces are merged in time."),
    ],
    output: opt.OutputFile = None,
    **given: Any,
) -> None:
    """A workload file from the data people have: traces, logs, benchmark results, server histograms.

    Formats: fleetopt, azure, burstgpt, splitwise, litellm, langfuse, vllm-bench, guidellm, aiperf, inference-perf, prometheus,
    otel, mooncake, sharegpt, fleetsim-cdf, openai, sql, generic, parquet; packed by gzip, bzip2, xz or Zstandard. Tables of 32 MB
    and more are read by DuckDB where it is installed; addresses (s3://, gs://, https://) take the extra `remote`.

    Example: fleetopt workload import conv=conv.csv code=code.csv --compressible conv=1,code=0 -o mine.csv
    """
    from planner.workload.formats.base import ReadOptions
    from planner.workload.importing import import_files
    from planner.workload.resolve import resolve_workload
    from planner.workload.source import Source
    from planner.workload.trace import MOST_REQUESTS
    from planner.workload.writer import csv_text

    asked = SimpleNamespace(**given)
    mapped = opt.pairs(asked.columns, "--map")
    if wrong := next((role for role in mapped if role not in ROLES), None):
        raise InputError(f"--map: {wrong!r} is none of {', '.join(ROLES)}")
    read = ReadOptions(
        columns=mapped,
        output_share=None if asked.output_share is None else parse_fraction(asked.output_share, "--output-share"),
        baseline=None if asked.baseline is None else Source(resolve_workload(asked.baseline)),
        interval_s=None if asked.interval is None else parse_duration(asked.interval, "--interval"),
        where=opt.pairs(asked.where, "--where"),
        **{name: given[name] for name in ("allow_bad_rows", "tokens_per_character", "mean_output", "time_unit")},
    )
    refuse_below_1({"--rows": asked.rows})
    most, labelled = asked.rows or MOST_REQUESTS, [_labelled(file) for file in files]
    how = {"input_format": asked.input_format, "name": asked.name, "most": most}
    with progress_bar("reading") as progress:
        workload, reports = import_files(labelled, read, progress=progress, **how)
    if shares := opt.pairs(asked.compressible, "--compressible"):
        workload = workload.with_compressible({k: parse_fraction(v, f"--compressible {k}") for k, v in shares.items()})
    if asked.rate is not None:
        workload = workload.with_rate(asked.rate)
    if asked.source is not None or asked.licence is not None:
        workload = workload.renamed(workload.name, asked.source, asked.licence)
    account = [line for one in reports for line in one.lines()]
    if (trace := workload.recorded) is not None and (parts := trace.stretches) is not None:
        whole = workload.provenance.requests or 0
        account.append(
            f"kept {trace.requests:,} of {whole:,} requests: {parts.weight.size} stretches that stand for all"
        )
    elif trace is None:
        workload = workload.fewer_rows(most)
    if asked.report is not None:
        emit(json.dumps({"schema_version": 1, "files": [r.to_dict() for r in reports]}, indent=2), asked.report)
    emit(csv_text(workload, asked.keep_ids), output)
    say(account)


QUERY: opt.Table = {
    "": {
        "dialect!": "bigquery, snowflake, athena, spark, clickhouse, duckdb or postgres.",
        "table!": "Table of the requests, one per row.",
        "input_tokens --input-column": ("input_tokens", "Column of the input tokens."),
        "output_tokens --output-column": ("output_tokens", "Column of the output tokens."),
        "time": "Column of the arrival time; without it the result has no rate.",
        "time_unit": "Unit where times are numbers: s, ms, us, ns.",
        "category": "Column of the category.",
        "where": (list[str], "Only requests whose column has this value: model=gpt-x. Repeat."),
        "resolution": ("3%", "Width of the cells that lengths are summed in."),
    },
}


@app.command()
@opt.has(QUERY)
def sql(
    dialect: str, table: str, where: list[str] | None, resolution: str, output: opt.OutputFile = None, **given: Any
) -> None:
    """The query to run where the logs are: its small result, saved as CSV, imports like a trace.

    Example: fleetopt workload sql --dialect bigquery --table logs.requests --time created_at > query.sql
    """
    from planner.workload.formats.sql import find_dialect, query

    asked = {"where": opt.pairs(where, "--where"), "resolution": parse_fraction(resolution, "--resolution"), **given}
    emit(query(find_dialect(dialect), table, **asked), output)


SHOWN: opt.Table = {
    "": {
        "boundary": ("4096", "Total tokens at which to describe the split."),
        "gamma": (1.5, "Compression band above the boundary."),
        "chunk": (512, "Prefill chunk of the iterations, tokens."),
        **FORMAT,
    },
    UNSAID: SHARE,
}


@app.command()
@opt.verb(table=SHOWN, plot=True)
def show(
    workload: Annotated[str, typer.Argument(help="A file in any known format, or a shipped name.")],
    boundary: str,
    gamma: float,
    chunk: int,
    **given: Any,
) -> Any:
    """Lengths, correlation, burstiness, the split at a boundary and what was assumed."""
    from planner.workload.combine import WorkloadSummary

    loaded = _load(workload, **given)
    split = parse_tokens(boundary, "--boundary")
    if not (split > 0.0 and gamma >= 1.0):
        raise InputError(f"--boundary must be positive and --gamma at least 1, got {boundary} and {gamma:g}")
    return WorkloadSummary(loaded, split, gamma, chunk)


MIX: opt.Table = {
    "": {
        "name": ("mix", "Name of the mix."),
        "rate": (float, "Arrival rate of the mix, requests/s."),
        "profile": "Daily profile of a real service (`fleetopt workload list`) for the result.",
        "scale_input": (1.0, "Factor on every input length."),
        "scale_output": (1.0, "Factor on every output length: 1.3 = outputs grow 30%."),
    },
}


@app.command()
@opt.has(MIX)
def mix(
    parts: Annotated[list[str], typer.Argument(help="WORKLOAD or WORKLOAD=WEIGHT; without weights the rates decide.")],
    name: str,
    rate: float | None,
    profile: str | None,
    scale_input: float,
    scale_output: float,
    output: opt.OutputFile = None,
) -> None:
    """Mix workloads, or scale the lengths of one; the result is a workload file.

    Example: fleetopt workload mix azure-conv=3 agent-heavy=1 --scale-output 1.3 -o tomorrow.csv
    """
    from planner.workload import combine
    from planner.workload.hours import load_profile
    from planner.workload.writer import csv_text

    weighted = [_weighted(part) for part in parts]
    loaded, weights = [_load(path) for path, _ in weighted], [weight for _, weight in weighted]
    known = [w for w in weights if w is not None]
    if known and len(known) < len(weights):
        raise InputError("give a weight to every part or to none: NAME=WEIGHT")
    if len(loaded) == 1:
        result = loaded[0] if name == "mix" else loaded[0].renamed(name)
    else:
        result = combine.mix(loaded, known or None, name=name)
    if scale_input != 1.0 or scale_output != 1.0:
        result = combine.scaled(result, scale_input, scale_output)
    if rate is not None:
        result = result.with_rate(rate)
    if profile is not None:
        result = result.with_profile(load_profile(profile))
    emit(csv_text(result), output)


@app.command()
@opt.verb()
def compare(
    first: Annotated[str, typer.Argument(help="A workload.")],
    second: Annotated[str, typer.Argument(help="Another one.")],
) -> Any:
    """How far two workloads are apart: has the traffic drifted from what was planned for?"""
    from planner.report.listings import drift_listing
    from planner.workload.combine import drift

    one, two = _load(first), _load(second)
    return drift_listing(drift(one, two), (one.name, two.name))


def _load(path: str, input_format: str | None = None, output_share: str | None = None) -> Any:
    """Read a workload with progress; what was left out is told."""
    from planner.workload.importing import read_workload

    share = None if output_share is None else parse_fraction(output_share, "--output-share")
    with progress_bar("reading") as progress:
        workload, report = read_workload(path, input_format=input_format, output_share=share, progress=progress)
    if report.dropped or report.unreadable:
        say(report.lines())
    return workload


def _labelled(text: str) -> tuple[str | None, str]:
    label, equals, path = text.partition("=")
    # an address may hold an equals sign of its own
    return (label, path) if equals and "://" not in label and not os.path.exists(text) else (None, text)


def _weighted(text: str) -> tuple[str, float | None]:
    path, equals, weight = text.rpartition("=")
    return (path, parse_number(weight, f"weight of {path}")) if equals and not os.path.exists(text) else (text, None)
