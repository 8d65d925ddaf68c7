r"""Waits that bursts add: one server under arrivals whose rate swings on several time scales.

Measured traffic is far from Poisson: the Azure trace's counts have an index of dispersion of 5 over a second and 63 over a
minute. For a second a replica is offered twice its capacity; no mixture of steady states describes the backlog that builds
and drains. What does is Lindley's recursion

.. math:: W_{k+1} = (W_k + s_k - (t_{k+1} - t_k))^+

on arrivals :math:`t_k` of a Cox process whose rate :math:`\lambda m(t)` reproduces the measured dispersion. It is evaluated
on one fixed, stratified sequence (the same for every rate and size, so that results are reproducible and move smoothly), in
vector form: :math:`W_k = S_k - \min_{j \le k} S_j` with :math:`S_k = \sum_{i<k} s_i - t_k`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

ARRIVALS = 1 << 15
"""Arrivals of the fixed sequence: P99 rests on 327 of them."""

STRATA = 4
"""Gamma factors are every fourth of a sorted sample: nearly their quantiles."""


def rate_variances(dispersion: Sequence[tuple[float, float]], rate: float) -> list[tuple[float, float]]:
    r"""Variances of the relative rate by time scale that reproduce an index of dispersion of counts.

    A factor of variance v drawn anew every T seconds adds :math:`\lambda w v\, c(w/T)` to the index over windows of w,
    with :math:`c(x) = 1 - x/3` for :math:`x \le 1` and :math:`(1 - 1/(3x))/x` beyond. One scale per window, non-negative
    least squares relative to the index.

    Parameters
    ----------
    dispersion : sequence of (float, float)
        Windows [s] and indices of dispersion [1].
    rate : float
        Mean rate of the same stream [1/s]; > 0.

    Returns
    -------
    list of (float, float)
        Time scale [s] and variance of the relative rate on it [1], the zero ones left out.

    Raises
    ------
    ValueError
        If the rate is not positive.

    Examples
    --------
    >>> [(w, round(v, 2)) for w, v in rate_variances([(10.0, 11.0)], 1.5)]
    [(10.0, 1.0)]
    """
    if not rate > 0.0:
        raise ValueError(f"rate must be > 0, not {rate!r}")
    pairs = sorted((w, i) for w, i in dispersion if w > 0.0 and i > 1.0)
    if not pairs:
        return []
    windows = np.array([w for w, _ in pairs])
    excess = np.array([i - 1.0 for _, i in pairs])
    x = windows[:, None] / windows[None, :]
    share = np.where(x <= 1.0, 1.0 - x / 3.0, (1.0 - 1.0 / (3.0 * np.maximum(x, 1.0))) / np.maximum(x, 1.0))
    scale = 1.0 / (1.0 + excess)
    found = _nonnegative(rate * windows[:, None] * share * scale[:, None], excess * scale)
    return [(float(w), float(v)) for w, v in zip(windows, found, strict=True) if v > 1e-9]


def _nonnegative(matrix: FloatArray, target: FloatArray) -> FloatArray:
    """argmin |A x - b| over x >= 0 by coordinate descent: a handful of unknowns, strictly convex."""
    gram, moment = matrix.T @ matrix, matrix.T @ target
    x = np.zeros(len(moment))
    for _ in range(400):
        before = x.copy()
        for k in range(len(x)):
            x[k] = max(0.0, x[k] + (moment[k] - float(gram[k] @ x)) / gram[k, k])
        if np.max(np.abs(x - before)) <= 1e-10 * (1.0 + np.max(x)):
            break
    return x


MAX_PIECES = 1 << 19
"""Pieces of one time scale in a path; swings that would need more are too fast for the arrivals to feel."""


class BurstSequence:
    """A fixed sequence of arrivals in operational time, with the path of the rate and the work each brings.

    Parameters
    ----------
    scales : sequence of (float, float)
        Time scales [s] and variances of the relative rate, from :func:`rate_variances`; empty = Poisson.
    work : array_like, shape (rows,)
        Work of a request relative to its mean, by row [1].
    weight : array_like, shape (rows,)
        Share of the requests in each row [1].

    Raises
    ------
    ValueError
        If work or weights are negative, or not one per row.

    Examples
    --------
    >>> calm = BurstSequence([], [1.0], [1.0])
    >>> float(calm.waits(0.5, 1.0, [0.4])[0])     # M/D/1 at load 1/2 is idle half the time
    0.0
    >>> wild = BurstSequence([(10.0, 0.5)], [1.0], [1.0])
    >>> bool(wild.waits(0.5, 1.0, [0.99])[0] > 2 * calm.waits(0.5, 1.0, [0.99])[0])
    True
    """

    def __init__(self, scales: Sequence[tuple[float, float]], work: ArrayLike, weight: ArrayLike) -> None:
        sizes, share = np.asarray(work, dtype=np.float64), np.asarray(weight, dtype=np.float64)
        if sizes.shape != share.shape or sizes.ndim != 1 or not sizes.size:
            raise ValueError("work and weight must be one number per row")
        if np.any(sizes < 0.0) or np.any(share < 0.0) or not np.sum(share) > 0.0:
            raise ValueError("work and weight must not be negative, and some weight positive")
        rng = np.random.Generator(np.random.PCG64(20_231_116))
        middles = (np.arange(ARRIVALS) + 0.5) / ARRIVALS
        gaps = rng.permutation(-np.log1p(-middles))
        self._operational = np.cumsum(gaps / np.mean(gaps))
        # every row in proportion to its weight, in an order that does not depend on the law
        place = rng.permutation(middles)
        cumulative = np.cumsum(share) / np.sum(share)
        rows = np.minimum(np.searchsorted(cumulative, place), sizes.size - 1)
        self._work = sizes[rows] / max(float(sizes @ share / np.sum(share)), 1e-300)
        self._scales = tuple(scales)

    def waits(self, rate: float, mean_service: float, levels: ArrayLike) -> FloatArray:
        """Quantiles over arrivals of the work found in the system.

        Parameters
        ----------
        rate : float
            Mean arrival rate at the server [1/s]; > 0.
        mean_service : float
            Mean service time [s]; > 0.
        levels : array_like
            Levels in [0, 1).

        Returns
        -------
        ndarray
            Waits [s], one per level. At a load of 1 or more the backlog of a run as long as the sequence.

        Raises
        ------
        ValueError
            If rate or service time is not positive.
        """
        if not rate > 0.0:
            raise ValueError(f"rate must be > 0, not {rate!r}")
        if not mean_service > 0.0:
            raise ValueError(f"mean_service must be > 0, not {mean_service!r}")
        times = self._times(rate)
        done = mean_service * self._work
        level = np.cumsum(done) - done - times
        found: FloatArray = np.quantile(level - np.minimum.accumulate(level), np.asarray(levels, dtype=np.float64))
        return found

    def _times(self, rate: float) -> FloatArray:
        """Arrival times at a mean rate [s]: operational time run through the path of the rate."""
        if not self._scales:
            return self._operational / rate
        span = float(self._operational[-1]) / rate
        grid, passed = self._path(1.2 * span)
        return np.interp(self._operational / rate, passed, grid)

    def _path(self, span: float) -> tuple[FloatArray, FloatArray]:
        """Times and the integral of the relative rate up to them, over at least `span` seconds."""
        # spans are rounded up to powers of four, so that neighbouring rates share a path and a comparison is fair
        return _integrated_rate(self._scales, float(4.0 ** np.ceil(np.log(span) / np.log(4.0))))


@lru_cache(maxsize=16)
def _integrated_rate(scales: tuple[tuple[float, float], ...], span: float) -> tuple[FloatArray, FloatArray]:
    """Shared by all pools of a fleet: thinning leaves the relative rate as it is."""
    rng = np.random.Generator(np.random.PCG64(7))
    edges, factors = [], []
    # Factors multiply, as bursts within busy minutes do: counts are then as skewed as measured ones, which a sum is not.
    # A fast factor's variance is multiplied by the slower ones', so theirs is taken out of it.
    slower = 1.0
    for scale, variance in sorted(scales, reverse=True):
        if span > MAX_PIECES * scale:
            # arrivals are so rare that hardly two fall into one swing
            continue
        own = variance / slower
        slower *= 1.0 + own
        count = int(np.ceil(span / scale)) + 2
        drawn = _stratified(rng.standard_gamma(1.0 / own, count * STRATA), rng)
        factors.append(drawn / np.mean(drawn))
        edges.append((np.arange(count) - rng.random()) * scale)
    if not edges:
        return np.array([0.0, span]), np.array([0.0, span])
    cuts = np.concatenate(edges)
    grid = np.unique(np.concatenate([[0.0], cuts[(cuts > 0.0) & (cuts < span)], [span]]))
    rate = np.ones(grid.size - 1)
    for edge, factor in zip(edges, factors, strict=True):
        rate *= factor[np.clip(np.searchsorted(edge, grid[:-1], side="right") - 1, 0, factor.size - 1)]
    passed = np.concatenate([[0.0], np.cumsum(rate * np.diff(grid))])
    # the path's own mean is one over the span, whatever the draw: a load is what it says
    return grid, passed * (span / passed[-1])


def rising(values: FloatArray) -> FloatArray:
    """The nearest non-decreasing row in least squares, by pooling neighbours that fall.

    A sequence of arrivals is finite: its noise must not let a busier server wait less.

    Parameters
    ----------
    values : ndarray, shape (n,)
        Any unit.

    Returns
    -------
    ndarray, shape (n,)
        Same unit.

    >>> rising(np.array([1.0, 3.0, 2.0, 4.0])).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    blocks: list[list[float]] = []
    for value in values.tolist():
        blocks.append([value, 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, m), (b, n) = blocks[-2], blocks[-1]
            blocks[-2:] = [[(a * m + b * n) / (m + n), m + n]]
    return np.array([v for v, n in blocks for _ in range(int(n))])


def _stratified(sample: FloatArray, rng: np.random.Generator) -> FloatArray:
    """One value per group of neighbours of a sorted sample, in random order."""
    ordered = np.sort(sample)[STRATA // 2 :: STRATA]
    return rng.permutation(ordered)
