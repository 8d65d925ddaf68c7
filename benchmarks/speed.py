"""How long it takes, beside what it stands on: ``python benchmarks/speed.py WHAT``, as docs/search.md tells.

- start: wall time of commands, wheel installed; questions: processor time of whole processes
- random: questions of several GPU types and pools, each drawn from its own number alone (``--only 34`` repeats one, ``--seed 7``
  draws others)
- sampled: a million sampled requests; imports: millions of rows against DuckDB's own aggregation of the same file
- kernel: the compiled kernel on Azure's hour

Processor time, where not told otherwise, so that a busy machine changes little.
"""

from __future__ import annotations

import argparse
import compileall
import math
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import planner as fo
from planner.errors import InfeasibleError, InputError

ROOT = Path(__file__).resolve().parents[1]
IMPORTS = "import numpy, typer, rich.table"
FLEETOPT = [sys.executable, "-m", "planner.cli.main"]
STARTS = (
    "--help",
    "plan --cdf azure.csv --slo 0.5 --no-options",
    "plan --cdf azure.csv --slo 0.5",
    "plan --slo 0.5 --method mgc --confidence 50%",
)
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
GPUS = ("h100", "a100", "l40s", "h200", "l4", "mi300x", "b200", "a10g")
MODELS = ("llama-3.1-8b", "qwen3-8b", "llama-3.1-70b", "qwen3-30b-a3b", "llama-3.1-8b", "llama-3.1-8b")
ALLOWED_S, BETWEEN = 3.0, 20


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


def compiled() -> None:
    """Bytecode, as an installation has it: where nothing may write it, every start would compile the package again."""
    compileall.compile_dir(ROOT / "planner", quiet=1)


def start(_: argparse.Namespace) -> None:
    """Medians of eleven."""
    installed = Path(sys.executable).with_name("fleetopt")
    program = [str(installed)] if installed.exists() else FLEETOPT
    base = statistics.median(wall_s([sys.executable, "-c", IMPORTS]) for _ in range(11))
    print(f"| command | median [s] | times the imports |\n|---|---|---|\n| `{IMPORTS}` | {base:.2f} | 1 |")
    for words in STARTS:
        seconds = statistics.median(wall_s([*program, *words.split()]) for _ in range(11))
        print(f"| `fleetopt {words}` | {seconds:.2f} | {seconds / base:.1f} |", flush=True)


def questions(_: argparse.Namespace) -> None:
    """Every question once, the imports the median of five."""
    compiled()
    base = statistics.median(cpu_s([sys.executable, "-c", IMPORTS]) for _ in range(5))
    print(f"| question | CPU [s] | times the imports |\n|---|---|---|\n| `{IMPORTS}` | {base:.2f} | 1 |")
    asked = {f"plan --no-options {q}": f"plan --cdf azure.csv --no-options {q}" for q in QUESTIONS}
    # with every other choice below the plan sized
    every = "plan --cdf azure.csv --slo 0.5"
    for told, words in {**asked, every: every}.items():
        seconds = cpu_s([*FLEETOPT, *words.split()])
        print(f"| `{told}` | {seconds:.2f} | {seconds / base:.1f} |", flush=True)


def question(number: int, seed: int = 0, most_rate: float = 10_000.0) -> dict[str, Any]:
    """The options of a random question at 1 to `most_rate` requests/s."""
    dice = random.Random(770_077 + seed * 1_000_003 + number)
    types = dice.choice((1, 2, 3, 4, 4, 5, 6, 8))
    asked: dict[str, Any] = {
        "workload": dice.choice(("azure", "azure-conv", "azure-code", "lmsys")),
        "rate": round(math.exp(dice.uniform(0.0, math.log(most_rate))), 2),
        "gpu": dice.sample(GPUS, types),
        "pools": dice.choice((1, 2, 2, 3, 4)),
        "model": dice.choice(MODELS),
    }
    if dice.random() < 0.3:
        asked["burst"] = "poisson"
    promised = dice.choice(("ttft", "ttft", "both", "e2e"))
    if promised != "e2e":
        asked["ttft"] = round(math.exp(dice.uniform(math.log(0.2), math.log(5.0))), 3)
    if promised == "both":
        asked["tpot"] = round(dice.uniform(0.03, 0.2), 3)
    if promised == "e2e":
        asked["e2e"] = round(dice.uniform(10.0, 120.0), 1)
    return asked


def answered(asked: dict[str, Any]) -> tuple[float, str]:
    """Processor time of a question [s], and its fleet or why there is none; nothing where no GPU named can hold the model."""
    begun = time.process_time()
    try:
        plan = fo.plan(**asked)
        pools = " + ".join(f"{pool.replicas} x {pool.gpu} {pool.parallel}" for pool in plan.pools)
        told = f"${plan.cost_usd_per_hour:,.2f}: {pools}"
    except InfeasibleError:
        told = "none"
    except InputError:
        told = ""
    return time.process_time() - begun, told


def drawn(given: argparse.Namespace) -> None:
    """A row for each, and the share that takes longer than it may; the first question between them says how busy the machine is."""
    numbers = range(given.cases) if given.only is None else range(given.only, given.only + 1)
    first: dict[str, Any] = {"workload": "azure", "slo": 0.5}
    answered(first)
    usual, spent = [], []
    for number in numbers:
        if number % BETWEEN == 0 or given.only is not None:
            usual.append(answered(first)[0])
        asked = question(number, given.seed, given.most_rate)
        seconds, told = answered(asked)
        if told:
            spent.append(seconds)
            print(f"{number} {seconds:.2f} s, {told}; {asked}", flush=True)
    usual.append(answered(first)[0])
    long = sum(seconds > ALLOWED_S for seconds in spent)
    middle, high = statistics.median(spent), sorted(spent)[math.ceil(0.9 * len(spent)) - 1]
    print(f"{len(spent)} questions, {sum(spent):.1f} s, {long} over {ALLOWED_S:g} s")
    print(f"The median took {middle:.2f} s, nine in ten {high:.2f} s at most, the worst {max(spent):.2f} s.")
    print(f"The first question took {min(usual):.2f} to {max(usual):.2f} s.")


