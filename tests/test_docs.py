"""What documents say holds: command lines parse, fast ones run, links and named files exist, generated parts are current."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from planner.cli.main import app
from planner.errors import InputError
from planner.workload.formats.registry import format_names
from planner.workload.resolve import resolve_workload

pytestmark = pytest.mark.usefixtures("fewer_replayed")

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]
)
GENERATED = {"cli.md", "page.md"}
FAST = ("plan", "evaluate", "what-if", "profile", "workload", "batching", "stability", "wait", "reproduce")


def _code_lines(text: str) -> Iterator[str]:
    """Lines of fenced blocks and of indented ones, continuations joined."""
    fenced, pending = False, ""
    for raw in text.splitlines():
        if raw.strip().startswith("```"):
            fenced = not fenced
            continue
        if fenced or raw.startswith("    "):
            line = pending + raw.strip()
            pending = line.removesuffix("\\") if line.endswith("\\") else ""
            if not pending:
                yield line


def _commands() -> list[tuple[str, list[str]]]:
    """Every ``fleetopt ...`` of the documents: (where, arguments)."""
    found = []
    for path in DOCUMENTS:
        if path.name in GENERATED:
            continue
        for line in _code_lines(path.read_text(encoding="utf-8")):
            for part in re.split(r"&&|;|\s\|\s|\s>\s", line.removeprefix("$ ")):
                if not re.match(r"^\s*(\.venv/bin/)?fleetopt\s", part):
                    continue
                # optional parts are written in brackets, what it is for as a comment
                words = shlex.split(part.replace("[", " ").replace("]", " "), comments=True)
                found.append((f"{path.relative_to(ROOT)}: {' '.join(words)}", words[1:]))
    return found


COMMANDS = _commands()


def _parse(arguments: list[str]) -> list[str]:
    """Walk to the command and parse its options; the words that name it."""
    command: Any = get_command(app)
    words, rest = [], list(arguments)
    while hasattr(command, "commands"):
        if rest and rest[0] in ("--version", "--help", "-h"):
            return words
        assert rest and rest[0] in command.commands, f"no command {' '.join([*words, *rest[:1]])}"
        command = command.commands[rest[0]]
        words.append(rest.pop(0))
    if not {"--help", "-h"} & set(rest):
        command.make_context(" ".join(words), rest)
    return words


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tool_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up while it is being made

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _exists(word: str) -> bool:
    try:
        resolve_workload(word)
    except InputError:
        return Path(word).exists()
    return True


def test_documents_have_commands() -> None:
    assert len(COMMANDS) > 10


@pytest.mark.parametrize(("where", "arguments"), COMMANDS, ids=[where for where, _ in COMMANDS])
def test_command_lines_parse(where: str, arguments: list[str]) -> None:
    _parse(arguments)


def _runs_here(arguments: list[str]) -> bool:
    files = [w for w in arguments if re.search(r"\.(csv|jsonl?|ya?ml)$", w)]
    return (
        arguments[0] in FAST
        and not {"-o", "--output", "--verify", "-"} & set(arguments)
        and all(_exists(w) for w in files)
        and "mine" not in arguments
    )


RUNNABLE = [
    pytest.param(
        where,
        arguments,
        id=where,
        marks=pytest.mark.long("command lines of many plans; the others in CI") if arguments[0] == "what-if" else (),
    )
    for where, arguments in COMMANDS
    if _runs_here(arguments)
]


@pytest.mark.parametrize(("where", "arguments"), RUNNABLE)
def test_fast_command_lines_run(where: str, arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, f"{where}\n{result.output}\n{result.exception!r}"
    assert result.stdout.strip()


def _anchors(path: Path) -> set[str]:
    """What the headings of a document are called in links."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    broken = []
    for path in DOCUMENTS:
        for target, anchor in re.findall(r"\]\(([^)\s#]*)(?:#([^)]*))?\)", path.read_text(encoding="utf-8")):
            file = path.parent / target if target else path
            if re.match(r"[a-z]+:", target):
                continue
            if not file.exists() or (anchor and file.suffix == ".md" and anchor not in _anchors(file)):
                broken.append(f"{path.relative_to(ROOT)}: {target}#{anchor}")
    assert not broken


