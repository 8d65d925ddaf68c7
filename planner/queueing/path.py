r"""A pool run along the path that its traffic took: every request with its own time and lengths.

Counts of arrivals with independent lengths do not tell what a burst does: in measured traffic long prompts come together. What
does is the trace itself. Each replica's prompts form a queue of prefill work that obeys Lindley's recursion

.. math:: W_{i+1} = (W_i + s_i - (a_{i+1} - a_i))^+

in vector form :math:`W_i = c_i - \min_{j \le i} c_j`, :math:`c_i = \sum_{j<i} s_j - a_i`. The work :math:`s_i` is the part of the
iterations that a prompt fills; it depends on how many sequences decode beside it and on how many prompts share an iteration, and
those depend on the waits: a few rounds of substitution settle all three. Decodes advance by an **iteration clock**, a full
prefill iteration a step and a decode iteration a step, so that the time per output token of every request comes from the
backlogs it really lives through. Stretches in which slots or memory run out, where waits and ends hang on each other, and those
that rounds do not settle are followed iteration by iteration instead.

Routing by numbers in flight is decided request by request on a coarse picture of the replicas (when each has worked off its
prompts, how far its decodes are); the recursion then runs on what each replica got.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from planner.queueing.common_draws import SECOND, WITHIN, numbered, replicas_drawn, uniforms
from planner.queueing.order import by_size
from planner.queueing.reuse import own_tokens

Array = NDArray[np.float64]
Cost = Callable[..., Array]
"""Duration of iterations [s] by decodes, sum of their contexts [tokens], prefill tokens and query-key pairs."""

ROUNDS = 5
"""Most rounds of substitution between waits, decodes and shared iterations; two at least. Stretches that are not settled then are
followed iteration by iteration. What is left open (`benchmarks/path_rounds.py`) is in docs/speed.md."""

SETTLED = 0.02
"""Change of the times to first token and per output token of a stretch that is still to come, over their mean, at which they end
[1]: after two or three, later where it is nearly full or slots or memory are short."""

LOOKS, MOST_LOOKS, STILL, MOST_SHARE = 3, 10, 0.1, 0.8
"""Times that the usual number of decodes is looked for before the rest of the way is told from the last two; at most, where the
last still changed it by more than a share [1]; and the largest share that each such step is taken to have of the one before [1]."""

MOST_LEAD = 0.67
"""Part of its change by which the first round is led on at most [1]: where decodes feed back more, stretches differ too much for
one step to be right."""

FEWER = 0.9
"""Share of the requests below which those of the stretches that are not settled go on alone [1]."""

BETWEEN = 8.0
"""Iterations from the end of a prompt's work to its first token, at most [1]."""

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

    @property
    def decode_context(self) -> float:
        """Mean context of a decode step [tokens]."""
        # no product of vectors: a library that gives it several threads waits for them on a busy machine
        return float(np.sum(self.steps * self.context)) / max(float(self.steps.sum()), 1e-300)

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
        return float(self.weight[self.waited > 0.0].sum() / self.weight.sum())

    def values(self, metric: str) -> tuple[Array, Array, NDArray[np.int64]]:
        """Values of ``"ttft_s"``, ``"tpot_s"`` or ``"e2e_s"`` [s] in order, their weights, and whose they are."""
        if metric not in self._sorted:
            found: Array = getattr(self, metric.removesuffix("_s"))
            # what has none is last
            order = by_size(found)[: np.count_nonzero(np.isfinite(found))]
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
    if candidates == 2 or replicas == 2:
        return _of_two(rows, replicas, held_up)
    return _of_all(rows, replicas, held_up)


def _by_replica(replica: NDArray[np.int64], replicas: int) -> NDArray[np.int64]:
    """Places of the requests replica by replica, each in order of arrival."""
    # few digits sort by counting
    keys = replica.astype(np.uint16) if replicas < 1 << 16 else replica
    return np.asarray(np.argsort(keys, kind="stable"), dtype=np.int64)


