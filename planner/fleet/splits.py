"""The search of one pool and of several, each of which keeps its promises by itself."""

from __future__ import annotations

import itertools
import math

from planner.fleet.fleetwide import solve_fleetwide
from planner.fleet.found import Found
from planner.fleet.inventory import solve_within_stock
from planner.fleet.pool import Pool
from planner.fleet.problem import FleetProblem
from planner.fleet.search import PathSearch, SearchOutcome


def solve(problem: FleetProblem) -> Found:
    """The cheapest fleet of at most ``search.pools`` pools."""
    if problem.fleet_promises:
        return solve_fleetwide(problem)
    fleet = solve_splits(problem)
    return fleet if problem.fits(fleet.pools) else solve_within_stock(problem, fleet)


def solve_splits(problem: FleetProblem, below: float = math.inf) -> Found:
    """The cheapest fleet, whatever the inventory, or the cheapest that costs less than `below` [USD/hour]."""
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
        # most pools are only asked whether they leave room for a cheaper fleet: one question an option says no
        found = problem.best(i, j, room)
        return (room, math.isinf(room)) if found is None else (found.cost_usd_per_hour, True)

    search = PathSearch(
        problem.bounds.copy(),
        refine,
        problem.search.pools,
        should_stop=lambda: limit is not None and problem.evaluations >= limit,
    )
    search.consider((0, top))
    outcome = search.run()
    bands = itertools.pairwise(outcome.path or ())
    pools = [found for i, j in bands if not problem.is_empty(i, j) and (found := problem.best(i, j)) is not None]
    return Found(tuple(pools), one, outcome, problem.fleets())


def _is_unbeatable(problem: FleetProblem, one: Pool) -> bool:
    """Whether the one pool costs no more than the least any pool of any option can cost."""
    least = min(o.price.cost_usd_per_hour(o.price.bought(problem.kept.min_replicas)) for o in problem.options)
    return one.cost_usd_per_hour <= least
