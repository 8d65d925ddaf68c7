"""``fleetopt workload``: take the data people have, look at it, combine it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from planner.cli import options as opt
from planner.cli.output import emit, progress_bar, say
from planner.errors import InputError, refuse_below_1
from planner.units import parse_duration, parse_fraction, parse_number, parse_tokens

app = opt.group("Workloads: list the shipped ones, import traces, show, mix and compare.")


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


@app.command("import")
@opt.asks()
def import_(
    files: list[str],
    input_format: str | None,
    columns: list[str] | None,
    where: list[str] | None,
    name: str | None,
    rows: int | None,
    compressible: list[str] | None,
    rate: float | None,
    source: str | None,
    licence: str | None,
    tokens_per_character: float | None,
    output_share: str | None,
    mean_output: float | None,
    time_unit: str | None,
    baseline: str | None,
    interval: str | None,
    report: Path | None,
    keep_ids: bool = False,
    allow_bad_rows: bool = False,
    output: opt.OutputFile = None,
) -> None:
    """A workload file from the data people have: traces, logs, benchmark results, server histograms.

    Formats: fleetopt, azure, burstgpt, splitwise, litellm, langfuse, vllm-bench, guidellm, aiperf, inference-perf, prometheus,
    otel, mooncake, sharegpt, fleetsim-cdf, openai, sql, generic, parquet; packed by gzip, bzip2, xz or Zstandard. Tables of 32 MB
    and more are read by DuckDB where it is installed; addresses (s3://, gs://, https://) take the extra `remote`.

    Example: fleetopt workload import conv=conv.csv code=code.csv --compressible conv=1,code=0 -o mine.csv

    Arguments
    ---------
    files
        Files, patterns or addresses, or CATEGORY=FILE; several traces are merged in time.

    Parameters
    ----------
    input_format
        Force a format; default: recognised by content (`import --help` lists them).
    columns, --map
        Own column names or JSON paths: input=A,output=B,time=C,category=D,total=E,session=F.
    where
        Only requests whose column or JSON path has this value: model=gpt-x.
    name
        Name of the workload. Default: of the file.
    rows
        Most requests of the file: of a longer trace the busiest hour and other whole stretches. Default 250,000.
    keep_ids, --keep-ids/--no-keep-ids
        Keep the names of sessions; else a hash stands for each.
    compressible
        Probability that a prompt of a category can be compressed: conv=1,code=0.
    rate
        Arrival rate instead of the trace's own, requests/s.
    allow_bad_rows, --allow-bad-rows/--no-allow-bad-rows
        Drop unreadable rows even if they are more than 0.1%.
    source
        Origin to write into the file.
    licence
        Licence of the data to write into the file.

    What the file does not say
    --------------------------
    tokens_per_character
        For text without token counts. Default 0.25.
    output_share
        For totals alone: share of the output, e.g. 0.2 or 20%.
    mean_output
        For totals alone: mean output, tokens.
    time_unit
        Unit of numeric times: s, ms, us, ns. Default: by size.
    baseline
        The earlier of two scrapes of a server's histograms.
    interval
        Time the histograms cover, e.g. 1h.

    Output
    ------
    report
        Write the account of the import as JSON.
    """
    from planner.workload.formats.base import ReadOptions
    from planner.workload.importing import import_files
    from planner.workload.resolve import resolve_workload
    from planner.workload.source import Source
    from planner.workload.trace import MOST_REQUESTS
    from planner.workload.writer import csv_text

    mapped = opt.pairs(columns, "--map")
    if wrong := next((role for role in mapped if role not in ROLES), None):
        raise InputError(f"--map: {wrong!r} is none of {', '.join(ROLES)}")
    read = ReadOptions(
        columns=mapped,
        allow_bad_rows=allow_bad_rows,
        tokens_per_character=tokens_per_character,
        output_share=None if output_share is None else parse_fraction(output_share, "--output-share"),
        mean_output=mean_output,
        time_unit=time_unit,
        baseline=None if baseline is None else Source(resolve_workload(baseline)),
        interval_s=None if interval is None else parse_duration(interval, "--interval"),
        where=opt.pairs(where, "--where"),
    )
    refuse_below_1({"--rows": rows})
    most, labelled = rows or MOST_REQUESTS, [_labelled(file) for file in files]
    with progress_bar("reading") as progress:
        workload, reports = import_files(
            labelled, read, input_format=input_format, name=name, most=most, progress=progress
        )
    if shares := opt.pairs(compressible, "--compressible"):
        workload = workload.with_compressible({k: parse_fraction(v, f"--compressible {k}") for k, v in shares.items()})
    if rate is not None:
        workload = workload.with_rate(rate)
    if source is not None or licence is not None:
        workload = workload.renamed(workload.name, source, licence)
    account = [line for one in reports for line in one.lines()]
    if (trace := workload.recorded) is not None and (parts := trace.stretches) is not None:
        whole = workload.provenance.requests or 0
        account.append(
            f"kept {trace.requests:,} of {whole:,} requests: {parts.weight.size} stretches that stand for all"
        )
    elif trace is None:
        workload = workload.fewer_rows(most)
    if report is not None:
        emit(json.dumps({"schema_version": 1, "files": [r.to_dict() for r in reports]}, indent=2), report)
    emit(csv_text(workload, keep_ids), output)
    say(account)


@app.command()
@opt.asks()
def sql(
    dialect: str,
    table: str,
    time: str | None,
    time_unit: str | None,
    category: str | None,
    where: list[str] | None,
    input_tokens: str = "input_tokens",
    output_tokens: str = "output_tokens",
    resolution: str = "3%",
    output: opt.OutputFile = None,
) -> None:
    """The query to run where the logs are: its small result, saved as CSV, imports like a trace.

    Example: fleetopt workload sql --dialect bigquery --table logs.requests --time created_at > query.sql

    Parameters
    ----------
    dialect
        bigquery, snowflake, athena, spark, clickhouse, duckdb or postgres.
    table
        Table of the requests, one per row.
    input_tokens, --input-column
        Column of the input tokens.
    output_tokens, --output-column
        Column of the output tokens.
    time
        Column of the arrival time; without it the result has no rate.
    time_unit
        Unit where times are numbers: s, ms, us, ns.
    category
        Column of the category.
    where
        Only requests whose column has this value: model=gpt-x.
    resolution
        Width of the cells that lengths are summed in.
    """
    from planner.workload.formats.sql import find_dialect, query

    found = query(
        find_dialect(dialect),
        table,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        time=time,
        time_unit=time_unit,
        category=category,
        where=opt.pairs(where, "--where"),
        resolution=parse_fraction(resolution, "--resolution"),
    )
    emit(found, output)


@app.command()
@opt.verb(plot=True)
def show(
    workload: str,
    input_format: str | None,
    output_share: str | None,
    boundary: str = "4096",
    gamma: float = 1.5,
    chunk: int = 512,
) -> Any:
    """Lengths, correlation, burstiness, the split at a boundary and what was assumed.

    Arguments
    ---------
    workload
        A file in any known format, or a shipped name.

    Parameters
    ----------
    boundary
        Total tokens at which to describe the split.
    gamma
        Compression band above the boundary.
    chunk
        Prefill chunk of the iterations, tokens.
    input_format
        Force a format; default: recognised by content (`import --help` lists them).

    What the file does not say
    --------------------------
    output_share
        For totals alone: share of the output, e.g. 0.2 or 20%.
    """
    from planner.workload.combine import WorkloadSummary

    loaded = _load(workload, input_format, output_share)
    split = parse_tokens(boundary, "--boundary")
    if not (split > 0.0 and gamma >= 1.0):
        raise InputError(f"--boundary must be positive and --gamma at least 1, got {boundary} and {gamma:g}")
    return WorkloadSummary(loaded, split, gamma, chunk)


@app.command()
@opt.asks()
def mix(
    parts: list[str],
    rate: float | None,
    profile: str | None,
    name: str = "mix",
    scale_input: float = 1.0,
    scale_output: float = 1.0,
    output: opt.OutputFile = None,
) -> None:
    """Mix workloads, or scale the lengths of one; the result is a workload file.

    Example: fleetopt workload mix azure-conv=3 agent-heavy=1 --scale-output 1.3 -o tomorrow.csv

    Arguments
    ---------
    parts
        WORKLOAD or WORKLOAD=WEIGHT; without weights the rates decide.

    Parameters
    ----------
    name
        Name of the mix.
    rate
        Arrival rate of the mix, requests/s.
    profile
        Daily profile of a real service (`fleetopt workload list`) for the result.
    scale_input
        Factor on every input length.
    scale_output
        Factor on every output length: 1.3 = outputs grow 30%.
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
def compare(first: str, second: str) -> Any:
    """How far two workloads are apart: has the traffic drifted from what was planned for?

    Arguments
    ---------
    first
        A workload.
    second
        Another one.
    """
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
