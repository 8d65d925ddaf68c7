"""Code lines and constants of ``planner/`` by room: ``python tools/code_lines.py [REVISION ...]``, ``--write`` for docs/README.md.

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

PYTHON, DATA = (".py", ".pyi"), (".yaml", ".yml")


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
    if ending in PYTHON:
        return code_lines(source)
    if ending in DATA:
        return sum(bool(line.strip()) and line.strip()[0] != "#" for line in source.splitlines())
    bare = COMMENTS[ending].sub(lambda found: found[1] or "\n" * found[0].count("\n"), source)
    return sum(bool(line.strip()) for line in bare.splitlines())


PLAIN = {0, 1, 2, 0.5, 10, 100, 1000}
"""Numbers that need no name."""

MADE_BY = {"array", "log", "exp", "sqrt", "ldexp", "frozenset"}
"""Functions that make a number or an array of numbers."""


def is_number(node: ast.expr | None) -> bool:
    """Whether an expression is made of numbers, and of other constants' names beside one."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return not isinstance(value, bool)
        case ast.UnaryOp(operand=inner):
            return is_number(inner)
        case ast.BinOp(left=left, right=right):
            several = (left, right)
            return any(map(is_number, several)) and all(is_number(n) or isinstance(n, ast.Name) for n in several)
        case ast.Tuple(elts=several) | ast.List(elts=several) | ast.Set(elts=several) | ast.Dict(values=several):
            return bool(several) and all(map(is_number, several))
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=several):
            return name in MADE_BY and bool(several) and all(map(is_number, several))
    return False


def constants(tree: ast.Module) -> Iterator[tuple[list[ast.stmt], ast.stmt, str]]:
    """Every constant of a module and of its classes: the statements it stands among, its own, and its name."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for body in (tree.body, *(node.body for node in classes)):
        for node in body:
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                    pairs = [*zip(names, values, strict=True)]
                case ast.Assign(targets=[name], value=value):
                    pairs = [(name, value)]
                case ast.AnnAssign(target=name, value=ast.expr() as value):
                    pairs = [(name, value)]
                case _:
                    continue
            found = [ast.unparse(name) for name, value in pairs if is_number(value)]
            # in a class, other names are fields with a default, or what a kind of thing says of itself
            yield from ((body, node, name) for name in found if body is tree.body or name.isupper())


def inside(tree: ast.Module) -> int:
    """Numbers inside functions that are not plain."""
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.Lambda))]
    found = {n for f in functions for n in ast.walk(f) if isinstance(n, ast.Constant) and is_number(n)}
    return sum(abs(n.value) not in PLAIN for n in found)  # type: ignore[arg-type]


def numbers(revision: str | None) -> dict[str, Counter[str]]:
    """Constants, and numbers inside functions, by room."""
    found: dict[str, Counter[str]] = {"constants": Counter(), "numbers inside functions": Counter()}
    for path, source in sources(revision, {".py"}):
        tree = ast.parse(source)
        found["constants"][room_of(path)] += len(list(constants(tree)))
        found["numbers inside functions"][room_of(path)] += inside(tree)
    return found


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
    """Print markdown tables, or write those of today at the end of docs/README.md."""
    names: list[str | None] = [word for word in words if word != "--write"]
    text = "\n\n".join(
        table(head, {name or "today": counted(name, endings) for name in names or [None]})
        for head, endings in (("room", {*PYTHON, *COMMENTS}), ("data in YAML", DATA))
    )
    text += "".join(
        f"\n\n{table(f'numbers, {name}' if name else 'numbers', numbers(name))}" for name in names or [None]
    )
    if "--write" not in words:
        print(text)
        return
    house = ROOT / "docs" / "README.md"
    before, mark, _ = house.read_text(encoding="utf-8").partition("### Today\n")
    house.write_text(f"{before}{mark}\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
