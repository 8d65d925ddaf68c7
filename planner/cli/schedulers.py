"""``fleetopt stability``, ``batching``, ``wait``: theory of one kind of replica; ``reproduce``: papers' numbers beside ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import planner as fo
from planner.cli import options as opt
from planner.cli.output import page_width, progress_bar, say, tell
from planner.errors import CheckFailedError

STABILITY: opt.Table = {
    "Hardware and model": {"replicas": (int, "Replicas of the fleet. Default: enough for a load of 0.85.")},
    "Workload": {"burst": (2.0, "Burst asked about, as a factor on the rate.")},
}


@opt.verb(opt.REPLICA, table=STABILITY, plot=True)
def stability(**given: Any) -> Iterator[Any]:
    """What one replica and a fleet sustain for this workload: which bound says so, slack, time to overload.

    Exit 6 when it is not stable.

    Example: fleetopt stability --cdf azure --rate 100 --gpu h100 --replicas 4
    """
    yield (found := fo.stability(given.pop("cdf"), **given))
    tell(found)
    if found.verdict != "stable":
        raise CheckFailedError(f"{found.verdict}: {found.certificate}")


@opt.verb(opt.REPLICA, plot=True)
def batching(**given: Any) -> Iterator[Any]:
    """Exclusive or mixed batching? The refill threshold, sequences and throughput of each, and how certain that is.

    Example: fleetopt batching --cdf azure --gpu h100 --model llama-3.1-8b
    """
    yield (found := fo.batching(given.pop("cdf"), **given))
    tell(found)


WAIT: opt.Table = {
    "Hardware and model": {
        "replicas": (int, "Replicas that share the rate. Default: enough for 0.85 of capacity."),
    },
    "WAIT": {
        "types": (int, "Output classes of WAIT. Default: up to four, as memory allows."),
        "segments": (int, "Segments of Nested WAIT. Default: those with the least memory."),
        "horizon": ("1h", "Time the memory promise covers, e.g. 1h."),
        "delta": ("1%", "Probability that memory is exceeded in that time, e.g. 1%."),
    },
}


@opt.verb(opt.REPLICA, table=WAIT)
def wait(**given: Any) -> Iterator[Any]:
    """Thresholds of WAIT and Nested WAIT: how many requests to wait for, the memory they need, what they promise.

    Exit 6 when there are none.

    Example: fleetopt wait --cdf azure --rate 50 --gpu h100
    """
    yield (found := fo.wait(given.pop("cdf"), **given))
    tell(found)
    if found.verdict != "stable":
        raise CheckFailedError(f"{found.verdict}: {found.reason}")


@opt.verb(table={"": {"every --all": (False, "Every number, printed beside ours.")}})
def reproduce(
    paper: Annotated[str, typer.Argument(help="fleetopt, rad-slai, exclusive-batching, wait or all.")] = "all",
    *,
    every: bool,
    output_format: str | None,
    output: Path | None,
) -> Iterator[Any]:
    """Whether the numbers that papers print come out: the verdict by paper, and with --all each beside ours and why it differs."""
    from planner.report.blocks import to_terminal
    from planner.report.text.measured import agreement

    brief = not every and output is None and output_format in (None, "table")
    with progress_bar("reproducing") as progress:
        result = fo.reproduce(paper, progress=progress)
    yield to_terminal([agreement(result)], page_width()) if brief else result
    counts = ", ".join(f"{n} {verdict}" for verdict, n in result.counts().items())
    say([f"{len(result.best())} printed numbers: {counts}" + ("; each: --all" if brief else "")])
