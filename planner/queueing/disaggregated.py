"""Prefill nodes and decode nodes apart: a queue of whole prompts, and a chain of decoding slots fed by KV transfers.

A prefill node serves whole prompts one after the other and emits the first token: an M/G/1 queue per node, or M/G/c when
the nodes pull from one queue. A request then waits for its KV cache to arrive, for the running decode iteration to end,
for a slot if all are taken, and lives through output - 1 iterations whose length follows the others present. Laws are
kept as mixtures of uniform pieces, whose quantiles are exact; percentiles are never added.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.queueing.mgc import wait_probability, wait_quantile
from planner.queueing.mixture import mixture_quantiles, persistence, strata
from planner.queueing.service import ServiceLaw
from planner.queueing.slots.chain import OccupancyChain
from planner.queueing.slots.wait import WAIT_SURVIVAL, SlotWait

FloatArray = NDArray[np.float64]

WAIT_KNOTS = np.concatenate(([1.0], np.geomspace(0.95, 1e-6, 48)))
"""Survival probabilities among those who wait at which the wait for a prefill node is known [1]."""

SERVICE_GROUPS, LIFE_GROUPS = 160, 120
"""Representatives of the rows for TTFT and TPOT."""

JOINT_GROUPS, JOINT_PIECES = (120, 2000), 100_000
"""Fewest and most representatives for E2E, and pieces in all that the number between them is chosen for."""

NO_WAIT = 1e-8
"""A smaller probability of waiting changes no quantile anyone reads [1]."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """A law as uniform pieces.

    Parameters
    ----------
    start, width
        Left ends and lengths [s]; shape (pieces,).
    mass
        Probabilities, summing to 1 [1]; shape (pieces,).
    """

    start: FloatArray
    width: FloatArray
    mass: FloatArray

    def quantiles(self, levels: ArrayLike) -> FloatArray:
        """At levels in [0, 1) [s]."""
        return mixture_quantiles(self.start, self.width, self.mass, levels)

    @property
    def mean(self) -> float:
        """Mean [s]."""
        return float(self.mass @ (self.start + 0.5 * self.width))


def row_groups(key: FloatArray, weight: FloatArray, columns: FloatArray, count: int) -> tuple[FloatArray, FloatArray]:
    """Means of `columns` over at most about `count` groups of rows with neighbouring keys, finer towards the upper tail.

    Parameters
    ----------
    key
        What decides who is alike [any unit]; shape (rows,).
    weight
        Probabilities of the rows [1].
    columns
        Values to average, shape (k, rows).
    count
        About how many groups.

    Returns
    -------
    tuple of ndarray
        Means, shape (k, groups), and probabilities, shape (groups,).

    >>> means, mass = row_groups(np.array([2.0, 1.0]), np.array([0.5, 0.5]), np.array([[20.0, 10.0]]), 5)
    >>> means.tolist(), mass.tolist()
    ([[10.0, 20.0]], [0.5, 0.5])
    """
    keep = weight > 0.0
    key, weight, columns = key[keep], weight[keep], columns[:, keep]
    order = np.argsort(key, kind="stable")
    w, c = weight[order] / weight.sum(), columns[:, order]
    if len(w) > count:
        middle = np.cumsum(w) - 0.5 * w
        edges = np.concatenate(
            (np.linspace(0.0, 1.0, count * 2 // 3)[1:-1], 1.0 - np.geomspace(0.08, 2e-4, count // 3))
        )
        index = np.searchsorted(np.unique(edges), middle)
        mass = np.bincount(index, w)
        used = mass > 0.0
        c = np.stack([np.bincount(index, w * row)[used] / mass[used] for row in c])
        w = mass[used]
    return c, w


class PrefillNodes:
    r"""Nodes that prefill whole prompts first come first served, one at a time.

    .. math:: TTFT = W + S, \qquad W: M/G/1 \text{ at } \lambda/n \text{ (split at random), or } M/G/n \text{ (one queue)}

    Parameters
    ----------
    service_s
        Prefill time of every row, > 0 [s]; shape (rows,).
    weight
        Probabilities of the rows [1]; shape (rows,).

    Examples
    --------
    >>> nodes = PrefillNodes(np.array([0.1]), np.array([1.0]))
    >>> round(nodes.capacity_per_s, 9)
    10.0
    >>> nodes.first_token(nodes.wait(1e-9, 1)).quantiles([0.99]).round(6).tolist()
    [0.1]
    """

    def __init__(self, service_s: FloatArray, weight: FloatArray) -> None:
        self.service_s = np.asarray(service_s, dtype=np.float64)
        self.weight = np.asarray(weight, dtype=np.float64)
        if not (np.all(np.isfinite(self.service_s)) and np.all(self.service_s > 0.0)):
            raise ValueError("service_s must be finite and > 0")
        self.law = ServiceLaw.from_samples(self.service_s, self.weight)
        self._groups = row_groups(self.service_s, self.weight, self.service_s[None, :], SERVICE_GROUPS)

    @property
    def capacity_per_s(self) -> float:
        """Largest stable rate of one node [1/s]."""
        return 1.0 / self.law.mean

    def wait_probability(self, arrival_rate: float, nodes: int, one_queue: bool = False) -> float:
        """Share of the requests that wait [1]; arrival_rate of all nodes [1/s]."""
        rate, servers = (arrival_rate, nodes) if one_queue else (arrival_rate / nodes, 1)
        return float(wait_probability(rate, self.law.mean, servers, law=self.law))

    def wait(self, arrival_rate: float, nodes: int, one_queue: bool = False) -> Pieces:
        """Law of the wait for a node under Poisson arrivals.

        Parameters
        ----------
        arrival_rate
            Of all nodes, below ``nodes * capacity_per_s`` [1/s].
        nodes
            n [nodes].
        one_queue
            Idle nodes pull from one queue; otherwise requests are split at random.
        """
        rate, servers = (arrival_rate, nodes) if one_queue else (arrival_rate / nodes, 1)
        waiting = self.wait_probability(arrival_rate, nodes, one_queue)
        if waiting < NO_WAIT:
            return Pieces(np.zeros(1), np.zeros(1), np.ones(1))
        levels = 1.0 - waiting * WAIT_KNOTS
        knots = np.asarray(wait_quantile(rate, self.law.mean, servers, quantile=levels, law=self.law))
        knots[0] = 0.0
        knots = np.maximum.accumulate(knots)
        mass = waiting * -np.diff(WAIT_KNOTS, append=0.0)
        # beyond the last knot: a point there
        return Pieces(
            np.concatenate(([0.0], knots)),
            np.concatenate(([0.0], np.diff(knots), [0.0])),
            np.concatenate(([1.0 - waiting], mass)),
        )

    def first_token(self, wait: Pieces) -> Pieces:
        """Law of the time to first token after a wait of that law."""
        (service,), mass = self._groups
        return Pieces(
            (service[:, None] + wait.start).ravel(),
            np.broadcast_to(wait.width, (len(service), len(wait.width))).ravel(),
            np.outer(mass, wait.mass).ravel(),
        )


@dataclass(frozen=True, slots=True, eq=False)
class DecodeState:
    """What requests meet at the decode nodes at one rate.

    Parameters
    ----------
    load, mean_running, slot_occupancy, wait_probability
        Rate over capacity; sequences of a node; their share of the slots; share that finds every slot taken [1].
    others
        Others sharing iterations, per stratum, in the long run of a life: ``centre + keep (others - centre)``.
    centre
        Their mean.
    spread
        Width of each stratum [sequences].
    mass
        Probability of each stratum [1].
    rest_s
        Longest rest of the running iteration on arrival, per stratum [s].
    memory
        Iterations over which the numbers present stay correlated.
    delay
        Wait for a slot of those who wait [s].
    """

    load: float
    mean_running: float
    slot_occupancy: float
    wait_probability: float
    others: FloatArray
    centre: float
    spread: FloatArray
    mass: FloatArray
    rest_s: FloatArray
    memory: float
    delay: Pieces


class DecodeNodes:
    r"""Nodes that decode requests whose first token and KV cache come from elsewhere, split at random.

    A request with output :math:`O > 1` takes :math:`D = O - 1` iterations. Busy slots follow the product form of
    :class:`planner.queueing.slots.chain.OccupancyChain` with :math:`E[D \mid O > 1]` iterations per request; a request's own
    context makes its iterations longer than the mean request's by `own_s`.

    Parameters
    ----------
    decodes
        D of every row, >= 1 [iterations]; shape (rows,).
    transfer_s
        KV transfer time of every row [s].
    own_s
        Time the row's own context adds to an iteration beyond the mean request's, may be negative [s].
    weight
        Probabilities of the rows [1].
    iteration_time
        t(0..slots) with the mean context, shape (slots + 1,) [s].
    noise_s
        Standard deviation of an iteration's time from one other request's context [s].

    Examples
    --------
    >>> one = np.ones(1)
    >>> nodes = DecodeNodes(99 * one, 0 * one, 0 * one, one, 0.01 * np.ones(9))
    >>> round(nodes.capacity_per_s, 6), nodes.tpot(nodes.solve(1e-9)).quantiles([0.5]).round(6).tolist()
    (8.080808, [0.01])
    """

    def __init__(
        self,
        decodes: FloatArray,
        transfer_s: FloatArray,
        own_s: FloatArray,
        weight: FloatArray,
        iteration_time: FloatArray,
        noise_s: float = 0.0,
    ) -> None:
        self.decodes = np.asarray(decodes, dtype=np.float64)
        self.weight = np.asarray(weight, dtype=np.float64) / np.sum(weight)
        self.transfer_s = np.asarray(transfer_s, dtype=np.float64)
        self.own_s = np.asarray(own_s, dtype=np.float64)
        if not np.all(self.decodes > 0.0):
            raise ValueError("decodes must be > 0")
        self.iteration_time = np.asarray(iteration_time, dtype=np.float64)
        self.slots = len(self.iteration_time) - 1
        self.noise_s = noise_s
        self.mean_decodes = float(self.weight @ self.decodes)
        self.scv = max(float(self.weight @ self.decodes**2) / self.mean_decodes**2 - 1.0, 0.0)
        self._chain = OccupancyChain(self.iteration_time, self.slots)
        self._wait = SlotWait(self.decodes, self.weight)
        inverse = 1.0 / self.decodes
        columns = np.stack([self.decodes, inverse, self.transfer_s * inverse, self.own_s])
        step = float(self.iteration_time[max(1, self.slots // 2)])
        self._lives = row_groups(columns[2] + 0.5 * step * inverse + self.own_s, self.weight, columns, LIFE_GROUPS)

    def serving(self, decodes: FloatArray, before_s: FloatArray, own_s: FloatArray, weight: FloatArray) -> DecodeNodes:
        """The same nodes at work, asked about other rows of the same requests (:func:`end_to_end`); as in the constructor."""
        other = copy(self)
        other.decodes, other.transfer_s, other.own_s, other.weight = decodes, before_s, own_s, weight / weight.sum()
        return other

    @property
    def capacity_per_s(self) -> float:
        """Largest stable rate of one node, of requests that decode [1/s]."""
        return float(self._chain.max_work) / self.mean_decodes

    def relaxation_s(self, load: float) -> float:
        """About how long the occupancy remembers a burst [s]."""
        return self.mean_decodes * float(self.iteration_time[-1]) / (1.0 - load)

    def times(self, active: FloatArray) -> FloatArray:
        """t at a real number of active slots [s]."""
        found: FloatArray = np.interp(
            np.clip(active, 1.0, self.slots), np.arange(self.slots + 1.0), self.iteration_time
        )
        return found

    def solve(self, node_rate: float, dispersion: float = 1.0) -> DecodeState:
        """Occupancy of a node.

        Parameters
        ----------
        node_rate
            Rate of one node, below :attr:`capacity_per_s` [1/s].
        dispersion
            Of the node's arrivals over one relaxation time, 1 = Poisson [1].
        """
        load = node_rate / self.capacity_per_s
        stretch = 1.0 - self.iteration_time[1] / self.iteration_time[-1] if self.slots > 1 else 0.0
        none, full = self._wait.overlap, 1.0 / (1.0 + self.scv)
        share = none + (full - none) * min(load, 1.0) * stretch
        occupied = self._chain.solve(node_rate * self.mean_decodes, max(1.0 + (dispersion - 1.0) * share, 0.05))
        probability = occupied.probability
        states = np.arange(occupied.first, occupied.first + len(probability), dtype=np.float64)
        mean = float(probability @ states)
        variance = float(probability @ states**2) - mean**2
        delayed = occupied.all_busy
        free = probability[:-1] if states[-1] == self.slots and len(states) > 1 else probability
        found, spread, mass, idle = strata(states[: len(free)], free, 1)
        memory = self.mean_decodes * 0.5 * (1.0 + self.scv) * max(variance / mean, 0.05) if mean else 1.0
        if delayed > NO_WAIT:
            burst = (max(dispersion, 0.0) + self.scv) / (1.0 + self.scv)
            edges = self._wait.edges(self.slots, load)
            leave = self.slots / self.mean_decodes
            rounding = 0.5 + 1.0 / np.expm1(leave) - 1.0 / leave
            edges = float(self.iteration_time[-1]) * (edges * burst + rounding)
            wait_mass = -np.diff(WAIT_SURVIVAL, append=0.0)[:-1]
            delay = Pieces(edges[:-1], np.diff(edges), wait_mass / wait_mass.sum())
        else:
            delayed, delay = 0.0, Pieces(np.zeros(1), np.zeros(1), np.ones(1))
        return DecodeState(
            load=load,
            mean_running=occupied.mean_active,
            slot_occupancy=occupied.slot_occupancy,
            wait_probability=delayed,
            others=found,
            centre=mean,
            spread=spread,
            mass=mass,
            rest_s=np.where(idle, 0.0, self.times(found)),
            memory=memory,
            delay=delay,
        )

    def _iterations(self, state: DecodeState, count: FloatArray, others: FloatArray, spread: FloatArray) -> Pieces:
        """Mean iteration of a life of `count` iterations, by group and stratum, as start and width (mass left out)."""
        keep = persistence(count, state.memory)[:, None]
        middle = 1.0 + state.centre + (others - state.centre)[None, :] * keep
        low = self.times(middle - 0.5 * spread[None, :] * keep)
        high = self.times(middle + 0.5 * spread[None, :] * keep)
        # the others' contexts differ: a uniform law with their sum's standard deviation, joined in variance
        shaken = np.sqrt(12.0) * self.noise_s * np.sqrt(np.maximum(middle - 1.0, 0.0)) * keep
        width = np.hypot(high - low, shaken)
        start = 0.5 * (low + high - width)
        return Pieces(start, width, np.empty(0))

    def _after(
        self, state: DecodeState, count: FloatArray, inverse: FloatArray, mass: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Start, width and mass of (rest of an iteration + wait) x `inverse` + mean iteration, groups x pieces."""
        iteration = self._iterations(state, count, state.others, state.spread)
        rest = inverse[:, None] * state.rest_s[None, :]
        start, width = iteration.start, np.hypot(iteration.width, rest)
        start = start + 0.5 * (rest + iteration.width - width)
        weight = np.outer(mass, state.mass * (1.0 - state.wait_probability))
        if state.wait_probability == 0.0:
            return start, width, weight
        full = self._iterations(state, count, np.array([self.slots - 1.0]), np.zeros(1))
        wait, long = inverse[:, None] * state.delay.start, inverse[:, None] * state.delay.width
        late_width = np.hypot(full.width, long)
        late = full.start + wait + 0.5 * (full.width + long - late_width)
        return (
            np.concatenate((start, late), axis=1),
            np.concatenate((width, late_width), axis=1),
            np.concatenate((weight, np.outer(mass, state.delay.mass * state.wait_probability)), axis=1),
        )

    def tpot(self, state: DecodeState) -> Pieces:
        """Law of (last token - first token)/(output - 1) over the requests that decode: transfer and wait are in it."""
        (count, inverse, moved, own), mass = self._lives
        start, width, weight = self._after(state, count, inverse, mass)
        return Pieces((start + (moved + own)[:, None]).ravel(), width.ravel(), weight.ravel())

    def after_first_token(self, state: DecodeState, decodes: FloatArray, fixed_s: FloatArray) -> Pieces:
        """From the first token to the last for groups of requests, shapes (groups, pieces); masses sum to 1 per group.

        Parameters
        ----------
        state
            The node.
        decodes
            D of every group [iterations].
        fixed_s
            Transfer and own context's time of every group [s].
        """
        ones = np.ones(len(decodes))
        start, width, weight = self._after(state, decodes, 1.0 / decodes, ones)
        return Pieces(start * decodes[:, None] + fixed_s[:, None], width * decodes[:, None], weight)


