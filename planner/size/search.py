"""The cheapest chain of pools: a shortest path over boundaries on lower bounds, one question a pool, until the best is exact.

A fleet of at most K pools is a path ``0 = s_0 < s_1 < ... < s_k = top`` over states (boundary, gamma); an edge with one of its
options is a pool of an engine that serves what lies between. Every pool begins with a lower bound of its cost. Of the cheapest
fleet by the bounds one pool that is not exact is asked whether it keeps its promises at a cost that leaves the fleet cheaper than
the best known: refused, its bound rises to that; kept, its cost is found. What the best fleet costs beside a pool of it no fleet
through that pool stays below, so the answer, once all its pools are exact, is optimal: every other fleet costs its bound at least.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

Labelled = tuple[tuple[int, int], ...]
"""A path as (state, option) pairs after the bottom state."""

Edge = tuple[int, int, int]
"""Lower state, upper state and option of a pool."""

MOST_USED = 20_000
"""Combinations of GPUs used that are followed as a state; beyond it a mixed-integer programme is solved instead."""

EXACT_FIRST = 1e-7
"""By how much a pool whose cost is known is preferred to a bound that is as low [USD/hour]."""


def edges_of(path: Labelled) -> Iterator[Edge]:
    """The pools of a path.

    >>> list(edges_of(((2, 0), (5, 1))))
    [(0, 2, 0), (2, 5, 1)]
    """
    for i, (j, k) in zip((0, *(state for state, _ in path)), path, strict=False):
        yield i, j, k


class PoolSearch:
    """See the module.

    Parameters
    ----------
    bounds
        Lower bounds of the costs of pools, inf where none is allowed, shape (options, states, states): row 0 is the bottom state,
        the last column the top. Changed in place as costs become known.
    exact
        Which of them are the costs themselves.
    ask
        ``ask(i, j, k, room) -> (cost, exact)``: whether a pool costs less than `room`: its cost where it does, else a bound of at
        least `room`, or inf.
    stock
        GPUs that a pool takes at a cost (the function is given all costs and returns those GPUs), the GPU type of every option, and
        GPUs available of a type; ``None`` = no limit.
    stop
        Asked before every question; the search then ends with a gap.
    """

    def __init__(
        self,
        bounds: FloatArray,
        exact: NDArray[np.bool_],
        ask: Callable[[int, int, int, float], tuple[float, bool]],
        stock: tuple[Callable[[FloatArray], FloatArray], Sequence[str], Mapping[str, int]] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.bounds, self.exact, self.ask, self.stock, self.stop = bounds, exact, ask, stock, stop

    def run(
        self, pools: int, best: tuple[float, Labelled | None] = (math.inf, None)
    ) -> tuple[float, Labelled | None, float]:
        """The cheapest fleet of at most so many pools, or the `best` so far where none is cheaper.

        Returns
        -------
        tuple
            Its exact cost, inf where there is none; its path from bottom to top; and what no path costs less than.
        """
        cost, path = self._known(pools, *best)
        while True:
            found = self._cheapest(self.bounds - EXACT_FIRST * self.exact, pools)
            bound = (
                math.inf if found is None else math.fsum(float(self.bounds[k, i, j]) for i, j, k in edges_of(found[1]))
            )
            if found is None or bound >= cost * (1.0 - 1e-9):
                return cost, path, cost
            waiting = [edge for edge in edges_of(found[1]) if not self.exact[edge[2], edge[0], edge[1]]]
            if not waiting:
                cost, path = bound, found[1]
                continue
            if self.stop():
                return cost, path, min(bound, cost)
            # the pool of the longest requests has the loosest bound
            i, j, first = waiting[-1]
            rest = bound - float(self.bounds[first, i, j])
            # what engines are asked about the same requests is asked at once: those are laid out no second time
            for k in np.argsort(self.bounds[:, i, j], kind="stable").tolist():
                own = float(self.bounds[k, i, j])
                if k != first and own + rest >= cost * (1.0 - 1e-9):
                    break
                if self.exact[k, i, j] or self.stop():
                    continue
                value, exact = self.ask(i, j, k, cost - rest)
                self.bounds[k, i, j], self.exact[k, i, j] = max(value, own), exact
                if exact and math.isfinite(value):
                    # what is known to be had is what all others are asked to beat
                    cost, path = self._known(pools, cost, path)
                    break
                if math.isinf(cost) and value > own:
                    # what is now known of it may leave another one the cheapest
                    break

    def _known(self, pools: int, cost: float, path: Labelled | None) -> tuple[float, Labelled | None]:
        """The cheapest fleet of pools whose costs are known, where it is cheaper than the best so far."""
        found = self._cheapest(np.where(self.exact, self.bounds, np.inf), pools)
        return found if found is not None and found[0] < cost * (1.0 - 1e-9) else (cost, path)

    def _cheapest(self, costs: FloatArray, pools: int) -> tuple[float, Labelled] | None:
        if self.stock is None:
            return cheapest_path(costs, pools)
        gpus, kinds, stock = self.stock
        return cheapest_within(costs, gpus(costs), kinds, stock, pools)


def cheapest_path(costs: FloatArray, max_edges: int) -> tuple[float, Labelled] | None:
    """Cheapest path from state 0 to the last state with at most `max_edges` edges; fewer edges win ties.

    Parameters
    ----------
    costs
        Edge costs by option, inf = not allowed, shape (options, states, states).
    max_edges
        At least 1.

    >>> import numpy as np
    >>> inf = np.inf
    >>> cheapest_path(np.array([[[inf, 1.0, 5.0], [inf, inf, 2.0], [inf, inf, inf]]]), 2)
    (3.0, ((1, 0), (2, 0)))
    """
    option = np.argmin(costs, axis=0)
    least = np.take_along_axis(costs, option[None], 0)[0]
    top = least.shape[0] - 1
    reach, came = [least[0]], []
    for _ in range(max_edges - 1):
        through = reach[-1][:, None] + least
        came.append(np.argmin(through, axis=0))
        reach.append(np.min(through, axis=0))
    ends = [float(r[top]) for r in reach]
    cheapest = min(ends)
    if math.isinf(cheapest):
        return None
    edges = next(k for k, end in enumerate(ends) if end <= cheapest + 1e-12 * abs(cheapest))
    states = [top]
    for level in range(edges - 1, -1, -1):
        states.append(int(came[level][states[-1]]))
    steps = itertools.pairwise([0, *reversed(states)])
    return ends[edges], tuple((j, int(option[i, j])) for i, j in steps)


@dataclass(frozen=True, slots=True)
class _Pool:
    """An edge of a search within a stock: what it costs, and how many of which limited type it takes (-1 = none of them)."""

    i: int
    j: int
    option: int
    cost: float
    kind: int
    gpus: int


def cheapest_within(
    costs: FloatArray, gpus: FloatArray, kinds: Sequence[str], stock: Mapping[str, float], max_edges: int
) -> tuple[float, Labelled] | None:
    """Cheapest path whose pools together stay within a stock of GPUs: GPUs used are a state of the same programme.

    Parameters
    ----------
    costs, gpus
        Cost [USD/hour] and GPUs of every edge by option, inf = not allowed, shape (options, states, states).
    kinds
        GPU type of every option.
    stock
        GPU type -> GPUs available; absent = unlimited.
    max_edges
        At least 1.

    Returns
    -------
    tuple or None
        Cost and path; ``None`` when nothing fits.

    >>> import numpy as np
    >>> inf = np.inf
    >>> costs = np.array([[[inf, 1.0, 3.0], [inf, inf, 1.0], [inf] * 3], [[inf, 2.0, 4.0], [inf, inf, 2.0], [inf] * 3]])
    >>> cheapest_within(costs, np.ones((2, 3, 3)), ("a", "b"), {"a": 1}, 2)
    (3.0, ((2, 0),))
    """
    limited = sorted(set(kinds) & set(stock))
    pools = _pools(costs, gpus, kinds, limited, stock)
    top, shape = costs.shape[1] - 1, tuple(int(stock[kind]) + 1 for kind in limited)
    if math.prod(shape) > MOST_USED:
        return _by_programme(pools, top, [int(stock[kind]) for kind in limited], max_edges)
    reached = [{0: np.zeros(shape)}]
    for _ in range(max_edges):
        after: dict[int, FloatArray] = {}
        for pool in pools:
            if (before := reached[-1].get(pool.i)) is not None:
                found = _moved(before, pool) + pool.cost
                after[pool.j] = found if pool.j not in after else np.minimum(after[pool.j], found)
        reached.append(after)
    full = tuple(n - 1 for n in shape)
    ends = [float(r[top][full]) if top in r else math.inf for r in reached]
    cheapest = min(ends)
    if math.isinf(cheapest):
        return None
    edges = next(k for k, end in enumerate(ends) if end <= cheapest + 1e-12 * abs(cheapest))
    state, place, path = top, full, []
    for level in range(edges - 1, -1, -1):
        want, best = float(reached[level + 1][state][place]), None
        for pool in pools:
            if pool.j == state and (before := reached[level].get(pool.i)) is not None:
                left = tuple(n - pool.gpus * (axis == pool.kind) for axis, n in enumerate(place))
                if min(left, default=0) >= 0 and float(before[left]) + pool.cost <= want + 1e-12 * abs(want):
                    best = pool, left
                    break
        assert best is not None
        path.append((state, best[0].option))
        state, place = best[0].i, best[1]
    return ends[edges], tuple(reversed(path))


def _pools(
    costs: FloatArray, gpus: FloatArray, kinds: Sequence[str], limited: Sequence[str], stock: Mapping[str, float]
) -> list[_Pool]:
    """The options of every edge worth taking: of every type the cheapest, and where others take fewer GPUs those too."""
    found = []
    for kind in dict.fromkeys(kinds):
        own = np.array([k for k, name in enumerate(kinds) if name == kind])
        place = limited.index(kind) if kind in limited else -1
        usable = np.min(costs[own], axis=0)
        for i, j in np.argwhere(np.isfinite(usable)).tolist():
            least = math.inf
            for k in own[np.argsort(costs[own, i, j], kind="stable")].tolist():
                cost, taken = float(costs[k, i, j]), float(gpus[k, i, j])
                if math.isinf(cost) or taken >= least or (place >= 0 and taken > stock[kind]):
                    continue
                found.append(_Pool(i, j, k, cost, place, round(taken)))
                if place < 0:
                    break
                least = taken
    return found


def _moved(before: FloatArray, pool: _Pool) -> FloatArray:
    """Costs by the GPUs used, the pool's own beside them."""
    if pool.kind < 0 or pool.gpus == 0:
        return before
    found = np.full_like(before, np.inf)
    axis: list[slice] = [slice(None)] * before.ndim
    to, of = list(axis), list(axis)
    to[pool.kind], of[pool.kind] = slice(pool.gpus, None), slice(None, before.shape[pool.kind] - pool.gpus)
    found[tuple(to)] = before[tuple(of)]
    return found