def test_named_files_exist() -> None:
    """Scripts, tests and modules that a document names in full."""
    pattern = re.compile(r"\b((?:benchmarks|tools|tests|examples|planner|docs)/[\w/.-]*\w\.(?:py|md|json|yaml|csv))\b")
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in DOCUMENTS
        for name in pattern.findall(path.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    ]
    assert not missing


def test_the_map_of_rooms_names_files_that_are_there() -> None:
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`planner/.*?) \| (.*) \|$", text, re.MULTILINE)
    missing = [
        name
        for where, what in rows
        for name in re.findall(r"`([\w/]+(?:\.py|\.c|\.yaml|/))`", what)
        if not any((ROOT / room / name).exists() for room in (*re.findall(r"`(planner/[\w/]*)`", where), "planner"))
    ]
    assert rows and not missing


def test_command_reference_is_current() -> None:
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    made = _script("cli_docs")
    assert written == made.document(), "run python tools/cli_docs.py"
    assert (made.MAN.read_text(encoding="utf-8"), made.TABLE.read_text(encoding="utf-8")) == (
        made.man(),
        made.completion(),
    )


def test_signatures_are_current() -> None:
    made = _script("signatures")
    for path in made.MODULES:
        text = path.read_text(encoding="utf-8")
        assert text == made.written(text), "run python tools/signatures.py"


@pytest.mark.long("papers are reproduced")
def test_papers_are_current() -> None:
    for path, text in _script("papers").written().items():
        assert path.read_text(encoding="utf-8") == text, "run python -m benchmarks.papers"


def test_every_part_of_accuracy_is_in_the_index() -> None:
    from benchmarks.accuracy.__main__ import PAGES

    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    headings = {line[3:].lower() for line in page.splitlines() if line.startswith("## ")}
    missing = [name for name in PAGES if f"](#{name}) |" not in page or name not in headings]
    assert not missing, "a line of it is missing; python -m benchmarks.accuracy PART brings it up to date"


def test_the_documents_stay_few() -> None:
    """24 pages and 55,000 words, those that are generated among them."""
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/accuracy/*.md")]
    assert len(pages) <= 24
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= 55_000


def test_measured_systems_are_told_as_they_are() -> None:
    """The page of measured systems and its lines in the index have the figures that are committed."""
    from benchmarks.accuracy.rows import Row, missed, public
    from tools.tables import renewed

    rows = json.loads((ROOT / "docs" / "accuracy" / "figures.json").read_text(encoding="utf-8"))["rows"]
    committed = [Row(**row) for row in rows]
    told = public(committed)
    page = (ROOT / "docs" / "accuracy" / "public.md").read_text(encoding="utf-8")
    index = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert renewed(page, "figures", told.blocks["figures"]) == page, "run python -m benchmarks.accuracy"
    assert renewed(index, "bars", missed(committed)) == index, "run python -m benchmarks.accuracy"
    assert "|  |" not in missed(committed), "a bar that is missed says why (benchmarks/accuracy/bars.csv)"
    assert [part for part, *_ in told.index if f"[{part}](accuracy/public.md)" not in index] == []


def test_formats_are_counted() -> None:
    words = {18: "eighteen", 19: "nineteen", 20: "twenty", 21: "twenty-one", 22: "twenty-two"}
    said = words[len(format_names())]
    for name in ("README.md", "CHANGELOG.md"):
        assert re.search(rf"\b{said}( import)? formats\b", (ROOT / name).read_text(encoding="utf-8"), re.IGNORECASE)
    table = (ROOT / "docs/workloads.md").read_text(encoding="utf-8")
    assert [name for name in format_names() if f"| `{name}`" not in table] == []
