"""Options of commands: those of a plan made from their table, and the few that every command has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from planner.errors import InputError
from planner.question.options import HARDWARE, OPTIONS, PANELS, WORKLOAD, Option
from planner.question.values import TOKENS
from planner.report import PICTURES, formats

__all__ = [
    "HARDWARE",
    "OUTPUT",
    "REPLICA",
    "WORKLOAD",
    "Format",
    "OutputFile",
    "PlanFormat",
    "Plot",
    "ScheduleFormat",
    "asks",
    "told",
]

OUTPUT = "Output"

REPLICA = ("cdf", "rate", "gpu", "model", "tp", "profile", "token_budget", "max_num_seqs")
"""Options of the commands that look at one kind of replica."""


def told(help: str, *flags: str, panel: str | None = None, **more: Any) -> Any:
    """An option of the command's own: what help says, its flags, where help shows it, and what else typer knows."""
    return typer.Option(*flags, help=help, rich_help_panel=panel, **more)


def _format(of: str = "") -> Any:
    text = f"{', '.join(formats(of))}. Default: as the file of -o is named (.yaml, .json, .csv, .md), else table."
    return told(text, "--format", "-f", panel=OUTPUT)


Format = Annotated[str | None, _format()]
PlanFormat = Annotated[str | None, _format("plan")]
ScheduleFormat = Annotated[str | None, _format("schedule")]
OutputFile = Annotated[
    Path | None,
    told("Write to this file instead of stdout, after success, atomically.", "-o", "--output", panel=OUTPUT),
]


def _picture(path: Path | None) -> Path | None:
    """Refused before anything is computed where it names no kind of picture."""
    if path is not None and path.suffix.lower() not in PICTURES:
        raise InputError(f"--plot: {path}: a picture is one of {', '.join(PICTURES)}", "Name the file so.")
    return path


Plot = Annotated[
    Path | None,
    told("Draw it to this file: .svg; .png and .pdf with matplotlib (extra plot).", panel=OUTPUT, callback=_picture),
]

Command = TypeVar("Command", bound=Callable[..., None])


def asks(names: Collection[str] | None = None) -> Callable[[Command], Command]:
    """Gives a command, in place of its ``**given``, the options of a plan.

    Parameters
    ----------
    names
        Which ones; default all that have a flag. An option the command has itself stays as it is.
    """

    def extended(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        own = [p for p in inspect.signature(command).parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        asked = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(option))
            for name, option in OPTIONS.items()
            if option.spellings and name not in hints and (names is None or name in names)
        ]
        ours = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name]) for p in own]
        parameters = sorted([*ours, *asked], key=_place)
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
        return command

    return extended


def _place(parameter: inspect.Parameter) -> int:
    """What is the command's own first, then the panels of the table, the output last."""
    facts = getattr(parameter.annotation, "__metadata__", (None,))[0]
    panel = getattr(facts, "rich_help_panel", None)
    return [*PANELS, OUTPUT].index(panel) if panel in (*PANELS, OUTPUT) else -1


def _annotation(option: Option) -> Any:
    """The option as the command line declares it."""
    kind = option.kind
    facts: dict[str, Any] = {"help": option.told, "rich_help_panel": option.panel}
    if kind is TOKENS:
        facts |= {"parser": _tokens, "metavar": "TOKENS"}
    written = list[str] if kind.flag is list else kind.flag
    return Annotated[written | None, typer.Option(*option.spellings, **facts)]


def _tokens(text: str) -> int:
    """``8192``, ``8k`` or ``8Ki``; anything else is wrong usage."""
    try:
        number: int = TOKENS.read(text, "")
    except InputError as error:
        raise typer.BadParameter(f"{text!r} is not a whole number of tokens", param_hint=None) from error
    return number
