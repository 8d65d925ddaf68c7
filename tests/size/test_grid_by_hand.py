"""The grid of a search and what is known of its pools, reckoned by hand from four requests."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import planner as fo
from planner.predict.records import Requests
from planner.predict.run import replay
from planner.promise import MEAN, Promise
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs
from planner.size.grid import TAIL_LEVELS
from planner.size.pool import Pool, Shortfall, fits
from planner.size.problem import FleetProblem, held_to

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances")

INPUTS, OUTPUTS = np.array([100.0, 300.0, 1000.0, 4000.0]), np.array([10.0, 200.0, 50.0, 400.0])
FOUR = fo.Workload.from_arrays(INPUTS, OUTPUTS, name="four")
SOFT = fo.Workload.from_arrays(INPUTS, OUTPUTS, name="soft", compressible=[1.0])
ASKED: dict[str, Any] = {
    "ttft": 1.0, "tp": 1, "token_budget": 2048, "burst": "poisson", "confidence": 0.5, "rate": 40.0, "pools": 2,
    "boundaries": [300.0, 1000.0], "gammas": [1.0], "cdf": "four",
}  # fmt: skip


def problem(workload: fo.Workload = FOUR, open_grid: bool = True, **asked: Any) -> FleetProblem:
    found = FleetProblem(compile_question(PlanInputs.from_dict({**ASKED, **asked}), workload))
    if open_grid:
        found.open_grid()
    return found


def states(found: FleetProblem) -> list[tuple[float, float]]:
    return [(s.boundary, s.gamma) for s in found.states]


def test_states_are_the_boundaries_with_and_without_bands_that_hold_somebody() -> None:
    assert states(problem()) == [(0.0, 1.0), (300.0, 1.0), (1000.0, 1.0), (4000.0, 1.0)]
    assert states(problem(open_grid=False)) == states(problem(pools=1)) == [(0.0, 1.0), (4000.0, 1.0)]
    # what is beyond the longest prompt cuts nothing
    assert states(problem(boundaries=[300.0, 4000.0, 9000.0])) == [(0.0, 1.0), (300.0, 1.0), (4000.0, 1.0)]
    # between 300 and 450 is nobody, between 900 and 1350 the request of 1,050
    banded = problem(SOFT, boundaries=[300.0, 900.0], gammas=[1.0, 1.5], route_on="total")
    assert states(banded) == [(0.0, 1.0), (300.0, 1.0), (900.0, 1.0), (900.0, 1.5), (4400.0, 1.0)]
    only = problem(SOFT, boundaries=[900.0], gammas=[1.5], route_on="total")
    assert states(only) == [(0.0, 1.0), (900.0, 1.5), (4400.0, 1.0)]
    assert states(problem(boundaries=[900.0], gammas=[1.0, 1.5]))[1:-1] == [(900.0, 1.0)]


def test_boundaries_are_lengths_that_cut_off_something() -> None:
    assert problem(boundaries=None).boundary_grid == (100.0, 300.0, 1000.0, 4000.0)
    # 0.5% of the requests, of the prompt tokens and of the decodes lie below 100: nothing worth a pool of its own
    rare = fo.Workload.from_arrays(INPUTS, OUTPUTS, name="rare", weight=[0.005, 0.395, 0.3, 0.3])
    assert problem(rare, boundaries=None).boundary_grid == (300.0, 1000.0, 4000.0)
    rng = np.random.default_rng(1)
    many = fo.Workload.from_arrays(np.rint(rng.lognormal(6.0, 1.0, 400)) + 1.0, np.full(400, 50.0), name="many")
    found = problem(many, boundaries=None).boundary_grid
    assert 15 <= len(found) <= 20 and found[-1] == many.input_tokens.max()
    lengths = np.sort(many.input_tokens)
    place = np.searchsorted(lengths, found, side="right") / 400 + np.log(found) / math.log(lengths[-1] / lengths[3])
    # even steps of probability and of the logarithm together
    assert np.diff(place).max() < 1.6 * 2.0 / 19.0


def test_pools_lie_between_states_and_of_two_one_touches_an_end() -> None:
    def allowed(found: FleetProblem) -> set[tuple[int, int]]:
        return {(int(i), int(j)) for i, j in np.argwhere(np.isfinite(found.bounds))}

    ends = {(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)}
    assert allowed(problem()) == ends
    assert allowed(problem(pools=3)) == ends | {(1, 2)}
    banded = problem(SOFT, boundaries=[900.0, 1300.0, 2000.0], gammas=[1.5], pools=3, route_on="total")
    # the band of 900 ends at 1,350, that of 1,300 at 1,950; nobody is in that of 2,000
    assert states(banded)[1:-1] == [(900.0, 1.5)]
    assert allowed(banded) == {(0, 1), (0, 2), (1, 2)}
    wide = problem(SOFT, boundaries=[700.0, 900.0], gammas=[1.5], pools=3, route_on="total")
    # 1,050 is in the bands of both: a pool between them would have no neighbour for it
    assert states(wide)[1:-1] == [(700.0, 1.5), (900.0, 1.5)] and (1, 2) not in allowed(wide)


@pytest.mark.parametrize(
    ("pools", "gpus"), [(1, ["h100"]), (2, ["h100"]), (2, ["h100", "l40s"]), (3, ["h100", "l40s"])]
)
def test_fleets_are_counted(pools: int, gpus: list[str]) -> None:
    found = problem(pools=pools, gpu=gpus, boundaries=[100.0, 300.0, 1000.0])
    n, inner = len(gpus), 3
    by_hand = [0, n, n + inner * n**2, n + inner * n**2 + 3 * n**3]
    assert found.fleets() == by_hand[pools]


def test_bounds_grow_with_rate_cap_spares_and_minimum() -> None:
    """USD/hour of as many replicas as the rate takes, to one replica of rounding; bounds lie below what pools cost."""
    plain = problem(rate=4000.0)
    price = plain.options[0].price.least_usd_per_replica_hour
    for other, factor in ((problem(rate=8000.0), 2.0), (problem(rate=4000.0, utilization_cap=0.425), 2.0)):
        for i, j in ((0, 1), (0, 3), (2, 3)):
            assert other.bounds[i, j] == pytest.approx(factor * plain.bounds[i, j], abs=factor * price)
    spare = problem(rate=4000.0, redundancy=3)
    assert spare.bounds[0, 3] == pytest.approx(plain.bounds[0, 3] + 3.0 * price)
    few = problem(rate=0.5, min_replicas=7)
    assert few.bounds[0, 3] == few.bounds[0, 1] == pytest.approx(7.0 * price)
    # as sure as 0.9 wants iterations that are longer, by which fewer requests fit an hour
    sure = problem(rate=4000.0, confidence=0.9, utilization_cap=0.999)
    slow = sure.margin(sure.options[0]).slow
    open_cap = problem(rate=4000.0, utilization_cap=0.999)
    assert slow > 1.1 and sure.bounds[0, 3] == pytest.approx(slow * open_cap.bounds[0, 3], abs=2.0 * price)
    for i, j in ((0, 1), (0, 3), (1, 3)):
        pool = plain.candidate(i, j, 0)
        assert pool is not None and 0.5 * pool.cost_usd_per_hour < plain.bounds[i, j] <= pool.cost_usd_per_hour


def test_nobody_costs_nothing() -> None:
    found = problem(boundaries=[50.0, 300.0], pools=3)
    assert found.is_empty(0, 1) and not found.is_empty(0, 2) and found.bounds[0, 1] == 0.0
    bounds, exact = found.known()
    assert bounds.shape == (1, 4, 4) and exact[0, 0, 1] and not exact[0, 0, 3] and exact[0, 3, 0]


@pytest.mark.parametrize("budget", [512, 2048, 8192])
@pytest.mark.parametrize("length", [100.0, 4000.0])
def test_a_prompt_alone_takes_as_long_as_its_replay(budget: int, length: float) -> None:
    """A lower bound of it, and no loose one."""
    found = problem(token_budget=budget)
    option = found.options[0]
    built = found.build(0, len(found.states) - 1, 0)
    assert built is not None
    engine = built.model.engine  # type: ignore[attr-defined]
    one = Requests(np.array([0.0]), np.array([length]), np.array([10.0]), np.zeros(1), np.zeros(1, dtype=np.uint64))
    alone = float(replay(one, replace(engine, count=1, wake_s=0.0)).ttft_s[0]) + option.profile.api_overhead_s
    told = float(found._alone_s(option, np.array([length]))[0])
    assert 0.85 * alone <= told <= alone
    # the same of iterations that are longer
    sure = problem(token_budget=budget, confidence=0.9)
    longer = float(sure._alone_s(option, np.array([length]))[0])
    slow, overhead = sure.margin(option).slow, option.profile.api_overhead_s
    assert longer == pytest.approx(slow * (told - overhead) + overhead)


def test_pools_whose_prompts_cannot_be_read_in_time_are_left_out() -> None:
    limit = float(problem()._alone_s(problem().options[0], np.array([1500.0]))[0])
    found = problem(ttft=limit)
    # nine in ten thousand prompts of 4,000 are too many of a pool that has them; those of 1,000 are read in time
    assert [math.isfinite(found.bounds[i, j]) for i, j in ((0, 1), (0, 2), (0, 3), (1, 3), (2, 3))] == [
        True, True, False, False, False
    ]  # fmt: skip
    # of all, three in four are no longer than 1,000
    half = problem(ttft=limit, quantile=0.7)
    assert math.isfinite(half.bounds[0, 3]) and math.isinf(half.bounds[2, 3])


def test_the_promised_quantile_of_prompts() -> None:
    bins = np.array([50.0, 100.0, 300.0, 1000.0, 4000.0])
    i, j = np.array([0, 0, 0, 1]), np.array([1, 2, 3, 3])
    for quantile, expected in ((0.99, [300.0, 1000.0, 4000.0, 4000.0]), (0.5, [100.0, 300.0, 300.0, 1000.0])):
        found = problem(quantile=quantile)
        share = np.array([0.5, 0.75, 1.0, 0.5])
        assert found._prompt_quantile(i, j, share, bins).tolist() == expected
    # where no first token is promised, of 99 in 100
    assert problem(ttft=None, tpot="50ms")._prompt_quantile(i[:1], j[:1], np.array([0.5]), bins).tolist() == [300.0]


def test_the_likeliest_engine_is_asked_first() -> None:
    def budgets(**asked: Any) -> list[int]:
        return [o.token_budget for o in problem(token_budget=[2048, 512, 8192], **asked).options if not o.max_num_seqs]

    # whole prompts of 8,192 tokens make an iteration that no 20 ms hold; of 4,000 the one that reads them at once is first
    assert budgets(ttft=None, tpot="20ms") == [512, 2048, 8192]
    assert budgets(ttft=0.2)[0] == 8192
    # types stay in their order
    two = problem(token_budget=[2048, 512], gpu=["l40s", "h100"], ttft=None, tpot="20ms", max_num_seqs=128).options
    assert [(o.gpu.name, o.token_budget) for o in two] == [
        ("l40s-48gb", 512), ("l40s-48gb", 2048), ("h100-80gb", 512), ("h100-80gb", 2048)
    ]  # fmt: skip


def test_few_slots_are_tried_where_the_pace_alone_is_promised() -> None:
    def slots(**asked: Any) -> list[int | None]:
        return [o.max_num_seqs for o in problem(token_budget=[512], **asked).options]

    assert slots(ttft=None, tpot="20ms") == [None, 128, 64, 32, 16]
    assert slots(ttft=0.2, tpot="20ms") == [None] and slots(ttft=None, tpot="20ms", max_num_seqs=64) == [64]


def test_the_arithmetic_alone_takes_so_many_where_prefill_is_free() -> None:
    from planner.catalog import gpu, model
    from planner.size.grid import hardware_floor

    mixed, free = (
        problem(rate=2000.0),
        problem(rate=2000.0, method="mgc", ttft=30.0, kv="reserved", boundaries=[1000.0]),
    )
    built = free.build(0, len(free.states) - 1, 0)
    assert built is not None and free.method.free_prefill
    kv = float(np.mean(OUTPUTS * (INPUTS + 0.5 * OUTPUTS)))
    floor = hardware_floor(gpu("h100"), model("llama-3.1-8b"), 2000.0, INPUTS.mean(), OUTPUTS.mean(), kv)
    sums = built.law.moments
    assert free.least_replicas(free.options[0], sums) == pytest.approx(math.ceil(floor), abs=1)
    assert mixed.least_replicas(mixed.options[0], sums) == 1.0
    assert problem(min_replicas=3).least_replicas(mixed.options[0], sums) == 3.0


def test_what_pools_of_a_fleet_keep() -> None:
    """0.8 of the late requests that are allowed where there are several, all where one serves everybody."""
    found = problem()
    ((whole,), (part,)) = (found.promises_of(0, j, 0, share) for j, share in ((3, 1.0), (1, 0.5)))
    assert whole.quantile == pytest.approx(0.99) and part.quantile == pytest.approx(1.0 - 0.8 * 0.01)
    assert (part.metric, part.limit_s) == ("ttft_s", 1.0)
    closed = problem(method="occupancy")
    assert closed.promises_of(0, 1, 0, 0.5)[0].quantile == pytest.approx(0.99)
    wide = fo.Slo(promises=(fo.Promise("ttft_s", 1.0, 0.99, scope="fleet"),))
    shared = FleetProblem(
        compile_question(PlanInputs.from_dict({**ASKED, "ttft": None, "gpu": ["h100", "l40s"], "slo": wide}), FOUR)
    )
    shared.open_grid()
    assert shared.units == 10 and [shared.option(k).gpu.name for k in (0, 9, 10, 19)] == [
        "h100-80gb", "h100-80gb", "l40s-48gb", "l40s-48gb"
    ]  # fmt: skip
    assert (shared.whole(0), shared.whole(1)) == (9, 19)
    # the tail of all is mixed from finer levels of each
    assert set(TAIL_LEVELS) < {*shared.levels, 0.0} and found.levels == (0.5, 0.9, 0.99)
    # four tenths of one in a hundred of all are 0.8 x 0.4 x 0.01 / 0.25 of a pool with a quarter of them
    (quarter,) = shared.promises_of(0, 1, 13, 0.25)
    assert quarter.quantile == pytest.approx(1.0 - 0.8 * 0.4 * 0.01 / 0.25) and quarter.scope == "pool"
    (everybody,) = shared.promises_of(0, 3, 19, 1.0)
    assert everybody.quantile == pytest.approx(0.99)
    # a pool of a thousandth may be late whenever it likes
    assert shared.promises_of(0, 1, 19, 0.001) == ()


def test_a_part_of_the_late_requests() -> None:
    mean = Promise("ttft_s", 0.5, MEAN)
    assert held_to(mean, 0.1) is mean
    p90 = Promise("e2e_s", 5.0, 0.9, scope="fleet")
    found = held_to(p90, 2.0)
    assert found is not None and (found.quantile, found.scope, found.limit_s) == (0.8, "pool", 5.0)
    assert held_to(p90, 10.0) is None and held_to(p90, 9.9) is not None


def test_a_question_is_answered_by_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for as many replicas as the pool takes finds it; for one fewer not, and nothing is asked twice."""
    sized = problem(rate=100.0)
    pool = sized.candidate(0, 3, 0)
    assert pool is not None and pool.replicas > 2
    n, price = pool.replicas, pool.option.price
    fresh = problem(rate=100.0)
    cost, exact = fresh.ask(0, 3, 0, price.cost_of_need(n) + 1e-3)
    assert (cost, exact) == (pool.cost_usd_per_hour, True)
    other = problem(rate=100.0)
    assert other.ask(0, 3, 0, price.cost_of_need(n - 1) + 1e-3) == (price.cost_of_need(n), False)
    bounds, known = other.known()
    assert bounds[0, 0, 3] == price.cost_of_need(n) and not known[0, 0, 3]
    with monkeypatch.context() as patch:
        patch.setattr(other, "keeps", lambda key, replicas: pytest.fail("asked again"))
        assert other.ask(0, 3, 0, price.cost_of_need(n - 1) + 1e-3) == (price.cost_of_need(n), False)
        # below the bound nobody need ask
        assert fresh.ask(0, 1, 0, 1e-3)[1] is False
    again = other.candidate(0, 3, 0)
    assert again is not None and again.replicas == n
    bounds, known = other.known()
    assert bounds[0, 0, 3] == pool.cost_usd_per_hour and known[0, 0, 3] and other.sized()[0, 3, 0] is again


