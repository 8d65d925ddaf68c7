"""The house: no circle of imports, no private name across modules, names compared in their own place, nothing unreachable."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "planner"

MATHEMATICS = "a published formula, offered to those who read and reuse the mathematics; held by its golden values"
REFERENCE = "the reference that approximations and the simulator's engines are tested against"

UNREACHED = {
    "closed_loop_tpot": REFERENCE,
    "idle_ttft": REFERENCE,
    "crossover_rhs": MATHEMATICS,
    "I_ifr_over_N": MATHEMATICS,
    "TP_EB": MATHEMATICS,
    "TP_EB_opt": MATHEMATICS,
    "T_ifr": MATHEMATICS,
    "f_kv": MATHEMATICS,
    "NCorr": MATHEMATICS,
    "N_corr": MATHEMATICS,
    "nested_M_req": MATHEMATICS,
    "Tbar_R_chunk_tcol_lower_bound_c1": MATHEMATICS,
    "_work_bound": MATHEMATICS,
    "batch_time": MATHEMATICS,
    "gemm_time": MATHEMATICS,
    "gemv_time": MATHEMATICS,
    "rad_n_min": MATHEMATICS,
    "_mp_erlang_b": MATHEMATICS,
    "erlang_b": MATHEMATICS,
    "min_servers": MATHEMATICS,
    "horizon_overflow": MATHEMATICS,
    "paged_throughput": MATHEMATICS,
    "mean_wait_kimura": MATHEMATICS,
    "wait_quantile_kimura": MATHEMATICS,
    "_erfc_scaled": MATHEMATICS,
    "_exp_minus_square": MATHEMATICS,
    "normal_cdf": MATHEMATICS,
    "normal_quantile": MATHEMATICS,
    "simulate_pool": "the simulator for scripts; benchmarks and accuracy pages are made with it",
    "format_bytes": "the counterpart of parse_bytes",
}
"""Definitions that no command, verb or registry reaches -> why they stay."""

OWN_PLACES = {
    "routing": ("routing.py", "queueing/", "simulate/", "question/options.py"),
    "method": ("methods/", "question/options.py"),
    "shape": ("fleet/shapes/", "question/options.py", "plans.py"),
    "engine": ("catalog/", "calibrate/", "report/", "question/options.py"),
}
"""Kind of thing -> where its names may be compared: its records, and the mathematics that has laws of those names."""

NAMES = {
    "routing": {"random", "rr", "p2c", "least", "least-kv", "central", "jsq"},
    "method": {"mixed", "occupancy", "mgc"},
    "shape": {"colocated", "disaggregated"},
    "engine": {"vllm", "sglang", "trtllm"},
}

OTHER_MEANINGS = {
    "simulate/policies/eb_plus.py": "a mode of the EB+ policy is called mixed",
    "calibrate/fit.py": "a kind of measured batch is called mixed",
    "calibrate/servers.py": "a kind of measured batch is called mixed",
    "calibrate/points.py": "a kind of measured batch is called mixed",
    "calibrate/closed_loop.py": "how a measured server schedules is called mixed",
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
        if name.startswith("_") and not name.startswith("__") and name != "_version"
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


def words(node: ast.AST) -> set[str]:
    """Identifiers used in a piece of code, those in its strings included (names of targets in tables)."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Attribute):
            found.add(part.attr)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and len(part.value) < 80:
            found |= set(re.findall(r"\w+", part.value))
    return found


def test_every_definition_is_reached() -> None:
    """From the command line, the verbs and the registries, by name; a definition only mentioned by itself is not."""
    bodies: dict[str, list[tuple[str, set[str]]]] = {}
    roots: set[str] = set()
    for path, tree in sources().items():
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                used = words(node)
                bodies.setdefault(node.name, []).append((path, used))
                if node.decorator_list and path.startswith("cli/"):
                    roots |= {node.name, *used}
                continue
            exported = isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in node.targets)
            imported = isinstance(node, (ast.Import, ast.ImportFrom))
            if not exported and (not imported or path.startswith("cli/")):
                roots |= words(node)
    roots |= {name for path, tree in sources().items() if path in ("api.py", "__init__.py") for name in words(tree)}
    roots |= {
        n.name for path, t in sources().items() if path == "api.py" for n in t.body if isinstance(n, ast.FunctionDef)
    }
    reached: set[str] = set()
    open_names = [n for n in roots if n in bodies]
    while open_names:
        name = open_names.pop()
        if name in reached:
            continue
        reached.add(name)
        open_names += [n for _, used in bodies[name] for n in used if n in bodies and n not in reached]
    lost = {name for name in bodies if name not in reached and not name.startswith("__")}
    assert not sorted(f"{bodies[name][0][0]}: {name}" for name in lost - set(UNREACHED))
