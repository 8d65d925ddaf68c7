"""A one-dimensional law of pieces: uniform stretches and atoms, its distribution function and quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.queueing.order import ranked
from planner.workload.trace import Floats, Ints

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


_TABLE = 1 << 22
"""Lengths up to this are looked up in a table instead of sorted [tokens]."""


def summed(values: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Distinct values, increasing, and the weight of each; in linear time for counts.

    >>> [part.tolist() for part in summed(np.array([5.0, 2.0, 5.0]), np.array([1.0, 2.0, 3.0]))]
    [[2.0, 5.0], [2.0, 4.0]]
    """
    if (whole := _counts(values)) is not None:
        there = np.zeros(int(whole.max()) + 1, dtype=bool)
        there[whole] = True
        found = np.flatnonzero(there)
        return found.astype(np.float64), np.bincount(whole, weight)[found].astype(np.float64)
    places, inverse = ranked(values)
    return places, np.bincount(inverse, weight, places.size).astype(np.float64)


def _counts(values: Floats) -> Ints | None:
    """Values as whole numbers; ``None`` where a table of them would not do."""
    if not (values.size and values.min() >= 0 and values.max() < min(_TABLE, 16 * values.size)):
        return None
    whole: Ints = values.astype(np.int64)
    return whole if np.array_equal(whole, values) else None


@dataclass(frozen=True, slots=True)
class PiecewiseLaw:
    """A mixture of uniform stretches (continuous, piecewise linear F) and atoms.

    Parameters
    ----------
    knots, below
        Ends of the stretches and the continuous mass below each [1].
    places, atoms
        Places of the atoms and the mass of atoms up to each [1].
    """

    knots: Floats
    below: Floats
    places: Floats
    atoms: Floats

    @classmethod
    def of(cls, low: Floats, high: Floats, weight: Floats) -> PiecewiseLaw:
        """The law of rows uniform on (low, high], an atom where both are equal; weights sum to 1.

        >>> law = PiecewiseLaw.of(np.array([0.0, 4.0]), np.array([4.0, 4.0]), np.array([0.5, 0.5]))
        >>> law.cdf([2.0, 4.0]).tolist(), law.quantile(0.25), law.quantile(0.9)
        ([0.25, 1.0], 2.0, 4.0)
        """
        # a stretch that is next to nothing wide would have a density next to infinite: rounding would spoil all others
        if low is high:
            places, mass = summed(high, weight)
            return cls(high[:0], high[:0], places, np.cumsum(mass))
        wide = high - low > 1e-6 * (1.0 + np.abs(high))
        places, mass = summed(high[~wide], weight[~wide])
        atoms: Floats = np.cumsum(mass)
        low, high, mass = low[wide], high[wide], weight[wide]
        knots = np.unique(np.concatenate([low, high]))
        if knots.size:
            change = np.zeros(knots.size)
            density = mass / (high - low)
            np.add.at(change, np.searchsorted(knots, low), density)
            np.add.at(change, np.searchsorted(knots, high), -density)
            # rounding must not make F fall where the density is zero
            below = np.concatenate([[0.0], np.cumsum(np.maximum(np.cumsum(change)[:-1], 0.0) * np.diff(knots))])
            below *= mass.sum() / below[-1]
        else:
            below = np.zeros(0)
        return cls(knots, below, places, atoms)

    def cdf(self, at: ArrayLike) -> Any:
        """P(X <= at) [1], shape of `at`."""
        at = np.asarray(at, dtype=np.float64)
        continuous = np.interp(at, self.knots, self.below) if self.knots.size else np.zeros(at.shape)
        jumps = np.concatenate([[0.0], self.atoms])[np.searchsorted(self.places, at, side="right")]
        result = np.minimum(continuous + jumps, 1.0)
        return float(result) if at.ndim == 0 else result

    def quantile(self, q: float) -> float:
        """Smallest x with P(X <= x) >= q."""
        grid = np.unique(np.concatenate([self.knots, self.places]))
        after = np.asarray(self.cdf(grid))
        index = int(np.searchsorted(after, q - 1e-12))
        if index >= grid.size:
            return float(grid[-1])
        if index == 0:
            return float(grid[0])
        # between two grid points only the continuous part grows; an atom sits at the right end
        start = float(after[index - 1])
        if not self.knots.size:
            return float(grid[index])
        left, right = np.interp(grid[index - 1 : index + 1], self.knots, self.below)
        rise = float(right - left)
        if rise <= 0.0 or q - start >= rise:
            return float(grid[index])
        return float(grid[index - 1] + max(q - start, 0.0) / rise * (grid[index] - grid[index - 1]))
