"""The cheapest chain of pools: shortest path over boundaries, each edge a pool whose cost is refined only when it matters.

A fleet of at most K pools is a path ``0 = s_0 < s_1 < ... < s_k = top`` over states (boundary, gamma); the cost of an
edge is the cheapest pool that serves what lies between. Every edge starts with a lower bound of its cost; the edges of
the currently shortest path are replaced by their exact cost until the shortest path holds no bound any more. It is
then optimal: any other path costs at least its bound, and its bound is no smaller.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The best fleet found and what is proven about the rest.

    Parameters
    ----------
    path
        State indices from bottom to top; ``None`` when no path is feasible.
    cost
        Exact cost of `path`, inf when there is none.
    lower_bound
        No path costs less.
    examined
        Edges whose exact cost was computed.
    proven
        Whether ``cost`` equals the lower bound.
    """

    path: tuple[int, ...] | None
    cost: float
    lower_bound: float
    examined: int
    proven: bool


class PathSearch:
    """Shortest path with at most K edges over bounds that are tightened on demand.

    Parameters
    ----------
    bounds
        Lower bounds of the edge costs, shape (states, states); inf where an edge is not allowed. Row 0 is the bottom
        state, the last column the top state. Changed in place as edges become exact.
    refine
        ``refine(i, j, room) -> (cost, exact)``: a better bound, or the exact cost, of one edge; inf when infeasible. An edge that
        costs `room` or more is on no path that is cheaper than the best known: that it does is as good as its cost.
    max_edges
        K.
    should_stop
        Asked before every refinement; the search then ends with a gap.
    below
        Only paths that cost less are of interest.
    """

    def __init__(
        self,
        bounds: FloatArray,
        refine: Callable[[int, int, float], tuple[float, bool]],
        max_edges: int,
        should_stop: Callable[[], bool] = lambda: False,
        below: float = math.inf,
    ) -> None:
        self.bounds = bounds
        self.refine = refine
        self.max_edges = max_edges
        self.should_stop = should_stop
        self.exact: NDArray[np.bool_] = ~np.isfinite(bounds)
        self._best_cost = below
        self._best_path: tuple[int, ...] | None = None

    def run(self) -> SearchOutcome:
        """Refine the cheapest path until it is exact."""
        examined = 0
        while True:
            bound, path = cheapest_path(self.bounds, self.max_edges)
            if self._best_cost <= bound * (1.0 + 1e-12) or math.isinf(bound) or path is None:
                return self._outcome(bound, examined)
            open_edges = [(i, j) for i, j in itertools.pairwise(path) if not self.exact[i, j]]
            if not open_edges:
                self._remember(path)
            if not open_edges or self.should_stop():
                return self._outcome(bound, examined)
            # the last pool, of the longest requests, has the loosest bound: another path may be cheapest once it is known
            for i, j in reversed(open_edges):
                before = float(self.bounds[i, j])
                # nothing that goes through the edge leaves more for it than the cheapest path by the bounds
                examined += self._refine(i, j, self._room(path, i, j))
                if self.bounds[i, j] > before * (1.0 + 1e-12):
                    break
            self._remember(path)

    def _room(self, path: Sequence[int], i: int, j: int) -> float:
        """What an edge of a path may cost where the path is to be cheaper than the best known, by the bounds of the others."""
        others = (float(self.bounds[edge]) for edge in itertools.pairwise(path) if edge != (i, j))
        return self._best_cost - math.fsum(others)

    def _refine(self, i: int, j: int, room: float = math.inf) -> int:
        """Ask for a closer bound or the cost of an edge; how many costs became exact."""
        value, exact = self.refine(i, j, room)
        self.bounds[i, j] = max(value, self.bounds[i, j])
        self.exact[i, j] = exact
        return int(exact)

    def consider(self, path: Sequence[int]) -> None:
        """Make a path exact ahead of the search, so that there is an answer whatever the limit."""
        for i, j in itertools.pairwise(path):
            while not self.exact[i, j]:
                self._refine(i, j)
        self._remember(tuple(path))

    def _remember(self, path: tuple[int, ...]) -> None:
        edges = list(itertools.pairwise(path))
        if all(self.exact[i, j] for i, j in edges):
            cost = math.fsum(float(self.bounds[i, j]) for i, j in edges)
            # fewer pools win ties, also those that only rounding breaks
            fewer = self._best_path is not None and len(path) < len(self._best_path)
            if cost < self._best_cost * (1.0 - 1e-9) or (fewer and cost <= self._best_cost * (1.0 + 1e-9)):
                self._best_cost, self._best_path = cost, path

    def _outcome(self, bound: float, examined: int) -> SearchOutcome:
        proven = self._best_cost <= bound * (1.0 + 1e-12) or math.isinf(bound)
        return SearchOutcome(self._best_path, self._best_cost, min(bound, self._best_cost), examined, proven)


