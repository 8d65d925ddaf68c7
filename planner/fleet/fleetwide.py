"""The search for promises of the whole fleet, which its pools share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np

from planner.fleet.found import Found
from planner.fleet.pool import Pool, Shortfall, gpus_by_type, smallest_pool
from planner.fleet.problem import FleetProblem
from planner.fleet.scope import ScopedPool, cheapest_allocation
from planner.fleet.search import SearchOutcome


def solve_fleetwide(problem: FleetProblem) -> Found:
    """Fleet-wide promises: every path by its bound, replicas shared out exactly, up to the limit of evaluations.

    A fleet whose every pool keeps the promise alone keeps it as a whole: that search gives the first incumbent.
    """
    from planner.fleet.splits import solve_splits

    first = solve_splits(problem)
    preferred = {
        edge: problem.options.index(pool.option) for edge, pool in problem.known.cheapest.items() if pool is not None
    }
    problem.start_over(tuple(p for p in problem.all_promises if p.scope == "pool"))
    top = len(problem.states) - 1
    kept = first.pools if problem.fits(first.pools) else ()
    incumbent = math.fsum(p.cost_usd_per_hour for p in kept) if kept else math.inf
    best, best_path = kept, first.outcome.path if kept else None
    one = first.one_pool
    limit = problem.search.max_evaluations or None
    paths: list[tuple[int, ...]] = [(0, top)]
    if problem.search.pools > 1:
        paths += [(0, s, top) for s in range(1, top)]
    if problem.search.pools > 2 and first.outcome.path is not None and len(first.outcome.path) > 3:
        paths.append(first.outcome.path)
    cost_of = {p: math.fsum(float(problem.bounds[i, j]) for i, j in itertools.pairwise(p)) for p in paths}
    bound, examined = math.inf, 0
    for path in sorted(paths, key=lambda p: cost_of[p]):
        if math.isinf(cost_of[path]):
            break
        if cost_of[path] >= incumbent or (limit is not None and examined >= limit and path != (0, top)):
            bound = cost_of[path]
            break
        examined += 1
        found = _allocate(problem, preferred, path, math.inf if path == (0, top) else incumbent)
        if found is None:
            continue
        cost, pools = found
        if not problem.fits(pools):
            continue
        if path == (0, top):
            one = pools[0]
        if cost < incumbent:
            incumbent, best, best_path = cost, pools, path
    problem.promises = problem.all_promises
    if best:
        # what no pool keeps alone does not matter then
        problem.shortfalls = []
    else:
        # bounds are again those of every promise
        problem.set_bounds()
    proven = incumbent <= bound and problem.search.pools <= 2 and len(problem.options) == 1
    outcome = SearchOutcome(best_path, incumbent, min(bound, incumbent), examined, proven)
    beyond = gpus_by_type(first.pools) if first.pools and not best else None
    return Found(tuple(best), one, outcome, len(paths), beyond)


def _allocate(
    problem: FleetProblem, preferred: Mapping[tuple[int, int], int], path: tuple[int, ...], incumbent: float
) -> tuple[float, tuple[Pool, ...]] | None:
    """Cheapest replicas of one path under the fleet-wide promises, each pool with the option `preferred`: the best alone."""
    scoped, parts = [], []
    for i, j in itertools.pairwise(path):
        if problem.is_empty(i, j):
            continue
        k = preferred.get((i, j), preferred.get((0, len(problem.states) - 1), -1))
        if k < 0 or math.isinf(problem.option_bounds[k, i, j]):
            k = int(np.argmin(problem.option_bounds[:, i, j]))
        built = problem.build(i, j, k)
        if built is None:
            return None
        law, setup, model = built
        option = problem.options[k]
        rate = problem.rate * law.share
        problem.evaluations += 1
        size = smallest_pool(
            model,
            rate,
            problem.kept.only(problem.promises),
            int(problem.least_replicas(option, law.moments)),
            problem.levels,
            quick=True,
        )
        if isinstance(size, Shortfall):
            return None
        scoped.append(ScopedPool(model, rate, law.share, size.replicas, option.price.cost_of_need))
        parts.append((law, option, setup, model, rate))
    found = cheapest_allocation(scoped, problem.fleet_promises, problem.levels, incumbent)
    if found is None:
        return None
    cost, sizes = found
    pools = []
    for (law, option, setup, model, rate), size in zip(parts, sizes, strict=True):
        pools.append(Pool(law, option, setup, model, rate, size, option.price.bought(size.replicas)))
    return cost, tuple(pools)
