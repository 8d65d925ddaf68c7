"""Clients that wait for an answer, give up, try again and come back: replicas with prefix caches and queues that are limited.

The engine is :class:`planner.simulate.fast.MixedReplica`, unchanged. Here replicas and clients advance together in order of
time: an answer may bring the session's next call, and a call that gave up may be sent again, so that no replica may run ahead.
A replica asks its cache what it supplies when a request is admitted, and leaves prompt and answer in it when one is complete;
the cache has the memory that running requests leave, in blocks, the least recent session losing the end of its prefix first.
Host memory continues it: both are one list by last use, the most recent of it on the GPU, and what lies beyond is copied back,
one prefix after the other, before its request is enqueued.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from planner.errors import InputError
from planner.iteration.model import IterationModel
from planner.methods.sessions import PrefixCache
from planner.routing import find_routing
from planner.simulate.fast import MixedReplica
from planner.simulate.routing import Router
from planner.simulate.tables import RequestTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from planner.workload.sessions import Sessions

BLOCK = 16
"""Tokens of a KV block: what of a prefix fills no block is not found again."""

CROWD, CROWDED = 32, 1.5
"""A gateway that looks for prefixes takes the least busy replica where the other has so many requests, and that many times as
many, more (the balance thresholds of SGLang's router)."""

ARRIVE, GIVE_UP, LOADED = 0, 1, 2

ON_GPU = PrefixCache(math.inf)
"""Prefixes are kept in the KV memory alone, for ever."""


@dataclass(frozen=True, slots=True)
class ClientRules:
    """What clients and the engines' doors do.

    Parameters
    ----------
    max_queue, max_queued_tokens
        Requests, and prompt tokens, that may wait at a replica; what would exceed them is rejected.
    timeout_s
        A client gives up when it has no first token after so long [s]; the engine then drops the request.
    retries
        Times a client sends a rejected request, or one given up, again.
    retry_after_s
        How long it waits before [s].
    """

    max_queue: float = math.inf
    max_queued_tokens: float = math.inf
    timeout_s: float = math.inf
    retries: int = 0
    retry_after_s: float = 1.0

    def __post_init__(self) -> None:
        if not (self.max_queue >= 0 and self.max_queued_tokens >= 0 and self.timeout_s > 0 and self.retries >= 0):
            raise InputError("queue limits and retries must not be negative, and a timeout must be positive")


@dataclass(frozen=True, slots=True)
class Calls:
    """What clients ask: calls by number, and which follows which.

    Parameters
    ----------
    first_s
        Calls sent at times of their own: (time [s], number), in any order.
    input_tokens, output_tokens
        Lengths by number [tokens].
    session
        Session by number; -1 = none.
    repeated_tokens
        Prefix that the session's call before left, beyond what sessions share, by number [tokens].
    following
        The session's next call by number, -1 = none; and how long after the answer it is sent [s].
    gap_s
        See `following`.
    supplied_tokens
        Prompt tokens that a cache supplies whatever happens, by number [tokens]; empty = none.
    shared
        What the prompts share with others, from their beginning on: (name, tokens) by number, names below -1; empty = nothing.
    """

    first_s: list[tuple[float, int]]
    input_tokens: list[int]
    output_tokens: list[int]
    session: list[int]
    repeated_tokens: list[int]
    following: list[int]
    gap_s: list[float]
    supplied_tokens: list[int] = field(default_factory=list)
    shared: list[tuple[tuple[int, int], ...]] = field(default_factory=list)

    def shared_tokens(self, call: int) -> int:
        """Tokens of a prompt that sessions share."""
        return sum(tokens for _, tokens in self.shared[call]) if self.shared else 0


@dataclass(slots=True)
class ClientRun:
    """What became of every attempt.

    Parameters
    ----------
    call, sent_s, first_s, done_s, found, host
        By attempt: its call, when it was sent, its first and last token [s] (NaN = never), prompt tokens found in a cache, those of
        them that came from host memory.
    rejected, given_up
        Attempts turned away at the door; given up by their client.
    failed
        Calls that were never answered.
    busy_s, resident_s, preemptions
        Over the replicas; residents times seconds.
    """

    call: list[int] = field(default_factory=list)
    sent_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    done_s: list[float] = field(default_factory=list)
    found: list[int] = field(default_factory=list)
    host: list[int] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)
    failed: list[tuple[float, int]] = field(default_factory=list)
    busy_s: float = 0.0
    resident_s: float = 0.0
    preemptions: int = 0

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """The attempts as arrays."""
        names = ("call", "sent_s", "first_s", "done_s", "found", "host", "tried")
        return {name: np.array(getattr(self, name), dtype=np.float64) for name in names}


