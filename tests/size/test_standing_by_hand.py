"""Fleets that stand: deaths among them, users in front of them, and what a search makes of its pools when it is done."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import planner as fo
from planner.catalog import gpu
from planner.errors import InfeasibleError, InputError
from planner.predict.contract import PoolModel, Prediction, Scaled
from planner.predict.records import Outage
from planner.predict.replayed import ReplayPool
from planner.predict.run import replay
from planner.predict.traffic import WHOLE
from planner.promise import Promise
from planner.question.compiled import Promises, compile_question
from planner.question.files import saved_pools
from planner.question.options import PlanInputs
from planner.shared.kept import keeping
from planner.shared.remarks import Remark
from planner.size import notes, shapes
from planner.size.assemble import make_plan
from planner.size.fleet import Fleet
from planner.size.pool import Margin, Pool, Shortfall, smallest_pool, without_luck
from planner.size.problem import FleetProblem
from planner.size.shapes import colocated, disaggregated, standing_fleet
from planner.size.shapes.colocated import Colocated, decided
from tests.size.four_requests import ASKED, FOUR, INPUTS, OUTPUTS, asked, fleet, plan

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances", "without_words")


def test_as_many_die_as_there_are_spares_and_a_node_s(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, float, bool]] = []

    def after(pool: Pool, promises: Any, dead: int, repair_s: float, node: bool) -> Any:
        seen.append((dead, repair_s, node))
        return ()

    monkeypatch.setattr(notes, "_after", after)

    def told(**options: Any) -> list[tuple[int, float, bool]]:
        seen.clear()
        own = fleet(**options)
        list(notes.deaths_of(own))
        return [*seen]

    # eight GPUs stand in a node; half an hour goes by
    assert told(redundancy=2, rate=200.0) == [(2, 1800.0, False), (8, 1800.0, True)]
    assert told(redundancy=1, rate=200.0, tp=4) == [(1, 1800.0, False), (2, 1800.0, True)]
    assert told(redundancy=9, rate=200.0) == [(9, 1800.0, False)]
    # all but one at most
    small = fleet(redundancy=2, rate=1.0)
    assert small.pools[0].bought == 3 and told(redundancy=2, rate=1.0) == [(2, 1800.0, False)]
    assert told(rate=200.0) == []
    wide = fo.Slo(promises=(fo.Promise("ttft_s", 1.0, 0.99, scope="fleet"),))
    assert told(redundancy=2, rate=60.0, slo=wide, ttft=None) == []


@pytest.mark.parametrize(("limit", "node"), [(30.0, False), (1e-3, True)])
def test_what_deaths_do_is_a_replay_with_replicas_that_are_out(limit: float, node: bool) -> None:
    (pool,) = fleet(redundancy=2, rate=60.0).pools
    promise = Promise("ttft_s", limit, 0.9)
    (told,) = notes._after(pool, (promise, Promise.joint({"ttft_s": 1.0, "tpot_s": 0.1}, 0.9)), 2, 120.0, node)
    model = pool.model
    assert isinstance(model, ReplayPool)
    laid = model.traffic.lay(60.0, pool.bought, model.engine.routing, most=WHOLE)
    requests = model.traffic.requests(laid)
    begin = notes._busiest(requests)
    run = replay(
        requests, replace(model.engine, count=pool.bought), outages=[Outage(k, begin, begin + 120.0) for k in range(2)]
    )
    weight = np.ones(requests.size) if requests.weight is None else requests.weight

    def nine_in_ten(rows: Any) -> float:
        ttft = np.nan_to_num(run.ttft_s[rows], nan=math.inf) + model.overhead_s
        order = np.argsort(ttft)
        reached = np.cumsum(weight[rows][order])
        return float(ttft[order][np.searchsorted(reached, 0.9 * reached[-1])])

    values: dict[str, Any] = dict(told.values)
    # between two neighbours
    assert values["value_s"] == pytest.approx(nine_in_ten(np.ones(requests.size, dtype=bool)), rel=2e-3)
    inside = (requests.arrival_s >= begin) & (requests.arrival_s < begin + 300.0)
    assert values["then_s"] == pytest.approx(nine_in_ten(inside), rel=2e-3)
    assert told.code == ("deaths_broken" if node else "deaths_kept")
    assert {k: values[k] for k in ("pool", "dead", "bought", "label", "limit_s", "repair_s", "who")} == {
        "pool": "all", "dead": 2, "bought": pool.bought, "label": "P90 TTFT", "limit_s": limit, "repair_s": 120.0,
        "who": "a node" if node else "as many as there are spares",
    }  # fmt: skip
    # nobody is left, nobody died, and what is no replay of single replicas
    assert list(notes._after(pool, (promise,), pool.bought, 120.0, node)) == []
    assert list(notes._after(pool, (promise,), 0, 120.0, node)) == []
    (unknown,) = notes._after(fleet(redundancy=2, method="occupancy").pools[0], (promise,), 1, 120.0, node)
    assert unknown == Remark("deaths_unknown", {"pool": "all", "spares": 2})
    both = replace(pool, model=Scaled(model, 2))
    twice = list(notes._after(both, (promise,), 1, 120.0, node))
    assert [r.values["dead"] for r in twice] == [1]


def test_a_fleet_that_stands_is_asked_by_its_users(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = saved_pools(plan())
    users = compile_question(PlanInputs.from_dict({**ASKED, "rate": None, "users": 300, "think_time": "10s"}), FOUR)
    own = standing_fleet(users, saved)
    # Little's law: each comes back after a think time and an answer
    assert 0.7 * 30.0 < own.rate < 30.0
    known = own.question.traffic.sending.population
    assert known is not None and known.asked_per_s == own.rate
    again = standing_fleet(own.question, saved)
    assert again.rate == own.rate
    assert list(shapes.shape_names()) == ["colocated", "disaggregated"]


def test_engines_that_prefill_and_decode_apart() -> None:
    question = asked(shape="disaggregated", token_budget=[512, 4096], gpu=["h100", "l40s"])
    assert [o.gpu.name for o in disaggregated.pool_options(question)] == ["h100-80gb", "l40s-48gb"]
    with pytest.raises(InputError, match="prefill and decode pools that speculate are not modelled"):
        disaggregated.pool_options(asked(shape="disaggregated", speculate="eagle3:k=3,accept=0.7"))
    copies = disaggregated.pool_options(asked(shape="disaggregated", model="qwen3-30b-a3b", tp=1, dp=2))
    assert copies and {o.copies for o in copies} == {2}
    whole = replace(asked(shape="disaggregated").inputs, inventory={})
    assert whole.max_kw is None
    # where no engine can be one at all, the first reason is told
    free = {"profile": "fleetopt-paper", "tp": None, "shape": "disaggregated", "method": "mixed"}
    with pytest.raises(InputError, match="charges nothing for prefill"):
        disaggregated.SHAPE.solve(asked(**free))


def test_copies_of_a_replica_count_as_their_replica() -> None:
    """A pool of two copies a replica: twice the capacity of one copy, predicted as twice as many of them."""
    question = asked(shape="disaggregated", model="qwen3-30b-a3b", tp=1, dp=2, rate=20.0)
    (option,) = disaggregated.pool_options(question)
    model = disaggregated.Disaggregated(question, option, option)
    assert isinstance(model.prefills, Scaled) and isinstance(model.decodes, Scaled) and model.decode is not None
    assert model.prefills.capacity_per_s == pytest.approx(2.0 * model.prefill.capacity_per_s)
    assert model.decodes.capacity_per_s == pytest.approx(2.0 * model.decode.capacity_per_s)
    levels = (0.5, 0.9)
    first, second = model.pair(20.0, 3, 2, levels, quick=True)
    assert first.latencies["ttft_s"] == model.prefill.look(20.0, 6, levels).latencies["ttft_s"]
    assert (
        second is not None
        and second.latencies["tpot_s"] == model.decode.beside(6).look(20.0, 4, levels).latencies["tpot_s"]
    )


class Lucky(PoolModel):
    """Kept by a sample from five replicas on and by all draws from `sure` on."""

    capacity = 10.0

    def __init__(self, sure: int, short: bool = True) -> None:
        self.sure, self.short, self.asked = sure, short, []  # type: ignore[var-annotated]

    @property
    def capacity_per_s(self) -> float:
        return self.capacity

    def is_short(self, rate_per_s: float, replicas: int) -> bool:
        return self.short

    def keeps(self, rate: float, replicas: int, promises: Any, sure: bool = False) -> bool:
        self.asked.append((replicas, sure))
        return replicas >= (self.sure if sure else 5)

    def unloaded(self, quantiles: tuple[float, ...]) -> Prediction:
        return Prediction(quantiles, {"ttft_s": (0.1,)}, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(("sure", "found"), [(3, 4), (4, 4), (5, 5), (6, 6), (9, 9), (23, 23)])
def test_of_a_short_trace_all_draws_decide(sure: int, found: int) -> None:
    """At least four replicas hold 33/s within the cap."""
    (pool,) = fleet().pools
    promises, model = Promises((Promise("ttft_s", 0.5),)), Lucky(sure)
    own = replace(pool, model=model, rate_per_s=33.0, replicas=5, bought=5)
    decided_by_all = without_luck(own, promises, Margin())
    assert (decided_by_all.replicas, decided_by_all.bought) == (found, found)
    assert all(asked_sure for _, asked_sure in model.asked) and len({n for n, _ in model.asked}) == len(model.asked)
    long = replace(own, model=Lucky(sure, short=False))
    assert without_luck(long, promises, Margin()) is long and without_luck(own, Promises(()), Margin()) is own
    # and so they do where a pool is sized, from any start
    for start in (None, 1.0, 5.0, 30.0):
        size = smallest_pool(Lucky(sure), 33.0, promises, 1, (0.99,), start, quick=True)
        assert isinstance(size, tuple) and size[0] == 5 and size[2].values == {"promise": "P99 TTFT"}


def test_pools_of_a_search_are_decided_by_all_requests() -> None:
    problem = FleetProblem(asked(rate=200.0, confidence=0.8))
    pool = problem.candidate(0, 1, 0)
    assert pool is not None
    own = decided(problem, [((0, 1, 0), pool)])
    sizes = own.size(200.0)
    assert isinstance(sizes, list) and own.counts == [s.replicas for s in sizes] and own.pools[0].name == "all"
    assert not math.isnan(own.pools[0].prediction.load) and own.pools[0].bought == own.counts[0]
    quick = FleetProblem(replace(asked(rate=200.0, confidence=0.8), quick=True))
    same = quick.candidate(0, 1, 0)
    assert same is not None
    sampled = decided(quick, [((0, 1, 0), same)])
    assert sampled.counts == [same.replicas] and math.isnan(sampled.pools[0].prediction.load)
    impossible = FleetProblem(asked(rate=200.0, ttft=0.05))
    with pytest.raises(InfeasibleError, match="even idle, the best fleet needs"):
        decided(impossible, [((0, 1, 0), pool)])


def test_two_types_have_to_be_surer_each_when_decided_by_a_sample() -> None:
    """Both hold with a chance of 0.81 where each does with 0.9."""
    question = asked(rate=200.0, confidence=0.81, pools=2, boundaries=[1000.0], gpu=["h100", "l40s"])
    problem = FleetProblem(replace(question, quick=True))
    problem.open_grid()
    kinds = {o.gpu.name: k for k, o in enumerate(problem.options)}
    edges = [(0, 1, kinds["l40s-48gb"]), (1, 2, kinds["h100-80gb"])]
    pools = [problem.candidate(*edge) for edge in edges]
    own = decided(problem, [(edge, pool) for edge, pool in zip(edges, pools, strict=True) if pool is not None])
    assert [p.name for p in own.pools] == ["short", "long"] and own.errors == 2
    for pool, part in zip(own.pools, (150.0, 50.0), strict=True):
        margin = Margin(NormalDist().inv_cdf(0.9), own.margins(0.81)[0].sd)
        held = own.promises.only((replace(own.promises.latency[0], quantile=0.992),))
        alone = smallest_pool(pool.model, part, held, 1, held.levels(own.levels), None, True, margin)
        assert isinstance(alone, tuple) and pool.replicas == alone[0] == pool.bought
        # a sample says how many, and nobody has predicted anything
        assert math.isnan(pool.prediction.load)


def test_clients_that_hold_back_more_than_they_send_are_told_at_once() -> None:
    with pytest.raises(InputError, match="in_flight: 50 requests under way are at most"):
        plan(rate=1000.0, in_flight=50)


def test_what_is_beyond_the_stock_when_decided_is_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests take a replica more than the sample: what was within is beyond, and the next best is taken or none is."""
    n = sum(p.gpus for p in fleet(rate=100.0).pools)
    problem = FleetProblem(asked(rate=100.0, inventory={"h100": n + 1}))
    honest = colocated.decided

    def more(problem: FleetProblem, chosen: Any) -> Colocated:
        own = honest(problem, chosen)
        return own.resized([n + 2]) if own.pools[0].option.gpu.name == "h100-80gb" else own

    monkeypatch.setattr(colocated, "decided", more)
    with pytest.raises(InfeasibleError, match="no fleet within the inventory") as caught:
        colocated._within_stock(problem)
    assert caught.value.relaxations[0].startswith(f"an inventory of h100-80gb: {n + 2}:")
    two = FleetProblem(asked(rate=100.0, gpu=["h100", "l40s"], inventory={"h100": n + 1}))
    found, own = colocated._within_stock(two)
    assert {p.option.gpu.name for p in own.pools} == {"l40s-48gb"} and len(found.pools) == 1


