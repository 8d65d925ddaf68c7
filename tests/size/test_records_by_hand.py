"""The records of a plan and the choices between plans, where every part is known: routings, stocks, speculation, caches, growth."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import planner as fo
from planner.errors import InfeasibleError
from planner.plans import LatencyValue, SearchReport, Sized
from planner.predict.contract import Prediction
from planner.predict.sessions import CacheState
from planner.promise import Promise
from planner.question.compiled import CompiledQuestion
from planner.size import alone, assemble
from planner.size import problem as searched
from planner.size.assemble import pool_plans, workload_summary
from planner.size.fleet import Fleet, Solved
from planner.size.pool import Margin, Shortfall, power_w
from planner.size.problem import FleetProblem, solve
from planner.size.sure import Errors
from tests.size.four_requests import FOUR, asked, fleet

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances")


def test_a_pool_s_record_has_what_its_pool_has() -> None:
    own = fleet(redundancy=2, tpot="60ms")
    levels = (0.5, 0.9, 0.99)
    told = Prediction(
        levels, {"ttft_s": (0.1, 0.2, 0.4), "tpot_s": (0.01, 0.02, math.nan), "e2e_s": (1.0, 2.0, 4.0)},
        0.5, 0.25, 3.0, 0.125, bands={"e2e_s": ((-0.3, 0.5),) * 3}
    )  # fmt: skip
    (pool,) = own.pools
    own.pools[0] = replace(pool, prediction=told)
    sure: Any = SimpleNamespace(low=Sized(0.1, (3,), 3), high=Sized(0.9, (9,), 9))
    (plan,) = pool_plans(own, sure)
    n = pool.replicas
    assert (plan.replicas, plan.spares, plan.replicas_low, plan.replicas_high) == (n + 2, 2, 5, 11)
    assert (plan.load, plan.slot_occupancy, plan.wait_probability, plan.share) == (0.5, 0.25, 0.125, 1.0)
    assert (plan.slots, plan.kv_tokens) == (pool.setup.slots, pool.setup.kv_tokens)
    assert (plan.overflow_probability, plan.preemptions_per_1000) == (
        pool.setup.overflow_probability, pool.setup.preemptions_per_1000
    )  # fmt: skip
    assert (plan.binding, plan.reason) == (str(pool.binding), pool.binding)
    assert (plan.provenance, plan.profile, plan.warnings) == (
        "estimated",
        pool.option.profile.name,
        tuple(pool.setup.warnings),
    )
    assert plan.iteration == pool.option.profile.iteration.to_dict() and plan.settings is pool.setup.settings
    band = pool.option.profile.band
    found = {(v.metric, v.quantile): v for v in plan.latency}
    # no more than a tenth of the method's where none was measured, and the engine's on top; what has no value is not told
    assert ("tpot_s", 0.99) not in found and len(found) == 8
    assert found["ttft_s", 0.99] == LatencyValue(
        "ttft_s", 0.99, 0.4, pytest.approx(0.4 * 0.9 * (1.0 - band)), pytest.approx(0.4 * 1.1 * (1.0 + band)), 1.0
    )
    e2e = found["e2e_s", 0.5]
    assert (e2e.low_s, e2e.high_s, e2e.limit_s) == (
        pytest.approx(0.7 * (1.0 - band)), pytest.approx(1.5 * (1.0 + band)), None
    )  # fmt: skip
    (bare,) = pool_plans(own)
    assert (bare.replicas_low, bare.replicas_high) == (n + 2, n + 2)
    unsure: Any = SimpleNamespace(low=Sized(0.1, None), high=Sized(0.9, None))
    (open_end,) = pool_plans(own, unsure)
    assert (open_end.replicas_low, open_end.replicas_high) == (2, None)
    copied = replace(pool.option, parallel=replace(pool.option.parallel, dp=2, ep=2))
    own.pools[0] = replace(own.pools[0], option=copied)
    (double,) = pool_plans(own)
    copies = copied.copies
    assert (double.dp, double.ep, double.slots) == (2, 2, copies * pool.setup.slots) and copies == 2
    assert double.kv_tokens == 2 * pool.setup.kv_tokens


def test_a_joint_promise_is_told_with_its_share() -> None:
    own = fleet(ttft=None, goodput="90%:ttft=1s,tpot=60ms", rate=20.0)
    (pool,) = own.pools
    (plan,) = pool_plans(own)
    (joint,) = [v for v in plan.latency if v.share is not None]
    (promise,) = own.promises.joint
    prediction, band = pool.prediction, pool.option.profile.band
    assert (joint.metric, joint.quantile, joint.limit_s) == (promise.metric, 0.9, 1.0)
    assert joint.share == prediction.share(promise)
    assert (joint.share_low, joint.share_high) == prediction.share_band(promise, band)
    below, above = prediction.band(promise.metric, 0.9)
    assert joint.value_s == prediction.value(promise.metric, 0.9)
    assert joint.low_s == pytest.approx(joint.value_s * (1.0 + below) * (1.0 - band))
    assert joint.high_s == pytest.approx(joint.value_s * (1.0 + above) * (1.0 + band))
    ((verdict,),) = [own.at(20.0)]
    assert verdict.shares == ((promise, verdict.prediction.share(promise)),)
    three = fleet(ttft=None, goodput="90%:ttft=1s,tpot=60ms,e2e=60s", rate=20.0)
    assert [v.metric for v in pool_plans(three)[0].latency if v.share is not None] == [three.promises.joint[0].metric]


def test_the_traffic_s_record() -> None:
    told = workload_summary(FOUR)
    assert (told["name"], told["digest"], told["requests"], told["mean_input_tokens"], told["mean_output_tokens"]) == (
        "four", FOUR.digest, 4, 1350.0, 165.0
    )  # fmt: skip
    assert (told["longest_tokens"], told["arrivals"]) == (4400.0, FOUR.arrivals.to_dict())
    assert {"source", "licence", "length_split"} < set(told)


class Priced:
    """A fleet of which the cost is known, and which routings hold at its size."""

    rate = 60.0

    def __init__(self, name: str, cost: float, holds: tuple[str, ...]) -> None:
        self.name, self.cost_usd_per_hour, self.lasting, self.asked = name, cost, holds, ""

    def routed(self, question: CompiledQuestion) -> Priced:
        other = copy(self)
        other.asked = question.routing.name
        return other

    def holds(self, rate: float) -> bool:
        assert rate == 60.0
        return self.asked in self.lasting


@pytest.mark.parametrize(
    ("costs", "holds", "shared", "best", "others"),
    [
        ({"sticky": 9.0, "random": 5.0, "least": 7.0}, ("random", "least"), False, "random",
         "sticky costs $9.00/hour; least costs $7.00/hour"),
        ({"sticky": 5.0}, (), False, "sticky", "random breaks the promises at this size; least breaks the promises at this size"),
        ({"sticky": 5.0, "prefix": 4.0, "least": 9.0}, ("least",), True, "prefix",
         "sticky costs $5.00/hour; least costs $9.00/hour; random breaks the promises at this size"),
        ({"random": 6.0}, (), False, "random", "least breaks the promises at this size"),
        ({"least": 6.0}, (), False, "least", "no other keeps the promises"),
    ],
)  # fmt: skip
def test_the_cheapest_routing_is_taken(
    costs: dict[str, float],
    holds: tuple[str, ...],
    shared: bool,
    best: str,
    others: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = []

    def solve(question: CompiledQuestion) -> Any:
        name = question.routing.name
        searched.append(name)
        assert not question.open_routing and question.asked["routing"] == name
        if name not in costs:
            raise InfeasibleError("none")
        return Solved(Priced(name, costs[name], holds), SearchReport(1, 1, 0.0, 0.0, ""))  # type: ignore[arg-type]

    monkeypatch.setattr(assemble, "find_shape", lambda shape: SimpleNamespace(solve=solve))
    chats = fo.load_workload("turns=4,first=1000,growth=300,osl=100,gap=20s")
    question = asked(chats, cdf="turns=4,first=1000,growth=300,osl=100,gap=20s")
    if shared:
        traffic = SimpleNamespace(sessions=SimpleNamespace(shared=True))
        question = replace(question, traffic=traffic)  # type: ignore[arg-type]
    found = assemble._cheapest_routing(question)
    assert found.fleet.name == best  # type: ignore[attr-defined]
    (note,) = found.beside
    assert note.code == "routing_chosen" and note.values == {"routing": best, "others": others, "costs": costs}
    assert ("prefix" in searched) == shared and searched[0] == "sticky"


def test_where_idle_replicas_break_it_no_other_routing_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []

    def solve(question: CompiledQuestion) -> Any:
        searched.append(question.routing.name)
        error = InfeasibleError(f"by {question.routing.name}")
        error.idle = len(searched) == 2
        raise error

    monkeypatch.setattr(assemble, "find_shape", lambda shape: SimpleNamespace(solve=solve))
    with pytest.raises(InfeasibleError, match="by sticky"):
        assemble._cheapest_routing(asked())
    assert searched == ["sticky", "random"]


@pytest.mark.parametrize(("own", "bare"), [(5.0, 9.0), (9.0, 5.0), (5.0, None)])
def test_a_fleet_with_host_memory_is_taken_where_it_is_cheaper(
    own: float, bare: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def solve(question: CompiledQuestion) -> Any:
        given = question.inputs.offload > 0.0
        assert question.asked["offload"] == (64.0 if given else 0.0)
        cost = own if given else bare
        if cost is None:
            raise InfeasibleError("none")
        return Solved(Priced("one", cost, ()), SearchReport(1, 1, cost, 0.0, ""))  # type: ignore[arg-type]

    monkeypatch.setattr(assemble, "find_shape", lambda shape: SimpleNamespace(solve=solve))
    chats = "turns=4,first=1000,growth=300,osl=100,gap=20s"
    question = asked(fo.load_workload(chats), cdf=chats, offload=64)
    question = replace(question, asked={**question.asked, "offload": 64.0})
    assert assemble.fleet_of(question).cost_usd_per_hour == min(own, math.inf if bare is None else bare)
    monkeypatch.setattr(assemble, "_cheaper_of", lambda question, bare: (question, bare.inputs.offload))
    assert assemble._solved(question) == (question, 0.0)
    # without it, of a routing that is left open the cheapest is taken
    monkeypatch.setattr(assemble, "_cheapest_routing", lambda question: "cheapest routing")
    plain = replace(question, inputs=replace(question.inputs, offload=0.0))
    assert assemble._solved(replace(plain, open_routing=True)) == "cheapest routing"


class Straight:
    """A replica whose time per token grows with its rate; `capacity_per_s` is where it ends."""

    def __init__(self, idle: float, steep: float, capacity: float) -> None:
        self.idle, self.steep, self.capacity_per_s = idle, steep, capacity

    def look(self, rate: float, replicas: int, levels: tuple[float, ...]) -> Any:
        assert replicas == 1 and levels == (0.5,)
        return SimpleNamespace(value=lambda metric, quantile: self.idle + self.steep * rate)


@pytest.mark.parametrize(
    ("own", "crossing"),
    [
        (Straight(0.010, 0.0005, 40.0), None),  # quicker and more of it
        (Straight(0.021, 0.0005, 40.0), 0.0),  # slower from the first request on
        (Straight(0.010, 0.0020, 40.0), 6.6667 / 40.0),  # 10 + 2 r = 20 + 0.5 r ms at 6.67/s
        (Straight(0.010, 0.0005, 20.0), 1.0),  # quicker as long as it lasts
    ],
)
def test_from_which_load_on_speculation_loses(
    own: Straight, crossing: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Straight(0.020, 0.0005, 30.0)
    asked_of = []

    def model(question: Any, option: Any, setup: Any, arrivals: Any) -> Straight:
        asked_of.append((option.speculation is None, arrivals, setup))
        return plain if option.speculation is None else own

    monkeypatch.setattr(alone, "pool_model", model)
    monkeypatch.setattr(alone, "traffic_of", lambda traffic, law: SimpleNamespace(poisson=lambda: "calm"))
    monkeypatch.setattr(alone, "replace", _replaced)
    option = SimpleNamespace(
        speculation=SimpleNamespace(tokens_per_step=2.5, assumed=True),
        plain="plain profile",
        kv_tokens=lambda n: 1000 * n,
    )
    pool: Any = SimpleNamespace(
        option=option, law=None, name="all", rate_per_s=24.0, replicas=3,
        setup=SimpleNamespace(slots=7, kv_tokens=1.0),
    )  # fmt: skip
    found = alone.speculation_remark(SimpleNamespace(traffic=None), pool)  # type: ignore[arg-type]
    assert found is not None and found.code == ("speculation_gains" if crossing is None else "speculation_crosses")
    values: dict[str, Any] = dict(found.values)
    assert (values["tpot_s"], values["plain_s"]) == (pytest.approx(own.idle + 8.0 * own.steep), pytest.approx(0.024))
    assert (values["tokens"], values["assumed"]) == (2.5, ", assumed: state your own acceptance")
    assert (values["capacity"], values["plain_capacity"]) == (own.capacity_per_s, 30.0)
    assert values["load"] == pytest.approx(8.0 / own.capacity_per_s)
    # found to one part in 128 of the range
    assert values.get("crossing") == (None if crossing is None else pytest.approx(crossing, abs=0.01))
    assert (
        asked_of[0][:2] == (True, "calm") and asked_of[1][:2] == (False, "calm") and asked_of[0][2].kv_tokens == 7000.0
    )


def _replaced(thing: Any, **changes: Any) -> Any:
    return SimpleNamespace(**{**vars(thing), **changes})


def test_a_plain_replica_that_does_not_keep_up_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        alone, "pool_model",
        lambda q, option, *rest: Straight(0.02, 0.0, 7.0) if option.speculation is None else Straight(0.01, 0.0, 40.0),
    )  # fmt: skip
    monkeypatch.setattr(alone, "traffic_of", lambda traffic, law: SimpleNamespace(poisson=lambda: None))
    monkeypatch.setattr(alone, "replace", _replaced)
    option = SimpleNamespace(
        speculation=SimpleNamespace(tokens_per_step=2.5, assumed=False), plain="p", kv_tokens=lambda n: n
    )
    pool: Any = SimpleNamespace(
        option=option, law=None, name="all", rate_per_s=24.0, replicas=3,
        setup=SimpleNamespace(slots=7),
    )  # fmt: skip
    found = alone.speculation_remark(SimpleNamespace(traffic=None), pool)  # type: ignore[arg-type]
    assert found is not None and found.code == "speculation_gains"
    assert math.isinf(found.values["plain_s"]) and found.values["assumed"] == ""  # type: ignore[arg-type]
    pool.option = replace_plain(option)
    assert alone.speculation_remark(SimpleNamespace(traffic=None), pool) is None  # type: ignore[arg-type]


def replace_plain(option: Any) -> Any:
    return _replaced(option, plain=None)


class Kept:
    """Caches that find a hundredth for every copy, twice that where sessions stay."""

    def __init__(self, routing: str, shared: bool, host: float = 0.0) -> None:
        self.engine = SimpleNamespace(routing=routing, kv_tokens=1000.0)
        self.sessions = SimpleNamespace(
            shared=shared, cached_tokens=np.array([0.0, 60.0, 80.0]), shared_tokens=np.array([30.0, 10.0, 30.0]),
            input_tokens=np.array([100.0, 100.0, 200.0]),
        )  # fmt: skip
        self.host, self.cache = host, SimpleNamespace(disk_tokens=0.0)

    def routed(self, routing: Any) -> Kept:
        return Kept(routing.name, self.sessions.shared, self.host)

    def state(self, rate: float, copies: int) -> CacheState:
        assert rate == 12.0
        return CacheState(0.01 * copies * (1 if self.engine.routing == "random" else 2), self.host, 2.5, 30.4, 250.0)


def test_what_caches_find_by_routing_and_replicas() -> None:
    pool: Any = SimpleNamespace(name="all", replicas=5, option=SimpleNamespace(copies=2), rate_per_s=12.0)
    facts = alone.cache_curve(pool, Kept("sticky", False))  # type: ignore[arg-type]
    points: Any = facts["curve"]
    # half of five is two; each of two copies has a cache of its own
    assert [(p["routing"], p["replicas"], p["cached_share"]) for p in points] == [
        ("random", n, pytest.approx(0.02 * n)) for n in (2, 5, 10)
    ] + [("sticky", n, pytest.approx(0.04 * n)) for n in (2, 5, 10)]
    # 30, 60 and 80 of 400 come again
    assert facts["repeated_share"] == pytest.approx(170.0 / 400.0) and facts["routing"] == "sticky"
    assert facts["cached_share"] == pytest.approx(0.2) and facts["host_share"] == 0.0
    shared: Any = alone.cache_curve(pool, Kept("prefix", True, 0.125))["curve"]  # type: ignore[arg-type]
    assert {p["routing"] for p in shared} == {"random", "sticky", "prefix"} and {p["host_share"] for p in shared} == {
        0.125
    }
    pool.replicas = 1
    single: Any = alone.cache_curve(pool, Kept("sticky", False))["curve"]  # type: ignore[arg-type]
    assert [p["replicas"] for p in single] == [1, 2, 1, 2]
    pool.replicas = 5
    assert list(alone.cache_lines(pool, Kept("sticky", False, 0.125))) == [  # type: ignore[arg-type]
        "all: prefix caches supply 20% of the prompt tokens, host memory 13%; 43% repeat. 30 sessions at a time, calls run 2.5 s, "
        "running requests hold 25% of the KV memory.",
        "all: under routing random caches would supply 17% with 2, 23% with 5, 33% with 10 replicas.",
        "all: under routing sticky caches would supply 21% with 2, 33% with 5, 53% with 10 replicas.",
    ]
    plain = next(alone.cache_lines(pool, Kept("sticky", False)))  # type: ignore[arg-type]
    assert plain.startswith("all: prefix caches supply 20% of the prompt tokens; 43% repeat.")


def test_a_search_within_what_there_is() -> None:
    free = solve(FleetProblem(asked(rate=100.0)))
    n = sum(p.gpus for _, p in free.pools)
    enough = solve(FleetProblem(asked(rate=100.0, inventory={"h100": n})))
    assert [p.gpus for _, p in enough.pools] == [n] and enough.beyond == ()
    short = solve(FleetProblem(asked(rate=100.0, inventory={"h100": n - 1})))
    assert short.pools == () and short.one_pool is None and [p.gpus for p in short.beyond] == [n]
    powered = solve(FleetProblem(asked(rate=100.0, max_kw=0.6 * n - 0.3)))
    assert powered.pools == () and power_w(powered.beyond) == pytest.approx(600.0 * n)
    # nobody is told what there would be without
    quiet = asked(rate=100.0, inventory={"h100": n - 1})
    silent = solve(FleetProblem(replace(quiet, explained=False)))
    assert silent.pools == () and silent.beyond == ()
    # what the one type lacks the other has
    both = solve(FleetProblem(asked(rate=100.0, gpu=["h100", "l40s"], inventory={"h100": n - 1})))
    used = {p.option.gpu.name for _, p in both.pools}
    assert used and (
        used == {"l40s-48gb"} or sum(p.gpus for _, p in both.pools if p.option.gpu.name == "h100-80gb") < n
    )
    # and what the dearer type costs more is paid where it has to be
    dear = {"gpu": ["h100", "l40s"], "price": {"h100": 1.0, "l40s": 9.0}, "rate": 100.0}
    cheap = solve(FleetProblem(asked(**dear)))
    assert {p.option.gpu.name for _, p in cheap.pools} == {"h100-80gb"}
    taken = solve(FleetProblem(asked(**dear, inventory={"h100": sum(p.gpus for _, p in cheap.pools) - 1})))
    assert {p.option.gpu.name for _, p in taken.pools} == {"l40s-48gb"} and taken.cost > cheap.cost
    assert free.one_pool == free.pools[0] and free.candidates == 1 and free.proven
    wide = fo.Slo(promises=(fo.Promise("ttft_s", 1.0, 0.99, scope="fleet"),))
    fleet_wide = solve(FleetProblem(asked(rate=100.0, slo=wide, ttft=None, inventory={"h100": 2})))
    assert fleet_wide.pools == () and fleet_wide.beyond


def test_one_pool_stands_in_for_several_that_fresh_draws_do_not_bear_out(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"rate": 400.0, "ttft": 0.5, "pools": 2, "boundaries": [1000.0]}
    found = solve(FleetProblem(asked(**options)))
    assert found.one_pool is not None
    if len(found.pools) > 1:
        monkeypatch.setattr(searched, "_kept", lambda problem, pools: 12 - len(pools))
        other = solve(FleetProblem(asked(**options)))
        assert other.pools == (other.one_pool,)
        assert other.cost == pytest.approx(found.one_pool[1].cost_usd_per_hour)
        monkeypatch.setattr(searched, "_kept", lambda problem, pools: 12)
        same = solve(FleetProblem(asked(**options)))
        assert len(same.pools) == 2


class Grows(Fleet):
    """Latencies of growth of the other kind are told."""

    def __init__(
        self, values: tuple[float, ...], rate: float = 12.0, growth: str = "users", own: float | None = 10.0
    ) -> None:
        promises = SimpleNamespace(latency=(Promise("ttft_s", 0.5), Promise("tpot_s", 0.05)))
        arrivals = None if own is None else SimpleNamespace(rate_per_s=own)
        traffic = SimpleNamespace(arrivals=arrivals, rate_per_s=rate, growth=growth)
        self.question = SimpleNamespace(traffic=traffic, promises=promises)  # type: ignore[assignment]
        self.values = values

    def grown(self, growth: str) -> Any:
        self.asked = growth
        return self

    def look(self, rate_per_s: float, counts: Any = None) -> Any:
        ttft, tpot = self.values
        return [Prediction((0.99,), {"ttft_s": (ttft,), "tpot_s": (tpot,), "e2e_s": (1.0,)}, 0.5, 0.5, 1.0, 0.0)]


def test_growth_of_the_other_kind_that_breaks_a_promise() -> None:
    found = Grows((0.6, 0.04)).other_growth()
    assert found is not None and found.values == {"growth": "use", "promise": "P99 TTFT", "value_s": 0.6}
    worse = Grows((0.6, 0.07), growth="use").other_growth()
    assert worse is not None and worse.values == {"growth": "users", "promise": "P99 TPOT", "value_s": 0.07}
    assert Grows((0.5, 0.05)).other_growth() is None and Grows((0.4, math.nan)).other_growth() is None
    nan = Grows((0.6, math.nan)).other_growth()
    assert nan is not None and nan.values["promise"] == "P99 TTFT"
    # within a twentieth of the trace's own rate it does not matter who sends the rest
    assert (
        Grows((0.6, 0.04), rate=10.5).other_growth() is None
        and Grows((0.6, 0.04), rate=10.6).other_growth() is not None
    )
    assert Grows((0.6, 0.04), own=None).other_growth() is None


def test_a_fleet_is_sized_by_all_draws_of_its_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    """First with the margin of one draw, then with the deviations that all draws ask for, from the number found."""
    own = fleet(rate=60.0, confidence=0.8)
    calls: list[tuple[list[float], Any, bool]] = []

    def sizes_for(rate: float, margins: list[Margin], near: Any = None, quick: bool = False) -> Any:
        calls.append(([m.deviations for m in margins], near, quick))
        return [SimpleNamespace(replicas=5)]

    monkeypatch.setattr(own, "sizes_for", sizes_for)
    monkeypatch.setattr(Fleet, "margins_at", lambda self, rate: [Margin(1.25, 0.2)] if self.counts == [5] else [])
    assert [s.replicas for s in own.size(60.0, [7])] == [5]  # type: ignore[union-attr]
    assert calls == [([own.margins(0.8)[0].deviations], [7], True), ([1.25], [5], False)]
    monkeypatch.setattr(own, "sizes_for", lambda *given, **more: Shortfall(Promise("ttft_s", 0.5), 1.0))
    assert isinstance(own.size(60.0), Shortfall)


def test_the_deviations_of_all_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    own = fleet(rate=60.0, confidence=0.8)
    (plain,) = own.margins(0.8)
    assert plain.deviations == pytest.approx(0.8416, abs=1e-3)

    class Drawn(Errors):
        def __init__(self, fleet: Any, rate: float) -> None:
            assert rate == 60.0
            self.sd, self.draws, self.count, self.shifts = 0.2, [None, 1, 2], 1, [0.0]

        def spread(self, guess: float) -> float:
            assert guess == plain.deviations
            self.shifts = [-0.5, -0.5]
            return guess

    monkeypatch.setattr("planner.size.sure.Errors", Drawn)
    # draws that all bear half a deviation less ask for half a deviation more
    assert own.margins_at(60.0)[0].deviations == pytest.approx(plain.deviations + 0.5, abs=1e-6)
    assert own.margins_at(60.0)[0].sd == plain.sd
    monkeypatch.setattr(Drawn, "__init__", lambda self, fleet, rate: self.__dict__.update(sd=0.2, draws=[None]))
    assert own.margins_at(60.0) == [plain]
