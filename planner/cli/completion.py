"""``fleetopt`` as it is started: words that a shell wants completed are told from a table, anything else is a command.

The shell asks as the framework's scripts do (``fleetopt --install-completion``), which load this file alone: no table of options is
built, no number read. The table is written by ``python tools/cli_docs.py``.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

TABLE = Path(__file__).with_suffix(".json")


def run() -> None:
    """Entry point."""
    shell = os.environ.get("_FLEETOPT_COMPLETE", "").removeprefix("complete_")
    if shell not in ("bash", "zsh", "fish"):
        from planner.cli import sign

        sign.begin(sys.argv[1:])
        try:
            from planner.cli.main import run as command

            return command()
        finally:
            sign.clear()
    words, last = asked(os.environ)
    found = [(word, told) for word, told in candidates(words) if word.startswith(last) and (last or word[0] != "-")]
    if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        # names of files are offered where there is nothing else
        sys.exit(not found)
    print(answer(shell, found))


def asked(environment: Mapping[str, str]) -> tuple[list[str], str]:
    """The words before the one to complete, without the command's own name, and what is there of that one."""
    if "_TYPER_COMPLETE_ARGS" in environment:
        line = environment["_TYPER_COMPLETE_ARGS"]
        words = line.split()
        return (words[1:], "") if line[-1:].isspace() else (words[1:-1], words[-1] if len(words) > 1 else "")
    words, at = (
        environment["COMP_WORDS"].split("\n" if "\n" in environment["COMP_WORDS"] else None),
        int(environment["COMP_CWORD"]),
    )
    return words[1:at], words[at] if at < len(words) else ""


def candidates(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Words that may follow, each with what it is; nothing where a file or a number does."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    options, names = table, list(words)
    while "commands" in options:
        name = next((w for w in names if not w.startswith("-")), "")
        if name not in options["commands"]:
            yield from ((command, inner["help"]) for command, inner in options["commands"].items())
            return
        names = names[names.index(name) + 1 :]
        options = options["commands"][name]
    kinds = options["options"]
    kind = kinds.get(names[-1], [None])[0] if names else None
    if kind is None:
        yield from ((option, told) for option, (_, told) in kinds.items())
        kind = options["argument"]
    yield from ((value, "") for value in table["values"].get(kind) or named(kind))


def named(kind: str) -> Iterator[str]:
    """Names of what there is of a kind: files of a folder, GPUs of their file."""
    from planner.catalog.load import FOLDER, user_directory

    if kind == "gpu":
        _, _, listed = (FOLDER / "gpus.yaml").read_text(encoding="utf-8").partition("\ngpus:\n")
        yield from re.findall(r"^  ([\w.-]+):", listed, re.MULTILINE)
    package = FOLDER.parent
    folders = {
        "model": (FOLDER / "models",),
        "profile": (user_directory(), FOLDER / "profiles"),
        "workload": (package / "_workloads", package.parent / "workloads"),
    }
    for folder in folders.get(kind, ()):
        yield from sorted(path.stem for path in folder.glob("*.*") if path.suffix in (".json", ".yaml", ".csv"))


def answer(shell: str, found: Sequence[tuple[str, str]]) -> str:
    """The words as a shell wants them."""
    if shell == "bash":
        return "\n".join(word for word, _ in found)
    if shell == "fish":
        return "\n".join(f"{word}\t{told}" if told else word for word, told in found)
    quoted = [f'"{_escaped(word)}"' + (f':"{_escaped(told)}"' if told else "") for word, told in found]
    return "_arguments '*: :(({}))'".format("\n".join(quoted)) if quoted else "_files"


def _escaped(text: str) -> str:
    """Text in a list of zsh."""
    for mark, instead in (('"', '""'), ("'", "''"), ("$", "\\$"), ("`", "\\`"), (":", "\\\\:")):
        text = text.replace(mark, instead)
    return text
