"""Plans held to other draws of the gateway, of which some are replayed by a program that is not the kernel.

Every case is a plan of one pool for a shipped trace, whole, at its own rate and above it. The gateway draws anew, many times, and
what is compared is the P99 of all draws together, and how many replicas keep the promises by them, with iteration times as the
profile has them (--confidence 50%). A draw of the
shorter traces is also replayed by the reference (planner/predict/reference.py), which steps every iteration of every replica.

Five minutes.
"""

from __future__ import annotations

import math
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np

import planner as fo
from planner.fleet.shapes import find_shape
from planner.methods.replayed import ReplayPool, weighted_quantiles
from planner.predict import kernel, reference
from planner.predict.records import Requests, keys_of
from planner.predict.traffic import WHOLE
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs

TRACES = ("azure", "azure-conv", "azure-code")
ENGINES: tuple[dict[str, Any], ...] = (
    {"ttft": 0.5},
    {"ttft": 0.35},
    {"ttft": 0.25, "gpu": ["b200"]},
    {"ttft": 1.0, "tpot": 0.05, "gpu": ["l40s"]},
)
METRICS = ("ttft_s", "tpot_s")
DRAWS, RATE = 12, 60.0
"""Draws of the gateway at a trace's own rate, a quarter of them above it; and the rate above it [1/s]."""

BY_REFERENCE = 10_000
"""Requests up to which a draw is replayed by the reference too: it takes half a millisecond and more for each."""

KNOWN = 0.02
"""Standard error of a P99 up to which it is known, of its value."""


@dataclass(frozen=True)
class Truth:
    """What other draws say of a number of replicas: P99 of all draws and its standard error by metric [s], and by how much a time
    of a request differs between the kernel and the reference at most [s]."""

    value: dict[str, float]
    error: dict[str, float]
    apart: float

    def keeps(self, options: dict[str, Any]) -> bool:
        """Whether the promises of a case are kept."""
        return all(self.value[f"{name}_s"] <= options.get(name, math.inf) for name in ("ttft", "tpot"))


def truth(model: ReplayPool, requests: Requests, replicas: int, draws: int, by_reference: int = 0) -> Truth:
    """Requests through so many replicas under `draws` draws of the gateway, the first `by_reference` by the reference too."""
    one, several, apart = np.ones(requests.size), requests.output_tokens > 1.0, 0.0
    found: dict[str, list[Any]] = {metric: [] for metric in METRICS}
    for draw in range(draws if replicas > 1 else 1):
        key = keys_of(np.arange(requests.size), np.zeros(requests.size, dtype=np.int64), 9000 + draw)
        sent, engine = replace(requests, key=key), replace(model.engine, count=replicas)
        run = kernel.replay(sent, engine)
        if draw < by_reference:
            other = reference.replay(sent, engine)
            apart = max(
                apart, *(float(np.abs(getattr(run, k) - getattr(other, k)).max()) for k in ("first_s", "done_s"))
            )
        found["ttft_s"].append(run.ttft_s + model.overhead_s)
        found["tpot_s"].append((run.done_s - run.first_s)[several] / (requests.output_tokens[several] - 1.0))
    value, error = {}, {}
    for metric, told in found.items():
        every = np.concatenate(told)
        value[metric] = weighted_quantiles(every, np.ones(every.size), (0.99,))[0]
        each = [weighted_quantiles(x, one[: x.size], (0.99,))[0] for x in told]
        error[metric] = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else 0.0
    return Truth(value, error, apart)


def once(requests: Requests, repeats: int) -> Requests:
    """The first of the repeats of requests."""
    size = requests.size // repeats
    columns = {f.name: getattr(requests, f.name) for f in fields(requests)}
    return Requests(**{name: None if column is None else column[:size] for name, column in columns.items()})


