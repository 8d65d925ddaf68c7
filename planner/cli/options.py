"""Options of commands: those of a plan made from their table, and the few that every command has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial, wraps
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import ArgumentInfo

from planner.cli.output import draw, emit, writer
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


def group(help: str) -> typer.Typer:
    """Commands about one thing, called as their file or variable is."""
    return typer.Typer(help=help, no_args_is_help=True)


Row = str | tuple[Any, str] | tuple[Any, str, Mapping[str, Any]]
"""What help says of an option; before it its default, or what it takes where it has none; behind it what else typer knows."""

Rows = Mapping[str, Row]
"""Options of a command's own: name, and flags where these are not as the name -> row.

``"to -t"`` is written ``--to`` or ``-t``, ``"start --from"`` is ``--from`` alone, and called ``start`` inside; ``"table!"`` has to
be given.
"""

Table = Mapping[str, Rows]
"""Panel of help (empty = the first) -> its options."""


def _of_table(panel: str, key: str, row: Row) -> inspect.Parameter:
    """An option of a table, as a command declares it."""
    first, text, *more = (str, row) if isinstance(row, str) else row
    name, *flags = key.split()
    required, name = name.endswith("!"), name.rstrip("!")
    if not any(flag.startswith("--") for flag in flags):
        flags.insert(0, "--" + name.replace("_", "-"))
    facts = told(text, *flags, panel=panel or None, **(more[0] if more else {}))
    if not isinstance(first, (type, GenericAlias)):
        return _parameter(name, Annotated[type(first), facts], first)
    return _parameter(name, Annotated[first if required else first | None, facts], _REQUIRED if required else None)


_REQUIRED = inspect.Parameter.empty


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """An option of a command, or an argument."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


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

Base = Annotated[Path, typer.Argument(help="Plan or configuration file (YAML or JSON).")]
_WRITTEN = typer.Argument(help="Plan file written by `fleetopt plan --format yaml -o FILE`.")
PlanFile = Annotated[Path, _WRITTEN]
AnyPlan = Annotated[Path | None, _WRITTEN]

FILED: Table = {
    OUTPUT: {
        "config": (Path, "Configuration or plan file (YAML, JSON) whose options are the base."),
        "scenario": "Scenario of the configuration file.",
        "change --set": (
            list[str], "Any other option by its name, as in a configuration file: max_queue=40 (docs/cli.md lists them). Repeat."
        ),
    }
}  # fmt: skip
"""Where options of a plan come from beside flags of their own: of the commands that have all of them."""


def pairs(given: list[str] | None, option: str, like: str = "NAME=VALUE") -> dict[str, str]:
    """Pairs as they are written, several by comma or repeated; `like` is what an error says they look like."""
    result: dict[str, str] = {}
    for part in (piece for text in given or () for piece in text.split(",") if piece.strip()):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise InputError(f"{option}: {part!r} is not {like}")
        result[key.strip()] = value.strip()
    return result


