r"""A replica that is sent a request when it has fewer than another drawn at random: its backlog and its requests in flight.

Let ``x`` be the requests at a replica less the mean of its pool. With two replicas drawn, the one with fewer takes the
arrival, so a replica at ``x`` is sent :math:`\lambda\,2P(X>x)`: twice its share when it is the emptiest, nothing when it
is the fullest. Taking the law of ``X`` as normal with variance :math:`\sigma^2`, and the other replica to stand
:math:`-x/(g-1)` from the mean of ``g`` (deviations sum to zero),

.. math:: \kappa(x) = 2\,\Phi\!\left(-\frac{x\,g/(g-1)}{\sigma\sqrt{1-1/(g-1)^2}}\right).

A long prompt holds the decodes of its replica up, and so both its departures and, once it falls behind, its arrivals. So
``x`` is followed together with the backlog ``V`` of prompt tokens: given ``V`` it is taken as normal with mean ``m(V)``
and variance ``v``. Over an iteration of duration ``s(V)`` with ``c(V)`` arrivals expected and :math:`n(V)/E[D]`
departures, what is carried from one backlog to the next is

.. math:: \pi'm' = P^T\pi\big[m - n/E[D] - (\lambda-\bar d)s - rc\big] + J^T\pi[1+r],

``J`` the number of arrivals on each transition, ``r`` the mean of ``x`` among arrivals less that over time (they find less
loaded replicas), :math:`\lambda-\bar d` the drift of the pool's mean; the number ``q`` of prompts in the backlog is carried
alike. The variance follows from :math:`E[\Delta x^2]=0`: in it, arrivals and departures count as Poisson, and the stalls
through ``m``. In the limit of short prompts this is the mean field of two choices, :math:`\sigma=\sqrt\pi`.

References
----------
M. Mitzenmacher, "The power of two choices in randomized load balancing", IEEE TPDS 12(10), 2001;
N. D. Vvedenskaya, R. L. Dobrushin, F. I. Karpelevich, Problems Inform. Transmission 32(1), 1996.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.queueing.erlang import erlang_c
from planner.queueing.mixed.backlog import Backlog, backlog_grid, backlog_top, single_prompt, stationary, transitions
from planner.queueing.mixed.latency import time_average
from planner.queueing.mixed.lengths import BatchCost, PromptSums
from planner.queueing.normal import normal_cdf

Array = NDArray[np.float64]

# Rounds of the fixed point, each halving the error of mean and variance or better.
ROUNDS = 6
# Means of a pool at which the chains of its replicas are found, over the usual one; and those among which that is looked for,
# over a guess.
POOL_NODES = np.array([0.45, 0.75, 1.0, 1.3, 1.8])
SCAN = np.array([0.6, 1.0, 1.6, 2.6, 4.2, 7.0])
# Least and largest variance of the requests at a replica given its backlog [requests^2].
VARIANCES = (0.05, 4e3)
# Largest load of full iterations for which the grid is laid out: a replica behind its pool is spared.
MOST_LOAD = 0.9
# Backlogs rarer than this carry the mean of the last one that is not: a quotient of roundings says nothing.
RARE = 1e-12
# Gauss-Hermite quadrature of a standard normal by its Jacobi matrix (Golub and Welsch 1969): NumPy's would load all polynomials.
_NODES, _VECTORS = np.linalg.eigh(np.diag(np.sqrt(np.arange(1.0, 7.0)), 1), UPLO="U")
_WEIGHTS = _VECTORS[0] ** 2


@dataclass(frozen=True, slots=True)
class Steered:
    """Backlog chains of a replica in a pool that two choices keep even, one per mean of the pool.

    Attributes
    ----------
    present : ndarray, shape (chains,)
        Means of the pool: requests in flight per replica, the third the one at which as many leave as come.
    chains, busy : Backlog
        The backlogs, and the same while the replica has something to do.
    apart, waiting : ndarray, shape (chains, J)
        Requests at the replica less the pool's mean, and prompts not wholly computed, by backlog [requests].
    variance : ndarray, shape (chains,)
        Variance of the requests at a replica, given its backlog [requests^2].
    spread : ndarray, shape (chains,)
        The same over all backlogs.
    arrivals : ndarray, shape (chains, J)
        Arrivals expected in an iteration.
    found_apart, found_variance : ndarray, shape (chains, J)
        Mean and variance of ``x`` among arrivals.
    beside : ndarray, shape (chains, J)
        Rate of further arrivals at a replica that has just been sent one, over the mean rate.
    idle : ndarray, shape (chains,)
        Share of the arrivals at an empty backlog that find nothing running.
    left_per_s : ndarray, shape (chains,)
        Requests completed by a replica [1/s].
    """

    present: Array
    chains: Backlog
    busy: Backlog
    apart: Array
    waiting: Array
    variance: Array
    spread: Array
    arrivals: Array
    found_apart: Array
    found_variance: Array
    beside: Array
    idle: Array
    left_per_s: Array


def _scale_of(spread: Array, replicas: int) -> Array:
    """Standard deviation of the other replica drawn, seen from one and from where deviations sum to zero."""
    others = max(replicas - 1, 1)
    scale: Array = np.sqrt(spread * max(1.0 - 1.0 / others**2, 0.05)) * others / replicas
    return scale


def _gate(x: Array, spread: Array, replicas: int) -> Array:
    """Arrival rate over its mean at a replica that has ``x`` more than its pool's mean."""
    return 2.0 * normal_cdf(-x / _scale_of(spread, replicas))


