"""The rate of a fleet over time, as a backtest walks it: hours joined by lines, with the swings that were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.workload.arrivals import Arrivals

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STEP_S = 15.0
"""Step of a path [s]."""

WINDOW_S = 300.0
"""Windows whose requests are replayed, unless the promises name theirs [s]."""

FAST_S, SLOW_S = 60.0, 600.0
"""Correlation times of the swings [s]."""


def hourly_path(rates_per_s: Sequence[float]) -> Floats:
    """Mean rate of every step of the period, hours joined by lines through their middles [1/s], shape (steps,)."""
    hours = len(rates_per_s)
    at = (np.arange(round(hours * 3600.0 / STEP_S)) + 0.5) * STEP_S / 3600.0
    middles = np.arange(-1, hours + 1) + 0.5
    return np.asarray(np.interp(at, middles, np.concatenate(([rates_per_s[-1]], rates_per_s, [rates_per_s[0]]))))


def variances(arrivals: Arrivals) -> tuple[float, float]:
    """Variance of the fast and of the slow swings over the squared rate, at the rate of the arrivals [1]."""
    rate = arrivals.rate_per_s or math.inf
    whole, slow = (max(0.0, arrivals.dispersion_at(w) - 1.0) / (rate * w) for w in (FAST_S, SLOW_S))
    return max(0.0, whole - slow), slow


def swings(mean_per_s: Floats, arrivals: Arrivals | None, rng: np.random.Generator) -> Floats:
    """A path with the swings of an arrival process about its mean [1/s].

    The variance of the rate over a window of w seconds beyond chance is (I(w) - 1) rate / w, with I the index of dispersion of
    counts. Two log-normal processes carry it, one with a correlation time of a minute, one with ten: the slow one what is left
    over ten minutes, the fast one the rest of what there is over one. The dispersion is that of the arrivals' own rate, taken
    as more independent users above it and as a part of them below; without arrivals the path is returned as it is.
    """
    if arrivals is None or not arrivals.dispersion or not arrivals.rate_per_s:
        return mean_per_s
    # more independent users: relative swings shrink with the root of their number
    scale = min(1.0, arrivals.rate_per_s / float(mean_per_s.mean()))
    fast, slow = (scale * v for v in variances(arrivals))
    noise = np.zeros(mean_per_s.size)
    for variance, time in ((fast, FAST_S), (slow, SLOW_S)):
        spread = math.sqrt(math.log1p(variance))
        keep = math.exp(-STEP_S / time)
        steps = rng.standard_normal(mean_per_s.size) * spread * math.sqrt(1.0 - keep * keep)
        value = rng.standard_normal() * spread
        walk = np.empty(mean_per_s.size)
        for k in range(mean_per_s.size):
            value = keep * value + steps[k]
            walk[k] = value
        noise += walk - 0.5 * spread * spread
    return np.asarray(mean_per_s * np.exp(noise))
