"""``fleetopt init``: a commented configuration file from four questions or flags; ``schema``: what files and results hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli import options as opt
from planner.cli.output import emit, say
from planner.errors import InputError, unknown

ASKED = ("cdf", "rate", "gpu", "model", "slo", "tpot", "e2e")


Out = Annotated[Path, opt.told("File to write; one that exists is kept.", "-o", "--output", panel=opt.OUTPUT)]


@opt.asks(ASKED)
def init(output: Out = Path("fleetopt.yaml"), **given: Any) -> None:
    """A configuration file with comments, from flags, or from four questions where none is given and a terminal is there.

    Example: fleetopt init --cdf azure --model qwen3-32b --gpu h200 --slo 500ms -o fleet.yaml
    """
    import sys

    from planner.catalog.load import gpu, model
    from planner.fleet.types import ANY
    from planner.question.starter import QUESTIONS, answers, as_command, starter_file

    if output.exists():
        raise InputError(f"{output}: exists already", "Name another file: -o FILE.")
    told = {k: v[0] if isinstance(v, list) and len(v) == 1 else v for k, v in given.items() if v}
    if not told:
        asking = sys.stdin is not None and sys.stdin.isatty()
        for question, text, default in QUESTIONS:
            told |= answers(question, typer.prompt(text, default=default, err=True) if asking else default)
    if not {"slo", "tpot", "e2e"} & set(told):
        told |= answers("slo", QUESTIONS[3][2])
    text = starter_file(told)
    for name in given["gpu"] or ():
        if name != ANY:
            gpu(name)
    if given["model"]:
        model(given["model"])
    emit(text, output)
    say([f"it amounts to: {as_command(told)}", f"next: fleetopt plan --config {output}"])


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
        raise unknown(f"no schema {name!r}", name, known)
    emit(known[name].read_text(encoding="utf-8"), output)
