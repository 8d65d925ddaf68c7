"""Why there is no fleet and what would help; which engines are looked at; fleets of users, and queues that close."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import planner as fo
from planner.catalog import gpu
from planner.catalog.load import gpus
from planner.errors import InfeasibleError, InputError
from planner.plans import SearchReport
from planner.promise import Promise
from planner.question.files import saved_pools
from planner.shared.remarks import Remark
from planner.size import assemble, unknowns
from planner.size.assemble import fleet_of, plan_of
from planner.size.explain import (
    _nearest_engines,
    _nearest_fleet,
    beyond,
    check_limit,
    name_shortfalls,
    of_fleet_wide,
    relaxed,
    unkept,
)
from planner.size.fleet import Solved
from planner.size.pool import Shortfall
from planner.size.problem import FleetProblem, _is_unbeatable, _kept, _stock
from planner.size.shapes import standing_fleet
from tests.size.four_requests import asked, fleet, plan

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances")

TTFT, TPOT = Promise("ttft_s", 0.5), Promise("tpot_s", 0.05)


def refused(**options: Any) -> InfeasibleError:
    with pytest.raises(InfeasibleError) as caught:
        plan(**options)
    return caught.value


def test_what_nobody_keeps_is_told_with_the_best_there_is() -> None:
    problem = FleetProblem(asked(ttft=0.05))
    idle = problem.idle(0, 1, 0)
    assert idle is not None
    error = refused(ttft=0.05)
    assert error.message.startswith(
        "P99 TTFT <= 50 ms cannot be kept by any number of replicas: even idle, the best fleet needs"
    )
    assert error.best_s == pytest.approx(idle.best_s) and error.promise == Promise("ttft_s", 0.05)
    lines = error.relaxations
    # twice the least, rounded up to two digits
    limit = float(lines[0].removeprefix("relax P99 TTFT to ").split(" ms")[0]) / 1e3
    assert 2.0 * idle.best_s <= limit <= 2.0 * idle.best_s + 0.01
    assert lines[0].endswith("or more: what is near the least possible is dear")
    assert lines[1] == (
        "a faster prefill: larger groups (--tp left open), a faster GPU (--gpu any) or a prefix cache (--cached-share)"
    )
    assert lines[2].startswith("promise long prompts less") and len(lines) == 3
    grouped = refused(ttft=0.05, tp=None).relaxations[1]
    assert grouped == "a faster prefill: a faster GPU (--gpu any) or a prefix cache (--cached-share)"
    assert refused(ttft=0.02, cached_share=0.5).relaxations[1] == (
        "a faster prefill: larger groups (--tp left open) or a faster GPU (--gpu any)"
    )
    token = refused(ttft=None, tpot="2ms")
    assert list(token.relaxations[1:]) == [
        "a smaller --token-budget, larger groups (--tp left open) or memory with more bandwidth (--gpu any)"
    ]
    whole = refused(ttft=None, e2e="100ms")
    assert list(whole.relaxations[1:]) == ["shorter outputs or a GPU with more memory bandwidth (--gpu any)"]


def test_nobody_is_told_why_where_nobody_asks() -> None:
    question = asked(ttft=0.05)
    with pytest.raises(InfeasibleError, match=r"^no fleet keeps"):
        fleet_of(replace(question, explained=False))


@pytest.mark.parametrize("shape", ["colocated", "disaggregated"])
def test_more_sequences_than_leave_memory_for_one_long_request(shape: str) -> None:
    """What the sampler keeps for each takes all that is left beside the weights."""
    told = (
        "no pool can hold its longest request" if shape == "colocated" else "does not fit in a decode replica's memory"
    )
    with pytest.raises((InfeasibleError, InputError), match=told):
        plan(max_num_seqs=100_000, shape=shape)
    (saved,) = saved_pools(plan())
    with pytest.raises(InputError, match="pool all: one request of 4,000 tokens does not fit in memory"):
        standing_fleet(asked(), [replace(saved, slots=100_000)])


def test_an_error_in_words() -> None:
    missed = unkept(Shortfall(TTFT, 0.913), "here: ", "idle it needs", ["pray"])
    assert missed.message == "here: P99 TTFT <= 500 ms cannot be kept by any number of replicas: idle it needs 913 ms"
    assert list(missed.relaxations) == [
        "relax P99 TTFT to 1.9 s or more: what is near the least possible is dear", "pray"
    ]  # fmt: skip
    assert (missed.promise, missed.best_s, missed.hint) == (TTFT, 0.913, "What would help:")
    assert list(unkept(Shortfall(TTFT, math.inf), "", "idle", ["pray"]).relaxations) == ["pray"]
    doubtful = unkept(Shortfall(TTFT, 0.4, 0.678), "here: ", "idle it needs", ["pray"])
    assert doubtful.message == (
        "here: P99 TTFT <= 500 ms cannot be kept with a chance of more than 67% by any number of replicas (--confidence asks for "
        "more): idle it needs 400 ms by iteration times that are not better known"
    )
    assert list(doubtful.relaxations) == [
        "relax P99 TTFT to 800 ms or more: what is near the least possible is dear",
        "iteration times measured on the GPU (fleetopt calibrate), which are better known",
        "a lower confidence (--confidence 67%)",
        "pray",
    ]
    slight = unkept(Shortfall(TTFT, 0.4, 0.049), "", "", [])
    assert not any("--confidence" in line for line in slight.relaxations)
    least = Shortfall(TTFT, 0.4, 0.0501)
    assert any("--confidence 5" in line for line in unkept(least, "", "", []).relaxations)
    # of replicas at work the chance is a bound
    assert any("--confidence below 5" in line for line in unkept(least, "", "", [], at_work=True).relaxations)
    joint = Promise.joint({"ttft_s": 0.5, "tpot_s": 0.05}, 0.9)
    assert relaxed(joint, 1.0).startswith("relax the goodput to 90% within TTFT 1 s and TPOT 100 ms or more")
    assert of_fleet_wide(TTFT, 0.0123) == "1.2% of all requests exceed 500 ms TTFT (promised: at most 1.0%)."
    assert of_fleet_wide(joint, 0.04).startswith(
        "4.0% of all requests exceed 500 ms TTFT or 50 ms TPOT (promised: at most 10%"
    )


def test_what_is_missing_in_words() -> None:
    stocked, powered = asked(rate=40.0, inventory={"h100": 1200}), asked(rate=40.0, max_kw=2.5)
    (pool,) = fleet().pools
    other = replace(pool.option, gpu=gpu("l40s"))
    taken = [replace(pool, bought=1300), replace(pool, option=other, bought=2)]
    short = beyond(stocked, taken)
    assert short.message == "no fleet within the inventory (h100-80gb: 1,200) serves 40 requests/s"
    assert list(short.relaxations) == [
        "an inventory of h100-80gb: 1,300, l40s-48gb: 2: the cheapest fleet without one", "another GPU type beside these (--gpu)"
    ]  # fmt: skip
    assert "max_evaluations" in beyond(stocked, taken, False).relaxations[-1]
    # 600 W of an H100 with a full batch, as ML.ENERGY measured it
    power = beyond(powered, [replace(pool, bought=7)], False)
    assert power.message == "no fleet within 2.5 kW serves 40 requests/s"
    assert power.relaxations[0] == "--max-kw 4.2: the cheapest fleet without a bound" and len(power.relaxations) == 2


def test_clients_that_hold_back_more_than_the_rate_needs() -> None:
    """By Little's law so many under way answer at most so many a second: idle replicas decode each for a while."""
    problem = FleetProblem(asked(rate=1000.0, in_flight=50))
    built = problem.build(0, 1, 0)
    assert built is not None
    alone = built.model.unloaded((0.5,)).means["e2e_s"] - built.model.unloaded((0.5,)).means["ttft_s"]
    with pytest.raises(InputError, match="50 requests under way are at most") as caught:
        check_limit(problem)
    most = float(caught.value.message.split("at most ")[1].split(" requests/s")[0].replace(",", ""))
    assert most == pytest.approx(50.0 / alone, rel=0.1) and "requests/s, not 1,000: " in caught.value.message
    check_limit(FleetProblem(asked(rate=0.9 * most, in_flight=50)))
    check_limit(FleetProblem(asked(rate=1000.0)))
    # the fastest engine says how many
    check_limit(FleetProblem(asked(rate=0.9 * most, in_flight=50, gpu=["l4", "h100"])))