@pytest.mark.usefixtures("with_words")
def test_a_plan_of_rows_carries_them() -> None:
    inputs = PlanInputs.from_dict({**ASKED, "osl_scale": 2.0})
    carried = make_plan(inputs, FOUR, in_memory=True)
    assert carried.inputs["osl_scale"] == 1.0 and carried.inputs["drop_longer_than"] is None
    rows: Any = carried.workload["rows"]
    assert (rows["input_tokens"], rows["output_tokens"]) == (INPUTS.tolist(), (2.0 * OUTPUTS).tolist())
    plain = make_plan(inputs, FOUR)
    assert "rows" not in plain.workload and plain.inputs["osl_scale"] == 2.0
    bare = make_plan(inputs, FOUR, in_memory=True, words="none")
    assert "rows" not in bare.workload and bare.remarks["notes"] == ()
    standing = make_plan(inputs, FOUR, standing=saved_pools(plain))
    assert standing.search.description == "the plan's own pools" and standing.replicas == plain.replicas
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fleet, "other_growth", lambda self: seen.append(1))
        make_plan(inputs, FOUR, words="brief")
        assert seen == []
        make_plan(inputs, FOUR)
        assert seen == [1]


@pytest.mark.usefixtures("with_words")
def test_a_plan_by_a_profile_is_of_its_own_gpu_and_model() -> None:
    paper = {
        "profile": "fleetopt-paper",
        "method": "mgc",
        "kv": "reserved",
        "route_on": "total",
        "ttft": 30.0,
        "tp": None,
    }
    found = plan(**paper)
    assert found.inputs["gpu"] == [found.pools[0].gpu] and found.inputs["model"] == "llama-3.1-70b"
    caveats = [r for r in found.remarks["notes"] if r.code == "caveat"]
    assert len(caveats) == (1 if FleetProblem(asked(**paper)).method.caveat else 0)
    assert len({str(r) for r in found.remarks["assumptions"]}) == len(found.remarks["assumptions"])


