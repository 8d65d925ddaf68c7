"""How likely the promises hold, given what is not known: iteration times, the method's own error, the sample of requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.fleet.pool import Pool, evaluate_pool
from planner.methods.base import Prediction
from planner.promise import Promise

NINE_IN_TEN = 1.6448536269514722
"""Half-width of a band that holds nine in ten, in standard deviations."""

FURTHEST = 0.99
"""No chance is stated beyond this, or below its complement: tails of the errors are not known."""

STEPS, FAR = 41, 3.5
"""Errors of the times that are averaged over, and how many standard deviations the furthest is."""

STEEPEST = 20.0
"""Power taken where the pool does not keep up at the slow end of the band."""

MEASUREMENTS = {
    "profile": "iteration times on this GPU (fleetopt calibrate)",
    "method": "latencies of one replica under this traffic (fleetopt calibrate --server)",
    "sample": "a longer trace",
}
"""What is not known -> the measurement that would say."""


@dataclass(frozen=True, slots=True)
class Chance:
    """The chance that a promise holds.

    Parameters
    ----------
    share
        The chance, in [0, 1].
    promise
        The promise that is least sure.
    widest
        What makes it most unsure, a key of :data:`MEASUREMENTS`.
    """

    share: float
    promise: str
    widest: str


def chance_of(
    pool: Pool, promises: Sequence[Promise], sampling_error: float, levels: tuple[float, ...]
) -> Chance | None:
    r"""The chance that the least sure promise of a pool holds; ``None`` where nothing is promised or predicted.

    Errors are taken as independent and log-normal. Times that are s times as long are the same pool at s times the rate with
    s times the result: that is predicted once, at the slow end of the profile's band, and the logarithm of the latency taken as
    a parabola of log s through it; no pool holds beyond its capacity. The chance is the mean over s of the chance that the
    method's own error leaves.

    Parameters
    ----------
    pool
        A sized pool: its prediction, its model, the band of its profile.
    promises
        Held against it.
    sampling_error
        Relative standard error of the mean work per request [1].
    levels
        Quantile levels of predictions.
    """
    prediction, band = pool.size.prediction, pool.option.profile.band
    profile = math.log1p(band) / NINE_IN_TEN
    scale = math.hypot(profile, sampling_error)
    n, capacity = pool.size.replicas, pool.model.capacity_per_s
    at_most = n * capacity / pool.arrival_rate_per_s if pool.arrival_rate_per_s > 0.0 else math.inf
    if not promises:
        return None
    slow, slower = at_slow_end(pool, levels)
    near = 1.0 + (pool.size.steepness(promises) if len(pool.size.trials) > 1 else 0.0)
    deviations = [FAR * (2.0 * k / (STEPS - 1) - 1.0) for k in range(STEPS)]
    weight = [math.exp(-0.5 * z * z) for z in deviations]
    found: list[Chance] = []
    for p in promises:
        value, then = prediction.value(p.metric, p.quantile), slow * slower.value(p.metric, p.quantile)
        if not 0.0 < value < math.inf:
            continue
        low, high = prediction.band(p.metric, p.quantile)
        low, high = math.log(max(1.0 + low, 0.05)), math.log(min(1.0 + high, 20.0))
        power = math.log(then / value) / math.log(slow) if then < math.inf else STEEPEST
        first = min(near, power)
        bend = (power - first) / math.log(slow)
        deviation = max((high - low) / (2.0 * NINE_IN_TEN), 1e-9)
        left = math.log(p.limit_s / value) - 0.5 * (low + high)
        held = 0.0
        for z, w in zip(deviations, weight, strict=True):
            x = scale * z
            if math.exp(x) < at_most:
                held += w * _below((left - first * x - bend * max(x, 0.0) * x) / deviation)
        errors = {"profile": power * profile, "method": deviation, "sample": power * sampling_error}
        widest = max(errors, key=lambda name: errors[name])
        share = held / math.fsum(weight)
        found.append(Chance(min(max(share, 1.0 - FURTHEST), FURTHEST), p.label, widest))
    return min(found, key=lambda c: c.share, default=None)


def at_slow_end(pool: Pool, levels: tuple[float, ...]) -> tuple[float, Prediction]:
    """Times at the slow end of the profile's band over those of the profile, and the pool at so many times its traffic."""
    slow = 1.0 + max(pool.option.profile.band, 0.05)
    return slow, evaluate_pool(pool.model, pool.arrival_rate_per_s * slow, pool.size.replicas, levels, quick=True)


def _below(z: float) -> float:
    """P(a standard normal variable <= z)."""
    return 0.5 * math.erfc(-z / math.sqrt(2.0))
