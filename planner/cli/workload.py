"""``fleetopt workload``: take the data people have, look at it, combine it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import options as opt

if TYPE_CHECKING:
    from planner.workload.workload import Workload

app = typer.Typer(
    name="workload",
    help="Workloads: list the shipped ones, import traces, show, mix and compare.",
    no_args_is_help=True,
)

InputFormat = Annotated[
    str | None,
    opt.told("Force a format; default: recognised by content (`import --help` lists them).", "--input-format"),
]
OutputShare = Annotated[
    str | None, opt.told("For totals alone: share of the output, e.g. 0.2 or 20%.", panel="What the file does not say")
]

_BIG = 8 << 20  # files above this size show a progress bar [bytes]


@app.command("list")
def list_shipped(output_format: opt.Format = None, output: opt.OutputFile = None) -> None:
    """The workloads that come with the program."""
    from planner.cli.output import writer
    from planner.report.listings.workloads import workload_list
    from planner.workload.hours import load_profile, profile_names
    from planner.workload.resolve import shipped_names
    from planner.workload.workload import Workload

    write = writer(output_format, output)
    shipped = [Workload.from_file(name) for name in shipped_names()]
    write(workload_list(shipped, {name: load_profile(name) for name in profile_names()}))


@app.command("import")
def import_(
    files: Annotated[
        list[str],
        typer.Argument(help="Files, patterns or addresses, or CATEGORY=FILE; several traces are merged in time."),
    ],
    output: opt.OutputFile = None,
    input_format: InputFormat = None,
    columns: Annotated[
        list[str] | None,
        opt.told("Own column names or JSON paths: input=A,output=B,time=C,category=D,total=E,session=F.", "--map"),
    ] = None,
    where: Annotated[
        list[str] | None,
        opt.told("Only requests whose column or JSON path has this value: model=gpt-x. Repeat.", "--where"),
    ] = None,
    name: Annotated[str | None, opt.told("Name of the workload. Default: of the file.")] = None,
    rows: Annotated[
        int | None,
        opt.told(
            "Most requests of the file: of a longer trace the busiest hour and other whole stretches. Default 250,000."
        ),
    ] = None,
    keep_ids: Annotated[bool, opt.told("Keep the names of sessions; else a hash stands for each.")] = False,
    compressible: Annotated[
        list[str] | None, opt.told("Probability that a prompt of a category can be compressed: conv=1,code=0.")
    ] = None,
    rate: Annotated[float | None, opt.told("Arrival rate instead of the trace's own, requests/s.")] = None,
    allow_bad_rows: Annotated[bool, opt.told("Drop unreadable rows even if they are more than 0.1%.")] = False,
    source: Annotated[str | None, opt.told("Origin to write into the file.")] = None,
    licence: Annotated[str | None, opt.told("Licence of the data to write into the file.")] = None,
    tokens_per_character: Annotated[
        float | None, opt.told("For text without token counts. Default 0.25.", panel="What the file does not say")
    ] = None,
    output_share: OutputShare = None,
    mean_output: Annotated[
        float | None, opt.told("For totals alone: mean output, tokens.", panel="What the file does not say")
    ] = None,
    time_unit: Annotated[
        str | None,
        opt.told("Unit of numeric times: s, ms, us, ns. Default: by size.", panel="What the file does not say"),
    ] = None,
    baseline: Annotated[
        str | None, opt.told("The earlier of two scrapes of a server's histograms.", panel="What the file does not say")
    ] = None,
    interval: Annotated[
        str | None, opt.told("Time the histograms cover, e.g. 1h.", panel="What the file does not say")
    ] = None,
    report: Annotated[Path | None, opt.told("Write the account of the import as JSON.", panel=opt.OUTPUT)] = None,
) -> None:
    """A workload file from the data people have: traces, logs, benchmark results, server histograms.

    Formats: fleetopt, azure, burstgpt, splitwise, litellm, langfuse, vllm-bench, guidellm, aiperf, inference-perf, prometheus,
    otel, mooncake, sharegpt, fleetsim-cdf, openai, sql, generic, parquet; packed by gzip, bzip2, xz or Zstandard. Tables of 32 MB
    and more are read by DuckDB where it is installed; addresses (s3://, gs://, https://) take the extra `remote`.

    Example: fleetopt workload import conv=conv.csv code=code.csv --compressible conv=1,code=0 -o mine.csv
    """
    from planner.cli.output import emit, say
    from planner.errors import InputError
    from planner.units import parse_duration, parse_fraction
    from planner.workload.formats.base import ReadOptions
    from planner.workload.importing import import_files
    from planner.workload.resolve import resolve_workload
    from planner.workload.source import Source
    from planner.workload.trace import MOST_REQUESTS
    from planner.workload.writer import csv_text

    roles = ("input", "output", "time", "category", "total", "session", "cached", "duration", "images")
    mapped = _pairs(columns, "--map")
    for role in mapped:
        if role not in roles:
            raise InputError(f"--map: {role!r} is none of {', '.join(roles)}")
    read = ReadOptions(
        columns=mapped,
        allow_bad_rows=allow_bad_rows,
        tokens_per_character=tokens_per_character,
        output_share=None if output_share is None else parse_fraction(output_share, "--output-share"),
        mean_output=mean_output,
        time_unit=time_unit,
        baseline=None if baseline is None else Source(resolve_workload(baseline)),
        interval_s=None if interval is None else parse_duration(interval, "--interval"),
        where=_pairs(where, "--where"),
    )
    if rows is not None and rows < 1:
        raise InputError(f"--rows: must be at least 1, got {rows}")
    given = [_labelled(file) for file in files]
    with _progress([path for _, path in given]) as progress:
        workload, reports = import_files(
            given,
            read,
            input_format=input_format,
            name=name,
            progress=progress,
            most=MOST_REQUESTS if rows is None else rows,
        )
    if compressible:
        workload = workload.with_compressible(_numbers(compressible, "--compressible"))
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
        workload = workload.fewer_rows(MOST_REQUESTS if rows is None else rows)
    if report is not None:
        import json

        emit(json.dumps({"schema_version": 1, "files": [r.to_dict() for r in reports]}, indent=2), report)
    emit(csv_text(workload, keep_ids), output)
    say(account)


@app.command()
def sql(
    dialect: Annotated[str, opt.told("bigquery, snowflake, athena, spark, clickhouse, duckdb or postgres.")],
    table: Annotated[str, opt.told("Table of the requests, one per row.")],
    input_tokens: Annotated[str, opt.told("Column of the input tokens.", "--input-column")] = "input_tokens",
    output_tokens: Annotated[str, opt.told("Column of the output tokens.", "--output-column")] = "output_tokens",
    time: Annotated[str | None, opt.told("Column of the arrival time; without it the result has no rate.")] = None,
    time_unit: Annotated[str | None, opt.told("Unit where times are numbers: s, ms, us, ns.")] = None,
    category: Annotated[str | None, opt.told("Column of the category.")] = None,
    where: Annotated[
        list[str] | None, opt.told("Only requests whose column has this value: model=gpt-x. Repeat.")
    ] = None,
    resolution: Annotated[str, opt.told("Width of the cells that lengths are summed in.")] = "3%",
    output: opt.OutputFile = None,
) -> None:
    """The query to run where the logs are: its small result, saved as CSV, imports like a trace.

    Example: fleetopt workload sql --dialect bigquery --table logs.requests --time created_at > query.sql
    """
    from planner.cli.output import emit
    from planner.units import parse_fraction
    from planner.workload.query import find_dialect, query

    text = query(
        find_dialect(dialect),
        table,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        time=time,
        time_unit=time_unit,
        category=category,
        where=_pairs(where, "--where"),
        resolution=parse_fraction(resolution, "--resolution"),
    )
    emit(text, output)


@app.command()
def show(
    workload: Annotated[str, typer.Argument(help="A file in any known format, or a shipped name.")],
    boundary: Annotated[str, opt.told("Total tokens at which to describe the split.")] = "4096",
    gamma: Annotated[float, opt.told("Compression band above the boundary.")] = 1.5,
    chunk: Annotated[int, opt.told("Prefill chunk of the iterations, tokens.")] = 512,
    input_format: InputFormat = None,
    output_share: OutputShare = None,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
    plot: opt.Plot = None,
) -> None:
    """Lengths, correlation, burstiness, the split at a boundary and what was assumed."""
    from planner.cli.output import draw, writer
    from planner.errors import InputError
    from planner.units import parse_tokens
    from planner.workload.summary import WorkloadSummary

    write = writer(output_format, output)
    loaded = _load(workload, input_format, output_share)
    split = parse_tokens(boundary, "--boundary")
    if not (split > 0.0 and gamma >= 1.0):
        raise InputError(f"--boundary must be positive and --gamma at least 1, got {boundary} and {gamma:g}")
    described = WorkloadSummary(loaded, split, gamma, chunk)
    write(described)
    draw(described, plot)


@app.command()
def mix(
    parts: Annotated[list[str], typer.Argument(help="WORKLOAD or WORKLOAD=WEIGHT; without weights the rates decide.")],
    name: Annotated[str, opt.told("Name of the mix.")] = "mix",
    rate: Annotated[float | None, opt.told("Arrival rate of the mix, requests/s.")] = None,
    profile: Annotated[
        str | None, opt.told("Daily profile of a real service (`fleetopt workload list`) for the result.")
    ] = None,
    scale_input: Annotated[float, opt.told("Factor on every input length.")] = 1.0,
    scale_output: Annotated[float, opt.told("Factor on every output length: 1.3 = outputs grow 30%.")] = 1.0,
    output: opt.OutputFile = None,
) -> None:
    """Mix workloads, or scale the lengths of one; the result is a workload file.

    Example: fleetopt workload mix azure-conv=3 agent-heavy=1 --scale-output 1.3 -o tomorrow.csv
    """
    from planner.cli.output import emit
    from planner.errors import InputError
    from planner.workload import combine
    from planner.workload.hours import load_profile
    from planner.workload.writer import csv_text

    loaded, weights = [], []
    for part in parts:
        path, weight = _weighted(part)
        loaded.append(_load(path, None, None))
        weights.append(weight)
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
def compare(
    first: Annotated[str, typer.Argument(help="A workload.")],
    second: Annotated[str, typer.Argument(help="Another one.")],
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
) -> None:
    """How far two workloads are apart: has the traffic drifted from what was planned for?"""
    from planner.cli.output import writer
    from planner.report.listings.workloads import drift_listing
    from planner.workload.combine import drift

    write = writer(output_format, output)
    one, two = _load(first, None, None), _load(second, None, None)
    write(drift_listing(drift(one, two), (one.name, two.name)))


def _load(path: str, input_format: str | None, output_share: str | None) -> Workload:
    """Read a workload with progress; what was left out is told."""
    from planner.cli.output import say
    from planner.units import parse_fraction
    from planner.workload.importing import read_workload

    share = None if output_share is None else parse_fraction(output_share, "--output-share")
    with _progress([path]) as progress:
        workload, report = read_workload(path, input_format=input_format, output_share=share, progress=progress)
    if report.dropped or report.unreadable:
        say(report.lines())
    return workload


def _labelled(text: str) -> tuple[str | None, str]:
    label, equals, path = text.partition("=")
    # an address may hold an equals sign of its own
    return (label, path) if equals and "://" not in label and not Path(text).exists() else (None, text)


def _weighted(text: str) -> tuple[str, float | None]:
    from planner.units import parse_number

    path, equals, weight = text.rpartition("=")
    return (path, parse_number(weight, f"weight of {path}")) if equals and not Path(text).exists() else (text, None)


def _pairs(given: list[str] | None, option: str) -> dict[str, str]:
    from planner.errors import InputError

    result: dict[str, str] = {}
    for part in (piece for text in given or () for piece in text.split(",") if piece.strip()):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise InputError(f"{option}: {part!r} is not NAME=VALUE")
        result[key.strip()] = value.strip()
    return result


def _numbers(given: list[str], option: str) -> dict[str, float | None]:
    from planner.units import parse_fraction

    return {key: parse_fraction(value, f"{option} {key}") for key, value in _pairs(given, option).items()}


@contextmanager
def _progress(paths: list[str]) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr for long reads in a terminal."""
    import sys

    big = any(Path(path).is_file() and Path(path).stat().st_size > _BIG for path in paths)
    if not big or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns: list[Any] = [TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update
