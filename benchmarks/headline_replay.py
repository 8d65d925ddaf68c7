"""The README's plan held against a replay of the raw Azure traces: every request at its own time with its own lengths.

The plan is made from the shipped, compacted workload; the replay reads the raw files, so that how requests are dealt to the
seconds of a compacted file is not taken for granted. Run by hand: ``python benchmarks/headline_replay.py RAW_FOLDER``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from bursts import traces

import planner as fo
from planner.methods.mixed import PATH_TTFT_MARGIN


def main() -> None:
    raw = traces(Path(sys.argv[1]))["both"]
    print("| replicas | predicted P99 TTFT | held with the margin | replayed | low | high |\n|---|---|---|---|---|---|")
    for replicas in (2, 3, 4, 5):
        # a promise nothing breaks: the fleet has the replicas asked for
        plan = fo.plan("azure", slo=30.0, min_replicas=replicas, pools=1)
        (pool,) = plan.pools
        assert pool.replicas == replicas
        predicted = pool.quantile("ttft_s", 0.99)
        assert predicted is not None
        for row in fo.simulate(plan, workload=raw).to_rows():
            print(
                f"| {replicas} | {predicted:.3f} s | {PATH_TTFT_MARGIN * predicted:.3f} s | {row['simulated_s']:.3f} s "
                f"| {row['low_s']:.3f} s | {row['high_s']:.3f} s |"
            )


if __name__ == "__main__":
    main()
