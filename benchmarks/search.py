"""Time of the fleet search and of sweeps over a fixed fleet.

Run by hand: ``python benchmarks/search.py``. Medians of one run; machines are shared, so read the ratios.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import statistics
import time
from collections.abc import Callable

from planner.fleet.solve import solve

import planner as fo
from planner.fleet.problem import FleetProblem
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs
from planner.workload.workload import Workload

GPUS = ["h100", "a100", "l40s", "h200"]


def median_s(call: Callable[[], object], repeats: int = 3) -> float:
    """Median wall time of a call [s], after one to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def search(workload: Workload, rate: float, **options: object) -> tuple[float, float]:
    """Seconds for the bounds and surrogate alone, and for the whole search decided with the reporting method."""
    inputs = PlanInputs.from_dict({"slo": 0.5, "rate": rate, **options})

    def surrogate() -> None:
        FleetProblem(compile_question(inputs, workload)).open_grid()

    def decided() -> None:
        solve(FleetProblem(compile_question(inputs, workload)))

    return median_s(surrogate), median_s(decided, 1)


def main() -> None:
    """Print a markdown table."""
    azure = Workload.from_file("azure")
    print("| what | surrogate [s] | decided [s] |\n|---|---|---|")
    for label, options in (
        ("1-2 pools, one GPU type, mixed", {}),
        ("1-2 pools, four GPU types, mixed", {"gpu": GPUS}),
        ("1-3 pools, four GPU types, mixed", {"gpu": GPUS, "pools": 3}),
        ("1-3 pools, four GPU types, occupancy", {"gpu": GPUS, "pools": 3, "method": "occupancy"}),
    ):
        first, whole = search(azure, 1000.0, **options)
        print(f"| {label}, 60 breakpoints, 11 gammas, 1,000 requests/s | {first:.2f} | {whole:.2f} |", flush=True)
    rates = [50.0 + 0.01 * k for k in range(10_000)]
    for method in ("occupancy", "mixed"):
        plan = fo.plan(azure, slo=0.5, rate=100.0, method=method)
        start = time.perf_counter()
        fo.evaluate(plan, rates, workload=azure)
        print(f"| 10,000 evaluations of a fixed fleet, {method} | | {time.perf_counter() - start:.2f} |", flush=True)


if __name__ == "__main__":
    main()
