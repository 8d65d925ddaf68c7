"""How many slots of a replica are busy: state-dependent product form, and its closed form for t(n) = W + H n. And how long those
wait who find every slot busy: the full law of the lives, or the exact queue of its three moments.

An iteration with n active slots takes t(n). A request needs K iterations, so while a slot is free the replica is a
processor-sharing station with n / (E[K] t(n)) completions per second: its stationary law depends on K only through the
mean. Beyond the last slot the iteration time stays at t(slots) and the law is continued geometrically.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.queueing.exact import delayed_wait, two_phases
from planner.queueing.mixture import groups
from planner.shared.mathematics import need

FloatArray = NDArray[np.float64]

#: Routing policies: who gets the next request of a pool.
ROUTINGS = ("random", "rr", "jsq", "central")

_NEGLIGIBLE = 45.0  # states whose weight is below exp(-45) of the largest are not carried


def pooled(routing: str) -> bool:
    """Whether the routing lets a request use any free slot of the pool (one chain of all slots).

    Parameters
    ----------
    routing : str
        ``"random"``, ``"rr"`` (round robin), ``"jsq"`` (join the shortest queue) or ``"central"`` (one queue) [-].

    Returns
    -------
    bool
        True for ``"jsq"`` and ``"central"`` [-].

    Examples
    --------
    >>> pooled("jsq"), pooled("random")
    (True, False)
    """
    need(routing in ROUTINGS, f"routing must be one of {', '.join(ROUTINGS)}, not {routing!r}")
    return routing in ("jsq", "central")


@dataclass(frozen=True, slots=True, eq=False)
class Occupancy:
    """Stationary law of the busy slots of a pool.

    Attributes
    ----------
    first : int
        Number of requests that `probability[0]` belongs to [requests].
    probability : ndarray
        P(first), P(first + 1), ... of the chain; the last entry is P(all slots busy) when `first + len - 1` is the
        chain's number of slots [-].
    replicas : int
        Replicas of the chain (1 unless the routing pools them) [replicas].
    all_busy : float
        Probability that an arrival finds every slot of its chain busy [-].
    load : float
        lambda / X: arrival rate over maximum throughput [-].
    mean_active : float
        Mean busy slots of one replica [slots].
    slot_occupancy : float
        Mean busy slots / slots [-].
    """

    first: int
    probability: FloatArray
    replicas: int
    all_busy: float
    load: float
    mean_active: float
    slot_occupancy: float

    @property
    def stable(self) -> bool:
        """Whether there is a steady state."""
        return self.load < 1.0


class OccupancyChain:
    """The part of the occupancy model that does not depend on the arrival rate; build once, solve for many rates.

    Attributes
    ----------
    iteration_time : ndarray, shape (slots + 1,)
        t(0..slots); t(0) is ignored [s].
    slots : int
        Slots of a replica [slots].
    replicas : int
        Replicas that share one queue [replicas].

    Examples
    --------
    >>> chain = OccupancyChain(0.008 + 0.00065 * np.arange(16 + 1), 16)
    >>> round(chain.solve(2.0 * 220.0).mean_active, 3)
    5.33
    """

    def __init__(self, iteration_time: FloatArray, slots: int, replicas: int = 1) -> None:
        self.slots, self.replicas = slots, replicas
        for name, count in (("slots", slots), ("replicas", replicas)):
            need(count >= 1 and count == int(count), f"{name} must be a whole number >= 1, not {count!r}")
        self.iteration_time = times = np.asarray(iteration_time, dtype=float)
        need(times.shape == (slots + 1,), f"iteration_time must have {slots + 1} entries, not shape {times.shape}")
        need(np.all((times[1:] > 0) & np.isfinite(times[1:])), "iteration_time must be > 0 and finite for n >= 1")
        self.states = states = np.arange(slots * replicas + 1, dtype=float)
        self.log_weight, self.rates = np.zeros(states.size), np.zeros(states.size)
        # with fewer requests than replicas each runs alone: t(1)
        spread = np.maximum(states[1:] / replicas, 1.0)
        pooled_time = times[1:] if replicas == 1 else np.interp(spread, np.arange(slots + 1.0), times)
        np.cumsum(np.log(pooled_time / states[1:]), out=self.log_weight[1:])
        self.rates[1:] = states[1:] / pooled_time

    @property
    def max_work(self) -> float:
        """Largest rate of iterations the chain can do, c / t(slots) [iterations/s]."""
        return float(self.slots * self.replicas / self.iteration_time[-1])

    def _law(self, log_work: float, power: float) -> tuple[int, FloatArray, float]:
        """First state carried, the law from there on, and P(all busy)."""
        log_p = self.states * log_work + self.log_weight
        tail_ratio = float(np.exp(power * (log_work - np.log(self.max_work))))
        if power != 1.0:
            log_p *= power
        log_p -= log_p.max()
        kept = np.flatnonzero(log_p > -_NEGLIGIBLE)
        low, high = int(kept[0]), int(kept[-1])
        probability = np.exp(log_p[low : high + 1])
        last = len(log_p) - 1
        if high == last:
            probability[-1] /= 1.0 - tail_ratio
        total = float(probability.sum())
        probability /= total
        if high == last:
            return low, probability, float(probability[-1])
        return low, probability, float(np.exp(log_p[-1])) / (1.0 - tail_ratio) / total

    def solve(self, work: float, peakedness: float = 1.0) -> Occupancy:
        r"""Stationary law at an offered work lambda E[K].

        .. math:: \pi(n) \propto \Big[\prod_{i \le n} \lambda E[K]\, t(i/g) / i \Big]^{1/z}, \quad n \le c,
                  \qquad \text{geometric beyond with ratio } \rho^{1/z}

        z = 1 is the exact product form; z != 1 scales the spread as Hayward's approximation scales Erlang's formulas.

        Parameters
        ----------
        work : float
            lambda E[K] of the whole chain [iterations/s].
        peakedness : float
            z, variance of the busy slots over what Poisson arrivals give, > 0 [-].

        Returns
        -------
        Occupancy
            Law and load; all slots busy with probability 1 when the load is >= 1.
        """
        need(0.0 <= work < np.inf, f"work must be >= 0 and finite, not {work!r}")
        need(0.0 < peakedness < np.inf, f"peakedness must be > 0 and finite, not {peakedness!r}")
        c = self.slots * self.replicas
        load = work / self.max_work
        if load >= 1.0 - 1e-12:  # within rounding of its limit there is no steady state to tell
            return Occupancy(c, np.ones(1), self.replicas, 1.0, max(load, 1.0), float(self.slots), 1.0)
        if work == 0.0:
            return Occupancy(0, np.ones(1), self.replicas, 0.0, 0.0, 0.0, 0.0)
        low, probability, all_busy = self._law(np.log(work), 1.0 / peakedness)
        if peakedness != 1.0:
            # scaling the spread moves the mean: shift the law until it does the iterations it is brought
            shift, least, most_shift = 0.0, -20.0, float(-np.log(load)) * (1.0 - 1e-9)
            for _ in range(30):
                n = self.states[low : low + len(probability)].copy()
                rates = self.rates[low : low + len(probability)]
                done = float(probability @ rates)
                gap = float(np.log(work / done)) if done > 0 else 1.0
                if abs(gap) < 1e-7:
                    break
                least, most_shift = (shift, most_shift) if gap > 0 else (least, shift)
                if n[-1] == c:  # the states beyond the last slot shift too
                    tail = (load * np.exp(shift)) ** (1.0 / peakedness)
                    n[-1] += tail / (1.0 - tail)
                slope = (float(probability @ (rates * n)) / max(done, 1e-300) - float(probability @ n)) / peakedness
                newton = shift + gap / slope if slope > 1e-9 else np.inf
                shift = newton if least < newton < most_shift else 0.5 * (least + most_shift)
                low, probability, all_busy = self._law(np.log(work) + shift, 1.0 / peakedness)
        mean = float(probability @ self.states[low : low + len(probability)])
        return Occupancy(low, probability, self.replicas, all_busy, load, mean / self.replicas, mean / c)


def replica_dispersion(dispersion: float, replicas: int, routing: str) -> float:
    """Dispersion of the arrivals the chain sees, from that of the pool.

    Random routing thins: 1 + (I - 1) / g. Round robin deals: I / g. Pooled chains see the pool's own stream.

    Parameters
    ----------
    dispersion : float
        I of the pool [-].
    replicas : int
        g [replicas].
    routing : str
        One of `ROUTINGS` [-].

    Returns
    -------
    float
        Dispersion seen by the chain [-].

    Examples
    --------
    >>> replica_dispersion(1.0, 8, "random"), replica_dispersion(1.0, 8, "rr"), replica_dispersion(3.0, 8, "jsq")
    (1.0, 0.125, 3.0)
    """
    if pooled(routing):
        return dispersion
    return dispersion / replicas if routing == "rr" else 1.0 + (dispersion - 1.0) / replicas


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
