"""The cheapest fleet of a question: the search that fits its promises, arrivals and inventory."""

from __future__ import annotations

from planner.fleet.bursty import BurstySearch, bursts_are_dear
from planner.fleet.fleetwide import solve_fleetwide
from planner.fleet.found import Found
from planner.fleet.inventory import solve_within_stock
from planner.fleet.problem import FleetProblem
from planner.fleet.splits import solve_splits


def solve(problem: FleetProblem) -> Found:
    """Search all fleets of at most ``search.pools`` pools."""
    if problem.fleet_promises:
        return solve_fleetwide(problem)
    if bursts_are_dear(problem):
        return BurstySearch(problem).solve()
    fleet = solve_splits(problem)
    return fleet if problem.fits(fleet.pools) else solve_within_stock(problem, fleet)
