"""The search of one pool and of several, each of which keeps its promises by itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from planner.fleet.found import Found
from planner.fleet.pool import Pool
from planner.fleet.problem import FEW_REPLICAS, FleetProblem
from planner.fleet.search import FloatArray, PathSearch, SearchOutcome, cheapest_path

MANY_REPLICAS = 40
"""From this many replicas in one pool on, a part of them matters: cuts that free an engine are looked for."""

WORTH_FREEING, MOST_FREED = 0.03, 2
"""Share of the cost that an engine must be able to save for that, and of how many engines."""

UNKNOWN, NEAR_LIMIT = 0.7, 0.01
"""Logarithm of a latency over its limit that is taken where none was predicted, and from which on it is near enough."""


MATTERS, RIVAL_SPLIT = 0.15, 0.05
"""Share of the cost of two pools that the cheaper one has, and by what share they may look dearer than the cheapest fleet, where
they are tried as well."""


def solve_splits(problem: FleetProblem, keep_rivals: bool = False) -> Found:
    """The cheapest fleet, whatever the inventory; with `keep_rivals` the cheapest of several pools beside it."""
    top = len(problem.states) - 1
    one = problem.best(0, top)
    if one is not None and _is_unbeatable(problem, one):
        proof = SearchOutcome((0, top), one.cost_usd_per_hour, one.cost_usd_per_hour, 1, True)
        return Found((one,), one, proof, len(problem.options))
    problem.open_grid()
    top = len(problem.states) - 1
    limit = problem.limit()
    refined: set[tuple[int, int]] = set()

    def refine(i: int, j: int, room: float) -> tuple[float, bool]:
        """A closer bound of a pool's cost, or the cost itself, and whether it is final."""
        if problem.is_empty(i, j):
            return 0.0, True
        if problem.exact_bounds:
            return float(problem.bounds[i, j]), True
        # first the method's own capacity, which is cheap, then the promises
        if (i, j) not in refined and (i, j) != (0, top):
            refined.add((i, j))
            bound = problem.least_capacity_bound(i, j)
            if bound > problem.bounds[i, j] * (1.0 + 1e-12):
                return bound, math.isinf(bound)
        if (i, j) != (0, top) and (bound := problem.closer_bound(i, j)) > bounds[i, j] * (1.0 + 1e-12):
            return bound, math.isinf(bound)
        # most pools are only asked whether they leave room for a cheaper fleet: one prediction of an option says no
        below = room if limit is None or guide is not None else math.inf
        found = problem.best(i, j, below)
        return (below, math.isinf(below)) if found is None else (found.cost_usd_per_hour, True)

    bounds = problem.bounds.copy()
    guide = None
    if problem.method.guided and limit is not None:
        if one is not None:
            # the guess is off by a common factor more than by a pool's own: learn it from the one pool known exactly
            problem.option_guides *= max(one.cost_usd_per_hour / float(np.min(problem.option_guides[:, 0, top])), 1e-3)
        guide = np.min(problem.option_guides, axis=0)
    search = PathSearch(
        bounds,
        refine,
        problem.search.pools,
        should_stop=lambda: limit is not None and problem.evaluations >= limit,
        guide=guide,
        trifle=problem.trifle,
    )
    search.consider((0, top))
    for path in _beside_one_pool(problem, one, search.guide):
        search.consider(path)
    outcome = search.run()
    rivals: tuple[tuple[int, ...], ...] = ()
    if keep_rivals:
        rivals = _rival_splits(search.bounds if search.guide is None else search.guide, problem.search.pools)
    bands = itertools.pairwise(outcome.path or ())
    pools = [found for i, j in bands if not problem.is_empty(i, j) and (found := problem.best(i, j)) is not None]
    if len(pools) > 1 and limit is not None and (merged := merged_pool(problem, pools, outcome.cost)) is not None:
        one, pools = merged, [merged]
        cost = merged.cost_usd_per_hour
        outcome = replace(outcome, path=(0, top), cost=cost, lower_bound=min(outcome.lower_bound, cost))
    return Found(tuple(pools), one, outcome, problem.fleets(), rival_splits=rivals)


