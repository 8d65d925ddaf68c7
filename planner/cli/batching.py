"""``fleetopt batching``: exclusive or mixed batching, with the settings of each."""

from __future__ import annotations

from typing import Any

from planner.cli import options as opt


@opt.asks(opt.REPLICA)
def batching(
    output_format: opt.Format = None, output: opt.OutputFile = None, plot: opt.Plot = None, **given: Any
) -> None:
    """Exclusive or mixed batching? The refill threshold, sequences and throughput of each, and how certain that is.

    Example: fleetopt batching --cdf azure --gpu h100 --model llama-3.1-8b
    """
    from planner import api
    from planner.cli.output import draw, tell, writer

    write = writer(output_format, output)
    result = api.batching(given.pop("cdf"), **given)
    write(result)
    draw(result, plot)
    tell(result)
