"""``fleetopt wait``: thresholds, memory and segments of WAIT and Nested WAIT."""

from __future__ import annotations

from typing import Annotated, Any

from planner.cli import options as opt
from planner.question.options import HARDWARE

_WAIT = "WAIT"


@opt.asks(opt.REPLICA)
def wait(
    replicas: Annotated[
        int | None, opt.told("Replicas that share the rate. Default: enough for 0.85 of capacity.", panel=HARDWARE)
    ] = None,
    types: Annotated[
        int | None, opt.told("Output classes of WAIT. Default: up to four, as memory allows.", panel=_WAIT)
    ] = None,
    segments: Annotated[
        int | None, opt.told("Segments of Nested WAIT. Default: those with the least memory.", panel=_WAIT)
    ] = None,
    horizon: Annotated[str, opt.told("Time the memory promise covers, e.g. 1h.", panel=_WAIT)] = "1h",
    delta: Annotated[str, opt.told("Probability that memory is exceeded in that time, e.g. 1%.", panel=_WAIT)] = "1%",
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
    **given: Any,
) -> None:
    """Thresholds of WAIT and Nested WAIT: how many requests to wait for, the memory they need, what they promise.

    Exit 6 when there are none.

    Example: fleetopt wait --cdf azure --rate 50 --gpu h100
    """
    from planner import api
    from planner.cli.output import tell, writer
    from planner.errors import CheckFailedError

    write = writer(output_format, output)
    fluid: dict[str, Any] = {
        "replicas": replicas,
        "types": types,
        "segments": segments,
        "horizon": horizon,
        "delta": delta,
    }
    result = api.wait(given.pop("cdf"), **fluid, **given)
    write(result)
    tell(result)
    if result.verdict != "stable":
        raise CheckFailedError(f"{result.verdict}: {result.reason}")
