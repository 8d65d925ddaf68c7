"""The largest rate with all promises: the inverse of a plan, and fleets of several GPU types that no single type bears."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import planner as fo
from planner.ask.capacity import PRECISION, largest
from planner.ask.fitting import Fitting, Refused
from planner.ask.stock import part_of
from planner.catalog.load import gpu as find_gpu
from planner.cli.main import app
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs
from planner.shared.kept import keeping
from planner.size.problem import FleetProblem
from planner.workload.pools import State

pytestmark = pytest.mark.usefixtures("fewer_replayed")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four minutes of mostly short prompts and some long ones, at 12/s."""
    rng = np.random.default_rng(7)
    times = np.sort(rng.uniform(0.0, 240.0, 2880))
    inputs = np.where(rng.random(2880) < 0.85, rng.integers(50, 900, 2880), rng.integers(3000, 7000, 2880))
    rows = zip(times, inputs, rng.integers(5, 200, 2880), strict=True)
    file = tmp_path_factory.mktemp("trace") / "mixed.csv"
    file.write_text("t_s,input_tokens,output_tokens\n" + "\n".join(f"{t:.3f},{i},{o}" for t, i, o in rows))
    return file


@pytest.mark.parametrize("start", [0.3, 70.0, 5000.0])
def test_the_largest_rate_is_found_from_anywhere(start: float) -> None:
    low, high = largest(lambda rate: rate <= 70.0, start)
    assert low <= 70.0 < high <= low * (1.0 + PRECISION)


def test_nothing_is_kept_at_no_rate() -> None:
    assert largest(lambda rate: False, 10.0)[0] == 0.0


@pytest.mark.parametrize(
    "options",
    [
        {"slo": 0.5, "tp": 1, "token_budget": 2048, "pools": 1},
        {"slo": 0.5, "tp": 1, "token_budget": 2048, "pools": 1, "redundancy": 1, "confidence": 0.5},
        {"slo": 2.0, "method": "occupancy", "burst": "poisson", "pools": 1},
        {"slo": 1.0, "shape": "disaggregated", "tp": 1, "confidence": 0.5},
    ],
    ids=["one pool", "a spare", "occupancy", "disaggregated"],
)
def test_a_plan_bears_its_rate_and_one_replica_less_does_not(options: dict[str, object], trace: Path) -> None:
    plan = fo.plan(trace, rate=40.0, **options)  # type: ignore[arg-type]
    found = fo.capacity(plan)
    assert found.rate_per_s >= 40.0 and found.gpus == plan.gpus and found.binding
    assert found.rate_per_s < found.refused_per_s <= found.rate_per_s * (1.0 + PRECISION)
    for k, pool in enumerate(plan.pools):
        if pool.replicas - pool.spares > 1:
            fewer = [replace(p, replicas=p.replicas - (j == k)) for j, p in enumerate(plan.pools)]
            assert fo.capacity(replace(plan, pools=tuple(fewer))).rate_per_s < 40.0


def test_parts_of_the_traffic_are_all_of_it_and_alike(trace: Path) -> None:
    moments = fo.load_workload(trace)
    question = compile_question(PlanInputs.from_dict({"slo": 0.5}), moments, 1.0)
    sums = question.traffic.moments(512)
    law = sums.law(State(0.0), State(sums.top))
    assert law is not None
    parts = [part_of(law, 0.0, 0.3), part_of(law, 0.3, 1.0)]
    whole, *dealt = [found for p in (law, *parts) if (found := p.requests()) is not None]
    times = np.concatenate([p.times_s for p in dealt])
    assert np.array_equal(np.sort(times), np.sort(whole.times_s))
    for part, law_of in zip(dealt, parts, strict=True):
        assert part.requests == pytest.approx(law_of.share * whole.requests, rel=0.01)
        for q in (0.5, 0.9, 0.99):
            assert np.quantile(part.input_tokens, q) == pytest.approx(np.quantile(whole.input_tokens, q), rel=0.02)


def test_a_type_too_slow_for_long_prompts_takes_the_short_ones(trace: Path) -> None:
    """Alone it keeps the promise at no rate; beside another type it raises the rate by more than a tenth.

    Both were measured: where times are estimates the chance that neither type is too slow takes what the second one brings.
    """
    asked = {
        "workload": trace, "slo": 0.3, "tp": 1, "token_budget": 4096, "confidence": 0.5, "model": "qwen3-4b",
        "boundaries": [900],
    }  # fmt: skip
    with pytest.raises(fo.InfeasibleError, match="6 l40s"):
        fo.capacity(have={"l40s": 6}, **asked)
    both = fo.capacity(have={"h200": 2, "l40s": 6}, **asked)
    assert (
        both.rate_per_s > 1.1 * fo.capacity(have={"h200": 2}, **asked).rate_per_s
        and both.gpus + sum(both.unused.values()) == 8
    )
    assert sum(p.share for p in both.pools) == pytest.approx(1.0)
    assert all(value <= 0.3 for p in both.pools for value in p.latency.values() if value is not None)
    with ThreadPoolExecutor(2) as threads:
        assert fo.capacity(have={"h200": 2, "l40s": 6}, executor=threads, **asked).to_dict() == both.to_dict()


