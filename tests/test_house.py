"""The house: no circle of imports, no private name across modules, names compared in their own place, nothing unreachable."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools.code_lines import code_lines, constants, inside

ROOT = Path(__file__).resolve().parents[1] / "planner"

MATHEMATICS = "a published formula, offered to those who read and reuse the mathematics; held by its golden values"
REFERENCE = "the reference that approximations and the simulator's engines are tested against"

UNREACHED = {
    "TP_EB": MATHEMATICS,
    "NCorr": MATHEMATICS,
    "N_corr": MATHEMATICS,
    "nested_M_req": MATHEMATICS,
    "Tbar_R_chunk_tcol_lower_bound_c1": MATHEMATICS,
    "_work_bound": MATHEMATICS,
    "erlang_c": MATHEMATICS,
    "mean_wait": MATHEMATICS,
    "phase_type_wait": REFERENCE,
}
"""Definitions that no command, verb or registry reaches -> why they stay."""

OWN_PLACES = {
    "routing": ("routing.py", "queueing/", "papers/", "question/options.py"),
    "method": ("predict/methods/", "question/options.py"),
    "shape": ("size/shapes/", "question/options.py", "plans.py"),
    "engine": ("catalog/", "calibrate/", "report/", "question/options.py"),
}
"""Kind of thing -> where its names may be compared: its records, and the mathematics that has laws of those names."""

NAMES = {
    "routing": {"random", "rr", "p2c", "least", "least-kv", "central", "jsq"},
    "method": {"mixed", "closed", "occupancy", "mgc"},
    "shape": {"colocated", "disaggregated"},
    "engine": {"vllm", "sglang", "trtllm"},
}

OTHER_MEANINGS = {
    "predict/batch.py": "a kind of engine of a replay is called mixed",
    "predict/checks.py": "a kind of engine of a replay is called mixed",
    "predict/replayed.py": "a kind of engine of a replay is called mixed",
    "papers/presets.py": "a kind of engine of a replay is called mixed",
    "papers/policies/eb_plus.py": "a mode of the EB+ policy is called mixed",
    "calibrate/fit.py": "a kind of measured batch is called mixed",
    "calibrate/servers.py": "a kind of measured batch is called mixed",
    "calibrate/points.py": "a kind of measured batch is called mixed",
    "calibrate/closed_loop.py": "how a measured server schedules is called mixed",
    "report/text/why.py": "how a plan of a shape is laid out on a page",
    "report/text/plan.py": "how a plan of a shape is laid out on a page",
}


@cache
def sources() -> dict[str, ast.Module]:
    """Path below planner/ -> syntax tree."""
    return {str(p.relative_to(ROOT)): ast.parse(p.read_text(encoding="utf-8")) for p in sorted(ROOT.rglob("*.py"))}


def module_of(path: str) -> str:
    return "planner." + path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def imports(tree: ast.Module, deferred: bool = True) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Modules imported in a file, for type checking too, with the names taken; those of functions when `deferred`."""
    blocks: list[ast.AST] = [tree]
    while blocks:
        for node in ast.iter_child_nodes(blocks.pop()):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("planner"):
                yield node.module, tuple(a.name for a in node.names)
            elif isinstance(node, ast.Import):
                yield from ((a.name, ()) for a in node.names if a.name.startswith("planner."))
            elif deferred or not isinstance(node, (ast.FunctionDef, ast.Lambda)):
                blocks.append(node)


def test_no_circle_of_imports() -> None:
    known = {module_of(path) for path in sources()}
    graph: dict[str, set[str]] = {}
    for path, tree in sources().items():
        if path in ("__init__.py", "__main__.py"):
            continue
        found = set()
        for target, names in imports(tree, deferred=False):
            found |= {f"{target}.{n}" for n in names if f"{target}.{n}" in known} or {target}
        graph[module_of(path)] = {t for t in found if t != "planner"}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail[trail.index(module) :], module))
        if module in done:
            return
        for target in sorted(graph.get(module, ())):
            visit(target, (*trail, module))
        done.add(module)

    for module in sorted(graph):
        visit(module, ())


def test_no_private_name_is_imported_from_another_module() -> None:
    taken = [
        f"{path}: {name} of {module}"
        for path, tree in sources().items()
        for module, names in imports(tree)
        for name in names
        if name.startswith("_") and not name.startswith("__")
    ]
    assert not taken


def compared(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Strings that something is compared with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(
            isinstance(o, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)) for o in node.ops
        ):
            for side in (node.left, *node.comparators):
                for part in ast.walk(side):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield node.lineno, part.value


def test_names_are_compared_in_their_own_place() -> None:
    strangers = []
    for path, tree in sources().items():
        for line, text in compared(tree):
            for kind, names in NAMES.items():
                if text in names and not path.startswith(OWN_PLACES[kind]) and path not in OTHER_MEANINGS:
                    strangers.append(f"{path}:{line}: {text} ({kind})")
    assert not strangers


