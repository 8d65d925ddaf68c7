"""A prediction along the path against whole hours of the raw trace, and of requests dealt from its file, at shifts drawn at random.

Run by hand: ``python benchmarks/path_hours.py RAW_FOLDER [TRACE GPU TOKEN_BUDGET ROUTING REPLICAS COPIES]...``.

The hours go through the recursion of :mod:`planner.queueing.path`, a tenth of a replay's cost, and are within some percent of it
on the same requests. So what a prediction loses by the stretches it follows, by dealing, and what is luck of the shifts of a few
replays can be told apart.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from bursts import LEVELS, Law, traces
from planner.queueing.path import PathRequests, follow_path

from planner.methods.mixed import MixedPool
from planner.workload.trace import Trace

HOURS = 31
CASES = (
    ("conversation", "a100-80gb", 512, "p2c", 10, 9), ("code", "h100", 8192, "random", 6, 19), ("code", "h100", 2048, "jsq", 3, 1),
    ("code", "h100", 2048, "jsq", 4, 4), ("code", "l40s", 2048, "jsq", 8, 1), ("code", "l40s", 2048, "jsq", 10, 4),
    ("both", "l40s", 2048, "jsq", 11, 4), ("both", "h100", 2048, "jsq", 4, 4), ("both", "h100", 8192, "jsq", 5, 7),
)  # fmt: skip
"""Trace, GPU type, token budget, routing, replicas and copies."""


def hours(pool: MixedPool, trace: Trace, replicas: int, copies: int) -> np.ndarray:
    """P99 TTFT [s] of whole hours, each with shifts of its own; one hour where there is one copy."""
    span, found = float(trace.times_s[-1]) * (1.0 + 1.0 / (trace.requests - 1)), []
    for seed in range(HOURS if copies > 1 else 1):
        shifts = np.append(0.0, np.random.Generator(np.random.PCG64(seed)).random(copies - 1))
        times = np.concatenate([(trace.times_s + shift * span) % span for shift in shifts])
        order = np.argsort(times, kind="stable")
        inputs, outputs = (np.tile(x, copies)[order] for x in (trace.input_tokens, trace.output_tokens))
        run = follow_path(
            pool._counted(PathRequests.of(times[order], inputs, outputs)), pool._cost, replicas=replicas,
            candidates=pool.routing.candidates, budget=pool.token_budget / pool._iteration.rows, slots=pool.slots,
            kv_tokens=pool.kv_tokens,
        )  # fmt: skip
        found.append(run.quantiles("ttft_s", np.array([0.99]))[0])
    return np.array(found)


def main() -> None:
    """The cases asked for, or all."""
    laws = {name: Law(workload) for name, workload in traces(Path(sys.argv[1])).items()}
    given = [sys.argv[k : k + 6] for k in range(2, len(sys.argv), 6)]
    asked = [(t, g, int(b), r, int(n), int(c)) for t, g, b, r, n, c in given] or list(CASES)
    print(
        "| trace | GPU | token budget | routing | replicas | copies | predicted P99 TTFT | mean of dealt hours | mean of raw hours "
        "| their median | 5%..95% |\n" + "|---" * 11 + "|"
    )
    for name, gpu_name, budget, routing, replicas, copies in asked:
        law = laws[name]
        pool, dealt = law.pool(gpu_name, budget, routing), law.kept.trace()
        assert dealt is not None
        at = pool.predict(copies * law.recorded.rate_per_s, replicas, LEVELS)
        own, raw = (hours(pool, trace, replicas, copies) for trace in (dealt, law.recorded))
        low, high = np.quantile(raw, (0.05, 0.95))
        print(
            f"| {name} | {gpu_name} | {budget} | {routing} | {replicas} | {copies} | {at.ttft_s[2]:.2f} s | {own.mean():.2f} s "
            f"| {raw.mean():.2f} s | {np.median(raw):.2f} s | {low:.2f}..{high:.2f} s |",
            flush=True,
        )


if __name__ == "__main__":
    main()
