"""The cheapest fleet that an inventory holds, pool by pool sized."""

from __future__ import annotations

import math

import numpy as np

from planner.fleet.found import Found
from planner.fleet.pool import gpus_by_type
from planner.fleet.problem import FleetProblem
from planner.fleet.search import Labelled, SearchOutcome, cheapest_within


def solve_within_stock(problem: FleetProblem, unlimited: Found) -> Found:
    """The cheapest fleet that the inventory holds, where the cheapest of all is not.

    The cheapest labelled path by bounds is sized until it holds no bound; the answer is then proven, or found to be none, as far
    as the limit of evaluations allows.
    """
    problem.open_grid()
    limit = problem.limit()
    costs = problem.option_bounds.copy()
    sizes = np.array([o.price.gpus_per_replica for o in problem.options], dtype=np.float64)[:, None, None]
    per_replica = sizes * np.array([o.price.usd_per_gpu_hour for o in problem.options])[:, None, None]
    kinds = [o.gpu.name for o in problem.options]
    known = ~np.isfinite(costs) | (costs == 0.0)
    taken = np.zeros_like(costs)
    stop_at = math.inf if limit is None else problem.evaluations + limit
    best: tuple[float, Labelled] | None = None
    bound, finished = math.inf, False

    def size(i: int, j: int, k: int) -> None:
        pool = problem.candidate(i, j, k)
        known[k, i, j] = True
        taken[k, i, j] = 0.0 if pool is None else pool.gpus
        costs[k, i, j] = math.inf if pool is None else pool.cost_usd_per_hour

    for edge in [*problem.known.pools]:
        size(*edge)
    while True:
        # no replica costs more than its price on demand: so many it takes at least
        gpus = np.where(known, taken, np.ceil(costs / per_replica * (1.0 - 1e-9)) * sizes)
        found = cheapest_within(costs, gpus, kinds, problem.stock, problem.search.pools)
        if found is None or (best is not None and found[0] >= best[0] * (1.0 - 1e-12)):
            finished, bound = True, math.inf if found is None else found[0]
            break
        edges = zip((0, *(s for s, _ in found[1])), found[1], strict=False)
        open_edges = [(i, j, k) for i, (j, k) in edges if not known[k, i, j]]
        if not open_edges:
            best = found
            continue
        if problem.evaluations >= stop_at:
            bound = found[0]
            break
        for edge in open_edges:
            size(*edge)
    if best is None or not finished:
        # out of evaluations: the cheapest of what is sized
        best = cheapest_within(np.where(known, costs, np.inf), taken, kinds, problem.stock, problem.search.pools)
    pools = []
    cost, path = best or (math.inf, ())
    for i, (j, k) in zip((0, *(s for s, _ in path)), path, strict=False):
        if not problem.is_empty(i, j):
            pool = problem.candidate(i, j, k)
            assert pool is not None
            pools.append(pool)
    bound = max(min(bound, cost), unlimited.outcome.lower_bound)
    outcome = SearchOutcome((0, *(s for s, _ in path)) if path else None, cost, bound, problem.evaluations, finished)
    one = unlimited.one_pool
    return Found(
        tuple(pools),
        one if one is not None and problem.fits((one,)) else None,
        outcome,
        problem.fleets(),
        None if pools else gpus_by_type(unlimited.pools),
    )
