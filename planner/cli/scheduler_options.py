"""What the scheduler commands (`stability`, `batching`, `wait`) share: engine options and how a result leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import options as opt

if TYPE_CHECKING:
    from planner.advice.replica import SchedulerReplica

__all__ = ["Format", "MaxNumSeqs", "TokenBudget", "answer", "resolve"]

TokenBudget = Annotated[
    int | None,
    typer.Option("--token-budget", help="Tokens per iteration (max_num_batched_tokens).", rich_help_panel=opt.HARDWARE),
]
MaxNumSeqs = Annotated[
    int | None,
    typer.Option(
        "--max-num-seqs",
        help="Sequences of a replica. Default: the memory-safe number.",
        rich_help_panel=opt.HARDWARE,
    ),
]
Format = Annotated[
    str, typer.Option("--format", "-f", help="table, json, yaml, csv or markdown.", rich_help_panel=opt.OUTPUT)
]


def resolve(cdf: str | None, **options: Any) -> SchedulerReplica:
    """The replica and traffic a command is about."""
    from planner.advice.replica import scheduler_replica
    from planner.workload.workload import Workload

    return scheduler_replica(Workload.from_file(cdf or "azure"), options)


def answer(compute: Callable[[], Any], as_text: Callable[..., str], output_format: str, output: Path | None) -> None:
    """Check the format, compute, print data to stdout (or the file) and everything else to stderr."""
    from planner.cli.output import emit, say
    from planner.report import formatter

    render = formatter(output_format)
    result = compute()
    if output_format in ("table", "markdown"):
        text = as_text(result, output_format == "markdown")
    else:
        text = render(result)
    emit(text, output)
    say(f"assumed: {line}" for line in result.assumptions)
    say(f"warning: {line}" for line in result.warnings)
