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
    ahead : ndarray, shape (chains, LAGS + 1, J)
        :math:`\\sum_{j<D} P^j(s-E s)` by ``D`` and starting backlog [s].
    last : ndarray, shape (chains, J)
        :math:`P^{64}(s-E s)` [s].
    """

    mean: Array
    covariance: Array
    decay: Array
    ahead: Array
    last: Array

    def dispersion(self, chain: int, mean_steps: float, rate: float) -> float:
        """Dispersion of the arrivals counted per iteration, over the life of a decode."""
        if mean_steps <= 0 or rate <= 0:
            return 1.0
        lags = np.arange(1, LAGS + 1)
        total = self.covariance[chain, 0]
        total += 2 * float(np.maximum(1 - lags / mean_steps, 0.0) @ self.covariance[chain, 1:])
        r, beyond = self.decay[chain], max(mean_steps - LAGS, 0.0)
        if beyond > 0 and 0 < r < 1:
            # sum over lags 64 + i, i = 1.. of (beyond - i)/E[D] r^i
            tail = r / (1 - r) * (1 - (1 - r**beyond) / max(beyond * (1 - r), 1e-12))
            total += 2 * self.covariance[chain, -1] * beyond / mean_steps * max(tail, 0.0)
        return float(1 + rate / self.mean[chain] * max(total, 0.0))

    def variance_of_mean(self, steps: Array) -> Array:
        """Variance [s^2] of the mean of ``steps`` successive iterations given the start is unknown *beyond* its
        conditional mean, shape (chains, len(steps))."""
        d = np.maximum(steps, 1.0)[None, :]
        lags = np.arange(LAGS + 1)
        low = np.minimum(d, LAGS).astype(np.int64)
        sums = np.cumsum(self.covariance, axis=1) - self.covariance[:, :1]
        moments = np.cumsum(self.covariance * lags, axis=1)
        chains = np.arange(self.mean.size)[:, None]
        reach = np.maximum(low - 1, 0)
        far = self.covariance[:, -1:]
        r = np.clip(self.decay[:, None], 0.0, 0.9999)
        beyond = np.maximum(d - LAGS, 0.0)
        reach = np.where(d > LAGS, LAGS, reach)
        total = d * self.covariance[:, :1] + 2 * (d * sums[chains, reach] - moments[chains, reach])
        tail = r / (1 - r) * (beyond - (1 - r**beyond) / (1 - r))
        total = total + 2 * far * np.maximum(tail, 0.0)
        return np.maximum(total, 0.0) / (d * d)


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
    """Autocovariances and conditional means of the iteration time along the chains."""
    path, mean = _follow(backlog, backlog.duration)
    weighted = backlog.law * path[:, 0]
    covariance = np.einsum("kdj,kj->kd", path, weighted)
    decay = np.clip(covariance[:, -1] / np.where(covariance[:, -2] > 0, covariance[:, -2], np.inf), 0.0, 0.999)
    ahead = np.zeros_like(path)
    np.cumsum(path[:, :-1], axis=1, out=ahead[:, 1:])
    return Memory(mean, covariance, decay, ahead, path[:, -1])


def prefill_memory(backlog: Backlog, law: LengthLaw, survival: Array) -> tuple[float, float]:
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
    beta, variance : float
        [decodes per token], [tokens^2].
    """
    path, _ = _follow(backlog, backlog.prefill)
    covariance = np.einsum("dj,j->d", path[0], backlog.law[0] * path[0, 0])
    if covariance[0] <= 0:
        return 0.0, 0.0
    reach = min(survival.size, LAGS)
    total = float(survival[:reach] @ covariance[1 : reach + 1])
    r = float(np.clip(covariance[-1] / covariance[-2], 0.0, 0.999)) if covariance[-2] > 0 else 0.0
    if survival.size > LAGS and r > 0:
        beyond = np.arange(1, survival.size - LAGS + 1)
        total += float(covariance[-1] * (survival[LAGS:] @ r**beyond))
    slope = total / (law.mean_prefill * covariance[0])
    return float(np.clip(slope, 0.0, law.mean_steps / law.mean_prefill)), float(covariance[0])
