"""Write docs/cli.md, the man page docs/fleetopt.1 and what shells complete, from the command line itself:
``python tools/cli_docs.py``."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from planner.cli.completion import TABLE
from planner.cli.main import app
from planner.machine.engines import engines
from planner.operate.autoscale.objects import KINDS
from planner.operate.deploy import target_names
from planner.question.options import OPTIONS
from planner.report import formats
from planner.shared.version import __version__

ANCHOR = "options-of-several-commands"
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
MAN = DOCUMENT.with_name("fleetopt.1")

FILES = """## Options in files

A configuration file (YAML or JSON, `--config FILE`, or in place of a plan file) holds options under the names below, which are
those of `--set NAME=VALUE` and of `planner.plan(NAME=VALUE)` too. Defaults < file < scenario < command line. Promises replace those
about the same metric. `scenarios:` (name -> options that differ) is for `--scenario` and `what-if`, `classes:` (name -> options)
for classes of requests. A single value of `--set` that is a list is written `h100+l40s`. The last column: what `evaluate --set` may
change of a fleet that stands, and what needs a new plan.
"""

HEAD = """# Command line

Written by `python tools/cli_docs.py` from the commands themselves; `fleetopt COMMAND --help` says the same.

Data goes to stdout, everything else (progress, warnings, assumptions) to stderr. `--format` is table, json, yaml, csv or
markdown; `-o FILE` is written only after success, atomically. A bare number is seconds and `500ms` is understood. Exit codes:
0 ok, 1 a bug (with its traceback), 2 wrong usage, 3 wrong input, 4 infeasible (what binds and what would help is printed),
5 calibration failed, 6 a check failed (a simulated promise does not hold; what `stability` or `wait` is asked about is not
stable), 130 interrupted. A promise of which `simulate` cannot tell has not failed: exit 0, and the verdict says so.
"""


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with the words that call it, groups' in order."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))
    else:
        yield path, command


def cell(text: str | None) -> str:
    """Help text as one table cell."""
    return " ".join((text or "").split()).replace("|", "\\|")


def usage(path: tuple[str, ...], command: Any) -> str:
    """``fleetopt evaluate [OPTIONS] PLAN``."""
    words = [
        p.name.upper() if p.required else f"[{p.name.upper()}]"
        for p in command.params
        if p.param_type_name == "argument"
    ]
    return " ".join([*path, "[OPTIONS]", *words])


def rows(command: Any) -> Iterator[tuple[str, str]]:
    """Arguments and options of a command, and what each is."""
    for p in command.params:
        if p.name == "help" or getattr(p, "hidden", False):
            continue
        if p.param_type_name == "argument":
            yield f"`{p.name.upper()}`", cell(getattr(p, "help", None))
        else:
            names = ", ".join(f"`{o}`" for o in [*p.opts, *p.secondary_opts])
            default = p.default if not callable(p.default) else None
            known = (
                f" Default: {default}."
                if default != "" and isinstance(default, (int, float, str)) and not p.is_flag
                else ""
            )
            told = cell(p.help)
            yield names, f"{told}{'' if 'Default' in told else known}"


def table(found: Iterable[tuple[str, str]]) -> list[str]:
    """Rows of two columns; nothing where there are none."""
    lines = [f"| {names} | {told} |" for names, told in found]
    return ["| | |", "|:--|:--|", *lines, ""] if lines else []


def section(path: tuple[str, ...], command: Any, shared: Container[tuple[str, str]]) -> str:
    """One command: what it does, its own arguments and options, and the names of those it has in common with others."""
    found = [*rows(command)]
    common = [names.split(", ")[0] for names, told in found if (names, told) in shared]
    also = [f"And, as [several commands](#{ANCHOR}): {', '.join(common)}.", ""] if common else []
    head = [f"## {' '.join(path)}", "", (command.help or "").strip(), "", f"    {usage(path, command)}", ""]
    return "\n".join([*head, *table(row for row in found if row not in shared), *also])


def in_files() -> str:
    """The options under the names they have in files, in ``--set`` and in Python."""
    rows = []
    for name, option in OPTIONS.items():
        flags = ", ".join(f"`{s}`" for s in option.spellings) or ("in files only" if option.filed else "`--set`")
        others = ", ".join(f"`{a}`" for a in option.aliases) or "-"
        kind = " or ".join(f"`{c}`" for c in option.choices) or cell(option.kind.unit)
        rows.append(
            f"| `{name}` | {kind} | {option.default or '-'} | {flags} | {others} | {'plan again' if option.bought else 'yes'} |"
        )
    return "\n".join(
        [
            FILES,
            "| option | value | default | flag | also | under a standing fleet |",
            "|:--|:--|:--|:--|:--|:--|",
            *rows,
        ]
    )


def document() -> str:
    """The whole of docs/cli.md."""
    found = list(commands(get_command(app), ("fleetopt",)))
    links = [
        f"- [`{' '.join(path)}`](#{'-'.join(path)}): {cell(command.help).split('. ')[0].rstrip('.')}"
        for path, command in found
    ]
    links.append("- [Options in files](#options-in-files)")
    times = Counter(row for _, command in found for row in rows(command))
    shared = {row: None for row, count in times.items() if count > 1}
    links.insert(-1, f"- [Options of several commands](#{ANCHOR})")
    sections = [section(path, command, shared) for path, command in found]
    common = "\n".join(["## Options of several commands", "", *table(shared)])
    return "\n".join([HEAD, *links, "", *sections, common, in_files()]).rstrip() + "\n"


NAMED = {
    "cdf": "workload",
    "workload": "workload",
    "gpu": "gpu",
    "model": "model",
    "profile": "profile",
    "engine": "engine",
}
"""Parameter -> what there is of its kind."""

ARGUMENTS = {
    "gpu show": "gpu", "model show": "model", "profile show": "profile", "profile compare": "profile", "workload show": "workload",
    "workload compare": "workload", "schema": "schema",
}  # fmt: skip
"""Command -> what its argument names, where it is no file."""


def completed(command: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """What may follow a command: commands, or options with the kind of their value and what they do."""
    told = cell(command.help).split(". ")[0].rstrip(".")[:70]
    if hasattr(command, "commands"):
        return {
            "help": told,
            "commands": {name: completed(inner, (*path, name)) for name, inner in command.commands.items()},
        }
    options: dict[str, tuple[str | None, str]] = {"--help": (None, "Show this message and exit")}
    for p in command.params:
        if p.param_type_name == "option" and not getattr(p, "hidden", False):
            known = OPTIONS.get(p.name)
            kind = p.name if known is not None and known.choices else NAMED.get(p.name, "")
            if p.name == "to" or (p.name == "output_format" and path[0] in ("plan", "schedule")):
                kind = f"{path[0]} {p.name}"
            elif p.name == "output_format":
                kind = p.name
            kind = "set" if "--set" in p.opts else kind
            text = re.split(r"[.:;,(]", cell(p.help))[0]
            # of some the value may be left out
            alone = p.is_flag or (known is not None and known.kind.bare)
            options |= dict.fromkeys((*p.opts, *p.secondary_opts), (None if alone else kind, text))
    return {"help": told, "argument": ARGUMENTS.get(" ".join(path), ""), "options": options}


def values() -> dict[str, list[str]]:
    """Kind -> its values, where they are few and in no folder."""
    found: dict[str, Iterable[str]] = {name: o.choices for name, o in OPTIONS.items() if o.choices}
    found |= {"deploy to": target_names(), "autoscale to": KINDS, "check to": ("files", "kubernetes")}
    found |= {"output_format": formats()} | {f"{of} output_format": formats(of) for of in ("plan", "schedule")}
    schemas = sorted(path.stem.rpartition("-")[0] for path in TABLE.parents[1].glob("schemas/*.json"))
    found |= {"engine": sorted(engines()), "set": [f"{name}=" for name in OPTIONS], "schema": schemas}
    return {kind: [*listed] for kind, listed in found.items()}


def completion() -> str:
    """The whole of planner/cli/completion.json."""
    return json.dumps({**completed(get_command(app)), "values": values()}, indent=1) + "\n"


def roff(text: str | None) -> str:
    """Help text in the words of man: code in bold, nothing taken for a request."""
    plain = " ".join((text or "").replace("\\", "\\e").split())
    plain = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", plain.replace("-", "\\-"))
    return re.sub(r"^([.'])", r"\\&\1", plain)


def man() -> str:
    """The whole of docs/fleetopt.1."""
    told = HEAD.partition("says the same.\n\n")[2]
    lines = [
        f'.TH FLEETOPT 1 "" "fleetopt {__version__}" "User Commands"',
        ".SH NAME",
        f"fleetopt \\- {roff(app.info.help)}",
    ]
    lines += [
        ".SH SYNOPSIS",
        ".B fleetopt",
        ".I COMMAND",
        "[OPTIONS] ...",
        ".SH DESCRIPTION",
        roff(told),
        ".SH COMMANDS",
    ]
    for path, command in commands(get_command(app), ("fleetopt",)):
        parts = "\n.PP\n".join(roff(part) for part in (command.help or "").split("\n\n"))
        lines += [f".SS {roff(usage(path, command))}", parts]
        for names, told in rows(command):
            lines += [".TP", roff(names), roff(told.replace("\\|", "|")) or "\\&"]
    lines += [".SH OPTIONS IN FILES", roff(FILES.partition("\n\n")[2].partition("The last column")[0])]
    for name, option in OPTIONS.items():
        lines += [".TP", f"\\fB{roff(name)}\\fR", roff(f"{option.told} [{option.kind.unit}]")]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    MAN.write_text(man(), encoding="utf-8")
    TABLE.write_text(completion(), encoding="utf-8")
    DOCUMENT.write_text(document(), encoding="utf-8")
    print(f"wrote {DOCUMENT}")
