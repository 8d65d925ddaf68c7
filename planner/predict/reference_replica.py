"""A replica of the reference: the engine of policies, iteration by iteration, with blocks, a front end and a prefix cache."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.machine.iteration import IterationModel
from planner.predict.engine import Batch, Canonical, Node, Policy, Request, WaitingQueue
from planner.predict.mixed import Mixed
from planner.predict.records import COLD_AFTER_S, Replicas
from planner.predict.reference_cache import Pieces, PrefixMemory


@dataclass(slots=True, eq=False, repr=False)
class Sending(Request):
    """One sending of a request to a replica: its row, what is supplied of its prompt, and where it stands.

    Parameters
    ----------
    row, rank
        Row of the request, and its class.
    cached
        Prompt tokens that are supplied, see :class:`planner.predict.records.Requests` [tokens].
    images
        Images of its prompt.
    order, ready
        Its number among those that came to the replica, and when it is through the front end there [s].
    kept_once
        What of its prompt memory does not keep for it alone, in the unit of memory.
    kv_tokens
        What its KV takes in the end, for gateways in front of engines without memory [tokens].
    pinned
        Pieces of its prompt that it holds together with others.
    doomed
        Its client has given up: it leaves with the running iteration.
    found, from_host
        Prompt tokens found in the replica's cache, and those of them that came from host memory [tokens].
    admitted_s
        When it was first admitted [s].
    """

    row: int = -1
    rank: int = 0
    cached: float = 0.0
    images: float = 0.0
    order: int = -1
    ready: float = math.inf
    kept_once: float = 0.0
    kv_tokens: float = 0.0
    pinned: Pieces = ()
    doomed: bool = False
    found: float = 0.0
    from_host: float = 0.0
    admitted_s: float = math.nan


def by_coming(r: Request) -> tuple[float, ...]:
    """Those that were admitted before, in the order of their sending; then the others, as they came."""
    assert isinstance(r, Sending)
    return (0, r.index) if r.evictions else (1, r.order)


def by_rank(r: Request) -> tuple[float, ...]:
    """(class, order of coming)."""
    assert isinstance(r, Sending)
    return (r.rank, r.order)


class Slots:
    """A fixed number of slots and no memory.

    Parameters
    ----------
    slots
        Sequences at once.
    chunk
        Prompt tokens of an iteration, of all prompts together, first come first served; ``None`` = one each, as prompts are
        then counted in iterations.
    """

    def __init__(self, slots: float, chunk: float | None) -> None:
        self.slots, self.chunk = slots, chunk

    def schedule(self, node: Node) -> None:
        """Fill the slots; all of them advance."""
        for request in node.decoding:
            node.place(request)
        while node.waiting and len(node.residents) < self.slots:
            node.admit(node.waiting.head)
        budget = math.inf if self.chunk is None else self.chunk
        for request in node.prefilling:
            if budget > 0:
                budget -= node.prefill(request, 1 if self.chunk is None else budget)


class Replica(Node):
    """One replica.

    Parameters
    ----------
    given
        Its limits and iteration-time model.
    floored
        Whether what decodes leave of the budget is cut to whole tokens.
    ranked
        Whether requests have classes.
    decodes_only
        Whether requests come with prompt and first token in memory, unless they help; who is preempted once it decodes keeps
        what was computed.
    cache
        What it keeps of prompts; ``None`` = nothing.
    token, lost
        Told of every token a client sees, the request and the time [s]; and of a request that is preempted.
    """

    def __init__(
        self,
        given: Replicas,
        floored: bool,
        ranked: bool,
        decodes_only: bool,
        cache: PrefixMemory | None,
        token: Callable[[Sending, float], None],
        lost: Callable[[Sending], None],
    ) -> None:
        model = given.iteration
        self.given, self.ranked, self.decodes_only, self.cache = given, ranked, decodes_only, cache
        self.token, self.lost = token, lost
        self.slotted = given.engine in ("slots", "slots-shared")
        self.shared_blocks = given.shared_prefix // given.block
        policy: Policy
        if self.slotted:
            policy = Slots(given.slots, given.token_budget if given.engine == "slots-shared" else None)
            capacity = math.inf
        else:
            slots, budget = (1.0, math.inf) if given.engine == "prefill" else (given.slots, given.token_budget)
            assert isinstance(model, IterationModel)
            apart = bool(model.apart) and not decodes_only
            policy = Mixed(
                slots, budget, by_rank if ranked else by_coming, False, model.rows, floored, apart, given.gather
            )
            capacity = blocks_of(given) - self.shared_blocks
        super().__init__(policy, self, capacity)
        self.order_by = by_rank if ranked else by_coming
        self.decode_s = self.recomputed = 0.0
        self.came = 0
        self.empty()

    def empty(self) -> None:
        """Nobody is here and nothing is kept."""
        self.residents.clear()
        self.waiting = WaitingQueue(self.order_by)
        self.coming: deque[Sending] = deque()  # not yet through the front end
        self.loading: dict[int, Sending] = {}  # their prefixes are on their way from host memory
        self.held, self.end, self.due = 0.0, math.inf, math.inf
        self.batch = Batch()
        self.entered = self.arrived = -math.inf
        self.new = self.new_tokens = 0.0  # never admitted requests waiting here, and tokens of their prompts
        if self.cache is not None:
            self.cache.empty()

    # --- what gateways and doors see -------------------------------------------------------------------------------

    @property
    def in_system(self) -> int:
        """Requests resident or waiting here."""
        return len(self.residents) + len(self.waiting) + len(self.coming) + len(self.loading)

    @property
    def tokens_held(self) -> float:
        """Contexts of the decodes as of the last iteration ended, and what prompts in prefill hold [tokens]."""
        claimed = 0 if self.slotted or self.end == math.inf else len(self.batch.decodes)
        return sum(r.held for r in self.residents.values()) - claimed

    def can_hold(self, input_tokens: float, output_tokens: float) -> bool:
        """Whether a request can ever be complete here."""
        return self.needs(input_tokens + output_tokens - 1) - self.common(input_tokens) <= self.capacity

    def common(self, input_tokens: float) -> float:
        """What memory keeps once for all of a prompt."""
        return self.shared_blocks if input_tokens > self.given.shared_prefix else 0.0

    def needs(self, tokens: float) -> float:
        """Memory of so many tokens."""
        return tokens if self.given.block == 1 else -(-tokens // self.given.block)

    # --- memory ----------------------------------------------------------------------------------------------------

    def size(self, request: Request, tokens: float) -> float:
        """Memory that `tokens` of a request take for it alone."""
        assert isinstance(request, Sending)
        return self.needs(tokens) - request.kept_once

    def fits(self, request: Request, slots: float = math.inf) -> bool:
        """As of any node, where what of a prompt is held by others already needs no memory."""
        assert isinstance(request, Sending)
        if self.cache is not None and self.cache.shares and not request.pinned:
            request.kept_once = self.cache.held_already(request.row)
        return super().fits(request, slots)

    def admit(self, request: Request, tokens: float | None = None) -> Request:
        """A request is given its memory; the cache says what it supplies."""
        assert isinstance(request, Sending)
        if math.isnan(request.admitted_s):
            self.new -= 1
            self.new_tokens -= request.input_tokens
            request.admitted_s = self.now
        if self.cache is not None and self.cache.knows(request.row):
            # the claims of this iteration's decodes are not yet taken from the cache
            free = self.capacity - self.held + len(self.batch.decodes)
            request.pinned = self.cache.pieces(request.row)
            request.cached = request.found = self.cache.admit(request.row, free, self.now)
            request.from_host = min(request.from_host, request.found)
            if self.cache.shares:
                shared = sum(tokens for _, tokens in request.pinned)
                self.held += shared - request.kept_once
                request.kept_once = shared
        super().admit(request, request.kv_tokens if self.slotted else tokens)
        if request.prefilled >= 0:
            self.admissions += 1
            self.seen += request.images
            request.prefilled = request.cached
            self.recomputed += request.prefill_left if request.evictions else 0.0
        return request

    def prefill(self, request: Request, most: float = math.inf) -> float:
        """A chunk; where prompts get their memory with their chunks, it is given here."""
        chunk = super().prefill(request, most)
        if not self.given.reserve and not self.slotted:
            self.held -= self.size(request, request.held)
            request.held = request.prefilled + chunk
            self.held += self.size(request, request.held)
        return chunk

    def grows(self, request: Request, chunk: float) -> bool:
        """Whether the memory for the next chunk of a prompt is there."""
        more = self.size(request, request.prefilled + chunk) - self.size(request, request.held)
        return self.given.reserve or self.held + more <= self.capacity

    def decode_all(self, requests: Sequence[Request], restart: bool = False, swap: bool = False) -> None:
        """All claim a token; who is preempted first does not hang on the order of the claims."""
        if self.capacity < math.inf:
            self.make_room(requests)
        for request in requests:
            if request.resident:
                self.held += self.claim(request)
                request.held += 1
                self.batch.decodes.append(request)

    def victim(self) -> Request:
        """The newest, or with classes the last in their order."""
        return max(self.residents.values(), key=by_rank) if self.ranked else super().victim()

    def evict(self, request: Request, restart: bool = False, swap: bool = False) -> None:
        """Preempted: swapped to the host where prompts are computed elsewhere."""
        assert isinstance(request, Sending)
        super().evict(request, restart, swap or (self.decodes_only and request.prefilled < 0))
        self.unpin(request)
        self.lost(request)

    def drop(self, request: Sending) -> None:
        """A request whose client is gone leaves, resident or not."""
        if request.resident:
            self.leave(request)
        elif request.index in self.loading:
            del self.loading[request.index]
        elif request in self.coming:
            self.coming.remove(request)
        else:
            self.waiting.remove(request)
        if math.isnan(request.admitted_s):
            self.new -= 1
            self.new_tokens -= request.input_tokens
        self.unpin(request)

    def unpin(self, request: Sending) -> None:
        """What a leaving request shared and nobody else runs with is kept as any prefix."""
        if self.cache is not None and request.pinned:
            for name, tokens in request.pinned:
                self.held -= self.cache.unpin(name, tokens, self.now)
            request.pinned = ()
            self.cache.trim(self.capacity - self.held)

    # --- the clock -------------------------------------------------------------------------------------------------

    def take(self, request: Sending, time: float, loaded_s: float) -> None:
        """A request comes to the replica at `time`; it joins the queue when its prefix is loaded."""
        self.new += 1
        self.new_tokens += request.input_tokens
        request.kept_once = self.common(request.input_tokens)
        if loaded_s > time:
            self.loading[request.index] = request
        else:
            self.join(request, time)

    def join(self, request: Sending, time: float) -> None:
        """A request goes through the front end, which is slow where it had nothing to do."""
        cold, self.arrived = time > self.arrived + COLD_AFTER_S, time
        request.ready = self.entered = max(time + self.given.wake_s * cold, self.entered)
        request.order, self.came = self.came, self.came + 1
        self.coming.append(request)
        if self.end == math.inf:
            self.due = min(self.due, request.ready)

    def decide(self, now: float) -> None:
        """Begin an iteration, or wait for who comes through the front end next."""
        self.admissions, self.seen = 0, 0.0
        while self.coming and self.coming[0].ready <= now:
            self.waiting.push(self.coming.popleft())
        super().decide(now)
        if self.end == math.inf and self.coming:
            self.due = self.coming[0].ready

    def duration(self, decodes: Sequence[Request], prefills: Sequence[tuple[Request, float]]) -> float:
        """Time of an iteration [s]."""
        model = self.given.iteration
        if not isinstance(model, IterationModel):
            return model[len(decodes) + len(prefills)]
        if self.given.engine == "slots":
            return model.time(len(decodes) + len(prefills))
        if self.given.engine == "slots-shared":
            return model.time(len(decodes), 0.0, float(sum(chunk for _, chunk in prefills)))
        beside = self.given.request_s * self.admissions + self.given.image_s * self.seen
        return beside + Canonical(model).duration(decodes, prefills)

    def finish(self) -> None:
        """The running iteration ends."""
        decoding = len(self.batch.decodes) + (len(self.batch.prefills) if self.given.engine == "slots" else 0)
        self.decode_s += self._duration * decoding
        super().finish()

    def emit(self, request: Request, end: float) -> None:
        """A token."""
        assert isinstance(request, Sending)
        self.token(request, end)


def blocks_of(given: Replicas) -> float:
    """KV memory of a replica, in blocks."""
    return given.kv_tokens if given.block == 1 or math.isinf(given.kv_tokens) else given.kv_tokens // given.block
