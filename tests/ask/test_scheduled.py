"""Fleets under other schedulers than the engine's own: theory against the simulated policy, the fleet, what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner as fo
from planner.ask import choices
from planner.ask.replica import PooledReplica, capacity
from planner.errors import InfeasibleError, InputError
from planner.machine.iteration import IterationModel
from planner.papers.run import run_policy
from planner.predict.engine import Canonical, Request
from planner.question.options import PlanInputs
from planner.workload.pools import FleetMoments, PoolLaw, State
from planner.workload.workload import Workload

pytestmark = pytest.mark.usefixtures("few_replayed", "short_traces")

ASKED: dict[str, Any] = {"slo": 1.0, "rate": 40, "burst": "poisson", "pools": 1, "tp": 1, "token_budget": 2048}
MODEL = IterationModel(t0=5e-3, w=5e-3, b=2.4e-5, c=4.7e-6, tau=128, g=5e-8, h=1e-6, a=7e-10)


def law_of(inputs: list[float], outputs: list[float]) -> PoolLaw:
    law = FleetMoments(Workload.from_arrays(inputs, outputs)).law(State(0.0), State(float("inf")))
    assert law is not None
    return law


def replica(inputs: list[float], outputs: list[float], slots: int = 64) -> PooledReplica:
    return PooledReplica(law_of(inputs, outputs), MODEL, slots, 2048, 200_000.0, 0.0, 10.0)


@pytest.mark.parametrize(
    ("scheduler", "policy", "settings", "tolerance"),
    [
        # eq. 4 is a fluid of geometric outputs; at 64 slots it is 1% from the exact chain, the linear costs add the rest
        ("eb", "eb", {"slots": 64, "k": 12, "token_budget": 2048}, 0.06),
        # n so large that columns never drain, as theorem 2 takes it to its limit
        ("rad", "rad", {"t_col": 64, "chunk": 2048, "n": 10_000}, 0.05),
    ],
)
def test_theory_against_a_backlog(scheduler: str, policy: str, settings: dict[str, Any], tolerance: float) -> None:
    rng = np.random.default_rng(3)
    prompts, outputs = rng.integers(64, 1025, 1500), np.minimum(rng.geometric(1 / 120, 1500), 900)
    one = replica([float(v) for v in prompts], [float(v) for v in outputs])
    lengths = zip(prompts.tolist(), outputs.tolist(), strict=True)
    requests = [Request(i, 0.0, p, o) for i, (p, o) in enumerate(lengths)]
    run = run_policy(requests, policy, Canonical(MODEL), settings, one.kv_tokens)
    done = np.sort([r.done_s for r in run.requests])
    measured = (1125 - 375) / (done[1125] - done[375])
    assert capacity(one, scheduler)[0] == pytest.approx(measured, rel=tolerance)


def test_wait_sustains_what_its_memory_lets_through() -> None:
    """C/(W (d0 + d1 C)) of one type, with the line through iterations of k requests a stage fitted here."""
    one = replica([200.0], [51.0])
    stages = 51 * (200 + 25)
    k = np.array([2.0, 8.0, 17.0])
    times = one.iteration.time(50 * k, k * (50 * 200 + 1275), 200 * k, k * 200 * 201 / 2)
    slope, start = np.polyfit(k * stages, times, 1)
    memory = one.kv_tokens
    assert capacity(one, "wait")[0] == pytest.approx(memory / (stages * (start + slope * memory)), rel=0.05)


def test_what_a_scheduler_does_not_change() -> None:
    assert capacity(replica([200.0], [51.0]), "slai")[0] == capacity(replica([200.0], [51.0]), "sarathi")[0] == 10.0


@pytest.fixture(scope="module")
def exclusive() -> fo.Plan:
    return fo.plan("azure-conv", scheduler="eb", **ASKED)


def test_a_fleet_that_runs_it(exclusive: fo.Plan) -> None:
    pool, told = exclusive.pools[0], exclusive.scheduler
    assert told is not None and told["name"] == "eb"
    row: Any = told["pools"][0]  # type: ignore[index]
    assert pool.replicas == row["replicas"] >= row["least_replicas"]
    assert 40 / pool.replicas <= 0.85 * min(row["capacity_per_s"], row["simulated_per_s"])
    assert row["simulated_per_s"] == pytest.approx(row["capacity_per_s"], rel=0.15)
    ttft = next(v for v in pool.latency if v.limit_s is not None)
    assert ttft.low_s <= ttft.value_s <= ttft.high_s and ttft.value_s <= 1.0
    assert exclusive.cost_usd_per_hour == told["cost_usd_per_hour"] == pytest.approx(pool.cost_usd_per_hour)
    assert any("Poisson arrivals" in line for line in exclusive.assumptions)
    assert json.loads(json.dumps(exclusive.to_dict()))["scheduler"]["pools"][0]["settings"]["slots"] == pool.slots


def test_closed_forms_of_the_engine_do_not_speak_for_it(exclusive: fo.Plan, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="runs the scheduler eb"):
        fo.evaluate(exclusive, 50.0)
    (tmp_path / "plan.json").write_text(json.dumps(exclusive.to_dict()))
    with pytest.raises(InputError, match="runs the scheduler eb"):
        fo.evaluate(tmp_path / "plan.json", 50.0)


def test_sarathi_is_the_plan_itself(exclusive: fo.Plan) -> None:
    own, named = fo.plan("azure-conv", **ASKED), fo.plan("azure-conv", scheduler="sarathi", **ASKED)
    assert [p.replicas for p in named.pools] == [p.replicas for p in own.pools]
    row: Any = named.scheduler["pools"][0]  # type: ignore[index]
    # the plan's capacity is the simulated one
    assert row["simulated_per_s"] == pytest.approx(row["capacity_per_s"], rel=0.05)
    assert fo.evaluate(named, 40.0).to_rows()[0]["holds"]


@pytest.mark.long("every number of replicas is looked at")
def test_what_no_number_of_replicas_keeps() -> None:
    with pytest.raises(InfeasibleError, match=r"scheduler wait: .* above the 0\.012 s promised"):
        fo.plan("azure-conv", scheduler="wait", tpot="p50=12ms", **{**ASKED, "rate": 10, "slo": 5.0})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": "disaggregated"}, "pools of their own"),
        ({"cached_share": 0.5}, "prefix caches"),
        ({"scheduler": "fifo"}, "scheduler"),
    ],
)
def test_what_the_theory_does_not_know(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fo.plan("azure-conv", **{"scheduler": "eb", **ASKED, **changes})


def test_named_among_the_options_where_it_would_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, work = fo.plan("azure-conv", **ASKED), Workload.from_file("azure-conv")
    inputs = PlanInputs.from_dict({**ASKED, "cdf": "azure-conv"})
    named = [c.flags for c in choices._schedulers(plan, inputs, work)]
    assert named == []  # within the error of its theory
    monkeypatch.setattr(choices, "capacity", lambda replica, name: (3.0 * replica.mixed_per_s, ""))
    assert [c.flags for c in choices._schedulers(plan, inputs, work)] == ["--set scheduler=eb"]
