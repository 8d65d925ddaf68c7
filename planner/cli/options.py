"""Options of commands: those of a plan made from their table, and the few that every command has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from planner.errors import InputError
from planner.question.options import OPTIONS, PANELS, Option, canonical, unknown_option
from planner.report import PICTURES, formats
from planner.writing import refuse_unwritable

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
    told("Write to this file, after success, atomically.", "-o", "--output", panel=OUTPUT),
]


def _picture(path: Path | None) -> Path | None:
    """Refused before anything is computed where it names no kind of picture."""
    if path is not None and path.suffix.lower() not in PICTURES:
        raise InputError(f"--plot: {path}: a picture is one of {', '.join(PICTURES)}", "Name the file so.")
    if path is not None:
        refuse_unwritable(path)
    return path


Plot = Annotated[
    Path | None,
    told("Draw it to this file: .svg; .png and .pdf with matplotlib (extra plot).", panel=OUTPUT, callback=_picture),
]

Command = TypeVar("Command", bound=Callable[..., None])


Set = Annotated[
    list[str] | None,
    told("Any other option by its name, as in a configuration file: max_queue=40 (docs/cli.md lists them). Repeat.", "--set",
         panel=OUTPUT),
]  # fmt: skip


def settings(given: dict[str, Any], change: Sequence[str] | None) -> dict[str, Any]:
    """The options given, with those of ``--set`` under their own names.

    Raises
    ------
    InputError
        One that is no ``NAME=VALUE``, or is given twice.
    """
    result = dict(given)
    for item in change or ():
        name, equals, value = item.partition("=")
        key = canonical(name.strip())
        if not (name and equals and value):
            raise InputError(f"--set: {item!r} is not NAME=VALUE", "For example --set max_queue=40.")
        if wrong := unknown_option(name.strip()):
            raise InputError(f"--set: {name!r}: {wrong}", "All of them: docs/cli.md, Options in files.")
        if result.get(key) is not None:
            raise InputError(f"--set: {name} is given twice")
        result[key] = value
    return result


def asks(names: Collection[str] | None = None, hidden: bool = False) -> Callable[[Command], Command]:
    """Gives a command, in place of its ``**given``, the options of a plan.

    Parameters
    ----------
    names
        Which ones; default all that have a flag. An option the command has itself stays as it is.
    hidden
        Whether help leaves them to that of ``plan``.
    """

    def extended(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        own = [p for p in inspect.signature(command).parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        asked = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(option, hidden)
            )
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


def _annotation(option: Option, hidden: bool) -> Any:
    """The option as the command line declares it."""
    kind = option.kind
    facts: dict[str, Any] = {"help": option.told, "rich_help_panel": option.panel, "hidden": hidden}
    written = list[str] if kind.flag is list else kind.flag
    return Annotated[written | None, typer.Option(*option.spellings, **facts)]
