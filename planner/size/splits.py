"""The search for the cheapest fleet: one pool, then several, within a stock or a power where there is one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.catalog.load import full_w
from planner.predict.traffic import DRAWS
from planner.size.pool import Pool, fits
from planner.size.problem import UNITS, FleetProblem
from planner.size.search import Edge, FloatArray, Labelled, PoolSearch, edges_of

TRIED = 12
"""Fresh draws of the traffic on which a fleet of several pools is held against one pool."""

LATE = "late"
"""What stands for a GPU type where parts of the late requests are shared out."""


POWER, POWER_UNITS = "power", 2000
"""What stands for a GPU type where power is bounded, and the parts in which it is counted."""


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a search.

    Parameters
    ----------
    pools
        Chosen pools with where they lie, shortest requests first; empty when no fleet is feasible.
    one_pool
        The best fleet of one pool without compression; ``None`` when infeasible.
    cost, bound
        What the search has the fleet cost, inf where there is none, and what no fleet of the grid costs less than [USD/hour].
    alone
        The same of one pool.
    candidates
        Fleets of the grid.
    beyond
        The cheapest fleet there would be without a limit, where none was found within it.
    """

    pools: tuple[tuple[Edge, Pool], ...]
    one_pool: tuple[Edge, Pool] | None
    cost: float
    bound: float
    alone: tuple[float, float]
    candidates: int
    beyond: tuple[Pool, ...] = ()

    @property
    def proven(self) -> bool:
        """Whether no fleet of the grid is cheaper."""
        return self.cost <= self.bound * (1.0 + 1e-9)


def solve(problem: FleetProblem) -> Found:
    """The cheapest fleet of at most ``inputs.pools`` pools, within the inventory or the power."""
    bounded = problem.stock or problem.max_w < math.inf
    # a promise of the fleet has no search within an inventory
    found = _solve(problem, limited=True) if bounded and not problem.fleet_promises else None
    if found is not None and (found.pools or not problem.question.explained):
        return found
    free = _solve(problem, limited=False)
    beyond = tuple(pool for _, pool in free.pools)
    if fits(problem.question, beyond):
        return free
    # what there would be without a limit is told where there is nothing within it
    cost, bound = (free.cost, free.bound) if found is None else (found.cost, found.bound)
    return replace(free, pools=(), one_pool=None, cost=cost, bound=bound, beyond=beyond)


def _solve(problem: FleetProblem, limited: bool) -> Found:
    """The same, within the inventory where it is `limited`."""
    ask = partial(problem.ask, limited=limited)
    problem.begin()
    first = PoolSearch(*problem.known(), ask, _stock(problem, limited), problem.stops)
    cost, path, bound = first.run(1)
    alone, one = (cost, bound), _pools(problem, path)
    if problem.inputs.pools == 1 or (one and _is_unbeatable(problem, one[0][1])):
        return Found(one, one[0] if one else None, cost, bound, alone, problem.fleets())
    problem.open_grid()
    top = len(problem.states) - 1
    search = PoolSearch(*problem.known(), ask, _stock(problem, limited), problem.stops)
    path = None if path is None else ((top, path[0][1]),)
    one = _pools(problem, path)
    # what is asked for fewer pools is known for more
    for count in sorted({2, problem.inputs.pools}):
        cost, path, bound = search.run(count, (cost, path))
    return Found(_pools(problem, path), one[0] if one else None, cost, bound, alone, problem.fleets())


def may_cost_less(problem: FleetProblem, usd_per_hour: float) -> bool:
    """Whether a fleet may cost less than so much: one question an engine, which is not sized."""
    problem.roughly = True
    limited = not problem.fleet_promises
    ask, best = partial(problem.ask, limited=limited), (usd_per_hour, None)
    for pools in sorted({1, problem.inputs.pools}):
        if pools > 1:
            problem.open_grid()
        search = PoolSearch(*problem.known(), ask, _stock(problem, limited), problem.stops)
        if search.run(pools, best)[1] is not None:
            return True
    return problem.stops()


def tried(problem: FleetProblem, found: Found) -> Found:
    """The one pool where a fleet of several that was found keeps the promises less often: draws that were searched spared it."""
    pools, one = found.pools, found.one_pool
    if one is None or len(pools) == 1 or not problem.method.replays or problem.fleet_promises:
        return found
    if (held := _kept(problem, pools)) == TRIED or held >= _kept(problem, (one,)):
        return found
    return replace(found, pools=(one,), cost=found.alone[0], bound=found.alone[1])


def _pools(problem: FleetProblem, path: Labelled | None) -> tuple[tuple[Edge, Pool], ...]:
    """The pools of a path, those that serve nobody left out."""
    found = []
    for i, j, k in edges_of(path or ()):
        if not problem.is_empty(i, j) and (pool := problem.candidate(i, j, k)) is not None:
            found.append(((i, j, k), pool))
    return tuple(found)


def _stock(
    problem: FleetProblem, limited: bool
) -> tuple[Callable[[FloatArray], FloatArray], Sequence[str], Mapping[str, int]] | None:
    """What a search has in stock: GPUs, or the late requests that a promise of the fleet allows."""
    if problem.fleet_promises:
        units = np.tile(np.arange(1.0, UNITS + 1.0), len(problem.options))[:, None, None]
        return (lambda costs: np.broadcast_to(units, costs.shape)), [LATE] * units.size, {LATE: UNITS}
    if not limited or not (problem.stock or problem.max_w < math.inf):
        return None
    sizes = np.array([o.price.gpus_per_replica for o in problem.options], dtype=np.float64)[:, None, None]
    price = np.array([o.price.least_usd_per_replica_hour for o in problem.options])[:, None, None]

    def gpus(costs: FloatArray) -> FloatArray:
        """No replica costs less than that: so many a pool takes at least."""
        found = np.ceil(np.where(np.isfinite(costs), costs, 0.0) / price * (1.0 - 1e-6)) * sizes
        for (i, j, k), pool in problem.sized().items():
            if pool is not None:
                found[k, i, j] = pool.gpus
        return np.asarray(found)

    def power(costs: FloatArray) -> FloatArray:
        """Of the bound, in :data:`POWER_UNITS` of it."""
        watts = np.array([full_w(o.gpu.name) for o in problem.options])[:, None, None]
        return np.asarray(np.ceil(gpus(costs) * watts / problem.max_w * POWER_UNITS * (1.0 - 1e-9)))

    if problem.max_w < math.inf:
        return power, [POWER] * len(problem.options), {POWER: POWER_UNITS}
    return gpus, [o.gpu.name for o in problem.options], problem.stock


def _is_unbeatable(problem: FleetProblem, one: Pool) -> bool:
    """Whether the one pool costs no more than the least any pool of any option can cost."""
    least = min(o.price.cost_usd_per_hour(o.price.bought(problem.kept.min_replicas)) for o in problem.options)
    return one.cost_usd_per_hour <= least


def _kept(problem: FleetProblem, pools: Sequence[tuple[Edge, Pool]]) -> int:
    """On how many fresh draws of the traffic and its gateway all pools keep their promises."""
    held = 0
    for draw in range(DRAWS, DRAWS + TRIED):
        held += all(
            pool.model.under(problem.margin(pool.option).slow, draw).keeps(
                pool.rate_per_s, pool.replicas, problem.kept.of_pools
            )
            for _, pool in pools
        )
    return held