def sampled(given: argparse.Namespace) -> None:
    """Requests that are nearly all different, beside a shipped workload; warm."""
    dice = np.random.default_rng(5)
    inputs = np.ceil(dice.lognormal(6.5, 1.2, given.rows)).clip(1, 60_000)
    outputs = np.ceil(dice.lognormal(5.0, 1.0, given.rows)).clip(1, 4_000)
    print("| question | sampled [CPU s] | azure [CPU s] | ratio |\n|---|---|---|---|")
    for rate, method in ((r, m) for r in (100.0, 1000.0) for m in ("mixed", "occupancy", "mgc")):

        def arrays(rate: float = rate, method: str = method) -> object:
            return fo.plan(fo.Workload.from_arrays(inputs, outputs, arrival_rate_per_s=rate), slo=0.5, method=method)

        def shipped(rate: float = rate, method: str = method) -> object:
            return fo.plan("azure", slo=0.5, rate=rate, method=method)

        shipped()
        ours, theirs = least_s(arrays), least_s(shipped)
        print(f"| {rate:,.0f} requests/s, {method} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f} |", flush=True)


AGGREGATE = (
    "duckdb.connect().execute(f\"SELECT input_tokens, output_tokens, count(*) FROM '{f}' GROUP BY ALL\").fetchnumpy()"
)
TIMED = """
import resource, subprocess, sys, time
begun = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


def rows_of(folder: Path, rows: int) -> dict[str, Path]:
    """The same random requests, nearly all of different lengths, as CSV, JSON lines and Parquet."""
    import duckdb

    files = {kind: folder / f"rows.{kind}" for kind in ("csv", "jsonl", "parquet")}
    with duckdb.connect() as engine:
        engine.execute("SELECT setseed(0.5)")
        engine.execute(
            f"CREATE TABLE t AS SELECT 1.7e9 + 172800.0 * i / {rows} + random() * 0.01 AS timestamp, "
            "1 + floor(exp(6.5 + 1.3 * sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random())))::INT AS input_tokens, "
            "1 + floor(exp(5.0 + 1.1 * sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random())))::INT AS output_tokens, "
            f"CASE WHEN random() < 0.4 THEN 'conv' ELSE 'code' END AS category FROM range({rows}) r(i)"
        )
        for kind, form in (("csv", "header"), ("jsonl", "format json"), ("parquet", "format parquet")):
            engine.execute(f"COPY t TO '{files[kind]}' ({form})")
    return files


def imports(given: argparse.Namespace) -> None:
    """Wall and processor time and peak memory, each in a process of its own, in turn, the best of three."""
    compiled()

    def timed(*command: str) -> tuple[float, ...]:
        out = subprocess.run([sys.executable, "-c", TIMED, *command], check=True, capture_output=True, text=True)
        return tuple(map(float, out.stdout.split()))

    print(f"{given.rows:,} rows  DuckDB [s, CPU s]  import [s, CPU s]  ratios  import [MiB]  file [kB]")
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        out = Path(name) / "out.csv"
        for kind, file in rows_of(Path(name), given.rows).items():
            theirs = (sys.executable, "-c", f"import duckdb; f = {str(file)!r}; {AGGREGATE}")
            own = (*FLEETOPT, "workload", "import", str(file), "-o", str(out))
            wall, cpu, _, ours, own_cpu, memory = map(
                min, zip(*((*timed(*theirs), *timed(*own)) for _ in range(3)), strict=True)
            )
            print(
                f"{kind:<12}{wall:8.2f}{cpu:6.2f}{ours:12.2f}{own_cpu:6.2f}{ours / wall:10.2f}{own_cpu / cpu:6.2f}"
                f"{memory:14.0f}{out.stat().st_size / 1e3:16.0f}", flush=True,
            )  # fmt: skip


def kernel(_: argparse.Namespace) -> None:
    """A replay of Azure's hour by routing and replicas; what a refusal takes of one; copies laid over each other."""
    from planner.catalog import gpu, model, profile
    from planner.predict import kernel as compiled_kernel
    from planner.predict.records import Limit, Replicas, Requests

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
    merged = least_s(lambda: compiled_kernel.overlay(trace.times_s, *copies), 3)
    print(f"100 copies laid over each other: {100 * n / merged / 1e6:.0f} M rows/s")


WHAT = {
    "start": start, "questions": questions, "random": drawn, "sampled": sampled, "imports": imports, "kernel": kernel,
}  # fmt: skip


def main() -> None:
    """Print one of the tables."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=WHAT)
    options.add_argument("--cases", type=int, default=80, help="random: how many")
    options.add_argument("--only", type=int, help="random: repeat one")
    options.add_argument("--seed", type=int, default=0, help="random: draw others")
    options.add_argument("--most-rate", type=float, default=10_000.0, help="random: requests/s")
    options.add_argument("--rows", type=int, help="sampled, imports: how many")
    options.add_argument("--folder", type=Path, help="imports: where files are written")
    given = options.parse_args()
    given.rows = given.rows or {"sampled": 1_000_000}.get(given.what, 5_000_000)
    WHAT[given.what](given)


if __name__ == "__main__":
    main()