def test_what_no_number_of_replicas_keeps_is_beyond_help() -> None:
    found = problem(e2e=0.3, ttft=None)
    assert found.candidate(0, 3, 0) is None and math.isinf(found.known()[0][0, 0, 3])
    assert found.shortfalls and found.shortfalls[0].promise.metric == "e2e_s"
    asked = problem(e2e=0.3, ttft=None)
    price = asked.options[0].price
    first = asked.ask(0, 3, 0, price.cost_of_need(5) + 1e-3)
    assert first == (price.cost_of_need(6), False) or math.isinf(first[0])
    assert asked.ask(0, 3, 0, price.cost_of_need(9) + 1e-3) == (math.inf, True)
    idle = asked.idle(0, 3, 0)
    assert idle is not None and idle.excess > 1.0 and asked.idle(0, 3, 0) is idle


def test_a_pool_that_holds_no_request_is_beyond_help() -> None:
    found = problem(max_num_seqs=100_000)
    price = found.options[0].price
    assert found.build(0, 3, 0) is None and found.idle(0, 3, 0) is None and found.candidate(0, 3, 0) is None
    asked = problem(max_num_seqs=100_000)
    assert asked.ask(0, 3, 0, price.cost_of_need(40) + 1e-3) == (price.cost_of_need(41), False)
    assert asked.ask(0, 3, 0, price.cost_of_need(90) + 1e-3) == (math.inf, True)


