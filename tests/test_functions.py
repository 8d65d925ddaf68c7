"""Functions that a reader takes in: code lines, parameters and a docstring; ruff holds their branches (pyproject.toml)."""

from __future__ import annotations

import ast
import io
import tokenize
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "planner"

LINES = 60
PARAMETERS = 8
FEW = 8
"""Lines with statements up to which a private function may do without a docstring."""

SIGNATURE = "a line or more per option, which shells and editors complete; what it does is short"
FORWARDED = "takes what the verb or command of its name takes, by keyword"
ONE_FORMULA = "one formula, its terms in the order of the page that derives it"
FIELDS = "keeps what it is given: a field per parameter, most of them by the names of the paper or the engine"
INNER_LOOP = "an inner loop: a call per step would cost more than the step does"
IN_STEPS = "one procedure whose steps share most of what they know; a step of its own has a function"
QUANTITIES = "a formula of that many quantities, by the names of its source"
SETTINGS = "independent settings of one run, most by keyword with a default"

LONG = {
    "calibrate/closed_loop.py: loop_times": ONE_FORMULA,
    "calibrate/microbench.py: measure": SIGNATURE,
    "cli/calibrate.py: calibrate": SIGNATURE,
    "cli/workload.py: import_": SIGNATURE,
    "calibrate/servers.py: fit_server": IN_STEPS,
    "machine/roofline.py: roofline": ONE_FORMULA,
}
"""Functions of more than :data:`LINES` code lines -> why."""

WIDE = {
    "fluid/rad.py: inv_mu_lin": QUANTITIES,
    "predict/disaggregated.py: DecodePool.__init__": FIELDS,
    "papers/compare.py: compared": FORWARDED,
    "papers/policies/eb_plus.py: EbPlus.__init__": FIELDS,
    "papers/pool.py: simulate": SETTINGS,
    "workload/formats/sql.py: query": FORWARDED,
    "workload/workload.py: Workload.from_arrays": FIELDS,
}
"""Functions of more than :data:`PARAMETERS` parameters -> why. Commands and verbs are as wide as what they can be asked."""

SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


@cache
def functions() -> tuple[tuple[str, str, ast.FunctionDef], ...]:
    """(path and qualified name, text of the file, node) of every function, those inside others too."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        open_ones: list[tuple[str, ast.AST]] = [("", ast.parse(text))]
        while open_ones:
            outer, node = open_ones.pop()
            for child in ast.iter_child_nodes(node):
                name = outer
                if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                    name += child.name + (".<locals>." if isinstance(child, ast.FunctionDef) else ".")
                if isinstance(child, ast.FunctionDef):
                    found.append((f"{path.relative_to(ROOT).as_posix()}: {outer}{child.name}", text, child))
                open_ones.append((name, child))
    return tuple(found)


def code_lines(text: str) -> set[int]:
    """Lines that hold code: docstrings, comments and blank lines do not."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def lengths() -> dict[str, tuple[int, int]]:
    """Code lines of every function that spans a page: in all, and behind its signature."""
    known: dict[str, set[int]] = {}
    found = {}
    for name, text, node in functions():
        if (node.end_lineno or node.lineno) - node.lineno < LINES:
            continue
        if text not in known:
            known[text] = code_lines(text)
        own = [k for k in known[text] if node.lineno <= k <= (node.end_lineno or node.lineno)]
        found[name] = len(own), sum(k >= node.body[0].lineno for k in own)
    return found


def test_functions_are_within_a_page() -> None:
    found = lengths()
    assert sorted(name for name, (lines, _) in found.items() if lines > LINES and name not in LONG) == []
    assert sorted(name for name in LONG if name not in found or found[name][0] <= LINES) == [], "listed, and short"
    hidden = [name for name, why in LONG.items() if why == SIGNATURE and found[name][1] > LINES]
    assert hidden == [], "long behind the signature too"


LENT = {
    alias.name: node.module
    for node in ast.parse((ROOT / "__init__.pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
"""Public name -> the module it lies in."""


def as_wide_as_asked(name: str) -> bool:
    """Commands, and the verbs of the Python interface."""
    path, _, function = name.partition(": ")
    module = "planner." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    verb = module == LENT.get(function)
    return verb or (path.startswith("cli/") and not function.startswith("_") and path != "cli/options.py")


def test_functions_take_few_parameters() -> None:
    wide = set()
    for name, _, node in functions():
        taken = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        if len([a for a in taken if a not in ("self", "cls")]) > PARAMETERS and not as_wide_as_asked(name):
            wide.add(name)
    assert sorted(wide - WIDE.keys()) == []
    assert sorted(WIDE.keys() - wide) == [], "listed, and narrow"


def explained(node: ast.FunctionDef, name: str) -> bool:
    """Whether a function has a docstring, or needs none: dunder methods are explained by their class, overloads below them."""
    if ast.get_docstring(node) or (node.name.startswith("__") and node.name.endswith("__")):
        return True
    if any("overload" in ast.unparse(d) for d in node.decorator_list):
        return True
    private = any(part.startswith(("_", "<")) for part in name.partition(": ")[2].split("."))
    statements = {n.lineno for n in ast.walk(node) if isinstance(n, ast.stmt)} - {node.lineno}
    return private and len(statements) <= FEW


def test_functions_say_what_they_do() -> None:
    """Every public one; of the private ones, and of those inside others, all but the short."""
    silent = [name for name, _, node in functions() if not explained(node, name)]
    assert silent == []