FOUND_BY_NAME = re.compile(
    r"planner\.(report\.(exports\..*:render|text\..*:of_\w+)|operate\.deploy\.targets\..*:(render|address))"
)
"""What registries call by its name (tests/report/test_registries.py holds that nothing else is called so)."""

Definition = tuple[str, str]
"""Module and name."""


class House:
    """Which definition a name means where it stands: the module's own, or that of the module it is imported from."""

    def __init__(self) -> None:
        self.trees = {module_of(path): tree for path, tree in sources().items()}
        self.defined = {
            module: {n.name: n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
            for module, tree in self.trees.items()
        }
        self.taken: dict[str, dict[str, Definition]] = {}
        for module, tree in self.trees.items():
            froms = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module]
            self.taken[module] = {a.asname or a.name: (n.module or "", a.name) for n in froms for a in n.names}

    def meant(self, module: str, name: str) -> set[Definition]:
        """The definitions behind a name: an import in a function may hide one of the module."""
        found = {(module, name)} if name in self.defined.get(module, ()) else set()
        origin = self.taken.get(module, {}).get(name)
        return found | (self.meant(*origin) if origin and origin != (module, name) else set())

    def used(self, module: str, node: ast.AST) -> set[Definition]:
        """What a piece of code names, ``module.name`` included."""
        found: set[Definition] = set()
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                found |= self.meant(module, part.id)
            elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                origin = self.taken[module].get(part.value.id)
                found |= self.meant(".".join(origin), part.attr) if origin else set()
        return found

    def roots(self) -> Iterator[Definition]:
        """Commands, verbs, what registries find, and what stands outside of definitions."""
        for module, tree in self.trees.items():
            for node in tree.body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    command = module.startswith("planner.cli.") and (node.name[0] != "_" or bool(node.decorator_list))
                    asked = command or node.name.startswith("__")
                    if asked or FOUND_BY_NAME.fullmatch(f"{module}:{node.name}"):
                        yield module, node.name
                else:
                    exported = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
                    yield from () if exported else self.used(module, node)
        # verbs, and the records that they give
        lent = ast.parse((ROOT / "__init__.pyi").read_text(encoding="utf-8"))
        yield from ((module, name) for module, names in imports(lent) for name in names if name[0] != "_")


def test_every_definition_is_reached() -> None:
    """From the command line, the verbs and the registries; a definition only mentioned by itself is not."""
    house = House()
    reached: set[Definition] = set()
    open_ones = [*house.roots()]
    while open_ones:
        module, name = one = open_ones.pop()
        if one not in reached:
            reached.add(one)
            open_ones += house.used(module, house.defined[module][name])
    every = {(module, name) for module, own in house.defined.items() for name in own if not name.startswith("__")}
    lost = {name: module for module, name in every - reached}
    assert sorted(f"{module}: {name}" for name, module in lost.items() if name not in UNREACHED) == []
    assert sorted(UNREACHED.keys() - lost.keys()) == [], "listed, and reached"


CONSTANTS, WITHIN = 500, 1297
"""Constants of planner/ outside of data files, and numbers inside its functions that are not plain (tools/code_lines.py says what
counts), at most: a hundred and fifty are aimed at, and a number put into a function instead is seen."""

COMMENT = re.compile(r"#(?! (fmt|noqa|type))")


def explained(body: list[ast.stmt], node: ast.stmt, own: set[int], lines: list[str]) -> bool:
    """Whether a constant has a docstring below, or a comment beside or above: its own, or one of those it stands among."""
    first = last = body.index(node)
    while first > 0 and id(body[first - 1]) in own:
        first -= 1
    while last + 1 < len(body) and id(body[last + 1]) in own:
        last += 1
    after = body[last + 1] if last + 1 < len(body) else None
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
        return True
    return any(COMMENT.search(line) for line in lines[max(body[first].lineno - 2, 0) : node.end_lineno])


def test_constants_do_not_grow_and_say_where_they_come_from() -> None:
    count, unexplained = 0, []
    for path, tree in sources().items():
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        found = list(constants(tree))
        own = {id(node) for _, node, _ in found}
        count += len(found)
        unexplained += [f"{path}: {name}" for body, node, name in found if not explained(body, node, own, lines)]
    assert not unexplained, "a number of a model has a source, a limit a reason: in a docstring or comment"
    within = sum(map(inside, sources().values()))
    assert (count <= CONSTANTS, within <= WITHIN) == (True, True), f"{count} constants, {within} inside functions"


def test_benchmarks_are_few_packages_of_one_entry() -> None:
    folder = ROOT.parent / "benchmarks"
    scripts = sorted(folder.rglob("*.py"))
    packages = {path.relative_to(folder).parts[0] for path in scripts}
    assert packages == {"accuracy", "papers", "peers", "search", "speed"}
    assert [name for name in packages if not (folder / name / "__main__.py").is_file()] == []
    assert len(scripts) <= 25
    assert sum(code_lines(path.read_text(encoding="utf-8")) for path in scripts) <= 3500
