"""The smallest pool that keeps its promises."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.methods.base import PoolModel, Prediction, unstable
from planner.promise import Promise

__all__ = ["PoolSize", "Shortfall", "prediction_levels", "smallest_pool"]

MAX_REPLICAS = 10**10
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
    trials
        What was tried on the way: (replicas, value held against each promise), ascending.
    """

    replicas: int
    prediction: Prediction
    binding: str
    trials: tuple[tuple[float, tuple[float, ...]], ...] = ()

    def held_at(self, replicas: float) -> tuple[float, ...] | None:
        """Values against the promises at a fractional number of replicas, from the trials: log-log interpolation.

        Beyond the most replicas tried the values there are an upper bound, which is returned; ``None`` below the fewest.
        Where only the rate per replica matters, n replicas at f times the rate are n/f at the rate itself.
        """
        if not self.trials or replicas < self.trials[0][0]:
            return None
        for (low, a), (high, b) in itertools.pairwise(self.trials):
            if low <= replicas <= high:
                part = math.log(replicas / low) / math.log(high / low)
                return tuple(_between(x, y, part) for x, y in zip(a, b, strict=True))
        return self.trials[-1][1]


def _between(x: float, y: float, part: float) -> float:
    if math.isinf(x) or not (x > 0.0 and y > 0.0):
        return x if part < 1.0 else y
    return math.exp((1.0 - part) * math.log(x) + part * math.log(y))


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
    start: int | None = None,
) -> PoolSize | Shortfall:
    """Find the smallest number of replicas: bracket from the utilization cap upwards, then secant steps on whole numbers.

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
    start
        A number thought to be enough: saves predictions when it is near the answer.
    """
    levels = prediction_levels(promises) if levels is None else levels
    capacity = model.capacity_per_s
    fewest = 1.0 if math.isinf(capacity) else arrival_rate_per_s / (utilization_cap * capacity)
    # one part in 1e12: a rate that is an exact multiple of the capacity must not cost a replica to rounding
    by_cap = max(1, math.ceil(fewest * (1.0 - 1e-12)))
    floor = max(by_cap, min_replicas)
    trials: dict[int, tuple[Prediction, float]] = {}

    def excess(n: int) -> float:
        """Logarithm of the worst promise's value over its limit: positive = broken."""
        if n not in trials:
            prediction = model.predict(arrival_rate_per_s, n, levels)
            trials[n] = (prediction, _excess(prediction, promises))
        return trials[n][1]

    if excess(floor) <= 0.0:
        why = _why_cap(by_cap, floor, min_replicas, utilization_cap)
        return PoolSize(floor, trials[floor][0], why, _tried(trials, promises))
    low = floor
    high = min(max(start or 0, low + max(1, round(0.3 * low))), MAX_REPLICAS)
    checked_idle = False
    while excess(high) > 0.0:
        # hardly any progress by a third more replicas: perhaps no number helps
        if not checked_idle and (high >= 4 * floor or excess(high) > 0.7 * excess(low)):
            checked_idle = True
            idle = model.predict(FEW_PER_REPLICA, 1, levels)
            if (hopeless := broken(idle, promises)) is not None:
                return Shortfall(hopeless, idle.held(hopeless.metric, hopeless.quantile))
        if high >= MAX_REPLICAS:
            missed = broken(trials[high][0], promises)
            assert missed is not None
            return Shortfall(missed, trials[high][0].held(missed.metric, missed.quantile))
        low, high = high, min(max(high + 1, round(1.6 * high)), MAX_REPLICAS)
    while high - low > 1:
        high, low = _narrow(excess, low, high)
    missed = broken(trials[low][0], promises)
    assert missed is not None
    why = f"{missed.label} (one replica fewer breaks it)"
    return PoolSize(high, trials[high][0], why, _tried(trials, promises))


def _tried(
    trials: Mapping[int, tuple[Prediction, float]], promises: Sequence[Promise]
) -> tuple[tuple[int, tuple[float, ...]], ...]:
    return tuple((n, tuple(p.held(q.metric, q.quantile) for q in promises)) for n, (p, _) in sorted(trials.items()))


def _excess(prediction: Prediction, promises: Sequence[Promise]) -> float:
    worst = max((prediction.held(p.metric, p.quantile) / p.limit_s for p in promises), default=0.5)
    if prediction.load >= 1.0:
        worst = math.inf
    return math.log(worst) if 0.0 < worst < math.inf else math.copysign(700.0, worst - 1.0)


def _narrow(excess: Callable[[int], float], low: int, high: int) -> tuple[int, int]:
    """One step from a bracket (low breaks, high keeps) to a smaller one: secant, and its neighbour to close it."""
    share = excess(low) / (excess(low) - excess(high))
    # a latency falls steeply at first and then flattens: the secant lands above the root, so step a little below it
    guess = low + max(1, min(high - low - 1, round(0.9 * share * (high - low))))
    if excess(guess) <= 0.0:
        below = guess - max(1, round(0.1 * (guess - low)))
        return (guess, low) if below <= low else ((below, low) if excess(below) <= 0.0 else (guess, below))
    above = guess + max(1, round(0.25 * (high - guess)))
    if above >= high:
        return high, guess
    return (above, guess) if excess(above) <= 0.0 else (high, above)


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
