"""What a prediction along the path costs against one without, in one run: ``python benchmarks/path_speed.py RAW_FOLDER``.

Processor time, so that a busy machine changes little.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from bursts import LEVELS, Law, traces


def main() -> None:
    """Medians of five, each pool new, rates of its own so that nothing is remembered."""
    print("| trace | routing | replicas | without [ms] | along the path [ms] | ratio |\n|---|---|---|---|---|---|")
    ratios = []
    for name, workload in traces(Path(sys.argv[1])).items():
        law = Law(workload)
        for routing in ("random", "p2c", "jsq"):
            for replicas, load in ((2, 0.5), (8, 0.6), (40, 0.7)):
                pool = law.pool("h100", 2048, routing)
                rate = load * replicas * pool.capacity_per_s
                pool.predict(rate, replicas, LEVELS)  # what a pool keeps is made once
                seconds = np.empty((2, 5))
                for k in range(5):
                    own = rate * (1.0 + 1e-4 * (k + 1))
                    for row, ask in enumerate((pool.without_bursts().predict, pool.predict)):
                        start = time.process_time()
                        ask(own, replicas, LEVELS)
                        seconds[row, k] = time.process_time() - start
                calm, along = 1e3 * np.median(seconds, axis=1)
                ratios.append(along / calm)
                print(
                    f"| {name} | {routing} | {replicas} | {calm:.0f} | {along:.0f} | {along / calm:.1f} |", flush=True
                )
    print(f"median ratio {np.median(ratios):.1f}, least {min(ratios):.1f}, largest {max(ratios):.1f}")


if __name__ == "__main__":
    main()