def _beside_one_pool(problem: FleetProblem, one: Pool | None, guide: FloatArray | None) -> Iterator[tuple[int, ...]]:
    """Splits to size even where the guess says that one pool is best: it must not be alone in saying so."""
    if guide is None or one is None or one.bought <= FEW_REPLICAS:
        return
    others = guide.copy()
    others[0, len(others) - 1] = np.inf
    _, path = cheapest_path(others, problem.search.pools)
    if path is not None:
        yield path
    if one.bought >= MANY_REPLICAS and one.size.binding.code == "utilization_cap":
        yield from _freed_splits(problem, one)


def _rival_splits(costs: FloatArray, most_pools: int) -> tuple[tuple[int, ...], ...]:
    """The cheapest fleet of several pools, and of two that both matter: what decides beside what was searched for may be other."""
    top = len(costs) - 1
    others = costs.copy()
    others[0, top] = np.inf
    cheapest, path = cheapest_path(others, most_pools)
    if path is None:
        return ()
    first, last = others[0, 1:top], others[1:top, top]
    both = np.where(np.minimum(first, last) >= MATTERS * (first + last), first + last, np.inf)
    cut = 1 + int(np.argmin(both)) if len(both) else 0
    if cut == 0 or cut in path or both[cut - 1] > (1.0 + RIVAL_SPLIT) * min(cheapest, float(costs[0, top])):
        return (path,)
    return path, (0, cut, top)


def merged_pool(problem: FleetProblem, pools: Sequence[Pool], cost_usd_per_hour: float) -> Pool | None:
    """One pool with an engine of a split, where that is cheaper than the split; ``None`` where none is.

    Which engines of the one pool are sized rests on guesses, and what a split found may have been passed over there.
    """
    top, best = len(problem.states) - 1, None
    for k in dict.fromkeys(problem.options.index(pool.option) for pool in pools):
        least = cost_usd_per_hour if best is None else best.cost_usd_per_hour
        most = problem.options[k].price.most_below(least)
        if most < 1 or problem.capacity_bound(0, top, k) >= least or not problem.keeps_with(0, top, k, most):
            continue
        found = problem.candidate(0, top, k, most)
        if found is not None and found.cost_usd_per_hour < least:
            best = problem.known.cheapest[0, top] = found
    return best


def _is_unbeatable(problem: FleetProblem, one: Pool) -> bool:
    """Whether the one pool costs no more than the least any pool of any option can cost."""
    least = min(o.price.cost_usd_per_hour(o.price.bought(problem.kept.min_replicas)) for o in problem.options)
    return one.cost_usd_per_hour <= least


def _freed_splits(problem: FleetProblem, one: Pool) -> list[tuple[int, ...]]:
    """Cuts below which shorter requests may run with an engine of more throughput, whose iterations long ones make too long.

    Where the load alone fixes the one pool, the promises decide which engines it may have. Of each that would take more, the
    highest cut is found below which it still keeps them at the utilization cap: latencies rise with the requests admitted.
    """
    top = len(problem.states) - 1
    least = (1.0 - WORTH_FREEING) * one.cost_usd_per_hour
    costs = {
        k: problem.capacity_bound(0, top, k)
        for k, bound in enumerate(problem.option_bounds[:, 0, top].tolist())
        if bound < least
    }
    # the dearest first: what breaks the promises by the least
    better = sorted((k for k, cost in costs.items() if cost < least), key=lambda k: -costs[k])[:MOST_FREED]
    inner = [s for s in range(1, top) if problem.states[s].gamma == 1.0 and not problem.is_empty(0, s)]
    found = []
    for k in better:
        # low keeps, high breaks
        low, high, below, above = -1, len(inner), -UNKNOWN, UNKNOWN
        while high - low > 1 and (low < 0 or below < -NEAR_LIMIT):
            middle = low + min(max(round((high - low) * below / (below - above)), 1), high - low - 1)
            excess = max(min(problem.excess_at_cap(0, inner[middle], k), UNKNOWN), -UNKNOWN)
            # an end that stays counts for half from then on
            if excess <= 0.0:
                low, below, above = middle, excess, 0.5 * above
            else:
                high, above, below = middle, excess, 0.5 * below
        if low >= 0:
            found.append((0, inner[low], top))
    return list(dict.fromkeys(found))
