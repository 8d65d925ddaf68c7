"""How many slots of a replica are busy: state-dependent product form, and its closed form for t(n) = W + H n.

An iteration with n active slots takes t(n). A request needs K iterations, so while a slot is free the replica is a
processor-sharing station with n / (E[K] t(n)) completions per second: its stationary law depends on K only through the
mean. Beyond the last slot the iteration time stays at t(slots) and the law is continued geometrically.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
