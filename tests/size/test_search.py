"""The search against exhaustive enumeration: on tables of costs, and with every pool of small questions replayed."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import planner as fo
from planner.predict.traffic import DRAWS
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs
from planner.size import search as searching
from planner.size.assemble import _solved, fleet_of
from planner.size.pool import fits
from planner.size.problem import TRIED, FleetProblem, solve
from planner.size.search import PoolSearch, cheapest_within

pytestmark = pytest.mark.usefixtures("fewer_replayed", "short_traces", "without_chances")


def _exhaustive(costs: np.ndarray, max_edges: int) -> float:
    top = costs.shape[1] - 1
    best, least = math.inf, costs.min(axis=0)
    for k in range(max_edges):
        for inner in itertools.combinations(range(1, top), k):
            path = (0, *inner, top)
            best = min(best, sum(least[i, j] for i, j in itertools.pairwise(path)))
    return best


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("seed", range(100))
def test_the_asked_path_is_the_optimum_of_all_paths(seed: int, whole: bool) -> None:
    """Also where a pool that leaves no room for a cheaper fleet is said to be that dear instead of what it costs."""
    rng = np.random.default_rng(seed)
    options, size, k = int(rng.integers(1, 4)), int(rng.integers(3, 8)), int(rng.integers(1, 4))
    exact = rng.integers(1, 20, (options, size, size)).astype(float)
    exact[rng.random(exact.shape) < 0.2] = math.inf
    exact[:, np.tril_indices(size)[0], np.tril_indices(size)[1]] = math.inf
    bounds = np.where(
        np.isfinite(exact), np.maximum(np.floor(exact * rng.uniform(0.3, 1.0, exact.shape)), 0.5), math.inf
    )
    asked = []

    def ask(i: int, j: int, option: int, room: float) -> tuple[float, bool]:
        asked.append((i, j, option))
        known = whole or exact[option, i, j] < room
        return (float(exact[option, i, j]), True) if known else (room, False)

    cost, _, bound = PoolSearch(bounds.copy(), ~np.isfinite(bounds), ask).run(k)
    assert cost == bound == _exhaustive(exact, k)
    if whole:
        assert len(asked) == len(set(asked))


@pytest.mark.parametrize(
    ("seed", "programme"), [*((s, False) for s in range(100)), *((s, True) for s in range(0, 100, 8))]
)
def test_a_stock_is_respected_and_costs_are_optimal(
    seed: int, programme: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "MOST_USED", 0 if programme else 10**6)
    rng = np.random.default_rng(seed)
    size, kinds = int(rng.integers(3, 6)), 3
    replicas = rng.integers(1, 6, (kinds, size, size)).astype(float)
    costs = replicas * rng.uniform(1.0, 3.0, kinds)[:, None, None]
    if seed % 3 == 0:
        # one price of a GPU of every type, for some pools a dearer one: only the cheapest option of each price is looked at
        costs = replicas * np.array([1.0, 0.6, 1.0])[:, None, None] * np.where(rng.random(costs.shape) < 0.3, 1.1, 1.0)
    costs[:, np.tril_indices(size)[0], np.tril_indices(size)[1]] = math.inf
    costs[rng.random(costs.shape) < 0.1] = math.inf
    names, stock = ("a", "b", "a"), {"a": float(rng.integers(1, 8)), "b": float(rng.integers(1, 8))}
    best = math.inf
    for edges in range(1, 4):
        for inner in itertools.combinations(range(1, size - 1), edges - 1):
            path = (0, *inner, size - 1)
            for kind in itertools.product(range(kinds), repeat=edges):
                steps = list(zip(kind, itertools.pairwise(path), strict=True))
                used = {n: sum(replicas[k, i, j] for k, (i, j) in steps if names[k] == n) for n in stock}
                if all(used[n] <= stock[n] for n in stock):
                    best = min(best, sum(costs[k, i, j] for k, (i, j) in steps))
    found = cheapest_within(costs, replicas, names, stock, 3)
    assert (math.inf if found is None else found[0]) == pytest.approx(best)


def test_a_stopped_search_reports_its_gap() -> None:
    exact = np.full((1, 4, 4), math.inf)
    exact[0, 0, 3], exact[0, 0, 1], exact[0, 1, 3], exact[0, 0, 2], exact[0, 2, 3] = 10.0, 3.0, 4.0, 4.0, 5.0
    bounds = np.where(np.isfinite(exact), exact - 2.0, math.inf)
    known = ~np.isfinite(bounds)
    bounds[0, 0, 3], known[0, 0, 3] = 10.0, True
    search = PoolSearch(bounds, known, lambda i, j, k, room: (float(exact[k, i, j]), True), stop=lambda: True)
    cost, _, bound = search.run(2)
    assert (cost, bound) == (10.0, 3.0)


GPUS = ("h100", "h200", "a100", "l40s")


def _small(seed: int) -> dict[str, Any]:
    """A question with few engines and boundaries, whose every fleet can be replayed."""
    rng = np.random.default_rng(70 + seed)
    names = rng.choice(GPUS, size=int(rng.integers(1, 3)), replace=False).tolist()
    asked: dict[str, Any] = {
        "cdf": str(rng.choice(["azure", "azure-conv", "azure-code"])),
        "ttft": float(rng.uniform(0.4, 2.0)),
        "gpu": names,
        "tp": 1,
        "token_budget": [2048] if rng.random() < 0.5 else [2048, 8192],
        "pools": int(rng.integers(1, 4)),
        "boundaries": sorted(rng.choice([300.0, 700.0, 1200.0, 2000.0, 3500.0], 2, replace=False).tolist()),
        "gammas": [1.0],
        "rate": float(rng.uniform(4.0, 30.0)),
        "confidence": float(rng.choice([0.5, 0.8])),
        "max_evaluations": 0,
    }
    if rng.random() < 0.4:
        asked["tpot"] = float(rng.uniform(0.04, 0.1))
    if len(names) > 1 and rng.random() < 0.5:
        asked["inventory"] = {names[0]: int(rng.integers(1, 4))}
    return asked


def _agrees(seed: int) -> None:
    """The cheapest of all fleets, each of whose pools is sized by itself, is what the search finds and says is proven."""
    asked = _small(seed)
    question = compile_question(PlanInputs.from_dict(asked), fo.load_workload(asked["cdf"]))
    problem = FleetProblem(question)
    found = solve(problem)
    every = FleetProblem(question)
    every.open_grid()
    top, best = len(every.states) - 1, math.inf
    for count in range(1, asked["pools"] + 1):
        for inner in itertools.combinations(range(1, top), count - 1):
            path = (0, *inner, top)
            for options in itertools.product(range(len(every.options)), repeat=count):
                edges = list(zip(itertools.pairwise(path), options, strict=True))
                pools = [every.candidate(i, j, k) for (i, j), k in edges if not every.is_empty(i, j)]
                known = [pool for pool in pools if pool is not None]
                if len(known) == len(pools) and fits(question, known):
                    best = min(best, math.fsum(pool.cost_usd_per_hour for pool in known))
    assert found.proven, asked
    # one pool may stand in for several that fresh draws of the traffic do not bear out
    assert found.cost >= best * (1.0 - 1e-9), asked
    if len(found.pools) > 1:
        assert found.cost == pytest.approx(best, rel=1e-9), asked
    assert math.isinf(found.cost) == math.isinf(best), asked


@pytest.mark.parametrize("seed", range(10))
def test_the_search_agrees_with_replays_of_every_fleet(seed: int) -> None:
    _agrees(seed)


@pytest.mark.long("90 more questions; ten in CI")
@pytest.mark.parametrize("seed", range(10, 100))
def test_the_search_agrees_with_replays_of_every_fleet_of_many_questions(seed: int) -> None:
    _agrees(seed)


@pytest.mark.long("40 fresh draws of fleets of two pools and of one")
@pytest.mark.parametrize(
    ("cdf", "rate", "confidence"),
    [("azure-conv", 25.0, 0.5), ("azure", 60.0, 0.5), ("azure", 10.0, 0.8), ("azure", 25.0, 0.8)],
)
def test_several_pools_keep_a_promise_as_often_as_the_one_they_replace(
    cdf: str, rate: float, confidence: float, as_many_replayed: None, whole_traces: None
) -> None:
    """On draws of the traffic and its gateway that neither the search nor its trial has seen."""
    asked = {
        "cdf": cdf,
        "rate": rate,
        "confidence": confidence,
        "pools": 2,
        "e2e": 6.0,
        "tp": "1,2",
        "token_budget": [1024, 4096],
    }
    question = compile_question(PlanInputs.from_dict(asked), fo.load_workload(cdf))
    problem, found = FleetProblem(question), _solved(question)
    assert found.baseline is not None and len(found.fleet.pools) == 2 and len(found.baseline.pools) == 1
    several, one = (
        sum(
            all(
                p.model.under(problem.margin(p.option).slow, draw).keeps(
                    p.rate_per_s, p.replicas, problem.kept.of_pools
                )
                for p in fleet.pools
            )
            for draw in range(DRAWS + TRIED, DRAWS + TRIED + 40)
        )
        for fleet in (found.fleet, found.baseline)
    )
    # of fleets that keep it in 39 of 40 draws, two more in forty are broken by one's luck
    assert several >= one - 2


@pytest.mark.parametrize(
    "asked",
    [
        {"rate": 8.0, "ttft": "500ms", "pools": 1},
        {"rate": 15.0, "ttft": "400ms", "tpot": "40ms", "pools": 1, "gpu": ["a100-80gb"], "tp": "2,4"},
    ],
)
def test_neither_the_engine_asked_first_nor_the_size_begun_at_decides(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both spare questions, and the fleet is the one found from the other end."""
    question = compile_question(PlanInputs.from_dict({"cdf": "azure", **asked}), fo.load_workload("azure"))

    def found(near_per_s: float) -> list[tuple[str, int]]:
        quick = replace(question, explained=False, quick=True, near_per_s=near_per_s)
        return [(str(p.option.parallel), p.replicas) for p in fleet_of(quick).pools]

    expected = found(0.0)
    assert found(2.0 * asked["rate"]) == found(20.0 * asked["rate"]) == expected
    monkeypatch.setattr(FleetProblem, "_likely_first", lambda self, options: options[::-1])
    assert found(5.0 * asked["rate"]) == expected


