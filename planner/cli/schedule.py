"""``fleetopt schedule``: replicas by hour of a day or a week."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from planner.cli import options as opt
from planner.cli.plan import plan, question
from planner.question.inputs import PlanInputs

__all__ = ["schedule"]

TIME = "Time"

QUESTION = {f.name for f in fields(PlanInputs)} | {"config", "scenario", "slo", "tpot", "e2e", "quantile", "scope"}
"""Options of plan that say what is asked, not what becomes of the answer."""


def schedule(
    base: Annotated[
        Path | None,
        typer.Argument(
            metavar="PLAN", help="Plan file, whose pools are scaled, or configuration file. Default: plan first."
        ),
    ] = None,
    hours: Annotated[
        str | None,
        typer.Option(
            help="File with 24 or 168 rates, or a shipped service (servegen-m-small, ...). Default: the workload's own hours.",
            rich_help_panel=TIME,
        ),
    ] = None,
    startup: Annotated[
        str,
        typer.Option(help="From starting a replica until it serves; it starts that much ahead.", rich_help_panel=TIME),
    ] = "4min",
    dwell: Annotated[
        str,
        typer.Option(help="Least time a pool keeps its number of replicas, in whole hours.", rich_help_panel=TIME),
    ] = "1h",
    buffer: Annotated[str, typer.Option(help="Added to the traffic of every hour: 10%.", rich_help_panel=TIME)] = "0",
    rate_is: Annotated[
        str,
        typer.Option(help="mean: the rate is the mean over the hours; peak: the busiest hour's.", rich_help_panel=TIME),
    ] = "mean",
    output_format: Annotated[
        str,
        typer.Option(
            "--format", "-f", help="table, csv, json, yaml, markdown, cron, keda.", rich_help_panel=opt.OUTPUT
        ),
    ] = "table",
    output: opt.OutputFile = None,
    **given: Any,
) -> None:
    """Replicas per hour and pool from an hourly or weekly profile: peak, mean, GPU-hours, static against scaled cost.

    Example: fleetopt schedule plan.yaml --hours servegen-m-small --startup 4min --dwell 2h
    """
    from planner import api
    from planner.cli.output import emit, progress_bar, say
    from planner.errors import InputError
    from planner.report import formatter

    render = formatter(output_format, ("table", "markdown", "cron", "keda"))
    if base is not None and given.get("config") is not None:
        raise InputError("a plan file and --config", "Give one of them.")
    base = base or given.pop("config", None)
    given.pop("config", None)
    if base is not None:
        # only tells `question` that promises may come from the file
        given["config"] = base
    data = question(given)
    data.pop("config", None)
    with progress_bar("sizing") as progress:
        result = api.schedule(
            base, hours=hours, startup=startup, dwell=dwell, buffer=buffer, rate_is=rate_is, progress=progress, **data
        )
    emit(render(result), output)
    say(f"note: {line}" for line in result.notes)


def _with_options_of(command: Any, source: Any) -> None:
    """Gives `command`, in place of its ``**given``, the options of `source` it does not have itself."""
    hints = {**get_type_hints(source, include_extras=True), **get_type_hints(command, include_extras=True)}
    own = [p for p in inspect.signature(command).parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    names = {p.name for p in own}
    taken = [p for p in inspect.signature(source).parameters.values() if p.name in QUESTION and p.name not in names]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name]) for p in (*own, *taken)]
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {p.name: hints[p.name] for p in parameters} | {"return": None}


_with_options_of(schedule, plan)
