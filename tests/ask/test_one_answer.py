"""One answer: one question has one size and one cost, whichever command asks, and costs move the way they must."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner as fo
from planner.promise import GOODPUT
from planner.report import formatter
from planner.shared.kept import keeping
from planner.workload.arrivals import Arrivals

pytestmark = pytest.mark.usefixtures("fewer_replayed", "few_paths", "short_traces")

RATES = (3.0, 60.0)
"""Below and above the rate of the plan."""

BURSTY = Arrivals(8.0, dispersion=((1.0, 5.0), (10.0, 25.0), (60.0, 60.0)), assumed=None)

QUESTIONS = 200

IN_CI = (5, 15, 17, 27, 48, 59, 68, 116, 124, 126, 129, 130, 135, 142, 157, 163, 166, 200, 201, 202)
"""Of these questions every promise, every engine and all of the rest, quick ones of several replicas, where a little more
traffic is seen; the others are asked in the long checks."""

CHANGED_IN_CI = (17, 157, 166)
"""Of what takes several plans: quick ones, one of each traffic; the first is one where a sample and all requests differ."""

DRAWN: dict[str, list[Any]] = {
    "traffic": ["recorded", "recorded", "handful"],
    "rate": [3.0, 8.0, 20.0, 45.0, 120.0],
    "promise": [
        {"slo": 0.6}, {"slo": 1.5}, {"slo": ["ttft:p95=500ms"]}, {"tpot": "40ms"}, {"slo": 0.8, "tpot": "60ms"}, {"e2e": 6.0},
        {"goodput": "95%:ttft=1s,tpot=80ms"},
    ],
    "engine": [
        {}, {"gpu": "l40s"}, {"gpu": "a100", "weights": "fp8"}, {"kv_dtype": "fp8"}, {"gpu": ["h100", "l40s"]},
        {"engine": "sglang"},
    ],
    "pools": [1, 1, 2],
    "more": [
        {}, {}, {}, {"routing": "random"}, {"routing": "least"}, {"routing": "rr"}, {"burst": "poisson"}, {"cached_share": 0.5},
        {"redundancy": 1}, {"headroom": "20%"}, {"growth": "use"}, {"shape": "disaggregated"}, {"inventory": {"h100": 90}},
        {"method": "occupancy"}, {"in_flight": 80}, {"confidence": "50%"}, {"confidence": "90%"}, {"utilization_cap": 0.6},
    ],
}  # fmt: skip
"""What a question is drawn of. Two token budgets and two groups of GPUs are searched: what is compared is who asks."""


BESIDE: tuple[dict[str, Any], ...] = (
    {"traffic": "handful", "rate": 45.0, "slo": 1.5, "scope": "fleet", "pools": 2, "gpu": "l40s"},
    {"traffic": "chats", "rate": 6.0, "slo": "p90=2s", "pools": 1, "routing": "sticky"},
    {"traffic": "handful", "users": 250, "think_time": "20s", "slo": 0.6, "pools": 1},
)
"""What no question is drawn of: a promise about all pools together, conversations, users who wait for their answers."""


def drawn(seed: int) -> dict[str, Any]:
    """The question of that number: its traffic and its options."""
    if seed >= QUESTIONS:
        return {**BESIDE[seed - QUESTIONS], "tp": 1, "token_budget": 2048}
    dice = random.Random(seed)
    taken = {name: dice.choice(values) for name, values in DRAWN.items()}
    options = {**taken["promise"], **taken["engine"], **taken["more"]}
    if "inventory" in options:
        # of the GPU that is searched, of two the first
        options["inventory"] = {str(np.ravel(options.get("gpu", "h100"))[0]): 90}
    searched = {"rate": taken["rate"], "pools": taken["pools"], "tp": [1, 2], "token_budget": [1024, 4096]}
    return {"traffic": taken["traffic"], **searched, **options}


NUMBERS, CHANGED = (
    [
        k if k in soon else pytest.param(k, marks=pytest.mark.long("the others of 200 questions; some in CI"))
        for k in range(QUESTIONS + len(BESIDE))
    ]
    for soon in (IN_CI, CHANGED_IN_CI)
)


@pytest.fixture(scope="module")
def traffic() -> fo.Workload:
    """A handful of lengths, so that many fleets are sized in little time."""
    rng = np.random.default_rng(4)
    inputs = np.round(np.exp(rng.normal(6.2, 0.9, 24))) + 20.0
    outputs = np.round(np.exp(rng.normal(4.6, 0.7, 24))) + 2.0
    return fo.Workload.from_arrays(inputs, outputs, arrivals=BURSTY, name="handful")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> fo.Workload:
    """Requests with times: calm and busy minutes in turn, longer prompts in the busy ones."""
    rng = np.random.default_rng(9)
    lines = ["timestamp,input_tokens,output_tokens"]
    for minute, count in enumerate(rng.choice([60, 400], size=10)):
        prompts = rng.integers(100, 900 if count > 100 else 300, size=count)
        times = np.sort(rng.uniform(60.0 * minute, 60.0 * (minute + 1), size=count))
        lines += [
            f"{at:.3f},{n},{o}" for at, n, o in zip(times, prompts, rng.integers(5, 200, size=count), strict=True)
        ]
    file = tmp_path_factory.mktemp("recorded") / "busy.csv"
    file.write_text("\n".join(lines))
    workload = fo.load_workload(file)
    assert workload.trace() is not None
    return workload


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> fo.Workload:
    """Conversations: the context grows from call to call."""
    rng = np.random.default_rng(6)
    lines = ["timestamp,session_id,input_tokens,output_tokens"]
    for chat in range(40):
        at, context = rng.uniform(0.0, 600.0), 0
        for _ in range(rng.integers(2, 8)):
            context += int(rng.integers(100, 900))
            lines.append(f"{at:.3f},c{chat},{context},{(said := int(rng.integers(20, 200)))}")
            context, at = context + said, at + rng.uniform(5.0, 40.0)
    file = tmp_path_factory.mktemp("chats") / "chats.csv"
    file.write_text("\n".join(lines))
    return fo.load_workload(file)


Asked = Callable[[int], tuple[fo.Workload, dict[str, Any], fo.Plan]]


@pytest.fixture(scope="module")
def asked_of(traffic: fo.Workload, recorded: fo.Workload, chats: fo.Workload) -> Asked:
    """Gives the traffic, the options and the plan of a question, planned once; one without an answer is skipped."""
    workloads = {"handful": traffic, "recorded": recorded, "chats": chats}

    @cache
    def asked(number: int) -> tuple[fo.Workload, dict[str, Any], fo.Plan]:
        options = drawn(number)
        workload = workloads[options.pop("traffic")]
        try:
            return workload, options, fo.plan(workload, **options)
        except fo.InfeasibleError as error:
            # whichever command asks says the same
            with pytest.raises(fo.InfeasibleError) as again:
                fo.schedule(workload=workload, hours="servegen-m-small", rate_is="peak", **options)
            assert str(again.value).splitlines()[0] == str(error).splitlines()[0]
            pytest.skip("no fleet keeps the promises")

    return asked


def sizes(plan: fo.Plan) -> list[tuple[Any, ...]]:
    """What a plan buys."""
    return [(p.gpu, str(p.parallel), p.settings.max_num_batched_tokens, p.high_tokens, p.replicas) for p in plan.pools]


def latencies(pools: Any) -> list[list[float]]:
    """Latencies of every pool, and shares that keep several limits."""
    return [[v.value_s if v.share is None else v.share for v in p.latency] for p in pools]


def evaluated(plan: fo.Plan, rate: float | None) -> list[list[float]]:
    """What `evaluate` says, in the order the plan says it."""
    rows = fo.evaluate(plan, rate).to_rows()
    shares = {p.metric: p.column for p in plan.slo.promises if p.kind == GOODPUT}
    names = [
        [shares.get(v.metric) or f"{v.metric.removesuffix('_s')}_p{100 * v.quantile:.10g}_s" for v in p.latency]
        for p in plan.pools
    ]
    return [[row[name] for name in of_pool] for row, of_pool in zip(rows, names, strict=True)]


@pytest.mark.parametrize("number", NUMBERS)
@keeping()
def test_every_command_has_the_plans_answer(number: int, asked_of: Asked, tmp_path: Path) -> None:
    """Plan, evaluate, what-if unchanged, a schedule's busiest hour, a scaler's static fleet, cost, capacity."""
    workload, options, plan = asked_of(number)
    rate = plan.arrival_rate_per_s
    same: dict[str, Any] = {k: [options[k]] for k in ("rate", "users") if k in options}
    # a plan for another rate, with this one's fleet: only the rate asked about may count
    elsewhere = replace(plan, inputs={**plan.inputs, "rate": 37.0}) if "rate" in same else plan
    for found, stated in zip(
        evaluated(elsewhere, rate if "rate" in same else None), latencies(plan.pools), strict=True
    ):
        assert found == pytest.approx(stated, rel=1e-9)
    if (sure := plan.sureness) is not None:
        assert sure.chance >= sure.confidence - 1e-9
        assert fo.evaluate(plan).chances == (pytest.approx(sure.chance),)
    (again,) = fo.what_if(plan, workload=workload, **same).feasible()
    assert sizes(again) == sizes(plan) and again.cost_usd_per_hour == plan.cost_usd_per_hour
    (kept,) = fo.what_if(plan, workload=workload, keep=True, **same).points
    assert kept.to_row()["pinned"] == "pools" and sizes(kept.plan) == sizes(plan)
    (tmp_path / "hours.csv").write_text("\n".join(["1"] * 12 + ["0.5"] * 12))
    hours = fo.schedule(plan, hours=tmp_path / "hours.csv", rate_is="peak", workload=workload)
    assert [p.peak for p in hours.pools] == [p.replicas for p in plan.pools]
    anew = fo.schedule(workload=workload, hours=tmp_path / "hours.csv", rate_is="peak", **options)
    assert [p.peak for p in anew.pools] == [p.replicas for p in plan.pools]
    paid = fo.cost(plan, hours=tmp_path / "hours.csv", rate_is="peak")
    assert sum(w.on_demand_gpus for w in paid.ways if w.name == "on demand, busiest hour always") == plan.gpus
    if number % 10 == 4 and not options.get("headroom"):
        scaled = fo.autoscale(plan, hours=tmp_path / "hours.csv")
        static = [o.most for p in scaled.pools for o in p.outcomes if o.name == "static"]
        assert static == [p.replicas for p in plan.pools] and scaled.rates_per_s["busiest_hour"] == pytest.approx(rate)


@pytest.mark.parametrize("number", CHANGED)
def test_changing_the_gpu_is_planning_with_it(number: int, asked_of: Asked) -> None:
    """And another type beside the plan's own makes nothing dearer than what is left unproven."""
    workload, options, plan = asked_of(number)
    other = "h200" if "h200" not in str(options.get("gpu")) else "h100"
    (point,) = fo.what_if(plan, gpu=[other], workload=workload).points
    try:
        # an inventory is of types that are not searched any more
        planned = fo.plan(workload, **{**options, "gpu": other, "inventory": {}})
    except fo.InfeasibleError:
        assert point.plan is None
    else:
        assert point.plan is not None and sizes(point.plan) == sizes(planned)
        saving = 1.0 - planned.cost_usd_per_hour / plan.cost_usd_per_hour
        assert point.to_row()["saving"] == pytest.approx(saving)
    if options.get("shape") != "disaggregated" and "inventory" not in options:
        both = fo.plan(workload, **{**options, "gpu": [*{p.gpu for p in plan.pools}, other]})
        # with a confidence, errors of two types that must both be small cost more than of one
        assert both.cost_usd_per_hour <= plan.cost_usd_per_hour + both.search.gap_usd_per_hour + 1e-9


