"""Plans as a whole: what must hold of any answer, and the paper's own setting."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner as fo
from planner.sizing.build import make_plan
from planner.sizing.engine import engine_options
from planner.sizing.fleet import FleetProblem
from planner.sizing.inputs import PlanInputs
from planner.sizing.pool import evaluate_pool
from planner.workload.workload import Workload

PAPER: dict[str, Any] = {"profile": "fleetopt-paper", "method": "mgc", "kv": "reserved"}


@pytest.fixture(scope="module")
def azure() -> Workload:
    return Workload.from_file("azure")


def _solved(workload: Workload, **options: Any) -> tuple[FleetProblem, Any]:
    inputs = PlanInputs.from_dict({"cdf": "azure", **options})
    rate = inputs.rate or workload.arrivals.rate_per_s
    assert rate is not None
    problem = FleetProblem(inputs, workload, rate, engine_options(inputs, workload.max_total))
    return problem, problem.solve()


@pytest.mark.parametrize(
    "options",
    [
        {"slo": 0.5, "rate": 300.0},
        {"slo": 0.5, "rate": 300.0, "method": "occupancy"},
        {"slo": 2.0, "rate": 1000.0, **PAPER},
        {"slo": 1.0, "tpot": 0.05, "rate": 50.0, "token_budget": 1024},
    ],
)
def test_every_pool_is_as_small_as_its_promises_allow(azure: Workload, options: dict[str, Any]) -> None:
    problem, fleet = _solved(azure, **options)
    assert math.fsum(p.arrival_rate_per_s for p in fleet.pools) == pytest.approx(options["rate"], rel=1e-9)
    for pool in fleet.pools:
        n = pool.size.replicas
        for promise in problem.promises:
            assert pool.size.prediction.held(promise.metric, promise.quantile) <= promise.limit_s
        if n > 1:
            fewer = evaluate_pool(pool.model, pool.arrival_rate_per_s, n - 1, problem.levels)
            over_cap = pool.arrival_rate_per_s > 0.85 * (n - 1) * pool.model.capacity_per_s
            assert over_cap or any(fewer.held(p.metric, p.quantile) > p.limit_s for p in problem.promises)


@given(rate=st.floats(0.5, 1e5), slo=st.floats(1.2, 20.0), more=st.floats(1.0, 3.0))
@settings(max_examples=25, deadline=None)
def test_less_traffic_or_a_looser_promise_never_costs_more(rate: float, slo: float, more: float) -> None:
    w = Workload.from_file("azure")
    base = fo.plan(w, slo=slo, rate=rate, **PAPER).cost_usd_per_hour
    assert fo.plan(w, slo=slo * more, rate=rate, **PAPER).cost_usd_per_hour <= base
    assert fo.plan(w, slo=slo, rate=rate * more, **PAPER).cost_usd_per_hour >= base


def test_more_pools_never_cost_more(azure: Workload) -> None:
    costs = [fo.plan(azure, slo=2.0, rate=1000.0, pools=k, **PAPER).cost_usd_per_hour for k in (1, 2, 3)]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize("scale", [1e-3, 7.0])
def test_the_unit_of_time_changes_nothing(azure: Workload, scale: float) -> None:
    """Every time and every rate in another unit: the same fleet."""
    from dataclasses import replace

    from planner.catalog.profiles import profile
    from planner.iteration.model import IterationModel

    inputs = PlanInputs.from_dict({"cdf": "azure", "slo": 2.0, "rate": 900.0, **PAPER})
    options = engine_options(inputs, azure.max_total)
    base = FleetProblem(inputs, azure, 900.0, options).solve()
    it = profile("fleetopt-paper").iteration
    stretched = replace(
        options[0], profile=replace(options[0].profile, iteration=IterationModel(t0=it.t0 * scale, h=it.h * scale))
    )
    inputs = PlanInputs.from_dict({"cdf": "azure", "slo": 2.0 * scale, "rate": 900.0 / scale, **PAPER})
    other = FleetProblem(inputs, azure, 900.0 / scale, [stretched]).solve()
    assert [p.size.replicas for p in other.pools] == [p.size.replicas for p in base.pools]
    assert [p.law.upper for p in other.pools] == [p.law.upper for p in base.pools]


def test_the_vectorized_sweep_equals_sizing_pool_by_pool(azure: Workload) -> None:
    """Closed form over the whole grid against the scalar search on each pool."""
    problem, _ = _solved(azure, slo=2.0, rate=1000.0, boundaries=[1000, 2000, 3000, 4000, 8000], **PAPER)
    problem.open_grid()
    top = len(problem.states) - 1
    for s in range(1, top):
        for i, j in ((0, s), (s, top)):
            cost = problem.bounds[i, j]
            if cost == 0.0:
                continue  # nobody there
            found = problem.candidate(i, j, 0)
            assert (math.inf if found is None else found.cost_usd_per_hour) == pytest.approx(cost, rel=1e-12)


def test_the_paper_s_slots_and_service_times() -> None:
    """n_max of FleetOpt section 7.1: 256 at 4K, 682 at 1.5K, 128 at 8K, 16 at 64K."""
    lmsys = Workload.from_arrays([1000.0, 3500.0], [500.0, 500.0], arrival_rate_per_s=1.0)
    for boundary, slots in ((1536.0, 682), (4096.0, 256), (8192.0, 128)):
        option = engine_options(PlanInputs.from_dict({"slo": 2.0, "rate": 1.0, **PAPER}), lmsys.max_total)[0]
        assert option.reserved_slots(boundary) == slots
    assert option.reserved_slots(65536.0) == 16


def test_half_a_second_is_infeasible_for_the_paper_s_short_pool(azure: Workload) -> None:
    """At 256 slots of 0.65 ms an iteration takes 174 ms and eq. 8 leaves no time for a long prompt."""
    with pytest.raises(fo.InfeasibleError) as error:
        fo.plan(azure, slo=0.5, rate=1000.0, pools=1, max_model_len=4096 * 4, boundaries=[4096], **PAPER)
    assert "P99 TTFT" in str(error.value)


def test_the_answer_does_not_depend_on_the_order_of_gpus(azure: Workload) -> None:
    costs = {
        fo.plan(azure, slo=1.0, rate=200.0, gpu=list(g), method="occupancy").cost_usd_per_hour
        for g in (("h100", "l40s", "a100"), ("a100", "h100", "l40s"))
    }
    assert len(costs) == 1
    single = [
        fo.plan(azure, slo=1.0, rate=200.0, gpu=[g], method="occupancy").cost_usd_per_hour for g in ("h100", "a100")
    ]
    assert costs.pop() <= min(single)


def test_rate_of_the_file_is_the_default_and_its_absence_an_error(azure: Workload) -> None:
    plan = fo.plan(azure, slo=0.5)
    assert plan.arrival_rate_per_s == pytest.approx(8.02249218)
    bare = Workload.from_arrays([100.0], [10.0])
    with pytest.raises(fo.InputError, match="--rate"):
        make_plan(PlanInputs.from_dict({"slo": 0.5}), bare)


def test_plans_are_json_ready_and_carry_their_question(azure: Workload) -> None:
    import json

    plan = fo.plan(azure, slo=0.5, rate=100.0)
    data = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert PlanInputs.from_dict(data["inputs"]) == PlanInputs.from_dict(plan.inputs)
    assert data["schema_version"] == 1
    assert data["pools"][0]["settings"]["reasons"]["max_num_seqs"]
    assert plan.assumptions
