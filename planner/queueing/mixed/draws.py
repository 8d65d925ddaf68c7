"""Quasi-random draws for the quadrature of mixed batching: a lattice, compound Poisson sums, bounded means."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.queueing.mixed.lengths import LengthLaw

Array = NDArray[np.float64]

# Generating vector of an extensible rank-1 lattice (F. Y. Kuo, "lattice-32001-1024-1048576.3600", first components).
GENERATOR = (
    1,
    182667,
    469891,
    498753,
    110745,
    446247,
    250185,
    118627,
    245333,
    283199,
    408519,
    391023,
    246327,
    126539,
    399185,
    461527,
)
MOST_SUMMED = 12
SUM_LEVELS = 1024


@lru_cache(maxsize=8)
def lattice(points: int, dimensions: int) -> Array:
    """Rank-1 lattice in [0,1)^d, shape (dimensions, points); the first coordinate is ordered."""
    index = np.arange(points, dtype=np.int64)
    # half a cell away from 0 in the first coordinate, golden-ratio multiples in the others
    shift = (np.arange(dimensions) * 0.6180339887498949) % 1.0
    shift[0] = 0.5 / points
    z = np.array(GENERATOR[:dimensions], dtype=np.int64)[:, None]
    cells: Array = ((z * index[None, :]) % points) / points + shift[:, None]
    cells %= 1.0
    cells.setflags(write=False)
    return cells


def stratified_rows(law: LengthLaw, u: Array) -> NDArray[np.int64]:
    """Rows of the workload at the weighted quantiles ``u``, ordered so that prefill and output are both stratified."""
    order = np.argsort(law.tokens, kind="stable")
    below = np.cumsum(law.probability[order])
    strip = np.minimum((below * 64).astype(np.int64), 63)
    # within a strip of equal quantiles by output, direction alternating: neighbours in u are alike in both
    key = np.where(strip % 2 == 0, 1.0, -1.0) * law.steps[order]
    order = order[np.lexsort((key, strip))]
    below = np.cumsum(law.probability[order])
    rows: NDArray[np.int64] = order[np.minimum(np.searchsorted(below, u * below[-1]), order.size - 1)]
    return rows


class PromptDraws:
    """Compound Poisson sums of prompt lengths at given uniform coordinates."""

    def __init__(self, law: LengthLaw) -> None:
        self.mean = law.mean_prefill
        self.deviation = float(np.sqrt(max(law.mean_prefill2 - law.mean_prefill**2, 0.0)))
        mesh = 4096
        step = (law.max_prefill * 4 + 12 * (self.mean + self.deviation)) / mesh
        place = law.prefill / step
        left = place.astype(np.int64)
        mass = np.bincount(left, law.probability * (1 - (place - left)), mesh)[:mesh]
        mass += np.bincount(left + 1, law.probability * (place - left), mesh)[:mesh]
        transform = np.fft.rfft(mass)
        powers = transform[None, :] ** np.arange(1, MOST_SUMMED + 1)[:, None]
        below = np.cumsum(np.maximum(np.fft.irfft(powers, mesh, axis=1), 0.0), axis=1)
        levels = (np.arange(SUM_LEVELS) + 0.5) / SUM_LEVELS
        x = np.arange(mesh) * step
        self.quantiles = np.stack([np.interp(levels, row / row[-1], x) for row in below])

    def __call__(
        self, means: Array, count_at: Array, size_at: Array, stages: int = 1, begun: NDArray[np.int64] | int = 0
    ) -> Array:
        """Sums [tokens] of the prompts that a Poisson stream brings.

        Parameters
        ----------
        means : ndarray
            Prompts expected.
        count_at, size_at : ndarray
            Uniform coordinates.
        stages : int
            Every so-many-th of a stream so many times as dense comes here instead: 1 is each of it.
        begun : ndarray of int or int
            How many of that have come since the last that came here.
        """
        counts = (poisson_quantile(stages * means, count_at) + begun) // stages
        total = np.zeros_like(means)
        some = np.flatnonzero(counts > 0)
        k = counts[some]
        held = np.minimum(k, MOST_SUMMED)
        drawn = self.quantiles[held - 1, (size_at[some] * SUM_LEVELS).astype(np.int64)]
        # more than are tabulated: the standardized law of the largest tabulated sum
        scale = np.sqrt(k / held)
        total[some] = np.maximum(k * self.mean + scale * (drawn - held * self.mean), 0.0)
        return total


def poisson_quantile(means: Array, u: Array) -> NDArray[np.int64]:
    """Quantiles of Poisson laws, elementwise."""
    counts = np.zeros(means.shape, dtype=np.int64)
    large = means > 60
    if large.any():
        from planner.queueing.normal import normal_quantile as ndtri

        mean = means[large]
        counts[large] = np.maximum(np.floor(mean + np.sqrt(mean) * ndtri(u[large]) + 0.5), 0).astype(np.int64)
    live = np.flatnonzero(~large)
    mean, level = means[live], u[live]
    term = np.exp(-mean)
    below = term.copy()
    k = 0
    while live.size:
        on = np.flatnonzero(level > below)
        if not on.size or k > 160:
            break
        k += 1
        live, mean, level = live[on], mean[on], level[on]
        term = term[on] * mean / k
        below = below[on] + term
        counts[live] = k
    return counts


@lru_cache(maxsize=1)
def _vasicek_table() -> tuple[Array, Array]:
    """Correlation that gives a variance ratio, on a mesh of (normal score of the mean, variance/(m(1-m)))."""
    from planner.queueing.normal import normal_cdf as ndtr

    scores = np.linspace(-4.0, 4.0, 33)
    correlation = np.linspace(0.0, 1.0, 41) ** 2 * 0.9995
    z = np.linspace(-7.0, 7.0, 141)
    weight = np.exp(-0.5 * z * z)
    weight /= weight.sum()
    x = ndtr(
        (scores[:, None, None] + np.sqrt(correlation)[None, :, None] * z) / np.sqrt(1 - correlation)[None, :, None]
    )
    mean = ndtr(scores)
    ratio = ((x * x) @ weight - (x @ weight) ** 2) / (mean * (1 - mean))[:, None]
    wanted = np.linspace(0.0, 1.0, 65) ** 2
    table = np.stack([np.interp(wanted, row, correlation) for row in ratio])
    return scores, table


def bounded_quantile(mean: Array, variance: Array, low: Array, high: Array, u: Array) -> Array:
    r"""Quantile of a law on [low, high] with the given mean and variance.

    Vasicek's law :math:`X=\Phi\big((h+\sqrt\varrho z)/\sqrt{1-\varrho}\big)`: like a beta law it runs from a point
    through a bell to two points, and its quantile is closed.
    """
    from planner.queueing.normal import normal_cdf as ndtr
    from planner.queueing.normal import normal_quantile as ndtri

    width = np.maximum(high - low, 1e-100)
    m = np.clip((mean - low) / width, 1e-4, 1 - 1e-4)
    ratio = np.clip(variance / width**2 / (m * (1 - m)), 0.0, 1.0)
    scores, table = _vasicek_table()
    h = ndtri(m)
    row = np.clip((h - scores[0]) / (scores[1] - scores[0]), 0.0, scores.size - 1.001)
    col = np.clip(np.sqrt(ratio) * (table.shape[1] - 1), 0.0, table.shape[1] - 1.001)
    i, j = row.astype(np.int64), col.astype(np.int64)
    p, q = row - i, col - j
    rho = (table[i, j] * (1 - q) + table[i, j + 1] * q) * (1 - p) + (
        table[i + 1, j] * (1 - q) + table[i + 1, j + 1] * q
    ) * p
    x: Array = low + width * ndtr((h + np.sqrt(rho) * ndtri(np.clip(u, 1e-9, 1 - 1e-9))) / np.sqrt(1 - rho))
    return x