def _by_programme(
    pools: Sequence[_Pool], top: int, stock: Sequence[int], max_edges: int
) -> tuple[float, Labelled] | None:
    """The same as a mixed-integer programme: a flow of one from bottom to top, for stocks of many types."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import lil_matrix

    rows = lil_matrix((top + 2 + len(stock), len(pools)))
    for column, pool in enumerate(pools):
        rows[pool.i, column], rows[pool.j, column], rows[top + 1, column] = 1.0, -1.0, 1.0
        if pool.kind >= 0:
            rows[top + 2 + pool.kind, column] = pool.gpus
    low, high = np.zeros(rows.shape[0]), np.zeros(rows.shape[0])
    low[0] = high[0] = 1.0
    low[top] = high[top] = -1.0
    low[top + 1 :] = -np.inf
    high[top + 1 :] = [max_edges, *stock]
    if not pools:
        return None
    limits = LinearConstraint(rows.tocsr(), low, high)
    answer = milp(
        [p.cost for p in pools],
        constraints=limits,
        integrality=np.ones(len(pools), dtype=np.int64),
        bounds=Bounds(0, 1),
    )
    if answer.x is None:
        return None
    after = {pools[k].i: pools[k] for k in np.flatnonzero(answer.x > 0.5).tolist()}
    path, state = [], 0
    while state != top:
        path.append((after[state].j, after[state].option))
        state = after[state].j
    return float(answer.fun), tuple(path)
