r"""Latency of one replica with mixed batching under Poisson arrivals, in closed form: ``--method closed``.

What it rests on, from the slow to the quick:

1. *Sequences in decode.* They are born at rate :math:`\lambda` and live for ``D`` iterations of mean :math:`\bar t(n)`: a product
   form, whatever the law of ``D`` (:func:`occupancy`), as wide as linear theory has it (:mod:`planner.predict.fluctuations`).
2. *Backlog of prompts.* Beside ``n`` decodes it is a Markov chain over iterations (:mod:`planner.predict.backlog`).
3. *A request* finds a number of decodes, a backlog and a moment within an iteration as time averages have them (Poisson
   arrivals); its prompt takes the iterations that the backlog and its own length need, its decodes follow the chain from where
   its prompt left it.

TTFT, TPOT and E2E are quadratures over uniform coordinates on a fixed lattice, so that the same question gives the same answer.
Nothing of it is shared with the replay, which it is held against (benchmarks/accuracy/poisson.py): up to load .8 means are within
2%, P99 TTFT within 1% in the median and 6% at worst, where requests do not wait for slots or memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.predict.backlog import MOST_LOAD, Backlog, PromptSums, solve_backlog
from planner.predict.batch import Engine, Moments, engine_of
from planner.predict.bounds import MaxThroughput, fluid, idle_latency, saturation
from planner.predict.fluctuations import LifeSpectra
from planner.predict.records import COLD_AFTER_S, Replicas
from planner.queueing.normal import normal_cdf, normal_quantile
from planner.workload.pools import Lengths

Array = NDArray[np.float64]

GUIDE = 128
"""Parts of a row of a chain whose beginnings are looked up, a power of two."""

POINTS = 16384
"""Points of the quadrature, a power of two."""

GENERATOR = (1, 182667, 469891, 498753, 110745, 446247, 250185, 118627, 245333, 283199, 408519, 391023)
"""Generating vector of an extensible rank-1 lattice (F. Y. Kuo, "lattice-32001-1024-1048576.3600", first components)."""

NODES = np.array([-2.6, -1.9, -1.3, -0.7, -0.2, 0.3, 0.8, 1.4, 2.1, 3.0, 4.4])
"""Abscissae of the chains, in standard deviations of the decodes about their mean."""

LAGS = 32
"""Iterations of a request that are followed along its chain; beyond, means and variances grow geometrically to their limits."""

FORGOTTEN = 1e-6
"""Autocovariance over variance below which a chain has forgotten where it was: what is left is rounding."""

SUMMED = 48
"""Prompts that come in a while and are drawn one by one; more have the mean."""


@cache
def coordinates() -> Array:
    """Uniform coordinates of the quadrature, shape (coordinates, POINTS).

    They are: 0 sequences present, 1 backlog, 2 moment within the iteration, 3 request, 4-6 how many prompts came just before,
    come while it waits, and come in its last prefill, 7 chain, 8 cold front end, 9 room in memory, 10 place between departures,
    11 the far end of its decodes.
    """
    # half a cell away from 0 in the first coordinate, which is in order, golden-ratio multiples in the others
    shift = np.arange(len(GENERATOR)) * 0.6180339887498949
    shift[0] = 0.5 / POINTS
    found: Array = (np.outer(GENERATOR, np.arange(POINTS)) % POINTS / POINTS + shift[:, None]) % 1.0
    return found


@cache
def deviates(k: int) -> Array:
    """A coordinate as standard normal deviates, shape (POINTS,)."""
    return normal_quantile(coordinates()[k])


class Draws:
    """Requests of the quadrature, at its :func:`coordinates`: they depend on the workload alone."""

    def __init__(self, moments: Moments) -> None:
        self.u = coordinates()
        self.row = rows = _stratified(moments, self.u[3])
        self.prompt, self.prefill = moments.prompt[rows], moments.tokens[rows]
        self.steps, self.pairs = moments.steps[rows], moments.pairs[rows]
        self.uniforms = _dice(0).random((LAGS, POINTS))
        self.mean, self._below, self._tokens = moments.mean_prefill, np.cumsum(moments.probability), moments.prefill
        self.spectra = LifeSpectra(moments, rows[:: POINTS // 512])
        # by place, of no prompt, one, two, ..., as far as they were asked for
        self._sums = [[np.zeros(POINTS)] for _ in range(3)]

    def came(self, place: int, means: Array) -> Array:
        """Tokens of the prompts that a Poisson stream brings where so many are expected; `place` 0, 1, 2."""
        u, counts = self.u[4 + place], np.zeros(POINTS, dtype=np.int64)
        # of very many, all but some hundreds by their mean
        beyond, means = np.maximum(means - 500.0, 0.0), np.minimum(means, 500.0)
        term = np.exp(-means)
        below, k = term.copy(), 0
        while np.any(u > below) and k < 1000:
            counts += u > below
            k += 1
            term *= means / k
            below += term
        held = np.minimum(counts, SUMMED)
        return self._summed(place, held) + (counts - held + beyond) * self.mean

    def _summed(self, place: int, held: NDArray[np.int64]) -> Array:
        """Tokens of so many prompts drawn one by one, by point."""
        sums, below = self._sums[place], self._below
        for k in range(len(sums), int(held.max()) + 1):
            uniform = _dice(LAGS + place * SUMMED + k - 1).random(POINTS)
            drawn = np.searchsorted(below, uniform * below[-1]).clip(0, below.size - 1)
            sums.append(sums[-1] + self._tokens[drawn])
        found: Array = np.stack(sums)[held, np.arange(POINTS)]
        return found


def _dice(row: int) -> np.random.Generator:
    """One fixed sequence of uniform numbers, from so many times :data:`POINTS` of them on."""
    return np.random.Generator(np.random.PCG64(20231).advance(row * POINTS))


def _stratified(moments: Moments, u: Array) -> NDArray[np.int64]:
    """Rows at the weighted quantiles `u`, ordered so that prompts and outputs are both stratified."""
    order = np.argsort(moments.tokens, kind="stable")
    strip = np.minimum((np.cumsum(moments.probability[order]) * 64.0).astype(np.int64), 63)
    # within a strip of equal quantiles by output, direction alternating: neighbours in u are alike in both
    order = order[np.lexsort((np.where(strip % 2 == 0, 1.0, -1.0) * moments.steps[order], strip))]
    below = np.cumsum(moments.probability[order])
    rows: NDArray[np.int64] = order[np.minimum(np.searchsorted(below, u * below[-1]), order.size - 1)]
    return rows


@dataclass(frozen=True, slots=True)
class Room:
    """How many sequences can decode at once: slots left to them, mean and standard deviation of those that memory holds."""

    slots: float
    kv_mean: float = math.inf
    kv_spread: float = 0.0

    @property
    def typical(self) -> float:
        """The mean."""
        return min(self.slots, self.kv_mean)

    def served(self, present: Array) -> Array:
        """Mean number decoding of ``present`` sequences: E min(j, S_kv, slots)."""
        capped = np.minimum(present, self.slots)
        if math.isinf(self.kv_mean):
            return capped
        z = (capped - self.kv_mean) / self.kv_spread
        # E min(j, N(mu, sd)) = j - sd (z Phi(z) + phi(z))
        lost = self.kv_spread * (z * normal_cdf(z) + np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi))
        return np.maximum(capped - lost, np.minimum(capped, 1e-9))

    def drawn(self, k: int) -> Array:
        """Capacities at a coordinate."""
        if math.isinf(self.kv_mean):
            return np.full(POINTS, self.slots)
        return np.clip(self.kv_mean - self.kv_spread * deviates(k), 1.0, self.slots)


def occupancy(
    work_rate: float, nodes: Array, iteration_s: Array, room: Room, load: float, spread: float = 1.0, queue_spread: float = 1.0
) -> Array:  # fmt: skip
    r"""Product form of the sequences present: the law of 0, 1, 2, ... of them, shape (states,).

    .. math:: \pi(i) \propto \prod_{j\le i} \frac{\lambda E[D]\,\bar t(\varphi(j))}{\varphi(j)}

    Parameters
    ----------
    work_rate
        :math:`\lambda E[D]`, decode steps asked per second [1/s].
    nodes, iteration_s
        Mean iteration [s] at ``nodes`` decodes.
    room
        What limits :math:`\varphi`.
    load
        Rate over maximum throughput: the least ratio beyond the room.
    spread, queue_spread
        Variance over that of the product form, while sequences find room and while they wait. As in the stationary
        density of a diffusion, :math:`\pi\propto\exp\int 2\mu/\sigma^2`, the logarithms of the ratios are divided by it. How many
        wait hardly hangs on what lengthens their queue (Erlang's C on the law of lives), so that the density there is as much
        lower as the queue is longer; where numbers swing more than by chance, as slowly as they forget, it is between that of
        quick noise, ``spread`` times as high, and that of a mixture of steady states, at their geometric mean.
    """
    tail = math.log(1e-10) / math.log(min(max(load, 0.05), 0.9999)) * max(queue_spread, 1.0)
    most = min(4.0 * nodes[-1] + 50.0, room.typical + 3.0 * room.kv_spread) + (
        tail if nodes[-1] > 0.5 * room.typical else 8.0
    )
    present = np.arange(1.0, min(most, 1e5) + 2.0)
    served = np.maximum(room.served(present), 1e-12)
    ratio = work_rate * _straight_on(served, nodes, iteration_s) / served
    beyond = present > room.typical
    ratio = np.where(beyond, np.maximum(ratio, load), ratio)
    logs = np.concatenate(([0.0], np.cumsum(np.log(ratio) / np.where(beyond, queue_spread, spread))))
    lower = math.log(queue_spread) - (0.5 if spread > 1.0 else 1.0) * math.log(spread)
    logs[1:] -= np.where(beyond, lower, 0.0)
    law = np.exp(logs - logs.max())
    normal: Array = law / law.sum()
    return normal


@dataclass(frozen=True, slots=True, eq=False)
class Closed:
    """Latencies of one replica: equally likely requests of a quadrature, and means over time.

    Attributes
    ----------
    ttft_s, tpot_s, e2e_s
        Of the same requests [s], shape (POINTS,); TPOT is NaN where an output is one token; inf where not stable.
    wait_probability
        Share of requests that wait for a slot or for memory [1].
    running_mean
        Mean number of decoding sequences.
    iteration_s
        Mean iteration [s].
    load
        Rate over maximum throughput [1].
    """

    ttft_s: Array
    tpot_s: Array
    e2e_s: Array
    wait_probability: float
    running_mean: float
    iteration_s: float
    load: float

    def quantiles(self, metric: str, levels: tuple[float, ...]) -> tuple[float, ...]:
        """Quantiles of ``ttft_s``, ``tpot_s`` or ``e2e_s`` [s]; of TPOT over requests with more than one output token."""
        values: Array = getattr(self, metric)
        values = values[~np.isnan(values)]
        if not values.size:
            return (0.0,) * len(levels)
        if np.isinf(values).any():
            return (math.inf,) * len(levels)
        return tuple(np.quantile(values, levels).tolist())

    def mean(self, metric: str) -> float:
        """The mean of one of them [s]."""
        values: Array = getattr(self, metric)
        return 0.0 if np.isnan(values).all() else float(np.nanmean(values))


class ClosedReplica:
    """One replica with mixed batching and its requests; a pool of R under random routing is R of it at a rate/R each.

    Parameters
    ----------
    lengths
        The requests.
    replicas
        The engine; count and routing are not looked at.
    overhead_s
        What a first token waits for outside the engine [s].

    Raises
    ------
    InputError
        If the engine is not mixed batching under a finite budget, or gives prompts iterations of their own (`apart`).

    Examples
    --------
    >>> from planner.machine.iteration import IterationModel
    >>> law = Lengths(*np.array([[1000.0], [201.0], [1.0], [0.0]]))
    >>> engine = Replicas(1, IterationModel(t0=2e-3, w=5e-3, b=24e-6), slots=256.0, token_budget=2048.0)
    >>> replica = ClosedReplica(law, engine)
    >>> replica.limit.binding, round(replica.limit.per_s, 1)
    ('slots', 32.9)
    >>> round(replica.at(20.0).mean("tpot_s"), 4)
    0.0121
    """

    def __init__(self, lengths: Lengths, replicas: Replicas, overhead_s: float = 0.0) -> None:
        self.engine: Engine = engine_of(lengths, replicas)
        if self.engine.apart:
            raise InputError(
                "the closed form knows no engine that gives prompts iterations of their own (apart): replay it"
            )
        self.limit: MaxThroughput = saturation(self.engine)
        self.overhead_s, self.wake_s, self.request_s = overhead_s, replicas.wake_s, replicas.request_s
        self._idle = idle_latency(lengths, replicas)[0] - replicas.wake_s if self.limit.per_s > 0.0 else np.zeros(0)

    @cached_property
    def _sums(self) -> PromptSums:
        return PromptSums(self.engine.moments, self.engine.budget)

    @cached_property
    def _points(self) -> Draws:
        return Draws(self.engine.moments)

    def at(self, rate_per_s: float) -> Closed:
        """Latencies at an arrival rate of this replica >= 0 [1/s]."""
        limit, law = self.limit, self.engine.moments
        if not (math.isfinite(rate_per_s) and rate_per_s >= 0.0):
            raise InputError(f"rate: {rate_per_s!r} is not a finite number >= 0")
        load = rate_per_s / limit.per_s if limit.per_s > 0.0 else math.inf
        if load >= 1.0:
            never = np.full(1, math.inf)
            return Closed(never, never, never, 1.0, limit.decodes, limit.iteration_s, load)
        rate_per_s = max(rate_per_s, 1e-9 * limit.per_s)
        state = _State(self.engine, self._sums, limit, rate_per_s, self._points.spectra)
        ttft, tpot, waits = self._latencies(state, rate_per_s, load)
        ttft += self.overhead_s
        if self.wake_s > 0.0:
            ttft += self.wake_s * (self._points.u[8] < math.exp(-rate_per_s * COLD_AFTER_S))
        steps = self._points.steps
        running = rate_per_s * float(np.mean(steps * tpot)) if law.mean_steps > 0.0 else 0.0
        return Closed(
            ttft, np.where(steps > 0.0, tpot, np.nan), ttft + steps * tpot, waits, running, state.iteration_s, load
        )

    def _latencies(self, state: _State, rate_per_s: float, load: float) -> tuple[Array, Array, float]:
        """TTFT and TPOT of the points [s], and the share that waits for a slot or memory."""
        points, law, limit = self._points, self.engine.moments, self.limit
        u, most = points.u, 0.98 * self.engine.budget
        if law.mean_steps <= 0.0:
            chain, backlog = _find(u, state, np.zeros(POINTS))
            return self._first_token(state, rate_per_s, np.zeros(POINTS), chain, backlog)[0], np.zeros(POINTS), 0.0
        room, work, nodes, means = (
            self._room(state, rate_per_s),
            rate_per_s * law.mean_steps,
            state.nodes[1:],
            state.means[1:],
        )
        plain = occupancy(work, nodes, means, Room(math.inf), load)
        places = np.arange(plain.size)
        variance = float(plain @ places**2) - float(plain @ places) ** 2
        # decodes that answer to prompts at once are the backlog's
        spread = max((state.swing.decodes - state.quick) / max(variance, 1e-9), 0.03)
        pi = occupancy(work, nodes, means, room, load, spread, max(0.5 * (1.0 + self._scv()), 0.05))
        present = np.searchsorted(np.cumsum(pi), u[0]).clip(0, pi.size - 1).astype(float)
        room_for = room.drawn(9)
        waits = present >= room_for
        # as many departures as there are ahead, and the next one; whose wait is long waits for slow departures
        ahead = (
            -math.log(load) / (1.0 - load) * np.floor(present - room_for) - np.log1p(-u[10]) if load > 0.0 else present
        )
        slot_wait = np.where(waits, ahead / limit.per_s, 0.0)
        served = np.minimum(present, room_for)
        centre, shift = float(served.mean()), 0.0
        # the request's own decode, in decodes of mean context
        own = 1.0 + self.engine.g * (points.prompt + 0.5 * (points.steps + 1.0) - law.context) / state.per_decode
        for _ in range(2):
            middle = centre + shift
            n = np.clip(np.where(present == 0.0, 0.0, middle + (served - centre) * state.stretch), 0.0, most)
            # a backlog has had time to follow the decodes in part
            felt = np.where(n == 0.0, 0.0, np.maximum(middle + (n - middle) * state.follow, 0.0))
            chain, backlog = _find(u, state, felt)
            ttft, start = self._first_token(state, rate_per_s, n, chain, backlog)
            life = np.maximum(middle + (n - middle) * _time_average(points.steps / state.relax), 0.0) + own
            tpot = _per_token(points, state, life, start)
            # the mean is Little's
            shift += 0.8 * (rate_per_s * float(np.mean(points.steps * tpot)) - float(n.mean()))
        return ttft + slot_wait, tpot, float(waits.mean())

    def _first_token(
        self, state: _State, rate_per_s: float, decodes: Array, chain: NDArray[np.int64], backlog: Array
    ) -> tuple[Array, Array]:
        r"""TTFT without waiting for a slot [s], and the backlog at the first decode step [tokens].

        What is ahead, :math:`(V-B_n)^+` and the prompts that came earlier in the running iteration, and the prompt itself
        take :math:`\lceil\cdot/B_n\rceil` iterations after the residual one; prompts that come meanwhile fill the last.
        """
        points, engine, slope, flow = self._points, self.engine, state.slope, state.prefill
        room = np.maximum((self.engine.budget - decodes + slope * flow) / (1.0 + slope), 1.0)

        def batch(prefill: Array) -> Array:
            return engine(np.maximum(decodes + slope * (prefill - flow), 0.0), prefill)

        idle = (state.nodes[chain] == 0.0) & (backlog <= 0.0)
        duration = np.where(idle, 0.0, batch(np.minimum(backlog, room)))
        place = points.u[2]
        total = np.maximum(backlog - room, 0.0) + points.came(0, rate_per_s * place * duration) + points.prefill
        passes = np.maximum(np.ceil(total / room), 1.0)
        rest = total - (passes - 1.0) * room
        waiting = (1.0 - place) * duration + (passes - 1.0) * batch(room)
        later = points.came(1, rate_per_s * waiting)
        last = batch(np.minimum(rest + later, room))
        # the host's work on a request delays its own first token whole
        ttft = waiting + last + self.request_s + engine.a * points.pairs - engine.alpha * points.prefill
        # who finds the replica empty and stays alone is known exactly
        ttft = np.where(idle & (later == 0.0), self._idle[points.row], ttft)
        return ttft, np.maximum(rest + later - room, 0.0) + points.came(2, rate_per_s * last)

    def _room(self, state: _State, rate_per_s: float) -> Room:
        """Sequences that can decode at once: prompts hold slots and memory too."""
        engine, law = self.engine, self.engine.moments
        in_prefill = rate_per_s * state.iteration_s * (1.0 + law.mean_prefill / (2.0 * engine.budget))
        slots = max(engine.slots - min(in_prefill, 0.5 * engine.slots), 1.0)
        if math.isinf(engine.kv_tokens):
            return Room(slots)
        held, scatter = state.prompts_ahead(rate_per_s)
        mean = max((engine.kv_tokens - law.mean_own - held) / law.own_context, 1.0)
        # what contexts that differ take from it beside the number of decodes
        scatter += law.mean_own2 - law.mean_own**2 + state.centre * (law.own_context2 - law.own_context**2)
        spread = math.sqrt(scatter / law.own_context**2 + 0.25)
        return Room(slots) if mean - 6.0 * spread > 1.5 * slots else Room(slots, mean, spread)

    def _scv(self) -> float:
        """Squared coefficient of variation of what requests take of a full replica: iterations or memory in the time that its
        decodes take alone, tokens in what prompts make longer."""
        law, limit = self.engine.moments, self.limit
        held = law.steps * (law.own + 0.5 * (law.steps + 1.0)) if limit.binding == "kv" else law.steps
        alone = min(float(self.engine(limit.decodes, np.array(0.0))) / limit.iteration_s, 1.0)
        takes = alone * held / float(law.probability @ held) + (1.0 - alone) * law.prefill / law.mean_prefill
        return float(law.probability @ takes**2) - 1.0


class _State:
    """A replica at a rate: chains of the backlog about the mean number of decodes, and how quickly these forget.

    ``slope``: decodes per prefill token, as short outputs answer to bursts of prefill at once; ``stretch``: standard deviation of
    the decodes weighted by their contexts over that of their number; ``relax``: iterations in which they forget; ``follow``: share
    of their deviation that the backlog has had time to follow.
    """

    def __init__(
        self, engine: Engine, sums: PromptSums, limit: MaxThroughput, rate_per_s: float, spectra: LifeSpectra
    ) -> None:
        law, budget = engine.moments, engine.budget
        steps, self.slope, variance, settle = law.mean_steps, 0.0, 0.0, 1.0
        most = min(1.02 * limit.decodes, 0.98 * budget)
        self.iteration_s = float(fluid(engine, limit, np.array([rate_per_s]))[1][0])
        for _ in range(2):
            n = self.centre = min(rate_per_s * steps * self.iteration_s, most)
            self.prefill = rate_per_s * law.mean_prefill * self.iteration_s
            base = solve_backlog(
                sums, engine, np.array([max(n, 1e-9)]), rate_per_s, slope=self.slope, mean_prefill=self.prefill
            )
            self.iteration_s = float(base.mean(base.duration)[0])
            if steps > 0.0:
                self.slope, variance, settle = _answer(base, law)
        self.base, self._law = base, law
        n = self.centre = min(rate_per_s * steps * self.iteration_s, most)
        self.prefill = rate_per_s * law.mean_prefill * self.iteration_s
        pi = base.law[0]
        linear = float(pi @ engine.slope(n + base.prefill[0]))
        self.per_decode = max(engine.c + engine.busy_per_decode(float(pi @ (base.grid[0] > 0.0))) + linear, 1e-300)
        feedback = min(n * self.per_decode / self.iteration_s, 0.9)
        # a stay at many decodes ends before a backlog close to instability builds up: its time scale, which grows as
        # 1/(1 - load)^2, may not exceed that of the decodes
        load = min(rate_per_s * float(base.full[0]) * law.mean_prefill / float(base.room[0]), MOST_LOAD)
        stay = max(steps / (1.0 - feedback), 1.0)
        most_load = min(1.0 - (1.0 - load) * math.sqrt(min(settle / stay, 0.5)), MOST_LOAD)
        self.nodes = np.zeros(1)
        if steps > 0.0:
            roof = max(min(engine.slots, engine.kv_tokens / max(law.own_context, 1e-9) * 1.5, 0.98 * budget), 0.4)
            ends = np.clip(n + math.sqrt(max(n, 0.05) / (1.0 - feedback)) * NODES[[0, -1]], 0.2, roof)
            ends[0] = min(ends[0], 0.5 * ends[1])
            inner = (NODES - NODES[0]) / (NODES[-1] - NODES[0])
            self.nodes = np.concatenate(([0.0], ends[0] + (ends[1] - ends[0]) * inner))
        self.chains = solve_backlog(
            sums, engine, self.nodes, rate_per_s, slope=self.slope, mean_prefill=self.prefill, most_load=most_load
        )
        self.means = self.chains.mean(self.chains.duration)
        self.least = engine(np.maximum(self.nodes - self.slope * self.prefill, 0.0), np.zeros(1))
        self.covariance = _covariances(self.chains)
        at = max(int(np.argmin(np.abs(self.nodes - n))), min(1, self.nodes.size - 1))
        self.quick, self.relax, self.stretch = self.slope**2 * variance, 1.0, 1.0
        if steps > 0.0:
            self._linearised(engine, at, rate_per_s, spectra)
        self.follow = self.relax / (self.relax + 1.0 / max(1.0 - float(self.covariance[at, -1]), 1e-3))

    def _linearised(self, engine: Engine, at: int, rate_per_s: float, spectra: LifeSpectra) -> None:
        """Fluctuations about a chain."""
        law, chains = self._law, self.chains
        time = float(np.interp(self.centre, self.nodes[1:], self.means[1:]))
        flow = float(chains.mean(chains.prefill)[at])
        # mean cost of a prefill token beside the decodes
        alone = float(engine(self.nodes[at], np.array(0.0)))
        per_prefill = max((float(self.means[at]) - alone) / flow - engine.alpha, 0.0)
        costs = max(self.per_decode - engine.read, 0.0), engine.g, per_prefill, engine.a
        delay = float(chains.mean(np.maximum(chains.grid - chains.room[:, None], 0.0))[at]) / flow
        self.swing = spectra.at(rate_per_s * time, time, costs, delay, law.context, self.slope)
        self.relax = max(self.swing.relaxation, 1.0)
        self.stretch = math.sqrt(self.swing.effective / self.swing.decodes) if self.swing.decodes > 0.0 else 1.0

    def prompts_ahead(self, rate_per_s: float) -> tuple[float, float]:
        """Mean and variance over time of what prompts hold that are computed or wait for it [tokens], [tokens^2]."""
        law, base = self._law, self.base
        weight = base.law[0] * base.duration[0]
        length = float(weight.sum())
        mean = float(weight @ base.grid[0]) / length
        variance = float(weight @ (base.grid[0] - mean) ** 2) / length
        # on average half of those who come in an iteration, and what is computed of those that take several
        come = rate_per_s * law.mean_prefill * float(weight @ base.duration[0]) / (2.0 * length)
        begun = (
            0.5 * rate_per_s * length * float(law.probability @ (law.own * (np.ceil(law.tokens / base.room[0]) - 1.0)))
        )
        kept = law.mean_own / law.mean_prefill
        return (mean + come) * kept + begun, variance * kept**2


def _answer(base: Backlog, law: Moments) -> tuple[float, float, float]:
    r"""Response of the decodes to prefill [decodes per token], variance of the prefill [tokens^2] and its time scale [iterations],
    of a single chain.

    .. math:: \beta = \frac{\sum_{j\ge1} P(D\ge j)\,cc_j}{E[L]\,cc_0} \in [0, E[D]/E[L]]
    """
    pi, values = base.law[0], base.prefill[0] - base.mean(base.prefill)[0]
    # a token's decodes begin when the prompt it belongs to is done
    until = law.probability @ (law.tokens * (np.ceil(law.tokens / base.room[0]) - 1.0)) / (2.0 * law.mean_prefill)
    until = min(float(until), float(LAGS))
    covariance, ahead = np.empty(LAGS + math.ceil(until) + 1), values
    for j in range(covariance.size):
        covariance[j] = float(pi @ (values * ahead))
        ahead = base.step[0] @ ahead
    variance = float(covariance[0])
    if variance <= 0.0:
        return 0.0, 0.0, 1.0
    r = min(max(covariance[-1] / covariance[-2], 0.0), 0.999) if covariance[-2] > FORGOTTEN * variance else 0.0
    # E sum over j <= D of cc_(j + until), geometric beyond the lags that are followed
    far = covariance[-1] * r / (1.0 - r) * (1.0 - r ** np.maximum(law.steps - LAGS, 0.0))
    lags, summed = np.arange(covariance.size), np.cumsum(covariance)
    near = np.interp(np.minimum(law.steps, LAGS) + until, lags, summed) - np.interp(until, lags, summed)
    total = float(law.probability @ (near + far))
    slope = min(max(total / (law.mean_prefill * variance), 0.0), law.mean_steps / law.mean_prefill)
    return slope, variance, 1.0 / (1.0 - r)


def _covariances(chains: Backlog) -> Array:
    """Per chain: variance of the sum over many iterations per iteration, and the ratio of successive autocovariances far out,
    shape (chains, 2) [s^2], [1]."""
    f = chains.duration - chains.mean(chains.duration)[:, None]
    weighted, ahead = chains.law * f, f[:, :, None]
    covariance = np.empty((f.shape[0], LAGS + 1))
    for j in range(LAGS + 1):
        covariance[:, j] = np.einsum("kj,kj->k", weighted, ahead[:, :, 0])
        ahead = chains.step @ ahead
    before, last = covariance[:, -2], covariance[:, -1]
    decay = np.clip(last / np.where(before > FORGOTTEN * covariance[:, 0], before, np.inf), 0.0, 0.999)
    total = covariance[:, 0] + 2.0 * covariance[:, 1:].sum(axis=1) + 2.0 * np.maximum(last, 0.0) * decay / (1.0 - decay)
    return np.stack((np.maximum(total, 0.0), decay), axis=1)


def _straight_on(x: Array, nodes: Array, values: Array) -> Array:
    """Values between nodes, and beyond the last as they went on before."""
    slope = (values[-1] - values[-2]) / (nodes[-1] - nodes[-2])
    return np.asarray(np.interp(x, nodes, values) + np.maximum(x - nodes[-1], 0.0) * slope)


def _time_average(life: Array) -> Array:
    r"""Standard deviation of the mean over a ``life`` [relaxation times] of an exponentially correlated quantity, over its own.

    :math:`\sqrt{2(x-1+e^{-x})}/x`.
    """
    x = np.maximum(life, 1e-12)
    return np.sqrt(np.where(x < 1e-3, 1.0 - x / 3.0, 2.0 * (x - 1.0 + np.exp(-x)) / np.maximum(x * x, 1e-9)))


def _find(u: Array, state: _State, felt: Array) -> tuple[NDArray[np.int64], Array]:
    """Chain of each draw and the backlog its request finds [tokens].

    A draw takes one of the two nodes beside ``felt``, by chance, so that means interpolate linearly; arrivals see time averages:
    an iteration counts by its duration.
    """
    chain, chains = _beside(u[7], state.nodes, felt), state.chains
    backlog = np.empty_like(felt)
    for k in range(state.nodes.size):
        mine = chain == k
        law = np.maximum(chains.law[k] * chains.duration[k], 0.0)
        law = law / law.sum()
        # an atom at the first, spread evenly between the others
        middle = np.cumsum(law) - 0.5 * law
        middle[0] = law[0]
        backlog[mine] = np.interp(u[1, mine], middle, chains.grid[k])
    return chain, backlog


def _beside(u: Array, nodes: Array, at: Array, first: int = 0) -> NDArray[np.int64]:
    """One of the two nodes beside each `at`, with the chance that makes the mean right."""
    if nodes.size == 1:
        return np.zeros(at.size, dtype=np.int64)
    left = np.clip(np.searchsorted(nodes, at, side="right") - 1, first, nodes.size - 2)
    chosen: NDArray[np.int64] = left + (u < (at - nodes[left]) / (nodes[left + 1] - nodes[left]))
    return chosen


def _per_token(points: Draws, state: _State, life: Array, start: Array) -> Array:
    """TPOT of requests whose decodes begin at backlog ``start`` [tokens] beside ``life`` decodes on average [s].

    Each is followed along its chain for up to :data:`LAGS` iterations; what is left has the mean, what the last state says of
    it, and a normal deviation.
    """
    chains, size = state.chains, state.chains.grid.shape[1]
    chain = _beside(points.u[7], state.nodes, life, first=1)
    steps = np.maximum(np.rint(points.steps), 1.0)
    order = np.argsort(-steps, kind="stable")
    chain, begin, lengths = chain[order], start[order], steps[order]
    below = np.cumsum(np.maximum(chains.step, 0.0), axis=2)
    below /= below[:, :, -1:]
    # one increasing table of all rows: row r covers (r, r + 1]
    rows = np.arange(below.shape[0] * size)[:, None]
    table = (below.reshape(-1, size) + rows).ravel()
    guide = np.searchsorted(table, (rows + np.arange(GUIDE) / GUIDE).ravel())
    duration = chains.duration.ravel()
    row = np.empty(POINTS, dtype=np.int64)
    for k, grid in enumerate(chains.grid):
        mine = chain == k
        right = np.clip(np.searchsorted(grid, begin[mine], side="right"), 1, size - 1)
        part = (begin[mine] - grid[right - 1]) / (grid[right] - grid[right - 1])
        row[mine] = k * size + right - 1 + (points.uniforms[0, mine] < part)
    total = duration[row]
    for j in range(1, int(min(lengths[0], LAGS))):
        # shortest last: those still decoding come first
        live = int(np.searchsorted(-lengths, -j))
        own, u = row[:live], points.uniforms[j, :live]
        # most lie a place or two beyond where their part of the row begins
        wanted, at = own + u, guide[own * GUIDE + (u * GUIDE).astype(np.int64)]
        for _ in range(3):
            at += table[at] < wanted
        far = np.flatnonzero(table[at] < wanted)
        at[far] = np.searchsorted(table, wanted[far])
        row[:live] = own // size * size + np.minimum(at - own * size, size - 1)
        total[:live] += duration[row[:live]]
    beyond, mean = np.maximum(lengths - LAGS, 0.0), state.means[chain]
    growth, decay = state.covariance[chain].T
    total += beyond * mean + (duration[row] - mean) * decay / (1.0 - decay) * (1.0 - decay**beyond)
    # prompts and the decodes they become come together
    variance = growth * beyond / lengths**2 + points.spectra.over(state.swing.covariance, lengths)
    each = total / lengths - mean + np.sqrt(np.maximum(variance, 0.0)) * deviates(11)[order]
    tpot = np.empty(POINTS)
    tpot[order] = each
    tpot += _straight_on(life, state.nodes[1:], state.means[1:])
    least = _straight_on(life, state.nodes, state.least)
    return np.where(points.steps > 0.0, np.maximum(tpot, least), 0.0)