def test_no_more_is_asked_about_than_there_is() -> None:
    pool = problem(rate=100.0).candidate(0, 3, 0)
    assert pool is not None
    n = pool.replicas
    short, enough = (problem(rate=100.0, inventory={"h100": k}) for k in (n - 1, n))
    assert short.ask(0, 3, 0, math.inf, limited=True)[1] is False
    assert enough.ask(0, 3, 0, math.inf, limited=True) == (pool.cost_usd_per_hour, True)
    # without a limit the stock does not matter
    assert short.ask(0, 3, 0, math.inf) == (pool.cost_usd_per_hour, True)
    # 600 W of an H100 with a full batch, as ML.ENERGY measured it
    powered = problem(rate=100.0, max_kw=0.6 * n - 0.1)
    assert powered._most_gpus(powered.options[0]) == n - 1
    assert enough._most_gpus(enough.options[0]) == n and problem()._most_gpus(enough.options[0]) is None
    assert fits(enough.question, [pool])
    assert not fits(short.question, [pool]) and not fits(powered.question, [pool])
    assert fits(problem(rate=100.0, max_kw=0.6 * n).question, [pool]) and not fits(enough.question, [pool, pool])
    assert fits(problem(inventory={"l40s": 1}, gpu=["h100", "l40s"]).question, [pool])