def _not_beyond(values: Array, at: Array) -> NDArray[np.int64]:
    """How many of `values` are at most `at`, both ascending: a search that goes on where the one before it ended."""
    places = np.interp(at, values, np.arange(1.0, values.size + 1.0), left=0.0)
    return np.asarray(places, dtype=np.int64)


def _last_until(values: Array, at: Array) -> NDArray[np.int64]:
    """The last place at which ascending `values`, of which infinity is the last, are at most `at`, none below the first.

    Where the search of each begins is read off cells of equal width, two to a value.
    """
    cells = 2 * values.size
    per_unit = cells / max(float(values[-2] - values[0]), 1e-300)
    # a cell's first place is the last before it
    inside = np.bincount(((values[:-1] - values[0]) * per_unit).astype(np.int64), minlength=cells)
    begin = np.cumsum(inside) - inside
    begin -= begin > 0
    found: NDArray[np.int64] = begin[np.minimum((at - values[0]) * per_unit, cells - 1.0).astype(np.int64)]
    rows = np.flatnonzero(values[found + 1] <= at)
    while rows.size:
        found[rows] += 1
        rows = rows[values[found[rows] + 1] <= at[rows]]
    return found


def _of_all(rows: Iterable[tuple[float, int, int, float, float]], replicas: int, held_up: float) -> NDArray[np.int64]:
    """Send each request to the replica with the fewest in flight; on a tie to the next one round from the first drawn.

    A replica works off its prompts one after another; decodes last their life on a clock that runs slower, by the share
    `held_up`, while there are prompts. Ends of requests on its clock are kept in order; the real time of the first of them, or
    one before it, says when to look again.
    """
    held = min(held_up, 0.99)
    free, behind = [0.0] * replicas, [0.0] * replicas
    ends: list[list[float]] = [[] for _ in range(replicas)]
    due, counts, soonest = [math.inf] * replicas, [0] * replicas, math.inf
    found = []

    def leaves(r: int) -> float:
        """When the first of a replica's requests leaves."""
        at = ends[r][0] + behind[r]
        return at if at >= free[r] else (at - held * free[r]) / (1.0 - held)

    for now, r, _, work, life in rows:
        if now >= soonest:
            for k, at in enumerate(due):
                if at <= now:
                    left, there = free[k] - now, ends[k]
                    del there[: bisect_right(there, now - behind[k] + (held * left if left > 0.0 else 0.0))]
                    counts[k] = len(there)
                    due[k] = leaves(k) if there else math.inf
            soonest = min(due)
        fewest = min(counts)
        if counts[r] != fewest:
            # the next one round, so that ties fall evenly
            r = counts.index(fewest, r) if fewest in counts[r:] else counts.index(fewest)
        before = free[r]
        done = free[r] = (before if before > now else now) + work
        late = behind[r] = behind[r] + held * work
        end = done - late + life
        insort(ends[r], end)
        counts[r] += 1
        if ends[r][0] == end:
            due[r] = leaves(r)
            if due[r] < soonest:
                soonest = due[r]
        found.append(r)
    return np.array(found, dtype=np.int64)


