"""``fleetopt wait``: thresholds, memory and segments of WAIT and Nested WAIT."""

from __future__ import annotations

from typing import Any

from planner.cli import options as opt
from planner.question.options import HARDWARE

OWN: opt.Table = {
    HARDWARE: {"replicas": (int, "Replicas that share the rate. Default: enough for 0.85 of capacity.")},
    "WAIT": {
        "types": (int, "Output classes of WAIT. Default: up to four, as memory allows."),
        "segments": (int, "Segments of Nested WAIT. Default: those with the least memory."),
        "horizon": ("1h", "Time the memory promise covers, e.g. 1h."),
        "delta": ("1%", "Probability that memory is exceeded in that time, e.g. 1%."),
    },
}


@opt.asks(opt.REPLICA, table=OWN)
def wait(output_format: opt.Format = None, output: opt.OutputFile = None, **given: Any) -> None:
    """Thresholds of WAIT and Nested WAIT: how many requests to wait for, the memory they need, what they promise.

    Exit 6 when there are none.

    Example: fleetopt wait --cdf azure --rate 50 --gpu h100
    """
    from planner import api
    from planner.cli.output import tell, writer
    from planner.errors import CheckFailedError

    write = writer(output_format, output)
    result = api.wait(given.pop("cdf"), **given)
    write(result)
    tell(result)
    if result.verdict != "stable":
        raise CheckFailedError(f"{result.verdict}: {result.reason}")
