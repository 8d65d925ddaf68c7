"""Promises that all requests of the fleet keep together: replicas are shared out between the pools at least cost."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.fleet.pool import PoolSize
from planner.methods.base import PoolModel, Prediction
from planner.promise import GOODPUT, Promise
from planner.remarks import Remark

TAIL_LEVELS = (0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.985, 0.99, 0.993, 0.996, 0.998, 0.999, 0.9995)
"""Levels a pool is predicted at when the fleet's tail is mixed from the pools'."""


@dataclass(frozen=True, slots=True)
class ScopedPool:
    """One pool whose number of replicas is to be chosen together with the others'.

    Parameters
    ----------
    model, arrival_rate_per_s, share
        Latency method; rate [1/s]; fraction of the fleet's requests.
    least
        Fewest replicas: utilization cap, minimum, promises of the pool itself.
    cost
        Replicas -> USD/hour, increasing.
    """

    model: PoolModel
    arrival_rate_per_s: float
    share: float
    least: int
    cost: Callable[[int], float]


def tail_at(prediction: Prediction, promise: Promise) -> float:
    """Share beyond the limit of a promise, read off a prediction's quantiles: log-survival linear in the latency between levels.

    >>> p = Prediction((0.5, 0.9, 0.99), (1.0, 2.0, 3.0), (0, 0, 0), (0, 0, 0), 0, 0, 0, 0)
    >>> [round(tail_at(p, Promise("ttft_s", limit)), 3) for limit in (2.0, 0.5, 9.0)]
    [0.1, 1.0, 0.01]
    """
    if promise.kind == GOODPUT:
        return 1.0 - prediction.share(promise, held=True)
    metric, limit_s = promise.metric, promise.limit_s
    values = [prediction.held(metric, q) for q in prediction.quantiles]
    if math.isinf(values[-1]):
        return 1.0
    survival = [1.0 - q for q in prediction.quantiles]
    if limit_s >= values[-1]:
        # nothing is claimed beyond the highest level predicted
        return survival[-1]
    if limit_s < values[0]:
        return 1.0
    k = bisect.bisect_right(values, limit_s)
    part = (limit_s - values[k - 1]) / (values[k] - values[k - 1])
    return float(math.exp((1.0 - part) * math.log(survival[k - 1]) + part * math.log(survival[k])))


def _largest(holds: Callable[[int], bool], low: int) -> int:
    """Largest n from `low` on that holds, which `low` is taken to do."""
    step = 1
    while holds(low + step):
        low += step
        step *= 2
    while step > 1:
        step //= 2
        if holds(low + step):
            low += step
    return low


def _smallest(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Smallest n from `low` to `high` that holds, which `high` does."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return high


def cheapest_allocation(
    pools: Sequence[ScopedPool],
    promises: Sequence[Promise],
    levels: tuple[float, ...],
    incumbent: float = math.inf,
) -> tuple[float, list[PoolSize]] | None:
    """Replicas of every pool so that the fleet keeps its promises at least cost; exact by enumeration.

    The last pool is found by bisection, the others by counting up from their least, cut off at the incumbent's cost.

    Parameters
    ----------
    pools
        In any order.
    promises
        Promises of scope ``fleet``.
    levels
        Quantile levels to predict, ascending; those of :data:`TAIL_LEVELS` and all reported.
    incumbent
        Only a cheaper allocation is of interest [USD/hour].

    Returns
    -------
    tuple or None
        Cost and sizes in the order of `pools`; ``None`` when nothing cheaper than the incumbent keeps the promises.
    """
    known: dict[tuple[int, int], tuple[Prediction, list[float]]] = {}

    def look(k: int, n: int) -> tuple[Prediction, list[float]]:
        if (k, n) not in known:
            pool = pools[k]
            prediction = pool.model.look(pool.arrival_rate_per_s, n, levels)
            known[k, n] = prediction, [pool.share * tail_at(prediction, p) for p in promises]
        return known[k, n]

    allowed = np.array([1.0 - p.quantile for p in promises]) + 1e-12
    # the largest pool last: it has the longest range, and bisection covers it
    order = sorted(
        range(len(pools)), key=lambda k: pools[k].arrival_rate_per_s / pools[k].model.capacity_at(pools[k].least)
    )
    best_cost, best = incumbent, None

    def ceiling(k: int, spent: float) -> int:
        """Largest n of pool k whose cost still beats the incumbent."""
        pool = pools[k]
        if math.isinf(best_cost):
            return max(4 * pool.least, pool.least + 64)
        return _largest(lambda n: spent + pool.cost(n) < best_cost, pool.least)

    def descend(depth: int, chosen: dict[int, int], spent: float, tails: np.ndarray) -> None:
        """Count up the pool at this depth and go on with the next; the last is found by bisection."""
        nonlocal best_cost, best
        k = order[depth]
        pool = pools[k]
        rest = math.fsum(pools[j].cost(pools[j].least) for j in order[depth + 1 :])
        if spent + pool.cost(pool.least) + rest >= best_cost:
            return
        if depth == len(order) - 1:
            most = ceiling(k, spent)
            if np.any(tails + look(k, most)[1] > allowed):
                return
            enough = _smallest(lambda n: bool(np.all(tails + look(k, n)[1] <= allowed)), pool.least, most)
            cost = spent + pool.cost(enough)
            if cost < best_cost:
                best_cost, best = cost, {**chosen, k: enough}
            return
        previous = math.inf
        for n in range(pool.least, ceiling(k, spent + rest) + 1):
            if spent + pool.cost(n) + rest >= best_cost:
                break
            tail = look(k, n)[1]
            descend(depth + 1, {**chosen, k: n}, spent + pool.cost(n), tails + tail)
            # once more replicas hardly move the tail, no further number of them helps the others
            if max(tail) > 0.995 * previous:
                break
            previous = max(tail)

    descend(0, {}, 0.0, np.zeros(len(promises)))
    if best is None:
        return None
    code = "fleet_promise" if len(pools) > 1 else "only_pool_promise"
    why = Remark(code, {"promise": " and ".join(p.label for p in promises)})
    return best_cost, [PoolSize(best[k], look(k, best[k])[0], why) for k in range(len(pools))]
