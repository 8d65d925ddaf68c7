"""Quadrature of TTFT, TPOT and E2E over the backlog chains of a mixed-batching replica."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.queueing.mixed_backlog import Backlog
from planner.queueing.mixed_lengths import LengthLaw

__all__ = ["LAGS", "Memory", "chain_memory", "prefill_memory"]

Array = NDArray[np.float64]

# Lags of the chain followed one by one; beyond them autocovariances fall geometrically.
LAGS = 64


@dataclass(frozen=True, slots=True)
class Memory:
    """What the chains remember of the backlog from one iteration to the next.

    Attributes
    ----------
    mean : ndarray, shape (chains,)
        Mean iteration E[s] [s].
    covariance : ndarray, shape (chains, LAGS + 1)
        Autocovariance of the iteration time [s^2].
    decay : ndarray, shape (chains,)
        Ratio of successive autocovariances beyond the followed lags.
    ahead, scatter : ndarray, shape (chains, LAGS + 1, J)
        Mean [s] and variance [s^2] of the sum of :math:`s-E s` over the next ``D`` iterations, by ``D`` and starting
        backlog.
    full : ndarray, shape (chains, LAGS + 1, J)
        Probability that the next ``D`` iterations are all full.
    still : ndarray, shape (chains,)
        Probability that an empty backlog stays empty.
    last : ndarray, shape (chains, J)
        :math:`P^{64}(s-E s)` [s].
    """

    mean: Array
    covariance: Array
    decay: Array
    ahead: Array
    scatter: Array
    full: Array
    still: Array
    last: Array

    def growth(self, steps: Array) -> Array:
        """Variance [s^2] of the stationary sum over ``steps`` iterations beyond that over LAGS, shape (chains, steps)."""
        beyond = np.maximum(steps - LAGS, 0.0)[None, :]
        rate = self.covariance[:, 0] + 2 * self.covariance[:, 1:].sum(axis=1)
        far = np.maximum(self.covariance[:, -1], 0.0)[:, None]
        r = np.clip(self.decay, 0.0, 0.999)[:, None]
        # the sum over d iterations has variance d cs_0 + 2 sum (d - j) cs_j; lags past LAGS fall geometrically
        tail = r / (1 - r) * (beyond - (1 - r**beyond) / (1 - r))
        total: Array = np.maximum(beyond * rate[:, None] + 2 * far * tail, 0.0)
        return total


def _follow(backlog: Backlog, values: Array) -> tuple[Array, Array]:
    """Deviations P^j (f - E f), j = 0..LAGS, shape (chains, LAGS + 1, J), and the mean of f."""
    mean = np.einsum("kj,kj->k", backlog.law, values)
    f = values - mean[:, None]
    out = np.empty((f.shape[0], LAGS + 1, f.shape[1]))
    out[:, 0] = f
    column = f[:, :, None]
    for j in range(1, LAGS + 1):
        column = backlog.step @ column
        out[:, j] = column[:, :, 0]
    return out, mean


def chain_memory(backlog: Backlog) -> Memory:
    r"""What the iteration time of the next iterations is, given the backlog now.

    With :math:`f=s-E s`, sums over the next D iterations have mean :math:`A_D=f+PA_{D-1}` and second moment
    :math:`Q_D=f^2+2f\,PA_{D-1}+PQ_{D-1}`.
    """
    mean = np.einsum("kj,kj->k", backlog.law, backlog.duration)
    f = backlog.duration - mean[:, None]
    chains, points = f.shape
    path = np.empty((chains, LAGS + 1, points))
    ahead, second, full = np.zeros_like(path), np.zeros_like(path), np.ones_like(path)
    saturated = backlog.grid >= backlog.room[:, None]
    # columns: P^j f, A_j, Q_j, full_j
    state = np.stack((f, np.zeros_like(f), np.zeros_like(f), np.ones_like(f)), axis=2)
    path[:, 0] = f
    for j in range(1, LAGS + 1):
        onward = backlog.step @ state
        state = onward
        state[:, :, 2] += f * f + 2 * f * state[:, :, 1]
        state[:, :, 1] += f
        state[:, :, 3] *= saturated
        path[:, j], ahead[:, j], second[:, j], full[:, j] = np.moveaxis(state, 2, 0)
    scatter = np.maximum(second - ahead**2, 0.0)
    weighted = backlog.law * f
    covariance = np.einsum("kdj,kj->kd", path, weighted)
    decay = np.clip(covariance[:, -1] / np.where(covariance[:, -2] > 0, covariance[:, -2], np.inf), 0.0, 0.999)
    still = np.clip(backlog.step[:, 0, 0], 0.0, 1.0)
    return Memory(mean, covariance, decay, ahead, scatter, np.clip(full, 0.0, 1.0), still, path[:, -1])


def prefill_memory(backlog: Backlog, law: LengthLaw, survival: Array) -> tuple[float, float, float]:
    r"""Response of the decodes to prefill and variance of the prefill, of a single chain.

    .. math:: \beta = \frac{\sum_{j\ge1} P(D\ge j)\,cc_j}{E[L]\,cc_0} \in [0, E[D]/E[L]]

    Parameters
    ----------
    backlog : Backlog
        One chain.
    law : LengthLaw
    survival : ndarray, shape (lags,)
        P(D >= j) for j = 1..

    Returns
    -------
    beta, variance, relaxation : float
        [decodes per token], [tokens^2], time scale of the backlog [iterations].
    """
    path, _ = _follow(backlog, backlog.prefill)
    covariance = np.einsum("dj,j->d", path[0], backlog.law[0] * path[0, 0])
    if covariance[0] <= 0:
        return 0.0, 0.0, 1.0
    reach = min(survival.size, LAGS)
    total = float(survival[:reach] @ covariance[1 : reach + 1])
    r = float(np.clip(covariance[-1] / covariance[-2], 0.0, 0.999)) if covariance[-2] > 0 else 0.0
    if survival.size > LAGS and r > 0:
        beyond = np.arange(1, survival.size - LAGS + 1)
        total += float(covariance[-1] * (survival[LAGS:] @ r**beyond))
    slope = total / (law.mean_prefill * covariance[0])
    return float(np.clip(slope, 0.0, law.mean_steps / law.mean_prefill)), float(covariance[0]), 1 / (1 - r)
