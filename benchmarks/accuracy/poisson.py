"""Predictions of Poisson arrivals held to many fresh requests, all replicas simulated: P99 by routing, replicas and load.

The lengths are drawn anew from the law and millions of requests go through every replica (of a random gateway and of a single one
2.5 to 4 million, as their queues remember long), so that the P99 is known to 0.5 to 3%.
Two minutes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

import planner as fo
from planner.fleet.shapes import find_shape
from planner.methods.replayed import ReplayPool
from planner.predict.kernel import replay
from planner.predict.records import Requests
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs

POOLS = (("azure", "h100"), ("azure-code", "b200"))
ROUTINGS = ("random", "p2c", "least", "rr")
REPLICAS, LOADS = (1, 8, 64), (0.6, 0.87, 0.92)
ALONE = {0.6: 400_000, 0.87: 2_500_000, 0.92: 4_000_000}
"""Requests through replicas that each are a queue of their own, by load."""

PARTS, WARM = 8, 10
"""Parts of a run that tell its error; and the part of it, one in so many, that warms up."""


def truth(
    model: ReplayPool, replicas: int, rate: float, count: int, rng: np.random.Generator
) -> tuple[float, float, float]:
    """P99 of TTFT and TPOT [s], and the first one's standard error over it [1]."""
    law = model.traffic.law
    rows = rng.choice(law.weight.size, count, p=law.weight / law.weight.sum())
    inputs, outputs = (np.maximum(np.rint(column[rows]), 1.0) for column in (law.input_tokens, law.output_tokens))
    times = np.cumsum(rng.exponential(1.0 / rate, count))
    keys = rng.integers(0, 2**63, count).astype(np.uint64)
    run = replay(Requests(times, inputs, outputs, np.zeros(count), keys), replace(model.engine, count=replicas))
    counted = slice(count // WARM, None)
    ttft = (run.ttft_s + model.overhead_s)[counted]
    several = outputs[counted] > 1.0
    tpot = (run.done_s - run.first_s)[counted][several] / (outputs[counted][several] - 1.0)
    value = float(np.quantile(ttft, 0.99))
    each = [float(np.quantile(part, 0.99)) for part in np.array_split(ttft, PARTS)]
    return value, float(np.quantile(tpot, 0.99)), float(np.std(each)) / value / math.sqrt(PARTS)


def cases() -> Iterator[tuple[str, str, int, float, float, float, float, float, bool]]:
    """Workload, routing, replicas, load, errors of P99 TTFT and TPOT, widths of truth and band [1], in the band."""
    for workload, gpu in POOLS:
        for routing in ROUTINGS:
            asked = {"cdf": workload, "pools": 1, "ttft": 2.0, "burst": "poisson", "routing": routing, "gpu": [gpu]}
            question = compile_question(PlanInputs.from_dict(asked), fo.load_workload(workload))
            model = find_shape("colocated").solve(question).fleet.pools[0].model
            assert isinstance(model, ReplayPool)
            rng = np.random.default_rng(5)
            for replicas in REPLICAS:
                for load in LOADS:
                    alone = routing == "random" or replicas == 1
                    if replicas == 1 and routing != "random":
                        continue
                    rate = load * replicas * model.capacity_per_s
                    told = model.predict(rate, replicas, (0.5, 0.99))
                    count = ALONE[load] if alone else max(400_000, 15_000 * replicas)
                    ttft, tpot, unsure = truth(model, replicas, rate, count, rng)
                    value, (low, high) = told.value("ttft_s", 0.99), told.band("ttft_s", 0.99)
                    inside = value * (1.0 + low) * (1.0 - unsure) <= ttft <= value * (1.0 + high) * (1.0 + unsure)
                    errors = value / ttft - 1.0, told.value("tpot_s", 0.99) / tpot - 1.0
                    yield workload, routing, replicas, load, *errors, unsure, high, inside


def page() -> str:
    """The page."""
    lines, errors, inside = [], [], 0
    for workload, routing, replicas, load, ttft, tpot, unsure, band, kept in cases():
        lines.append(
            f"| {workload} | {routing} | {replicas} | {load:g} | {ttft:+.1%} ± {unsure:.1%} | {tpot:+.1%} | ±{band:.1%} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
        errors.append((load, abs(ttft), abs(tpot)))
        inside += kept
    text = [
        "# Poisson arrivals against fresh requests",
        "",
        "P99 of predictions over that of simulations of every replica with lengths drawn anew - 1, with the simulation's standard",
        "error, and the band of 95% that the prediction tells of its TTFT (`python -m benchmarks.accuracy poisson`). Llama-3.1-8B,",
        "azure on H100 and azure-code on B200, estimates.",
        "",
    ]
    for told, low, high in (("to load .87", 0.0, 0.9), ("at load .92", 0.9, 1.0)):
        rows = np.array([row[1:] for row in errors if low < row[0] <= high])
        for metric, column in (("TTFT", rows[:, 0]), ("TPOT", rows[:, 1])):
            text.append(
                f"{metric} {told}: {column.size} cases, median error {np.median(column):.1%}, nine in ten within "
                f"{np.quantile(column, 0.9):.1%}, the worst {column.max():.1%}."
            )
        text.append("")
    text += [
        f"The truth lies in the band, or within its own standard error of it, in {inside} of {len(lines)}.",
        "",
        "| workload | routing | replicas | load | TTFT | TPOT | band of TTFT |",
        "|---|---|---:|---:|---:|---:|---:|",
        *lines,
    ]
    return "\n".join(text)
