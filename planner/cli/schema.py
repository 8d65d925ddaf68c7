"""``fleetopt schema``: what files and results hold, as JSON Schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as opt
from planner.cli.output import emit
from planner.errors import InputError, did_you_mean

FOLDER = Path(__file__).parents[1] / "schemas"


def schema(
    name: Annotated[
        str | None, typer.Argument(help="plan, configuration, profile, ...; without it all are listed.")
    ] = None,
    output: opt.OutputFile = None,
) -> None:
    """The JSON Schema of a kind of file or result: for editors, checks of your own, and other programs.

    Example: fleetopt schema configuration -o configuration-1.json
    """
    known = {path.stem.rpartition("-")[0]: path for path in sorted(FOLDER.glob("*.json"))}
    if name is None:
        return emit("\n".join(known), output)
    if name not in known:
        raise InputError(f"no schema {name!r}{did_you_mean(name, known)}", f"Known: {', '.join(known)}.")
    emit(known[name].read_text(encoding="utf-8"), output)
