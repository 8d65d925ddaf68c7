"""Which latencies the same request has: the dependence between TTFT, TPOT and E2E of a pool, and the share that keeps several.

A method's quantiles say what each latency does alone. Requests that come in a busy stretch wait and decode slowly, so the share
that keeps a TTFT and a TPOT both is not the product of the shares that keep each. It is read off requests that a method follows
(those of a path, or the points of its quadrature), of which only the **ranks** are taken: how TTFT and TPOT go together. Each rank
is then put at the quantiles predicted, whatever was done to them since. Of a method that follows no requests nothing is known but
Frechet's bounds, :math:`\\max(0, F + G - 1) \\le P \\le \\min(F, G)`; its latencies are taken as independent, which is the lower
side of what queues do, where they rise together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from planner.promise import PROMISE_METRICS
from planner.queueing.order import rising

FloatArray = NDArray[np.float64]

POINTS = 4096
"""Points of independent latencies."""

BEYOND = 4.0
"""How far beyond the highest level quantiles are continued, in -log(1 - level)."""

NEVER = 1e30
"""What stands for a latency without end [s]."""


@dataclass(frozen=True, slots=True, eq=False)
class Together:
    """Requests by the ranks of their latencies.

    Parameters
    ----------
    depth
        Latency -> -log(1 - rank) of every request, rank in (0, 1) among those that have it; -1 where a request has none, as one of
        a single token has no TPOT. Shape (requests,).
    weight
        How much each counts, shape (requests,).
    known
        Whether the dependence is that of requests followed; otherwise latencies are taken as independent.
    """

    depth: Mapping[str, FloatArray]
    weight: FloatArray
    known: bool = True

    @classmethod
    def of(cls, latencies: Mapping[str, FloatArray], weight: FloatArray | None = None) -> Together:
        """From the latencies of requests [s], NaN where one has none; all of one shape."""
        weight = np.ones(next(iter(latencies.values())).size) if weight is None else weight
        return cls(_Depths(latencies, weight), weight)


class _Depths(dict[str, FloatArray]):
    """Depths of latencies, made when they are asked for: hardly any promise is about all."""

    def __init__(self, latencies: Mapping[str, FloatArray], weight: FloatArray) -> None:
        super().__init__()
        self._latencies, self._weight = latencies, weight

    def __missing__(self, name: str) -> FloatArray:
        found = self[name] = _depth(self._latencies[name], self._weight)
        return found


def _depth(values: FloatArray, weight: FloatArray) -> FloatArray:
    """-log(1 - rank) of every value among those that are numbers, -1 for the others."""
    depth = np.full(values.size, -1.0)
    order = rising(values)
    order = order[: int(np.count_nonzero(np.isfinite(values)))]
    if order.size:
        below = np.cumsum(weight[order])
        depth[order] = -np.log1p(-np.minimum((below - 0.5 * weight[order]) / below[-1], 1.0 - 1e-12))
    return depth


@cache
def apart() -> Together:
    """Independent latencies."""
    # an additive recurrence: even in all of them together, and in each alone
    # (Roberts, The unreasonable effectiveness of quasirandom sequences, 2018: powers of the root of x^n = x + 1)
    root, n = 1.0, len(PROMISE_METRICS)
    for _ in range(64):
        root = (1.0 + root) ** (1.0 / n)
    steps = [1.0 / POINTS, *(root**-k for k in range(1, n))]
    index = np.arange(POINTS) + 0.5
    every = zip(PROMISE_METRICS, steps, strict=True)
    depth = {name: -np.log1p(-np.clip((index * step) % 1.0, 1e-6, 1.0 - 1e-6)) for name, step in every}
    return Together(depth, np.ones(POINTS), known=False)


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """Several latencies of the same requests, over their limits.

    Parameters
    ----------
    over
        The largest latency over its limit of every request, ascending [1]; shape (requests,).
    mass
        Middle of each one's weight, the whole being 1; shape (requests,).
    """

    over: FloatArray
    mass: FloatArray

    @classmethod
    def of(
        cls,
        together: Together,
        levels: Sequence[float],
        quantiles: Mapping[str, Sequence[float]],
        limits: Mapping[str, float],
    ) -> Joint:
        """The requests with each latency at the quantiles predicted.

        Parameters
        ----------
        together
            How the latencies go together.
        levels
            Levels of the quantiles, ascending.
        quantiles
            Latency -> its quantiles at those levels [s].
        limits
            Latency -> its limit [s].
        """
        knots = -np.log1p(-np.asarray(levels))
        over = np.zeros(together.weight.size)
        for name, limit in limits.items():
            values = np.minimum(np.asarray(quantiles[name], dtype=np.float64), NEVER)
            slope = (values[-1] - values[-2]) / (knots[-1] - knots[-2]) if knots.size > 1 else 0.0
            x, y = np.append(knots, knots[-1] + BEYOND), np.append(values, values[-1] + BEYOND * max(slope, 0.0))
            depth = together.depth[name]
            over = np.maximum(over, np.where(depth < 0.0, 0.0, np.interp(depth, x, y) / limit))
        order = rising(over)
        weight = together.weight[order]
        mass = np.cumsum(weight)
        return cls(over[order], (mass - 0.5 * weight) / mass[-1])

    def quantile(self, share: float) -> float:
        """Factor on all limits at which that share of the requests keeps them all; NaN where a latency is not known."""
        return float(np.interp(share, self.mass, self.over))

    def share(self, factor: float = 1.0) -> float:
        """Share of the requests that keep all limits times a factor [1]; NaN where a latency is not known."""
        if math.isnan(self.over[-1]):
            return math.nan
        place = int(np.searchsorted(self.over, factor, side="right"))
        if place in (0, self.over.size):
            return float(place > 0)
        low, high = self.over[place - 1], self.over[place]
        part = (factor - low) / (high - low)
        return float(self.mass[place - 1] + part * (self.mass[place] - self.mass[place - 1]))


def frechet(shares: Sequence[float]) -> tuple[float, float]:
    """Frechet's bounds on the share that keeps several limits, from the shares that keep each.

    >>> frechet((0.99, 0.98))
    (0.97, 0.98)
    """
    return round(max(0.0, math.fsum(shares) - len(shares) + 1.0), 12), min(shares)
