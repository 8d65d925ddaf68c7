"""Options of commands: those of a plan made from their table, and the few that every command has."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import ArgumentInfo

from planner.cli.output import draw, writer
from planner.errors import InputError
from planner.question.options import OPTIONS, PANELS, Option, canonical, unknown_option
from planner.report import PICTURES, formats
from planner.shared.arguments import told_sections
from planner.shared.writing import refuse_unwritable

OUTPUT = "Output"

REPLICA = ("cdf", "rate", "gpu", "model", "tp", "profile", "token_budget", "max_num_seqs")
"""Options of the commands that look at one kind of replica."""


def told(help: str, *flags: str, panel: str | None = None, **more: Any) -> Any:
    """An option of the command's own: what help says, its flags, where help shows it, and what else typer knows."""
    return typer.Option(*flags, help=help, rich_help_panel=panel, **more)


_ROW = re.compile(r"(\w+)(!?)((?: -\S+)*)(?: : (\S+)(?: = (\S+))?(?:, at least (\d+))?(?:, else (\w+))?)?")
"""An option as a docstring names it: ``name -n : type = default, at least 1, else VARIABLE`` of the environment; with ``name!`` it
has to be given, without a type it is text. Flags are ``--`` and its name unless some are given: ``to -t`` is ``--to`` or ``-t``,
``start --from`` is ``--from`` alone."""

_TYPES: Mapping[str | None, Any] = {
    None: str, "str": str, "int": int, "float": float, "bool": bool, "Path": Path, "list[str]": list[str],
    "list[Path]": list[Path],
}  # fmt: skip


def documented(text: str) -> tuple[str, list[inspect.Parameter]]:
    """What a docstring says first, and the options of its sections, each a panel of help: Arguments, Options, and others."""
    head, sections = told_sections(text)
    sections.pop("Raises", None)
    return head, [_documented(panel, spelled, help) for panel, own in sections.items() for spelled, help in own.items()]


def _documented(panel: str, spelled: str, help: str) -> inspect.Parameter:
    """An option of a docstring, as a command declares it."""
    row = _ROW.fullmatch(spelled)
    assert row is not None, spelled
    name, required, written, kind, default, least, variable = row.groups()
    flags = written.split()
    if not any(flag.startswith("--") for flag in flags):
        flags.insert(0, "--" + name.replace("_", "-"))
    taken, where = _TYPES[kind], None if panel == "Options" else panel
    facts = told(help, *flags, panel=where, min=None if least is None else int(least), envvar=variable)
    facts = typer.Argument(help=help) if panel == "Arguments" else facts
    if default is not None:
        value = default == "True" if taken is bool else taken(default.strip('"'))
        return _parameter(name, Annotated[taken, facts], value)
    if required:
        return _parameter(name, Annotated[taken, facts], inspect.Parameter.empty)
    return _parameter(name, Annotated[taken | None, facts])


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

Command = Callable[..., Any]


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options given, with those of ``--set`` under their own names.

    Output
    ------
    config : Path
        Configuration or plan file (YAML, JSON) whose options are the base.
    scenario
        Scenario of the configuration file.
    change --set : list[str]
        Any other option by its name, as in a configuration file: max_queue=40 (docs/cli.md lists them). Repeat.

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
    names: Collection[str] | None = None,
    about: str = "",
    beside: Command | None = None,
    words: Mapping[str, str] | None = None,
    **more: Any,
) -> Callable[[Command], Command]:
    """Gives a command, in place of its ``**given``, those of its docstring and behind them options of a plan.

    Parameters
    ----------
    names
        Which ones of a plan; default all that have a flag. An option the command has itself stays as it is.
    about
        What help says of the plan file that may stand for them: help then leaves them to that of ``plan``.
    beside
        What the command calls, whose docstring has options that are the command's too.
    words
        What stands in its docstring for ``{name}``.
    more
        Further ones: name -> as annotated.
    """

    def extended(command: Command) -> Command:
        """The command with a head that names every option, for the framework to read."""
        hints = get_type_hints(command, include_extras=True)
        told = command.__doc__ or ""
        command.__doc__, rows = documented(told.format(**words) if words else told)
        for other in (beside, settings if names is None else None):
            rows += [] if other is None else documented(other.__doc__ or "")[1]
        if about:
            rows.append(_parameter("plan", Annotated[Path | None, typer.Argument(metavar="PLAN", help=about)]))
        rows += [_parameter(name, annotation) for name, annotation in more.items()]
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
        return command

    return extended


def told_here(command: Command) -> Command:
    """Gives a command, in place of its ``**given``, the options of its docstring."""
    return asks(())(command)


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
    names: Collection[str] = (), plot: bool = False, about: str = "", beside: Command | None = None
) -> Callable[[Command], Command]:
    """A command whose answer is written as ``--format`` and ``-o`` ask for, and drawn for ``--plot``.

    It returns the answer, or yields it where it has more to say once that is written. A format that does not exist and a file
    that cannot be written are refused before anything is computed.

    Parameters
    ----------
    names, beside
        As for :func:`asks`; no option of a plan unless named.
    plot
        Whether the answer can be drawn.
    about
        What help says of the plan file of a command about a fleet that stands or is to be planned, with all options of a plan.
    """
    more: dict[str, Any] = {"output_format": Format, "output": OutputFile} | ({"plot": Plot} if plot else {})

    def writing(command: Command) -> Command:
        @wraps(command)
        def run(output_format: str | None, output: Path | None, plot: Path | None = None, **given: Any) -> None:
            asked = of_fleet(given) if about else given
            write = writer(output_format, output)
            found = command(**asked)
            for answer in found if isinstance(found, Iterator) else (found,):
                write(answer)
                draw(answer, plot)

        return asks(None if about else names, about, beside, **more)(run)

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