@pytest.mark.parametrize("limited", [False, True])
def test_what_costs_no_less_than_a_known_pool_is_not_sized(limited: bool) -> None:
    """However much room a fleet leaves: of the same requests, and within a stock of the same GPUs, it is in no best one."""
    asked = {"slo": 2.0, "rate": 30.0, "tp": 1, "gpu": ["h100", "l40s"], "token_budget": [2048, 8192]}
    stock = {"inventory": {"h100": 40}} if limited else {}
    problem = FleetProblem(
        compile_question(PlanInputs.from_dict({**asked, **stock, "pools": 1}), fo.load_workload("azure"))
    )
    cost = {k: math.inf if (p := problem.candidate(0, 1, k)) is None else p.cost_usd_per_hour for k in range(4)}
    names = [problem.option(k).gpu.name for k in range(4)]
    for k in range(4):
        others = [j for j in range(4) if j != k and (not limited or names[j] == names[k])]
        fresh = FleetProblem(problem.question)
        for j in others:
            fresh.candidate(0, 1, j)
        least = min(cost[j] for j in others)
        value, exact = fresh.ask(0, 1, k, 100.0 * least, limited)
        assert ((0, 1, k) in fresh.sized()) == (cost[k] < least) == (exact and value < math.inf), (k, cost)
        assert value == cost[k] if exact else least <= value <= cost[k], (k, cost)
