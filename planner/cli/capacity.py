"""``fleetopt capacity``: the largest rate with all promises, of a plan's fleet or of the GPUs there are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli import options as opt
from planner.cli.plan import Config, Scenario


@opt.asks(hidden=True)
def capacity(
    plan: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="Plan file, whose fleet stands. Default: the GPUs of --have.")
    ] = None,
    have: Annotated[
        list[str] | None, opt.told("GPUs there are: h100=24. Repeat; traffic is cut by length and by share.", "--have")
    ] = None,
    config: Config = None,
    scenario: Scenario = None,
    change: opt.Set = None,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
    **given: Any,
) -> None:
    """The largest rate with all promises, the fleet that carries it and what binds: the inverse of plan, with its options.

    Example: fleetopt capacity --have h100=24 --have a100=40 --cdf azure --slo 0.5

    fleetopt capacity plan.yaml
    """
    from planner import api
    from planner.cli.output import progress_bar, writer
    from planner.errors import InputError

    given = opt.settings(given, change)
    write = writer(output_format, output)
    if plan is not None and config is not None:
        raise InputError("a plan file and --config", "Give one of them.")
    workload = given.pop("cdf")
    with progress_bar("searching"):
        found = api.capacity(plan or config, have=have or None, workload=workload, scenario=scenario, **given)
    write(found)