def _of_two(rows: Iterable[tuple[float, int, int, float, float]], replicas: int, held_up: float) -> NDArray[np.int64]:
    """Send each request to the one of two replicas with fewer in flight; the first on a tie: both were drawn alike.

    The picture is that of :func:`_of_all`; clocks are read when an arrival looks at a replica.
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
    context = requests.decode_context
    duration = least = float(cost(1.0, context, 0.0, 0.0))
    decodes = 0.0
    for _ in range(30):
        decodes = min(rate * steps * duration, 0.9 * budget)
        prefill = min(rate * tokens * duration, budget - decodes)
        before, duration = duration, max(float(cost(decodes, decodes * context, prefill, prefill * pairs)), least)
        if abs(duration - before) < 1e-9 * duration:
            break
    return decodes, duration


def prefill_work(requests: PathRequests, rate: float, cost: Cost, budget: float) -> Array:
    """How long each prompt keeps a replica at a rate [1/s] beside its usual decodes [s], shape (requests,)."""
    decodes, _ = _mean_decodes(requests, rate, cost, budget)
    return _prefill_work(requests, decodes, cost, budget)[0]


def _prefill_work(requests: PathRequests, decodes: float, cost: Cost, budget: float) -> tuple[Array, Array]:
    """The same beside a number of decodes, and the iterations it fills [1]."""
    context = requests.decode_context
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
    context = requests.decode_context
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
    # that of all the traffic, of which busy stretches are more than their share
    lasts = np.diff(requests.times) * requests.weight[1:] * (np.diff(requests.block) == 0)
    queue.settle(decodes, context, float(np.sum(lasts)) * replicas)
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


class _Iterations:
    """Durations of single iterations [s] by what is in them, read off a table at the usual context and query-key pairs."""

    def __init__(self, cost: Cost, most: float, budget: float, part: PathRequests) -> None:
        context, density = part.decode_context, float(part.pairs.sum()) / float(part.tokens.sum())
        top = min(budget, most + 64.0 * float(part.tokens.max()))
        self.decodes, self.batch = most / 64.0, top / 128.0
        # by all tokens of the batch: matrices are computed tile by tile of it, and full batches are what a backlog is served in
        n, batch = np.meshgrid(self.decodes * np.arange(66.0), self.batch * np.arange(130.0), indexing="ij")
        # an empty batch takes no time, one that is next to empty does
        n[0] = np.minimum(1e-3, self.decodes)
        new = np.abs(batch - n)
        alone, beside = (np.asarray(cost(n, n * context, x, x * density)) for x in (0.0 * new, new))
        self.alone: list[float] = alone[:, 0].tolist()
        # below as many tokens as decodes the line goes on
        self.table: list[list[float]] = np.where(batch < n, 2.0 * alone - beside, beside).tolist()
        # at half of both, what more tokens and pairs than usual take
        held, pairs = 0.5 * most * context, 0.5 * top * density
        usual, longer, denser = np.asarray(
            cost(
                np.full(3, 0.5 * most),
                held * np.array([1.0, 1.5, 1.0]),
                np.full(3, 0.5 * top),
                pairs * np.array([1.0, 1.0, 1.5]),
            )
        ).tolist()
        self.per_token = float(longer - usual) / (0.5 * held)
        self.per_pair = float(denser - usual) / (0.5 * pairs)
        self.context, self.density = context, density
        self.least: float = max(self.alone[0], 1e-9)
        # a backlog that lasts longer than full iterations of two lives leaves what any such backlog leaves
        self.lasting = 2.0 * float(part.steps.mean() + 1.0) * self(int(most), most * context, top, top * density)

    def __call__(self, n: int, context: float, new: float, pairs: float) -> float:
        """The iteration of `n` decodes that hold so many tokens together and so many prefill tokens and pairs."""
        level = n / self.decodes
        under = min(int(level), 64)
        if new == 0.0:
            base = self.alone[under] + (level - under) * (self.alone[under + 1] - self.alone[under])
            return max(base + self.per_token * (context - n * self.context), self.least)
        place = (n + new) / self.batch
        low = min(int(place), 128)
        row, over = self.table[under], self.table[under + 1]
        part = place - low
        base = row[low] + part * (row[low + 1] - row[low])
        base += (level - under) * (over[low] + part * (over[low + 1] - over[low]) - base)
        base += self.per_token * (context - n * self.context) + self.per_pair * (pairs - new * self.density)
        return max(base, self.least)


class _Replica:
    """A replica in stretches where waits and ends hang on each other, iteration by iteration.

    First come, first served: a request takes its slot and memory when its prefill begins. Decodes go on in every iteration, and
    prompts fill what the budget leaves, the last of them in part. Requests that were there before a stretch have numbers below 0:
    -1 for decodes, and for prompts those by which lists find the stretch's own, of which they are taken to be copies.
    """

    def __init__(self, queue: _Queue, rows: NDArray[np.int64], before: tuple[float, float]) -> None:
        part = queue.part
        self.slots, self.memory, self.budget = queue.slots, queue.kv_tokens, queue.budget
        self.duration = _Iterations(queue.cost, min(self.slots, float(rows.size)), self.budget, part)
        self.arrived: list[float] = queue.arrived[rows].tolist()
        columns = (part.tokens, part.pairs / part.tokens, part.steps, part.context, part.held)
        self.tokens, self.density, self.steps, self.context, self.held = (
            [*column[rows].tolist(), last] for column, last in zip(columns, (0.0, 0.0, 0.0, *before), strict=True)
        )
        self.admitted, self.begin, self.first, self.end = (list(self.arrived) for _ in range(4))
        self.ends: list[tuple[float, int]] = []
        self.now = self.idle = self.clock = self.reads = self.used = self.left = 0.0
        self.sampled = queue._sampled
        self.decodes, self.partial = 0, -1

    def follow(self, low: int, high: int, underway: list[float], backlog: float) -> None:
        """Run the requests from `low` to `high`, beginning with decodes `underway` [steps left] and a `backlog` [s]."""
        self.ends = [(steps, -1) for steps in underway]
        self.decodes = len(underway)
        self.reads, self.used = self.decodes * self.context[-1], self.decodes * self.held[-1]
        self.clock, self.left = 0.0, 0.0
        until = self.arrived[low] + backlog
        self.now = begun = max(until - self.duration.lasting, self.arrived[low])
        self.idle = 0.0
        following, earlier, copies = low, 0, low - len(self.tokens)
        while following < high or self.left > 0.0 or (self.ends and not self.sampled):
            if self.ends and self.ends[0][0] <= self.clock:
                self._leave()
            # the next to begin
            k = copies + earlier % (high - low) if self.now < until else following
            if self.left <= 0.0 and not self._ready(k, high):
                continue
            room = max(self.budget - self.decodes, 1.0)
            batch = min(self.left, room)
            pairs, done = batch * self.density[self.partial], []
            if self.left > 0.0:
                self.left -= batch
                if self.left <= 0.0:
                    done.append(self.partial)
            while self.left <= 0.0 and batch < room and self._enters(k, high, len(done)):
                chunk = min(self.tokens[k], room - batch)
                batch += chunk
                pairs += chunk * self.density[k]
                self.partial, self.left = k, self.tokens[k] - chunk
                if self.left <= 0.0:
                    done.append(k)
                if k >= 0:
                    following += 1
                else:
                    earlier += 1
                k = copies + earlier % (high - low) if self.now < until else following
            self.now += self.duration(self.decodes, self.reads, batch, pairs)
            self.clock += 1.0
            for k in done:
                self._goes_on(k)
        # the traffic goes on where a sampled stretch ends
        pace = (self.now - begun - self.idle) / max(self.clock, 1.0)
        for steps, k in self.ends:
            if k >= 0:
                self.end[k] = self.now + max(steps - self.clock, 0.0) * pace

    def _leave(self) -> None:
        """Those whose last step has been made leave."""
        while self.ends and self.ends[0][0] <= self.clock:
            _, k = heappop(self.ends)
            self.decodes -= 1
            self.reads, self.used = self.reads - self.context[k], self.used - self.held[k]
            if k >= 0:
                self.end[k] = self.now

    def _ready(self, k: int, high: int) -> bool:
        """Whether the next prompt may begin; else decodes go on alone, until one leaves or it comes."""
        waits = k < 0 or (k < high and self.arrived[k] <= self.now)
        full = waits and (self.decodes >= self.slots or self.used + self.held[k] > self.memory)
        if self.decodes and (full or not waits):
            each, ahead = self.duration(self.decodes, self.reads, 0.0, 0.0), self.ends[0][0] - self.clock
            if not waits and k < high:
                ahead = min(ahead, math.ceil((self.arrived[k] - self.now) / each))
            self.now, self.clock = self.now + ahead * each, self.clock + ahead
            if full and k >= 0:
                self.admitted[k] = self.now
            return False
        if not waits:
            if k >= high:
                return False
            self.idle += self.arrived[k] - self.now
            self.now = self.arrived[k]
        return True

    def _enters(self, k: int, high: int, others: int) -> bool:
        """Whether a prompt takes its slot and memory now, beside so many that are ready in this iteration."""
        if k >= high or (k >= 0 and self.arrived[k] > self.now):
            return False
        inside = self.decodes + others
        if inside and (inside >= self.slots or self.used + self.held[k] > self.memory):
            return False
        self.used += self.held[k]
        if k >= 0:
            self.begin[k] = self.now
        return True

    def _goes_on(self, k: int) -> None:
        """A prompt is read: its decodes begin."""
        heappush(self.ends, (self.clock + self.steps[k], k))
        self.decodes += 1
        self.reads += self.context[k]
        if k >= 0:
            self.first[k] = self.now


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
        self._most_steps = float(part.steps.max(initial=0.0)) + BETWEEN
        self._held_share = float(part.held.sum()) / max(float(part.context.sum()), 1e-300)
        self._left = np.zeros(arrived.size)
        self._left_context = 0.0
        self._beyond = self._taken = np.zeros(1)
        self._usual = self._usual_s = self._between_s = 0.0
        self._sampled = False

    def settle(self, decodes: float, context: float, seconds: float) -> None:
        """Rounds of substitution from the steady number of decodes, in the end of the stretches alone that are not settled.

        The first round finds where there are more decodes than usual, and has them last as long as usual; they last longer, so that
        there are more: with the share of :meth:`_usual_decodes` it is led on to what the sum of such steps would bring.
        `seconds` is the time of all replicas together, by what its requests stand for.
        """
        self._sampled = bool(self.part.level.any())
        share = MOST_SHARE
        if self._sampled:
            decodes, share = self._usual_decodes(decodes, context, seconds)
            self._start_with(decodes, context)
        n = np.full(self.arrived.size, decodes)
        going, held = self, n * context
        rows = np.arange(n.size)
        before = was = np.zeros((2, 1))
        if not self._sampled:
            # who waits together is known before decodes are looked at
            self._wait(n, held)
        most = min(self.slots, 0.9 * self.budget)
        for k in range(ROUNDS):
            begun, ended = going._round(n, held)
            if going is not self:
                for name in ("begin", "first", "end"):
                    getattr(self, name)[rows] = getattr(going, name)
            n, held = going._running(begun, ended)
            stretch = np.cumsum(going._first_of) - 1
            stays = (going.end - going.first) / np.maximum(going.part.steps, 1.0)
            found = np.stack((going.first - going.arrived, stays))
            change = np.array([np.bincount(stretch, x) for x in np.abs(found - was)])
            if k == 0:
                lead = min(share / (1.0 - share), MOST_LEAD) if self._sampled else 0.0
                n = np.maximum(n + lead * (n - decodes), 0.0)
                held = np.maximum(held + lead * (held - decodes * context), 0.0)
            else:
                # changes shrink by about the same share every round, which the first two tell too low
                level = np.array([np.bincount(stretch, x) for x in found])
                open_ = np.any(change * np.maximum(change, share * before) > SETTLED * before * level, axis=0)
                share = 0.0
                full = (n >= self.slots - 1.0) | (held * self._held_share + going.part.held > self.kv_tokens)
                in_turn = np.bincount(stretch, full) > 0.0
                if k == ROUNDS - 1:
                    in_turn |= open_
                if in_turn.any():
                    self._in_turn(rows[in_turn[stretch]])
                open_ &= ~in_turn
                kept = np.flatnonzero(open_[stretch])
                if not kept.size:
                    break
                if kept.size < FEWER * rows.size or in_turn.any():
                    rows, n, held, found, change = rows[kept], n[kept], held[kept], found[:, kept], change[:, open_]
                    going = going._of(kept)
            n = np.minimum(n, most)
            before, was = change, found

    def _usual_decodes(self, decodes: float, context: float, seconds: float) -> tuple[float, float]:
        """Decodes beside which as many steps are made as are asked for, from a guess: those that run when a stretch begins.

        Prompts come in iterations of their own length, so that the mean iteration is longer than that of the mean flow. What a
        change of the decodes does to them is about the same share of it from one look to the next: that share [1] is the second
        of what is returned.
        """
        part, change = self.part, 0.0
        asked = float(np.sum(part.weight * part.steps))
        most = min(self.slots, 0.9 * self.budget)
        for k in range(MOST_LOOKS):
            if k >= LOOKS and abs(change) <= STILL * decodes:
                break
            n = np.full(self.arrived.size, decodes)
            work, iterations = self._wait(n, n * context)
            busy, inside = float(np.sum(part.weight * work)), max(decodes, 1.0)
            alone = float(self.cost(inside, inside * context, 0.0, 0.0))
            ticks = float(np.sum(part.weight * iterations)) + max(seconds - busy, 0.0) / alone
            before, change = change, min(asked / ticks, most) - decodes
            decodes += change
        share = min(max(change / before, 0.0), MOST_SHARE) if before else 0.0
        # led on too far at most to where every iteration is as short as one of a decode alone
        fewest = asked * float(self.cost(1.0, context, 0.0, 0.0)) / max(seconds, busy)
        decodes = min(max(decodes + share / (1.0 - share) * change, fewest), most)
        self._between_s = max(seconds, busy) / float(part.weight.sum())
        self._usual_s = decodes * max(seconds, busy) / asked if asked else alone
        return decodes, share

    def _of(self, rows: NDArray[np.int64]) -> _Queue:
        """The same of some stretches, where they stand."""
        found = copy(self)
        found.part = self.part.take(rows)
        found._served = np.concatenate(([0.0], np.cumsum(found.part.tokens)))
        rowwise = "arrived admitted begin first end _last _place _first_of _density _left"
        for name in rowwise.split():
            setattr(found, name, getattr(self, name)[rows])
        return found

    def _round(self, n: Array, held: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Waits, first tokens and ends given the decodes each prompt is served beside; see :meth:`_decode`."""
        work, iterations = self._wait(n, held)
        decode = self.cost(np.maximum(n, 1.0), np.maximum(held, 1.0), 0.0, 0.0)
        # an arrival at a replica that only decodes waits for the end of the iteration under way
        idle = np.flatnonzero(self.begin <= self.admitted + 1e-9)
        self._last[idle] -= self._place[idle] * decode[idle] * np.expm1(-n[idle])
        self.first = self.begin + self._last
        return self._decode(self.begin, work, iterations, decode)

    def _wait(self, n: Array, held: Array) -> tuple[Array, Array]:
        """When prompts begin and end given the decodes beside them; how long each keeps its replica [s], and iterations of it."""
        part, cost = self.part, self.cost
        room = np.maximum(self.budget - n, 1.0)
        whole = np.maximum(np.ceil(part.tokens / room) - 1.0, 0.0)
        rest = part.tokens - whole * room if np.isfinite(self.budget) else part.tokens
        start = self.first - self._last
        # prompts that have come by the time this one starts share its last iteration, as far as there is room
        there = _not_beyond(self.admitted, start)
        waiting = np.maximum(self._served[there] - self._served[1:], 0.0)
        batch = np.minimum(rest + waiting, room)
        last = cost(n, held, batch, batch * self._density)
        before = np.zeros(whole.size)
        if (rows := np.flatnonzero(whole > 0.0)).size:
            own = room[rows]
            before[rows] = whole[rows] * cost(n[rows], held[rows], own, own * self._density[rows])
        work = before + last * (rest / batch)
        iterations = whole + rest / batch
        if part.backlog.any():
            # what waits when a stretch begins is served with its first request
            behind = np.where(self._first_of, part.backlog[np.minimum(part.block, part.backlog.size - 1)], 0.0)
            iterations = iterations * (1.0 + behind / work)
            work = work + behind
        steps = np.concatenate(([0.0], work[:-1])) - np.diff(self.admitted, prepend=self.admitted[0])
        sums = np.cumsum(steps)
        self.begin = self.admitted + (sums - np.minimum.accumulate(sums))
        self._last = before + last
        self.first = self.begin + self._last
        return work, iterations

    def _decode(
        self, begin: Array, work: Array, iterations: Array, decode: Array
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ends of all requests: the moment at which the iteration clock of their replica has made their steps.

        Returns, for each, how many prompts have begun by its first token, and by its end.
        """
        size, done = begin.size, begin + work
        gap = np.append(np.maximum(begin[1:] - done[:-1], 0.0), APART_S)
        if self._sampled:
            decode = self._after_last(begin, done, iterations, gap, decode)
        knots = np.empty(2 * size)
        knots[0::2], knots[1::2] = begin, done
        ticks = np.empty(2 * size + 1)
        # nobody's steps last longer than the longest: what is idle after that need not be counted
        ticks[0], ticks[1::2], ticks[2::2] = 0.0, iterations, np.minimum(gap / decode, self._most_steps)
        clock = np.cumsum(ticks)
        clock[-1] = np.inf
        begun = _not_beyond(begin, self.first)
        place = 2 * begun - 2
        place += done[begun - 1] <= self.first
        pace = np.empty(knots.size)
        pace[0::2], pace[1::2] = work / np.maximum(iterations, 1e-300), decode
        wanted = clock[place] + (self.first - knots[place]) / np.maximum(pace[place], 1e-300) + self.part.steps
        ends = _last_until(clock, wanted)
        self.end = knots[ends] + (wanted - clock[ends]) * pace[ends]
        return begun, ends // 2 + 1

    def _after_last(self, begin: Array, done: Array, iterations: Array, gap: Array, decode: Array) -> Array:
        """Iterations after each prompt until the next begins [s]: `decode`, but after the last of a stretch its mean iteration.

        The traffic goes on where the stretch ends, and long outputs are decoded beside prompts that are not followed; one more
        usual request is counted among those of the stretch, which may be few.
        """
        first = np.flatnonzero(self._first_of)
        last = np.append(first[1:], begin.size) - 1
        made = iterations + gap / decode
        made[last] = iterations[last]
        spent = done[last] - begin[first] + self._between_s
        after = decode.copy()
        after[last] = spent / (np.add.reduceat(made, first) + self._between_s / self._usual_s)
        return after

    def _in_turn(self, rows: NDArray[np.int64]) -> None:
        """Follow stretches iteration by iteration."""
        replica = _Replica(self, rows, (self._left_context, self._left_context * self._held_share))
        begins = np.flatnonzero(self._first_of[rows]).tolist()
        for low, high in pairwise([*begins, rows.size]):
            block = min(int(self.part.block[rows[low]]), self.part.backlog.size - 1)
            replica.follow(low, high, self._underway(block), float(self.part.backlog[block]))
        self.admitted = self.admitted.copy() if self.admitted is self.arrived else self.admitted
        for name in ("admitted", "begin", "first", "end"):
            getattr(self, name)[rows] = getattr(replica, name)

    def _underway(self, block: int) -> list[float]:
        """Steps that are left to each of the decodes under way when a stretch begins, in order."""
        level = float(self.part.level[block]) * self._usual
        number = int(min(level, self.slots) + 0.5)
        share = (np.arange(number) + 0.5) / max(number, 1)
        found: list[float] = np.interp(share, self._beyond, self._taken).tolist()
        return found

    def _start_with(self, decodes: float, context: float) -> None:
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
        self._beyond, self._taken, self._usual = 1.0 - survival, taken, decodes
        level = self.part.level[np.minimum(self.part.block, self.part.level.size - 1)]
        self._left = level * decodes * np.interp((self.arrived - start) / self._usual_s, taken, survival)
        self._left_context = context

    def _running(self, begun: NDArray[np.int64], ended: NDArray[np.int64]) -> tuple[Array, Array]:
        """Decodes and the sum of their contexts [tokens] on the own replica when each prompt begins.

        `begun` and `ended` say how many prompts had begun by the first token and by the end of each.
        """
        size, context = self.arrived.size, self.part.context
        number = np.cumsum(np.bincount(begun, minlength=size + 1) - np.bincount(ended, minlength=size + 1))[:size]
        held = np.cumsum(np.bincount(begun, context, size + 1) - np.bincount(ended, context, size + 1))[:size]
        return (
            np.maximum(number + self._left, 0.0),
            np.maximum(held, 0.0) + self._left * self._left_context,
        )
