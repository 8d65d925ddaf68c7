"""Planning a million sampled requests, nearly all different, beside a shipped workload: processor time of `planner.plan`, warm.

Usage: python benchmarks/sampled.py [REQUESTS]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

import planner as fo

RATES = (100.0, 1000.0)
METHODS = ("mixed", "occupancy", "mgc")


def timed(work: Callable[[], object]) -> float:
    """Best of three [CPU s]."""
    found = []
    for _ in range(3):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return min(found)


def main() -> None:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    dice = np.random.default_rng(5)
    inputs = np.ceil(dice.lognormal(6.5, 1.2, requests)).clip(1, 60_000)
    outputs = np.ceil(dice.lognormal(5.0, 1.0, requests)).clip(1, 4_000)
    print(f"{'question':<32}sampled [CPU s]  azure [CPU s]  ratio")
    for rate in RATES:
        for method in METHODS:

            def sampled(rate: float = rate, method: str = method) -> object:
                drawn = fo.Workload.from_arrays(inputs, outputs, arrival_rate_per_s=rate)
                return fo.plan(drawn, slo=0.5, method=method)

            def shipped(rate: float = rate, method: str = method) -> object:
                return fo.plan("azure", slo=0.5, rate=rate, method=method)

            shipped()
            ours, theirs = timed(sampled), timed(shipped)
            print(
                f"{f'{rate:,.0f} requests/s, {method}':<32}{ours:15.2f}{theirs:15.2f}{ours / theirs:7.2f}", flush=True
            )


if __name__ == "__main__":
    main()
