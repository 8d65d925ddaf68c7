"""Does one more replica ever make a prediction along the path worse? ``python benchmarks/more_replicas.py [RAW_FOLDER]``.

P99 TTFT and TPOT of pools of growing size at one rate, three traces (the shipped ones without RAW_FOLDER), two GPU types, random
and p2c routing, 2 to 100 copies. Counts the steps from n to n + 1 at which a latency rises, by more than 1% and 3%, the
largest rise, and how far the logarithm of the latency strays from its running mean over three sizes: what luck is left.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from bursts import Law, traces

import planner as fo

STEPS = 8


def main() -> None:
    """Print a line per routing and metric."""
    if len(sys.argv) > 1:
        loaded = traces(Path(sys.argv[1]))
    else:
        loaded = {name: fo.load_workload(name) for name in ("azure", "azure-conv", "azure-code")}
    print(
        "| routing | latency | steps | rises | above 1% | above 3% | largest | strays |\n|---|---|---|---|---|---|---|---|"
    )
    laws = {name: Law(w) for name, w in loaded.items()}
    for routing in ("random", "p2c"):
        rises: dict[str, list[float]] = {"ttft_s": [], "tpot_s": []}
        strays: dict[str, list[float]] = {"ttft_s": [], "tpot_s": []}
        for law in laws.values():
            for gpu_name in ("h100", "l40s"):
                pool = law.pool(gpu_name, 2048, routing)
                for copies in (2.0, 10.0, 100.0):
                    rate = copies * law.recorded.rate_per_s
                    least = max(int(np.ceil(rate / (0.8 * pool.capacity_per_s))), 1)
                    at = [pool.predict(rate, n, (0.99,)) for n in range(least, least + STEPS)]
                    for metric in rises:
                        steps = np.diff(np.log([p.value(metric, 0.99) for p in at]))
                        rises[metric] += steps.tolist()
                        strays[metric] += (np.diff(steps) / 3.0).tolist()
        for metric, found in rises.items():
            up = np.expm1(np.array(found))
            stray = float(np.sqrt(np.mean(np.square(strays[metric]))))
            print(
                f"| {routing} | {metric.removesuffix('_s').upper()} | {up.size} | {np.sum(up > 1e-9)} | {np.sum(up > 0.01)} "
                f"| {np.sum(up > 0.03)} | {max(up.max(), 0.0):+.1%} | {stray:.1%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
