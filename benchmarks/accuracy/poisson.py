"""Predictions of Poisson arrivals held to fresh requests: of plans by routing, replicas and load; the closed form of one replica.

Plans (two minutes): the lengths are drawn anew from the law and millions of requests go through every replica (of a random gateway
and of a single one 2.5 to 4 million, as their queues remember long), so that the P99 is known to 0.5 to 3%.

``python -m benchmarks.accuracy closed [--requests N]``: closed form and replay, two programs that share nothing: mean and P99 TTFT
and mean TPOT of 40 cases, ten engines and workloads at four loads. The bar is a median of 2% and a worst case of 6%; the default
number of requests knows P99 at load .8 to 1%, 150,000 to 5%. Exit code 1 where it is not kept.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

import planner as fo
from planner.ask.replica import scheduler_replica
from planner.catalog.kv import BLOCK_TOKENS
from planner.predict.closed import ClosedReplica
from planner.predict.records import Replicas, Requests
from planner.predict.replayed import ReplayPool
from planner.predict.run import replay
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs
from planner.size.shapes import find_shape
from planner.workload.pools import Lengths
from planner.workload.workload import Workload
from tools.tables import Cells, Page, markdown

Array = NDArray[np.float64]

POOLS = (("azure", "h100"), ("azure-code", "b200"))
ROUTINGS = ("random", "p2c", "least", "rr")
REPLICAS, LOADS = (1, 8, 64), (0.6, 0.87, 0.92)
ALONE = {0.6: 400_000, 0.87: 2_500_000, 0.92: 4_000_000}
"""Requests through replicas that each are a queue of their own, by load."""

BUSY = 0.9
"""Load from which on errors are told apart."""

PARTS = 8
"""Parts of a run that tell its error."""

WARM = 0.1
"""Share of the requests that warm the replicas up and are not counted."""


def replayed(requests: Requests, replicas: Replicas) -> tuple[Array, Array]:
    """TTFT and TPOT (NaN where there is none) of each request [s]."""
    run = replay(requests, replicas)
    later = requests.output_tokens - 1.0
    return run.ttft_s, np.where(later > 0.0, (run.done_s - run.first_s) / np.maximum(later, 1.0), np.nan)


@dataclass(frozen=True, slots=True)
class Case:
    """A pool at a load: errors of P99 TTFT and TPOT, the truth's standard error and the band told, shares of the value [1]."""

    workload: str
    routing: str
    replicas: int
    load: float
    ttft: float
    tpot: float
    unsure: float
    band: float
    inside: bool

    @property
    def name(self) -> str:
        """Workload, routing and replicas."""
        return f"{self.workload}, {self.routing}, {self.replicas} replicas"


def judged(model: ReplayPool, replicas: int, load: float, count: int, rng: np.random.Generator) -> tuple[float, ...]:
    """What a case says of the P99 of so many requests drawn anew."""
    law, rate = model.traffic.law, load * replicas * model.capacity_per_s
    told = model.predict(rate, replicas, (0.5, 0.99))
    rows = rng.choice(law.weight.size, count, p=law.weight / law.weight.sum())
    inputs, outputs = (np.maximum(np.rint(column[rows]), 1.0) for column in (law.input_tokens, law.output_tokens))
    times = np.cumsum(rng.exponential(1.0 / rate, count))
    keys = rng.integers(0, 2**63, count).astype(np.uint64)
    requests = Requests(times, inputs, outputs, np.zeros(count), keys)
    ttft, tpot = (part[int(WARM * count) :] for part in replayed(requests, replace(model.engine, count=replicas)))
    ttft = ttft + model.overhead_s
    true = float(np.quantile(ttft, 0.99))
    unsure = float(np.std([np.quantile(part, 0.99) for part in np.array_split(ttft, PARTS)])) / true / math.sqrt(PARTS)
    value, (low, high) = told.value("ttft_s", 0.99), told.band("ttft_s", 0.99)
    inside = value * (1.0 + low) * (1.0 - unsure) <= true <= value * (1.0 + high) * (1.0 + unsure)
    off = told.value("tpot_s", 0.99) / float(np.nanquantile(tpot, 0.99)) - 1.0
    return value / true - 1.0, off, unsure, high, inside


def cases() -> Iterator[Case]:
    """Pools of both workloads by routing, replicas and load; one replica has one routing."""
    for workload, gpu in POOLS:
        for routing in ROUTINGS:
            asked = {"cdf": workload, "pools": 1, "ttft": 2.0, "burst": "poisson", "routing": routing, "gpu": [gpu]}
            question = compile_question(PlanInputs.from_dict(asked), fo.load_workload(workload))
            model = find_shape("colocated").solve(question).fleet.pools[0].model
            assert isinstance(model, ReplayPool)
            rng = np.random.default_rng(5)
            for replicas, load in ((r, load) for r in REPLICAS for load in LOADS if r > 1 or routing == "random"):
                count = ALONE[load] if routing == "random" else max(400_000, 15_000 * replicas)
                found = Case(workload, routing, replicas, load, *judged(model, replicas, load, count, rng))  # type: ignore[arg-type]
                print(found, file=sys.stderr, flush=True)
                yield found