def _variance_of(push: Array, restoring: Array, between: Array, replicas: int) -> Array:
    """Variance ``v`` given the backlog at which gate and speed together pull as hard as arrivals and departures push."""
    others = max(replicas - 1, 1)
    distinct = max(1.0 - 1.0 / others**2, 0.05) * (others / replicas) ** 2
    value = np.maximum(push, VARIANCES[0]) ** 2
    for _ in range(8):
        # -E[x kappa(x)] of a normal x about 0, and its slope in log v
        scale = (value + between) * distinct + value
        steered = value * np.sqrt(2.0 / np.pi / scale)
        pulls = np.maximum(steered + restoring * value, 1e-9)
        slope = np.maximum(steered * (1.0 - 0.5 * value * (1.0 + distinct) / scale) + restoring * value, 0.2 * pulls)
        step = pulls / slope * np.log(np.maximum(push, 1e-9) / pulls)
        value = np.clip(value * np.exp(np.clip(step, -2.0, 2.0)), *VARIANCES)
    return value


class _Round:
    """The state of the fixed point, and one round of it."""

    def __init__(
        self, sums: PromptSums, cost: BatchCost, budget: float, present: Array, rate: float, replicas: int,
        tagged: float = 0.0,
    ) -> None:  # fmt: skip
        law = sums.law
        self.sums, self.cost, self.budget, self.rate, self.tagged = sums, cost, budget, rate, tagged
        self.present, self.replicas = present, replicas
        # what happens at one replica moves the pool's mean by 1/g of it
        self.own = 1.0 - 1.0 / replicas
        self.steps = max(law.mean_steps, 1.0)
        room = np.maximum(budget - tagged - present, 1.0)
        self.full = cost(present + tagged, room)
        load = np.minimum(rate * self.full * law.mean_prefill / room, MOST_LOAD)
        self.room = room
        self.grid = backlog_grid(room, cost.knee - tagged - present, backlog_top(sums, room, load))
        shape = self.grid.shape
        self.apart, self.waiting = np.zeros(shape), np.minimum((self.grid > 0.0) + 0.0, present[:, None])
        self.variance, self.between = np.full(shape[0], np.pi), np.zeros(shape[0])
        self.scale = np.ones(shape[0])
        self.asleep = np.zeros(shape[0])
        self.idle = np.zeros(shape[0])

    def like(self, other: _Round) -> None:
        """Start from what was found at one other mean of the pool."""
        for k in range(self.grid.shape[0]):
            self.apart[k] = np.interp(self.grid[k], other.grid[0], other.apart[0])
            self.waiting[k] = np.interp(self.grid[k], other.grid[0], other.waiting[0])
        self.variance[:], self.between[:] = other.variance[0], other.between[0]
        self.scale[:], self.asleep[:] = other.scale[0], other.asleep[0] if self.tagged == 0.0 else 0.0

    def build(self, refilled: tuple[float, Array, Array] | None = None, shared: float = 0.0) -> None:
        """Chains at the present law of ``x`` given the backlog.

        Parameters
        ----------
        refilled
            Share of the arrivals that make up for the replica's own departures, the departures that do so per arrival, and the
            mean iteration [s], both of shape (chains,): over a long life chance evens out.
        shared
            Share of a backlog that all replicas have: no choice between them evens it out.
        """
        law, rate = self.sums.law, self.rate
        spread, variance = (self.variance + self.between)[:, None], self.variance[:, None]
        # the gate of a normal x: expectations of a normal distribution function are one again, wider by the variance
        own = _scale_of(spread, self.replicas)
        wider = np.sqrt(own**2 + variance)
        at = -self.apart / wider
        self.kappa = np.maximum(2.0 * normal_cdf(at), 1e-9)
        # its products with x and x^2 by parts
        pull = 2.0 * np.exp(-0.5 * at**2) / np.sqrt(2.0 * np.pi) * variance / wider / self.kappa
        self.found = -pull
        self.found_variance = variance - pull * (variance / wider * at + pull)
        self.slope = 2.0 * (normal_cdf(at - 0.5 / wider) - normal_cdf(at + 0.5 / wider))
        decodes = np.maximum(self.present[:, None] + self.apart / self.own - self.waiting, 0.0)
        self.prefill = np.minimum(self.grid, np.maximum(self.budget - self.tagged - decodes, 1.0))
        self.left_over = self.grid - self.prefill
        # an empty backlog is a replica that decodes or one that has nothing at all
        decodes[:, 0] /= np.maximum(1.0 - self.asleep, 0.02)
        awake = self.cost(self.tagged + decodes, self.prefill)
        opened = awake
        if self.cost.apart:
            # prompts that come while others have iterations of their own are served before the decodes, not found waiting
            prompted = (self.grid > 0.0) & (self.left_over <= 0.0)
            opened = np.where(prompted, self.cost.decoding(self.tagged + decodes), awake)
            joins = (self.scale * rate)[:, None] * self.kappa
            more, _ = self.cost.prompts_since(joins, law.mean_prefill, np.maximum(awake - opened, 0.0))
            awake = awake + prompted * more
            self.prefill = self.prefill + joins * (awake - opened) * law.mean_prefill
        counts = (self.scale * rate)[:, None] * awake * self.kappa
        if refilled is not None:
            share, departures, usual_s = refilled
            made_up = decodes / (self.steps * departures[:, None])
            if self.cost.apart:  # over all the time of an iteration, of which the decodes have a part
                made_up = made_up * awake / usual_s[:, None]
            counts = share * made_up + (1.0 - share) * counts
        counts = np.minimum(counts + shared * (rate * awake - counts), self.sums.most)
        found_waiting = counts * (opened / awake)
        self.step = transitions(self.sums, self.grid, self.left_over, found_waiting)
        self.awake = awake
        self.decodes, self.duration, self.counts = decodes, awake, counts
        self.selected = found_waiting.copy()
        self.alone: dict[int, tuple[float, Array]] = {}
        for k in np.flatnonzero(self.asleep > 0.0):
            rest = 1.0 / (
                float(self.scale[k]) * rate * float(_gate(-self.present[k] * np.ones(1), spread[k], self.replicas)[0])
            )
            h = self.asleep[k]
            p = h * awake[k, 0] / (h * awake[k, 0] + (1.0 - h) * rest)
            alone = single_prompt(law.prefill, law.probability, self.grid[k])
            self.step[k, 0] = (1 - p) * self.step[k, 0] + p * alone
            self.alone[int(k)] = (p, alone)
            self.idle[k] = p / (p + (1 - p) * counts[k, 0])
            self.duration[k, 0] = (1 - p) * awake[k, 0] + p * rest
            self.counts[k, 0] = (1 - p) * counts[k, 0] + p
            self.selected[k, 0] *= 1 - p
            self.decodes[k, 0] *= 1 - p
        self.law = stationary(self.step)
        self.mean = np.einsum("kj,kj->k", self.law, self.duration)
        self.left = np.einsum("kj,kj->k", self.law, self.decodes) / (self.steps * self.mean)

    def beside(self) -> Array:
        """Rate of further arrivals at a replica that has just been sent one, over the mean rate, shape (chains, J)."""
        spread = (self.variance + self.between)[:, None, None]
        x = self.apart[:, :, None] + np.sqrt(self.variance)[:, None, None] * _NODES
        gate = _gate(x, spread, self.replicas)
        rate: Array = (gate * _gate(x + 1.0, spread, self.replicas)) @ _WEIGHTS / np.maximum(gate @ _WEIGHTS, 1e-9)
        return rate

    def settle(self) -> None:
        """What the chains make of the law of ``x`` given the backlog."""
        law, rate, steps, present = self.law, self.rate, self.steps, self.present[:, None]
        came = np.einsum("kj,kj->k", law, self.counts)
        self.scale = np.clip(self.scale * rate * self.mean / came, 0.2, 5.0)
        joining = transitions(self.sums, self.grid, self.left_over, self.selected, one_more=True)
        joining *= self.selected[:, :, None]
        for k, (p, alone) in self.alone.items():
            joining[k, 0] += p * alone
        forward, join = np.swapaxes(self.step, 1, 2), np.swapaxes(joining, 1, 2)
        size = self.grid.shape[1]
        weight = law * self.duration / self.mean[:, None]
        usual = law > RARE
        # of the prompts behind a backlog that is cut, the share of its tokens is left, the one at its head for sure
        share = np.where(self.left_over > 0.0, self.left_over / np.maximum(self.grid, 1e-9), 0.0)
        source = _apply(forward, law * (1.0 - share) * (share > 0.0)) + _apply(join, law)
        carried = np.linalg.solve(np.eye(size) - forward * share[:, None, :], source[:, :, None])[:, :, 0]
        waiting = np.clip(_quotient(carried, law, usual), 0.0, present + 3.0 * np.sqrt(self.variance)[:, None])
        waiting[:, 0] = 0.0
        # the mean of x: implicit in what slows arrivals down, so that a step of the fixed point may be whole
        drift = (rate - self.left)[:, None]
        answer = (self.scale * rate)[:, None] * self.duration * self.slope
        departures = (present - self.waiting) / steps
        departures[:, 0] = self.decodes[:, 0] / steps - self.apart[:, 0] / self.own / steps
        moved = self.own * (departures + drift * self.duration)
        # what the router keeps from this replica goes to the others: their mean rises
        moved -= (1.0 - self.own) * (self.counts - rate * self.duration)
        source = _apply(forward, law * (-moved - self.found * self.selected - answer * self.apart))
        source += _apply(join, law * (self.own + self.found * self.selected / np.maximum(self.counts, 1e-300)))
        system = np.eye(size) - forward * (1.0 - 1.0 / steps + answer)[:, None, :]
        apart = _quotient(np.linalg.solve(system, source[:, :, None])[:, :, 0], law, usual)
        apart -= np.einsum("kj,kj->k", weight, apart)[:, None]
        apart = np.clip(apart, -present, 40.0)
        self.apart, self.waiting = 0.5 * (self.apart + apart), 0.5 * (self.waiting + waiting)
        self._spread(weight, drift)
        # nothing at all is at a replica for part of the time that its backlog is empty
        scale = np.sqrt(np.minimum(self.variance + self.between, np.maximum(self.present, 0.05)))
        nothing = normal_cdf((0.5 - self.present) / scale) if self.tagged == 0.0 else np.zeros_like(scale)
        self.asleep = np.where(nothing > 1e-4, np.clip(nothing / np.maximum(weight[:, 0], 1e-9), 0.0, 0.98), 0.0)

    def _spread(self, weight: Array, drift: Array) -> None:
        """Variance of ``x``: what pushes it apart is made good by the gate."""
        law, apart, steps = self.law, self.apart, self.steps
        self.between = np.einsum("kj,kj->k", weight, apart**2)
        net = self.counts - self.decodes / steps - drift * self.duration
        jumps = self.counts + self.decodes / steps + net * net
        # the stalls of the others move their mean, and deviations sum to zero: E[x_j net_i] = -E[x_i net_i]/(g - 1)
        push = np.einsum("kj,kj->k", law, self.own * jumps + 2.0 * net * apart)
        more = self.cost(self.tagged + self.decodes + 0.5, self.prefill)
        less = self.cost(self.tagged + np.maximum(self.decodes - 0.5, 0.0), self.prefill)
        restoring = np.einsum("kj,kj->k", law, 1.0 / steps - self.rate * self.kappa * (more - less))
        per = self.rate * self.mean
        found = _variance_of(push / (2.0 * per), restoring / per, self.between, self.replicas)
        self.variance = 0.5 * (self.variance + np.minimum(found, np.maximum(4.0 * self.present, 0.3)))


