"""Plans that there are, looked at again: ``fleetopt evaluate``, ``what-if``, ``capacity``, ``cost`` and others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import planner as fo
from planner.cli import options as opt
from planner.cli.output import draw, emit, format_of, progress_bar, refuse_named_twice, say, writer
from planner.errors import InfeasibleError, InputError, refuse_unknown
from planner.shared.writing import refuse_unwritable
from planner.units import parse_number


@opt.verb(opt.Verb("evaluate", flags={"workload": "--cdf --workload -w"}, without=("arrival_rate_per_s",)), plot=True)
def evaluate(plan: opt.PlanFile, rate: str | None, workload: str | None, change: list[str] | None) -> Iterator[Any]:
    """Latencies of a fixed fleet at other rates or with other options, and which promises still hold.

    Parameters
    ----------
    rate
        Rates to try, requests/s: 500 or 500,1000,2000. Default: that of --cdf, else the plan's.
    change, --set
        Any option of plan, changed: cached_share=0.6.
    """
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


@opt.verb(
    opt.Verb("what_if", flags={"zipped": "--zip"}, defaults={"jobs": 0}, without=("scenarios", "plans")), plot=True
)
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

    Parameters
    ----------
    change, --set
        Option and values: rate=500,1000. A value that is a list: gpu=h100,h100+l40s.
    scenario
        Scenario of the file; `all` takes every one.
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


@opt.verb(
    opt.Verb(
        "cost",
        "pricing",
        panels={
            "hours": "Time",
            "reserved": "Paying",
            "api_prices": "An API beside it",
            "rent_peak": "Paying",
            "pue": "Energy",
        },
        flags={"preemptions_per_hour": "--preemptions", "api_models": "--api-model"},
        defaults={"dwell": "1h"},
    ),
    argument=opt.BASE,
    plot=True,
)
def cost(found: Any, rate_is: str | None) -> None:
    """What a plan costs as finance sees it: reserved, on-demand and spot over its hours, tokens in and out, an API, energy.

    Example: fleetopt cost plan.yaml --hours servegen-m-small --reserved h100=1.79@1y --spot-share 30% --co2 350

    Time
    ----
    rate_is
        The plan's rate is the busiest hour's (peak) or the mean of the hours. Default: as it was planned.
    """


@opt.verb()
def diff(old: Path, new: Path) -> Any:
    """What changed between two plans, and which input changed it: each difference applied alone.

    Example: fleetopt diff old.yaml new.yaml

    Arguments
    ---------
    old
        Plan file.
    new
        Another, of another question or version.
    """
    from planner.ask.difference import difference_of

    with progress_bar("planning"):
        return difference_of(old, new)


PAGES, WORDS = (".html", ".htm"), (".md", ".markdown")
"""What a report can be, by the file's name."""


@opt.asks()
def report(plan: opt.Base, no_choices: bool = False, output: opt.OutputFile = None) -> None:
    """One self-contained page (HTML, or Markdown by the file's name) about a plan: answer, choices, pictures, assumptions.

    Example: fleetopt report plan.yaml -o report.html

    Parameters
    ----------
    no_choices, --no-options
        Without what other choices would cost.
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


@opt.verb(opt.Verb("capacity", "searching"), about="Plan file, whose fleet stands. Default: the GPUs of --have.")
def capacity(found: Any) -> None:
    """The largest rate with all promises, the fleet that carries it and what binds: the inverse of plan, with its options.

    Example: fleetopt capacity --have h100=24 --have a100=40 --cdf azure --slo 0.5

    fleetopt capacity plan.yaml
    """


@opt.verb(
    opt.Verb("batch", "searching", panels={"jobs": "Jobs"}, flags={"start": "--from"}),
    about="Plan file, whose fleet stands. Default: plan first.",
)
def batch(found: Any) -> None:
    """How many batch jobs a fleet takes beside its requests, hour by hour, and the GPUs that the rest needs; options of plan.

    Jobs run where nobody waits (vLLM --scheduling-policy priority), as many as leave every promise kept. Exit code 4: not all fit.

    Example: fleetopt batch plan.yaml --jobs jobs.csv --from 22:00 --by 06:00 --hours servegen-m-large

    fleetopt batch --slo 0.5 --tokens 60M
    """
    if not found.fits:
        raise InfeasibleError("not all jobs are done by then")


OF_MONTHS, OF_HOURS = ("lead_time", "months", "start"), ("startup", "dwell")
"""What only the months ahead take, and what only the hours do."""

HOURLY = opt.Verb("schedule", panels={"hours": "Time"}, defaults={"dwell": "1h"}, without=("buffer",))
MONTHLY = opt.Verb(
    "growth", panels={"monthly_growth": "Growing traffic"}, flags={"start": "--from"}, defaults={"monthly_growth": None}
)


@opt.asks(
    HOURLY, MONTHLY, names=None, about="Plan file, whose pools are scaled, or configuration file. Default: plan first."
)
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

    Time
    ----
    policy
        HorizontalPodAutoscaler or ScaledObject to judge on these hours, beside a derived rule; needs a plan file.
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


@opt.verb(about=PLAN)
def options(plan: Path | None, sort: str | None, why: str | None, **given: Any) -> Any:
    """What every other choice would cost beside a plan: routing, precision, GPU, engine, traffic, promises.

    A saved plan carries its rows.

    Every option of `fleetopt plan` holds here too.

    Example: fleetopt options plan.yaml --sort cost

    Parameters
    ----------
    sort
        Order of the rows: cost, kind or name. Default: as sized.
    why
        Rows by a part of their name or flags.
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
