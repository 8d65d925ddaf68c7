"""``fleetopt batch``: batch jobs in the slack of a fleet, by a deadline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli import options as opt
from planner.cli.plan import Config, Scenario

OWN: opt.Table = {
    "Jobs": {
        "jobs": "Their lengths: a file as --cdf takes it, or a shipped workload. Default: the requests' own.",
        "tokens": "How much: prompt and output tokens of all jobs, 60M. Default: the file's jobs.",
        "by": ("06:00", "When the last must be done: 06:00, or 2027-01-31T06:00."),
        "start --from": "When the first may be sent. Default: a day before; with a day, now.",
        "priority": (1, "Which jobs are sent with; requests have 0, the lowest comes first."),
        "hours": "Traffic by the hour, as of `schedule`. Default: the workload's own hours, else the same rate in all.",
    }
}


@opt.asks(hidden=True, table=OWN)
def batch(
    plan: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="Plan file, whose fleet stands. Default: plan first.")
    ] = None,
    config: Config = None,
    scenario: Scenario = None,
    change: opt.Set = None,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
    **given: Any,
) -> None:
    """How many batch jobs a fleet takes beside its requests, hour by hour, and the GPUs that the rest needs; options of plan.

    Jobs run where nobody waits (vLLM --scheduling-policy priority), as many as leave every promise kept. Exit code 4: not all fit.

    Example: fleetopt batch plan.yaml --jobs jobs.csv --from 22:00 --by 06:00 --hours servegen-m-large

    fleetopt batch --slo 0.5 --tokens 60M
    """
    from planner import api
    from planner.cli.output import progress_bar, writer
    from planner.errors import InfeasibleError, InputError

    given = opt.settings(given, change)
    write = writer(output_format, output)
    if plan is not None and config is not None:
        raise InputError("a plan file and --config", "Give one of them.")
    with progress_bar("searching"):
        found = api.batch(plan or config, scenario=scenario, workload=given.pop("cdf"), **given)
    write(found)
    if not found.fits:
        raise InfeasibleError("not all jobs are done by then")
