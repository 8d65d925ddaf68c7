r"""A pool run along the path that its traffic took: every request with its own time and lengths.

Counts of arrivals with independent lengths do not tell what a burst does: in measured traffic long prompts come together. What
does is the trace itself. Each replica's prompts form a queue of prefill work that obeys Lindley's recursion

.. math:: W_{i+1} = (W_i + s_i - (a_{i+1} - a_i))^+

in vector form :math:`W_i = c_i - \min_{j \le i} c_j`, :math:`c_i = \sum_{j<i} s_j - a_i`. The work :math:`s_i` is the part of the
iterations that a prompt fills; it depends on how many sequences decode beside it and on how many prompts share an iteration, and
those depend on the waits: a few rounds of substitution settle all three. Decodes advance by an **iteration clock**, a full
prefill iteration a step and a decode iteration a step, so that the time per output token of every request comes from the
backlogs it really lives through. A request that finds no free slot or memory starts when enough of those before it have left.

Routing by numbers in flight is decided request by request on a coarse picture of the replicas (when each has worked off its
prompts, how far its decodes are); the recursion then runs on what each replica got.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace

import numpy as np
from numpy.typing import NDArray

from planner.queueing.common_draws import SECOND, WITHIN, numbered, replicas_drawn, uniforms
from planner.queueing.reuse import own_tokens

Array = NDArray[np.float64]
Cost = Callable[..., Array]
"""Duration of iterations [s] by decodes, sum of their contexts [tokens], prefill tokens and query-key pairs."""

ROUNDS = 4
"""Rounds of substitution between waits, decodes and shared iterations; a fifth changes P99 by less than 1%."""

APART_S = 1e6
"""Replicas (and blocks of a sampled path) are laid one after another on one time axis, this far apart [s]."""


@dataclass(frozen=True, slots=True, eq=False)
class PathRequests:
    """Requests of a pool in order of arrival.

    Parameters
    ----------
    times
        Arrival times [s], shape (requests,), not decreasing.
    tokens, pairs
        Prompt tokens to compute (> 0) and query-key pairs of their attention, shape (requests,).
    steps
        Decode steps [iterations], shape (requests,).
    context
        Mean context of its decode steps [tokens], shape (requests,).
    held
        What it holds in memory for itself in the mean of its decode steps: its context without what is kept once for all
        [tokens], shape (requests,).
    weight
        How many requests of the whole path it stands for, shape (requests,): 0 for those of a warm-up.
    block
        Stretch of the path it belongs to, shape (requests,), ascending: nothing waits at the start of each.
    keys
        What its random choices hang on, shape (requests,); see :mod:`planner.queueing.common_draws`.
    level, backlog
        Decodes that run when each stretch begins, relative to their mean [1], and what waits then [s]; shape (stretches,).
    """

    times: Array
    tokens: Array
    pairs: Array
    steps: Array
    context: Array
    held: Array
    weight: Array
    block: NDArray[np.int64]
    keys: NDArray[np.uint64]
    level: Array = field(default_factory=lambda: np.zeros(1))
    backlog: Array = field(default_factory=lambda: np.zeros(1))

    @classmethod
    def of(
        cls,
        times: Array,
        input_tokens: Array,
        output_tokens: Array,
        cached_share: Array | float = 0.0,
        shared_prefix: float = 0.0,
    ) -> PathRequests:
        """Requests by their lengths [tokens] and the share of each prompt in the prefix cache [1], all of shape (requests,).

        A prompt wholly in the cache still computes one token; `shared_prefix` tokens of it may be kept once for all.
        """
        new = np.maximum((1.0 - cached_share) * input_tokens, 1.0)
        steps = np.maximum(output_tokens - 1.0, 0.0)
        pairs = new * (np.maximum(input_tokens - new, 0.0) + 0.5 * (new + 1.0))
        written = 0.5 * (steps + 1.0)
        return cls(
            times, new, pairs, steps, input_tokens + written, own_tokens(input_tokens, shared_prefix) + written,
            np.ones(times.size), np.zeros(times.size, dtype=np.int64), numbered(times.size),
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Number of requests."""
        return int(self.times.size)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> PathRequests:
        """The requests at `rows`."""
        return PathRequests(
            self.times[rows], self.tokens[rows], self.pairs[rows], self.steps[rows], self.context[rows],
            self.held[rows], self.weight[rows], self.block[rows], self.keys[rows], self.level, self.backlog,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Followed:
    """What every counted request of a path went through.

    Attributes
    ----------
    rows : ndarray of int, shape (requests,)
        Which request of the path each is.
    weight : ndarray, shape (requests,)
        How many requests it stands for.
    ttft, e2e : ndarray, shape (requests,)
        Arrival to first and to last token [s].
    tpot : ndarray, shape (requests,)
        Time per output token after the first [s]; NaN where there is none.
    waited : ndarray, shape (requests,)
        Time until a slot and memory were free [s].
    running_mean : float
        Mean decodes of a replica over time.
    held_back_s : float
        Mean time that requests waited with their clients before [s].
    """

    rows: NDArray[np.int64]
    weight: Array
    ttft: Array
    tpot: Array
    e2e: Array
    waited: Array
    running_mean: float
    held_back_s: float = 0.0
    _sorted: dict[str, tuple[Array, Array, NDArray[np.int64]]] = field(default_factory=dict, init=False, repr=False)

    @property
    def wait_probability(self) -> float:
        """Share of the requests that waited for a slot or for memory [1]."""
        return float(self.weight @ (self.waited > 0.0) / self.weight.sum())

    def values(self, metric: str) -> tuple[Array, Array, NDArray[np.int64]]:
        """Values of ``"ttft_s"``, ``"tpot_s"`` or ``"e2e_s"`` [s] in order, their weights, and whose they are."""
        if metric not in self._sorted:
            found: Array = getattr(self, metric.removesuffix("_s"))
            # what has none is last
            order = np.argsort(found)[: np.count_nonzero(np.isfinite(found))]
            self._sorted[metric] = found[order], self.weight[order], self.rows[order]
        return self._sorted[metric]

    def quantiles(self, metric: str, levels: Array) -> Array:
        """Quantiles of a metric [s], shape of `levels`; 0 where no request has it."""
        found, weight, _ = self.values(metric)
        return _quantiles(found, weight, levels) if found.size else np.zeros(np.shape(levels))


def _quantiles(values: Array, weight: Array, levels: Array) -> Array:
    """Quantiles of sorted weighted values, linear between the middles of their weights."""
    middle = np.cumsum(weight) - 0.5 * weight
    found: Array = np.interp(np.asarray(levels) * (middle[-1] + 0.5 * weight[-1]), middle, values)
    return found


def assign_replicas(
    times: Array,
    work: Array,
    life: Array,
    held_up: float,
    replicas: int,
    candidates: int | None = 1,
    in_turn: bool = False,
    keys: NDArray[np.uint64] | None = None,
) -> NDArray[np.int64]:
    """Replica of every request.

    Parameters
    ----------
    times
        Arrival times [s], not decreasing, shape (requests,).
    work, life
        Time of its prefill alone, and of its decode steps where no prefill disturbs them [s], shape (requests,).
    held_up
        Share of the time of a prefill by which decodes beside it fall behind [1].
    replicas
        Replicas of the pool.
    candidates
        Distinct replicas drawn at random for an arrival, of which the one with the fewest requests in flight gets it, ties at
        random: 1, 2, or ``None`` for all.
    in_turn
        Replicas are taken in turn instead.
    keys
        What the random choices of each request hang on, shape (requests,); its place unless given.

    Returns
    -------
    ndarray of int, shape (requests,)
    """
    count = times.size
    keys = numbered(count) if keys is None else keys
    if replicas == 1:
        return np.zeros(count, dtype=np.int64)
    if in_turn:
        return np.arange(count) % replicas
    first = replicas_drawn(keys, replicas)
    if candidates == 1:
        return first
    second = replicas_drawn(keys, replicas - 1, SECOND)
    second += second >= first
    rows = zip(times.tolist(), first.tolist(), second.tolist(), work.tolist(), life.tolist(), strict=True)
    if candidates == 2:
        return _of_two(rows, replicas, held_up)
    state = _Flying(replicas, held_up)
    return np.array([state.of_all(now, first, work, life) for now, first, _, work, life in rows], dtype=np.int64)


def _by_replica(replica: NDArray[np.int64], replicas: int) -> NDArray[np.int64]:
    """Places of the requests replica by replica, each in order of arrival."""
    # few digits sort by counting
    keys = replica.astype(np.uint16) if replicas < 1 << 16 else replica
    return np.asarray(np.argsort(keys, kind="stable"), dtype=np.int64)


def _not_beyond(values: Array, at: Array) -> NDArray[np.int64]:
    """How many of `values` are at most `at`, both ascending: a search that goes on where the one before it ended."""
    places = np.interp(at, values, np.arange(1.0, values.size + 1.0), left=0.0)
    return np.asarray(places, dtype=np.int64)


class _Flying:
    """Requests in flight at every replica, on a coarse picture of it.

    A replica works off its prompts one after another; decodes last their life on a clock that runs slower, by the share
    `held_up`, while there are prompts. The real time at which the next request leaves is kept up to date for each.
    """

    def __init__(self, replicas: int, held_up: float) -> None:
        self._held_up = min(held_up, 0.99)
        # when its prompts are done, prefill it ever had, ends of its requests on its clock, the first of them in real time
        self._free, self._busy = [0.0] * replicas, [0.0] * replicas
        self._ends: list[list[float]] = [[] for _ in range(replicas)]
        self._due = [np.inf] * replicas
        self._counts = [0] * replicas

    def of_all(self, now: float, first: int, work: float, life: float) -> int:
        """Send a request to the replica with the fewest in flight, looking from `first` on."""
        due, counts = self._due, self._counts
        while (soonest := min(due)) <= now:
            self._leave(due.index(soonest))
        fewest = min(counts)
        if counts[first] != fewest:
            # the next one round, so that ties fall evenly
            first = counts.index(fewest, first) if fewest in counts[first:] else counts.index(fewest)
        return self._send(now, first, work, life)

    def _leave(self, r: int) -> None:
        """One request of a replica is done."""
        heappop(self._ends[r])
        self._counts[r] -= 1
        self._next(r)

    def _send(self, now: float, r: int, work: float, life: float) -> int:
        """Put a request on a replica."""
        done = (self._free[r] if self._free[r] > now else now) + work
        self._free[r] = done
        self._busy[r] += work
        heappush(self._ends[r], done - self._held_up * self._busy[r] + life)
        self._counts[r] += 1
        self._next(r)
        return r

    def _next(self, r: int) -> None:
        """When the next request of a replica leaves: its clock stands at t - h (busy - what is left of the prompts)."""
        if not self._ends[r]:
            self._due[r] = np.inf
            return
        free, held = self._free[r], self._held_up
        due = self._ends[r][0] + held * self._busy[r]
        self._due[r] = due if due >= free else (due - held * free) / (1.0 - held)


def _of_two(rows: Iterable[tuple[float, int, int, float, float]], replicas: int, held_up: float) -> NDArray[np.int64]:
    """Send each request to the one of two replicas with fewer in flight; the first on a tie: both were drawn alike.

    The picture is that of :class:`_Flying`, written out in one loop: it is passed for every request of every prediction. Clocks
    are read when an arrival looks at a replica; ends are kept in order, so that all that have passed go at once.
    """
    held = min(held_up, 0.99)
    free, behind = [0.0] * replicas, [0.0] * replicas
    ends: list[list[float]] = [[] for _ in range(replicas)]
    found = []
    for now, first, second, work, life in rows:
        one, two = ends[first], ends[second]
        if one:
            left = free[first] - now
            clock = now - behind[first] + (held * left if left > 0.0 else 0.0)
            if one[0] <= clock:
                del one[: bisect_right(one, clock)]
        if two:
            left = free[second] - now
            clock = now - behind[second] + (held * left if left > 0.0 else 0.0)
            if two[0] <= clock:
                del two[: bisect_right(two, clock)]
        if len(two) < len(one):
            first, one = second, two
        before = free[first]
        done = free[first] = (before if before > now else now) + work
        late = behind[first] = behind[first] + held * work
        insort(one, done - late + life)
        found.append(first)
    return np.array(found, dtype=np.int64)


def _mean_decodes(requests: PathRequests, rate: float, cost: Cost, budget: float) -> tuple[float, float]:
    """Mean decodes of a replica and its mean iteration [s] at a rate [1/s], by Little's law."""
    steps, tokens = float(requests.steps.mean()), float(requests.tokens.mean())
    pairs = float(requests.pairs.mean()) / tokens
    context = float(requests.steps @ requests.context) / max(float(requests.steps.sum()), 1e-300)
    duration = float(cost(1.0, context, 0.0, 0.0))
    decodes = 0.0
    for _ in range(30):
        decodes = min(rate * steps * duration, 0.9 * budget)
        prefill = min(rate * tokens * duration, budget - decodes)
        duration = max(
            float(cost(decodes, decodes * context, prefill, prefill * pairs)), float(cost(1.0, context, 0.0, 0.0))
        )
    return decodes, duration


def prefill_work(requests: PathRequests, rate: float, cost: Cost, budget: float) -> Array:
    """How long each prompt keeps a replica at a rate [1/s] beside its usual decodes [s], shape (requests,)."""
    decodes, _ = _mean_decodes(requests, rate, cost, budget)
    return _prefill_work(requests, decodes, cost, budget)[0]


def _prefill_work(requests: PathRequests, decodes: float, cost: Cost, budget: float) -> tuple[Array, Array]:
    """The same beside a number of decodes, and the iterations it fills [1]."""
    context = float(requests.steps @ requests.context) / max(float(requests.steps.sum()), 1e-300)
    batch = np.minimum(requests.tokens, max(budget - decodes, 1.0))
    iterations = requests.tokens / batch
    return iterations * cost(decodes, decodes * context, batch, batch * requests.pairs / requests.tokens), iterations


def follow_path(
    requests: PathRequests,
    cost: Cost,
    *,
    replicas: int = 1,
    candidates: int | None = 1,
    in_turn: bool = False,
    budget: float = np.inf,
    slots: float = np.inf,
    kv_tokens: float = np.inf,
) -> Followed:
    """Run a pool of replicas that mix prefill and decodes along a path.

    Parameters
    ----------
    requests
        The path, at the rate of the whole pool.
    cost
        Duration of iterations; see :data:`Cost`.
    replicas, candidates, in_turn
        The pool, as :func:`assign_replicas` takes it.
    budget
        Tokens of an iteration, decodes included [tokens].
    slots, kv_tokens
        Sequences and tokens of KV memory that a replica holds, what it keeps once for all left out.

    Returns
    -------
    Followed
        Of the counted requests, in order of replica and arrival.
    """
    # blocks of a sampled path lie apart, so that none starts with the backlog of another
    times = requests.times + APART_S * 1e-2 * requests.block
    seconds = max(float(np.sum(np.diff(requests.times)[np.diff(requests.block) == 0])), 1e-9)
    context = float(requests.steps @ requests.context) / max(float(requests.steps.sum()), 1e-300)
    decodes, _ = _mean_decodes(requests, requests.size / seconds / replicas, cost, budget)
    alone = float(cost(max(decodes, 1.0), max(decodes, 1.0) * context, 0.0, 0.0))
    if replicas > 1 and candidates != 1:
        work, iterations = _prefill_work(requests, decodes, cost, budget)
        behind = 1.0 - alone * float(iterations.sum()) / float(work.sum())
        replica = assign_replicas(
            times, work, requests.steps * alone, behind, replicas, candidates, in_turn, requests.keys
        )
    else:
        replica = assign_replicas(times, times, times, 0.0, replicas, 1, in_turn, requests.keys)
    order = _by_replica(replica, replicas)
    part = requests.take(order)
    queue = _Queue(times[order] + APART_S * 1e2 * replica[order], part, cost, budget, slots, kv_tokens)
    queue.settle(decodes, context, alone)
    first, end, arrived = queue.first, queue.end, queue.arrived
    steps = part.steps
    keep = part.weight > 0.0
    tpot = np.where(steps > 0.0, (end - first) / np.maximum(steps, 1.0), np.nan)
    return Followed(
        order[keep],
        part.weight[keep],
        (first - arrived)[keep],
        tpot[keep],
        (end - arrived)[keep],
        (queue.admitted - arrived)[keep],
        float(np.sum(end - first)) / (seconds * replicas),
    )


def follow_queue(requests: PathRequests, service: Array, *, servers: int = 1, one_queue: bool = False) -> Followed:
    """Run servers that take whole requests one after another along a path: the prefill nodes of a disaggregated fleet.

    Parameters
    ----------
    requests
        The path, at the rate of all servers.
    service
        Time of each request [s], shape (requests,).
    servers
        Number of servers.
    one_queue
        Idle servers pull from one queue; otherwise requests are split at random.

    Returns
    -------
    Followed
        Its TTFT and E2E are wait and service, it has no TPOT, and `waited` is the wait.
    """
    times = requests.times + APART_S * 1e-2 * requests.block
    if one_queue and servers > 1:
        order = np.arange(times.size)
        waited = _shared_queue(times, service, servers)
    else:
        replica = assign_replicas(times, times, times, 0.0, servers, keys=requests.keys)
        order = _by_replica(replica, servers)
        at, work = times[order] + APART_S * 1e2 * replica[order], service[order].copy()
        first_of = np.diff(at, prepend=-np.inf) > APART_S * 5e-3
        work[first_of] += requests.backlog[np.minimum(requests.block[order][first_of], requests.backlog.size - 1)]
        steps = np.concatenate(([0.0], work[:-1])) - np.diff(at, prepend=at[0])
        sums = np.cumsum(steps)
        waited = sums - np.minimum.accumulate(sums)
    keep = requests.weight[order] > 0.0
    rows, waited = order[keep], waited[keep]
    ttft = waited + service[rows]
    seconds = max(float(np.sum(np.diff(requests.times)[np.diff(requests.block) == 0])), 1e-9)
    return Followed(
        rows, requests.weight[rows], ttft, np.full(ttft.size, np.nan), ttft, waited,
        float(service.sum()) / (seconds * servers),
    )  # fmt: skip


def _shared_queue(times: Array, service: Array, servers: int) -> Array:
    """Waits of one queue before several servers, first come first served (Kiefer and Wolfowitz) [s]."""
    free = [0.0] * servers
    waits = []
    for now, own in zip(times.tolist(), service.tolist(), strict=True):
        start = max(now, free[0])
        heapreplace(free, start + own)
        waits.append(start - now)
    return np.array(waits)


class _Queue:
    """The requests of all replicas on one axis, and the rounds that settle their waits."""

    def __init__(
        self, arrived: Array, part: PathRequests, cost: Cost, budget: float, slots: float, kv_tokens: float
    ) -> None:
        self.arrived, self.part, self.cost = arrived, part, cost
        self.budget, self.slots, self.kv_tokens = budget, slots, kv_tokens
        self.admitted = arrived
        self.begin = self.first = self.end = arrived
        self._last = np.zeros(arrived.size)
        # where within a decode iteration an arrival finds one running
        self._place = uniforms(part.keys, WITHIN)
        self._served = np.concatenate(([0.0], np.cumsum(part.tokens)))
        # the first request of a replica or of a block finds it empty
        self._first_of = np.diff(arrived, prepend=-np.inf) > APART_S * 5e-3
        self._crowded = False
        self._density = part.pairs / part.tokens
        self._held_share = float(part.held.sum()) / max(float(part.context.sum()), 1e-300)
        self._left = np.zeros(arrived.size)
        self._left_context = 0.0

    def settle(self, decodes: float, context: float, duration: float) -> None:
        """Rounds of substitution from the steady number of decodes."""
        if self.part.level.any():
            self._start_with(decodes, context, duration)
        n = np.full(self.arrived.size, decodes)
        held = n * context
        for k in range(ROUNDS):
            begun, ended = self._round(n, held)
            if k + 1 < ROUNDS:
                n, held = self._running(begun, ended)

    def _round(self, n: Array, held: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Waits, first tokens and ends given the decodes each prompt is served beside; see :meth:`_decode`."""
        part, cost = self.part, self.cost
        room = np.maximum(self.budget - n, 1.0)
        whole = np.ceil(part.tokens / room) - 1.0
        rest = part.tokens - whole * room if np.isfinite(self.budget) else part.tokens
        start = self.first - self._last
        # prompts that have come by the time this one starts share its last iteration, as far as there is room
        there = _not_beyond(self.admitted, start)
        waiting = np.maximum(self._served[there] - self._served[1:], 0.0)
        batch = np.minimum(rest + waiting, room)
        last = cost(n, held, batch, batch * self._density)
        full = np.where(whole > 0.0, cost(n, held, room, room * self._density), 0.0) if np.any(whole > 0.0) else 0.0
        work = whole * full + last * (rest / batch)
        iterations = whole + rest / batch
        if part.backlog.any():
            # what waits when a stretch begins is served with its first request
            behind = np.where(self._first_of, part.backlog[np.minimum(part.block, part.backlog.size - 1)], 0.0)
            iterations = iterations * (1.0 + behind / work)
            work = work + behind
        self._admit(n, held, work)
        steps = np.concatenate(([0.0], work[:-1])) - np.diff(self.admitted, prepend=self.admitted[0])
        sums = np.cumsum(steps)
        begin = self.begin = self.admitted + (sums - np.minimum.accumulate(sums))
        decode = cost(np.maximum(n, 1.0), np.maximum(held, 1.0), 0.0, 0.0)
        # an arrival at a replica that only decodes waits for the end of the iteration under way
        idle = begin <= self.admitted + 1e-9
        residual = np.where(idle, self._place * decode * -np.expm1(-n), 0.0)
        self._last = whole * full + last + residual
        self.first = begin + self._last
        return self._decode(begin, work, iterations, decode)

    def _decode(
        self, begin: Array, work: Array, iterations: Array, decode: Array
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ends of all requests: the moment at which the iteration clock of their replica has made their steps.

        Returns, for each, how many prompts have begun by its first token, and by its end.
        """
        done = begin + work
        gap = np.append(np.maximum(begin[1:] - done[:-1], 0.0), APART_S)
        knots = np.empty(2 * begin.size)
        knots[0::2], knots[1::2] = begin, done
        ticks = np.empty(2 * begin.size)
        ticks[0], ticks[1::2], ticks[2::2] = 0.0, iterations, (gap / decode)[:-1]
        clock = np.cumsum(ticks)
        # first tokens are nearly in order: this search goes on where the one before it ended
        place = np.interp(self.first, knots, np.arange(0.0, knots.size)).astype(np.int64)
        pace = np.empty(knots.size)
        pace[0::2], pace[1::2] = work / np.maximum(iterations, 1e-300), decode
        wanted = clock[place] + (self.first - knots[place]) / np.maximum(pace[place], 1e-300) + self.part.steps
        ends = np.searchsorted(clock, wanted, side="right") - 1
        self.end = knots[ends] + (wanted - clock[ends]) * pace[ends]
        late = wanted > clock[-1]
        self.end[late] = (self.first + self.part.steps * decode)[late]
        return place // 2 + 1, ends // 2 + 1

    def _admit(self, n: Array, held: Array, work: Array) -> None:
        """Start no request before the slot and the memory it needs are free: first come, first served.

        It takes them when its prefill begins, not while it waits for the prompts before it.
        """
        # each of the decodes holds what it reads, but for what is kept once
        alone = held * self._held_share
        crowded = np.any(n >= self.slots - 1.0) or np.any(alone + self.part.held > self.kv_tokens)
        if not (crowded or self._crowded):
            return
        self._crowded = True
        stay = self.end - self.begin
        rows = np.flatnonzero(self._full_stretches(work, stay))
        self.admitted = self.arrived.copy()
        self.admitted[rows] = self._in_turn(rows, work, stay)

    def _full_stretches(self, work: Array, stay: Array) -> NDArray[np.bool_]:
        """Which requests are of a stretch that slots or memory would not hold if none waited for them: others never wait."""
        steps = np.concatenate(([0.0], work[:-1])) - np.diff(self.arrived, prepend=self.arrived[0])
        sums = np.cumsum(steps)
        begin = self.arrived + (sums - np.minimum.accumulate(sums))
        leave = begin + stay
        order = np.argsort(leave)
        gone = np.searchsorted(leave[order], begin, side="right")
        held = self.part.held
        freed = np.concatenate(([0.0], np.cumsum(held[order])))
        inside = np.arange(1, begin.size + 1) - gone
        # sums in another order differ in their last digits: what is as good as full is looked at
        full = (inside > self.slots) | (np.cumsum(held) - freed[gone] > self.kv_tokens * (1.0 - 1e-9))
        stretch = np.cumsum(self._first_of) - 1
        found: NDArray[np.bool_] = np.bincount(stretch, full)[stretch] > 0.0
        return found

    def _in_turn(self, rows: NDArray[np.int64], work: Array, stay: Array) -> Array:
        """When each of these may begin, request by request."""
        inside: list[tuple[float, float]] = []
        used, now, slots, memory = 0.0, -np.inf, self.slots, self.kv_tokens
        columns = (self.arrived, self.part.held, work, stay, self._first_of)
        admitted = self.arrived[rows].tolist()
        for k, (arrival, own, prompt, stays, first) in enumerate(
            zip(*(column[rows].tolist() for column in columns), strict=True)
        ):
            if first:
                inside, used, now = [], 0.0, -np.inf
            now = max(now, arrival)
            while inside and (len(inside) >= slots or used + own > memory or inside[0][0] <= now):
                left, freed = heappop(inside)
                used -= freed
                if left > now:
                    now = admitted[k] = left
            used += own
            heappush(inside, (now + stays, own))
            now += prompt
        return np.array(admitted)

    def _start_with(self, decodes: float, context: float, duration: float) -> None:
        """Decodes that were there when a stretch began, at each arrival: as many as are left after that time.

        What is left of the steps of one that is under way has the survival E[(D - k)^+]/E[D].
        """
        start = np.maximum.accumulate(np.where(self._first_of, self.arrived, -np.inf))
        steps = self.part.steps
        taken, width = np.linspace(0.0, float(steps.max()) + 1.0, 256, retstep=True)
        cell = (steps / width).astype(np.int64)
        number, total = (
            np.cumsum(np.bincount(cell, weight, taken.size)[::-1])[::-1] for weight in (np.ones(steps.size), steps)
        )
        survival = np.maximum(total - taken * number, 0.0) / max(float(total[0]), 1e-300)
        level = self.part.level[np.minimum(self.part.block, self.part.level.size - 1)]
        self._left = level * decodes * np.interp((self.arrived - start) / duration, taken, survival)
        self._left_context = context

    def _running(self, begun: NDArray[np.int64], ended: NDArray[np.int64]) -> tuple[Array, Array]:
        """Decodes and the sum of their contexts [tokens] on the own replica when each prompt begins.

        `begun` and `ended` say how many prompts had begun by the first token and by the end of each.
        """
        size, context = self.arrived.size, self.part.context
        number = np.cumsum(np.bincount(begun, minlength=size + 1) - np.bincount(ended, minlength=size + 1))[:size]
        held = np.cumsum(np.bincount(begun, context, size + 1) - np.bincount(ended, context, size + 1))[:size]
        most = min(self.slots, 0.9 * self.budget)
        return (
            np.clip(number + self._left, 0.0, most),
            np.maximum(held, 0.0) + self._left * self._left_context,
        )