def test_what_all_requests_take_more_is_taken_along() -> None:
    found = problem(rate=100.0)
    pool = found.candidate(0, 3, 0)
    assert pool is not None
    assert not found.resize([(0, 3, 0)], [pool])
    larger = replace(pool, bought=pool.bought + 2, replicas=pool.replicas + 2)
    assert found.resize([(0, 3, 0)], [larger])
    known = found.sized()[0, 3, 0]
    assert known is not None and (known.bought, known.replicas) == (larger.bought, larger.replicas)
    assert not found.resize([(0, 3, 0)], [pool]) and found.sized()[0, 3, 0] is known


def test_of_engines_that_cost_the_same_the_quickest_is_taken() -> None:
    """By a look at each of them with as many replicas; smaller budgets go with fewer that cannot."""
    found = problem(rate=60.0, token_budget=[512, 2048, 8192], pools=1, open_grid=False)
    values: dict[int, float] = {}
    for k, option in enumerate(found.options):
        built = found.build(0, 1, k)
        assert built is not None
        values[k] = built.model.look(60.0, 8, found.levels).value("ttft_s", 0.99)
        assert option.token_budget in (512, 2048, 8192)
    best = min(values, key=lambda k: values[k])
    for own in range(3):
        pool = found.candidate(0, 1, own)
        assert pool is not None
        eight = replace(pool, replicas=8)
        taken = found.alike((0, 1, own), eight)
        assert taken.option is found.options[best] and taken.replicas == 8
        built = found.build(0, 1, best)
        assert built is not None
        setup, model = built.setup, built.model
        assert taken.setup is setup and taken.model is model
    # another type, another price or another group is no other setting
    two = problem(rate=60.0, gpu=["l40s", "h100"], pools=1, open_grid=False)
    slow = two.candidate(0, 1, 0)
    assert isinstance(slow, Pool) and two.alike((0, 1, 0), slow) is slow


