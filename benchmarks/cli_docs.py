"""Write docs/cli.md from the command line itself: ``python benchmarks/cli_docs.py``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from planner.cli.main import app
from planner.question.options import OPTIONS

ANCHOR = "options-of-several-commands"
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "cli.md"

FILES = """## Options in files

A configuration file (YAML or JSON, `--config FILE`, or in place of a plan file) holds options under the names below, which are
those of `--set NAME=VALUE` and of `planner.plan(NAME=VALUE)` too. Defaults < file < scenario < command line. Promises replace those
about the same metric. `scenarios:` (name -> options that differ) is for `--scenario` and `what-if`, `classes:` (name -> options)
for classes of requests. A single value of `--set` that is a list is written `h100+l40s`. The last column: what `evaluate --set` may
change of a fleet that stands, and what needs a new plan.
"""

HEAD = """# Command line

Written by `python benchmarks/cli_docs.py` from the commands themselves; `fleetopt COMMAND --help` says the same.

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
            known = f" Default: {default}." if isinstance(default, (int, float, str)) and not p.is_flag else ""
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


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
    print(f"wrote {DOCUMENT}")