def test_doors_stand_before_prefill_replicas_alone() -> None:
    clients: dict[str, Any] = {"client_timeout": "20s", "shape": "disaggregated"}
    question = asked(**clients)
    option = disaggregated.pool_options(question)[0]
    own = disaggregated.Disaggregated(question, option, option).resized((4, 3))
    first, second = own.at(60.0)
    assert first.overload is not None and second.overload is None
    assert first.overload["demand_per_s"] == 60.0
    assert len([line for line in own.summary() if line.startswith("prefill: at these loads")]) == 1
    together = fleet(client_timeout="20s")
    (verdict,) = together.at(60.0)
    assert verdict.overload is not None and list(together.overload() or ()) == ["all"]


def test_what_two_questions_share_is_made_once() -> None:
    """Of engines that differ in their price alone the slots and the model; not of other budgets, nor of other promises together."""
    with keeping():
        first, dear, small = (
            FleetProblem(asked(**more)).build(0, 1, 0) for more in ({}, {"price": {"h100": 9.0}}, {"token_budget": 512})
        )
        joint = FleetProblem(asked(ttft=None, goodput="90%:ttft=1s,tpot=60ms")).build(0, 1, 0)
    assert first is not None and dear is not None and small is not None and joint is not None
    assert dear.setup is first.setup and dear.model is first.model
    assert small.setup is not first.setup and small.model is not first.model
    assert small.setup.settings.max_num_batched_tokens == 512 and first.setup.settings.max_num_batched_tokens == 2048
    assert joint.model is not first.model and joint.model.joint and not first.model.joint
    apart = FleetProblem(asked()).build(0, 1, 0)
    assert apart is not None and apart.model is not first.model


