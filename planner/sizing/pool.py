"""The smallest pool that keeps its promises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.sizing.predict import PoolModel, Prediction, unstable
from planner.types import Promise

__all__ = ["PoolSize", "Shortfall", "prediction_levels", "smallest_pool"]

MAX_REPLICAS = 10**8
"""A pool beyond this is taken for impossible: no order of magnitude of hardware remains."""

FEW_PER_REPLICA = 1e-9
"""Rate [1/s] at which a replica is as good as idle; what is broken here is broken at any size."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """A number of replicas and what it achieves.

    Parameters
    ----------
    replicas
        Smallest number that keeps every promise and the utilization cap.
    prediction
        At that number.
    binding
        Why one fewer would not do, in words.
    """

    replicas: int
    prediction: Prediction
    binding: str


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A promise no number of replicas keeps.

    Parameters
    ----------
    promise
        The promise that fails even at vanishing load.
    best_s
        The best value any number of replicas achieves [s].
    """

    promise: Promise
    best_s: float


def prediction_levels(promises: Sequence[Promise], extra: Sequence[float] = (0.5, 0.9, 0.99)) -> tuple[float, ...]:
    """Ascending quantile levels a prediction needs: those reported always and those promised."""
    return tuple(sorted({*extra, *(p.quantile for p in promises)}))


def broken(prediction: Prediction, promises: Sequence[Promise]) -> Promise | None:
    """The promise missed by the largest factor, or ``None`` when all hold."""
    worst, excess = None, 1.0
    for p in promises:
        ratio = prediction.held(p.metric, p.quantile) / p.limit_s
        if ratio > excess:
            worst, excess = p, ratio
    return worst


def smallest_pool(
    model: PoolModel,
    arrival_rate_per_s: float,
    promises: Sequence[Promise],
    utilization_cap: float,
    min_replicas: int = 1,
    levels: tuple[float, ...] | None = None,
) -> PoolSize | Shortfall:
    """Find the smallest number of replicas by doubling and bisection from the utilization cap upwards.

    Latency does not rise with the number of replicas at a fixed pool rate, so the smallest number is well defined; a
    handful of predictions finds it at any rate.

    Parameters
    ----------
    model
        Latency method of the pool.
    arrival_rate_per_s
        Rate of the pool [1/s].
    promises
        Promises each pool keeps.
    utilization_cap
        Largest share of the capacity in use, in (0, 1).
    min_replicas
        Never fewer.
    levels
        Quantile levels of the prediction; default :func:`prediction_levels`.
    """
    levels = prediction_levels(promises) if levels is None else levels
    capacity = model.capacity_per_s
    fewest = 1.0 if math.isinf(capacity) else arrival_rate_per_s / (utilization_cap * capacity)
    # one part in 1e12: a rate that is an exact multiple of the capacity must not cost a replica to rounding
    by_cap = max(1, math.ceil(fewest * (1.0 - 1e-12)))
    low = max(by_cap, min_replicas)
    first = model.predict(arrival_rate_per_s, low, levels)
    if (missed := broken(first, promises)) is None:
        return PoolSize(low, first, _why_cap(by_cap, low, min_replicas, utilization_cap))
    idle = model.predict(FEW_PER_REPLICA, 1, levels)
    if (hopeless := broken(idle, promises)) is not None:
        return Shortfall(hopeless, idle.held(hopeless.metric, hopeless.quantile))
    high, best = low, first
    while missed is not None:
        low, high = high, 2 * high
        if high > MAX_REPLICAS:
            return Shortfall(missed, best.held(missed.metric, missed.quantile))
        best = model.predict(arrival_rate_per_s, high, levels)
        missed_below, missed = missed, broken(best, promises)
    while high - low > 1:
        middle = (low + high) // 2
        trial = model.predict(arrival_rate_per_s, middle, levels)
        missed = broken(trial, promises)
        if missed is None:
            high, best = middle, trial
        else:
            low, missed_below = middle, missed
    return PoolSize(high, best, f"{missed_below.label} (one replica fewer breaks it)")


def _why_cap(by_cap: int, chosen: int, min_replicas: int, cap: float) -> str:
    if chosen > by_cap:
        return f"the minimum of {min_replicas} replicas"
    if chosen == 1:
        return "one replica is the least there is"
    return f"utilization cap {cap:.0%} of the maximum throughput"


def evaluate_pool(model: PoolModel, arrival_rate_per_s: float, replicas: int, levels: tuple[float, ...]) -> Prediction:
    """The prediction at a given size, unstable included."""
    load = arrival_rate_per_s / (replicas * model.capacity_per_s)
    return unstable(levels, load) if load >= 1.0 else model.predict(arrival_rate_per_s, replicas, levels)