def case(trace: str, options: dict[str, Any], draws: int) -> tuple[int, int, dict[str, float], Truth]:
    """Replicas of a plan and by other draws, and P99 of the plan [s] and of the draws with as many."""
    question = compile_question(
        PlanInputs.from_dict({"cdf": trace, "pools": 1, "confidence": 0.5, **options}), fo.load_workload(trace)
    )
    pool = find_shape("colocated").solve(question).fleet.pools[0]
    model, n = pool.model, pool.size.replicas
    assert isinstance(model, ReplayPool)
    laid = model.traffic.lay(pool.arrival_rate_per_s, n, model.engine.routing, most=WHOLE)
    requests = once(model.traffic.requests(laid), laid.repeats)
    there = truth(model, requests, n, draws, int(requests.size <= BY_REFERENCE))
    right = n
    if not there.keeps(options):
        right += 1
    elif n > 1 and truth(model, requests, n - 1, draws).keeps(options):
        right -= 1
    return n, right, {metric: pool.size.prediction.value(metric, 0.99) for metric in METRICS}, there


def summary(errors: list[float]) -> str:
    """Median, nine in ten and worst of errors."""
    ordered = sorted(errors)
    ninth = ordered[min(math.ceil(0.9 * len(ordered)) - 1, len(ordered) - 1)]
    return f"median error {statistics.median(ordered):.1%}, nine in ten within {ninth:.1%}, the worst {ordered[-1]:.1%}"


def rows(trace: str) -> list[tuple[str, bool, dict[str, tuple[float, float]], float]]:
    """By case of a trace: its line, whether as many replicas were bought, errors and standard errors by metric [1], and how far the
    reference was apart [s]."""
    found = []
    for asked, options in product((None, RATE), ENGINES):
        own = asked is None
        n, right, told, there = case(
            trace, options if own else {**options, "rate": asked}, DRAWS if own else max(DRAWS // 4, 2)
        )
        promises = ", ".join(f"{k} {v[0] if isinstance(v, list) else v}" for k, v in options.items())
        row, errors = f"| {trace} | {promises} | {'own' if own else f'{asked:g}/s'} | {n} | {right} ", {}
        for metric, value in told.items():
            true, unsure = there.value[metric], there.error[metric]
            errors[metric] = abs(value / true - 1.0), unsure / true
            row += f"| {1e3 * value:.1f} | {1e3 * true:.1f} ± {1e3 * unsure:.1f} | {value / true - 1.0:+.1%} "
        found.append((row + "|", n == right, errors, there.apart))
        print(row + "|", file=sys.stderr, flush=True)
    return found


def page() -> str:
    """The page."""
    with ProcessPoolExecutor() as pool:
        found = [row for told in pool.map(rows, TRACES) for row in told]
    text = [
        "# Plans against other draws",
        "",
        "P99 of plans of one pool [ms], and of other draws of the gateway on the same requests, all draws together, with its",
        "standard error; replicas bought, and those that keep the promises by the other draws",
        "(`python -m benchmarks.accuracy replay`). Promises in seconds, iteration times as the profile has them",
        "(`--confidence 50%`); H100 unless a GPU is named.",
        "",
        "| trace | promises | rate | replicas | others | TTFT | others | error | TPOT | others | error |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        *(line for line, *_ in found),
        "",
        f"Replicas: as many as by the others in {sum(equal for _, equal, *_ in found)} of {len(found)}.",
        "",
    ]
    for metric in METRICS:
        errors = [error for _, _, told, _ in found for error, unsure in (told[metric],) if unsure <= KNOWN]
        text += [
            f"{metric.removesuffix('_s').upper()}: {summary(errors)} ({len(errors)} cases known to {KNOWN:.0%}).",
            "",
        ]
    return "\n".join(
        [
            *text,
            f"A draw of every trace of up to {BY_REFERENCE:,} requests was replayed by the reference in Python too, a program that",
            f"shares nothing with the kernel: no first or last token of any request was further apart than "
            f"{max(apart for *_, apart in found):.1g} s.",
            "",
        ]
    )
