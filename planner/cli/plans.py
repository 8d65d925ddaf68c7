"""``fleetopt evaluate``, ``what-if``, ``cost``, ``diff`` and ``report``: plans that there are, looked at again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import planner as fo
from planner.cli import options as opt
from planner.cli.output import draw, emit, format_of, progress_bar, refuse_named_twice, say, writer
from planner.errors import InputError
from planner.units import parse_number

CHANGES: opt.Table = {
    "": {
        "rate": "Rates to try, requests/s: 500 or 500,1000,2000. Default: that of --cdf, else the plan's.",
        "workload --cdf --workload -w": "Other traffic than the plan's.",
        "change --set": (list[str], "Any option of plan, changed: cached_share=0.6. Repeat."),
    },
}


@opt.verb(table=CHANGES, plot=True)
def evaluate(plan: opt.PlanFile, rate: str | None, workload: str | None, change: list[str] | None) -> Iterator[Any]:
    """Latencies of a fixed fleet at other rates or with other options, and which promises still hold."""
    from planner.studies.what_if import parse_settings

    settings = parse_settings(change or [])
    if several := next((name for name, values in settings.items() if len(values) > 1), None):
        raise InputError(f"--set {several}: one value here; `fleetopt what-if` plans for several")
    changes: dict[str, Any] = {name: values[0] for name, values in settings.items()}
    rates = [parse_number(v, "--rate") for v in rate.split(",")] if rate else None
    with progress_bar("evaluating"):
        found = fo.evaluate(plan, rates, workload=workload, **changes)
    yield found
    if not found.holds:
        say(["warning: some promises do not hold at the rates above (column `broken`)"])


OF_ROWS = ("table", "markdown", "csv")
"""Formats that tell of a point no more than its row."""

POINTS: opt.Table = {
    "": {
        "change --set": (list[str], "Option and values: rate=500,1000. Repeat. A value that is a list: gpu=h100,h100+l40s."),
        "scenario": (list[str], "Scenario of the file; repeat. `all` takes every one."),
        "keep": (False, "Keep the plan's pools, engines and boundaries but for what is changed; rows say so."),
        "zipped --zip": (False, "One point per position instead of all combinations."),
        "jobs": (0, "Threads that plan the points; 0 = one for each core."),
        "resume": (Path, "File of finished points: an interrupted sweep goes on where it stopped. Made when missing."),
        "stream": (Path, "CSV or Parquet file that gets every row as its point is done, in that order."),
    },
}  # fmt: skip


@opt.has(POINTS)
def what_if(
    base: opt.Base,
    change: list[str] | None,
    scenario: list[str] | None,
    jobs: int,
    stream: Path | None,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
    plot: opt.Plot = None,
    **given: Any,
) -> None:
    """Plan again with options changed, searching anew; an infeasible point is a row with its reason, savings are against the base.

    Example: fleetopt what-if plan.yaml --set rate=500,1000,2000 --set gpu=h100,h200 --resume points.jsonl --format csv
    """
    from planner.question.files import load_question
    from planner.shared.cores import cores
    from planner.studies.what_if import parse_settings

    write = writer(output_format, output)
    settings: dict[str, Any] = {**parse_settings(change or [])}
    if not settings and not scenario:
        raise InputError("nothing to change", "Give --set OPTION=VALUE[,VALUE...] or --scenario NAME.")
    names = list(load_question(base).scenarios) if scenario == ["all"] else scenario
    if jobs < 0:
        raise InputError(f"--jobs: must be 0 (one for each core) or more, got {jobs}")
    if stream is not None:
        refuse_named_twice(stream)
    with progress_bar("planning") as progress:
        result = fo.what_if(
            base,
            scenarios=names,
            progress=progress,
            jobs=jobs or cores(),
            stream=stream,
            plans=(output_format or format_of(output)) not in OF_ROWS,
            **given,
            **settings,
        )
    write(result)
    draw(result, plot)


MONEY: opt.Table = {
    "Time": {
        "hours": "File with 24 or 168 rates, or a shipped service. Default: the workload's own, else flat.",
        "rate_is": "The plan's rate is the busiest hour's (peak) or the mean of the hours. Default: as it was planned.",
        "startup": ("4min", "From starting a replica until it serves."),
        "dwell": ("1h", "Least time a pool keeps its number of replicas."),
    },
    "Paying": {
        "reserved": (list[str], "Offer of reserved GPUs, GPU=USD@TERM: h100=1.79@1y. Repeat. Default: the price lists."),
        "spot_share": ("0", "Largest share of every hour's GPUs on spot capacity: 30%."),
        "preemptions_per_hour --preemptions": (0.05, "Times an hour that a spot replica is taken away."),
        "shortfall": ("1%", "Chance allowed that fewer spot replicas are up than needed; spares are bought for it."),
        "rent_peak": (False, "How many GPUs to own where others, or each API, take the rest."),
    },
    "An API beside it": {
        "api_prices": (Path, "Prices of model APIs, a file in genai-prices' format (YAML or JSON)."),
        "api_models --api-model": (list[str], "Which of them, MODEL or PROVIDER/MODEL; repeat. Default: named as the plan's."),
    },
    "Energy": {
        "pue": (1.0, "Power at the meter over that of the GPUs: servers, cooling."),
        "kwh_price": (float, "Price of electricity, USD/kWh."),
        "co2": (float, "Carbon intensity of electricity, g/kWh."),
    },
}  # fmt: skip


@opt.verb(table=MONEY, plot=True)
def cost(plan: opt.Base, **given: Any) -> Any:
    """What a plan costs as finance sees it: reserved, on-demand and spot over its hours, tokens in and out, an API, energy.

    Example: fleetopt cost plan.yaml --hours servegen-m-small --reserved h100=1.79@1y --spot-share 30% --co2 350
    """
    with progress_bar("pricing"):
        return fo.cost(plan, **given)


@opt.verb()
def diff(
    old: Annotated[Path, typer.Argument(help="Plan file.")],
    new: Annotated[Path, typer.Argument(help="Another, of another question or version.")],
) -> Any:
    """What changed between two plans, and which input changed it: each difference applied alone.

    Example: fleetopt diff old.yaml new.yaml
    """
    from planner.studies.difference import difference_of

    with progress_bar("planning"):
        return difference_of(old, new)


PAGES, WORDS = (".html", ".htm"), (".md", ".markdown")
"""What a report can be, by the file's name."""


def report(
    plan: opt.Base,
    no_choices: Annotated[bool, opt.told("Without what other choices would cost.", "--no-options")] = False,
    output: opt.OutputFile = None,
) -> None:
    """One self-contained page (HTML, or Markdown by the file's name) about a plan: answer, choices, pictures, assumptions.

    Example: fleetopt report plan.yaml -o report.html
    """
    from planner.report.page import as_html, as_markdown

    kind = "" if output is None else output.suffix.lower()
    if kind and kind not in (*PAGES, *WORDS):
        raise InputError(f"{output}: a report is a page (.html) or Markdown (.md)", "A browser prints the page as PDF.")
    with progress_bar("looking at other choices") as progress:
        found = fo.overview(plan, choices=not no_choices, progress=progress)
    emit(as_markdown(found) if kind in WORDS else as_html(found), output)
