"""``fleetopt schedule``: replicas by hour of a day or a week."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import planner as fo
from planner.cli import options as opt
from planner.cli.output import draw, progress_bar, say, writer
from planner.errors import InputError

OF_MONTHS, OF_HOURS = ("lead_time", "months", "start"), ("startup", "dwell")
"""What only the months ahead take, and what only the hours do."""

OWN: opt.Table = {
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


@opt.asks(table=OWN, about="Plan file, whose pools are scaled, or configuration file. Default: plan first.")
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
