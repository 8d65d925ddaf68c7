"""What the rounds of a path leave open: quantiles against those of every stretch followed iteration by iteration.

Run by hand: ``python benchmarks/path_rounds.py RAW_FOLDER``.

Azure's traces on three GPU types, pools with many slots and with few, much memory and little, loads of 0.4 to 0.9.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from bursts import LEVELS, Law, traces
from planner.methods.burst import PoolArrivals

from planner.catalog import gpu, model, profile
from planner.methods.mixed import MixedPool
from planner.queueing import path
from planner.routing import find_routing

ENGINES = (
    ("h100", 2048, 320, 430_000), ("l40s", 8192, 320, 430_000), ("a100-80gb", 512, 320, 430_000), ("h100", 2048, 32, 430_000),
    ("h100", 8192, 64, 430_000), ("l40s", 2048, 32, 60_000), ("h100", 2048, 320, 60_000), ("l40s", 512, 16, 200_000),
)  # fmt: skip
"""GPU type, token budget, slots and tokens of KV memory."""
SIZES = (
    (1, 0.4, "random"), (4, 0.5, "random"), (4, 0.75, "jsq"), (10, 0.65, "p2c"), (8, 0.8, "random"), (30, 0.88, "random"),
    (3, 0.9, "jsq"),
)  # fmt: skip
"""Replicas, load and routing."""
ALL_IN_TURN = 2, 0.0
"""Rounds after which every stretch is followed iteration by iteration, and the change at which one is settled before: none."""
WAITS = 0.02
"""Share of the requests that wait for slots or memory from which a pool is one that is short of them [1]."""


def predicted(law: Law, every: int) -> np.ndarray:
    """P50, P90, P99 of TTFT and TPOT [s] and the share that waits [1], of one in `every` pools."""
    cases = [(engine, size) for engine in ENGINES for size in SIZES][::every]
    found = []
    for (gpu_name, budget, slots, kv_tokens), (replicas, load, routing) in cases:
        iteration = profile(gpu=gpu(gpu_name), model=model("llama-3.1-8b")).iteration
        arrivals = PoolArrivals(law.kept.arrivals, 1.0, law.law.requests)
        pool = MixedPool(law.law, iteration, slots, kv_tokens, budget, find_routing(routing), arrivals)
        at = pool.predict(load * replicas * pool.capacity_per_s, replicas, LEVELS)
        found.append([*at.ttft_s, *at.tpot_s, at.wait_probability])
    return np.array(found)


def main() -> None:
    """Errors of the rounds there are."""
    laws = [Law(workload) for workload in traces(Path(sys.argv[1])).values()]
    few, many = [], []
    shipped = path.ROUNDS, path.SETTLED
    for k, law in enumerate(laws):
        path.ROUNDS, path.SETTLED = shipped
        few.append(predicted(law, 2 + k % 2))
        path.ROUNDS, path.SETTLED = ALL_IN_TURN
        many.append(predicted(law, 2 + k % 2))
    there, truth = np.concatenate(few), np.concatenate(many)
    waits = truth[:, 6] > WAITS
    print("| pools | number | what | mean | median, either way | nine in ten | range |\n|---|---|---|---|---|---|---|")
    for pools, chosen in (("nobody waits for slots", ~waits), ("slots or memory are short", waits)):
        error = there[chosen, :6] / truth[chosen, :6] - 1.0
        for k, what in ((0, "TTFT P50"), (1, "TTFT P90"), (2, "TTFT P99"), (5, "TPOT P99")):
            e = error[:, k]
            print(
                f"| {pools} | {e.size} | {what} | {e.mean():+.1%} | {np.median(abs(e)):.1%} | {np.quantile(abs(e), 0.9):.0%} "
                f"| {e.min():+.0%}..{e.max():+.0%} |"
            )


if __name__ == "__main__":
    main()
