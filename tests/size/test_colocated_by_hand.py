"""Pools by length and the pools themselves, reckoned by hand, against direct questions to their models, and from one to another."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import planner as fo
from planner.promise import Promise
from planner.question.files import saved_pools
from planner.routing import find_routing
from planner.shared.remarks import Remark
from planner.size.assemble import explained_size
from planner.size.fleet import Fleet, serving, tail_at
from planner.size.grid import hardware_floor
from planner.size.notes import cliffs_of
from planner.size.pool import (
    Shortfall,
    evaluate_pool,
    gpus_by_type,
    power_w,
    prefix_cache,
    smallest_pool,
)
from planner.size.problem import FleetProblem, solve
from planner.size.shapes import colocated as shape
from planner.size.shapes import shape_names, standing_fleet
from planner.size.shapes.colocated import SHAPE, Colocated, decided, pool_names, standing_engines
from planner.size.shapes.disaggregated import Disaggregated
from tests.size.four_requests import INPUTS, OUTPUTS, asked, fleet, plan

pytestmark = pytest.mark.usefixtures("few_replayed", "short_traces", "without_chances")

SPLIT: dict[str, Any] = {"pools": 2, "boundaries": [300.0], "rate": 400.0, "ttft": 0.5}


def split(**options: Any) -> Colocated:
    """Two pools of three and six replicas that stand, whatever is the cheapest."""
    question = asked(**{**SPLIT, **options})
    problem = FleetProblem(question)
    problem.open_grid()
    found = [problem.candidate(0, 1, problem.whole(0)), problem.candidate(1, 2, problem.whole(0))]
    pools = [
        replace(p, name=n, replicas=k, bought=k)
        for p, n, k in zip(found, ("short", "long"), (3, 40), strict=True)
        if p is not None
    ]
    assert len(pools) == 2
    own = Colocated(question, pools)
    told = own.predict(own.rate, own.counts)
    own.pools = [replace(p, prediction=found) for p, found in zip(own.pools, told, strict=True)]
    return own


def test_names_by_their_number() -> None:
    assert (pool_names(1), pool_names(2)) == (("all",), ("short", "long"))
    assert pool_names(4) == ("pool 1", "pool 2", "pool 3", "pool 4")
    assert list(shape_names()) == ["colocated", "disaggregated"]


def test_a_fleet_is_the_sum_of_its_pools() -> None:
    own = split()
    assert own.counts == [3, 40] and own.rate == 400.0 and not own.linked
    price = own.pools[0].option.price.usd_per_gpu_hour
    assert own.cost_usd_per_hour == pytest.approx(43 * price)
    each = [n * p.model.capacity_per_s / 0.5 for n, p in zip((3, 40), own.pools, strict=True)]
    assert own.capacity_per_s == pytest.approx(min(each))
    assert [power_w([p]) for p in own.pools] == [3 * 600.0, 40 * 600.0] and gpus_by_type(own.pools) == {"h100-80gb": 43}
    assert gpus_by_type([own.pools[0], own.pools[0]]) == {"h100-80gb": 6}
    assert own.work_tokens(0) == (200.0, 105.0) and own.work_tokens(1) == (2500.0, 225.0)
    assert own.metrics(0) == own.seen_in(1) == ("ttft_s", "tpot_s", "e2e_s")
    assert own.as_engines_see() is own and list(own.doors) == own.pools and own.promises_on(0) == own.promises.latency
    assert own.errors == 1 and own.caches() is None and own.overload() is None
    larger = own.resized([5, 6])
    assert (larger.counts, [p.bought for p in larger.pools], own.counts) == ([5, 6], [5, 6], [3, 40])
    spare = split(redundancy=2).resized([5, 6])
    assert [p.bought for p in spare.pools] == [7, 8]
    assert own.told_levels == (0.5, 0.9, 0.99)


def test_each_pool_is_predicted_at_its_part_of_the_rate() -> None:
    own = split()
    for found, quick in ((own.predict(300.0, [4, 41]), False), (own.look(300.0, [4, 41]), True)):
        for prediction, p, n in zip(found, own.pools, (4, 41), strict=True):
            assert prediction == evaluate_pool(p.model, 150.0, n, own.levels, quick)
    assert own.look(300.0) == own.look(300.0, [3, 40])
    verdicts = own.at(300.0)
    assert [(v.pool, v.rate_per_s) for v in verdicts] == [("short", 150.0), ("long", 150.0)]
    for v in verdicts:
        late = v.prediction.load >= 1.0 or v.prediction.value("ttft_s", 0.99) > 0.5
        assert bool(v.broken) == late and v.overload is None and v.shares == ()
    crowded = own.at(40_000.0)
    assert all(v.broken == own.promises.latency and v.prediction.load > 1.0 for v in crowded)
    assert own.pool_at(1, 100.0, 7, (0.5,)) == own.pools[1].model.predict(100.0, 7, (0.5,))


def test_what_a_fleet_keeps_and_how_far_it_is_from_it() -> None:
    own, seen = split(), set()
    for rate in (50.0, 200.0, 400.0, 600.0, 900.0):
        found = own.look(rate)
        values = [f.value("ttft_s", 0.99) / 0.5 for f in found]
        over = own.excess(rate, quick=False)
        if max(f.load for f in found) >= 1.0:
            assert over == math.inf and not own.keeps(rate)
            continue
        assert over == pytest.approx(math.log(max(values)))
        if abs(max(values) - 1.0) > 0.03:
            assert own.keeps(rate) == (max(values) <= 1.0)
            assert own.excess(rate) == (over if over <= 0.0 else math.inf)
        seen.add(max(values) <= 1.0)
    assert seen >= {True}
    # a cap that is passed is not held, however short the waits
    lazy = fleet(ttft=30.0, rate=60.0)
    (pool,) = lazy.pools
    most = 0.85 * pool.replicas * pool.capacity_per_s
    assert lazy.holds(0.99 * most) and not lazy.holds(1.01 * most) and lazy.keeps(1.01 * most)
    assert lazy.headroom() == pytest.approx(most / 60.0) and lazy.headroom(1.01) == 1.0
    assert lazy.headroom(1.09) in (1.09, pytest.approx(most / 60.0))
    tight = split()
    factor = tight.headroom()
    assert 1.0 <= factor <= 0.85 * tight.capacity_per_s / 400.0
    if tight.holds(400.0):
        assert tight.holds(factor * 400.0)


@pytest.mark.parametrize(("shape", "step"), [(Fleet, 1.08), (Disaggregated, 1.02)])
def test_headroom_is_found_to_a_step_from_below(shape: type[Fleet], step: float) -> None:
    class Known(shape):  # type: ignore[misc, valid-type]
        """Keeps its promises up to 137/s."""

        capacity_per_s, rate = 1000.0, 100.0
        promises = SimpleNamespace(utilization_cap=0.85)

        def holds(self, rate_per_s: float) -> bool:
            return rate_per_s <= 137.0

    known = Known.__new__(Known)
    assert 1.37 / step <= known.headroom() <= 1.37
    assert known.headroom(1.2) == 1.2 and known.headroom(step) == 1.0


def test_a_pool_stands_where_promise_cap_and_minimum_are_kept() -> None:
    own = fleet(rate=60.0, ttft=0.5)
    (margin,) = own.margins(0.5)
    n = own.counts[0]
    assert own.stands(60.0, [margin]) and own.resized([n + 1]).stands(60.0, [margin])
    assert not own.resized([n - 1]).stands(60.0, [margin])
    assert not own.stands(60.0, [replace(margin, deviations=8.0)])
    lazy = fleet(rate=60.0, ttft=60.0)
    (pool,) = lazy.pools
    most = 0.85 * pool.replicas * pool.capacity_per_s
    assert lazy.stands(0.999 * most, [margin]) and not lazy.stands(1.001 * most, [margin])
    least = fleet(rate=1.0, min_replicas=3)
    assert least.counts == [3] and least.stands(1.0, [margin]) and not least.resized([2]).stands(1.0, [margin])
    wide = fleet(slo=fo.Slo(promises=(fo.Promise("ttft_s", 0.5, 0.99, scope="fleet"),)), ttft=None)
    assert wide.stands(60.0, [margin]) and not wide.resized([wide.counts[0] - 1]).stands(60.0, [margin])


def test_sizes_are_those_of_each_pool() -> None:
    own = split()
    margins = own.margins(0.8)
    assert margins[0].slow > 1.05
    sizes = own.sizes_for(400.0, margins)
    assert isinstance(sizes, list)
    for size, p, margin in zip(sizes, own.pools, margins, strict=True):
        # of several pools four fifths of the late requests
        held = own.promises.only((replace(own.promises.latency[0], quantile=0.992),))
        alone = smallest_pool(p.model, 200.0, held, 1, held.levels(own.levels), None, False, margin)
        assert isinstance(alone, tuple) and size.replicas == alone[0]
        assert size.prediction.load == pytest.approx(200.0 / (size.replicas * p.model.capacity_at(size.replicas)))
        assert size.binding.values == {"promise": "P99.2 TTFT"} or size.binding.code != "promise"
    quick = own.sizes_for(400.0, margins, quick=True)
    assert isinstance(quick, list) and all(math.isnan(s.prediction.load) for s in quick)
    near = own.sizes_for(400.0, margins, [s.replicas for s in sizes])
    assert isinstance(near, list) and [s.replicas for s in near] == [s.replicas for s in sizes]
    enough = own.resized([s.replicas for s in sizes])
    assert enough.stands(400.0, margins)
    for k in (0, 1):
        assert not own.resized([n - (j == k) for j, n in enumerate(enough.counts)]).stands(400.0, margins)
    impossible = split()
    impossible.question = replace(own.question, promises=own.promises.only((Promise("ttft_s", 1e-4),)))
    found = impossible.sizes_for(400.0, margins)
    assert isinstance(found, Shortfall) and found.promise.metric == "ttft_s"
    assert isinstance(impossible.size(400.0), Shortfall)


def test_no_pool_is_smaller_than_the_arithmetic_takes() -> None:
    """A method that takes prefill for free: the floor of the hardware stands."""
    own = fleet(LONG, method="mgc", kv="reserved", ttft=30.0, rate=200.0, utilization_cap=0.95, cdf="long")
    (pool,) = own.pools
    for rate in (200.0, 2000.0):
        floor = hardware_floor(pool.option.gpu, pool.option.model, rate, 8000.0, 4.0, 4.0 * 8002.0)
        sizes = own.sizes_for(rate, own.margins(0.5))
        assert isinstance(sizes, list) and sizes[0].replicas == math.ceil(floor)
        assert sizes[0].binding.code == "hardware_floor"
        assert not own.resized([math.ceil(floor) - 1]).stands(rate, own.margins(0.5))


LONG = fo.Workload.from_arrays([8000.0, 8000.0], [4.0, 4.0], name="long")


def test_late_requests_are_shared_out_at_least_cost() -> None:
    """Of one in a hundred that may be late, tenths for either pool: the cheapest of the nine ways, each sized."""
    wide = fo.Slo(promises=(fo.Promise("ttft_s", 0.5, 0.99, scope="fleet"),))
    own = split(slo=wide, ttft=None)
    margins = own.margins(0.5)
    sizes = own.sizes_for(400.0, margins, quick=True)
    assert isinstance(sizes, list)
    assert [(s.binding.code, dict(s.binding.values)) for s in sizes] == [("fleet_promise", {"promise": "P99 TTFT"})] * 2
    costs = {}
    for tenths in range(1, 10):
        counts = []
        for p, part in zip(own.pools, (tenths, 10 - tenths), strict=True):
            held = own.promises.only((Promise("ttft_s", 0.5, round(1.0 - 0.8 * 0.01 * part / 10.0 / 0.5, 12)),))
            size = smallest_pool(p.model, 200.0, held, 1, held.levels(own.levels), None, True, margins[0])
            counts.append(size[0] if isinstance(size, tuple) else 10**6)
        costs[tenths] = sum(counts)
    assert sum(s.replicas for s in sizes) == min(costs.values())
    one = fleet(slo=wide, ttft=None)
    (only,) = one.sizes_for(60.0, one.margins(0.5))  # type: ignore[misc]
    assert only.binding == Remark("only_pool_promise", {"promise": "P99 TTFT"})  # type: ignore[union-attr]
    # what no pool needs is left to none: all requests may take more than the sample that shares them out
    for found, rate in ((one, 60.0), (own, 400.0)):
        parts = found._shared_out(rate, found.margins(0.5), None)
        assert isinstance(parts, list) and sum(part for part, _ in parts) == pytest.approx(1.0)
    assert own.shared_promises == own.promises.latency and own.own_promises == ()
    # what all pools have late together
    looked = own.look(400.0)
    (tail,) = own.tails(looked)
    assert tail == pytest.approx(0.5 * sum(tail_at(f, own.promises.latency[0]) for f in looked))
    assert own.keeps(400.0) == (tail <= 0.01) and own.excess(400.0, quick=False) == pytest.approx(math.log(tail / 0.01))
    late = split(slo=wide, ttft=None)
    late.question = replace(own.question, promises=own.promises.only((Promise("ttft_s", 1e-4, scope="fleet"),)))
    assert isinstance(late.sizes_for(400.0, margins), Shortfall) and not late.keeps(400.0)


def test_iterations_that_are_longer_by_the_error_of_each_engine() -> None:
    own = split()
    for deviations in (-1.0, 0.0, 1.5):
        slow = own.slowed(deviations)
        sd = own.margins(0.5)[0].sd
        for a, b in zip(slow.pools, own.pools, strict=True):
            assert a.model.capacity_per_s == pytest.approx(b.model.capacity_per_s / math.exp(deviations * sd))
    fewer = own.with_one_fewer(1)
    assert len(fewer) == 1 and fewer[0] == own.slowed(own.margins(0.5)[1].deviations).look(400.0, [3, 39])[1]


def test_lines_on_what_fixes_a_pool() -> None:
    own = split()
    margin = own.margins(0.5)[1]
    lines = own.tightness(1)
    more = smallest_pool(own.pools[1].model, 220.0, own.promises, 1, own.promises.levels(), 44, True, margin)
    assert isinstance(more, tuple)
    n = max(more[0], 40)
    assert lines[-1] == f"long: with these engine settings {n} replicas for 10% more traffic."
    value = own.pools[1].model.predict(200.0, 40, (0.5, 0.9, 0.99))
    for used, told in ((0.92, True), (0.88, False)):
        limit = value.value("ttft_s", 0.99) / used
        tight = split(ttft=limit)
        tight.pools[1] = replace(tight.pools[1], prediction=value)
        assert ("long: P99 TTFT uses 92% of its promise." in tight.tightness(1)) == told
    single = fleet(rate=0.1)
    assert single.tightness(0)[-1] == "all: with these engine settings 1 replica for 10% more traffic."
    wide = fleet(slo=fo.Slo(promises=(fo.Promise("ttft_s", 0.5, 0.99, scope="fleet"),)), ttft=None)
    assert wide.tightness(0) == []
    tail = wide.tails([p.prediction for p in wide.pools])[0]
    (line,) = wide.summary()
    assert line.startswith(f"{100.0 * tail:.1f}% of all requests exceed 500 ms TTFT")
    assert line.endswith("(promised: at most 1.0%).")
    assert list(own.summary()) == []


@pytest.mark.parametrize(
    "options", [{"rate": 60.0, "ttft": 0.4}, {"rate": 60.0, "ttft": 30.0}, {"rate": 60.0, "confidence": 0.9}]
)
def test_what_one_replica_fewer_would_break(options: dict[str, Any]) -> None:
    own = fleet(**options)
    (pool,) = own.pools
    n, line = pool.replicas, explained_size(own, 0)
    begin = f"all: {n} replicas, fixed by {pool.binding}."
    assert line.startswith(begin) and n > 1
    slow = own.margins(own.promises.confidence)[0].slow
    load = 60.0 / ((n - 1) * pool.model.capacity_at(n - 1))
    rest = line.removeprefix(begin)
    if pool.binding.code == "utilization_cap":
        assert rest == f" With {n - 1}: load {load:.2f}."
        return
    longer = f", iterations {100.0 * (slow - 1.0):.0f}% longer than the profile's" if slow > 1.0005 else ""
    found = own.slowed(own.margins(own.promises.confidence)[0].deviations).look(60.0, [n - 1])[0]
    value = found.value("ttft_s", 0.99)
    if found.load >= 1.0:
        assert rest == f" With {n - 1}{longer}: the pool could not keep up."
    elif math.isinf(value):
        assert rest == f" With {n - 1}{longer}: the pool could not keep up with its bursts."
    elif value > options.get("ttft", 1.0):
        assert rest == f" With {n - 1}{longer}: P99 TTFT {own.promises.latency[0].tell(value)}."
    else:
        why = ", where all requests break it and a sample of them does not" * (pool.binding.code == "promise")
        assert rest == f" With {n - 1}{longer}: load {found.load:.2f}{why}."


def test_a_size_that_all_requests_decide_is_told_so() -> None:
    """One more than a sample takes: with one fewer the sample keeps the promise."""
    own = fleet(rate=60.0, ttft=0.4)
    more = own.resized([own.counts[0] + 1])
    more.pools[0] = replace(more.pools[0], binding=Remark("promise", {"promise": "P99 TTFT"}))
    assert explained_size(more, 0).endswith(", where all requests break it and a sample of them does not.")


def test_a_single_replica_has_none_fewer() -> None:
    (pool,) = (own := fleet(rate=0.1)).pools
    assert explained_size(own, 0) == f"all: 1 replica, fixed by {pool.binding}."
    assert pool.binding.code == "one_replica"
    few = fleet(rate=0.1, min_replicas=3)
    assert explained_size(few, 0) == "all: 3 replicas, fixed by the minimum of 3 replicas."
    assert plan(rate=0.1).explanation[0] == explained_size(own, 0)


def test_what_bursts_cost() -> None:
    bursty = {"cdf": "azure", "burst": "auto", "rate": 40.0, "ttft": 0.5, "confidence": 0.8}
    azure = fo.load_workload("azure")
    own = fleet(azure, **bursty)
    (pool,) = own.pools
    calm = pool.model.without_bursts()
    assert calm is not None
    size = smallest_pool(calm, 40.0, own.promises, levels=own.levels, quick=True, margin=own.margins(0.8)[0])
    assert isinstance(size, tuple) and size[0] < own.counts[0]
    found = own._without_bursts()
    values = {"extra": own.counts[0] - size[0], "replicas": own.counts[0], "calm": size[0]}
    assert found is not None and found.values == values and found.code in ("cost_of_bursts", "cost_of_bursts_unshared")
    assert (found.code == "cost_of_bursts") == bool(own.question.routing.least)
    assert own.resized([size[0]])._without_bursts() is None
    assert fleet(azure, **{**bursty, "burst": "poisson"})._without_bursts() is None
    assert found in list(own.notes())


def test_the_closed_form_beside_the_replay() -> None:
    own = fleet(rate=40.0, ttft=2.0)
    told = own.in_closed_form()
    assert told is not None and told.code == "closed_form"
    formula = fleet(rate=40.0, ttft=2.0, method="closed", routing="random")
    assert told.values == {"closed": formula.counts[0], "replicas": own.counts[0]}
    assert formula.in_closed_form() is None
    # the same pools, asked of clients, of a surge and of all together: no search is needed to see that it is not told
    wide = fo.Slo(promises=(fo.Promise("ttft_s", 2.0, 0.99, scope="fleet"),))
    for more in ({"client_timeout": "20s"}, {"surge": "2x/60s"}, {"slo": wide, "ttft": None}):
        assert Colocated(asked(rate=40.0, **{"ttft": 2.0, **more}), own.pools).in_closed_form() is None


def test_the_same_pools_behind_another_gateway_and_under_another_growth() -> None:
    own = split(routing="random")
    routed = own.routed(replace(own.question, routing=find_routing("least")))
    assert routed.counts == own.counts and routed.question.routing.name == "least"
    # one that compares replicas waits less
    for a, b in zip(routed.look(400.0), own.look(400.0), strict=True):
        assert a.value("ttft_s", 0.99) <= b.value("ttft_s", 0.99) and a.load == pytest.approx(b.load)
    assert routed.look(400.0)[1] != own.look(400.0)[1]
    assert fleet(method="mgc", kv="reserved", ttft=30.0).grown("use") is None  # a closed form knows no bursts
    azure = fleet(fo.load_workload("azure"), cdf="azure", burst="auto", rate=40.0, ttft=0.5)
    use = azure.grown("use")
    assert use is not None and use.counts == azure.counts
    # the same users who ask more often come in the bursts they came in: larger ones than of more users
    assert use.look(40.0)[0].value("ttft_s", 0.99) > azure.look(40.0)[0].value("ttft_s", 0.99)


def test_a_plan_of_two_pools_is_rebuilt_as_it_was() -> None:
    found = plan(**SPLIT, redundancy=1)
    question, saved = asked(**SPLIT, redundancy=1), saved_pools(found)
    own = standing_fleet(question, saved[::-1])
    assert isinstance(own, Colocated) and len(own.pools) == len(found.pools)
    for p, was in zip(own.pools, found.pools, strict=True):
        assert (p.name, p.bought, p.replicas) == (was.name, was.replicas, was.replicas - 1)
        assert (p.law.lower.boundary, p.law.upper.boundary, p.law.share) == (was.low_tokens, was.high_tokens, was.share)
        assert (p.setup.slots, p.option.gpu.name, p.rate_per_s) == (was.slots, was.gpu, was.arrival_rate_per_s)
        assert p.binding.code == "stands" and p.setup.settings.max_model_len == was.settings.max_model_len
    with pytest.raises(fo.InputError, match=r"pool all: has no replicas that serve \(3 of 3 are spares\)"):
        serving(replace(saved[0], name="all", replicas=3, spares=3))
    assert serving(replace(saved[0], replicas=3, spares=2)) == 1
    assert SHAPE.stands(saved) and not SHAPE.divides_roles


def test_nothing_of_an_engine_that_stands_is_left_open() -> None:
    (saved,) = saved_pools(plan())
    question = asked(tp=None, token_budget=None, gpu=["h100", "l40s"])
    two = replace(saved, gpu="l40s-48gb", tp=2, pp=3, dp=4, ep=5, slots=80, token_budget=1234)
    inputs = standing_engines(question, two).inputs
    assert (inputs.gpu, inputs.tp, inputs.pp, inputs.dp, inputs.ep) == (("l40s-48gb",), 2, 3, 4, 5)
    assert (inputs.token_budget, inputs.tp_options) == ((1234,), ())
    # 80 slots of four copies of the attention
    assert inputs.max_num_seqs == (20,)
    assert standing_engines(question, replace(two, slots=1)).inputs.max_num_seqs == (1,)
    reserved = asked(kv="reserved", max_num_seqs=7)
    assert standing_engines(reserved, two).inputs.max_num_seqs == reserved.inputs.max_num_seqs


def test_a_search_says_what_it_looked_at() -> None:
    def report(**options: Any) -> Any:
        return SHAPE.solve(asked(**options)).search

    one = report()
    assert one.description == "1 pool, 1 engine option" and one.gap_usd_per_hour == 0.0 and one.candidates == 1
    many = report(**SPLIT, gpu=["h100", "l40s"])
    assert many.description == "1 to 2 pools, 1 boundary x 1 gamma, 2 engine options"
    assert report(**{**SPLIT, "boundaries": [300.0, 1000.0]}).description.startswith(
        "1 to 2 pools, 2 boundaries x 1 gamma,"
    )
    soft = fo.Workload.from_arrays(INPUTS, OUTPUTS, name="soft", compressible=[1.0])
    banded = SHAPE.solve(asked(soft, **{**SPLIT, "route_on": "total", "gammas": [1.0, 1.5]})).search
    assert "1 boundary x 2 gammas" in banded.description
    assert one.lower_bound_usd_per_hour == pytest.approx(fleet().cost_usd_per_hour)


def test_what_a_search_that_stopped_leaves_open() -> None:
    solved = SHAPE.solve(asked(**{**SPLIT, "boundaries": None}, gpu=["h100", "l40s"], max_evaluations=1))
    if solved.unproven is not None:
        gap = solved.search.gap_usd_per_hour
        assert gap > 0.0 and solved.unproven.code == "unproven"
        assert solved.unproven.values["gap_usd_per_hour"] == pytest.approx(gap)
        assert solved.unproven.values["sized"] == solved.search.examined
        assert solved.unproven.values["fleets"] == solved.search.candidates
        assert solved.search.lower_bound_usd_per_hour + gap == pytest.approx(solved.fleet.cost_usd_per_hour)
    assert SHAPE.solve(asked()).unproven is None
    question = asked(**SPLIT)
    problem = FleetProblem(question)
    found = solve(problem)
    own = decided(problem, found.pools)
    open_end = replace(found, bound=0.5 * own.cost_usd_per_hour)
    told = shape._unproven(problem, open_end, own)
    assert told is not None and told.values["gap_usd_per_hour"] == pytest.approx(0.5 * own.cost_usd_per_hour)
    report = shape._report(problem, open_end, own)
    assert report.lower_bound_usd_per_hour == report.gap_usd_per_hour == pytest.approx(0.5 * own.cost_usd_per_hour)
    assert shape._proven(found, own) and not shape._proven(open_end, own)
    # a fleet that stands in for another is not proven, nor one of types whose errors are independent
    assert not shape._proven(replace(found, pools=(*found.pools, *found.pools)), own)


def test_pools_that_no_size_keeps_are_told() -> None:
    question = asked(**SPLIT)
    problem = FleetProblem(question)
    assert list(shape._search_notes(problem)) == []
    problem.shortfalls += [Shortfall(Promise("ttft_s", 0.5), 2.0), Shortfall(Promise("tpot_s", 0.05), 0.06)]
    (told,) = shape._search_notes(problem)
    assert told == Remark(
        "at_no_size", {"pools": 2, "promise": "P99 TPOT <= 50 ms", "best": "60 ms", "limit_s": 0.05, "best_s": 0.06}
    )


def test_the_paper_s_pools_are_told_why_they_break() -> None:
    paper = {
        "profile": "fleetopt-paper",
        "method": "mgc",
        "kv": "reserved",
        "route_on": "total",
        "tp": None,
        "rate": 1000.0,
    }
    azure = fo.load_workload("azure")
    problem = FleetProblem(asked(azure, **paper, ttft=0.6, boundaries=[4096.0], pools=2, cdf="azure"))
    problem.open_grid()
    assert problem.candidate(0, 2, 0) is None or problem.candidate(0, 1, 0) is None
    told = shape._full_occupancy(problem)
    assert told is not None and told.code == "full_occupancy"
    values: dict[str, Any] = dict(told.values)
    times = problem.options[0].profile.iteration
    assert values["iteration_s"] == pytest.approx(times.t0 + times.h * values["slots"])
    assert values["slots"] == problem.options[0].reserved_slots(values["boundary"])
    # the prompt at the promised quantile in chunks of 512, an iteration each, and one for the token
    chunks = (values["first_token_s"] - values["iteration_s"]) / values["iteration_s"]
    assert chunks == pytest.approx(round(chunks)) and chunks >= 1.0
    assert shape._full_occupancy(FleetProblem(asked())) is None


def test_where_prompts_are_kept_beside_the_memory() -> None:
    """Llama 3.1 8B: 131,072 bytes a token, of which each of two GPUs has half."""
    question = asked(offload=64, offload_gbps=100, session_ttl="90s", tp=2)
    cache = prefix_cache(question, FleetProblem(question).options[0])
    assert (cache.host_tokens, cache.host_tokens_per_s, cache.ttl_s) == pytest.approx(
        (64 * 2**30 / 131072.0, 2 * 100e9 / 8.0 / 131072.0, 90.0)
    )
    # a replica has one disk, whatever its GPUs
    tiers = asked(offload=64, offload_disk=1000, offload_disk_gbps=40, write_through=True, tp=2)
    disk = prefix_cache(tiers, FleetProblem(tiers).options[0])
    assert (disk.disk_tokens, disk.disk_tokens_per_s) == pytest.approx((1000 * 2**30 / 131072.0, 40e9 / 8.0 / 131072.0))
    assert disk.copies and not cache.copies and cache.disk_tokens == 0.0
    assert math.isinf(prefix_cache(asked(), FleetProblem(asked()).options[0]).ttl_s)


def test_promises_on_a_cliff() -> None:
    """Within a tenth of an idle engine, and half as much again at a fifth of the cost or more."""
    own = fleet(rate=60.0, ttft=0.5).resized([30])
    idle = own.pools[0].model.unloaded(own.levels).value("ttft_s", 0.99)
    for over, codes in ((1.05, {"near_idle"}), (1.11, set()), (40.0, set())):
        promises = own.promises.only((Promise("ttft_s", over * idle),))
        tight = Colocated(replace(own.question, promises=promises), own.pools)
        found = {r.code: dict(r.values) for r in cliffs_of(tight)}
        assert set(found) <= {"near_idle", "cliff"} and ("near_idle" in found) == ("near_idle" in codes)
        (pool,) = tight.pools
        looser = tight.promises.only((replace(tight.promises.latency[0], limit_s=1.5 * over * idle),))
        size = smallest_pool(pool.model, 60.0, looser, quick=True)
        assert isinstance(size, tuple) and size[0] < 24
        saved = 1.0 - size[0] / tight.counts[0]
        assert ("cliff" in found) == (saved > 0.2)
        if "cliff" in found:
            assert found["cliff"]["gpus"] == size[0] and found["cliff"]["now"] == tight.counts[0]
            assert found["cliff"]["saved"] == pytest.approx(saved)
            assert found["cliff"]["looser"] == looser.latency[0].told
        if "near_idle" in found:
            assert found["near_idle"] == {
                "promise": tight.promises.latency[0].told, "idle": tight.promises.latency[0].tell(idle)
            }  # fmt: skip