def test_the_nearest_engines_are_those_of_all_idle_ones() -> None:
    problem = FleetProblem(asked(ttft=0.05, gpu=["h100", "a100", "l40s"], token_budget=[512, 2048, 8192]))
    idle = {k: part.excess for k in range(9) if (part := problem.idle(0, 1, k)) is not None}
    nearest = sorted(idle, key=lambda k: idle[k])
    found = _nearest_engines(problem)
    assert len(found) == 2 and [idle[k] for k in found] == [idle[k] for k in nearest[:2]]
    worst = _nearest_fleet(problem)
    assert worst is not None and worst.excess == min(idle.values())
    # of two pools the worse is what a fleet of them achieves
    two = FleetProblem(asked(ttft=0.05, pools=2, boundaries=[300.0]))
    two.open_grid()
    both = _nearest_fleet(two)
    parts = [two.idle(i, j, 0) for i, j in ((0, 2), (0, 1), (1, 2))]
    assert both is not None and all(parts)
    assert both.excess == min(parts[0].excess, max(parts[1].excess, parts[2].excess))  # type: ignore[union-attr]
    name_shortfalls(two)
    assert two.shortfalls and {s.promise.metric for s in two.shortfalls} == {"ttft_s"}
    quiet = FleetProblem(replace(asked(ttft=0.05), explained=False))
    name_shortfalls(quiet)
    assert quiet.shortfalls == []


