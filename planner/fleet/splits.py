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


def solve_splits(problem: FleetProblem, below: float = math.inf, most: int | None = None) -> Found:
    """The cheapest fleet, whatever the inventory; or the cheapest of several pools that costs less than `below` [USD/hour].

    The search asks about `most` pools; ``None`` = as many as the question allows.
    """
    top = len(problem.states) - 1
    one = problem.best(0, top) if math.isinf(below) else None
    if one is not None and _is_unbeatable(problem, one):
        proof = SearchOutcome((0, top), one.cost_usd_per_hour, one.cost_usd_per_hour, 1, True)
        return Found((one,), one, proof, len(problem.options))
    problem.open_grid()
    top = len(problem.states) - 1
    limit = problem.limit() if most is None else most

    def refine(i: int, j: int, room: float) -> tuple[float, bool]:
        """A closer bound of a pool's cost, or the cost itself, and whether it is final."""
        if problem.is_empty(i, j):
            return 0.0, True
        if problem.exact_bounds:
            return float(problem.bounds[i, j]), True
        # most pools are only asked whether they leave room for a cheaper fleet: one question an option says no
        found = problem.best(i, j, room)
        return (room, math.isinf(room)) if found is None else (found.cost_usd_per_hour, True)

    search = PathSearch(
        problem.bounds.copy(),
        refine,
        problem.search.pools,
        should_stop=lambda: limit is not None and problem.evaluations >= limit,
        below=below,
    )
    if math.isinf(below):
        search.consider((0, top))
    else:
        search.bounds[0, top] = math.inf
    outcome = search.run()
    bands = itertools.pairwise(outcome.path or ())
    pools = [found for i, j in bands if not problem.is_empty(i, j) and (found := problem.best(i, j)) is not None]
    return Found(tuple(pools), one, outcome, problem.fleets())


def _is_unbeatable(problem: FleetProblem, one: Pool) -> bool:
    """Whether the one pool costs no more than the least any pool of any option can cost."""
    least = min(o.price.cost_usd_per_hour(o.price.bought(problem.kept.min_replicas)) for o in problem.options)
    return one.cost_usd_per_hour <= least
