"""Options of commands: those of a plan made from their table, and the few that every command has."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo

import planner as fo
from planner.ask.options import ReplicaOptions
from planner.cli.output import draw, emit, progress_bar, whole_tables, writer
from planner.errors import InputError
from planner.question.options import OPTIONS, PANELS, Option, canonical, unknown_option
from planner.report import PICTURES, formats
from planner.shared.arguments import docstring_of, told_sections
from planner.shared.writing import refuse_unwritable

OUTPUT = "Output"

REPLICA = ("cdf", *ReplicaOptions.__annotations__)
"""Options of the commands that look at one kind of replica."""


def told(help: str, *flags: str, panel: str | None = None, **more: Any) -> Any:
    """An option of the command's own: what help says, its flags, where help shows it, and what else typer knows."""
    return typer.Option(*flags, help=help, rich_help_panel=panel, **more)


def group(help: str) -> typer.Typer:
    """Commands about one thing, called as their file or variable is."""
    return typer.Typer(help=help, no_args_is_help=True)


def _declared(name: str, kind: Any, default: Any, words: Words, flags: str = "", panel: str = "") -> inspect.Parameter:
    """An option of a command, as the framework reads it; one without a default that takes no ``None`` has to be given."""
    if words.panel == "Arguments":
        return _parameter(name, Annotated[kind, typer.Argument(help=words.text)], default)
    spelled = [*(flags.split() or words.flags)]
    if not any(flag.startswith("--") for flag in spelled):
        spelled.insert(0, "--" + name.rstrip("_").replace("_", "-"))
    text = words.text + (" Repeat." if list[str] in (kind, *get_args(kind)) or list[Path] in get_args(kind) else "")
    return _parameter(name, Annotated[kind, told(text, *spelled, panel=panel or words.panel or None)], default)


_REQUIRED = inspect.Parameter.empty


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """An option of a command, or an argument."""
    if default is _REQUIRED and type(None) in get_args(get_args(annotation)[0]):
        default = None
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


Wide = Annotated[bool, told("Tables with all columns, whatever the width of the page.", "--wide", panel=OUTPUT)]


def _all_help(ctx: typer.Context, value: bool) -> None:
    """Print the help with every option, and be done."""
    if value:
        ctx.meta["all"] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


AllHelp = Annotated[bool, told("Every option, by panel.", "--help-all", callback=_all_help, is_eager=True)]


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

BASE = "Plan or configuration file (YAML or JSON)."
Base = Annotated[Path, typer.Argument(help=BASE)]
_WRITTEN = typer.Argument(help="Plan file written by `fleetopt plan --format yaml -o FILE`.")
PlanFile = Annotated[Path, _WRITTEN]
AnyPlan = Annotated[Path | None, _WRITTEN]


def filed(config: Path | None, scenario: str | None, change: list[str] | None) -> None:
    """Where options of a plan come from beside flags of their own: of the commands that have all of them.

    Output
    ------
    config
        Configuration or plan file (YAML, JSON) whose options are the base.
    scenario
        Scenario of the configuration file.
    change, --set
        Any other option by its name, as in a configuration file: max_queue=40 (docs/cli.md lists them).
    """


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


class Words(NamedTuple):
    """What a docstring says of an option: in words, its flags where they are not its name, and the panel of help it stands in."""

    text: str
    flags: Sequence[str]
    panel: str