@pytest.mark.parametrize("number", CHANGED)
def test_costs_rise_with_what_is_asked(number: int, asked_of: Asked) -> None:
    """As promises tighten, and as the rate of one stream does of which the lower ones are parts."""
    workload, options, plan = asked_of(number)
    named = {k: options[k] for k in ("slo", "tpot", "e2e", "goodput") if k in options}
    before = unproven = 0.0
    for factor in (1.5, 1.0, 0.75):
        scaled: dict[str, list[str]] = {}
        for p in plan.slo.promises:
            scaled.setdefault(p.kind.removesuffix("_s"), []).append(p.scaled(factor).spelled)
        try:
            told = {k: v for k, v in options.items() if k not in named}
            tighter = fo.plan(workload, **told, **scaled)
        except fo.InfeasibleError:
            break
        cost = tighter.cost_usd_per_hour
        assert cost >= before - unproven - 1e-9, f"x{factor}: ${cost} after ${before}"
        before, unproven = cost, tighter.search.gap_usd_per_hour
    # users ask by themselves
    name, kind = ("rate", float) if "rate" in options else ("users", int)
    more: dict[str, list[Any]] = {name: [kind(part * options[name]) for part in (0.25, 0.5, 1.0)]}
    rows = fo.what_if(plan, workload=workload, **more)
    plans = rows.feasible()
    for low, high in pairwise(plans):
        least = sum(p.cost_usd_per_hour * (p.replicas_low or p.replicas) / p.replicas for p in low.pools)
        assert high.cost_usd_per_hour >= least - 1e-9, (
            low.arrival_rate_per_s,
            low.cost_usd_per_hour,
            high.cost_usd_per_hour,
        )


