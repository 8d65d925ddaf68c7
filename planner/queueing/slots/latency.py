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
from planner.queueing.slots.chain import WAIT_SURVIVAL, Occupancy, OccupancyChain, SlotWait, pooled, replica_dispersion
from planner.shared.mathematics import need

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
        same = array.ndim == 1 and 0 < len(array) == len(inputs)
        need(same, f"{name} must be a list of the same length as input_tokens, not of shape {array.shape}")
        need(np.all(np.isfinite(array) & (array >= 0)), f"{name} must be >= 0 and finite")
    need(weights.any(), "weight must not be all 0")
    return inputs, outputs, weights / weights.sum()


@dataclass(frozen=True, slots=True, eq=False)
class PoolLatency:
    """Latency of a pool at one arrival rate.

    Attributes
    ----------
    ttft_s, tpot_s, e2e_s : ndarray
        Time to first token, time per output token (E2E - TTFT) / (output - 1) and end to end, at the levels asked for; inf
        when not stable [s].
    mean_ttft_s, mean_tpot_s, mean_e2e_s : float
        Their means [s].
    slot_occupancy : float
        Mean busy slots / slots; 1.0 when not stable [-].
    mean_active : float
        Mean busy slots of a replica [slots].
    load : float
        lambda / X [-].
    wait_probability : float
        Probability that an arrival finds every slot busy; 1.0 when not stable [-].
    mean_delayed_wait_s : float
        Mean wait for a slot of those who wait; inf when not stable [s].
    requests : tuple of ndarray
        TTFT, TPOT (NaN where there is none) and E2E of the same requests [s], each of shape (points,), if asked for.
    """

    ttft_s: FloatArray
    tpot_s: FloatArray
    e2e_s: FloatArray
    mean_ttft_s: float
    mean_tpot_s: float
    mean_e2e_s: float
    slot_occupancy: float
    mean_active: float
    load: float
    wait_probability: float
    mean_delayed_wait_s: float
    requests: tuple[FloatArray, ...] = ()

    @property
    def stable(self) -> bool:
        """Whether a steady state exists."""
        return self.load < 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _Met:
    """What an arrival meets, by strata of the number present."""

    others: FloatArray  # in service beside it, per replica
    width: FloatArray
    mass: FloatArray
    centre: float  # mean of the others
    delayed: float  # probability that every slot is busy
    memory: float  # iterations that the number present keeps its deviation
    uneven: float  # whether replicas of one pool differ in their counts
    own_memory: float
    rest_start: FloatArray  # what is left of the running iteration [s]
    rest_width: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class _Waits:
    """The wait of the delayed as uniform pieces between edges [s]."""

    edges: FloatArray
    mass: FloatArray

    @property
    def start(self) -> FloatArray:
        return self.edges[:-1]

    @property
    def width(self) -> FloatArray:
        return np.diff(self.edges)


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
        need(0 < chunk < np.inf, f"chunk must be > 0 and finite, not {chunk!r}")
        times = np.asarray(iteration_time, dtype=float)
        need(times.ndim == 1 and len(times) >= 2, f"iteration_time must hold t(0..slots), not shape {times.shape}")
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
        if replicas not in self._chains:
            self._chains[replicas] = OccupancyChain(self.iteration_time, self.slots, replicas)
        return self._chains[replicas]

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
        need(np.all((levels >= 0) & (levels < 1)), f"quantiles must be in [0, 1), not {quantiles!r}")
        need(0 <= arrival_rate < np.inf, f"arrival_rate must be >= 0 and finite, not {arrival_rate!r}")
        need(replicas >= 1 and replicas == int(replicas), f"replicas must be a whole number >= 1, not {replicas!r}")
        need(0 <= dispersion < np.inf, f"dispersion must be >= 0 and finite, not {dispersion!r}")
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
        if not occupied.stable:
            never, longest = np.full(levels.shape, np.inf), float(self.iteration_time[-1])
            means = np.inf, longest, np.inf, 1.0, float(self.slots)
            return PoolLatency(never, np.full(levels.shape, longest), never, *means, occupied.load, 1.0, np.inf)
        met = self._met(occupied, chain, chain_rate, routing, peakedness)
        waits = self._waits(occupied, chain, seen, routing) if met.delayed > _NO_WAIT else None
        ttft, mean_ttft = self._whole(self._chunks + 1.0, self._chunk_weight, met, waits, levels)
        e2e, mean_e2e = self._whole(self._lives, self._life_weight, met, waits, levels)
        tpot, mean_tpot = self._per_token(met, waits, levels)
        delayed_s = 0.0 if waits is None else float(waits.mass @ (waits.start + 0.5 * waits.width))
        return PoolLatency(
            ttft, tpot, e2e, mean_ttft, mean_tpot, mean_e2e, occupied.slot_occupancy, occupied.mean_active, occupied.load,
            met.delayed, delayed_s, self._together(met, waits) if together else (),
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

    def _met(self, occupied: Occupancy, chain: OccupancyChain, chain_rate: float, routing: str, peaked: float) -> _Met:
        """What an arrival meets: strata of the number present, the delayed apart, and the iteration that runs."""
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
        free = probability[:-1] if states[-1] == c else probability
        found, spread, mass, idle = strata(states[: len(free)], free, g)
        t_found = self._times(found / g)
        crowd = chain_rate * float(self._times(np.array([mean / g]))[0])
        # under pooled routing half of the arrivals fill the place of a request that just left, at the start of an
        # iteration: the residual is then more than uniform
        rest_from = 0.0
        if g > 1:
            x = max(crowd, 1e-6)
            age = 1.0 / x - 1.0 / np.expm1(min(x, 700.0)) if x > 1e-3 else 0.5
            rest_from = 2.0 * (0.25 + 0.5 * (1.0 - age)) - 1.0
        return _Met(
            others=(found + 1.0) / g - 1.0,
            width=spread / g,
            mass=mass,
            centre=(float(probability @ states) + 1.0) / g - 1.0,
            delayed=delayed,
            memory=memory,
            uneven=1.0 if g > 1 else 0.0,
            own_memory=max(self.mean_iterations / (mean / g + 1.0), 1.0),
            rest_start=np.where(idle, 0.0, rest_from * t_found),
            rest_width=np.where(idle, 0.0, (1.0 - rest_from) * t_found),
        )

    def _waits(self, occupied: Occupancy, chain: OccupancyChain, seen: float, routing: str) -> _Waits:
        """How long those who find every slot busy wait for one."""
        burst = (max(seen, 0.0) + self.iterations_scv) / (1.0 + self.iterations_scv)
        if routing == "jsq":
            # the queue is the replica's own: every g-th request that waits in the pool, one replica's slots
            edges = self._wait.edges(chain.slots, occupied.load**chain.replicas)
        else:
            edges = self._wait.edges(chain.slots * chain.replicas, occupied.load)
        # slots free only between iterations: with several completions per iteration the first is not sooner
        leave = chain.slots / self.mean_iterations
        rounding = 0.5 + 1.0 / np.expm1(leave) - 1.0 / leave
        edges = float(self.iteration_time[-1]) * (edges * burst + rounding)
        mass = -np.diff(WAIT_SURVIVAL, append=0.0)[:-1]
        return _Waits(edges, mass / mass.sum())

    def _whole(
        self, count: FloatArray, weight: FloatArray, met: _Met, waits: _Waits | None, levels: FloatArray
    ) -> tuple[FloatArray, float]:
        """Quantiles and mean of the time from arrival to the end of so many iterations [s]; counts with their weights."""
        keep = persistence(count, met.memory)
        around = (met.others - met.centre)[None, :] * keep[:, None]
        total = count[:, None] * self._times(1.0 + met.centre + around) + met.rest_start[None, :]
        start = [total.ravel()]
        long = [np.broadcast_to(met.rest_width, total.shape).ravel()]
        part = [np.outer(weight, met.mass * (1.0 - met.delayed)).ravel()]
        if met.uneven:
            own = 0.5 * met.uneven * persistence(count, met.own_memory)[:, None]
            more = 1.0 + met.others[None, :]
            slack = count[:, None] * (self._times(more + own) - self._times(more - own))
            start[0] = start[0] - 0.5 * slack.ravel()
            long[0] = long[0] + slack.ravel()
        if waits is not None:
            last = float(self.slots - 1)
            ends = count * self._times(1.0 + met.centre + (last - met.centre) * keep)
            total = ends[:, None] + waits.start[None, :]
            start.append(total.ravel())
            long.append(np.broadcast_to(waits.width, total.shape).ravel())
            part.append(np.outer(weight, waits.mass * met.delayed).ravel())
        a, d, w = np.concatenate(start), np.concatenate(long), np.concatenate(part)
        return mixture_quantiles(a, d, w, levels), float(w @ (a + 0.5 * d) / w.sum())

    def _all(self, met: _Met, waits: _Waits | None) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Others in service, their spread and mass of every request: the delayed are among those who found all slots busy."""
        if waits is None:
            return met.others, met.width, met.mass
        others = np.concatenate((met.others, [float(self.slots - 1)]))
        mass = np.concatenate((met.mass * (1.0 - met.delayed), [met.delayed]))
        return others, np.concatenate((met.width, [0.0])), mass

    def _per_token(self, met: _Met, waits: _Waits | None, levels: FloatArray) -> tuple[FloatArray, float]:
        """Quantiles and mean of the time per output token [s]."""
        if not self._has_gaps:
            return np.zeros(len(levels)), 0.0
        others, width, mass = self._all(met, waits)
        keep = persistence(self._gaps, met.memory)[:, None]
        middle = 1.0 + met.centre + (others - met.centre)[None, :] * keep
        # a replica's own count is a whole number around the pool's mean; it changes with its own arrivals
        own = 0.5 * met.uneven * persistence(self._gaps, met.own_memory)[:, None]
        half = 0.5 * width[None, :] * keep + own
        low, high = self._times(middle - half), self._times(middle + half)
        weight = np.outer(self._gap_weight, mass)
        mean = float(np.sum(weight * (low + high))) / (2.0 * float(weight.sum()))
        return mixture_quantiles(low, high - low, weight, levels), mean

    def _together(self, met: _Met, waits: _Waits | None) -> tuple[FloatArray, ...]:
        """TTFT, TPOT and E2E of the same requests [s]: lengths and the state found decide all three."""
        others, _, mass = self._all(met, waits)
        u = ((np.arange(POINTS) + 0.5)[:, None] * STEPS % 1.0).T
        chunks, gaps, below = self._rows
        row = np.minimum(np.searchsorted(below, u[0] * below[-1]), below.size - 1)
        chunks, gaps = chunks[row], gaps[row]
        place = np.minimum(np.searchsorted(np.cumsum(mass), u[1] * mass.sum()), mass.size - 1)
        state = others[place]

        def alive(count: FloatArray) -> FloatArray:
            return self._times(1.0 + met.centre + (state - met.centre) * persistence(count, met.memory))

        rest = np.append(met.rest_start, 0.0)[place] + u[2] * np.append(met.rest_width, 0.0)[place]
        if waits is not None:
            late = place == met.others.size
            rest = np.where(late, np.interp(u[2], np.append(0.0, np.cumsum(waits.mass)), waits.edges), rest)
        first, step = (chunks + 1.0) * alive(chunks + 1.0) + rest, alive(np.maximum(gaps, 1.0))
        return first, np.where(gaps > 0.0, step, np.nan), first + gaps * step