Command = Callable[..., Any]


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options given, with those of ``--set`` under their own names.

    Raises
    ------
    InputError
        One that is no ``NAME=VALUE``, or is given twice.
    """
    result = dict(given)
    for item in result.pop("change") or ():
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
    names: Collection[str] | None = None, table: Table | None = None, about: str = "", **more: Any
) -> Callable[[Command], Command]:
    """Gives a command, in place of its ``**given``, options of a plan, and those of a table of its own before them.

    Parameters
    ----------
    names
        Which ones of a plan; default all that have a flag. An option the command has itself stays as it is.
    table
        Its own; the command's head names those that it does more with than pass them on.
    about
        What help says of the plan file that may stand for them: help then leaves them to that of ``plan``.
    more
        Further ones: name -> as annotated.
    """

    def head(command: Command) -> None:
        """Name every option in the head of the command, for the framework to read."""
        panels = [*(table or {}).items(), *(FILED.items() if names is None else ())]
        rows = [_of_table(panel, key, row) for panel, own in panels for key, row in own.items()]
        if about:
            rows.append(_parameter("plan", Annotated[Path | None, typer.Argument(metavar="PLAN", help=about)]))
        rows += [_parameter(name, annotation) for name, annotation in more.items()]
        hints = get_type_hints(command, include_extras=True)
        rowed = {r.name for r in rows}
        ours = [
            _parameter(p.name, hints[p.name], p.default)
            for p in inspect.signature(command).parameters.values()
            if p.kind is not inspect.Parameter.VAR_KEYWORD and p.name not in rowed
        ]
        asked = [
            _parameter(name, _annotation(option, bool(about)))
            for name, option in OPTIONS.items()
            if option.spellings and name not in {*hints, *rowed} and (names is None or name in names)
        ]
        parameters = sorted([*ours, *rows, *asked], key=_place)
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}

    def extended(command: Command) -> Command:
        # of the commands of a file one is run: the heads of all options are made of those that are asked for
        if names is None:
            command.head = partial(head, command)  # type: ignore[attr-defined]
        else:
            head(command)
        return command

    return extended


def has(table: Table) -> Callable[[Command], Command]:
    """Gives a command, in place of its ``**given``, the options of a table."""
    return asks((), table)


def of_fleet(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the verbs take of what such a command was given: the one of plan and configuration file there is, the traffic, options.

    Raises
    ------
    InputError
        There are both; a wrong ``--set``.
    """
    asked = settings(given)
    if asked["plan"] is not None and asked["config"] is not None:
        raise InputError("a plan file and --config", "Give one of them.")
    return {"workload": asked.pop("cdf"), **asked}


def verb(
    names: Collection[str] = (), table: Table | None = None, plot: bool = False, about: str = ""
) -> Callable[[Command], Command]:
    """A command whose answer is written as ``--format`` and ``-o`` ask for, and drawn for ``--plot``.

    It returns the answer, or yields it where it has more to say once that is written; text is written as it is. A format that does
    not exist and a file that cannot be written are refused before anything is computed; who names them is told both.

    Parameters
    ----------
    names, table
        As for :func:`asks`; no option of a plan unless named.
    plot
        Whether the answer can be drawn.
    about
        What help says of the plan file of a command about a fleet that stands or is to be planned, with all options of a plan.
    """
    more: dict[str, Any] = {"output_format": Format, "output": OutputFile} | ({"plot": Plot} if plot else {})

    def writing(command: Command) -> Command:
        """The command with its output."""
        named = {"output_format", "output"}.intersection(inspect.signature(command).parameters)

        @wraps(command)
        def run(output_format: str | None, output: Path | None, plot: Path | None = None, **given: Any) -> None:
            """Ask it, and write every answer."""
            asked = of_fleet(given) if about else given
            asked |= {
                name: value for name, value in (("output_format", output_format), ("output", output)) if name in named
            }
            write = writer(output_format, output)
            found = command(**asked)
            for answer in found if isinstance(found, Iterator) else (found,):
                if isinstance(answer, str):
                    emit(answer, output)
                    continue
                write(answer)
                draw(answer, plot)

        return asks(None if about else names, table, about, **more)(run)

    return writing


def _place(parameter: inspect.Parameter) -> int:
    """Arguments first, what else is the command's own, then the panels of the table, the output last."""
    facts = getattr(parameter.annotation, "__metadata__", (None,))[0]
    if isinstance(facts, ArgumentInfo):
        return -2
    panel = getattr(facts, "rich_help_panel", None)
    return [*PANELS, OUTPUT].index(panel) if panel in (*PANELS, OUTPUT) else -1


def _annotation(option: Option, hidden: bool) -> Any:
    """The option as the command line declares it."""
    kind = option.kind
    facts: dict[str, Any] = {"help": option.told, "rich_help_panel": option.panel, "hidden": hidden}
    written = list[str] if kind.flag is list else kind.flag
    return Annotated[written | None, typer.Option(*option.spellings, **facts)]
