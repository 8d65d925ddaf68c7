"""How long those wait who find every slot busy: the full law of the lives, or the exact queue of its three moments."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.queueing.exact import delayed_wait, two_phases
from planner.queueing.mixture import groups

FloatArray = NDArray[np.float64]

#: Survival probabilities at which the wait of the delayed is cut [-].
WAIT_SURVIVAL = np.array([1.0, 0.8, 0.63, 0.5, 0.38, 0.28, 0.2, 0.14, 0.09, 0.05, 0.025, 0.01, 3e-3, 6e-4, 1e-4, 1e-6])
_WAIT_CELLS = 512
#: Residual lives, over (1 - rho) sqrt(c - 1), until a queue before c slots is over, see `SlotWait._long_memory` [-].
HORIZON = 3.0
# Most slots whose exact queue is solved; more are this many at equal (1 - rho) sqrt(c), waiting as much less as they drain faster.
_SOLVED_SLOTS = 32
# Squared coefficient of variation of the lives from which it is: below, a minimum of residual lives says it well.
_IRREGULAR = 1.05


class SlotWait:
    """Wait for one of c slots given that all are busy, in units of an iteration; build once per law of lives.

    Parameters
    ----------
    iterations : array_like, shape (rows,)
        K, iterations a request holds a slot [iterations].
    weight : array_like, shape (rows,)
        Probabilities of the rows [-].

    Attributes
    ----------
    mean_iterations : float
        E[K] [iterations].
    overlap : float
        Integral of P(K > x)^2 over E[K]: share of the arrivals' variance in the busy slots when t(n) is constant [-].

    Examples
    --------
    Lives of one length: the wait before one server is Pollaczek-Khinchine's, rho / (2 (1 - rho)) lives over all:

    >>> wait = SlotWait([100.0], [1.0]).edges(1, 0.5)
    >>> bool(90 < wait[9] < 300)
    True
    """

    def __init__(self, iterations: ArrayLike, weight: ArrayLike) -> None:
        k, mass = groups(np.asarray(iterations, dtype=float), np.asarray(weight, dtype=float), 4096)
        mass = mass / mass.sum()
        self.mean_iterations = float(mass @ k)
        self._k = np.concatenate(([0.0], k))
        alive = 1.0 - np.concatenate(([0.0], np.cumsum(mass)))
        self.overlap = float(np.sum(np.maximum(alive[:-1], 0.0) ** 2 * np.diff(self._k))) / self.mean_iterations
        scv = float(mass @ k**2) / self.mean_iterations**2 - 1.0
        third = float(mass @ k**3) / self.mean_iterations**3
        self._phases = two_phases(scv, third) if scv > _IRREGULAR else None
        # law of the residual life: F_e is piecewise linear between the values of K
        self._residual_cdf = np.concatenate(([0.0], np.cumsum(alive[:-1] * np.diff(self._k)))) / self.mean_iterations
        self._residual_cdf /= self._residual_cdf[-1]
        self._mean_residual = float(mass @ k**2) / (2.0 * self.mean_iterations)
        # between its knots the integral of 1 - F_e is a parabola: more knots
        fine = np.unique(np.concatenate((self._k, np.linspace(0.0, float(self._k[-1]), 600))))
        self._residual_cdf = np.interp(fine, self._k, self._residual_cdf)
        self._k = fine
        mid = 1.0 - 0.5 * (self._residual_cdf[1:] + self._residual_cdf[:-1])
        self._residual_integral = np.concatenate(([0.0], np.cumsum(mid * np.diff(self._k))))

    def edges(self, chain_slots: int, load: float) -> FloatArray:
        r"""Wait of the delayed at the survival probabilities `WAIT_SURVIVAL` [iterations].

        Tijms, van Hoorn and Federgruen (1981): the smallest of c residual lives, then a geometric number of residuals
        of K / c.

        .. math:: W = Y_1 + \sum_{i=1}^{M} Y_i, \quad P(Y_1 > x) = (1 - F_e(x))^c, \quad P(Y_i \le x) = F_e(c x),
                  \quad P(M = m) = (1 - \rho) \rho^m

        Lives that vary more than exponential ones, and whose three moments two exponential phases have, are taken for
        such: their queue before c > 1 slots is exact.
        """
        if self._phases is not None and chain_slots > 1:
            slots = min(chain_slots, _SOLVED_SLOTS)
            slack = min((1.0 - load) * float(np.sqrt(chain_slots / slots)), 0.9)
            solved = delayed_wait(1.0 - slack, slots, self._phases, WAIT_SURVIVAL)
            if solved is not None:
                scale = slots * slack / (chain_slots * (1.0 - load))
                return solved * (self.mean_iterations * scale)
        span = 18.0 * (self.mean_iterations + self._mean_residual / (1.0 - load)) / chain_slots
        x = np.linspace(0.0, span, _WAIT_CELLS + 1)
        middle = x[1:] - 0.5 * x[1]
        first = -np.diff((1.0 - np.interp(middle, self._k, self._residual_cdf)) ** chain_slots, prepend=1.0, append=0.0)
        # K_e / c is often narrower than a cell: differences of its stop-loss keep the mean
        kept = np.interp(np.append(x, x[-1] + x[1]) * chain_slots, self._k, self._residual_integral) / chain_slots
        later = -np.diff(kept, n=2, prepend=0.0) / x[1]
        later[0] = 1.0 - kept[1] / x[1]
        # cells of the sum: twice the range, so that what wraps round is beyond 18 means
        size = 2 * _WAIT_CELLS
        transform = np.fft.rfft(first, size) * (1.0 - load) / (1.0 - load * np.fft.rfft(later, size))
        pmf = np.maximum(np.fft.irfft(transform, size)[: _WAIT_CELLS + 1], 0.0)
        survival = 1.0 - np.cumsum(pmf) / pmf.sum()
        # the part of the delayed whose queue is over before long lives show waits as before exponential servers
        share = self._long_memory(chain_slots, load)
        at = np.concatenate(([0.0], x + 0.5 * x[1]))
        survival = np.concatenate(([1.0], survival))
        if share < 1.0:
            short = np.exp(-at * (chain_slots * (1.0 - load) / self.mean_iterations))
            survival = share * survival + (1.0 - share) * short
        edges: FloatArray = np.interp(-WAIT_SURVIVAL, -survival, at)
        edges[0] = 0.0
        return edges

    def _long_memory(self, chain_slots: int, load: float) -> float:
        r"""Share of the delayed who meet the variability of K in full [-].

        A queue before c servers comes and goes within :math:`T = 3 E[K_e] / ((1 - \rho) \sqrt{c - 1})`; until then
        their departures look Poisson, and only lives shorter than T show:

        .. math:: \frac{E[\min(K_e, T)] / (1 - e^{-T / E[K]}) - E[K]}{E[K_e] - E[K]}

        The 3 was fitted to exact M/H2/c waits (c = 2..256, scv 2, 4 and 10); c = 1 stays Pollaczek-Khinchine.
        """
        excess = self._mean_residual / self.mean_iterations - 1.0
        if chain_slots == 1 or excess <= 1e-9:
            return 1.0
        horizon = HORIZON * (1.0 + excess) / ((1.0 - load) * float(np.sqrt(chain_slots - 1.0)))
        # E min(K_e, T) = integral of 1 - F_e up to T
        left = float(np.interp(horizon * self.mean_iterations, self._k, self._residual_integral))
        shown = left / self.mean_iterations / -float(np.expm1(-horizon)) - 1.0
        return min(max(shown / excess, 0.0), 1.0)
