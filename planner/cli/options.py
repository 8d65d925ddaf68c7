"""Options of commands: those of a plan made from their table, and the few that every command has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from planner.errors import InputError
from planner.question.options import OPTIONS, PANELS, Option, canonical, unknown_option
from planner.report import PICTURES, formats
from planner.shared.writing import refuse_unwritable

OUTPUT = "Output"

REPLICA = ("cdf", "rate", "gpu", "model", "tp", "profile", "token_budget", "max_num_seqs")
"""Options of the commands that look at one kind of replica."""


def told(help: str, *flags: str, panel: str | None = None, **more: Any) -> Any:
    """An option of the command's own: what help says, its flags, where help shows it, and what else typer knows."""
    return typer.Option(*flags, help=help, rich_help_panel=panel, **more)


Row = str | tuple[Any, str] | tuple[Any, str, int]
"""What help says of an option; before it its default, or what it takes where it has none; behind it its smallest number."""

Table = Mapping[str, Mapping[str, Row]]
"""Options of a command's own: panel of its help (empty = the first) -> name, and flags where these are not as the name -> row.

``"to -t"`` is written ``--to`` or ``-t``, ``"start --from"`` is ``--from`` alone, and called ``start`` inside.
"""


def _of_table(panel: str, key: str, row: Row) -> inspect.Parameter:
    """An option of a table, as a command declares it."""
    first, text, *least = (str, row) if isinstance(row, str) else row
    without = isinstance(first, (type, GenericAlias))
    name, *flags = key.split()
    if not any(flag.startswith("--") for flag in flags):
        flags.insert(0, "--" + name.replace("_", "-"))
    facts = told(text, *flags, panel=panel or None, min=least[0] if least else None)
    written: Any = Annotated[first | None if without else type(first), facts]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None if without else first, annotation=written
    )


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

PlanFile = Annotated[Path, typer.Argument(help="Plan file written by `fleetopt plan --format yaml -o FILE`.")]

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


def asks(
    names: Collection[str] | None = None, hidden: bool = False, table: Table | None = None
) -> Callable[[Command], Command]:
    """Gives a command, in place of its ``**given``, the options of a plan, and those of a table of its own before them.

    Parameters
    ----------
    names
        Which ones of a plan; default all that have a flag. An option the command has itself stays as it is.
    hidden
        Whether help leaves them to that of ``plan``.
    table
        Its own; the command's head names those that it does more with than pass them on.
    """
    rows = [_of_table(panel, key, row) for panel, own in (table or {}).items() for key, row in own.items()]

    def extended(command: Command) -> Command:
        """The command with a head that names every option, for the framework to read."""
        hints = get_type_hints(command, include_extras=True)
        rowed = {r.name for r in rows}
        own = [
            p
            for p in inspect.signature(command).parameters.values()
            if p.kind is not inspect.Parameter.VAR_KEYWORD and p.name not in rowed
        ]
        asked = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(option, hidden)
            )
            for name, option in OPTIONS.items()
            if option.spellings and name not in {*hints, *rowed} and (names is None or name in names)
        ]
        ours = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name]) for p in own]
        parameters = sorted([*ours, *rows, *asked], key=_place)
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
        return command

    return extended


def has(table: Table) -> Callable[[Command], Command]:
    """Gives a command, in place of its ``**given``, the options of a table."""
    return asks((), table=table)


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
