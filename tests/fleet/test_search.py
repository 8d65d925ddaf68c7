"""The lazy shortest path against exhaustive enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from planner.fleet.search import PathSearch, cheapest_within


def _exhaustive(costs: np.ndarray, max_edges: int) -> float:
    top = len(costs) - 1
    best = math.inf
    for k in range(max_edges):
        for inner in itertools.permutations(range(1, top), k):
            path = (0, *inner, top)
            best = min(best, sum(costs[i, j] for i, j in itertools.pairwise(path)))
    return best


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("seed", range(100))
def test_the_refined_path_is_the_optimum_of_all_paths(seed: int, whole: bool) -> None:
    """Also where an edge that leaves no room for a cheaper path is said to be that dear instead of what it costs."""
    rng = np.random.default_rng(seed)
    size, k = int(rng.integers(3, 8)), int(rng.integers(1, 4))
    exact = rng.integers(1, 20, (size, size)).astype(float)
    exact[rng.random((size, size)) < 0.2] = math.inf
    exact[np.tril_indices(size)] = math.inf
    bounds = np.where(np.isfinite(exact), np.floor(exact * rng.uniform(0.3, 1.0, exact.shape)), math.inf)
    refined = []

    def refine(i: int, j: int, room: float) -> tuple[float, bool]:
        refined.append((i, j))
        return (float(exact[i, j]), True) if whole or exact[i, j] < room else (room, False)

    outcome = PathSearch(bounds.copy(), refine, k).run()
    assert outcome.cost == _exhaustive(exact, k)
    assert outcome.proven
    assert len(refined) == len(set(refined))


@pytest.mark.parametrize("seed", range(100))
def test_a_stock_is_respected_and_costs_are_optimal(seed: int) -> None:
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
    exact = np.full((4, 4), math.inf)
    exact[0, 3], exact[0, 1], exact[1, 3], exact[0, 2], exact[2, 3] = 10.0, 3.0, 4.0, 4.0, 5.0
    bounds = np.where(np.isfinite(exact), exact - 2.0, math.inf)
    search = PathSearch(bounds, lambda i, j, room: (float(exact[i, j]), True), 2, should_stop=lambda: True)
    search.consider((0, 3))
    outcome = search.run()
    assert (outcome.cost, outcome.lower_bound, outcome.proven) == (10.0, 3.0, False)
