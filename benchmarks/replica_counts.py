"""Replicas planned along the path against those found by replaying the raw traces through the simulator.

Run by hand, in pieces: ``python benchmarks/replica_counts.py RAW_FOLDER RESULTS.json [first [last]]`` answers the questions not yet
in the file and prints what it holds. A replay is one pass of the trace with its own lengths (at most 100,000 requests), copies
shifted by a seed of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from bursts import KV_TOKENS, SLOTS, traces

from planner.catalog import gpu, model, profile
from planner.fleet.pool import Shortfall, smallest_pool
from planner.methods.burst import PoolArrivals
from planner.methods.mixed import MixedPool
from planner.promise import Promise
from planner.question.compiled import Promises
from planner.routing import find_routing
from planner.simulate.pool import simulate
from planner.simulate.presets import PoolEngines
from planner.simulate.replay import ReplayedTraffic
from planner.workload.compact import compact
from planner.workload.pools import FleetMoments, State

BUDGET, SEED = 2048, 7
QUESTIONS = [
    (name, gpu_name, routing, copies, limit_s)
    for copies, limit_s in ((1, 0.5), (2, 1.0), (4, 0.5), (6, 2.0), (10, 1.0))
    for name in ("both", "conversation", "code")
    for gpu_name in ("h100", "l40s")
    for routing in ("random", "jsq")
]


def main() -> None:
    """Answer what is open, print what is known."""
    raw, results = Path(sys.argv[1]), Path(sys.argv[2])
    first, last = (
        (int(x) for x in (*sys.argv[3:5], "0", str(len(QUESTIONS)))[:2]) if len(sys.argv) > 4 else (0, len(QUESTIONS))
    )
    known = json.loads(results.read_text()) if results.exists() else {}
    loaded = traces(raw)
    for question in QUESTIONS[first:last]:
        key = " ".join(str(x) for x in question)
        if key not in known:
            known[key] = answer(loaded[question[0]], *question[1:])
            results.write_text(json.dumps(known, indent=1))
            print(key, known[key], flush=True)
    differences = [v["planned"] - v["needed"] for v in known.values() if v["planned"] and v["needed"]]
    print(
        f"{len(differences)} questions: "
        + ", ".join(f"{d:+d}: {differences.count(d)}" for d in sorted(set(differences)))
    )


def answer(workload, gpu_name, routing, copies, limit_s):  # type: ignore[no-untyped-def]
    """Replicas planned, with and without the margin, and needed; the P99 TTFT replayed by number of replicas [s]."""
    recorded, kept = workload.trace(), compact(workload, 200)
    law = FleetMoments(kept).law(State(0.0), State(kept.max_total))
    iteration = profile(gpu=gpu(gpu_name), model=model("llama-3.1-8b")).iteration
    arrivals = PoolArrivals(kept.arrivals, 1.0, law.requests)
    pool = MixedPool(law, iteration, SLOTS, KV_TOKENS, BUDGET, find_routing(routing), arrivals)
    rate = copies * recorded.rate_per_s
    size = smallest_pool(pool, rate, Promises((Promise("ttft_s", limit_s, 0.99),)))
    if isinstance(size, Shortfall):
        return {"planned": None, "needed": None, "replayed": {}}
    bare = size.replicas
    while bare > 1 and pool.capacity_per_s * (bare - 1) * 0.85 > rate:
        if pool.predict(rate, bare - 1, (0.99,)).ttft_s[0] > limit_s:
            break
        bare -= 1
    replayed: dict[int, float] = {}

    def keeps(replicas: int) -> bool:
        if replicas not in replayed:
            traffic = ReplayedTraffic(
                recorded.times_s, recorded.input_tokens, recorded.output_tokens, float(recorded.times_s[-1]), float(copies),
                requests=100_000,
            )  # fmt: skip
            engines = PoolEngines(replicas, iteration, SLOTS, BUDGET, KV_TOKENS, routing)
            seen = simulate(traffic, engines, seeds=(SEED,), quantiles=(0.99,))
            replayed[replicas] = seen.quantile("ttft_s", 0.99).value
        return replicas * pool.capacity_per_s * 0.85 > rate and replayed[replicas] <= limit_s

    needed = bare
    while not keeps(needed):
        needed += 1
    while needed > 1 and keeps(needed - 1):
        needed -= 1
    return {"planned": size.replicas, "without_margin": bare, "needed": needed, "replayed": replayed}


if __name__ == "__main__":
    main()
