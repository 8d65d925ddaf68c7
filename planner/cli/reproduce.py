"""``fleetopt reproduce``: the papers' printed numbers beside ours."""

from __future__ import annotations

from typing import Annotated

import typer

import planner as fo
from planner.cli import options as opt
from planner.cli.output import emit, page_width, progress_bar, say, writer


def reproduce(
    paper: Annotated[str, typer.Argument(help="fleetopt, rad-slai, exclusive-batching, wait or all.")] = "all",
    every: Annotated[bool, opt.told("Every number, printed beside ours.", "--all")] = False,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
) -> None:
    """Whether the numbers that papers print come out: the verdict by paper, and with --all each beside ours and why it differs."""
    from planner.report.blocks import to_terminal
    from planner.report.text.measured import agreement

    write = writer(output_format, output)
    brief = not every and output is None and output_format in (None, "table")
    with progress_bar("reproducing") as progress:
        result = fo.reproduce(paper, progress=progress)
    if brief:
        emit(to_terminal([agreement(result)], page_width()), None)
    else:
        write(result)
    counts = ", ".join(f"{n} {verdict}" for verdict, n in result.counts().items())
    say([f"{len(result.best())} printed numbers: {counts}" + ("; each: --all" if brief else "")])