def sizes(errors: Sequence[float]) -> str:
    """Median, nine in ten and worst of errors."""
    off = np.abs(errors)
    return (
        f"median error {np.median(off):.1%}, nine in ten within {np.quantile(off, 0.9):.1%}, the worst {off.max():.1%}"
    )


def page() -> Page:
    """The page of plans."""
    found, text, index = list(cases()), list[str](), list[Cells]()
    for told, own in (
        ("to load .87", [c for c in found if c.load < BUSY]),
        ("at load .92", [c for c in found if c.load >= BUSY]),
    ):
        ttft = np.array([c.ttft for c in own])
        text += [
            f"TTFT {told}: {len(own)} cases, {sizes(ttft)}.",
            f"TPOT {told}: {len(own)} cases, {sizes([c.tpot for c in own])}.",
            "",
        ]
        worst = own[int(np.argmax(np.abs(ttft)))]
        typical = f"median {np.median(np.abs(ttft)):.1%}, nine in ten {np.quantile(np.abs(ttft), 0.9):.1%}"
        part = f"Poisson arrivals, P99 TTFT {told}"
        index.append(
            (part, "fresh requests, every replica simulated", str(len(own)), typical, f"{worst.ttft:+.1%}", worst.name)
        )
    inside = sum(c.inside for c in found)
    text += [f"The truth lies in the band, or within its own standard error of it, in {inside} of {len(found)}.", ""]
    rows = [
        (
            c.workload,
            c.routing,
            c.replicas,
            f"{c.load:g}",
            f"{c.ttft:+.1%} ± {c.unsure:.1%}",
            f"{c.tpot:+.1%}",
            f"±{c.band:.1%}",
        )
        for c in found
    ]
    head = ("workload", "routing", "replicas", "load", "TTFT", "TPOT", "band of TTFT")
    return Page({"cases": "\n".join(text) + "\n" + markdown(head, rows, left=2)}, index)


CLOSED = (
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

CLOSED_LOADS = (0.2, 0.4, 0.6, 0.8)
MEDIAN, WORST = 0.02, 0.06


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
    rows = rng.choice(lengths.input_tokens.size, count, p=lengths.weight / lengths.weight.sum())
    inputs, outputs = lengths.input_tokens[rows], lengths.output_tokens[rows]
    cached = np.floor(inputs * np.broadcast_to(lengths.cached_share, lengths.input_tokens.size)[rows])
    arrivals = np.cumsum(rng.exponential(1.0 / rate_per_s, count))
    return Requests(arrivals, inputs, outputs, cached, np.arange(count, dtype=np.uint64))


def closed(count: int) -> Iterator[tuple[str, float, float, tuple[float, float, float]]]:
    """Case, load, share that waits for slots or memory, and errors of mean and P99 TTFT and of mean TPOT."""
    for seed, (name, gpu, model, tp, budget) in enumerate(CLOSED):
        w = workload(name)
        # what is replayed is whole
        prompts, outputs = (np.maximum(np.rint(x), 1.0) for x in (w.input_tokens, w.output_tokens))
        lengths = Lengths(prompts, outputs, w.weight, np.zeros(1))
        one = scheduler_replica(w, {"gpu": gpu, "model": model, "tp": tp, "token_budget": budget, "rate": 1.0})
        replica = Replicas(
            1, one.profile.iteration, float(one.slots), float(budget), float(one.kv_tokens), block=BLOCK_TOKENS, reserve=False
        )  # fmt: skip
        form = ClosedReplica(lengths, replica)
        for load in CLOSED_LOADS:
            at = form.at(load * form.limit.per_s)
            requests = poisson(lengths, load * form.limit.per_s, count, seed)
            ttft, tpot = (part[int(WARM * count) :] for part in replayed(requests, replica))
            errors = (
                at.mean("ttft_s") / float(ttft.mean()) - 1.0,
                at.quantiles("ttft_s", (0.99,))[0] / float(np.quantile(ttft, 0.99)) - 1.0,
                at.mean("tpot_s") / float(np.nanmean(tpot)) - 1.0,
            )
            yield f"{name}, {model} on {tp} x {gpu}, budget {budget}", load, at.wait_probability, errors


def main(words: Sequence[str]) -> int:
    """Print the table of the closed form; 0 where the bar is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=4_000_000, help="requests replayed per case")
    found = list(closed(parser.parse_args(words).requests))
    rows = [(case, f"{load:g}", f"{waits:.2%}", *(f"{e:+.1%}" for e in off)) for case, load, waits, off in found]
    print(markdown(("case", "load", "waits", "mean TTFT", "P99 TTFT", "mean TPOT"), rows))
    kept = True
    for k, metric in enumerate(("mean TTFT", "P99 TTFT", "mean TPOT")):
        off = [abs(errors[k]) for *_, errors in found]
        kept &= statistics.median(off) <= MEDIAN and max(off) <= WORST
        print(f"{metric}: median {statistics.median(off):.1%}, worst {max(off):.1%}")
    print(f"The bar, median {MEDIAN:.0%} and worst {WORST:.0%}, is {'kept' if kept else 'not kept'}.")
    return not kept