@pytest.mark.parametrize("number", CHANGED)
def test_capacity_is_the_inverse(number: int, asked_of: Asked) -> None:
    """A plan's fleet bears its rate, and with one replica less of those that serve it bears less."""
    workload, options, plan = asked_of(number)
    assert fo.capacity(plan, workload=workload).rate_per_s >= plan.arrival_rate_per_s
    linked = options.get("shape") == "disaggregated"
    for k, pool in enumerate(plan.pools):
        if pool.replicas - pool.spares > 1 and not linked:
            fewer = tuple(replace(p, replicas=p.replicas - (j == k)) for j, p in enumerate(plan.pools))
            assert fo.capacity(replace(plan, pools=fewer), workload=workload).rate_per_s < plan.arrival_rate_per_s


def simple(options: dict[str, Any]) -> dict[str, Any]:
    """A question of one engine."""
    slo = 20.0 if options.get("method") == "mgc" else 0.6
    engine = {} if options.get("method") == "mgc" else {"tp": 1, "token_budget": 2048}
    return {"slo": slo, "pools": 1, "rate": 20.0, "confidence": 0.5, **engine, **options}


@pytest.mark.parametrize("method", ["mixed", "occupancy", "mgc"])
@pytest.mark.parametrize("routing", ["random", "jsq"])
def test_simulate_prints_the_plans_prediction_beside_its_own(method: str, routing: str, traffic: fo.Workload) -> None:
    plan = fo.plan(traffic, **simple({"method": method, "routing": routing}))
    for rate, point in zip(RATES, fo.what_if(plan, rate=RATES, workload=traffic).points, strict=True):
        asked_anew = point.plan
        assert asked_anew is not None
        found = fo.simulate(replace(asked_anew, inputs=plan.inputs), rate=rate, requests=300, seeds=1, max_requests=300)
        stated = {p.name: p.quantile("ttft_s", 0.99) for p in asked_anew.pools}
        assert {c.where: c.predicted for c in found.checks} == pytest.approx(stated, rel=1e-9)


