"""Plans held to what they have not seen: other draws of the gateway, and the other half of a trace.

`replay` (five minutes): every case is a plan of one pool for a shipped trace, whole, at its own rate and above it. The gateway
draws anew, many times, and what is compared is the P99 of all draws together, and how many replicas keep the promises by them,
with iteration times as the profile has them (--confidence 50%). A draw of the shorter traces is also replayed by the reference
(planner/predict/reference.py), a program that is not the kernel, which steps every iteration of every replica.

`chance` (a quarter of an hour): whether fleets keep their promises as often as their plans say. A plan is made of one half of a
trace; its fleet then gets the other half at the same rate, under draws of the gateway and of the shifts of copies that no search
takes, with iteration times off by an error drawn from the profile's own. Kept or not is one replay.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import planner as fo
from planner.errors import InfeasibleError
from planner.predict import kernel, reference
from planner.predict.records import Requests, keys_of
from planner.predict.replayed import ReplayPool, weighted_quantiles
from planner.predict.traffic import WHOLE
from planner.question.compiled import compile_question
from planner.question.files import question_of
from planner.question.options import PlanInputs
from planner.size.shapes import find_shape, standing_fleet
from planner.workload.workload import Workload
from tools.tables import Page, markdown

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


@dataclass(frozen=True, slots=True)
class Case:
    """A plan of a trace with its options, at its own rate (``None``) or another [1/s]: replicas of the plan and by other draws, P99
    that it tells by metric [s], and the draws with as many."""

    trace: str
    options: dict[str, Any]
    rate_per_s: float | None
    replicas: int
    right: int
    told: dict[str, float]
    there: Truth

    def error(self, metric: str) -> float:
        """told/true - 1 [1]."""
        return self.told[metric] / self.there.value[metric] - 1.0

    def cells(self) -> list[object]:
        """Its line of the table."""
        promises = ", ".join(f"{k} {v[0] if isinstance(v, list) else v}" for k, v in self.options.items())
        rate = "own" if self.rate_per_s is None else f"{self.rate_per_s:g}/s"
        found: list[object] = [self.trace, promises, rate, self.replicas, self.right]
        for metric, value in self.told.items():
            true, unsure = 1e3 * self.there.value[metric], 1e3 * self.there.error[metric]
            found += [f"{1e3 * value:.1f}", f"{true:.1f} ± {unsure:.1f}", f"{self.error(metric):+.1%}"]
        return found


def case(trace: str, options: dict[str, Any], rate_per_s: float | None) -> Case:
    """A plan beside other draws."""
    asked = {"cdf": trace, "pools": 1, "confidence": 0.5, **options, **({"rate": rate_per_s} if rate_per_s else {})}
    draws = max(DRAWS // 4, 2) if rate_per_s else DRAWS
    question = compile_question(PlanInputs.from_dict(asked), fo.load_workload(trace))
    pool = find_shape("colocated").solve(question).fleet.pools[0]
    model, n = pool.model, pool.replicas
    assert isinstance(model, ReplayPool)
    laid = model.traffic.lay(pool.rate_per_s, n, model.engine.routing, most=WHOLE)
    requests = once(model.traffic.requests(laid), laid.repeats)
    there = truth(model, requests, n, draws, int(requests.size <= BY_REFERENCE))
    right = n
    if not there.keeps(options):
        right += 1
    elif n > 1 and truth(model, requests, n - 1, draws).keeps(options):
        right -= 1
    told = {metric: pool.prediction.value(metric, 0.99) for metric in METRICS}
    found = Case(trace, options, rate_per_s, n, right, told, there)
    print(found.cells(), file=sys.stderr, flush=True)
    return found


def of_trace(trace: str) -> list[Case]:
    """The plans of a trace."""
    return [case(trace, options, rate) for rate, options in product((None, RATE), ENGINES)]


def replays() -> Page:
    """The page of other draws."""
    with ProcessPoolExecutor() as workers:
        found = [one for several in workers.map(of_trace, TRACES) for one in several]
    return replay_page(found)


def replay_page(found: list[Case]) -> Page:
    """What a page says of its cases."""
    head = ("trace", "promises", "rate", "replicas", "others", "TTFT", "others", "error", "TPOT", "others", "error")
    equal, index = sum(c.replicas == c.right for c in found), []
    text = [f"Replicas: as many as by the others in {equal} of {len(found)}."]
    for metric in METRICS:
        sizes = sorted(abs(c.error(metric)) for c in found if c.there.error[metric] <= KNOWN * c.there.value[metric])
        middle, ninth = statistics.median(sizes), sizes[min(math.ceil(0.9 * len(sizes)), len(sizes)) - 1]
        name, worst = metric.removesuffix("_s").upper(), max(found, key=lambda c: abs(c.error(metric)))
        text.append(
            f"{name}: median error {middle:.1%}, nine in ten within {ninth:.1%}, the worst {sizes[-1]:.1%} ({len(sizes)} cases "
            f"known to {KNOWN:.0%})."
        )
        where = f"{worst.cells()[0]}, {worst.cells()[1]}, {worst.replicas} replicas"
        typical = f"median {middle:.1%}, nine in ten {ninth:.1%}"
        against = "the reference, other draws of the gateway"
        index.append(
            (f"replayed plans, P99 {name}", against, str(len(found)), typical, f"{worst.error(metric):+.1%}", where)
        )
    text.append(
        f"A draw of every trace of up to {BY_REFERENCE:,} requests was replayed by the reference in Python too, a program that\n"
        "shares nothing with the kernel: no first or last token of any request was further apart than "
        f"{max(c.there.apart for c in found):.1g} s."
    )
    return Page({"plans": "\n\n".join([markdown(head, (c.cells() for c in found), left=3), *text])}, index)


ASKED: tuple[dict[str, Any], ...] = (
    {"ttft": 0.5},
    {"ttft": 0.7, "model": "qwen3-14b"},
    {"tpot": 0.03},
    {"ttft": 1.0, "tpot": 0.05, "gpu": ["l40s"]},
    {"e2e": 10.0, "gpu": ["a100-80gb"]},
)
CONFIDENCES = (0.8, 0.5)
WORLDS, FRESH = 20, 1000
"""Errors and draws of each question, and the number of the first draw: no search takes so late a one."""


def halves(name: str, folder: Path) -> list[Workload]:
    """Both halves of a shipped trace, each with times from its own beginning."""
    lines = (Path(fo.__file__).parents[1] / "workloads" / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    head = [line for line in lines if line.startswith("#") and not line.startswith("# requests")]
    names, *rows = [line for line in lines if not line.startswith("#")]
    middle = float(rows[-1].split(",")[0]) / 2.0
    found = []
    for which, low in enumerate((0.0, middle)):
        path = folder / f"{name}-{which}.csv"
        own = [line.split(",", 1) for line in rows if (float(line.split(",")[0]) >= middle) == bool(which)]
        text = [f"{float(time) - low:.3f},{rest}" for time, rest in own]
        path.write_text("\n".join([*head, names, *text, ""]), encoding="utf-8")
        found.append(fo.load_workload(path))
    return found


def kept(seen: Workload, unseen: Workload, options: dict[str, Any], seed: int) -> tuple[float, float] | None:
    """The chance that a plan of what was `seen` tells, and how often its fleet keeps promises on the rest; ``None`` = none."""
    try:
        plan = fo.plan(seen, pools=1, choices=False, **options)
    except InfeasibleError:
        return None
    assert plan.sureness is not None
    rate = plan.arrival_rate_per_s
    question = compile_question(PlanInputs.from_dict({**options, "pools": 1, "rate": rate}), unseen)
    fleet, dice = standing_fleet(question, question_of(plan).pools), random.Random(seed)
    held = [fleet.slowed(dice.gauss(0.0, 1.0), FRESH + k).keeps(rate) for k in range(WORLDS)]
    return plan.sureness.chance, statistics.mean(held)


def chances(name: str) -> list[tuple[float, float, float]]:
    """By question of a trace: confidence asked, chance told, share kept."""
    with tempfile.TemporaryDirectory() as folder:
        parts, found = halves(name, Path(folder)), []
        # the half's own rate, and one above it
        for seed, (asked, rate, which) in enumerate(product(ASKED, (None, RATE), (0, 1))):
            for confidence in CONFIDENCES:
                options = {**asked, "confidence": confidence} | ({} if rate is None else {"rate": rate})
                told = kept(parts[which], parts[1 - which], options, seed)
                print(f"{name} {options} half {which}: {told}", file=sys.stderr, flush=True)
                if told is not None:
                    found.append((confidence, *told))
        return found


def chance() -> Page:
    """The page of unseen halves."""
    with ProcessPoolExecutor() as workers:
        return chance_page([row for told in workers.map(chances, TRACES) for row in told])


def chance_page(found: list[tuple[float, float, float]]) -> Page:
    """What it says, a row a confidence."""
    rows, index = [], []
    for confidence in CONFIDENCES:
        told, held = zip(*[(t, k) for asked, t, k in found if asked == confidence], strict=True)
        asked, said, did = f"{confidence:.0%}", f"{statistics.mean(told):.0%}", f"{statistics.mean(held):.0%}"
        never = sum(k == 0.0 for k in held)
        rows.append((asked, len(told), said, did, f"{statistics.mean(k >= confidence for k in held):.0%}", never))
        index.append(
            (f"the chance of plans at {asked}", "the other half of the trace", str(len(told)), f"told {said}, kept {did}",
             "-", f"never kept: {never}")
        )  # fmt: skip
    head = ("confidence asked", "plans", "chance told, mean", "kept", "plans that kept so often", "that never kept")
    return Page({"plans": markdown(head, rows, left=0)}, index)
