r"""Requests of a replica when each arrival goes to the less loaded of two replicas drawn at random.

With tails :math:`s_k=P(N\ge k)` of the number of requests at a replica, and ties broken at random, a replica that holds
``k`` is sent :math:`\lambda(s_k+s_{k+1})` requests per second: twice its share when it is the emptiest, nothing when it
is the fullest. In the limit of many replicas their numbers are independent, and ``N`` is a birth-death process whose
law is a fixed point of its own tail. In a pool of ``g`` replicas the deviations from the pool's mean sum to zero: what
drives one is :math:`1-1/g` of its own noise, and the other replica drawn is on average :math:`-x/(g-1)` away when this one
is ``x`` away, which pulls it back by :math:`g/(g-1)` as much. Each takes a factor :math:`1-1/g` off the variance.

References
----------
M. Mitzenmacher, "The power of two choices in randomized load balancing", IEEE TPDS 12(10), 2001;
N. D. Vvedenskaya, R. L. Dobrushin, F. I. Karpelevich, Problems Inform. Transmission 32(1), 1996.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Apart", "Balance", "balance_of_two"]

Array = NDArray[np.float64]

# States to either side of the mean: the law falls by e a request or faster above it, and faster still below.
REACH = 30
# Rounds of the damped fixed point; the law settles to 1e-6 in about half of them.
ROUNDS = 60
SETTLED = 1e-7


@dataclass(frozen=True, slots=True)
class Balance:
    """How two choices hold a replica at the pool's mean.

    Attributes
    ----------
    deviation : ndarray, shape (states,)
        Requests at a replica less the pool's mean.
    law : ndarray, shape (states,)
        Its probabilities over time.
    gate : ndarray, shape (states,)
        Arrival rate at a replica so far from the mean, over the mean rate: from 2 down to 0.
    """

    deviation: Array
    law: Array
    gate: Array

    @property
    def variance(self) -> float:
        """Variance of the deviation [requests^2]."""
        return float(self.law @ self.deviation**2)

    def at(self, deviation: Array) -> Array:
        """Relative arrival rate at any deviation."""
        log_gate = np.log(self.gate)
        above = np.maximum(deviation - self.deviation[-1], 0.0)
        fall = log_gate[-1] - log_gate[-2]
        value: Array = np.exp(np.interp(deviation, self.deviation, log_gate) + fall * above)
        return value


class Apart:
    """How far from the pool's mean the replica is that a request is sent to.

    Parameters
    ----------
    balance : Balance
    mean : float
        Mean requests of a replica.
    u : ndarray, shape (points,)
        Uniform numbers.

    Attributes
    ----------
    found : ndarray, shape (points,)
        Deviation of the number found on arrival [requests].
    gate_after : ndarray, shape (points,)
        Relative arrival rate at the replica once the request has joined it.
    variance : float
        Variance of the deviation over time [requests^2]; a deviation is made good in about variance/rate seconds.
    beside : float
        Mean deviation of the number beside a request over a long life, by size bias [requests].
    """

    def __init__(self, balance: Balance, mean: float, u: Array) -> None:
        arrivals = balance.law * balance.gate
        below = np.cumsum(arrivals) / arrivals.sum()
        self.found: Array = balance.deviation[np.minimum(np.searchsorted(below, u), below.size - 1)]
        self.gate_after = balance.at(self.found + 1.0)
        self.variance = balance.variance
        self.beside = balance.variance / mean


def balance_of_two(mean: float, elasticity: float, replicas: float) -> Balance:
    r"""Law of a replica's requests about the mean, and the arrivals it is sent.

    Parameters
    ----------
    mean : float
        Mean requests of a replica, > 0.
    elasticity : float
        Completions of a replica with ``k`` requests go as :math:`(k/\mathrm{mean})^\epsilon`, in (0, 1].
    replicas : float
        g >= 2.

    Returns
    -------
    Balance

    Examples
    --------
    >>> round(balance_of_two(200.0, 0.05, 1e9).variance, 1)  # nearly free walkers: logistic of scale 1, pi^2/3 + 1/12
    3.5
    """
    first = max(int(mean) - REACH, 0)
    states = np.arange(first, int(np.ceil(mean)) + REACH + 1.0)
    log_served = elasticity * np.log(np.maximum(states[1:], 1e-9) / mean)
    law = np.exp(-0.5 * (states - mean) ** 2 / max(min(mean, 3.0), 0.25))
    law /= law.sum()
    gate = np.ones_like(states)
    for _ in range(ROUNDS):
        tail = np.cumsum(law[::-1])[::-1]
        gate = np.maximum(tail + np.concatenate((tail[1:], [0.0])), 1e-12)
        log_law = np.concatenate(([0.0], np.cumsum(np.log(gate[:-1]) - log_served)))
        new = _tilted(log_law, states, mean)
        if float(np.abs(new - law).sum()) < SETTLED:
            break
        law = 0.5 * (law + new)
    gate = gate / float(law @ gate)
    return Balance((states - mean) * (1.0 - 1.0 / replicas), law, gate)


def _tilted(log_law: Array, states: Array, mean: float) -> Array:
    """The law times an exponential of the state, such that its mean is ``mean``."""
    slope, law = 0.0, np.ones_like(states)
    for _ in range(30):
        weight = log_law + slope * states
        law = np.exp(weight - weight.max())
        law /= law.sum()
        now = float(law @ states)
        variance = max(float(law @ (states - now) ** 2), 1e-9)
        step = (mean - now) / max(variance, 0.05)
        slope += float(np.clip(step, -2.0, 2.0))
        if abs(mean - now) < 1e-9 * max(mean, 1.0):
            break
    return law