def _apply(matrices: Array, vectors: Array) -> Array:
    """Stacked matrices times stacked vectors."""
    product: Array = (matrices @ vectors[:, :, None])[:, :, 0]
    return product


def _quotient(carried: NDArray[np.floating[Any]], law: Array, usual: NDArray[np.bool_]) -> Array:
    """``carried/law``, beyond the last usual backlog its value there."""
    value: Array = carried / np.where(usual, law, np.inf)
    for k in range(law.shape[0]):
        last = int(np.flatnonzero(usual[k])[-1])
        value[k, last + 1 :] = value[k, last]
    return value


def _centred(sums: PromptSums, cost: BatchCost, budget: float, rate: float, replicas: int, guess: float) -> _Round:
    """The fixed point at the pool's mean at which as many requests leave as come, and that mean."""
    scan = _Round(sums, cost, budget, np.minimum(guess * SCAN, 0.98 * budget), rate, replicas)
    scan.build()
    at, left = np.log(scan.present), np.maximum.accumulate(np.log(scan.left)) + 1e-6 * np.arange(SCAN.size)
    centre = float(np.interp(np.log(rate), left, at))
    state = None
    for _ in range(ROUNDS):
        fresh = _Round(sums, cost, budget, np.array([np.exp(centre)]), rate, replicas)
        if state is not None:
            fresh.like(state)
        state = fresh
        state.build()
        state.settle()
        near = np.clip(np.searchsorted(at, centre), 1, at.size - 1)
        elasticity = np.clip((left[near] - left[near - 1]) / (at[near] - at[near - 1]), 0.15, 1.5)
        # of a batch that prompts fill nobody may leave
        excess = np.log(max(state.left[0] / rate, 1e-9))
        centre = float(min(centre - np.clip(excess / elasticity, -0.5, 0.5), np.log(0.98 * budget)))
    assert state is not None
    return state