@pytest.mark.parametrize(("shape", "written"), [("colocated", "yaml"), ("disaggregated", "json")])
def test_a_plan_of_a_workload_in_memory_is_asked_again(
    shape: str, written: str, traffic: fo.Workload, tmp_path: Path
) -> None:
    plan = fo.plan(traffic, **simple({"shape": shape}))
    file = tmp_path / f"plan.{written}"
    file.write_text(formatter(written)(plan))
    for fleet in (plan, file):
        rows = fo.evaluate(fleet).to_rows()
        assert [row["ttft_p99_s"] for row in rows if row["ttft_p99_s"]] == pytest.approx(
            [v for p in plan.pools if (v := p.quantile("ttft_s", 0.99))], rel=1e-12
        )
    again = fo.what_if(file, rate=[20.0]).points[0].plan
    assert again is not None
    assert latencies(again.pools) == latencies(plan.pools)
    assert fo.evaluate(again).holds


def test_a_plan_of_a_file_does_not_carry_rows() -> None:
    by_name = fo.plan("azure", slo=2.0, method="occupancy", pools=1, tp=1)
    loaded = fo.plan(fo.Workload.from_file("azure"), slo=2.0, method="occupancy", pools=1, tp=1)
    assert by_name.to_dict() == loaded.to_dict()
    assert "rows" not in by_name.workload


def test_rows_that_were_edited_are_refused(traffic: fo.Workload, tmp_path: Path) -> None:
    plan = fo.plan(traffic, **simple({"method": "mgc"}))
    file = tmp_path / "plan.yaml"
    text = formatter("yaml")(plan)
    file.write_text(text.replace("output_tokens:\n    - ", "output_tokens:\n    - 9", 1))
    with pytest.raises(fo.InputError, match="digest"):
        fo.evaluate(file)
