"""How long it takes, beside what it stands on: ``python -m benchmarks.speed WHAT``, as docs/search.md tells.

- start: wall time of commands, wheel installed; questions: processor time of whole processes
- kernel: the compiled kernel on Azure's hour

Processor time, where not told otherwise, so that a busy machine changes little.
"""

from __future__ import annotations

import compileall
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import planner as fo

ROOT = Path(__file__).resolve().parents[2]
IMPORTS = "import numpy, typer, rich.table"
FLEETOPT = [sys.executable, "-m", "planner.cli.main"]
STARTS = ("--help", "plan --slo 0.5 --method mgc --confidence 50%")
QUESTIONS = (
    "--slo 0.5",
    "--slo 0.5 --rate 100",
    "--slo 0.5 --rate 1000",
    "--slo 0.5 --rate 1000000",
    "--slo 0.5 --rate 1000 --pools 4",
    "--slo 0.5 --rate 200 --gpu h100,h200,a100,l40s",
    "--slo 0.5 --rate 200 --gpu h100,a100 --inventory h100=10",
    "--slo 0.5 --rate 1000 --burst poisson",
    "--slo 0.5 --rate 100 --method occupancy",
    "--slo 0.5 --rate 1000 --method occupancy",
    "--slo 0.5 --tpot 40ms --rate 100 --shape disaggregated",
    "--slo 0.5 --rate 1000 --method mgc --confidence 50%",
)
EVERY = "plan --cdf azure.csv --slo 0.5"


def cpu_s(command: list[str]) -> float:
    """Processor time of a command [s]."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def wall_s(command: list[str]) -> float:
    """Wall time of a command [s]."""
    begun = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begun


def least_s(work: Callable[[], object], times: int = 3, clock: Callable[[], float] = time.process_time) -> float:
    """The shortest of several times, on the processor's clock [s]."""
    found = []
    for _ in range(times):
        begun = clock()
        work()
        found.append(clock() - begun)
    return min(found)


def beside_imports(told: str, seconds: Callable[[list[str]], float], asked: Mapping[str, list[str]]) -> None:
    """A table of commands beside what it takes to import the libraries they stand on."""
    base = seconds([sys.executable, "-c", IMPORTS])
    print(f"| {told} | times the imports |\n|---|---|---|\n| `{IMPORTS}` | {base:.2f} | 1 |")
    for name, command in asked.items():
        took = seconds(command)
        print(f"| `{name}` | {took:.2f} | {took / base:.1f} |", flush=True)


def start() -> None:
    """Medians of eleven."""
    installed = Path(sys.executable).with_name("fleetopt")
    program = [str(installed)] if installed.exists() else FLEETOPT
    asked = {f"fleetopt {words}": [*program, *words.split()] for words in STARTS}
    beside_imports("command | median [s]", lambda command: statistics.median(wall_s(command) for _ in range(11)), asked)


def questions() -> None:
    """Every question once."""
    # as an installation has it: where nothing may write bytecode, every start would compile the package again
    compileall.compile_dir(ROOT / "planner", quiet=1)
    # the last with every other choice below the plan sized
    asked = {**{f"plan --no-options {q}": f"plan --cdf azure.csv --no-options {q}" for q in QUESTIONS}, EVERY: EVERY}
    beside_imports("question | CPU [s]", cpu_s, {told: [*FLEETOPT, *words.split()] for told, words in asked.items()})


def kernel() -> None:
    """A replay of Azure's hour by routing and replicas; what a refusal takes of one; copies laid over each other."""
    from planner.catalog import gpu, model, profile
    from planner.predict import kernel as compiled_kernel
    from planner.predict.records import Limit, Replicas, Requests
    from planner.predict.run import overlaid

    trace = fo.Workload.from_file("azure").trace()
    assert trace is not None
    n = trace.requests
    numbers = np.arange(n, dtype=np.uint64)
    requests = Requests(trace.times_s, trace.input_tokens, trace.output_tokens, np.zeros(n), numbers)
    iteration = profile(gpu=gpu("h100"), model=model("llama-3.1-8b")).iteration

    def took(count: int, routing: str, times: int = 15, **more: Any) -> float:
        pool = Replicas(count, iteration, 320, 2048, 430_000.0, routing)
        return least_s(lambda: compiled_kernel.replay(requests, pool, **more), times, time.thread_time)

    print(f"{n:,} requests\n| routing | replicas | ms | M requests/s |\n|---|--:|--:|--:|")
    for routing, count in ((r, c) for r in ("random", "rr", "p2c", "least", "least-kv") for c in (1, 3, 8, 64)):
        seconds = took(count, routing)
        print(f"| {routing} | {count} | {1e3 * seconds:.2f} | {n / seconds / 1e6:.2f} |", flush=True)
    limits = [Limit("ttft_s", 0.25, 0.01 * n)]
    for count in (1, 2):
        share = took(count, "p2c", limits=limits) / took(count, "p2c")
        print(f"a promise that {count} replicas break: {share:.2f} of a whole replay")
    begins, span = np.linspace(0.0, trace.times_s[-1], 100, endpoint=False), float(trace.times_s[-1]) + 1.0
    copies = [np.arange(n)], np.zeros(100, dtype=np.int64), begins, span, np.array([[0.0, span]]), 0
    merged = least_s(lambda: overlaid(trace.times_s, *copies), 3)
    print(f"100 copies laid over each other: {100 * n / merged / 1e6:.0f} M rows/s")


if __name__ == "__main__":
    {"start": start, "questions": questions, "kernel": kernel}[sys.argv[1]]()