class Onward(Protocol):
    """What calls go through after the replicas that clients see: the decode replicas of a disaggregated fleet."""

    @property
    def now(self) -> float:
        """When something happens there next [s]; inf = nothing."""

    def take(self, attempt: int, call: int, now: float) -> None:
        """The first token of an attempt is out."""

    def advance(self) -> list[tuple[int, float]]:
        """What happens next; the attempts that are complete with it, and when their last token came [s]."""


class _Cache:
    """The prefixes a replica keeps, on the GPU and its host: (tokens, last call, last use) by session or by the name of what
    sessions share, the least recent first. What running requests share is `pinned`: (requests, tokens) by name."""

    __slots__ = ("held", "host_tokens", "kept", "pinned")

    def __init__(self, host_tokens: float) -> None:
        self.kept: OrderedDict[int, tuple[int, int, float]] = OrderedDict()
        self.held = 0
        self.host_tokens = host_tokens
        self.pinned: dict[int, tuple[int, int]] = {}

    def trim(self, room: float) -> None:
        """Drop from the end of the least recent prefix until all fits into `room` on the GPU and the host's memory."""
        kept, room = self.kept, room + self.host_tokens
        while self.held > room and kept:
            session, (tokens, call, used) = next(iter(kept.items()))
            left = int(tokens - (self.held - room)) // BLOCK * BLOCK
            self.held -= tokens
            if left > 0:
                kept[session] = (left, call, used)
                self.held += left
                return
            del kept[session]

    def on_gpu(self, session: int, room: float) -> int:
        """Tokens of a session's prefix among the `room` most recent ones."""
        for other, (tokens, _, _) in reversed(self.kept.items()):
            if other == session:
                return int(min(max(room, 0.0), tokens)) // BLOCK * BLOCK
            room -= tokens
            if room <= 0.0:
                break
        return 0

    def take(self, session: int) -> None:
        """What is kept of a session is held by a running request from now on."""
        self.held -= self.kept.pop(session, (0, -1, 0.0))[0]

    def put(self, session: int, tokens: int, call: int, now: float) -> None:
        """A session's prefix becomes the most recent."""
        self.take(session)
        self.kept[session] = (tokens, call, now)
        self.held += tokens


class _KeptOnce(dict[int, int]):
    """What of a request's prompt is not its own: of one that is not admitted yet, what running requests hold already."""

    def __init__(self, pool: _Pool) -> None:
        super().__init__()
        self.pool = pool

    def __missing__(self, attempt: int) -> int:
        pinned = self.pool.caches[self.pool.where[attempt]].pinned
        return sum(tokens for name, tokens in self.pool.calls.shared[self.pool.run.call[attempt]] if name in pinned)


class _Supplied(dict[int, int]):
    """The cached tokens of the request that is being admitted: asked by the engine at that moment, answered by the cache."""

    def __init__(self, pool: _Pool) -> None:
        super().__init__()
        self.pool = pool

    def __missing__(self, attempt: int) -> int:
        found = self[attempt] = self.pool.admitted(attempt)
        return found


