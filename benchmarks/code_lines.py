"""Code lines of ``planner/`` by room: ``python benchmarks/code_lines.py [REVISION ...]``.

Lines that hold code: docstrings, comments and blank lines do not count, every line of a statement over several lines does. A column
per revision, the working tree without any.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


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


def sources(revision: str | None) -> Iterator[tuple[str, str]]:
    """Path and text of every module, of a revision or of the working tree."""
    if revision is None:
        for path in sorted((ROOT / "planner").rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        return
    listed = _git("ls-tree", "-r", "--name-only", revision, "planner").splitlines()
    yield from ((path, _git("show", f"{revision}:{path}")) for path in listed if path.endswith(".py"))


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def by_room(revision: str | None) -> Counter[str]:
    """Code lines by folder below ``planner/``; files beside the folders are one room."""
    found: Counter[str] = Counter()
    for path, source in sources(revision):
        parts = PurePosixPath(path).parts
        found[f"{parts[1]}/" if len(parts) > 2 else "files beside the rooms"] += code_lines(source)
    return found


def main(revisions: list[str]) -> None:
    """Print a markdown table."""
    columns = [by_room(revision) for revision in revisions] or [by_room(None)]
    print("| room | " + " | ".join(revisions or ["today"]) + " |\n|---|" + "---:|" * len(columns))
    for room in sorted(set().union(*columns)):
        print(f"| {room} | " + " | ".join(f"{column[room]:,}" if column[room] else "-" for column in columns) + " |")
    print("| **all** | " + " | ".join(f"**{column.total():,}**" for column in columns) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