def told_options(docstring: str | None) -> tuple[str, dict[str, Words]]:
    """What a docstring says first, and of every parameter; sections of its own are panels of help.

    >>> told_options("A thing.\\n\\nSize\\n----\\nwidth, -w\\n    From ``left`` to right.")
    ('A thing.', {'width': Words(text='From `left` to right.', flags=['-w'], panel='Size')})
    """
    head, sections = told_sections(docstring or "")
    found: dict[str, Words] = {}
    for title, entries in sections.items():
        for names, text in entries.items():
            spelled = names.split(", ")
            words = Words(
                re.sub(r":\w+:`|``", "`", text),
                [name for name in spelled if name.startswith("-")],
                "" if title == "Parameters" else title,
            )
            found |= {name: words for name in spelled if not name.startswith("-")}
    return head, found


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb whose parameters are options of a command: what each is, its default and what help says of it are the verb's own.

    Parameters
    ----------
    name
        As in ``fo.name``.
    doing
        What the line on a terminal says while it works.
    panels
        Parameter -> the panel of help that begins with it.
    flags
        Parameter -> its flags, where they are not its name.
    defaults
        Parameter -> what the command line takes in place of the verb's default.
    without
        Parameters that the command line does not offer.
    """

    name: str
    doing: str = ""
    panels: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    without: Collection[str] = ()

    def head(self) -> ast.FunctionDef:
        """Its signature and docstring as written: help loads no numbers, as the verb itself would."""
        place = find_spec(fo.HOME[self.name])
        text = Path(str(place and place.origin)).read_text(encoding="utf-8")
        (written,) = re.findall(rf'^def {self.name}\(.*?\n    """.*?"""\n', text, re.MULTILINE | re.DOTALL)
        (found,) = ast.parse(written).body
        assert isinstance(found, ast.FunctionDef)
        return found

    def options(self) -> Iterator[inspect.Parameter]:
        """What of its parameters can be typed, as the command line declares it; a default by a name is left to the verb."""
        head, panel = self.head(), ""
        own, (_, words) = head.args, told_options(ast.get_docstring(head))
        values = [*own.defaults, *own.kw_defaults]
        parameters = [*own.args, *own.kwonlyargs]
        assert {*self.panels, *self.flags, *self.defaults, *self.without} <= {p.arg for p in parameters}, self.name
        for parameter, value in zip(parameters, [None] * (len(parameters) - len(values)) + values, strict=True):
            name, annotation = parameter.arg, ast.unparse(parameter.annotation or ast.Name("Any"))
            panel = self.panels.get(name, panel)
            otherwise = name in GIVEN_OTHERWISE and name not in self.flags
            if otherwise or name in self.without or re.search(r"Callable|Executor|Launch", annotation):
                continue
            kind = type_of(annotation)
            default = self.defaults.get(name, value.value if isinstance(value, ast.Constant) else None)
            if default is None:
                kind = kind | None
            elif kind is str:
                default = f"{default:g}" if isinstance(default, float) else str(default)
            yield _declared(name, kind, default, words[name], self.flags.get(name, ""), panel)

    def __call__(self, plan: Any = None, config: Any = None, cdf: Any = None, **given: Any) -> Any:
        """Its answer to what was typed."""
        verb = getattr(fo, self.name)
        with progress_bar(self.doing) as progress:
            own = {"workload": cdf, "progress": progress}
            taken = inspect.signature(verb).parameters
            given |= {name: value for name, value in own.items() if value is not None and name in taken}
            return verb(*[fleet for fleet in (plan or config,) if fleet is not None], **given)


GIVEN_OTHERWISE = frozenset(("fleet", "base", "config", "workload", "scenario", "slo"))
"""Parameters of verbs that a command has as its argument, or with the options of a plan."""


def type_of(annotation: str) -> Any:
    """What the command line takes for a parameter: what may have a unit or be an address as text, what may be several one by one.

    >>> type_of("int | None"), type_of("float | str"), type_of("Sequence[str | Path] | None")
    (<class 'int'>, <class 'str'>, list[str])
    """
    words = {*re.findall(r"\w+", annotation)} - {"None"}
    if {"Sequence", "Mapping"} & words:
        return list[str]
    return {"int": int, "float": float, "bool": bool}.get("".join(words), str)


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
    *verbs: Verb | Command,
    names: Collection[str] | None = (),
    about: str = "",
    more: Collection[inspect.Parameter] = (),
) -> Callable[[Command], Command]:
    """Makes the options of a command: parameters of which its docstring speaks, those of verbs or functions, and some of a plan.

    What its docstring does not speak of is declared in its head, or is received: an option of a verb or a plan that it does more
    with than pass it on.

    Parameters
    ----------
    verbs
        Whose parameters are options too; of one name the first stands.
    names
        Which ones of a plan; ``None`` = all that have a flag.
    about
        What help says of the plan file that may stand for them: help then leaves them to that of ``plan``.
    more
        Further options and arguments.
    """

    def head(command: Command) -> None:
        """Name every option in the head of the command, for the framework to read, and leave it the rest of its docstring."""
        found: dict[str, inspect.Parameter] = {}
        functions = [one for one in verbs if not isinstance(one, Verb)]
        for function in (inspect.unwrap(command), *functions, *([filed] if names is None else [])):
            _, words = told_options(docstring_of(function))
            hints = get_type_hints(function, include_extras=True)
            for name, p in inspect.signature(function).parameters.items():
                if get_origin(hints[name]) is Annotated:
                    found[name] = _parameter(name, hints[name], p.default)
                elif name in words:
                    found.setdefault(name, _declared(name, hints[name], p.default, words[name]))
        command.__doc__, _ = told_options(docstring_of(inspect.unwrap(command)))
        if about:
            found["plan"] = _parameter("plan", Annotated[Path | None, typer.Argument(metavar="PLAN", help=about)])
        for parameter in (*(one for verb in verbs if isinstance(verb, Verb) for one in verb.options()), *more):
            found.setdefault(parameter.name, parameter)
        for name, option in OPTIONS.items():
            if option.spellings and (names is None or name in names):
                found.setdefault(name, _parameter(name, _annotation(option, bool(about))))
        if "output_format" in found:
            found["wide"] = _parameter("wide", Wide, False)
        if names is None and not about:
            found["help_all"] = _parameter("help_all", AllHelp, False)
        parameters = sorted(found.values(), key=_place)
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}

    def extended(command: Command) -> Command:
        """The command, and what it takes without asking more."""

        @wraps(command)
        def run(wide: bool = False, help_all: bool = False, **given: Any) -> None:
            """Run it, with tables as wide as asked for."""
            whole_tables(wide)
            command(**given)

        # of the commands of a file one is run: heads are made of those that are asked for
        run.head = partial(head, run)  # type: ignore[attr-defined]
        return run

    return extended


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
    *verbs: Verb | Command, names: Collection[str] = (), plot: bool = False, about: str = "", argument: str = ""
) -> Callable[[Command], Command]:
    """A command whose answer is written as ``--format`` and ``-o`` ask for, and drawn for ``--plot``.

    It returns the answer, or yields it where it has more to say once that is written; text is written as it is. One that takes
    what was ``found`` is told the answer of its verb, the first of the tables, and says the rest. A format that does not exist and
    a file that cannot be written are refused before anything is computed; who names them is told both.

    Parameters
    ----------
    verbs, names
        As for :func:`asks`; no option of a plan unless named.
    plot
        Whether the answer can be drawn.
    about
        What help says of the plan file of a command about a fleet that stands or is to be planned, with all options of a plan.
    argument
        What help says of the file that the command is about and cannot be without.
    """
    more = [_parameter("output_format", Format), _parameter("output", OutputFile)]
    more += [_parameter("plot", Plot)] if plot else []
    more += [_parameter("plan", Annotated[Path, typer.Argument(help=argument)], _REQUIRED)] if argument else []

    def writing(command: Command) -> Command:
        """The command with its output."""
        taken = inspect.signature(command).parameters
        own = verbs[0] if "found" in taken else None

        @wraps(command)
        def run(output_format: str | None, output: Path | None, plot: Path | None = None, **given: Any) -> None:
            """Ask it, and write every answer."""
            asked = of_fleet(given) if about else given
            asked |= {k: v for k, v in {"output_format": output_format, "output": output}.items() if k in taken}
            write = writer(output_format, output)
            found = command(**asked) if own is None else own(**asked)
            for answer in found if isinstance(found, Iterator) else (found,):
                if isinstance(answer, str):
                    emit(answer, output)
                    continue
                write(answer)
                draw(answer, plot)
            if own is not None:
                command(found, **{name: value for name, value in asked.items() if name in taken})

        return asks(*verbs, names=None if about else names, about=about, more=more)(run)

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
