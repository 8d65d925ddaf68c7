"""Whether fleets keep their promises as often as their plans say, on traffic that the plans have not seen.

A plan is made of one half of a trace; its fleet then gets the other half at the same rate, under draws of the gateway and of the
shifts of copies that no search takes, with iteration times off by an error drawn from the profile's own. Kept or not is one replay.

A quarter of an hour.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import planner as fo
from planner.errors import InfeasibleError
from planner.fleet.shapes import standing_fleet
from planner.question.compiled import compile_question
from planner.question.files import question_of
from planner.question.options import PlanInputs
from planner.workload.workload import Workload

TRACES = ("azure", "azure-conv", "azure-code")
ASKED: tuple[dict[str, Any], ...] = (
    {"ttft": 0.5},
    {"ttft": 0.7, "model": "qwen3-14b"},
    {"tpot": 0.03},
    {"ttft": 1.0, "tpot": 0.05, "gpu": ["l40s"]},
    {"e2e": 10.0, "gpu": ["a100-80gb"]},
)
RATES = (None, 60.0)
"""The half's own rate, and one above it [1/s]."""

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


def of_trace(name: str) -> list[tuple[float, float, float]]:
    """By question of a trace: confidence asked, chance told, share kept."""
    with tempfile.TemporaryDirectory() as folder:
        parts, found = halves(name, Path(folder)), []
        for seed, (asked, rate, which) in enumerate(product(ASKED, RATES, (0, 1))):
            for confidence in CONFIDENCES:
                options = {**asked, "confidence": confidence} | ({} if rate is None else {"rate": rate})
                told = kept(parts[which], parts[1 - which], options, seed)
                print(f"{name} {options} half {which}: {told}", file=sys.stderr, flush=True)
                if told is not None:
                    found.append((confidence, *told))
        return found


def lines(found: list[tuple[float, float, float]]) -> Iterator[str]:
    """A row a confidence."""
    for confidence in CONFIDENCES:
        told, held = zip(*[(t, k) for asked, t, k in found if asked == confidence], strict=True)
        never = sum(k == 0.0 for k in held)
        yield (
            f"| {confidence:.0%} | {len(told)} | {statistics.mean(told):.0%} | {statistics.mean(held):.0%} "
            f"| {statistics.mean(k >= confidence for k in held):.0%} | {never} |"
        )


def page() -> str:
    """The page."""
    with ProcessPoolExecutor() as pool:
        found = [row for told in pool.map(of_trace, TRACES) for row in told]
    return "\n".join(
        [
            "# The chance, on traffic a plan has not seen",
            "",
            "Plans of one pool of one half of a trace, both halves of three, for five models, GPUs and promises, at the half's",
            f"own rate and {RATES[1]:g}/s (`python -m benchmarks.accuracy chance`). Their fleets got the other half at the same",
            f"rate, {WORLDS} times each: fresh draws of the gateway and of the copies, iteration times off by an error drawn from",
            "the profile's own.",
            "",
            "| confidence asked | plans | chance told, mean | kept | plans that kept so often | that never kept |",
            "|---:|---:|---:|---:|---:|---:|",
            *lines(found),
            "",
        ]
    )