def steered_backlog(
    sums: PromptSums, cost: BatchCost, budget: float, rate: float, replicas: int, guess: float
) -> tuple[Steered, Backlog]:
    """Backlog chains of a replica of a pool that two choices keep even.

    Parameters
    ----------
    sums, cost, budget
        As in :func:`planner.queueing.mixed.backlog.solve_backlog`.
    rate : float
        Arrival rate of one replica [1/s].
    replicas : int
        g >= 2.
    guess : float
        A pool mean to start from: requests in flight per replica, > 0.

    Returns
    -------
    Steered, Backlog
        And the chains beside one more request that decodes all the while.
    """
    first = _centred(sums, cost, budget, rate, replicas, guess)
    present = np.minimum(first.present[0] * POOL_NODES, 0.98 * budget * np.array([0.6, 0.7, 0.8, 0.9, 1.0]))
    state = _Round(sums, cost, budget, present, rate, replicas)
    state.like(first)
    state.build()
    state.settle()
    shared = common_backlog(cost, budget, float(first.present[0]), rate * sums.law.mean_prefill, replicas)
    state.build(shared=shared)
    followed = _Round(sums, cost, budget, present, rate, replicas, 1.0)
    followed.like(first)
    # beside one that stays, the others of a pool at its mean are fewer by it, and more by size bias
    spread = state.variance + state.between
    missing = np.clip(1.0 - spread / np.maximum(present, 0.1), 0.0, 1.0)
    departures = state.left + np.gradient(state.left, present) * missing
    lives = first.steps * rate * first.mean[0] / np.sqrt(np.pi * spread[2]) / first.own
    share = first.own * (1.0 - float(time_average(np.array(lives))) ** 2)
    followed.build((share, np.maximum(departures / rate, 0.05), state.mean), shared)
    found = Steered(
        present,
        _backlog(state),
        _busy(state),
        state.apart,
        state.waiting,
        state.variance,
        state.variance + state.between,
        state.counts,
        state.apart + state.found,
        np.maximum(state.found_variance, 0.0),
        state.beside(),
        state.idle,
        state.left,
    )
    return found, _backlog(followed)


