"""Latency of a replica or a pool whose slots advance in common iterations: TTFT, TPOT, ITL and E2E at any quantile.

A request that joins when n others are active lives in iterations of t(n + 1): the others it sees, counted per
iteration, follow the same product form as the ones its arrival found. TTFT is the rest of the running iteration, the
prefill's iterations at the occupancy found and, when every slot was busy, the wait for one. All these are mixed and
convolved, never added as percentiles: a law is kept as a mixture of uniform pieces, whose distribution function is
piecewise linear and inverted exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.queueing.occupancy import (
    Occupancy,
    OccupancyChain,
    iteration_times,
    pooled,
    replica_dispersion,
)

__all__ = ["PoolLatency", "ReplicaLatency", "mixture_quantiles", "pool_latency"]

FloatArray = NDArray[np.float64]

DEFAULT_QUANTILES = (0.5, 0.9, 0.99)

# Probabilities at which the occupancy is cut into strata (fine in both tails, where the quantiles are read).
_STRATA = np.array(
    [0.0, 0.005, 0.02, 0.06, 0.12, 0.2, 0.28, 0.36, 0.44, 0.52, 0.6, 0.68, 0.76, 0.83, 0.885, 0.925, 0.955, 0.975,
     0.987, 0.994, 0.998, 0.9995, 1.0]
)  # fmt: skip
# Survival probabilities at which the wait of the delayed is cut.
_WAIT_SURVIVAL = np.array([1.0, 0.8, 0.63, 0.5, 0.38, 0.28, 0.2, 0.14, 0.09, 0.05, 0.025, 0.01, 3e-3, 6e-4, 1e-4, 1e-6])
_WAIT_CELLS = 1024
_SHORTEST_MEMORY = (
    0.85  # with heavy third moments the tail does not shrink as the mean does: give back no more than this
)
_NO_WAIT = 1e-8  # a smaller probability of waiting changes no quantile anyone reads


def mixture_quantiles(start: ArrayLike, width: ArrayLike, weight: ArrayLike, levels: ArrayLike) -> FloatArray:
    r"""Quantiles of a mixture of uniform laws on [start, start + width].

    .. math:: F(x) = \sum_i w_i \min(\max((x - a_i) / d_i, 0), 1)

    is piecewise linear; its knots are sorted once and all levels are read off exactly.

    Parameters
    ----------
    start : array_like
        a, left ends [any unit].
    width : array_like
        d >= 0, lengths; 0 is a point mass [the same unit].
    weight : array_like
        w >= 0, normalized here [-].
    levels : array_like
        Probabilities in [0, 1] [-].

    Returns
    -------
    ndarray
        One value per level [the same unit].

    Examples
    --------
    >>> mixture_quantiles([0.0, 1.0], [1.0, 2.0], [0.5, 0.5], [0.25, 0.75, 1.0]).tolist()
    [0.5, 2.0, 3.0]
    """
    a = np.asarray(start, dtype=float).ravel()
    # a point mass becomes a very steep ramp; 1e-7 of its place keeps the running sum's rounding below 1e-8
    d = np.maximum(np.asarray(width, dtype=float).ravel(), 1e-7 * np.abs(a) + 1e-300)
    w = np.asarray(weight, dtype=float).ravel()
    knots = np.concatenate((a, a + d))
    slope = w / d
    order = np.argsort(knots)
    x = knots[order]
    rising = np.cumsum(np.concatenate((slope, -slope))[order])
    cdf = np.empty(len(x))
    cdf[0] = 0.0
    np.cumsum(rising[:-1] * np.diff(x), out=cdf[1:])
    np.maximum.accumulate(cdf, out=cdf)
    total = cdf[-1]
    values: FloatArray = np.interp(np.asarray(levels, dtype=float) * total, cdf, x)
    return values


def _groups(values: FloatArray, weight: FloatArray, count: int) -> tuple[FloatArray, FloatArray]:
    """At most about `count` groups of equal values, or of neighbours (mean value), finer towards the upper tail."""
    order = np.argsort(values, kind="stable")
    v, w = values[order], weight[order]
    new = np.concatenate(([True], np.diff(v) > 0))
    index = np.cumsum(new) - 1
    mass: FloatArray = np.bincount(index, w).astype(float)
    v = v[new]
    keep = mass > 0
    v, mass = v[keep], mass[keep]
    if len(v) > count:
        upper = np.cumsum(mass) - 0.5 * mass
        body = np.linspace(0.0, 1.0, max(count * 2 // 3, 2))[1:-1]
        tail = 1.0 - np.geomspace(0.08, 5e-4, max(count // 3, 2))
        edges = np.unique(np.concatenate((body, tail)))
        index = np.searchsorted(edges, upper)
        total: FloatArray = np.bincount(index, mass).astype(float)
        mean = np.bincount(index, mass * v)
        used = total > 0
        v, mass = mean[used] / total[used], total[used]
    return v, mass


def _persistence(iterations: FloatArray, memory: float) -> FloatArray:
    r"""Standard deviation of the mean of an exponentially correlated process over that many steps, over its own.

    .. math:: \sqrt{2 (x - 1 + e^{-x}) / x^2}, \quad x = \text{iterations} / \text{memory}
    """
    x = np.maximum(iterations / memory, 1e-4)
    return np.sqrt(2.0 * (x + np.expm1(-x))) / x


@dataclass(frozen=True, slots=True, eq=False)
class PoolLatency:
    """Latency of a pool at one arrival rate.

    Attributes
    ----------
    quantiles : tuple of float
        Levels of the quantiles below [-].
    ttft_s, tpot_s, itl_s, e2e_s : ndarray
        Time to first token, time per output token (E2E - TTFT) / (output - 1), one gap between tokens, and end to
        end, at those levels; inf when not stable [s].
    mean_ttft_s, mean_tpot_s, mean_itl_s, mean_e2e_s : float
        Their means [s].
    slot_occupancy : float
        Mean busy slots / slots; 1.0 when not stable [-].
    mean_active : float
        Mean busy slots of a replica [slots].
    load : float
        lambda / X [-].
    margin : float
        1 - load [-].
    max_throughput : float
        X of the pool [1/s].
    throughput : float
        min(lambda, X) [1/s].
    wait_probability : float
        Probability that an arrival finds every slot busy; 1.0 when not stable [-].
    mean_delayed_wait_s : float
        Mean wait for a slot of those who wait; inf when not stable [s].
    prefill_load : float
        Load of the prefill queue where prefill shares a token budget, else 0 [-].
    stable : bool
        Whether a steady state exists [-].
    """

    quantiles: tuple[float, ...]
    ttft_s: FloatArray
    tpot_s: FloatArray
    itl_s: FloatArray
    e2e_s: FloatArray
    mean_ttft_s: float
    mean_tpot_s: float
    mean_itl_s: float
    mean_e2e_s: float
    slot_occupancy: float
    mean_active: float
    load: float
    margin: float
    max_throughput: float
    throughput: float
    wait_probability: float
    mean_delayed_wait_s: float
    prefill_load: float
    stable: bool


def _law(
    input_tokens: ArrayLike, output_tokens: ArrayLike, weight: ArrayLike | None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    inputs = np.atleast_1d(np.asarray(input_tokens, dtype=float))
    outputs = np.atleast_1d(np.asarray(output_tokens, dtype=float))
    weights = np.ones_like(inputs) if weight is None else np.atleast_1d(np.asarray(weight, dtype=float))
    for name, array in (("input_tokens", inputs), ("output_tokens", outputs), ("weight", weights)):
        if array.ndim != 1 or len(array) != len(inputs) or len(array) == 0:
            raise ValueError(f"{name} must be a list of the same length as input_tokens, not of shape {array.shape}")
        if not np.all(np.isfinite(array)) or np.any(array < 0):
            raise ValueError(f"{name} must be >= 0 and finite")
    total = weights.sum()
    if total <= 0:
        raise ValueError("weight must not be all 0")
    return inputs, outputs, weights / total


class ReplicaLatency:
    """Everything about a replica's latency that does not depend on the arrival rate; build once, predict often.

    Parameters
    ----------
    input_tokens, output_tokens : array_like, shape (rows,)
        The requests' lengths; fractional rows are allowed, output below 1 counts as 1 [tokens].
    weight : array_like, shape (rows,), optional
        Share of the requests in each row (equal by default) [-].
    iteration_time : array_like, shape (slots + 1,)
        t(0..slots), time of an iteration with n active slots; t(0) is ignored [s].
    chunk : float
        Prompt tokens a prefill advances per iteration: per slot, or shared by all slots [tokens].
    prefill_per_token : float
        Time each prefill token adds to its iteration. 0: every prefilling slot advances one chunk per iteration and
        counts in t(n). > 0: one budget of `chunk` tokens per iteration, first come first served, shared by all
        prefilling slots, which hold a slot but do not count in t(n) [s/token].

    Raises
    ------
    ValueError
        Naming the argument that makes no sense.

    Examples
    --------
    >>> replica = ReplicaLatency([512.0], [200.0], iteration_time=iteration_times(64, 0.008, 0.00065), chunk=512)
    >>> at = replica.predict(4.49)
    >>> round(at.slot_occupancy, 2), (at.ttft_s * 1e3).round(0).tolist()
    (0.3, [51.0, 69.0, 87.0])
    """

    def __init__(
        self,
        input_tokens: ArrayLike,
        output_tokens: ArrayLike,
        weight: ArrayLike | None = None,
        *,
        iteration_time: ArrayLike,
        chunk: float,
        prefill_per_token: float = 0.0,
    ) -> None:
        inputs, outputs, weights = _law(input_tokens, output_tokens, weight)
        if not (np.isfinite(chunk) and chunk > 0):
            raise ValueError(f"chunk must be > 0 and finite, not {chunk!r}")
        if not (np.isfinite(prefill_per_token) and prefill_per_token >= 0):
            raise ValueError(f"prefill_per_token must be >= 0 and finite, not {prefill_per_token!r}")
        times = np.asarray(iteration_time, dtype=float)
        if times.ndim != 1 or len(times) < 2:
            raise ValueError(f"iteration_time must hold t(0..slots), not shape {times.shape}")
        self.slots = len(times) - 1
        self.iteration_time = times
        self.prefill_per_token = float(prefill_per_token)
        self.chunk = float(chunk)
        self._chains = {1: OccupancyChain(times, self.slots)}

        chunks = np.maximum(np.ceil(inputs / chunk), 1.0)
        outputs = np.maximum(outputs, 1.0)
        iterations = chunks + outputs
        self.mean_iterations = float(weights @ iterations)
        second = float(weights @ iterations**2)
        self.iterations_scv = max(second / self.mean_iterations**2 - 1.0, 0.0)
        self._chunks, self._chunk_weight = _groups(chunks, weights, 30)
        decodes = outputs > 1.0
        self._has_gaps = bool(weights @ decodes > 0)
        some = decodes if self._has_gaps else np.ones_like(decodes)
        self._gaps, self._gap_weight = _groups(np.maximum(outputs[some] - 1.0, 1.0), weights[some], 24)
        self._lives, self._life_weight = _groups(iterations, weights, 30)
        # law of the residual number of iterations: F_e is piecewise linear between the values of K
        k, mass = _groups(iterations, weights, 4096)
        self._k = np.concatenate(([0.0], k))
        alive = 1.0 - np.concatenate(([0.0], np.cumsum(mass)))
        self._residual_cdf = np.concatenate(([0.0], np.cumsum(alive[:-1] * np.diff(self._k)))) / self.mean_iterations
        self._residual_cdf /= self._residual_cdf[-1]
        self._mean_residual = second / (2.0 * self.mean_iterations)
        mid = 1.0 - 0.5 * (self._residual_cdf[1:] + self._residual_cdf[:-1])
        self._residual_integral = np.concatenate(([0.0], np.cumsum(mid * np.diff(self._k))))
        # share of arrival noise in the busy slots' variance: no feedback, and full feedback
        squares = float(np.sum(np.maximum(alive[:-1], 0.0) ** 2 * np.diff(self._k)))
        self._arrival_share = (squares / self.mean_iterations, 1.0 / (1.0 + self.iterations_scv))

    def max_throughput(self, replicas: int = 1) -> float:
        """Largest sustainable arrival rate X of a pool [1/s]."""
        return replicas * self._chains[1].max_work / self.mean_iterations

    def _chain(self, replicas: int) -> OccupancyChain:
        chain = self._chains.get(replicas)
        if chain is None:
            chain = self._chains[replicas] = OccupancyChain(self.iteration_time, self.slots, replicas)
        return chain

    def _times(self, active: FloatArray) -> FloatArray:
        """t at a real-valued number of active slots."""
        times: FloatArray = np.interp(np.maximum(active, 1.0), np.arange(self.slots + 1.0), self.iteration_time)
        return times

    def _delayed_wait(self, chain_slots: int, load: float) -> FloatArray:
        r"""Wait of the delayed at the survival probabilities `_WAIT_SURVIVAL` [iterations].

        Tijms, van Hoorn and Federgruen (1981): the smallest of c residual lives, then a geometric number of residuals
        of K / c.

        .. math:: W = Y_1 + \sum_{i=1}^{M} Y_i, \quad P(Y_1 > x) = (1 - F_e(x))^c, \quad P(Y_i \le x) = F_e(c x),
                  \quad P(M = m) = (1 - \rho) \rho^m
        """
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
        edges: FloatArray = np.interp(-_WAIT_SURVIVAL, -np.concatenate(([1.0], survival)), np.concatenate((x, [span])))
        edges[0] = 0.0
        return edges * self._short_memory(chain_slots, load)

    def _short_memory(self, chain_slots: int, load: float) -> float:
        r"""What is left of the variability of K within the time a queue lasts [-].

        A queue before c servers comes and goes within :math:`T = 5 E[K] / ((1 - \rho) \sqrt{c - 1})`; until then their
        departures look Poisson, and only lives shorter than T show. The mean of Y_i is multiplied by

        .. math:: \frac{E[\min(K_e, T)]}{E[K_e]} \, \frac{1}{1 - e^{-T / E[K]}}

        The 5 was fitted to exact M/H2/c waits (c = 16..256, scv 4, balanced means); c = 1 stays Pollaczek-Khinchine.
        """
        if chain_slots == 1:
            return 1.0
        horizon = 5.0 / ((1.0 - load) * np.sqrt(chain_slots - 1.0))
        at = horizon * self.mean_iterations
        # E min(K_e, T) = integral of 1 - F_e up to T
        left = float(np.interp(at, self._k, self._residual_integral))
        later = left / self.mean_iterations / -float(np.expm1(-horizon))
        whole = self._mean_residual / self.mean_iterations
        factor = (1.0 - load + load * min(later, max(whole, 1.0))) / (1.0 - load + load * whole)
        return float(max(factor, _SHORTEST_MEMORY))

    def predict(
        self,
        arrival_rate: float,
        replicas: int = 1,
        routing: str = "random",
        quantiles: ArrayLike = DEFAULT_QUANTILES,
        dispersion: float = 1.0,
    ) -> PoolLatency:
        """Latency of a pool of such replicas.

        Parameters
        ----------
        arrival_rate : float
            lambda of the whole pool [1/s].
        replicas : int
            g [replicas].
        routing : str
            ``"random"``, ``"rr"``, ``"jsq"`` or ``"central"`` [-].
        quantiles : array_like
            Levels in [0, 1) [-].
        dispersion : float
            Index of dispersion of the pool's arrival counts at the relaxation time, 1 for Poisson [-].

        Returns
        -------
        PoolLatency
            Quantiles and means; inf and 1.0 where no steady state exists.
        """
        levels = np.atleast_1d(np.asarray(quantiles, dtype=float))
        if levels.ndim != 1 or np.any(~((levels >= 0) & (levels < 1))):
            raise ValueError(f"quantiles must be in [0, 1), not {quantiles!r}")
        if not (np.isfinite(arrival_rate) and arrival_rate >= 0):
            raise ValueError(f"arrival_rate must be >= 0 and finite, not {arrival_rate!r}")
        if int(replicas) != replicas or replicas < 1:
            raise ValueError(f"replicas must be a whole number >= 1, not {replicas!r}")
        if not (np.isfinite(dispersion) and dispersion >= 0):
            raise ValueError(f"dispersion must be >= 0 and finite, not {dispersion!r}")
        replicas = int(replicas)
        one_chain = pooled(routing)
        chain = self._chain(replicas if one_chain else 1)
        chain_rate = float(arrival_rate) if one_chain else float(arrival_rate) / replicas
        seen = replica_dispersion(float(dispersion), replicas, routing)
        work = chain_rate * self.mean_iterations
        # feedback of the occupancy on itself: the part of t(n) that grows with n
        load = work / chain.max_work
        stretch = 1.0 - self.iteration_time[1] / self.iteration_time[-1] if self.slots > 1 else 0.0
        none, full = self._arrival_share
        share = none + (full - none) * min(load, 1.0) * stretch
        peakedness = max(1.0 + (seen - 1.0) * share, 0.05)
        occupied = chain.solve(work, peakedness)
        name_levels = tuple(float(q) for q in levels)
        if not occupied.stable:
            return self._overloaded(name_levels, occupied, replicas // chain.replicas)
        return self._assemble(
            name_levels, levels, occupied, chain, chain_rate, float(arrival_rate), replicas, seen, routing
        )

    def _overloaded(self, names: tuple[float, ...], occupied: Occupancy, chains: int) -> PoolLatency:
        infinite = np.full(len(names), np.inf)
        most = occupied.max_throughput * chains / self.mean_iterations
        slow = np.full(len(names), self.iteration_time[-1])
        return PoolLatency(
            quantiles=names, ttft_s=infinite, tpot_s=slow, itl_s=slow, e2e_s=infinite,
            mean_ttft_s=float("inf"), mean_tpot_s=float(slow[0]), mean_itl_s=float(slow[0]), mean_e2e_s=float("inf"),
            slot_occupancy=1.0, mean_active=float(self.slots), load=occupied.load, margin=occupied.margin,
            max_throughput=most, throughput=most, wait_probability=1.0, mean_delayed_wait_s=float("inf"),
            prefill_load=0.0, stable=False,
        )  # fmt: skip

    def _assemble(
        self,
        names: tuple[float, ...],
        levels: FloatArray,
        occupied: Occupancy,
        chain: OccupancyChain,
        chain_rate: float,
        arrival_rate: float,
        replicas: int,
        seen: float,
        routing: str,
    ) -> PoolLatency:
        g = chain.replicas
        c = chain.slots * g
        probability = occupied.probability
        states = np.arange(occupied.first, occupied.first + len(probability), dtype=float)
        mean = float(probability @ states)
        variance = float(probability @ states**2) - mean**2
        delayed = occupied.all_busy
        if routing == "jsq":
            # the pool may hold as many requests as slots while one replica has a queue and another a free slot: every
            # replica is full only once about g (1 - rho) requests queue
            delayed *= occupied.load ** ((g - 1.0) * (1.0 - occupied.load))
        memory = self.mean_iterations * 0.5 * (1.0 + self.iterations_scv) * max(variance / mean, 0.05) if mean else 1.0

        # --- strata of the number an arrival finds, the delayed apart
        free = probability[:-1] if states[-1] == c else probability
        found, spread, mass, idle = _strata(states[: len(free)], free, g)
        others = (found + 1.0) / g - 1.0  # a tagged request is one of the found + 1
        centre = (mean + 1.0) / g - 1.0
        width = spread / g
        last = float(self.slots - 1)

        t_found = self._times(found / g)
        crowd = chain_rate * float(occupied.throughput and self._times(np.array([mean / g]))[0])
        # under pooled routing half of the arrivals fill the place of a request that just left, at the start of an
        # iteration: the residual is then more than uniform
        rest_from = 0.0
        if g > 1:
            x = max(crowd, 1e-6)
            age = 1.0 / x - 1.0 / np.expm1(min(x, 700.0)) if x > 1e-3 else 0.5
            rest_from = 2.0 * (0.25 + 0.5 * (1.0 - age)) - 1.0
        rest_start = np.where(idle, 0.0, rest_from * t_found)
        rest_width = np.where(idle, 0.0, (1.0 - rest_from) * t_found)

        def lives(count: FloatArray) -> FloatArray:
            keep = _persistence(count, memory)
            return count[:, None] * self._times(1.0 + centre + (others - centre)[None, :] * keep[:, None])

        def ends(count: FloatArray) -> FloatArray:
            keep = _persistence(count, memory)
            return count * self._times(1.0 + centre + (last - centre) * keep)

        t_full = float(self.iteration_time[-1])
        mean_delay = 0.0
        pieces = []
        waits = delayed > _NO_WAIT
        if waits:
            burst = (max(seen, 0.0) + self.iterations_scv) / (1.0 + self.iterations_scv)
            if routing == "jsq":
                # the queue is the replica's own: every g-th request that waits in the pool, one replica's slots
                edges = self._delayed_wait(chain.slots, occupied.load**g)
            else:
                edges = self._delayed_wait(c, occupied.load)
            edges *= t_full * burst
            wait_mass = -np.diff(_WAIT_SURVIVAL, append=0.0)[:-1]
            wait_mass = wait_mass / wait_mass.sum()
            wait_start, wait_width = edges[:-1], np.diff(edges)
            mean_delay = float(wait_mass @ (wait_start + 0.5 * wait_width))
        for count, weight in ((self._chunks + 1.0, self._chunk_weight), (self._lives, self._life_weight)):
            total = lives(count) + rest_start[None, :]
            start, long, part = (
                [total.ravel()],
                [np.broadcast_to(rest_width, total.shape).ravel()],
                [np.outer(weight, mass * (1.0 - delayed)).ravel()],
            )
            if waits:
                total = ends(count)[:, None] + wait_start[None, :]
                start.append(total.ravel())
                long.append(np.broadcast_to(wait_width + t_full, total.shape).ravel())
                part.append(np.outer(weight, wait_mass * delayed).ravel())
            a, d, w = np.concatenate(start), np.concatenate(long), np.concatenate(part)
            pieces.append((mixture_quantiles(a, d, w, levels), float(w @ (a + 0.5 * d) / w.sum())))
        (ttft, mean_ttft), (e2e, mean_e2e) = pieces

        # --- decode: every request, the delayed among those who found all other slots busy
        all_others = np.concatenate((others, [last])) if waits else others
        all_width = np.concatenate((width, [0.0])) if waits else width
        all_mass = np.concatenate((mass * (1.0 - delayed), [delayed])) if waits else mass
        itl_low = self._times(1.0 + all_others - 0.5 * all_width)
        itl_high = self._times(1.0 + all_others + 0.5 * all_width)
        itl = mixture_quantiles(itl_low, itl_high - itl_low, all_mass, levels)
        mean_itl = float(all_mass @ (itl_low + itl_high)) / (2.0 * float(all_mass.sum()))
        if self._has_gaps:
            keep = _persistence(self._gaps, memory)[:, None]
            middle = 1.0 + centre + (all_others - centre)[None, :] * keep
            half = 0.5 * all_width[None, :] * keep
            low, high = self._times(middle - half), self._times(middle + half)
            weight = np.outer(self._gap_weight, all_mass)
            tpot = mixture_quantiles(low, high - low, weight, levels)
            mean_tpot = float(np.sum(weight * (low + high))) / (2.0 * float(weight.sum()))
        else:
            tpot, mean_tpot = np.zeros(len(levels)), 0.0
        chains = replicas // g
        return PoolLatency(
            quantiles=names, ttft_s=ttft, tpot_s=tpot, itl_s=itl, e2e_s=e2e,
            mean_ttft_s=mean_ttft, mean_tpot_s=mean_tpot, mean_itl_s=mean_itl, mean_e2e_s=mean_e2e,
            slot_occupancy=occupied.slot_occupancy, mean_active=occupied.mean_active, load=occupied.load,
            margin=occupied.margin, max_throughput=occupied.max_throughput * chains / self.mean_iterations,
            throughput=arrival_rate, wait_probability=delayed, mean_delayed_wait_s=mean_delay, prefill_load=0.0,
            stable=True,
        )  # fmt: skip


def _strata(
    states: FloatArray, probability: FloatArray, replicas: int
) -> tuple[FloatArray, FloatArray, FloatArray, NDArray[np.bool_]]:
    """Cut the law of the number found into strata: middle, width, mass (sums to 1), and whether a replica was idle."""
    total = float(probability.sum())
    idle_count = int(np.searchsorted(states, float(replicas)))
    parts = []
    for low, high, idle in ((0, idle_count, True), (idle_count, len(states), False)):
        p = probability[low:high] / total
        n = states[low:high]
        p_sum = float(p.sum())
        if p_sum <= 0.0:
            continue
        if len(n) <= 28:
            parts.append(
                (n, np.ones(len(n)) if replicas > 1 or not idle else np.zeros(len(n)), p, np.full(len(n), idle))
            )
            continue
        cumulative = np.concatenate(([0.0], np.cumsum(p)))
        cumulative /= cumulative[-1]
        edges = np.interp(_STRATA, cumulative, np.concatenate((n - 0.5, [n[-1] + 0.5])))
        parts.append(
            (0.5 * (edges[1:] + edges[:-1]), np.diff(edges), np.diff(_STRATA) * p_sum, np.full(len(edges) - 1, idle))
        )
    found, width, mass, idle_flag = (np.concatenate(column) for column in zip(*parts, strict=True))
    return found, width, mass, idle_flag


def pool_latency(
    arrival_rate: float,
    replicas: int,
    slots: int,
    fixed_time: float = 0.0,
    time_per_slot: float = 0.0,
    *,
    input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    weight: ArrayLike | None = None,
    chunk: float,
    prefill_per_token: float = 0.0,
    iteration_time: ArrayLike | None = None,
    routing: str = "random",
    quantiles: ArrayLike = DEFAULT_QUANTILES,
    dispersion: float = 1.0,
) -> PoolLatency:
    """Latency of a pool in one call; see `ReplicaLatency` for many rates.

    Parameters
    ----------
    arrival_rate : float
        lambda of the whole pool [1/s].
    replicas : int
        g [replicas].
    slots : int
        Slots per replica [slots].
    fixed_time, time_per_slot : float
        W and H of t(n) = W + H n, unless `iteration_time` is given [s].
    input_tokens, output_tokens, weight, chunk, prefill_per_token
        See `ReplicaLatency`.
    iteration_time : array_like, shape (slots + 1,), optional
        t(0..slots) in place of W + H n [s].
    routing, quantiles, dispersion
        See `ReplicaLatency.predict`.

    Returns
    -------
    PoolLatency
        Quantiles and means.

    Examples
    --------
    >>> at = pool_latency(24.2, 8, 16, 0.008, 0.00065, input_tokens=[512], output_tokens=[200], chunk=512, routing="jsq")
    >>> round(at.slot_occupancy, 2), at.stable
    (0.51, True)
    """
    if iteration_time is None:
        times = iteration_times(slots, fixed_time, time_per_slot)
    else:
        times = np.asarray(iteration_time, dtype=float)
        if times.shape != (slots + 1,):
            raise ValueError(f"iteration_time must have slots + 1 = {slots + 1} entries, not shape {times.shape}")
    replica = ReplicaLatency(
        input_tokens, output_tokens, weight, iteration_time=times, chunk=chunk, prefill_per_token=prefill_per_token
    )
    return replica.predict(arrival_rate, replicas, routing, quantiles, dispersion)