def cheapest_path(costs: FloatArray, max_edges: int) -> tuple[float, tuple[int, ...] | None]:
    """Cheapest path from state 0 to the last state with at most `max_edges` edges; fewer edges win ties.

    Parameters
    ----------
    costs
        Edge costs, inf = not allowed, shape (states, states).
    max_edges
        At least 1.

    >>> import numpy as np
    >>> inf = np.inf
    >>> cheapest_path(np.array([[inf, 1.0, 5.0], [inf, inf, 2.0], [inf, inf, inf]]), 2)
    (3.0, (0, 1, 2))
    """
    top = costs.shape[1] - 1
    to_go = costs[:, top].copy()
    choice: list[NDArray[np.intp]] = []
    best_cost, best_edges = float(to_go[0]), 1
    for edges in range(2, max_edges + 1):
        # of the first edge only those from the bottom matter
        through = costs[0] + to_go
        first = int(np.argmin(through))
        if float(through[first]) < best_cost * (1.0 - 1e-12):
            best_cost, best_edges = float(through[first]), edges
        if edges == max_edges:
            choice.append(np.array([first]))
            break
        every = costs + to_go[None, :]
        nxt = np.argmin(every, axis=1)
        to_go = every[np.arange(len(costs)), nxt]
        choice.append(nxt)
    if math.isinf(best_cost):
        return math.inf, None
    path = [0]
    for level in range(best_edges - 2, -1, -1):
        path.append(int(choice[level][path[-1]]))
    path.append(top)
    return best_cost, tuple(path)


Labelled = tuple[tuple[int, int], ...]
"""A path as (state, option) pairs after the bottom state."""


