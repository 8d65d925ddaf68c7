"""``fleetopt schedule``: replicas by hour of a day or a week."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli import options as opt
from planner.cli.plan import Config, Scenario

TIME = "Time"
GROWTH = "Growing traffic"


@opt.asks(hidden=True)
def schedule(
    base: Annotated[
        Path | None,
        typer.Argument(
            metavar="PLAN", help="Plan file, whose pools are scaled, or configuration file. Default: plan first."
        ),
    ] = None,
    hours: Annotated[
        str | None,
        opt.told(
            "File with 24 or 168 rates, or a shipped service (servegen-m-small, ...). Default: the workload's own hours.",
            panel=TIME,
        ),
    ] = None,
    startup: Annotated[
        str, opt.told("From starting a replica until it serves; it starts that much ahead.", panel=TIME)
    ] = "4min",
    dwell: Annotated[
        str, opt.told("Least time a pool keeps its number of replicas, in whole hours.", panel=TIME)
    ] = "1h",
    policy: Annotated[
        list[Path] | None,
        opt.told(
            "HorizontalPodAutoscaler or ScaledObject to judge on these hours, beside a derived rule; needs a plan file. Repeat.",
            panel=TIME,
        ),
    ] = None,
    monthly_growth: Annotated[
        str | None,
        opt.told("Instead of hours: what to order by when, the traffic growing that much a month: 8%.", panel=GROWTH),
    ] = None,
    lead_time: Annotated[str, opt.told("From ordering a GPU until it serves.", panel=GROWTH)] = "90d",
    months: Annotated[int, opt.told("Months ahead.", panel=GROWTH)] = 12,
    start: Annotated[
        str | None, opt.told("Day the months begin, 2027-01-31. Default: today.", "--from", panel=GROWTH)
    ] = None,
    config: Config = None,
    scenario: Scenario = None,
    change: opt.Set = None,
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
    from planner import api
    from planner.cli.output import draw, progress_bar, say, writer
    from planner.errors import InputError

    given = opt.settings(given, change)
    write = writer(output_format, output, of="" if monthly_growth is not None else "schedule")
    if base is not None and config is not None:
        raise InputError("a plan file and --config", "Give one of them.")
    if monthly_growth is not None:
        ahead: dict[str, Any] = {"hours": hours, "scenario": scenario, **given}
        ahead |= {"lead_time": lead_time, "months": months, "start": start, "workload": ahead.pop("cdf")}
        with progress_bar("sizing") as progress:
            write(api.growth(base or config, monthly_growth, progress=progress, **ahead))
        return
    if policy and base is None:
        raise InputError("--policy: judges the scaler of a standing fleet", "Give a plan file.")
    time: dict[str, Any] = {"hours": hours, "startup": startup, "dwell": dwell}
    with progress_bar("sizing") as progress:
        result = api.schedule(
            base or config, scenario=scenario, workload=given.pop("cdf"), progress=progress, **time, **given
        )
    judged = None
    if policy and base is not None:
        over = result.elasticity.rate_is
        judged = api.autoscale(base, hours=hours, rate_is=over, startup=startup, policy=policy)
    write(result)
    draw(result, plot)
    say(f"note: {line}" for line in result.notes)
    if judged is not None:
        say(line for pool in judged.pools for line in pool.lines())
