"""``fleetopt stability``: what a replica and a fleet can sustain, with a certificate."""

from __future__ import annotations

from typing import Any

from planner.cli import options as opt
from planner.question.options import HARDWARE, WORKLOAD

OWN: opt.Table = {
    HARDWARE: {"replicas": (int, "Replicas of the fleet. Default: enough for a load of 0.85.")},
    WORKLOAD: {"burst": (2.0, "Burst asked about, as a factor on the rate.")},
}


@opt.asks(opt.REPLICA, table=OWN)
def stability(
    output_format: opt.Format = None, output: opt.OutputFile = None, plot: opt.Plot = None, **given: Any
) -> None:
    """What one replica and a fleet sustain for this workload: which bound says so, slack, time to overload.

    Exit 6 when it is not stable.

    Example: fleetopt stability --cdf azure --rate 100 --gpu h100 --replicas 4
    """
    from planner import api
    from planner.cli.output import draw, tell, writer
    from planner.errors import CheckFailedError

    write = writer(output_format, output)
    result = api.stability(given.pop("cdf"), **given)
    write(result)
    draw(result, plot)
    tell(result)
    if result.verdict != "stable":
        raise CheckFailedError(f"{result.verdict}: {result.certificate}")
