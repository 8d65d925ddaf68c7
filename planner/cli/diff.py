"""``fleetopt diff``: how two plans differ, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli import options as opt
from planner.cli.output import progress_bar


@opt.verb()
def diff(
    old: Annotated[Path, typer.Argument(help="Plan file.")],
    new: Annotated[Path, typer.Argument(help="Another, of another question or version.")],
) -> Any:
    """What changed between two plans, and which input changed it: each difference applied alone.

    Example: fleetopt diff old.yaml new.yaml
    """
    from planner.studies.difference import difference_of

    with progress_bar("planning"):
        return difference_of(old, new)
