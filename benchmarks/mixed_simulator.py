"""Iteration-level simulator of a pool of mixed-batching engines, to hold the closed forms of `planner.queueing.mixed.replica` to.

    python benchmarks/mixed_simulator.py    # the shipped simulator beside it, on the same requests

Rules: decodes first, one token each; the rest of the token budget goes to prefill, first come first served, a prompt
begun before goes first; a waiting request is admitted while fewer than `slots` run and its whole prompt fits in the KV
memory; out of memory, the newest running request is preempted and computed again (front of the queue). KV memory is
counted in tokens. The loop is in `mixed_simulator.c`, a million requests a second and more: a P99 near saturation is known to a
few per cent after millions of requests only. It is compiled by `cc` at first use.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

COST = ("t0", "w", "b", "c", "h", "g", "a")
ROUTINGS = ("random", "rr", "p2c", "jsq")


@cache
def _compiled() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "simulator.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-O2", "-std=c11", "-shared", "-fPIC", "-o", library, source, "-lm"], check=True)
        return ctypes.CDLL(str(library))


def simulate(
    cost: Mapping[str, float],
    prompts: np.ndarray,
    outputs: np.ndarray,
    arrivals: np.ndarray,
    *,
    budget: int,
    slots: int,
    kv_tokens: float,
    replicas: int = 1,
    routing: str = "random",
    seed: int = 0,
) -> dict[str, np.ndarray | float]:
    """TTFT and end of every request [s], mean decodes per replica, mean iteration [s], preemptions per request.

    `cost` holds t0, w, b, c, h, g, a (SI) of the iteration-time model.
    """
    count = len(arrivals)
    first, last, totals = np.full(count, np.nan), np.full(count, np.nan), np.zeros(3)
    given = [np.array([cost[k] for k in COST]), *(np.ascontiguousarray(v, float) for v in (prompts, outputs, arrivals))]
    array, real = np.ctypeslib.ndpointer(float), ctypes.c_double
    call = _compiled().simulate
    call.argtypes = [
        array,
        ctypes.c_long,
        *[array] * 3,
        *[real] * 3,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_uint64,
        *[array] * 3,
    ]
    call.restype = None
    settings = (budget, slots, kv_tokens, replicas, ROUTINGS.index(routing), seed)
    call(given[0], count, *given[1:], *settings, first, last, totals)
    return {
        "ttft_s": first, "end_s": last, "decodes": totals[0], "iteration_s": totals[1], "preemptions": totals[2] / count,
    }  # fmt: skip


def main() -> None:
    from planner.iteration.model import IterationModel
    from planner.simulate.pool import simulate_pool

    cost = {"t0": 0.0019, "w": 0.0051, "b": 23.5e-6, "c": 4.7e-6, "h": 1e-6, "g": 5e-8, "a": 7e-10}
    rng = np.random.default_rng(4)
    prompts, outputs = (np.ceil(rng.lognormal(m, s, 3000)) for m, s in ((6.6, 0.9), (4.9, 0.8)))
    levels = (0.5, 0.9, 0.99)
    for routing, replicas, rate, slots, memory in (
        ("random", 1, 10.0, 128, 4e5), ("random", 1, 9.0, 128, 4e4), ("jsq", 8, 90.0, 128, 4e5), ("p2c", 8, 80.0, 64, 4e5),
        ("rr", 4, 40.0, 128, 4e5),
    ):  # fmt: skip
        run = simulate_pool(
            prompts, outputs, None, rate, requests=150_000, seeds=(1,), quantiles=levels, replicas=replicas,
            iteration=IterationModel(**cost), slots=slots, token_budget=2048, kv_tokens=memory, routing=routing,
        )  # fmt: skip
        rows = rng.integers(prompts.size, size=3_000_000)
        mine = simulate(
            cost, prompts[rows], outputs[rows], np.cumsum(rng.exponential(1 / rate, rows.size)), budget=2048, slots=slots,
            kv_tokens=memory, replicas=replicas, routing=routing,
        )  # fmt: skip
        shipped = np.array([run.quantile("ttft_s", q).value for q in levels])
        print(
            routing,
            replicas,
            rate,
            slots,
            int(memory),
            (100 * (shipped / np.quantile(mine["ttft_s"], levels) - 1)).round(1),
        )


if __name__ == "__main__":
    main()