@pytest.mark.parametrize("seed", range(12))
def test_of_pairs_of_engines_the_cheapest_within_the_bounds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs whose least cost, cost and GPUs are drawn; some cannot be built and some keep no promise."""
    rng = np.random.default_rng(seed)
    costs = {(a, b): float(c) for (a, b), c in zip(PAIRS, rng.permutation(9) + 10.0, strict=True)}
    least = {pair: cost * rng.uniform(0.5, 1.0) for pair, cost in costs.items()}
    refused, late = ({pair for pair in PAIRS if rng.random() < 0.2} for _ in range(2))
    needs = {pair: int(rng.integers(1, 9)) for pair in PAIRS}

    class Known:
        def __init__(self, question: Any, first: Any, second: Any, known: Any) -> None:
            self.pair = first.name, second.name
            if self.pair in refused:
                raise InputError(f"no {self.pair}")
            self.cost_usd_per_hour, self.promises = costs[self.pair], None
            option = SimpleNamespace(gpu=gpu("h100"))
            self.pools = [SimpleNamespace(gpus=needs[self.pair], option=option)]

        def least_cost(self) -> float:
            return least[self.pair]

        def sizes(self, rate: float, promises: Any, quick: bool) -> Any:
            return Shortfall(Promise("ttft_s", 1.0), 2.0) if self.pair in late else []

        def sized(self, sizes: Any) -> Known:
            return self

        def size(self, rate: float) -> Any:
            return []

    monkeypatch.setattr(disaggregated, "Disaggregated", Known)
    options = [SimpleNamespace(name=n, model=SimpleNamespace(name="m")) for n in "abc"]
    monkeypatch.setattr(disaggregated, "pool_options", lambda question: options)
    able = [pair for pair in PAIRS if pair not in refused | late]
    for bound in ({}, {"inventory": {"h100": 4}}, {"max_kw": 2.4}):
        within = [pair for pair in able if not bound or needs[pair] <= 4]
        question = asked(shape="disaggregated", **bound)
        if within:
            solved: Any = disaggregated.SHAPE.solve(question)
            assert solved.fleet.pair == min(within, key=lambda pair: costs[pair]) and solved.search.candidates == 9
        elif able:
            with pytest.raises(InfeasibleError) as caught:
                disaggregated.SHAPE.solve(question)
            needed = needs[min(able, key=lambda pair: costs[pair])]
            told = f"h100-80gb: {needed}" if "inventory" in bound else f"--max-kw {0.6 * needed:g}"
            assert told in caught.value.relaxations[0]


PAIRS = [(a, b) for a in "abc" for b in "abc"]
