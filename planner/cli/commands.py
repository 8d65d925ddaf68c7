"""The commands by name: one file each, read and built when asked for; an option that takes one value is given once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_group

from planner.errors import InputError
from planner.shared.arguments import docstring_of, told_sections
from planner.shared.documents import printable
from planner.units import MOST

COMMANDS = (
    "init", "plan", "explain", "options", "evaluate", "what-if", "capacity", "batch", "diff", "schedule", "cost", "report",
    "autoscale", "deploy", "check", "simulate", "stability", "batching", "wait", "calibrate", "reproduce", "compress", "profile",
    "gpu", "model", "prices", "workload", "schema", "doctor",
)  # fmt: skip
"""In the order of help: each the function of its name, or the group ``app``, in the file of its name; see :data:`TOGETHER`."""

TOGETHER = {
    "init": ("schema",),
    "plans": ("explain", "options", "evaluate", "what-if", "capacity", "batch", "diff", "schedule", "cost", "report"),
    "operate": ("deploy", "autoscale", "check"),
    "schedulers": ("stability", "batching", "wait", "reproduce"),
    "catalog": ("gpu", "model", "prices", "profile"),
}
BESIDE = {name: file for file, names in TOGETHER.items() for name in names}
"""Commands that stand in a file with others."""


OFTEN = {
    "plan": (
        "cdf", "rate", "users", "isl", "osl", "slo", "tpot", "e2e", "confidence", "gpu", "model", "weights", "tp", "price",
        "config", "output_format", "output", "change", "help_all",
    )
}  # fmt: skip
"""What the short help of a command shows, by the names of its parameters."""

USAGE: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "UsageError")
"""What the framework raises on any wrong usage."""


def _processed(given: Any, ctx: Any, value: Any) -> Any:
    """Nothing stays nothing, text stays as it was typed and may name a file; other values go the framework's way.

    The checks that it loads and builds for each are left out.
    """
    kind = getattr(getattr(given, "type_descriptor", None), "annotation", None)
    texts = kind == list[str] and isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)
    text = kind in (str, Path) and isinstance(value, str)
    if not (texts or text or value is None) or (given.required and not value):
        return super(type(given), given).process_value(ctx, value)
    if value is None and (getattr(given, "multiple", False) or given.nargs == -1):
        value = ()
    value = list(value) if texts else Path(value) if text and kind is Path else value
    return value if given.callback is None else given.callback(ctx, given, value)


_UNCHECKED = {
    kind: type(kind.__name__, (kind,), {"process_value": _processed}) for kind in (TyperOption, TyperArgument)
}
"""What the framework makes -> the same without checks that change nothing, where a value is text or nothing."""


def unchecked(parameters: Sequence[Any]) -> Sequence[Any]:
    """The same options and arguments without these checks."""
    for parameter in parameters:
        parameter.__class__ = _UNCHECKED.get(type(parameter), type(parameter))
    return parameters


def readable() -> None:
    """Colours of help that can be read on a dark and on a light terminal: yellow cannot, nor code on black, nor dim examples."""
    from rich.default_styles import DEFAULT_STYLES
    from rich.style import Style
    from typer import rich_utils

    rich_utils.STYLE_TYPES, rich_utils.STYLE_USAGE, rich_utils.STYLE_HELPTEXT = "magenta", "bold", ""
    DEFAULT_STYLES["markdown.code"] = Style(bold=True)


class Once(TyperCommand):
    """A command that refuses a repeated option instead of taking the last, and knows what some flags mean alone."""

    def get_help_option(self, ctx: Any) -> Any:
        """As the framework makes it, unchecked."""
        return unchecked([super().get_help_option(ctx)])[0]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The options that most questions need; all of them for ``--help-all``."""
        often = OFTEN.get(str(self.name), ())
        rare: list[Any] = [
            p
            for p in self.params
            if often and not ctx.meta.get("all") and p.name not in often and not getattr(p, "hidden", False)
        ]
        readable()
        for option in rare:
            option.hidden = True
        super().format_help(ctx, formatter)
        for option in rare:
            option.hidden = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Complete flags that stand alone, count the options, parse as usual, and refuse numbers that nothing has."""
        args = [*self._completed(args)]
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(list(args))
            for option in dict.fromkeys(order):
                if not isinstance(option, TyperOption) or option.multiple or order.count(option) == 1:
                    continue
                # a flag said twice says nothing else, unless it has an opposite
                if not option.is_flag or option.secondary_opts:
                    ctx.fail(f"{option.opts[0]} is given {order.count(option)} times and takes one value.")
        rest: list[str] = super().parse_args(ctx, args)
        for option in self.params:
            value = ctx.params.get(option.name)
            if isinstance(value, (int, float)) and not abs(value) <= MOST:
                finite = -math.inf < value < math.inf
                why = "is beyond anything that is counted or measured" if finite else "is not finite"
                raise InputError(f"{option.name}: {str(value)[:40]} {why}")
        return rest

    def _completed(self, args: list[str]) -> Iterator[str]:
        """The words, with what a flag alone stands for after each that may stand alone and does."""
        from planner.question.options import OPTIONS

        alone = {s: o.kind.bare for o in OPTIONS.values() if o.kind.bare for s in o.spellings}
        alone |= {"--verify": "kernel"} if self.name == "plan" else {}
        for word, following in zip(args, [*args[1:], "--"], strict=False):
            yield word
            if word in alone and following.startswith("-"):
                yield alone[word]


def written(name: str) -> Any:
    """What a command is made of: its function, or the group."""
    own = name.replace("-", "_")
    module = import_module(f"planner.cli.{BESIDE.get(name, own)}")
    return getattr(module, "app", None) or getattr(module, own)


class Built(Mapping[str, Any]):
    """Commands by name, each built when it is first asked for, once for all."""

    _built: ClassVar[dict[str, Any]] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            if name not in COMMANDS:
                raise KeyError(name)
            found, alone = written(name), typer.Typer(rich_markup_mode="markdown")
            inner = found.registered_commands if isinstance(found, typer.Typer) else ()
            for function in (found, *(one.callback for one in inner)):
                getattr(function, "head", tuple)()
            if inner:
                alone.add_typer(found, name=name)
            else:
                alone.command(name)(found)
            self._built[name] = command = get_group(alone).commands[name]
            if type(command) is TyperGroup:
                command.__class__ = Group
                unchecked(command.params)
            for leaf in getattr(command, "commands", {name: command}).values():
                leaf.__class__ = Once
                unchecked(leaf.params)
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Group(TyperGroup):
    """Commands about one thing."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As usual."""
        readable()
        super().format_help(ctx, formatter)

    def get_help_option(self, ctx: Any) -> Any:
        """As the framework makes it, unchecked."""
        return unchecked([super().get_help_option(ctx)])[0]


class Commands(Group):
    """The commands of ``fleetopt``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Built()  # type: ignore[assignment]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As usual; of commands what they do is told, and nothing made of what they can be asked."""
        found = {name: written(name) for name in COMMANDS}
        self.commands = {
            name: TyperCommand(
                name, help=one.info.help if isinstance(one, typer.Typer) else told_sections(docstring_of(one))[0]
            )
            for name, one in found.items()
        }
        super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As usual; the framework's own options (completion), which it adds late, are unchecked too."""
        unchecked(self.params)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """As usual; what a wrong argument holds of control characters does not reach the terminal."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if isinstance(error, USAGE):
                error.message = printable(error.message, 1000)  # type: ignore[attr-defined]
            raise