def end_to_end(
    prefill: PrefillNodes,
    wait: Pieces,
    decode: DecodeNodes | None,
    state: DecodeState | None,
    moving: NDArray[np.bool_],
) -> Pieces:
    """Law of the time from arrival to the last token: wait and prefill, then transfer, wait and decode iterations.

    Parameters
    ----------
    prefill, wait
        The prefill nodes and their :meth:`PrefillNodes.wait`.
    decode, state
        The decode nodes and their state; ``None`` when nobody decodes.
    moving
        Rows of `prefill` that go on to decode, in the order of `decode`'s rows; shape (rows,).
    """
    starts, widths, masses = [], [], []
    stay = ~moving
    if np.any(stay & (prefill.weight > 0.0)):
        (service,), mass = row_groups(
            prefill.service_s[stay], prefill.weight[stay], prefill.service_s[None, stay], SERVICE_GROUPS
        )
        share = float(prefill.weight[stay].sum())
        starts.append((service[:, None] + wait.start).ravel())
        widths.append(np.broadcast_to(wait.width, (len(service), len(wait.width))).ravel())
        masses.append(np.outer(share * mass, wait.mass).ravel())
    if decode is not None and state is not None:
        service = prefill.service_s[moving]
        fixed = service + decode.transfer_s + decode.decodes * decode.own_s
        typical = float(decode.times(np.array([1.0 + state.centre]))[0])
        columns = np.stack([decode.decodes, fixed])
        # few waits suffice: neighbours are merged, so that the product stays small
        few = _merged(wait, 12)
        pieces = len(few.mass) * (len(state.mass) + (len(state.delay.mass) if state.wait_probability > 0.0 else 0))
        groups = min(max(JOINT_PIECES // pieces, JOINT_GROUPS[0]), JOINT_GROUPS[1])
        (count, known), mass = row_groups(fixed + decode.decodes * typical, decode.weight, columns, groups)
        share = float(prefill.weight[moving].sum())
        after = decode.after_first_token(state, count, known)
        start = after.start[:, :, None] + few.start
        width = np.hypot(after.width[:, :, None], few.width)
        start = start + 0.5 * (after.width[:, :, None] + few.width - width)
        weight = share * mass[:, None, None] * after.mass[:, :, None] * few.mass
        starts.append(start.ravel())
        widths.append(width.ravel())
        masses.append(weight.ravel())
    return Pieces(np.concatenate(starts), np.concatenate(widths), np.concatenate(masses))


def _merged(pieces: Pieces, count: int) -> Pieces:
    """Neighbouring pieces of positive width joined in pairs or more, means and ends kept; point masses as they are."""
    wide = pieces.width > 0.0
    number = int(np.count_nonzero(wide))
    if number <= count:
        return pieces
    size = -(-number // count)
    index = np.arange(number) // size
    w = np.bincount(index, pieces.mass[wide])
    start = pieces.start[wide][::size]
    end = np.append(start[1:], (pieces.start + pieces.width)[wide][-1])
    centre = np.bincount(index, (pieces.mass * (pieces.start + 0.5 * pieces.width))[wide]) / np.maximum(w, 1e-300)
    half = np.minimum(centre - start, end - centre)
    return Pieces(
        np.concatenate((pieces.start[~wide], centre - half)),
        np.concatenate((pieces.width[~wide], 2.0 * half)),
        np.concatenate((pieces.mass[~wide], w)),
    )
