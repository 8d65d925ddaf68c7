"""Does fixing what the default leaves open give a cheaper fleet? ``python benchmarks/default_is_best.py [FIRST [LAST [FILE]]]``.

Forty questions over models of 8B to 70B and a mixture of experts, rates of 1 to 10,000 requests/s, promises on TTFT, TPOT and
both. For each the default is planned, then once with every value of ``--tp``, ``--token-budget``, ``--max-num-seqs``, ``--kv`` and
``--pools`` fixed, unless the throughput of its engines alone says that no fleet of it is cheaper by more than 2%. A line per
question, with the fixed value that is cheaper by the most and how many were planned; FIRST and LAST pick some of the questions.
Those that stand in FILE are passed over, so that a run can be taken up again.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import planner as fo
from planner import kept
from planner.fleet.problem import FleetProblem
from planner.fleet.search import PathSearch, cheapest_path
from planner.fleet.types import with_types
from planner.question.compiled import CompiledQuestion, compile_question
from planner.question.options import PlanInputs
from planner.workload.workload import Workload

MODELS = ("llama-3.1-8b", "qwen3-14b", "qwen3-32b", "llama-3.1-70b", "qwen3-30b-a3b")
RATES = (1.0, 20.0, 100.0, 1000.0, 10_000.0)
WORKLOADS = ("azure", "azure-conv", "azure-code")
PROMISES: tuple[dict[str, Any], ...] = (
    {"slo": 0.5},
    {"slo": 2.0},
    {"tpot": "40ms"},
    {"slo": 1.0, "tpot": "50ms"},
)
FIXED: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("tp", (1, 2, 4, 8)),
    ("token_budget", (512, 1024, 2048, 4096, 8192, 16384)),
    ("max_num_seqs", (32, 64, 128, 256, 512)),
    ("kv", ("reserved",)),
    ("pools", (1, 3, 4)),
)
QUESTIONS = [
    {
        "workload": WORKLOADS[k % 3],
        "model": MODELS[k % 5],
        "rate": RATES[(k // 5 + k) % 5],
        **PROMISES[(k // 2 + k // 10) % 4],
    }
    for k in range(40)
]
TOLERANCE = 0.02

LOOKED_AT = 30
"""Paths whose bound is made better before the fixed value is planned instead."""


def compiled(question: dict[str, Any]) -> CompiledQuestion:
    """The question as the search takes it."""
    options = {name: value for name, value in question.items() if name != "workload"}
    workload = question["workload"]
    return with_types(
        compile_question(
            PlanInputs.from_dict(options), Workload.from_file(workload) if isinstance(workload, str) else workload
        )
    )


def least_cost(question: dict[str, Any], enough: float) -> float:
    """A proven lower bound of what any fleet costs, from the most its engines complete [USD/hour]; `enough` is close enough."""
    try:
        problem = FleetProblem(compiled(question))
    except fo.InputError:
        return math.inf
    problem.open_grid()
    bounds, most, looked = problem.bounds.copy(), problem.search.pools, itertools.count(1)

    def refine(i: int, j: int) -> tuple[float, bool]:
        """The bound of one pool by the method's own maximum throughput."""
        if problem.is_empty(i, j):
            return 0.0, True
        least = problem.option_bounds[:, i, j]
        close = np.flatnonzero(least < enough)
        return min((max(problem.capacity_bound(i, j, k), float(least[k])) for k in close), default=enough), True

    def over() -> bool:
        """Whether the bound is close enough, or was looked for as long as a plan takes."""
        return next(looked) > LOOKED_AT or cheapest_path(bounds, most)[0] >= enough

    return PathSearch(bounds, refine, most, over).run().lower_bound


def cost(question: dict[str, Any]) -> float | None:
    """Cost of the fleet [USD/hour]; ``None`` where nothing keeps the promises. A fleet beyond safe memory does not count."""
    try:
        plan = fo.plan(**question)
    except (fo.InfeasibleError, fo.InputError):
        return None
    return None if any("beyond the memory-safe" in w for w in plan.warnings) else plan.cost_usd_per_hour


def line(question: dict[str, Any]) -> tuple[float, str]:
    """What is lost by not fixing anything, and the question told with it."""
    # what one plan has predicted the next ones need not
    kept.MOST = 1_000_000
    question = {**question, "workload": Workload.from_file(question["workload"])}
    start = time.process_time()
    own = cost(question)
    took = time.process_time() - start
    best, by, planned = math.inf if own is None else own, "nothing", 0
    for name, value in ((name, value) for name, values in FIXED for value in values):
        fixed = {**question, name: value}
        enough = (1.0 - TOLERANCE) * best
        if least_cost(fixed, enough) >= enough:
            continue
        planned += 1
        other = cost(fixed)
        if other is not None and other < best * (1.0 - 1e-9):
            best, by = other, f"{name}={value}"
    loss = 0.0 if own == best or math.isinf(best) else 1.0 if own is None else 1.0 - best / own
    told = " ".join(f"{k}={v.name if isinstance(v, Workload) else v}" for k, v in question.items())
    price = "infeasible" if own is None else f"${own:,.2f}/hour"
    return loss, f"{told}: {price} in {took:.1f} s (CPU); cheaper of {planned} planned: {by} ({loss:.1%})"


def main(first: int = 1, last: int = 40, done: Path | None = None) -> None:
    """Plan the questions and print what beats the default."""
    told = done.read_text(encoding="utf-8") if done is not None and done.exists() else ""
    seen, beaten = {int(text.split()[0]) for text in told.splitlines()}, 0
    for number, question in list(enumerate(QUESTIONS, start=1))[first - 1 : last]:
        if number in seen:
            continue
        with kept.keeping():
            loss, text = line(question)
        beaten += loss > TOLERANCE
        told += f"{number:2d} {text}\n"
        print(f"{number:2d} {text}", flush=True)
        if done is not None:
            done.write_text(told, encoding="utf-8")
    print(f"{beaten} questions have a cheaper fixed value by more than {TOLERANCE:.0%}")
    sys.exit(min(beaten, 1))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *map(Path, sys.argv[3:4]))
