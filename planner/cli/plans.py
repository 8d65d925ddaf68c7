"""Plans that there are, looked at again: ``fleetopt evaluate``, ``what-if``, ``capacity``, ``cost`` and others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import planner as fo
from planner.cli import options as opt
from planner.cli.output import draw, emit, format_of, progress_bar, refuse_named_twice, say, writer
from planner.errors import InfeasibleError, InputError, refuse_unknown
from planner.shared.writing import refuse_unwritable
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
    from planner.ask.what_if import parse_settings

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


@opt.verb(table=POINTS, plot=True)
def what_if(
    base: opt.Base,
    change: list[str] | None,
    scenario: list[str] | None,
    jobs: int,
    stream: Path | None,
    output_format: str | None,
    output: Path | None,
    **given: Any,
) -> Any:
    """Plan again with options changed, searching anew; an infeasible point is a row with its reason, savings are against the base.

    Example: fleetopt what-if plan.yaml --set rate=500,1000,2000 --set gpu=h100,h200 --resume points.jsonl --format csv
    """
    from planner.ask.what_if import parse_settings
    from planner.question.files import load_question
    from planner.shared.cores import cores

    settings: dict[str, Any] = {**parse_settings(change or [])}
    if not settings and not scenario:
        raise InputError("nothing to change", "Give --set OPTION=VALUE[,VALUE...] or --scenario NAME.")
    names = list(load_question(base).scenarios) if scenario == ["all"] else scenario
    if jobs < 0:
        raise InputError(f"--jobs: must be 0 (one for each core) or more, got {jobs}")
    if stream is not None:
        refuse_named_twice(stream)
    with progress_bar("planning") as progress:
        plans = (output_format or format_of(output)) not in OF_ROWS
        how: dict[str, Any] = {"progress": progress, "jobs": jobs or cores(), "stream": stream, "plans": plans}
        return fo.what_if(base, scenarios=names, **how, **given, **settings)


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
    from planner.ask.difference import difference_of

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
    if output is not None:
        refuse_unwritable(output)
    with progress_bar("looking at other choices") as progress:
        found = fo.overview(plan, choices=not no_choices, progress=progress)
    emit(as_markdown(found) if kind in WORDS else as_html(found), output)


STOCK: opt.Table = {
    "": {"have": (list[str], "GPUs there are: h100=24. Repeat; traffic is cut by length and by share.")}
}


@opt.verb(table=STOCK, about="Plan file, whose fleet stands. Default: the GPUs of --have.")
def capacity(plan: Path | None, config: Path | None, **given: Any) -> Any:
    """The largest rate with all promises, the fleet that carries it and what binds: the inverse of plan, with its options.

    Example: fleetopt capacity --have h100=24 --have a100=40 --cdf azure --slo 0.5

    fleetopt capacity plan.yaml
    """
    with progress_bar("searching"):
        return fo.capacity(plan or config, **given)


JOBS: opt.Table = {
    "Jobs": {
        "jobs": "Their lengths: a file as --cdf takes it, or a shipped workload. Default: the requests' own.",
        "tokens": "How much: prompt and output tokens of all jobs, 60M. Default: the file's jobs.",
        "by": ("06:00", "When the last must be done: 06:00, or 2027-01-31T06:00."),
        "start --from": "When the first may be sent. Default: a day before; with a day, now.",
        "priority": (1, "Which jobs are sent with; requests have 0, the lowest comes first."),
        "hours": "Traffic by the hour, as of `schedule`. Default: the workload's own hours, else the same rate in all.",
    },
}


@opt.verb(table=JOBS, about="Plan file, whose fleet stands. Default: plan first.")
def batch(plan: Path | None, config: Path | None, **given: Any) -> Iterator[Any]:
    """How many batch jobs a fleet takes beside its requests, hour by hour, and the GPUs that the rest needs; options of plan.

    Jobs run where nobody waits (vLLM --scheduling-policy priority), as many as leave every promise kept. Exit code 4: not all fit.

    Example: fleetopt batch plan.yaml --jobs jobs.csv --from 22:00 --by 06:00 --hours servegen-m-large

    fleetopt batch --slo 0.5 --tokens 60M
    """
    with progress_bar("searching"):
        found = fo.batch(plan or config, **given)
    yield found
    if not found.fits:
        raise InfeasibleError("not all jobs are done by then")


OF_MONTHS, OF_HOURS = ("lead_time", "months", "start"), ("startup", "dwell")
"""What only the months ahead take, and what only the hours do."""

HOURS: opt.Table = {
    "Time": {
        "hours": "File with 24 or 168 rates, or a shipped service (servegen-m-small, ...). Default: the workload's own hours.",
        "startup": ("4min", "From starting a replica until it serves; it starts that much ahead."),
        "dwell": ("1h", "Least time a pool keeps its number of replicas, in whole hours."),
        "policy": (
            list[Path], "HorizontalPodAutoscaler or ScaledObject to judge on these hours, beside a derived rule; needs a plan "
            "file. Repeat."
        ),
    },
    "Growing traffic": {
        "monthly_growth": "Instead of hours: what to order by when, the traffic growing that much a month: 8%.",
        "lead_time": ("90d", "From ordering a GPU until it serves."),
        "months": (12, "Months ahead."),
        "start --from": "Day the months begin, 2027-01-31. Default: today.",
    },
}  # fmt: skip


@opt.asks(table=HOURS, about="Plan file, whose pools are scaled, or configuration file. Default: plan first.")
def schedule(
    monthly_growth: str | None,
    policy: list[Path] | None,
    output_format: opt.ScheduleFormat = None,
    output: opt.OutputFile = None,
    plot: opt.Plot = None,
    **given: Any,
) -> None:
    """Replicas per hour and pool from an hourly or weekly profile: peak, mean, GPU-hours, static against scaled cost.

    Every option of `fleetopt plan` holds here too. With --monthly-growth: GPUs to order by when, month by month.

    Example: fleetopt schedule plan.yaml --hours servegen-m-small --startup 4min --dwell 2h

    fleetopt schedule plan.yaml --monthly-growth 8% --lead-time 90d
    """
    asked = opt.of_fleet(given)
    write = writer(output_format, output, of="" if monthly_growth is not None else "schedule")
    plan = asked.pop("plan")
    base = plan or asked.pop("config")
    asked = {
        k: v for k, v in asked.items() if k not in ("config", *(OF_MONTHS if monthly_growth is None else OF_HOURS))
    }
    if monthly_growth is not None:
        with progress_bar("sizing") as progress:
            write(fo.growth(base, monthly_growth, progress=progress, **asked))
        return
    if policy and plan is None:
        raise InputError("--policy: judges the scaler of a standing fleet", "Give a plan file.")
    with progress_bar("sizing") as progress:
        result = fo.schedule(base, progress=progress, **asked)
    pools: Sequence[Any] = ()
    if policy:
        own = {"hours": asked["hours"], "startup": asked["startup"], "rate_is": result.elasticity.rate_is}
        pools = fo.autoscale(plan, policy=policy, **own).pools
    write(result)
    draw(result, plot)
    say(f"note: {line}" for line in result.notes)
    say(line for pool in pools for line in pool.lines())


ORDERS = ("cost", "kind", "name")

PLAN = "Plan file. Default: plan first, with the options of `fleetopt plan`."


@opt.verb(about=PLAN)
def explain(plan: Path | None, **given: Any) -> Any:
    """Why a plan is what it is: pools, what binds, assumptions with their sources, errors, the search, engine settings.

    Every option of `fleetopt plan` holds here too.

    Example: fleetopt explain plan.yaml
    """
    from planner.plans import plan_document
    from planner.report.text.why import Explanation

    if plan is not None:
        return Explanation.of(plan_document(plan))
    found = _planned(given, False)
    return Explanation.of(found.to_dict(), found)


ROWS: opt.Table = {
    "": {
        "sort": "Order of the rows: cost, kind or name. Default: as sized.",
        "why": "Rows by a part of their name or flags.",
    },
}


@opt.verb(table=ROWS, about=PLAN)
def options(plan: Path | None, sort: str | None, why: str | None, **given: Any) -> Any:
    """What every other choice would cost beside a plan: routing, precision, GPU, engine, traffic, promises.

    A saved plan carries its rows.

    Every option of `fleetopt plan` holds here too.

    Example: fleetopt options plan.yaml --sort cost
    """
    from planner.choices import Choices
    from planner.plans import plan_document

    if sort is not None:
        refuse_unknown("--sort:", sort, ORDERS)
    found = _planned(given, True).choices if plan is None else Choices.of_file(plan_document(plan), str(plan))
    return found.ordered(sort) if why is None else found.only(why)


def _planned(given: dict[str, Any], choices: bool) -> Any:
    """The plan of the options given."""
    with progress_bar("planning") as progress:
        return fo.plan(choices=choices, progress=progress, **given)
