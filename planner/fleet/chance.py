"""How likely the promises hold, given what is not known: iteration times, the method's own error, the sample of requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.fleet.pool import Pool
from planner.promise import Promise

__all__ = ["MEASUREMENTS", "Chance", "chance_of"]

NINE_IN_TEN = 1.6448536269514722
"""Half-width of a band that holds nine in ten, in standard deviations."""

FURTHEST = 0.99
"""No chance is stated beyond this, or below its complement: tails of the errors are not known."""

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


def chance_of(pool: Pool, promises: Sequence[Promise], sampling_error: float) -> Chance | None:
    r"""The chance that the least sure promise of a pool holds; ``None`` where nothing is promised or predicted.

    Errors are taken as independent and log-normal: the logarithm of limit over prediction against their standard deviation.
    Times that are s times as long are the same pool at s times the rate with s times the result, so an error of the
    iteration times or of the mean work enters with the power :math:`1 + \varepsilon`, where :math:`\varepsilon` is how fast
    the latency falls with the replicas near the answer.

    Parameters
    ----------
    pool
        A sized pool: its prediction, its trials, the band of its profile.
    promises
        Held against it.
    sampling_error
        Relative standard error of the mean work per request [1].
    """
    prediction, band = pool.size.prediction, pool.option.profile.band
    found: list[Chance] = []
    steep = 1.0 + (pool.size.steepness(promises) if len(pool.size.trials) > 1 else 1.0)
    for p in promises:
        value = prediction.value(p.metric, p.quantile)
        if not 0.0 < value < math.inf:
            continue
        bands = prediction.bands.get(p.metric)
        low, high = (-0.1, 0.1) if bands is None else bands[prediction.quantiles.index(p.quantile)]
        low, high = math.log(max(1.0 + low, 0.05)), math.log(min(1.0 + high, 20.0))
        errors = {
            "profile": steep * math.log1p(band) / NINE_IN_TEN,
            "method": (high - low) / (2.0 * NINE_IN_TEN),
            "sample": steep * sampling_error,
        }
        spread = math.sqrt(sum(e * e for e in errors.values()))
        away = math.log(p.limit_s / value) - 0.5 * (low + high)
        share = 0.5 * math.erfc(-away / spread / math.sqrt(2.0)) if spread > 0.0 else float(away >= 0.0)
        widest = max(errors, key=lambda name: errors[name])
        found.append(Chance(min(max(share, 1.0 - FURTHEST), FURTHEST), p.label, widest))
    return min(found, key=lambda c: c.share, default=None)
