"""``fleetopt diff``: how two plans differ, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as opt


def diff(
    old: Annotated[Path, typer.Argument(help="Plan file.")],
    new: Annotated[Path, typer.Argument(help="Another, of another question or version.")],
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
) -> None:
    """What changed between two plans, and which input changed it: each difference applied alone.

    Example: fleetopt diff old.yaml new.yaml
    """
    from planner.cli.output import progress_bar, writer
    from planner.studies.difference import difference_of

    write = writer(output_format, output)
    with progress_bar("planning"):
        found = difference_of(old, new)
    write(found)