def common_backlog(cost: BatchCost, budget: float, decodes: float, prefill_per_s: float, replicas: int) -> float:
    r"""Share of a replica's backlog that is the pool's: :math:`C(g, g\rho)/(g\rho)` with the load of the budget.

    A pool has a backlog where all its replicas do, and one replica's share of it is 1/g; of a pool of one it is all.

    Parameters
    ----------
    cost, budget
        As in :func:`planner.queueing.mixed.backlog.solve_backlog`.
    decodes : float
        Decodes of a replica.
    prefill_per_s : float
        Prompt tokens a replica is sent [tokens/s].
    replicas : int
        g >= 2.

    Returns
    -------
    float
        In [0, 1].
    """
    room = max(budget - decodes, 1.0)
    load = prefill_per_s * float(cost(decodes, room)) / room
    busy = replicas * min(load, MOST_LOAD)
    return float(erlang_c(float(replicas), busy)) / busy


def _busy(state: _Round) -> Backlog:
    """The chains without the times at which a replica has nothing at all."""
    law = state.law.copy()
    for k, (p, _) in state.alone.items():
        law[k, 0] *= 1.0 - p
    law /= law.sum(axis=1, keepdims=True)
    return Backlog(state.grid, law, state.awake, state.prefill, state.step, state.room, state.full)


def _backlog(state: _Round) -> Backlog:
    return Backlog(state.grid, state.law, state.duration, state.prefill, state.step, state.room, state.full)