def test_engines_beyond_the_cap_are_not_taken_for_a_pool() -> None:
    found = problem(rate=60.0, token_budget=[512, 8192], pools=1, open_grid=False, ttft=60.0)
    pools = [found.candidate(0, 1, k) for k in range(2)]
    assert all(p is not None for p in pools)
    for own, pool in enumerate(pools):
        assert pool is not None
        n = pool.replicas
        taken = found.alike((0, 1, own), pool)
        assert 0.85 * n * taken.model.capacity_at(n) * (1.0 + 1e-9) >= 60.0


def test_a_search_stops_after_as_many_pools_as_it_may_size() -> None:
    found = problem(max_evaluations=2)
    assert not found.stops()
    found.candidate(0, 1, 0)
    assert found.evaluations == 1 and not found.stops()
    found.candidate(0, 1, 0)
    assert found.evaluations == 1
    found.candidate(0, 2, 0)
    assert found.stops() and set(found.built()) == {(0, 1, 0), (0, 2, 0)}
    endless = problem(max_evaluations=0)
    endless.candidate(0, 1, 0)
    assert not endless.stops()


def test_a_grid_that_is_opened_knows_what_was_known() -> None:
    found = problem(open_grid=False, rate=100.0)
    pool, idle = found.candidate(0, 1, 0), found.idle(0, 1, 0)
    assert pool is not None and isinstance(idle, Shortfall)
    found.open_grid()
    assert len(found.states) == 4 and found.bounds.shape == (4, 4)
    assert found.candidate(0, 3, 0) is pool and found.idle(0, 3, 0) is idle
    assert found.evaluations == 1 and (0, 3, 0) in found.built() and (0, 1, 0) not in found.built()