def test_types_worth_sizing_are_the_cheapest_that_keep_the_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all with a price: each asked alone, by the least cost of its pool."""
    some = {
        name: spec for name, spec in gpus().items() if name.startswith(("h100", "h200", "b200", "l40s", "l4-", "a100"))
    }
    monkeypatch.setattr(unknowns, "gpus", lambda: some)
    question = asked(gpu="any", rate=200.0)
    costs = {}
    for name in some:
        bound = unknowns.least_cost(replace(question, inputs=replace(question.inputs, gpu=(name,), profile=None)))
        if math.isfinite(bound):
            costs[name] = bound
    ordered = tuple(name for _, name in sorted((c, n) for n, c in costs.items()))
    assert unknowns.cheapest_types(question, 3) == ordered[:3] and len(unknowns.cheapest_types(question)) == min(
        8, len(ordered)
    )
    named = unknowns.with_types(replace(question, inputs=replace(question.inputs, gpu=("h100", "any"))))
    assert named.inputs.gpu == tuple(dict.fromkeys(("h100", *ordered[:8])))
    own = asked()
    assert unknowns.with_types(own) is own
    # a bound that the pool of the type does not stay below, nor its tenth
    (pool,) = fleet_of(asked(gpu="l40s", rate=200.0)).pools
    assert 0.1 * pool.cost_usd_per_hour < costs[gpu("l40s").name] <= pool.cost_usd_per_hour
    hopeless = asked(gpu="any", ttft=0.001)
    assert unknowns.cheapest_types(hopeless) == ()
    peaks = {name: max(gpu(name).flops_per_s.values()) for name in unknowns.with_types(hopeless).inputs.gpu}
    assert len(peaks) == 3 and list(peaks.values()) == sorted(peaks.values(), reverse=True)
    assert min(peaks.values()) >= max(gpu("h100").flops_per_s.values())


def test_a_stock_counts_the_gpus_that_costs_stand_for() -> None:
    problem = FleetProblem(asked(gpu=["h100", "l40s"], tp=2, inventory={"h100": 8}))
    found = _stock(problem, True)
    assert found is not None and _stock(problem, False) is None and _stock(FleetProblem(asked()), True) is None
    gpus, kinds, stock = found
    assert list(kinds) == [o.gpu.name for o in problem.options] and stock == {"h100-80gb": 8}
    replica = [o.price.least_usd_per_replica_hour for o in problem.options]
    costs = np.array([[[0.0, 2.5 * r], [math.inf, 3.0 * r]] for r in replica])
    # 2.5 replicas are three, of two GPUs; nothing of what cannot be
    assert gpus(costs)[:, 0, 1].tolist() == [6.0] * len(replica) and gpus(costs)[:, 1, 1].tolist() == [6.0] * len(
        replica
    )
    assert gpus(costs)[:, 0, 0].tolist() == gpus(costs)[:, 1, 0].tolist() == [0.0] * len(replica)
    pool = problem.candidate(0, 1, 0)
    assert pool is not None and gpus(costs)[0, 0, 1] == pool.gpus
    powered = _stock(FleetProblem(asked(gpu="h100", tp=2, max_kw=12.0)), True)
    assert powered is not None
    # 6 GPUs of 600 W are three tenths of 12 kW: 600 parts of 2,000
    assert powered[0](costs[:1])[0, 0, 1] == 600.0 and powered[2] == {"power": 2000} and list(powered[1]) == ["power"]
    wide = fo.Slo(promises=(fo.Promise("ttft_s", 1.0, 0.99, scope="fleet"),))
    shared = FleetProblem(asked(slo=wide, ttft=None))
    parts = _stock(shared, False)
    assert parts is not None and parts[2] == {"late": 10} and len(parts[1]) == 10
    assert parts[0](np.zeros((10, 2, 2)))[:, 0, 1].tolist() == list(range(1, 11))


def test_one_replica_of_the_cheapest_is_not_beaten() -> None:
    problem = FleetProblem(asked(rate=0.1))
    one = problem.candidate(0, 1, 0)
    assert one is not None and one.bought == 1 and _is_unbeatable(problem, one)
    assert not _is_unbeatable(problem, replace(one, bought=2))
    few = FleetProblem(asked(rate=0.1, min_replicas=2))
    two = few.candidate(0, 1, 0)
    assert two is not None and _is_unbeatable(few, two)
    both = FleetProblem(asked(rate=0.1, gpu=["h100", "l40s"]))
    dear = both.candidate(0, 1, [o.gpu.name for o in both.options].index("h100-80gb"))
    assert dear is not None and not _is_unbeatable(both, dear)
    # on all of twelve fresh draws of the traffic a large pool keeps what a tiny one breaks on each
    busy = FleetProblem(asked(rate=60.0))
    pool = busy.candidate(0, 1, 0)
    assert pool is not None
    counts = [_kept(busy, [((0, 1, 0), replace(pool, replicas=n))]) for n in (1, 60)]
    assert counts == [0, 12]


def test_of_shapes_the_cheaper_with_the_other_beside_it() -> None:
    question = asked(shape="both")
    each = {s: fleet_of(asked(shape=s)).cost_usd_per_hour for s in ("colocated", "disaggregated")}
    assert fleet_of(question).cost_usd_per_hour == min(each.values())
    found = plan_of(question)
    best = min(each, key=lambda s: each[s])
    other = max(each, key=lambda s: each[s])
    note = found.remarks["notes"][-1]
    assert (found.shape, found.cost_usd_per_hour) == (best, each[best])
    assert note == Remark("other_shape", {
        "best": best, "best_usd_per_hour": each[best], "shape": other, "usd_per_hour": pytest.approx(each[other]),
        "saved": pytest.approx(1.0 - each[best] / each[other]),
    })  # fmt: skip
    assert found.notes[-1] == str(note) and [a.shape for a in found.alternatives] == [other]
    assert sum(p.cost_usd_per_hour for p in found.alternatives[0].pools) == pytest.approx(each[other])
    # a limit in flight is none that prefill and decode pools know
    one = plan_of(asked(shape="both", in_flight=4000))
    assert one.shape == "colocated" and one.remarks["notes"][-1].code == "other_shape_fails"
    assert one.remarks["notes"][-1].values["shape"] == "disaggregated"
    assert one.alternatives[0].pools == () and "in_flight" in str(one.remarks["notes"][-1].values["reason"])
    assert fleet_of(asked(shape="both", in_flight=4000)).linked is False
    with pytest.raises(InfeasibleError, match="P99 TTFT"):
        plan_of(asked(shape="both", ttft=0.001))
    with pytest.raises(InfeasibleError, match="P99 TTFT"):
        fleet_of(asked(shape="both", ttft=0.001))


@pytest.mark.usefixtures("with_chances")
def test_a_plan_that_is_bare_has_the_same_numbers() -> None:
    question = asked()
    bare = plan_of(replace(question, words="none"))
    whole = plan_of(question)
    assert [(p.name, p.replicas, p.latency, p.cost_usd_per_hour) for p in bare.pools] == [
        (p.name, p.replicas, p.latency, p.cost_usd_per_hour) for p in whole.pools
    ]
    assert bare.remarks == {"assumptions": (), "warnings": (), "notes": ()} and bare.sureness is None
    assert bare.workload == {k: v for k, v in whole.workload.items() if k != "rows"} and bare.search == whole.search
    assert bare.inputs == whole.inputs and bare.slo == whole.slo and bare.arrival_rate_per_s == 60.0
    assert whole.explanation[-1].startswith("The fleet keeps its promises at least up to ")
    assert [str(r) for r in whole.remarks["assumptions"]] == list(whole.assumptions)


def test_pools_that_stand_are_sized_anew() -> None:
    saved = saved_pools(plan(rate=60.0))
    more = assemble.resized(asked(rate=120.0), saved)
    assert more.replicas == plan(rate=120.0).replicas and more.search.description == "the plan's own pools"
    assert (more.search.candidates, more.search.examined, more.search.gap_usd_per_hour) == (1, 1, 0.0)
    assert more.search.lower_bound_usd_per_hour == more.cost_usd_per_hour and more.shape == "colocated"
    with pytest.raises(InfeasibleError, match="even idle, the plan's own pools need") as caught:
        assemble.resized(asked(rate=120.0, ttft=0.05), saved)
    assert caught.value.relaxations[-1] == "search anew: without --keep"
    two = saved_pools(plan(shape="disaggregated"))
    assert assemble.resized(asked(shape="disaggregated"), two).shape == "disaggregated"


@pytest.mark.parametrize(("own", "bare", "code"), [
    (5.0, 9.0, None), (9.0, 9.0, None), (9.0, 5.0, "host_memory_loses"), (None, 5.0, "host_memory_fails"), (5.0, None, None),
    (None, None, "none"),
])  # fmt: skip
def test_host_memory_is_used_where_it_pays(
    own: float | None, bare: float | None, code: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(cost: float | None) -> Any:
        if cost is None:
            raise InfeasibleError("none")
        return Solved(SimpleNamespace(cost_usd_per_hour=cost), SearchReport(1, 1, cost, 0.0, ""))  # type: ignore[arg-type]

    question, without = asked(offload=64), asked()
    monkeypatch.setattr(assemble, "_of_shape", lambda asked: told(own if asked is question else bare))
    if code == "none":
        with pytest.raises(InfeasibleError):
            assemble._cheaper_of(question, without)
        return
    found = assemble._cheaper_of(question, without)
    assert found.fleet.cost_usd_per_hour == min(x for x in (own, bare) if x is not None)
    notes = found.beside
    assert [n.code for n in notes] == ([] if code is None else [code]) and all(n.values["gib"] == 64.0 for n in notes)
    assert assemble._without_host_memory(question) is None  # nobody comes back


def test_every_pair_of_promises_and_engines_is_asked_of_a_search_once() -> None:
    """Nothing is asked twice, and of what is known nothing is asked: the search against itself with everything known."""
    from planner.size.search import PoolSearch, cheapest_path, edges_of

    rng = np.random.default_rng(5)
    costs = rng.integers(1, 30, (2, 5, 5)).astype(float)
    costs[:, np.tril_indices(5)[0], np.tril_indices(5)[1]] = math.inf
    asked_of: list[tuple[int, int, int]] = []

    def ask(i: int, j: int, k: int, room: float) -> tuple[float, bool]:
        asked_of.append((i, j, k))
        return float(costs[k, i, j]), True

    known = PoolSearch(costs.copy(), np.ones_like(costs, dtype=bool), ask).run(3)
    assert asked_of == [] and known[1] is not None
    best = cheapest_path(costs, 3)
    assert best is not None and known[0] == best[0] == pytest.approx(
        sum(costs[k, i, j] for i, j, k in edges_of(best[1]))
    )
    assert cheapest_path(np.full((1, 3, 3), math.inf), 2) is None
    # fewer pools win ties
    tie = np.array([[[math.inf, 1.0, 2.0], [math.inf, math.inf, 1.0], [math.inf] * 3]])
    assert cheapest_path(tie, 2) == (2.0, ((2, 0),))
    pairs = list(itertools.pairwise((0, *(j for j, _ in best[1]))))
    assert [(i, j) for i, j, _ in edges_of(best[1])] == pairs
