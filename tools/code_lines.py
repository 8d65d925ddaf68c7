"""Code lines of ``planner/`` by room: ``python tools/code_lines.py [REVISION ...]``, ``--write`` for docs/house.md.

Lines that hold code, of Python, C and templates: docstrings, comments and blank lines do not count, every line of a statement over
several lines does. A column per revision, the working tree without any. Lines of data in YAML, without comments and blanks, are
counted apart.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip

C_LIKE = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|//[^\n]*|/\*.*?\*/""", re.DOTALL)
"""Strings, which stay, and comments."""

COMMENTS = {
    **dict.fromkeys((".c", ".h", ".js"), C_LIKE),
    ".css": re.compile(r"()/\*.*?\*/", re.DOTALL),
    **dict.fromkeys((".html", ".jinja", ".j2"), re.compile(r"()(?:<!--.*?-->|\{#.*?#\})", re.DOTALL)),
}
"""Ending of a file that holds code but is not Python -> its comments, and in a group what looks like one and stays."""

DATA = (".yaml", ".yml")


def code_lines(source: str) -> int:
    """Lines of a module that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def lines_of(path: str, source: str) -> int:
    """Lines of a file that are neither blank nor comment."""
    ending = PurePosixPath(path).suffix
    if ending == ".py":
        return code_lines(source)
    if ending in DATA:
        return sum(bool(line.strip()) and line.strip()[0] != "#" for line in source.splitlines())
    bare = COMMENTS[ending].sub(lambda found: found[1] or "\n" * found[0].count("\n"), source)
    return sum(bool(line.strip()) for line in bare.splitlines())


def sources(revision: str | None, endings: Container[str]) -> Iterator[tuple[str, str]]:
    """Path and text of every file with one of these endings, of a revision or of the working tree."""
    if revision is None:
        for path in sorted((ROOT / "planner").rglob("*")):
            if path.suffix in endings:
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        return
    listed = _git("ls-tree", "-r", "--name-only", revision, "planner").splitlines()
    yield from ((path, _git("show", f"{revision}:{path}")) for path in listed if PurePosixPath(path).suffix in endings)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def room_of(path: str) -> str:
    """The folder below ``planner/``; files beside the folders are one room."""
    parts = PurePosixPath(path).parts
    return f"{parts[1]}/" if len(parts) > 2 else "files beside the rooms"


def counted(revision: str | None, endings: Container[str]) -> Counter[str]:
    """Lines by room."""
    found: Counter[str] = Counter()
    for path, source in sources(revision, endings):
        found[room_of(path)] += lines_of(path, source)
    return found


def table(head: str, columns: dict[str, Counter[str]]) -> str:
    """Rows of the rooms, and their sum, as markdown."""
    rows = [(room, [column[room] for column in columns.values()]) for room in sorted(set().union(*columns.values()))]
    rows.append(("**all**", [column.total() for column in columns.values()]))
    lines = [
        f"| {room} | {' | '.join(f'{number:,}' if number else '-' for number in numbers)} |" for room, numbers in rows
    ]
    return "\n".join([f"| {head} | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}", *lines])


def main(words: list[str]) -> None:
    """Print markdown tables, or write those of today at the end of docs/house.md."""
    names: list[str | None] = [word for word in words if word != "--write"]
    text = "\n\n".join(
        table(head, {name or "today": counted(name, endings) for name in names or [None]})
        for head, endings in (("room", {".py", *COMMENTS}), ("data in YAML", DATA))
    )
    if "--write" not in words:
        print(text)
        return
    house = ROOT / "docs" / "house.md"
    before, mark, _ = house.read_text(encoding="utf-8").partition("## Today\n")
    house.write_text(f"{before}{mark}\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
