"""The closed form of one replica against a replay of Poisson arrivals: ``python -m benchmarks.accuracy.closed [--requests N]``.

Two programs that share nothing: mean and P99 TTFT and mean TPOT of 40 cases, ten engines and workloads at four loads. The bar is a
median of 2% and a worst case of 6%; the default number of requests knows P99 at load .8 to 1%, 150,000 to 5%. Exit code 1 where
it is not kept.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from planner.advice.replica import scheduler_replica
from planner.catalog.kv import BLOCK_TOKENS
from planner.predict.batch import Lengths
from planner.predict.closed import ClosedReplica
from planner.predict.records import Replicas, Requests
from planner.predict.run import replay
from planner.workload.workload import Workload

Array = NDArray[np.float64]

CASES = (
    ("azure", "h100", "llama-3.1-8b", 1, 2048),
    ("azure", "h200", "llama-3.1-70b", 4, 8192),
    ("azure-conv", "l40s", "llama-3.1-8b", 1, 1024),
    ("azure-conv", "b200", "llama-3.1-8b", 1, 8192),
    ("azure-code", "a100", "llama-3.1-8b", 1, 2048),
    ("azure-code", "h100", "llama-3.1-70b", 4, 4096),
    ("azure-conv", "h100", "llama-3.1-70b", 8, 2048),
    ("synthetic", "h100", "llama-3.1-8b", 1, 2048),
    ("synthetic", "a100", "llama-3.1-70b", 4, 1024),
    ("synthetic", "l40s", "llama-3.1-8b", 1, 4096),
)
"""Workload, GPU, model, tensor parallelism, token budget. Not lmsys: a prompt in 20,000 is a hundred times the mean, and millions
of requests do not tell P99 TTFT beside them."""

LOADS = (0.2, 0.4, 0.6, 0.8)
MEDIAN, WORST = 0.02, 0.06
WARM = 0.1
"""Share of the requests that warm the replica up and are not counted."""


def workload(name: str) -> Workload:
    """A shipped one, or 4,000 lognormal prompts (median 700) and outputs (median 150)."""
    if name != "synthetic":
        return Workload.from_file(name)
    rng = np.random.default_rng(11)
    prompts, outputs = (np.ceil(m * np.exp(s * rng.standard_normal(4000))) for m, s in ((700.0, 0.9), (150.0, 0.8)))
    return Workload.from_arrays(prompts, outputs, name=name)


def poisson(lengths: Lengths, rate_per_s: float, count: int, seed: int) -> Requests:
    """Requests of a law that arrive as a Poisson process [1/s]."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(lengths.rows, count, p=lengths.weight / lengths.weight.sum())
    inputs, outputs = lengths.input_tokens[rows], lengths.output_tokens[rows]
    cached = np.floor(inputs * np.broadcast_to(lengths.cached_share, lengths.rows)[rows])
    arrivals = np.cumsum(rng.exponential(1.0 / rate_per_s, count))
    return Requests(arrivals, inputs, outputs, cached, np.arange(count, dtype=np.uint64))


def replayed(requests: Requests, replica: Replicas) -> tuple[Array, Array]:
    """TTFT and TPOT (NaN where there is none) of each request [s]."""
    run = replay(requests, replica)
    later = requests.output_tokens - 1.0
    return run.ttft_s, np.where(later > 0.0, (run.done_s - run.first_s) / np.maximum(later, 1.0), np.nan)


def rows(count: int) -> Iterator[tuple[str, float, float, tuple[float, float, float]]]:
    """Case, load, share that waits for slots or memory, and errors of mean and P99 TTFT and of mean TPOT."""
    for seed, (name, gpu, model, tp, budget) in enumerate(CASES):
        w = workload(name)
        # what is replayed is whole
        prompts, outputs = (np.maximum(np.rint(x), 1.0) for x in (w.input_tokens, w.output_tokens))
        lengths = Lengths(prompts, outputs, w.weight, np.zeros(1))
        one = scheduler_replica(w, {"gpu": gpu, "model": model, "tp": tp, "token_budget": budget, "rate": 1.0})
        replica = Replicas(
            1, one.profile.iteration, float(one.slots), float(budget), float(one.kv_tokens), block=BLOCK_TOKENS, reserve=False
        )  # fmt: skip
        closed = ClosedReplica(lengths, replica)
        for load in LOADS:
            at = closed.at(load * closed.limit.per_s)
            requests = poisson(lengths, load * closed.limit.per_s, count, seed)
            ttft, tpot = (part[int(WARM * count) :] for part in replayed(requests, replica))
            errors = (
                at.mean("ttft_s") / float(ttft.mean()) - 1.0,
                at.quantiles("ttft_s", (0.99,))[0] / float(np.quantile(ttft, 0.99)) - 1.0,
                at.mean("tpot_s") / float(np.nanmean(tpot)) - 1.0,
            )
            yield f"{name}, {model} on {tp} x {gpu}, budget {budget}", load, at.wait_probability, errors


def main() -> int:
    """Print the table; 0 where the bar is kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4_000_000, help="requests replayed per case")
    print("| case | load | waits | mean TTFT | P99 TTFT | mean TPOT |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    found = []
    for case, load, waits, errors in rows(parser.parse_args().requests):
        print(f"| {case} | {load:g} | {waits:.2%} | " + " | ".join(f"{e:+.1%}" for e in errors) + " |", flush=True)
        found.append(errors)
    kept = True
    for k, metric in enumerate(("mean TTFT", "P99 TTFT", "mean TPOT")):
        off = [abs(errors[k]) for errors in found]
        kept &= statistics.median(off) <= MEDIAN and max(off) <= WORST
        print(f"{metric}: median {statistics.median(off):.1%}, worst {max(off):.1%}")
    print(f"The bar, median {MEDIAN:.0%} and worst {WORST:.0%}, is {'kept' if kept else 'not kept'}.")
    return not kept


if __name__ == "__main__":
    sys.exit(main())