def test_gpus_bear_no_less_than_a_plan_of_them(trace: Path) -> None:
    plan = fo.plan(trace, rate=40.0, slo=0.5, tp=1, token_budget=2048, confidence=0.5)
    have = {p.gpu: p.gpus for p in plan.pools}
    found = fo.capacity(have=have, workload=trace, slo=0.5, tp=1, token_budget=2048, confidence=0.5)
    assert found.rate_per_s >= 40.0 / (1.0 + PRECISION)


def test_the_command(trace: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    asked = ["--cdf", str(trace), "--slo", "0.5", "--tp", "1", "--token-budget", "2048"]
    CliRunner().invoke(app, ["plan", *asked, "--rate", "60", "--no-options", "-o", str(plan)])
    told = CliRunner().invoke(app, ["capacity", str(plan)])
    assert told.exit_code == 0 and "keeps the promise with 80% confidence" in told.stdout, told.output
    for wrong, said in ((asked, "of what fleet"), ([str(plan), "--gpu", "h200"], "gpu: fixed by the plan")):
        refused = CliRunner().invoke(app, ["capacity", *wrong])
        assert isinstance(refused.exception, fo.InputError) and said in str(refused.exception)


def test_users_a_fleet_bears() -> None:
    """So many take the fleet that stands, two in a hundred more take another; they ask it at the rate that is told."""
    rng = np.random.default_rng(4)
    few = fo.Workload.from_arrays(rng.integers(50, 2000, 24) * 1.0, rng.integers(5, 400, 24) * 1.0, name="few")
    asked: dict[str, Any] = {
        "ttft": 1.0,
        "think_time": "20s",
        "burst": "poisson",
        "pools": 1,
        "tp": 1,
        "token_budget": 2048,
        "max_num_seqs": 64,
        "confidence": 0.5,
    }
    standing = fo.plan(few, users=60, **asked)
    found = fo.capacity(standing)
    assert found.users is not None
    assert fo.plan(few, users=found.users, **asked).gpus == standing.gpus
    more = fo.plan(few, users=math.ceil(1.02 * found.users), **asked)
    assert more.gpus > standing.gpus
    assert found.to_dict()["users"] == found.users
    # the GPUs of that fleet bear as many, whatever number is named or none
    had = fo.capacity(have={"h100": standing.gpus}, workload=few, **asked)
    assert had.users is not None and had.users == pytest.approx(found.users, rel=2.0 * PRECISION)
    assert fo.capacity(standing, users=7, think_time="20s").users == pytest.approx(found.users, rel=2.0 * PRECISION)


@pytest.mark.parametrize("have", [{"h200": 2, "l40s": 3}, {"h200": 3}], ids=["two types", "one type"])
def test_a_fleet_fits_where_one_of_all_there_are_keeps_its_promises(have: dict[str, int], trace: Path) -> None:
    """Every cut, both types either side and every division of a type's GPUs, each pool replayed whole."""
    stated = {"slo": 0.6, "tp": 1, "token_budget": 4096, "confidence": 0.5, "boundaries": [900, 3500], "gpu": [*have]}
    question = compile_question(PlanInputs.from_dict(stated), fo.load_workload(trace), 1.0)

    def kept(problem: FleetProblem, i: int, j: int, gpu: str, replicas: int) -> bool:
        engines = [k for k, option in enumerate(problem.options) if option.gpu.name.startswith(gpu)]
        return any(all(problem.keeps((i, j, k), replicas, sure) for sure in (False, True)) for k in engines)

    def fits(problem: FleetProblem) -> bool:
        top = len(problem.states) - 1
        if any(kept(problem, 0, top, gpu, n) for gpu, n in have.items()):
            return True
        for cut, low, high in itertools.product(range(1, top), have, have):
            sizes = [(n, have[high] - n * (low == high)) for n in range(1, have[low] + 1)]
            if any(kept(problem, 0, cut, low, a) and kept(problem, cut, top, high, b) for a, b in sizes if b):
                return True
        return False

    answers = []
    with keeping():
        for rate in (20.0, 30.0, 40.0, 50.0, 60.0, 80.0, 120.0):
            problem = FleetProblem(question.at(rate))
            problem.open_grid()
            known: Refused = {}
            names = {find_gpu(gpu).name: n for gpu, n in have.items()}
            answers.append((Fitting(problem, names, known).fleet() is not None, fits(problem)))
    assert all(found == enumerated for found, enumerated in answers)
    assert {found for found, _ in answers} == {True, False}
