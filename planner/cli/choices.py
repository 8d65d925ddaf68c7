"""``fleetopt options``: what every other choice would cost, all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli import options as opt
from planner.cli.explain import planned, saved_plan
from planner.cli.plan import Config, Scenario

ORDERS = ("cost", "kind", "name")


@opt.asks(hidden=True)
def options(
    plan: Annotated[
        Path | None,
        typer.Argument(metavar="PLAN", help="Plan file. Default: plan first, with the options of `fleetopt plan`."),
    ] = None,
    sort: Annotated[str | None, opt.told("Order of the rows: cost, kind or name. Default: as sized.", "--sort")] = None,
    why: Annotated[
        str | None,
        opt.told("Rows by a part of their name or flags.", "--why"),
    ] = None,
    config: Config = None,
    scenario: Scenario = None,
    change: opt.Set = None,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
    **given: Any,
) -> None:
    """What every other choice would cost beside a plan: routing, precision, GPU, engine, traffic, promises.

    A saved plan carries its rows.

    Every option of `fleetopt plan` holds here too.

    Example: fleetopt options plan.yaml --sort cost
    """
    from planner.choices import Choices
    from planner.cli.output import writer
    from planner.errors import InputError, did_you_mean

    write = writer(output_format, output)
    if sort is not None and sort not in ORDERS:
        raise InputError(f"--sort: {sort!r} is none of {', '.join(ORDERS)}{did_you_mean(sort, ORDERS)}")
    if plan is not None:
        found = Choices.of_file(saved_plan(plan), str(plan))
    else:
        found = planned(config, scenario, opt.settings(given, change), True).choices
    write(found.ordered(sort) if why is None else found.only(why))
