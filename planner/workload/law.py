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
    at, below
        Ends of the stretches and places of the atoms, each twice, and F left and right of each [1].
    """

    at: Floats
    below: Floats

    @classmethod
    def of(cls, low: Floats, high: Floats, weight: Floats) -> PiecewiseLaw:
        """The law of rows uniform on (low, high], an atom where both are equal; weights sum to 1.

        >>> law = PiecewiseLaw.of(np.array([0.0, 4.0]), np.array([4.0, 4.0]), np.array([0.5, 0.5]))
        >>> law.cdf([2.0, 4.0]).tolist(), law.quantile(0.25), law.quantile(0.9)
        ([0.25, 1.0], 2.0, 4.0)
        """
        if low is high:
            places, mass = summed(high, weight)
            low = high = weight = high[:0]
        else:
            # a stretch that is next to nothing wide would have a density next to infinite: rounding would spoil all others
            wide = high - low > 1e-6 * (1.0 + np.abs(high))
            places, mass = summed(high[~wide], weight[~wide])
            low, high, weight = low[wide], high[wide], weight[wide]
        knots = np.unique(np.concatenate([low, high]))
        at = np.union1d(knots, places) if knots.size or places.size else np.zeros(1)
        smooth = np.zeros(at.size)
        if knots.size:
            change = np.zeros(knots.size)
            density = weight / (high - low)
            np.add.at(change, np.searchsorted(knots, low), density)
            np.add.at(change, np.searchsorted(knots, high), -density)
            # rounding must not make F fall where the density is zero
            risen = np.concatenate([[0.0], np.cumsum(np.maximum(np.cumsum(change)[:-1], 0.0) * np.diff(knots))])
            smooth = np.interp(at, knots, risen * (weight.sum() / risen[-1]))
        jumps = np.concatenate([[0.0], np.cumsum(mass)])
        sides = [smooth + jumps[np.searchsorted(places, at, side=side)] for side in ("left", "right")]
        return cls(np.repeat(at, 2), np.stack(sides, axis=1).ravel())

    def cdf(self, at: ArrayLike) -> Any:
        """P(X <= at) [1], shape of `at`."""
        # of two equal places the right one counts
        found = np.minimum(np.interp(np.asarray(at, dtype=np.float64), self.at, self.below), 1.0)
        return float(found) if np.ndim(at) == 0 else found

    def quantile(self, q: float) -> float:
        """Smallest x with P(X <= x) >= q."""
        index = min(int(np.searchsorted(self.below, q - 1e-12)), self.at.size - 1)
        (left, start), (right, end) = ((self.at[k], self.below[k]) for k in (max(index - 1, 0), index))
        part = max(q - start, 0.0) / (end - start) if end > start else 1.0
        return float(left + part * (right - left)) if part < 1.0 else float(right)
