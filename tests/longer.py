"""What is left to the long checks, and why: ``python tests/longer.py`` writes ``tests/long.md`` from the marks of the tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent
LIST = TESTS / "long.md"
HEAD = """# What is marked `long`

Written by `python tests/longer.py` from the marks; `tests/test_longer.py` holds it. Run by `.ci/long` (`FLEETOPT_LONG=1`).

| file | tests | why |
|---|---|---|
"""


def marks(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Every ``pytest.mark.long`` in what was parsed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "long" and ast.unparse(node.value) == "pytest.mark":
            yield node


def rows(path: Path) -> list[tuple[str, str]]:
    """Tests of a file that are marked, those of which only some cases are with a ``(some)``, each with its reason; a ValueError
    where a mark gives none."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    every = {*marks(tree)}
    reasons = {
        call.func: str(ast.literal_eval(call.args[0]))
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and call.func in every and call.args
    }
    if missing := [mark.lineno for mark in every - reasons.keys()]:
        raise ValueError(f"{path.name}:{min(missing)}: pytest.mark.long without a reason")
    # cases that stand in lists above their tests
    listed = {
        name.id: [*marks(node)]
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    found = []
    for test in tree.body:
        if isinstance(test, ast.FunctionDef):
            for decorator in test.decorator_list:
                whole = isinstance(decorator, ast.Call) and decorator.func in reasons
                here = [*marks(decorator)]
                for name in ast.walk(decorator):
                    here += listed.get(name.id, []) if isinstance(name, ast.Name) else []
                found += [(f"`{test.name}`" + ("" if whole else " (some)"), reasons[mark]) for mark in here]
    return list(dict.fromkeys(found))


def text() -> str:
    """The list."""
    lines = [
        f"| {path.relative_to(TESTS)} | {test} | {why} |\n"
        for path in sorted(TESTS.rglob("test_*.py"))
        for test, why in rows(path)
    ]
    return HEAD + "".join(lines)


if __name__ == "__main__":
    LIST.write_text(text(), encoding="utf-8")
