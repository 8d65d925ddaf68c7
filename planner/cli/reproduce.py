"""``fleetopt reproduce``: the papers' printed numbers beside ours."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli import options as opt


def reproduce(
    paper: Annotated[str, typer.Argument(help="fleetopt, rad-slai, exclusive-batching, wait or all.")] = "all",
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
) -> None:
    """The numbers the papers print beside ours, and why they differ."""
    from planner import api
    from planner.cli.output import progress_bar, say, writer

    write = writer(output_format, output)
    with progress_bar("reproducing") as progress:
        result = api.reproduce(paper, progress=progress)
    write(result)
    counts = ", ".join(f"{n} {verdict}" for verdict, n in result.counts().items())
    say([f"{len(result.best())} printed numbers: {counts}"])
