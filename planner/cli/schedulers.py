"""``fleetopt stability``, ``batching``, ``wait``: theory of one kind of replica; ``reproduce``: papers' numbers beside ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import planner as fo
from planner.cli import options as opt
from planner.cli.output import page_width, progress_bar, say, tell
from planner.errors import CheckFailedError


@opt.verb(
    opt.Verb("stability", panels={"replicas": "Hardware and model", "burst": "Workload"}), names=opt.REPLICA, plot=True
)
def stability(found: Any) -> None:
    """What one replica and a fleet sustain for this workload: which bound says so, slack, time to overload.

    Exit 6 when it is not stable.

    Example: fleetopt stability --cdf azure --rate 100 --gpu h100 --replicas 4
    """
    tell(found)
    if found.verdict != "stable":
        raise CheckFailedError(f"{found.verdict}: {found.certificate}")


@opt.verb(opt.Verb("batching"), names=opt.REPLICA, plot=True)
def batching(found: Any) -> None:
    """Exclusive or mixed batching? The refill threshold, sequences and throughput of each, and how certain that is.

    Example: fleetopt batching --cdf azure --gpu h100 --model llama-3.1-8b
    """
    tell(found)


@opt.verb(
    opt.Verb("wait", panels={"replicas": "Hardware and model", "types": "WAIT"}, defaults={"delta": "1%"}),
    names=opt.REPLICA,
)
def wait(found: Any) -> None:
    """Thresholds of WAIT and Nested WAIT: how many requests to wait for, the memory they need, what they promise.

    Exit 6 when there are none.

    Example: fleetopt wait --cdf azure --rate 50 --gpu h100
    """
    tell(found)
    if found.verdict != "stable":
        raise CheckFailedError(f"{found.verdict}: {found.reason}")


@opt.verb()
def reproduce(
    paper: str = "all", *, every: bool = False, output_format: str | None, output: Path | None
) -> Iterator[Any]:
    """Whether the numbers that papers print come out: the verdict by paper, and with --all each beside ours and why it differs.

    Arguments
    ---------
    paper
        fleetopt, rad-slai, exclusive-batching, wait or all.

    Parameters
    ----------
    every, --all
        Every number, printed beside ours.
    """
    from planner.report.blocks import to_terminal
    from planner.report.text.measured import agreement

    brief = not every and output is None and output_format in (None, "table")
    with progress_bar("reproducing") as progress:
        result = fo.reproduce(paper, progress=progress)
    yield to_terminal([agreement(result)], page_width()) if brief else result
    counts = ", ".join(f"{n} {verdict}" for verdict, n in result.counts().items())
    say([f"{len(result.best())} printed numbers: {counts}" + ("; each: --all" if brief else "")])
