"""Speed and memory of the compiled kernel on the hour of Azure's requests, beside its prototype where that is there.

``python benchmarks/kernel.py [folder of raw workloads]``. Times are the processor's, the least of several.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import resource
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from planner.catalog import gpu, model, profile
from planner.predict import kernel
from planner.predict.records import Floats, Limit, Replicas, Requests, keys_of

SHARED = Path(os.environ.get("FLEETOPT_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")).parent
SLOTS, BUDGET, KV_TOKENS = 320, 2048, 430_000.0


def azure(folder: Path) -> tuple[Floats, Floats, Floats]:
    """Times [s], prompts and answers [tokens] of the 28,185 requests of both services."""
    rows = []
    for name in ("azure_code_2023.csv", "azure_conv_2023.csv"):
        with (folder / name).open() as file:
            for stamp, prompt, answer in list(csv.reader(file))[1:]:
                if int(answer) >= 1:
                    rows.append((datetime.fromisoformat(stamp[:26]).timestamp(), float(prompt), float(answer)))
    table = np.array(sorted(rows, key=lambda row: row[0]))
    return table[:, 0] - table[0, 0], np.ascontiguousarray(table[:, 1]), np.ascontiguousarray(table[:, 2])


def least(work: Callable[[], Any], times: int = 15) -> tuple[float, Any]:
    """Shortest of several times [s of this thread's processor time], and what came of it."""
    found = []
    for _ in range(times):
        begun = time.thread_time()
        answer = work()
        found.append(time.thread_time() - begun)
    return min(found), answer


def prototype() -> Any:
    """The prototype's module, ``None`` = it is not here."""
    place = SHARED / "design" / "prototype" / "kernel.py"
    if not place.exists():
        return None
    spec = importlib.util.spec_from_file_location("prototype_kernel", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    times, prompts, answers = azure(Path(sys.argv[1]) if len(sys.argv) > 1 else SHARED / "data" / "workloads" / "raw")
    n = times.size
    numbers = np.arange(n, dtype=np.uint64)
    requests = Requests(times, prompts, answers, np.zeros(n), numbers)
    iteration = profile(gpu=gpu("h100"), model=model("llama-3.1-8b")).iteration
    old = prototype()
    sys.stdout.write(f"{n:,} requests; prototype {'compared' if old else 'not here'}\n")
    sys.stdout.write("routing   replicas      ms     M/s   prototype's time / this\n")
    for routing in ("random", "rr", "p2c", "least", "least-kv"):
        for count in (1, 3, 8, 64):
            replicas = Replicas(count, iteration, SLOTS, BUDGET, KV_TOKENS, routing)
            took, _ = least(lambda pool=replicas: kernel.replay(requests, pool))
            line = f"{routing:9} {count:8} {1e3 * took:7.2f} {n / took / 1e6:7.2f}"
            if old and routing in old.ROUTINGS:
                given = {
                    "budget": BUDGET,
                    "slots": SLOTS,
                    "kv": KV_TOKENS,
                    "replicas": count,
                    "routing": routing,
                    "keys": numbers,
                }
                before, _ = least(lambda given=given: old.run(old.cost_of(iteration), prompts, answers, times, **given))
                line += f" {before / took:12.2f}"
            sys.stdout.write(line + "\n")

    shares = []
    for count in range(1, 9):
        for limit_s in (0.25, 0.35, 0.5, 1.0):
            for routing in ("random", "rr", "p2c", "least"):
                replicas = Replicas(count, iteration, SLOTS, BUDGET, KV_TOKENS, routing)
                limits = [Limit("ttft_s", limit_s, 0.01 * n)]
                took, run = least(lambda pool=replicas, limits=limits: kernel.replay(requests, pool, limits=limits), 3)
                if run.ended_early >= 0:
                    shares.append(took / least(lambda pool=replicas: kernel.replay(requests, pool), 3)[0])
    shown = ", ".join(f"{q:.0%} of them {np.quantile(shares, q):.2f}" for q in (0.5, 0.9))
    sys.stdout.write(f"{len(shares)} refusals, time as a share of a whole replay: {shown}\n")

    copies = 100
    begun = time.thread_time()
    many, rows, numbered = kernel.merge(
        times, np.linspace(0.0, times[-1], copies, endpoint=False), float(times[-1]) + 1.0
    )
    merged = time.thread_time() - begun
    sys.stdout.write(f"{copies} copies laid over each other: {many.size / merged / 1e6:.0f} M rows/s\n")
    large = Requests(many, prompts[rows], answers[rows], np.zeros(many.size), keys_of(rows, numbered, 1))
    before_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kernel.replay(large, Replicas(8 * copies, iteration, SLOTS, BUDGET, KV_TOKENS, "p2c"))
    used = (1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_bytes) / many.size
    sys.stdout.write(f"{used:.0f} bytes a request at most, the answer's columns among them\n")


if __name__ == "__main__":
    main()
