"""Laws as mixtures of uniform pieces, and the cuts that turn occupancies and lengths into such pieces."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.queueing.order import ranked

FloatArray = NDArray[np.float64]

# Probabilities at which the occupancy is cut into strata (fine in both tails, where the quantiles are read).
_STRATA = np.array(
    [0.0, 0.005, 0.02, 0.06, 0.12, 0.2, 0.28, 0.36, 0.44, 0.52, 0.6, 0.68, 0.76, 0.83, 0.885, 0.925, 0.955, 0.975,
     0.987, 0.994, 0.998, 0.9995, 1.0]
)  # fmt: skip


def mixture_quantiles(start: ArrayLike, width: ArrayLike, weight: ArrayLike, levels: ArrayLike) -> FloatArray:
    r"""Quantiles of a mixture of uniform laws on [start, start + width].

    .. math:: F(x) = \sum_i w_i \min(\max((x - a_i) / d_i, 0), 1)

    is piecewise linear; its knots are sorted once and all levels are read off exactly.

    Parameters
    ----------
    start : array_like
        a, left ends [any unit].
    width : array_like
        d >= 0, lengths; 0 is a point mass [the same unit].
    weight : array_like
        w >= 0, normalized here [-].
    levels : array_like
        Probabilities in [0, 1] [-].

    Returns
    -------
    ndarray
        One value per level [the same unit].

    Examples
    --------
    >>> mixture_quantiles([0.0, 1.0], [1.0, 2.0], [0.5, 0.5], [0.25, 0.75, 1.0]).tolist()
    [0.5, 2.0, 3.0]
    >>> mixture_quantiles([0.0, 0.0], [0.0, 2.0], [0.5, 0.5], [0.25, 0.5, 0.75]).tolist()  # half of it at 0
    [0.0, 0.0, 1.0]
    """
    a = np.asarray(start, dtype=float).ravel()
    d = np.asarray(width, dtype=float).ravel()
    w = np.asarray(weight, dtype=float).ravel()
    # so steep a ramp that the running sum of slopes would lose the others beside it is a jump
    jump = d <= 1e-7 * np.maximum(np.abs(a), 1e-3 * float(np.max(np.abs(a) + d)))
    ramp = ~jump
    slope = w[ramp] / d[ramp]
    knots = np.concatenate((a[ramp], a[ramp] + d[ramp], a[jump] + 0.5 * d[jump]))
    order = np.argsort(knots, kind="stable")
    x = knots[order]
    rising = np.cumsum(np.concatenate((slope, -slope, np.zeros(len(knots) - 2 * len(slope))))[order])
    cdf = np.empty(len(x))
    cdf[0] = 0.0
    np.cumsum(rising[:-1] * np.diff(x), out=cdf[1:])
    if jump.any():
        mass = np.concatenate((np.zeros(2 * len(slope)), w[jump]))[order]
        below = np.cumsum(mass) - mass
        # before and after each jump
        x = np.repeat(x, 2)
        cdf = np.stack((cdf + below, cdf + below + mass), axis=1).ravel()
    np.maximum.accumulate(cdf, out=cdf)
    total = cdf[-1]
    values: FloatArray = np.interp(np.asarray(levels, dtype=float) * total, cdf, x)
    return values


def groups(values: FloatArray, weight: FloatArray, count: int) -> tuple[FloatArray, FloatArray]:
    """At most about `count` groups of equal values, or of neighbours (mean value), finer towards the upper tail."""
    v, place = ranked(values)
    mass: FloatArray = np.bincount(place, weight).astype(float)
    keep = mass > 0
    v, mass = v[keep], mass[keep]
    if len(v) > count:
        upper = np.cumsum(mass) - 0.5 * mass
        body = np.linspace(0.0, 1.0, max(count * 2 // 3, 2))[1:-1]
        tail = 1.0 - np.geomspace(0.08, 5e-4, max(count // 3, 2))
        edges = np.unique(np.concatenate((body, tail)))
        index = np.searchsorted(edges, upper)
        total: FloatArray = np.bincount(index, mass).astype(float)
        mean = np.bincount(index, mass * v)
        used = total > 0
        v, mass = mean[used] / total[used], total[used]
    return v, mass


def persistence(iterations: FloatArray, memory: float) -> FloatArray:
    r"""Standard deviation of the mean of an exponentially correlated process over that many steps, over its own.

    .. math:: \sqrt{2 (x - 1 + e^{-x}) / x^2}, \quad x = \text{iterations} / \text{memory}
    """
    x = np.maximum(iterations / memory, 1e-4)
    return np.sqrt(2.0 * (x + np.expm1(-x))) / x


def strata(
    states: FloatArray, probability: FloatArray, replicas: int
) -> tuple[FloatArray, FloatArray, FloatArray, NDArray[np.bool_]]:
    """Cut the law of the number found into strata: middle, width, mass (sums to 1), and whether a replica was idle."""
    total = float(probability.sum())
    idle_count = int(np.searchsorted(states, float(replicas)))
    parts = []
    for low, high, idle in ((0, idle_count, True), (idle_count, len(states), False)):
        p = probability[low:high] / total
        n = states[low:high]
        p_sum = float(p.sum())
        if p_sum <= 0.0:
            continue
        if len(n) <= 28:
            parts.append(
                (n, np.ones(len(n)) if replicas > 1 or not idle else np.zeros(len(n)), p, np.full(len(n), idle))
            )
            continue
        cumulative = np.concatenate(([0.0], np.cumsum(p)))
        cumulative /= cumulative[-1]
        edges = np.interp(_STRATA, cumulative, np.concatenate((n - 0.5, [n[-1] + 0.5])))
        parts.append(
            (0.5 * (edges[1:] + edges[:-1]), np.diff(edges), np.diff(_STRATA) * p_sum, np.full(len(edges) - 1, idle))
        )
    found, width, mass, idle_flag = (np.concatenate(column) for column in zip(*parts, strict=True))
    return found, width, mass, idle_flag