def cheapest_within(
    costs: FloatArray, gpus: FloatArray, kinds: Sequence[str], stock: Mapping[str, float], max_edges: int
) -> tuple[float, Labelled] | None:
    """Cheapest path whose pools together stay within a stock of GPUs: best first, the cost to go without stock as heuristic.

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
    states = costs.shape[1]
    top = states - 1
    costs, gpus, kinds, option = _condensed(costs, gpus, kinds, stock)
    costs = _undominated(costs, gpus, kinds, stock)
    gpus = np.where(np.isfinite(costs), gpus, 0.0)
    limited = sorted(set(kinds) & set(stock))
    room = np.array([float(stock[kind]) for kind in limited])
    # GPUs of every limited type that a pool takes, shape (types, options, 1, 1) times those of the pool
    own = np.array([[kind == k for k in kinds] for kind in limited], dtype=np.float64).reshape(
        len(limited), len(kinds), 1, 1
    )
    best, worth = _priced(costs, gpus, own, room, max_edges)
    if best is None and worth is None:
        return None

    worth = np.zeros(len(limited)) if worth is None else worth
    reduced = costs + np.einsum("t,tkab->kab", worth, own) * gpus
    heads = [_to_go(costs, max_edges), _to_go(reduced, max_edges)]
    owed = float(worth @ room)
    counter = itertools.count()
    heap: list[tuple[float, int, Iterator[tuple[float, float, int, int]], Labelled, FloatArray]] = []
    of_kind = [limited.index(kind) if kind in stock else -1 for kind in kinds]

    def children(state: int, left: int, spent: float, used: FloatArray) -> Iterator[tuple[float, float, int, int]]:
        """Edges out of a state that may still beat the best, cheapest bound first."""
        bound = np.maximum(
            spent + costs[:, state, :] + heads[0][left][None, :],
            spent + float(worth @ used) - owed + reduced[:, state, :] + heads[1][left][None, :],
        )
        for k, place in enumerate(of_kind):
            if place >= 0:
                bound[k, used[place] + gpus[k, state] > room[place]] = np.inf
        for place in np.argsort(bound, axis=None, kind="stable").tolist():
            k, j = divmod(place, states)
            if math.isinf(bound[k, j]) or (best is not None and bound[k, j] >= best[0] * (1.0 - 1e-12)):
                return
            yield float(bound[k, j]), spent + float(costs[k, state, j]), j, k

    def push(branch: Iterator[tuple[float, float, int, int]], path: Labelled, used: FloatArray) -> None:
        if (found := next(branch, None)) is not None:
            waiting = itertools.chain((found,), branch)
            heapq.heappush(heap, (found[0], next(counter), waiting, path, used))

    push(children(0, max_edges - 1, 0.0, np.zeros(len(limited))), (), np.zeros(len(limited)))
    for _ in range(MAX_LABELS):
        if not heap or (best is not None and heap[0][0] >= best[0] * (1.0 - 1e-12)):
            return _by_options(best, option)
        _, _, branch, path, used = heapq.heappop(heap)
        _, spent, state, k = next(branch)
        push(branch, path, used)
        came = path[-1][0] if path else 0
        path = (*path, (state, k))
        if state == top:
            if best is None or spent < best[0] * (1.0 - 1e-12):
                best = spent, path
            continue
        used = used.copy()
        if of_kind[k] >= 0:
            used[of_kind[k]] += float(gpus[k, came, state])
        push(children(state, max_edges - len(path) - 1, spent, used), path, used)
    return _by_options(best, option)


def _by_options(best: tuple[float, Labelled] | None, option: NDArray[np.intp]) -> tuple[float, Labelled] | None:
    """The same with the options that stand behind the rows searched, shape (rows, states, states)."""
    if best is None:
        return None
    came = (0, *(state for state, _ in best[1]))
    return best[0], tuple((j, int(option[k, i, j])) for i, (j, k) in zip(came, best[1], strict=False))


def _to_go(costs: FloatArray, max_edges: int) -> list[FloatArray]:
    """Least cost from every state to the top with at most 0, 1, ... edges."""
    least = np.min(costs, axis=0)
    found = [np.where(np.arange(costs.shape[1]) == costs.shape[1] - 1, 0.0, np.inf)]
    for _ in range(max_edges):
        found.append(np.minimum(found[-1], np.min(least + found[-1][None, :], axis=1)))
    return found


def _walk(costs: FloatArray, max_edges: int) -> Labelled | None:
    """The cheapest path with at most so many edges; ``None`` where there is none."""
    to_go, state, path = _to_go(costs, max_edges), 0, []
    if math.isinf(to_go[-1][0]):
        return None
    for left in range(max_edges - 1, -1, -1):
        k, state_next = divmod(int(np.argmin(costs[:, state, :] + to_go[left][None, :])), costs.shape[1])
        path.append((state_next, k))
        state = state_next
        if state == costs.shape[1] - 1:
            break
    return tuple(path)


def _priced(
    costs: FloatArray, gpus: FloatArray, own: FloatArray, room: FloatArray, max_edges: int
) -> tuple[tuple[float, Labelled] | None, FloatArray | None]:
    """A cheap path within the stock, and what a GPU of every limited type is worth; neither where it is shown that none fits.

    Lagrange multipliers: whatever GPUs are worth, no path within the stock costs less than the cheapest with that price on them
    less the worth of the stock. Without costs the same shows that none fits.
    """
    best: tuple[float, Labelled] | None = None

    def usage(path: Labelled) -> FloatArray:
        used, came = np.zeros(room.size), 0
        for state, k in path:
            used += own[:, k, 0, 0] * gpus[k, came, state]
            came = state
        return used

    def take(path: Labelled, used: FloatArray) -> None:
        nonlocal best
        if np.all(used <= room):
            cost = math.fsum(float(costs[k, i, j]) for i, (j, k) in zip((0, *(s for s, _ in path)), path, strict=False))
            if best is None or cost < best[0]:
                best = cost, path

    plain = _walk(costs, max_edges)
    if plain is None:
        return None, None
    used = usage(plain)
    take(plain, used)
    worth = np.zeros(room.size)
    if best is not None:
        return best, worth
    allowed, shown = np.where(np.isfinite(costs), 0.0, np.inf), np.maximum(room, 0.5)
    weight = 1.0 / shown
    for _ in range(MULTIPLIERS):
        path = _walk(allowed + np.einsum("t,tkab->kab", weight, own) * gpus, max_edges)
        assert path is not None
        used = usage(path)
        if float(weight @ used) > float(weight @ room) * (1.0 + 1e-9):
            return None, None
        take(path, used)
        if best is not None:
            break
        weight *= np.exp(np.clip(used / shown - 1.0, -1.0, 1.0))
    lower = -math.inf
    kept = worth
    for step in range(MULTIPLIERS):
        path = _walk(costs + np.einsum("t,tkab->kab", worth, own) * gpus, max_edges)
        assert path is not None
        used = usage(path)
        take(path, used)
        cost = math.fsum(float(costs[k, i, j]) for i, (j, k) in zip((0, *(s for s, _ in path)), path, strict=False))
        bound, over = cost + float(worth @ (used - room)), used - room
        if bound > lower:
            lower, kept = bound, worth
        aim = 1.3 * lower if best is None else best[0]
        if aim <= bound * (1.0 + 1e-12) or not np.any(over):
            break
        worth = np.maximum(worth + (aim - bound) / float(over @ over) * 0.9 ** (step // 3) * over, 0.0)
    return best, kept


MULTIPLIERS = 20
"""Prices of GPUs that are tried for a bound."""


def _condensed(
    costs: FloatArray, gpus: FloatArray, kinds: Sequence[str], stock: Mapping[str, float]
) -> tuple[FloatArray, FloatArray, list[str], NDArray[np.intp]]:
    """The cheapest option of every GPU type in place of all, and which one it is, as far as what costs less takes fewer GPUs too.

    That holds among options with one price of a GPU, and among all of a type that is not short; a type may have two prices.
    """
    rows: list[tuple[FloatArray, FloatArray, NDArray[np.intp]]] = []
    named: list[str] = []
    for kind in dict.fromkeys(kinds):
        own = np.array([k for k, name in enumerate(kinds) if name == kind])
        cost, taken = costs[own], gpus[own]
        with np.errstate(divide="ignore", invalid="ignore"):
            price = np.where(np.isfinite(cost) & (taken > 0.0), cost / taken, np.nan)
        usual = np.isnan(price) | (kind not in stock)
        low, high = (1.0, 1.0) if usual.all() else (float(np.nanmin(price)), float(np.nanmax(price)))
        first = usual | (price <= low * (1.0 + 1e-9))
        if not np.all(first | (price >= high * (1.0 - 1e-9))):
            rows += [(costs[k], gpus[k], np.full(costs.shape[1:], k)) for k in own.tolist()]
            named += [kind] * own.size
            continue
        for alike in (first, ~first):
            if alike.any():
                among = np.where(alike, cost, np.inf)
                place = np.argmin(among, axis=0)[None]
                rows.append(
                    (np.take_along_axis(among, place, 0)[0], np.take_along_axis(taken, place, 0)[0], own[place[0]])
                )
                named.append(kind)
    found, used, option = (np.stack(column) for column in zip(*rows, strict=True))
    return found, used, named, option


def _undominated(costs: FloatArray, gpus: FloatArray, kinds: Sequence[str], stock: Mapping[str, float]) -> FloatArray:
    """The costs without the options for which another of the same GPU type costs no more and takes no more of its stock."""
    usable = np.isfinite(np.min(costs, axis=0))
    price, taken = costs[:, usable], gpus[:, usable]
    if not all(kind in stock for kind in kinds):
        taken = np.where(np.array([kind in stock for kind in kinds])[:, None], taken, 0.0)
    kept = price.copy()
    for a, b in itertools.permutations(range(len(kinds)), 2):
        if kinds[a] == kinds[b]:
            better = (price[b] < price[a]) | (taken[b] < taken[a]) | (b < a)
            kept[a, better & (price[b] <= price[a]) & (taken[b] <= taken[a])] = np.inf
    found = np.full_like(costs, np.inf)
    found[:, usable] = kept
    return found


MAX_LABELS = 2_000
"""Partial fleets looked at before a search within a stock takes the cheapest so far."""
