"""Times at which requests come that no trace tells: Poisson, with bursts as measured, or from clients at constant gaps.

All draws come from one ``numpy.random.Generator(PCG64(seed))`` in a fixed order, so that a seed gives the same times everywhere.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_CHANGES = 2 * 10**7
"""Changes of a modulated rate that one run may hold: about a gigabyte."""

Dispersion = tuple[tuple[float, float], ...]
"""Pairs (window [s], index of dispersion of the counts of a stream in such windows)."""


def arrival_times(
    rate_per_s: float,
    requests: int,
    rng: np.random.Generator,
    dispersion: Dispersion = (),
    paced: int | None = None,
) -> NDArray[np.float64]:
    """Times of so many arrivals [s], increasing, shape (requests,).

    Draws: `requests` of ``rng.standard_exponential()``, then where there is a `dispersion`, for each time scale from the
    shortest, one ``rng.random()`` and its ``rng.standard_gamma`` factors; of `paced` clients ``rng.random(paced)`` alone.

    Parameters
    ----------
    rate_per_s
        Mean rate, > 0 [1/s].
    requests
        How many.
    rng
        Draws them.
    dispersion
        The rate fluctuates on several time scales so that counts have it; empty = Poisson arrivals.
    paced
        So many clients send at constant gaps, each with a phase of its own; ``None`` = no such.

    Raises
    ------
    InputError
        No rate; bursts that come and go too often to be simulated.

    Examples
    --------
    >>> arrival_times(2.0, 3, np.random.default_rng(0), paced=1).round(3).tolist()
    [0.318, 0.818, 1.318]
    """
    if not (math.isfinite(rate_per_s) and rate_per_s > 0.0):
        raise InputError(f"rate_per_s must be a positive rate, got {rate_per_s!r}")
    if paced is not None:
        turn, client = np.divmod(np.arange(requests), paced)
        return np.asarray((turn + np.sort(rng.random(paced))[client]) * paced / rate_per_s)
    operational = np.cumsum(rng.standard_exponential(requests))
    return _modulated(operational, rate_per_s, dispersion, rng)


def scale_variances(dispersion: Dispersion, rate: float) -> list[tuple[float, float]]:
    """Pairs (time scale [s], variance of the relative rate on it) that reproduce an index of dispersion.

    A rate factor of variance v that is drawn anew every T seconds adds rate w v c(w/T) to the index of counts in windows of
    w, with c(x) = 1 - x/3 for x <= 1 and (1 - 1/(3x))/x beyond. The variances are a non-negative least-squares fit of the
    indices, relative to their size, with one scale per window.

    >>> [(w, round(v, 2)) for w, v in scale_variances(((10.0, 11.0),), 1.5)]
    [(10.0, 1.0)]
    """
    from scipy.optimize import nnls

    pairs = sorted((w, i) for w, i in dispersion if w > 0.0)
    if not pairs:
        return []
    windows = np.array([w for w, _ in pairs])
    excess = np.array([max(i - 1.0, 0.0) for _, i in pairs])
    x = windows[:, None] / windows[None, :]
    share = np.where(x <= 1.0, 1.0 - x / 3.0, (1.0 - 1.0 / (3.0 * np.maximum(x, 1.0))) / np.maximum(x, 1.0))
    size = 1.0 + excess
    found, _ = nnls(rate * windows[:, None] * share / size[:, None], excess / size)
    return [(float(w), float(v)) for w, v in zip(windows, found, strict=True) if v > 1e-9]


def _modulated(
    operational: NDArray[np.float64], rate: float, dispersion: Dispersion, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Poisson arrivals under a rate that is a weighted mean of gamma factors, each constant over its own time scale."""
    scales = scale_variances(dispersion, rate)
    if not scales or not operational.size:
        return np.asarray(operational / rate)
    # weights such that all factors have the same variance: the mean of factors stays positive, variances add exactly
    total = sum(math.sqrt(v) for _, v in scales)
    span = 4.0 * float(operational[-1]) / rate
    if (many := sum(span / scale for scale, _ in scales)) > MOST_CHANGES:
        raise InputError(
            f"rate: at {rate:g} requests/s {operational.size:,} of them last {span / 4.0:.2g} s, in which the bursts of the "
            f"traffic come and go {many:.1g} times: too many to simulate",
            "Simulate a higher rate, or traffic without its indices of dispersion.",
        )
    changes: list[NDArray[np.float64]] = []
    factors: list[NDArray[np.float64]] = []
    for scale, variance in scales:
        edges = (np.arange(math.ceil(span / scale) + 2) - rng.random()) * scale
        changes.append(np.asarray(edges, dtype=np.float64))
        factors.append(math.sqrt(variance) / total * total**2 * rng.standard_gamma(total**-2, edges.size))
    grid = np.unique(np.concatenate([[0.0], *(c[(c > 0.0) & (c < span)] for c in changes)]))
    parts = [f[np.searchsorted(c, grid, side="right") - 1] for c, f in zip(changes, factors, strict=True)]
    level = rate * np.sum(parts, axis=0)
    expected = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(grid))])
    piece = np.searchsorted(expected, operational, side="right") - 1
    speed = np.where(piece == grid.size - 1, rate, level[piece])  # the mean rate beyond the last change
    return np.asarray(grid[piece] + (operational - expected[piece]) / speed)