@pytest.mark.parametrize("confidence", [0.5, 0.9])
@pytest.mark.parametrize("more", [{}, {"redundancy": 2}, {"utilization_cap": 0.6}, {"min_replicas": 4}])
def test_of_a_closed_form_the_bounds_are_the_costs(confidence: float, more: dict[str, Any]) -> None:
    """Every pool of the grid, sized by itself."""
    closed = {"method": "mgc", "kv": "reserved", "route_on": "total", "ttft": 5.0, "pools": 3, "rate": 300.0}
    found = problem(**closed, confidence=confidence, **more)
    assert found.exact_bounds
    for i, j in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)):
        pool = found.candidate(i, j, 0)
        assert pool is not None and pool.replicas >= more.get("min_replicas", 1)
        assert found.option_bounds[0, i, j] == pytest.approx(pool.cost_usd_per_hour, rel=1e-12), (i, j)
        assert found.ask(i, j, 0, 1e-9) == (found.option_bounds[0, i, j], True)


@pytest.mark.parametrize(
    "options", [{"kv": "reserved"}, {"method": "occupancy"}, {"max_num_seqs": 3}, {"route_on": "total"}]
)
def test_no_pool_costs_less_than_its_bound(options: dict[str, Any]) -> None:
    """And no bound is far below: a pool that is full to its cap, its slots or what they hold in memory."""
    found = problem(rate=500.0, ttft=20.0, pools=3, **options)
    for i, j in ((0, 1), (1, 2), (0, 3)):
        pool = found.candidate(i, j, 0)
        assert pool is not None
        assert 0.6 * pool.cost_usd_per_hour < found.option_bounds[0, i, j] <= pool.cost_usd_per_hour, (i, j)


@pytest.mark.parametrize("promise", [{"ttft": 0.005}, {"tpot": 0.001}, {"e2e": 0.02}], ids=str)
def test_what_nobody_keeps_alone_is_told_without_setting_it_up(promise: dict[str, Any]) -> None:
    """The closed form says what a replay of lone requests does; looser limits, which may be kept, it leaves to others."""
    found = problem(method="mixed", kv="paged", confidence=0.5, pools=2, **promise)
    asked, top = found.kept.latency, len(found.states) - 1
    pool = found.build(0, top, 0) or pytest.fail("nothing fits")
    missed, value = pool.model.breaks_alone(pool.law, asked) or pytest.fail("kept")
    replayed = pool.model.unloaded((missed.quantile,)).value(missed.metric, missed.quantile)
    # 4,096 lone requests stand for the law
    assert value == pytest.approx(replayed, rel=0.01) and value > missed.limit_s
    assert pool.model.breaks_alone(pool.law, [replace(missed, limit_s=1.05 * replayed)]) is None
    assert found.candidate(0, 1, 0) is None and set(found.built()) == {(0, top, 0)}
    roughly, exactly = found.shortfalls, found.told_exactly()
    assert len(roughly) == len(exactly) == 1 and found.evaluations == 1
    assert exactly[0].promise == roughly[0].promise and exactly[0].best_s == pytest.approx(roughly[0].best_s, rel=0.01)