class _Pool:
    """Replicas, their caches, and the clients in front of them."""

    def __init__(
        self,
        calls: Calls,
        rules: ClientRules,
        model: IterationModel,
        replicas: int,
        slots: float,
        token_budget: float,
        kv_tokens: float,
        routing: str,
        rng: np.random.Generator,
        cache: PrefixCache | None,
        shared_prefix: int = 0,
        onward: Onward | None = None,
    ) -> None:
        self.calls, self.rules, self.cache, self.onward = calls, rules, cache, onward
        self.table = RequestTable.live()
        self.table.cached_tokens = _Supplied(self)
        self.once = _KeptOnce(self) if cache is not None and calls.shared else None
        self.replicas = [
            MixedReplica(
                self.table, model, slots, token_budget, kv_tokens, shared_prefix=shared_prefix, kept_once=self.once
            )
            for _ in range(replicas)
        ]
        self.caches = [_Cache(cache.host_tokens if cache else 0.0) for _ in range(replicas)]
        self.link_free = [0.0] * replicas  # when the link to its host memory has moved all that was asked for [s]
        self.loading: set[int] = set()
        self.kv_tokens = kv_tokens
        self.rule = find_routing(routing)
        if self.rule.one_queue:
            raise InputError("one queue for all replicas has no limit of each: take another routing")
        self.router = Router(self.rule, replicas, rng)
        self.run = ClientRun()
        self.where: list[int] = []
        self.queued = [0] * replicas  # prompt tokens waiting
        self.waiting: list[set[int]] = [set() for _ in range(replicas)]
        self.homes: dict[int, int] = {}
        self.events: list[tuple[float, int, int, int]] = []
        self.doomed: set[int] = set()

    # --- what engines ask and tell ---------------------------------------------------------------------------------

    def admitted(self, attempt: int) -> int:
        """What the cache of its replica supplies of an attempt's prompt."""
        here = self.where[attempt]
        call = self.run.call[attempt]
        if attempt in self.waiting[here]:
            self.waiting[here].remove(attempt)
            self.queued[here] -= self.calls.input_tokens[call]
        session = self.calls.session[call]
        if self.cache is None or session < 0:
            return self.calls.supplied_tokens[call] if self.calls.supplied_tokens else 0
        cache = self.caches[here]
        cache.trim(self.replicas[here].free)
        found = sum(self.found(here, call, self.replicas[here].now).values())
        found = min(found // BLOCK * BLOCK, self.calls.input_tokens[call] - 1)
        cache.take(session)
        # the prompt itself is held by the running request; what others keep must leave room for it
        room = self.replicas[here].free - self.calls.input_tokens[call]
        if self.once is not None:
            room += self.once[attempt]
            for name, tokens in self.calls.shared[call]:
                cache.take(name)
                cache.pinned[name] = (cache.pinned.get(name, (0, 0))[0] + 1, tokens)
            self.once[attempt] = self.calls.shared_tokens(call)
        cache.trim(room)
        self.run.found[attempt] = found
        self.run.host[attempt] = min(self.run.host[attempt], found)
        return found

    def found(self, here: int, call: int, now: float) -> dict[int, int]:
        """What a replica holds of a call's prompt, by name of what sessions share and by session [tokens]: one after the other
        until one is not whole; of its session's no more than any call since the last one here repeated."""
        cache, found = self.caches[here], {}
        assert self.cache is not None
        for name, tokens in self.calls.shared[call] if self.calls.shared else ():
            held, _, used = (tokens, 0, now) if name in cache.pinned else cache.kept.get(name, (0, 0, -math.inf))
            if now - used <= self.cache.ttl_s:
                found[name] = min(held, tokens)
            if found.get(name, 0) < tokens:
                return found
        session = self.calls.session[call]
        held, last, used = cache.kept.get(session, (0, -1, -math.inf))
        if 0 <= last < call and now - used <= self.cache.ttl_s:
            found[session] = min(held, *self.calls.repeated_tokens[last + 1 : call + 1])
        return found

    def unpin(self, attempt: int) -> None:
        """A request leaves its replica: what it shared and nobody else runs with is kept as any prefix."""
        if self.once is None or self.once.pop(attempt, None) is None:
            return
        here, call = self.where[attempt], self.run.call[attempt]
        cache = self.caches[here]
        for name, _ in self.calls.shared[call]:
            running, tokens = cache.pinned[name]
            if running > 1:
                cache.pinned[name] = (running - 1, tokens)
            else:
                del cache.pinned[name]
                self.replicas[here].free += tokens
                cache.put(name, tokens, 0, self.replicas[here].now)
        cache.trim(self.replicas[here].free)

    def complete(self, here: int, now: float) -> None:
        """Take what a replica has completed; sessions go on."""
        table, run, calls = self.table, self.run, self.calls
        if not table.done:
            return
        numbers, first, done = table.take_complete()
        for attempt, start, end in zip(numbers, first, done, strict=True):
            self.unpin(attempt)
            if attempt in self.doomed:
                self.doomed.discard(attempt)
                continue
            run.first_s[attempt] = start
            call = run.call[attempt]
            session = calls.session[call]
            if self.cache is not None and session >= 0:
                # the last token has been sent and not been read
                size = calls.input_tokens[call] + calls.output_tokens[call] - 1 - calls.shared_tokens(call)
                size = size // BLOCK * BLOCK
                self.caches[here].put(session, size, call, end)
                self.caches[here].trim(self.replicas[here].free)
            if self.onward is None:
                self.ended(attempt, end)
            else:
                self.onward.take(attempt, call, end)

    def ended(self, attempt: int, now: float) -> None:
        """The last token of an attempt is out."""
        self.run.done_s[attempt] = now
        self.follow(self.run.call[attempt], now)

    def follow(self, call: int, now: float) -> None:
        """The session's next call, after its gap."""
        after = self.calls.following[call]
        if after >= 0:
            heappush(self.events, (now + self.calls.gap_s[after], ARRIVE, after, 0))

    # --- what clients do -------------------------------------------------------------------------------------------

    def send(self, call: int, now: float, tried: int) -> None:
        """A client sends a call; the gateway chooses a replica, whose door may be closed."""
        calls, run, rules = self.calls, self.run, self.rules
        here = self.choose(call, now)
        attempt = len(run.call)
        run.call.append(call)
        run.sent_s.append(now)
        run.first_s.append(math.nan)
        run.done_s.append(math.nan)
        run.found.append(0)
        run.host.append(0)
        run.tried.append(tried)
        self.where.append(here)
        prompt = calls.input_tokens[call]
        full = len(self.waiting[here]) >= rules.max_queue or self.queued[here] + prompt > rules.max_queued_tokens
        idle = self.replicas[here].asleep
        if (full and not idle) or prompt + calls.output_tokens[call] - 1 > self.kv_tokens:
            run.rejected.append(attempt)
            self.again(call, now, tried)
            return
        self.table.input_tokens[attempt], self.table.output_tokens[attempt] = prompt, calls.output_tokens[call]
        self.waiting[here].add(attempt)
        self.queued[here] += prompt
        ready = self.load(here, attempt, now)
        if ready > now:
            self.loading.add(attempt)
            heappush(self.events, (ready, LOADED, attempt, tried))
        else:
            self.replicas[here].enqueue(attempt, now)
        if rules.timeout_s < math.inf:
            heappush(self.events, (now + rules.timeout_s, GIVE_UP, attempt, tried))

    def load(self, here: int, attempt: int, now: float) -> float:
        """When what only host memory holds of a prompt has been copied back [s]; the copies of a replica wait for each other."""
        call = self.run.call[attempt]
        session = self.calls.session[call]
        if self.cache is None or self.cache.host_tokens <= 0.0 or session < 0:
            return now
        kept, free = self.caches[here], self.replicas[here].free
        tokens = sum(
            held - min(kept.on_gpu(name, free), held)
            for name, held in self.found(here, call, now).items()
            if name not in kept.pinned
        )
        tokens = tokens // BLOCK * BLOCK
        if tokens == 0:
            return now
        self.run.host[attempt] = tokens
        self.link_free[here] = max(self.link_free[here], now) + tokens / self.cache.host_tokens_per_s
        return self.link_free[here]

    def loaded(self, attempt: int, now: float) -> None:
        """A prefix is back on the GPU: its request joins the queue, unless its client is gone."""
        if attempt in self.loading:
            self.loading.remove(attempt)
            self.replicas[self.where[attempt]].enqueue(attempt, now)

    def choose(self, call: int, now: float) -> int:
        """The replica of a call: where its session was, where most of its prompt is, or as the gateway does without."""
        session = self.calls.session[call]
        if session >= 0 and self.rule.affinity == "session":
            if session not in self.homes:
                self.homes[session] = self.plain(now)
            return self.homes[session]
        if session >= 0 and self.rule.affinity == "prefix":
            found = [sum(self.found(k, call, now).values()) for k in range(len(self.replicas))]
            best = max(found)
            if best >= BLOCK:
                busy = [r.in_system for r in self.replicas]
                least = min(busy)
                here = min((k for k, tokens in enumerate(found) if tokens > best - BLOCK), key=lambda k: busy[k])
                crowded = busy[here] - least > CROWD and busy[here] > CROWDED * least
                return busy.index(least) if crowded else here
        return self.plain(now)

    def plain(self, now: float) -> int:
        """A gateway that does not look at prompts."""
        return self.router.choose(self.replicas, now)

    def again(self, call: int, now: float, tried: int) -> None:
        """A call was turned away or given up: once more, or never answered."""
        if tried < self.rules.retries:
            heappush(self.events, (now + self.rules.retry_after_s, ARRIVE, call, tried + 1))
        else:
            self.run.failed.append((now, call))
            self.follow(call, now)

    def give_up(self, attempt: int, now: float, tried: int) -> None:
        """A client has no first token in time: the engine drops the request where it can."""
        if not math.isnan(self.run.first_s[attempt]) or attempt in self.table.first:
            return
        here = self.where[attempt]
        replica = self.replicas[here]
        if attempt not in self.table.input_tokens:
            return
        self.run.given_up.append(attempt)
        call = self.run.call[attempt]
        if attempt in self.waiting[here]:
            self.waiting[here].remove(attempt)
            self.queued[here] -= self.calls.input_tokens[call]
            if attempt in self.loading:
                self.loading.remove(attempt)
            else:
                place = replica.queue.ids.index(attempt, replica.queue.position)
                del replica.queue.ids[place], replica.queue.times[place]
            self.forget(attempt)
        elif replica.partial == attempt and attempt not in replica.finishing and not replica.pending:
            self.drop_partial(replica, attempt)
        else:
            self.doomed.add(attempt)
        self.again(call, now, tried)

    def drop_partial(self, replica: MixedReplica, attempt: int) -> None:
        """Take an unfinished prefill out of a replica."""
        del replica.residents[attempt]
        replica._evict_partial(attempt)
        self.forget(attempt)

    def sweep(self, here: int) -> None:
        """Drop requests whose clients are gone, between two iterations."""
        replica = self.replicas[here]
        for attempt in [a for a in self.doomed if self.where[a] == here]:
            if attempt in replica.finishing or attempt not in replica.residents:
                continue
            if replica.partial == attempt:
                self.drop_partial(replica, attempt)
                self.doomed.discard(attempt)
            elif (end := replica.residents[attempt]) >= 0:
                del replica.residents[attempt]
                replica._evict_decode(attempt, end)
                replica.queue.emitted.pop(attempt, None)
                assert isinstance(self.table.first, dict)
                self.table.first.pop(attempt, None)
                self.forget(attempt)
                self.doomed.discard(attempt)

    def forget(self, attempt: int) -> None:
        """A dropped request leaves the table."""
        self.unpin(attempt)
        for column in (self.table.input_tokens, self.table.output_tokens, self.table.cached_tokens):
            assert isinstance(column, dict)
            column.pop(attempt, None)


def run_clients(
    calls: Calls,
    rules: ClientRules,
    model: IterationModel,
    *,
    replicas: int = 1,
    slots: float = math.inf,
    token_budget: float = math.inf,
    kv_tokens: float = math.inf,
    shared_prefix: int = 0,
    routing: str = "random",
    cache: PrefixCache | None = ON_GPU,
    seed: int = 1,
    until_s: float = math.inf,
    progress: Callable[[float], None] | None = None,
    onward: Onward | None = None,
) -> ClientRun:
    """Run clients against replicas until no call is left, or until a time.

    Parameters
    ----------
    calls, rules
        What is asked, and how patiently.
    model, replicas, slots, token_budget, kv_tokens, shared_prefix
        The replicas, as in :class:`planner.simulate.fast.MixedReplica`.
    routing
        A name of :data:`planner.routing.ROUTINGS` without a common queue.
    cache
        Host memory and retention of the prefixes that replicas keep (`kv_tokens` is the argument); ``None`` = they keep none.
    seed
        Of the gateway's draws.
    until_s
        When the run ends [s].
    progress
        Told the share of `until_s` that has passed.
    onward
        Where attempts go on when these replicas are done with them; ``None`` = they are complete then.
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 4])))
    pool = _Pool(
        calls, rules, model, replicas, slots, token_budget, kv_tokens, routing, rng, cache, shared_prefix, onward
    )
    events = pool.events = [(time, ARRIVE, call, 0) for time, call in calls.first_s]
    heapify(events)
    everyone = pool.replicas
    handled = 0
    while True:
        coming = events[0][0] if events else math.inf
        elsewhere = math.inf if onward is None else onward.now
        here, boundary = soonest(everyone)
        soon = min(coming, boundary, elsewhere)
        if soon > until_s or soon == math.inf:
            break
        if onward is not None and elsewhere == soon:
            for attempt, end in onward.advance():
                pool.ended(attempt, end)
            continue
        if boundary < coming or (boundary == coming and here >= 0):
            replica = everyone[here]
            replica.run(boundary)  # effects of what ends now
            pool.complete(here, boundary)
            if pool.doomed:
                pool.sweep(here)
            replica.run(math.nextafter(boundary, math.inf))  # and the next decision
            continue
        time, kind, number, tried = heappop(events)
        if kind == ARRIVE:
            pool.send(number, time, tried)
        elif kind == LOADED:
            pool.loaded(number, time)
        else:
            pool.give_up(number, time, tried)
        handled += 1
        if progress is not None and handled % 5000 == 0 and math.isfinite(until_s):
            progress(min(time / until_s, 1.0))
    pool.run.busy_s = sum(r.busy_s for r in everyone)
    pool.run.resident_s = sum(r.resident_s for r in everyone)
    pool.run.preemptions = sum(r.preemptions for r in everyone)
    return pool.run


def soonest(replicas: Sequence[MixedReplica]) -> tuple[int, float]:
    """The replica whose iteration ends first, and when [s]; (-1, inf) where all are asleep."""
    here, boundary = -1, math.inf
    for k, replica in enumerate(replicas):
        if not replica.asleep and replica.now < boundary:
            here, boundary = k, replica.now
    return here, boundary


def session_calls(sessions: Sessions, calls_per_s: float, calls: int, seed: int) -> tuple[Calls, float]:
    """Sessions that begin as a Poisson process, drawn from those recorded; and when about so many calls have been sent [s].

    Sessions that began before the run are in the middle of their calls. The gaps between an answer and the next call are the
    recorded ones.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    span = calls / calls_per_s
    begin = np.flatnonzero(sessions.first)
    end = np.append(begin[1:], sessions.calls)
    longest = min(float(sessions.times_s.max()), 20.0 * span)
    starts = calls_per_s / sessions.turns
    number = int(rng.poisson(starts * (span + longest)))
    at = rng.random(number) * (span + longest) - longest
    picked = rng.integers(begin.size, size=number)
    gaps = sessions.gaps_between_s
    first: list[tuple[float, int]] = []
    columns: dict[str, list[Any]] = {k: [] for k in ("input", "output", "session", "repeated", "following", "gap")}
    shared, every, own = _shared_items(sessions), [], sessions.shared_tokens
    made = 0
    for k in range(number):
        low, high = int(begin[picked[k]]), int(end[picked[k]])
        times = sessions.times_s[low:high] + at[k]
        left = int(np.searchsorted(times, 0.0))
        if left >= high - low or times[left] > span:
            continue
        rows = slice(low + left, high)
        count = rows.stop - rows.start
        first.append((float(times[left]), made))
        columns["input"] += np.maximum(np.round(sessions.input_tokens[rows]), 1.0).astype(int).tolist()
        columns["output"] += np.maximum(np.round(sessions.output_tokens[rows]), 1.0).astype(int).tolist()
        columns["session"] += [k] * count
        repeated = np.round(np.maximum(sessions.cached_tokens[rows] - own[rows], 0.0)).astype(int)
        every += shared[rows]
        columns["repeated"] += repeated.tolist()
        columns["following"] += [*range(made + 1, made + count), -1]
        columns["gap"] += gaps[rows].tolist()
        made += count
    names = ("input", "output", "session", "repeated", "following", "gap")
    return replace(Calls(first, *(columns[k] for k in names)), shared=every), span


def _shared_items(sessions: Sessions) -> list[tuple[tuple[int, int], ...]]:
    """What each call shares with others: (name, tokens), each item with its mean length; empty where nobody shares."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(sessions.calls)] if sessions.shared else []
    name = -2
    left = sessions.input_tokens.copy()
    for level in sessions.shared:
        used = np.flatnonzero(level.group >= 0)
        _, place = np.unique(level.group[used], return_inverse=True)
        tokens = np.round(np.bincount(place, level.tokens[used]) / np.bincount(place)).astype(int)
        for call, item in zip(used.tolist(), place.tolist(), strict=True):
            # an item is of one length: a prompt that ends before does not have it whole
            if 0 < tokens[item] <= left[call]:
                found[call].append((name - item, int(tokens[item])))
                left[call] -= tokens[item]
        name -= tokens.size
    return [tuple(items) for items in found]
