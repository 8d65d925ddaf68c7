"""Cost of the joint sweep of boundary and gamma, and of whole plans: medians within one run, and ratios of them.

Run by hand: ``python benchmarks/sweep.py``. Machines are shared and noisy; compare the ratios, not the milliseconds.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import statistics
import time
from collections.abc import Callable

from planner.fleet.solve import solve

from planner.fleet.grid import engine_choices
from planner.fleet.problem import FleetProblem
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs
from planner.workload.workload import Workload

BOUNDARIES = [512, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192]


def median_ms(call: Callable[[], object], repeats: int) -> float:
    """Median wall time of a call [ms], after one to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def main() -> None:
    """Print a markdown table."""
    azure = Workload.from_file("azure")
    base = {"slo": 2.0, "profile": "fleetopt-paper", "method": "mgc", "kv": "reserved", "boundaries": BOUNDARIES}
    print("| what | rate [1/s] | median [ms] |\n|---|---|---|")
    for rate in (10.0, 1e3, 1e5, 1e6):
        inputs = PlanInputs.from_dict({**base, "rate": rate})
        question = compile_question(inputs, azure)
        options = engine_choices(question)
        ms = median_ms(lambda q=question, o=options: solve(FleetProblem(q, o)), 31)
        print(f"| mgc sweep, 10 boundaries x 11 gammas | {rate:g} | {ms:.2f} |")
    for method, repeats in (("mgc", 9), ("occupancy", 7), ("mixed", 5)):
        for rate in (100.0, 10_000.0):
            inputs = PlanInputs.from_dict({"slo": 1.0, "method": method, "rate": rate})
            question = compile_question(inputs, azure)
            options = engine_choices(question)
            ms = median_ms(lambda q=question, o=options: solve(FleetProblem(q, o)), repeats)
            print(f"| {method}, 1-2 pools, 57 boundaries x 11 gammas | {rate:g} | {ms:.1f} |")


if __name__ == "__main__":
    main()
