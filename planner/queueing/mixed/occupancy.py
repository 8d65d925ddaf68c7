"""How many decodes a mixed-batching replica runs: product form over the iteration time, spread by bursts of prefill."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Most states of the product form that are summed; where a pool has more, the mode is looked for with strides and only its
# surroundings are summed.
MOST_STATES = 6000
# Logarithm of the probability, relative to the mode's, below which states are left out of a large pool's law.
NEGLIGIBLE = -60.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many sequences can be decoded at once.

    Attributes
    ----------
    slots : float
        Sequence slots left to decodes.
    kv_mean, kv_spread : float
        Mean and standard deviation of the sequences that fit in KV memory; ``kv_mean`` is inf where memory cannot bind.
    kv_skew : float
        How skewed they are to the side of few: a long context now and then leaves room for few others.
    """

    slots: float
    kv_mean: float
    kv_spread: float
    kv_skew: float = 0.0

    @property
    def most(self) -> float:
        """Sequences beyond which (nearly) every request waits."""
        if np.isfinite(self.kv_mean):
            return min(self.slots, self.kv_mean + 3 * self.kv_spread)
        return self.slots

    @property
    def typical(self) -> float:
        """Mean capacity."""
        return min(self.slots, self.kv_mean)

    def served(self, present: Array) -> Array:
        """Mean number decoding of ``present`` sequences: E min(j, S_kv, slots)."""
        capped = np.minimum(present, self.slots)
        if not np.isfinite(self.kv_mean):
            return capped
        from planner.queueing.normal import normal_cdf as ndtr

        z = (capped - self.kv_mean) / self.kv_spread
        # E min(j, N(mu, sd)) = j - sd (z Phi(z) + phi(z))
        density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
        served: Array = np.maximum(capped - self.kv_spread * (z * ndtr(z) + density), np.minimum(capped, 1e-9))
        return served

    def draw(self, normal: Array) -> Array:
        """Capacities at standard normal abscissae ``normal``."""
        if not np.isfinite(self.kv_mean):
            return np.full(normal.shape, self.slots)
        score = normal
        if self.kv_skew > 0.0:
            # gamma's law of this skewness (Wilson and Hilferty 1931)
            base = np.maximum(1.0 + self.kv_skew * normal / 6.0 - self.kv_skew**2 / 36.0, 0.0)
            score = 2.0 / self.kv_skew * (base**3 - 1.0)
        return np.clip(self.kv_mean - self.kv_spread * score, 1.0, self.slots)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Law of the sequences in decode or waiting for a slot or memory, per replica.

    Attributes
    ----------
    present : ndarray
        Support [sequences of one replica].
    law : ndarray
        Probabilities.
    """

    present: Array
    law: Array

    @property
    def variance(self) -> float:
        """Variance [sequences^2]."""
        mean = float(self.law @ self.present)
        return float(self.law @ (self.present - mean) ** 2)

    def quantile(self, u: Array) -> Array:
        """The ``u``-quantiles."""
        below = np.cumsum(self.law)
        at = np.minimum(np.searchsorted(below, u), self.present.size - 1)
        return self.present[at]


def hermite(x: Array, nodes: Array, values: Array) -> Array:
    """Piecewise cubic through (nodes, values) with parabolic slopes; linear outside."""
    step = np.diff(nodes)
    secant = np.diff(values) / step
    slope = np.empty_like(values)
    if values.size > 2:
        slope[1:-1] = (secant[:-1] * step[1:] + secant[1:] * step[:-1]) / (step[1:] + step[:-1])
        slope[0] = 2 * secant[0] - slope[1]
        slope[-1] = 2 * secant[-1] - slope[-2]
    else:
        slope[:] = secant[0]
    k = np.clip(np.searchsorted(nodes, x) - 1, 0, step.size - 1)
    t = (x - nodes[k]) / step[k]
    inside = np.clip(t, 0.0, 1.0)
    u = 1 - inside
    smooth = (
        values[k] * (1 + 2 * inside) * u * u
        + values[k + 1] * inside * inside * (3 - 2 * inside)
        + step[k] * inside * u * (slope[k] * u - slope[k + 1] * inside)
    )
    outside = np.where(t < 0, slope[k] * t * step[k], np.where(t > 1, slope[k + 1] * (t - 1) * step[k], 0.0))
    total: Array = smooth + outside
    return total


def occupancy_law(
    work_rate: float,
    nodes: Array,
    iteration: Array,
    capacity: Capacity,
    load: float,
    pooled: int = 1,
    spread: float = 1.0,
    queue_spread: float = 1.0,
) -> Occupancy:
    r"""Product form of the sequences present.

    .. math:: \pi(i) \propto \prod_{j\le i} \frac{\lambda E[D]\,\bar t(\varphi(j))}{\varphi(j)}

    Parameters
    ----------
    work_rate : float
        :math:`\lambda E[D]` of one replica, decode steps asked per second [1/s].
    nodes, iteration : ndarray
        Mean iteration time [s] at ``nodes`` decodes.
    capacity : Capacity
    load : float
        :math:`\rho=\lambda/X`; the ratio beyond the capacity is at least this.
    pooled : int
        Replicas sharing one queue (join-shortest-queue); 1 is one replica alone.
    spread, queue_spread : float
        Variance over that of the product form, while sequences find room and while they wait. As in the stationary
        density of a diffusion, :math:`\pi\propto\exp\int 2\mu/\sigma^2`, the logarithms of the ratios are divided by it. How many
        wait hardly hangs on what lengthens their queue (Erlang's C on the law of lives), so that the density there is as much
        lower as the queue is longer; where numbers swing more than by chance, as slowly as they forget, it is between that of
        quick noise, ``spread`` times as high, and that of a mixture of steady states, at their geometric mean.
    """
    if work_rate <= 0:
        return Occupancy(np.zeros(1), np.ones(1))
    tail = np.log(1e-10) / np.log(min(max(load, 0.05), 0.9999)) / pooled * max(queue_spread, 1.0)
    most = capacity.most + max(tail, 8.0) if capacity.most < 1e5 else 1e5
    reach = min(most, 4 * nodes[-1] + 50 + (tail if nodes[-1] > 0.5 * capacity.typical else 0.0))
    states = int(reach * pooled) + 2

    def logarithms(total: Array) -> Array:
        """Logarithms of the ratios of the law of the pool's ``total`` sequences."""
        served = capacity.served(total / pooled)
        time = np.maximum(hermite(served, nodes, iteration), 0.2 * iteration[0])
        ratio = work_rate * time / np.maximum(served, 1e-12)
        beyond = total / pooled > capacity.typical
        ratio = np.where(beyond, np.maximum(ratio, load), ratio)
        steps: Array = np.log(np.maximum(ratio, 1e-12)) / np.where(beyond, queue_spread, spread)
        return steps

    lower = math.log(queue_spread) - (0.5 if spread > 1.0 else 1.0) * math.log(spread)
    first, last, stride = 0, states, max(1, -(-states // MOST_STATES))
    while True:
        total = np.arange(first + 1, last + 1, stride, dtype=float)
        log_law = np.concatenate(([0.0], np.cumsum(logarithms(total) * stride)))
        total = np.concatenate(([float(first)], total))
        log_law -= np.where(total / pooled > capacity.typical, lower, 0.0)
        log_law -= log_law.max()
        if stride == 1:
            break
        # strides blur a law narrower than they are: look again about its mode
        kept = np.flatnonzero(log_law > NEGLIGIBLE)
        first = int(total[max(kept[0] - 1, 0)])
        last = min(int(total[kept[-1]]) + stride, states)
        closer = max(1, -(-(last - first) // MOST_STATES))
        if closer > stride // 2:
            break
        stride = closer
    law = np.exp(log_law)
    return Occupancy(total / pooled, law / law.sum())
