"""Latency of a replica or a pool whose slots advance in common iterations: TTFT, TPOT and E2E at any quantile.

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

from planner.queueing.mixture import groups, mixture_quantiles, persistence, strata
from planner.queueing.slots.chain import Occupancy, OccupancyChain, pooled, replica_dispersion
from planner.queueing.slots.wait import WAIT_SURVIVAL, SlotWait

FloatArray = NDArray[np.float64]

DEFAULT_QUANTILES = (0.5, 0.9, 0.99)

POINTS = 4096
"""Requests by which the dependence between latencies is told."""

STEPS = np.array([0.8191725133961645, 0.6710436067037893, 0.5497004779019703])
"""Of an additive recurrence that is even in three dimensions."""

_NO_WAIT = 1e-8  # a smaller probability of waiting changes no quantile anyone reads


def _law(
    input_tokens: ArrayLike, output_tokens: ArrayLike, weight: ArrayLike | None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Checked columns, weights that sum to 1."""
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


@dataclass(frozen=True, slots=True, eq=False)
class PoolLatency:
    """Latency of a pool at one arrival rate.

    Attributes
    ----------
    quantiles : tuple of float
        Levels of the quantiles below [-].
    ttft_s, tpot_s, e2e_s : ndarray
        Time to first token, time per output token (E2E - TTFT) / (output - 1) and end to end, at those levels; inf
        when not stable [s].
    mean_ttft_s, mean_tpot_s, mean_e2e_s : float
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
    stable : bool
        Whether a steady state exists [-].
    requests : tuple of ndarray
        TTFT, TPOT (NaN where there is none) and E2E of the same requests [s], each of shape (points,), if asked for.
    """

    quantiles: tuple[float, ...]
    ttft_s: FloatArray
    tpot_s: FloatArray
    e2e_s: FloatArray
    mean_ttft_s: float
    mean_tpot_s: float
    mean_e2e_s: float
    slot_occupancy: float
    mean_active: float
    load: float
    margin: float
    max_throughput: float
    throughput: float
    wait_probability: float
    mean_delayed_wait_s: float
    stable: bool
    requests: tuple[FloatArray, ...] = ()


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
        Prompt tokens every prefilling slot advances per iteration; it counts in t(n) [tokens].

    Raises
    ------
    ValueError
        Naming the argument that makes no sense.

    Examples
    --------
    >>> replica = ReplicaLatency([512.0], [200.0], iteration_time=0.008 + 0.00065 * np.arange(65), chunk=512)
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
    ) -> None:
        inputs, outputs, weights = _law(input_tokens, output_tokens, weight)
        if not (np.isfinite(chunk) and chunk > 0):
            raise ValueError(f"chunk must be > 0 and finite, not {chunk!r}")
        times = np.asarray(iteration_time, dtype=float)
        if times.ndim != 1 or len(times) < 2:
            raise ValueError(f"iteration_time must hold t(0..slots), not shape {times.shape}")
        self.slots = len(times) - 1
        self.iteration_time = times
        # t(n) = W + H n needs no table
        self._slope: float | None = float(times[-1] - times[1]) / max(self.slots - 1, 1)
        self._intercept = float(times[1]) - self._slope
        straight = self._intercept + self._slope * np.arange(1.0, self.slots + 1.0)
        if not np.allclose(straight, times[1:], rtol=1e-12, atol=0.0):
            self._slope = None
        self.chunk = float(chunk)
        self._chains = {1: OccupancyChain(times, self.slots)}

        chunks = np.maximum(np.ceil(inputs / chunk), 1.0)
        outputs = np.maximum(outputs, 1.0)
        iterations = chunks + outputs
        self.mean_iterations = float(weights @ iterations)
        second = float(weights @ iterations**2)
        self.iterations_scv = max(second / self.mean_iterations**2 - 1.0, 0.0)
        self._chunks, self._chunk_weight = groups(chunks, weights, 24)
        decodes = outputs > 1.0
        order = np.argsort(iterations, kind="stable")
        self._rows = chunks[order], outputs[order] - 1.0, np.cumsum(weights[order])
        self._has_gaps = bool(weights @ decodes > 0)
        some = decodes if self._has_gaps else np.ones_like(decodes)
        self._gaps, self._gap_weight = groups(np.maximum(outputs[some] - 1.0, 1.0), weights[some], 14)
        self._lives, self._life_weight = groups(iterations, weights, 22)
        self._wait = SlotWait(iterations, weights)
        # share of arrival noise in the busy slots' variance: no feedback, and full feedback
        self._arrival_share = (self._wait.overlap, 1.0 / (1.0 + self.iterations_scv))

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
        if self._slope is not None:
            return self._intercept + self._slope * np.clip(active, 1.0, float(self.slots))
        times: FloatArray = np.interp(np.maximum(active, 1.0), np.arange(self.slots + 1.0), self.iteration_time)
        return times

    def predict(
        self,
        arrival_rate: float,
        replicas: int = 1,
        routing: str = "random",
        quantiles: ArrayLike = DEFAULT_QUANTILES,
        dispersion: float = 1.0,
        together: bool = False,
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
        together : bool
            Whether latencies of the same requests are wanted too.

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
        name_levels = tuple(float(q) for q in levels)
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
        if not occupied.stable:
            return self._overloaded(name_levels, occupied, replicas // chain.replicas)
        return self._assemble(
            name_levels,
            levels,
            occupied,
            chain,
            chain_rate,
            float(arrival_rate),
            replicas,
            seen,
            routing,
            peakedness,
            together,
        )

    def _overloaded(self, names: tuple[float, ...], occupied: Occupancy, chains: int) -> PoolLatency:
        infinite = np.full(len(names), np.inf)
        most = occupied.max_throughput * chains / self.mean_iterations
        slow = np.full(len(names), self.iteration_time[-1])
        return PoolLatency(
            quantiles=names, ttft_s=infinite, tpot_s=slow, e2e_s=infinite,
            mean_ttft_s=float("inf"), mean_tpot_s=float(slow[0]), mean_e2e_s=float("inf"),
            slot_occupancy=1.0, mean_active=float(self.slots), load=occupied.load, margin=occupied.margin,
            max_throughput=most, throughput=most, wait_probability=1.0, mean_delayed_wait_s=float("inf"),
            stable=False,
        )  # fmt: skip

    def _found(self, states: FloatArray, probability: FloatArray, replicas: int) -> tuple[FloatArray, FloatArray]:
        r"""What arrivals find where they are not Poisson: every level is crossed upwards as often as downwards.

        .. math:: \lambda P(\text{find } n) = \pi(n + 1) \mu(n + 1), \qquad \mu(n) = n / (E[K] t(n))

        It is also the law of the others a request shares its iterations with, counted per iteration.
        """
        if len(states) < 2:
            return states, probability
        rates = states / self._times(states / replicas)
        flow = probability * rates
        if states[-1] != self.slots * replicas:
            return states[:-1], flow[1:] / flow[1:].sum()
        # P(>= c) / P(c - 1) = x / (1 - x), x the ratio of the states beyond the last slot
        odds = probability[-1] / probability[-2]
        beyond = np.append(flow[1:], flow[-1] * odds / (1.0 + odds))
        beyond[-2] /= 1.0 + odds
        return states, beyond / beyond.sum()

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
        peaked: float,
        together: bool,
    ) -> PoolLatency:
        """TTFT, TPOT and E2E as mixtures over requests and the number found, those that wait for a slot apart."""
        g = chain.replicas
        c = chain.slots * g
        probability = occupied.probability
        states = np.arange(occupied.first, occupied.first + len(probability), dtype=float)
        mean = float(probability @ states)
        variance = float(probability @ states**2) - mean**2
        if peaked != 1.0:
            states, probability = self._found(states, probability, g)
        delayed = float(probability[-1]) if states[-1] == c else occupied.all_busy
        if routing == "jsq":
            # the pool may hold as many requests as slots while one replica has a queue and another a free slot: every
            # replica is full only once some of about g (1 - rho) requests queue (all of them: up to 30% optimistic)
            delayed *= occupied.load ** (0.5 * (g - 1.0) * (1.0 - occupied.load))
        memory = self.mean_iterations * 0.5 * (1.0 + self.iterations_scv) * max(variance / mean, 0.05) if mean else 1.0

        # --- strata of the number an arrival finds, the delayed apart
        free = probability[:-1] if states[-1] == c else probability
        found, spread, mass, idle = strata(states[: len(free)], free, g)
        others = (found + 1.0) / g - 1.0  # a tagged request is one of the found + 1
        centre = (float(probability @ states) + 1.0) / g - 1.0
        width = spread / g
        last = float(self.slots - 1)
        # a replica's own count is a whole number around the pool's mean; it changes with its own arrivals
        uneven = 1.0 if g > 1 else 0.0
        own_memory = max(self.mean_iterations / (mean / g + 1.0), 1.0)

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
            keep = persistence(count, memory)
            return count[:, None] * self._times(1.0 + centre + (others - centre)[None, :] * keep[:, None])

        def ends(count: FloatArray) -> FloatArray:
            keep = persistence(count, memory)
            return count * self._times(1.0 + centre + (last - centre) * keep)

        t_full = float(self.iteration_time[-1])
        mean_delay = 0.0
        pieces = []
        waits = delayed > _NO_WAIT
        if waits:
            burst = (max(seen, 0.0) + self.iterations_scv) / (1.0 + self.iterations_scv)
            if routing == "jsq":
                # the queue is the replica's own: every g-th request that waits in the pool, one replica's slots
                edges = self._wait.edges(chain.slots, occupied.load**g)
            else:
                edges = self._wait.edges(c, occupied.load)
            # slots free only between iterations: with several completions per iteration the first is not sooner
            leave = chain.slots / self.mean_iterations
            rounding = 0.5 + 1.0 / np.expm1(leave) - 1.0 / leave
            edges = t_full * (edges * burst + rounding)
            wait_mass = -np.diff(WAIT_SURVIVAL, append=0.0)[:-1]
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
            if uneven:
                own = 0.5 * uneven * persistence(count, own_memory)[:, None]
                more = 1.0 + others[None, :]
                slack = count[:, None] * (self._times(more + own) - self._times(more - own))
                start[0] = start[0] - 0.5 * slack.ravel()
                long[0] = long[0] + slack.ravel()
            if waits:
                total = ends(count)[:, None] + wait_start[None, :]
                start.append(total.ravel())
                long.append(np.broadcast_to(wait_width, total.shape).ravel())
                part.append(np.outer(weight, wait_mass * delayed).ravel())
            a, d, w = np.concatenate(start), np.concatenate(long), np.concatenate(part)
            pieces.append((mixture_quantiles(a, d, w, levels), float(w @ (a + 0.5 * d) / w.sum())))
        (ttft, mean_ttft), (e2e, mean_e2e) = pieces

        # --- decode: every request, the delayed among those who found all other slots busy
        all_others = np.concatenate((others, [last])) if waits else others
        all_width = np.concatenate((width, [0.0])) if waits else width
        all_mass = np.concatenate((mass * (1.0 - delayed), [delayed])) if waits else mass
        if self._has_gaps:
            keep = persistence(self._gaps, memory)[:, None]
            middle = 1.0 + centre + (all_others - centre)[None, :] * keep
            half = 0.5 * all_width[None, :] * keep + 0.5 * uneven * persistence(self._gaps, own_memory)[:, None]
            low, high = self._times(middle - half), self._times(middle + half)
            weight = np.outer(self._gap_weight, all_mass)
            tpot = mixture_quantiles(low, high - low, weight, levels)
            mean_tpot = float(np.sum(weight * (low + high))) / (2.0 * float(weight.sum()))
        else:
            tpot, mean_tpot = np.zeros(len(levels)), 0.0
        requests: tuple[FloatArray, ...] = ()
        if together:
            # points of all that is mixed above at once: lengths and the state found decide TTFT and TPOT of the same request
            u = ((np.arange(POINTS) + 0.5)[:, None] * STEPS % 1.0).T
            chunks, gaps, below = self._rows
            row = np.minimum(np.searchsorted(below, u[0] * below[-1]), below.size - 1)
            chunks, gaps = chunks[row], gaps[row]
            place = np.minimum(np.searchsorted(np.cumsum(all_mass), u[1] * all_mass.sum()), all_mass.size - 1)
            late = place == others.size
            state = all_others[place]

            def alive(count: FloatArray) -> FloatArray:
                return self._times(1.0 + centre + (state - centre) * persistence(count, memory))

            rest = np.append(rest_start, 0.0)[place] + u[2] * np.append(rest_width, 0.0)[place]
            if waits:
                rest = np.where(late, np.interp(u[2], np.append(0.0, np.cumsum(wait_mass)), edges), rest)
            first, step = (chunks + 1.0) * alive(chunks + 1.0) + rest, alive(np.maximum(gaps, 1.0))
            requests = first, np.where(gaps > 0.0, step, np.nan), first + gaps * step
        chains = replicas // g
        return PoolLatency(
            quantiles=names, ttft_s=ttft, tpot_s=tpot, e2e_s=e2e,
            mean_ttft_s=mean_ttft, mean_tpot_s=mean_tpot, mean_e2e_s=mean_e2e,
            slot_occupancy=occupied.slot_occupancy, mean_active=occupied.mean_active, load=occupied.load,
            margin=occupied.margin, max_throughput=occupied.max_throughput * chains / self.mean_iterations,
            throughput=arrival_rate, wait_probability=delayed, mean_delayed_wait_s=mean_delay,
            stable=True, requests=requests,
        )  # fmt: skip
