"""The engine every scheduling policy runs on: one node, iteration by iteration, with slots, memory and a waiting queue.

The engine knows nothing of any policy. At a decision it hands the node to the policy, which places decodes and prefills;
the node charges memory, evicts when a claim does not fit, lets the iteration last as long as the iteration-time model says
and applies its effects at its end. The rules (what holds memory when, who is evicted, what is seen when) are in
``docs/simulator.md``.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from planner.errors import FleetOptError
from planner.routing import find_routing

if TYPE_CHECKING:
    from planner.machine.iteration import IterationModel


MAX_EMPTY_DECISIONS = 100_000
"""Decisions in a row that evict somebody and build nothing, after which a policy is declared stuck."""


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """One request and its progress.

    Parameters
    ----------
    index
        Position in the list of requests; breaks ties between equal arrival times.
    arrival
        Time at which it joins the waiting queue [s].
    input_tokens, output_tokens
        Prompt and answer length [tokens], both >= 1.
    category
        Class number (a small integer), used by policies with classes.
    tbt
        Deadline between tokens [s]; only deadline-aware policies read it.
    """

    index: int
    arrival: float
    input_tokens: float
    output_tokens: int
    category: int = 0
    tbt: float = math.inf
    node_arrival: float = math.nan  # at the decode node, of a disaggregated pair
    emitted: int = 0  # output tokens the computed KV accounts for
    reported: int = 0  # output tokens the client has seen (differs from `emitted` only after a restart)
    prefilled: float = 0  # tokens of the current prefill already processed
    held: float = 0  # tokens of KV memory held
    resident: bool = False
    placed: int = -1  # number of the decision in which it was last placed
    priority: float = math.inf  # a policy's own ordering number (last schedulable time, ...)
    evictions: int = 0
    first_token_s: float = math.nan
    last_emission_s: float = math.nan
    done_s: float = math.nan
    gaps: list[float] = field(default_factory=list)

    @property
    def prefill_length(self) -> float:
        """Tokens an admission has to process and hold: the prompt and the output emitted before an eviction [tokens]."""
        return self.input_tokens + self.emitted

    @property
    def prefill_left(self) -> float:
        """Tokens of the current prefill still to process [tokens]; 0 for a decode."""
        # Once the prefill has ended `emitted` grows, so the amount to process is remembered by `prefilled` < 0.
        return 0 if self.prefilled < 0 else self.input_tokens + self.emitted - self.prefilled

    @property
    def decoding(self) -> bool:
        """Whether it is resident and its prefill is complete."""
        return self.resident and self.prefilled < 0

    def __repr__(self) -> str:
        return f"Request({self.index}, {self.arrival!r}, {self.input_tokens}, {self.output_tokens})"


by_arrival: Callable[[Request], tuple[float, ...]] = attrgetter("arrival", "index")
"""First come, first served: (arrival, index)."""

by_prompt: Callable[[Request], tuple[float, ...]] = attrgetter("input_tokens", "arrival", "index")
"""Shortest prompt first: (input length, arrival, index)."""


class WaitingQueue:
    """Requests waiting at a node, always in the order of one key."""

    __slots__ = ("_items", "_key")

    def __init__(self, key: Callable[[Request], tuple[float, ...]] = by_arrival) -> None:
        self._key = key
        self._items: list[Request] = []

    def order_by(self, key: Callable[[Request], tuple[float, ...]]) -> None:
        """Use `key` from now on; keys must differ between requests (put the index last)."""
        if key is not self._key:
            self._key = key
            self._items.sort(key=key)

    def push(self, request: Request) -> None:
        """Add one at its place."""
        insort(self._items, request, key=self._key)

    @property
    def head(self) -> Request:
        """The first request."""
        return self._items[0]

    def remove(self, request: Request) -> None:
        """Remove one request, wherever it stands; ValueError where it does not wait."""
        self._items.remove(request)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._items)


@dataclass(slots=True)
class Batch:
    """One iteration: decodes in list order, and (request, chunk) prefills in list order."""

    decodes: list[Request] = field(default_factory=list)
    prefills: list[tuple[Request, float]] = field(default_factory=list)
    evicted: list[Request] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.decodes or self.prefills)


@dataclass(slots=True)
class Report:
    """What the iteration that just ended did: read by controllers at the next decision, once.

    Parameters
    ----------
    start, duration
        When it began and how long it lasted [s].
    residents
        Requests holding a slot during it, those admitted for it included.
    emitted
        Requests that emitted a token at its end, decodes before prefills, in list order.
    completed
        Those of them that are complete.
    """

    start: float
    duration: float
    residents: int
    emitted: list[Request]
    completed: list[Request]


class Policy(Protocol):
    """A scheduler: one method, called at every decision."""

    def schedule(self, node: Node) -> None:
        """Place the work of the next iteration with ``node.decode``, ``node.admit`` and ``node.prefill``."""


class IterationTime(Protocol):
    """How long an iteration lasts."""

    def duration(self, decodes: Sequence[Request], prefills: Sequence[tuple[Request, float]]) -> float:
        """Seconds; a decode's context is ``request.held``, a prefill's past is ``request.prefilled``."""


@dataclass(frozen=True, slots=True)
class Canonical:
    """The canonical iteration time, :meth:`planner.machine.iteration.IterationModel.time`, of one batch.

    Parameters
    ----------
    model
        Its parameters.
    """

    model: IterationModel

    def duration(self, decodes: Sequence[Request], prefills: Sequence[tuple[Request, float]]) -> float:
        """Duration of an iteration [s]."""
        tokens = end = pairs = 0.0
        for request, chunk in prefills:
            tokens += chunk
            pairs += chunk * (request.prefilled + (chunk + 1) / 2)
            end = max(end, request.prefilled + chunk)
        contexts = [r.held for r in decodes]
        return self.model.time(len(contexts), sum(contexts), tokens, pairs, max(contexts, default=0), end)


class Node:
    """One engine: clock, residents, memory, waiting queue, and the iteration under construction.

    Parameters
    ----------
    policy
        Decides what runs.
    iteration
        Decides how long it takes.
    capacity
        KV memory [tokens]; ``math.inf`` = unlimited.
    """

    dead = False
    """Whether gateways pass it by."""

    def __init__(self, policy: Policy, iteration: IterationTime, capacity: float = math.inf) -> None:
        self.policy = policy
        self.iteration = iteration
        self.capacity = capacity
        self.waiting = WaitingQueue()
        self.residents: dict[int, Request] = {}  # in admission order
        self.held: float = 0
        self.now = 0.0
        self.batch = Batch()
        self.report: Report | None = None
        self.newcomers: list[Request] = []
        self.completed: list[Request] = []
        self.iterations = 0
        self.evictions = 0
        self.peak_held: float = 0
        self.busy_s = 0.0
        self.resident_s = 0.0
        self._decision = 0
        self._duration = 0.0
        self.end = math.inf  # end of the running iteration; inf = none is running
        self.due = math.inf  # when it is to decide; inf = it sleeps, or an iteration runs

    # --- what a policy reads ---------------------------------------------------------------------------------------

    @property
    def decoding(self) -> list[Request]:
        """All residents whose prefill is complete, in admission order."""
        return [r for r in self.residents.values() if r.prefilled < 0]

    @property
    def prefilling(self) -> list[Request]:
        """Residents with unfinished prefill, in admission order."""
        return [r for r in self.residents.values() if r.prefilled >= 0]

    def fits(self, request: Request, slots: float = math.inf) -> bool:
        """The admission test: a slot is free, and the memory held now plus the prefill length does not exceed C."""
        return len(self.residents) < slots and self.held + self.size(request, request.prefill_length) <= self.capacity

    def size(self, request: Request, tokens: float) -> float:
        """Memory that `tokens` of a request take, in the unit of `capacity`."""
        return tokens

    @property
    def evicted(self) -> bool:
        """Whether anybody was evicted in this decision (then nobody should be admitted)."""
        return bool(self.batch.evicted)

    # --- what a policy does ----------------------------------------------------------------------------------------

    def admit(self, request: Request, tokens: float | None = None) -> Request:
        """Move a waiting request, which is returned, to the residents; from now on it holds its prefill length (or `tokens`)."""
        self.waiting.remove(request)
        request.resident = True
        request.held = request.prefill_length if tokens is None else tokens
        self.held += self.size(request, request.held)
        self.residents[request.index] = request
        return request

    def prefill(self, request: Request, most: float = math.inf) -> float:
        """Process what is left of a resident's prefill in this iteration, at most so many tokens; how many."""
        chunk = min(request.prefill_left, most)
        request.placed = self._decision
        self.batch.prefills.append((request, chunk))
        return chunk

    def decode(self, request: Request, restart: bool = False, swap: bool = False) -> bool:
        """Place a decode: it claims one token and evicts if that does not fit.

        Victims are the most recently admitted residents not yet placed in this iteration, possibly the claiming request
        itself; False is returned then. With `restart` victims lose their output too; with `swap` they keep their progress.
        """
        while self.held + 1 > self.capacity:
            victim = next((r for r in reversed(self.residents.values()) if r.placed != self._decision), None)
            if victim is None:  # everybody else is placed and the claimant was evicted before
                return False
            self.evict(victim, restart=restart, swap=swap)
            if victim is request:
                return False
        request.held += 1
        self.held += 1
        request.placed = self._decision
        self.batch.decodes.append(request)
        return True

    def decode_all(self, requests: Sequence[Request], restart: bool = False, swap: bool = False) -> None:
        """Place decodes in list order, skipping those evicted before their turn."""
        if self.held + len(requests) <= self.capacity:
            decision = self._decision
            for request in requests:
                request.held += 1
                request.placed = decision
            self.held += len(requests)
            self.batch.decodes.extend(requests)
            return
        for request in requests:
            if request.resident:
                self.decode(request, restart, swap)

    def make_room(self, requests: Sequence[Request], restart: bool = False) -> None:
        """Evict residents until all of `requests` that are left can claim one more token."""
        while self.held + sum(self.claim(r) for r in requests if r.resident) > self.capacity:
            self.evict(self.victim(), restart=restart)

    def claim(self, request: Request) -> float:
        """Memory that one more token of a request takes."""
        return self.size(request, request.held + 1) - self.size(request, request.held)

    def victim(self) -> Request:
        """Who is evicted first: the most recently admitted resident."""
        return next(reversed(self.residents.values()))

    def grows(self, request: Request, chunk: float) -> bool:
        """Whether the next `chunk` of a prefill in progress finds its memory: a prompt holds all of its own here."""
        return True

    def place(self, request: Request) -> None:
        """Place a decode whose token is already part of what it holds (admission at a decode-only node)."""
        request.placed = self._decision
        self.batch.decodes.append(request)

    def evict(self, request: Request, restart: bool = False, swap: bool = False) -> None:
        """Take slot and memory away; the request goes back to its place in the waiting queue."""
        self.leave(request)
        if not swap:
            request.prefilled = 0
        if restart:
            request.emitted = 0
        request.evictions += 1
        self.evictions += 1
        self.batch.evicted.append(request)
        self.waiting.push(request)

    def leave(self, request: Request) -> None:
        """A resident gives its slot and memory back."""
        del self.residents[request.index]
        self.held -= self.size(request, request.held)
        request.held = 0
        request.resident = False

    # --- the clock -------------------------------------------------------------------------------------------------

    def enqueue(self, request: Request, time: float) -> None:
        """A request arrives at the node; one that sleeps decides at once."""
        self.waiting.push(request)
        self.newcomers.append(request)
        if self.end == math.inf:
            self.due = min(self.due, time)

    @property
    def in_system(self) -> int:
        """Requests resident or waiting here."""
        return len(self.residents) + len(self.waiting)

    @property
    def tokens_held(self) -> float:
        """What gateways see of its memory [tokens]."""
        return self.held

    @property
    def soonest(self) -> float:
        """When it does something next [s]; inf = it sleeps."""
        return min(self.end, self.due)

    def decide(self, now: float) -> None:
        """Build an iteration and start it, or go to sleep."""
        self.now, self.due = now, math.inf
        for _ in range(MAX_EMPTY_DECISIONS):
            self._decision += 1
            self.batch = Batch()
            self.policy.schedule(self)
            self.report = None
            self.newcomers.clear()
            if self.batch:
                self._duration = self.iteration.duration(self.batch.decodes, self.batch.prefills)
                self.end = self.now + self._duration
                if self.held > self.peak_held:
                    self.peak_held = self.held
                return
            if not self.batch.evicted:
                return
        raise FleetOptError(f"{type(self.policy).__name__} evicts for ever without building an iteration")

    def emit(self, request: Request, end: float) -> None:
        """A client sees a token that it had not seen."""
        if request.reported == 1:
            request.first_token_s = end
        else:
            request.gaps.append(end - request.last_emission_s)
        request.last_emission_s = end

    def finish(self) -> None:
        """The iteration ends: tokens go out, requests leave, the scheduler learns of both."""
        end, batch = self.end, self.batch
        self.end = math.inf
        residents = len(self.residents)
        emitted = list(batch.decodes)
        for request, chunk in batch.prefills:
            if chunk < request.prefill_left:
                request.prefilled += chunk
            else:
                request.prefilled = -1
                emitted.append(request)
        for request in emitted:
            request.emitted += 1
            if request.emitted > request.reported:
                request.reported += 1
                self.emit(request, end)
        completed = [r for r in emitted if r.emitted == r.output_tokens]
        for request in completed:
            self.leave(request)
            request.done_s = end
        self.completed.extend(completed)
        self.iterations += 1
        self.busy_s += self._duration
        self.resident_s += self._duration * residents
        self.report = Report(self.now, self._duration, residents, emitted, completed)
        self.now = self.due = end


Kind = TypeVar("Kind", bound=Node)


class Gateway(Generic[Kind]):
    """Nodes of a pool and what chooses among them.

    Parameters
    ----------
    nodes
        The nodes.
    routing
        A name of :data:`planner.routing.ROUTINGS`.
    slots
        Requests with which a node is full, where all wait in one queue.
    """

    def __init__(self, nodes: Sequence[Kind], routing: str, slots: float) -> None:
        self.nodes, self.rule, self.slots = nodes, find_routing(routing), slots
        self.sent = self.queued = 0
        self.waiting: list[tuple[int, int, Request]] = []  # in one queue for all: (class, number, request)

    def alive(self) -> list[Kind]:
        """Nodes that are up."""
        return [node for node in self.nodes if not node.dead]

    def room(self) -> bool:
        """Whether a request need not wait in the common queue."""
        return not self.rule.one_queue or any(node.in_system < self.slots for node in self.alive())

    def queue(self, request: Request, rank: int = 0) -> None:
        """A request joins the common queue."""
        heappush(self.waiting, (rank, self.queued, request))
        self.queued += 1

    def drop(self, request: Request) -> None:
        """A request whose client is gone leaves the common queue."""
        self.waiting = sorted(entry for entry in self.waiting if entry[2] is not request)

    def choose(self, draw: Callable[[int, int], int]) -> Kind:
        """Which of the nodes that are up takes a request; ``draw(number, below)`` is its draw of that number."""
        alive = self.alive()
        self.sent += 1
        if self.rule.in_turn:
            return alive[(self.sent - 1) % len(alive)]

        def value(node: Kind) -> float:
            return node.tokens_held if self.rule.least == "tokens" else node.in_system

        if self.rule.candidates is None:
            values = [value(node) for node in alive]
            least = min(values)
            ties = [node for node, own in zip(alive, values, strict=True) if own == least]
            return ties[draw(0, len(ties))]
        i = draw(0, len(alive))
        if self.rule.candidates == 1 or len(alive) == 1:
            return alive[i]
        j = draw(1, len(alive) - 1)
        j += j >= i
        return alive[i] if value(alive[i]) <= value(alive[j]) else alive[j]


class Clock:
    """Nodes, moment by moment: their iterations end, what was scheduled happens, and those decide that are due to.

    Parameters
    ----------
    nodes
        The nodes.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes, self.now = nodes, 0.0
        # a heap: time, number, what happens to what
        self.events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self.scheduled = 0

    def schedule(self, time: float, happens: Callable[[Any], None], what: Any) -> None:
        """Something happens at `time`, after what was scheduled for then before."""
        heappush(self.events, (time, self.scheduled, happens, what))
        self.scheduled += 1

    def soonest(self) -> float:
        """When something happens next [s]; inf = never."""
        nodes = min(node.soonest for node in self.nodes)
        return min(nodes, self.events[0][0]) if self.events else nodes

    def ended(self, node: Node) -> None:
        """An iteration of a node has ended."""

    def settle(self) -> None:
        """Iterations have ended, or something has happened: what follows from it at once."""

    def go(self) -> None:
        """Until nothing is left to happen."""
        while (now := self.soonest()) < math.inf:
            self.now = now
            for node in self.nodes:
                if node.end <= self.now:
                    node.finish()
                    self.ended(node)
            self.settle()
            while self.events and self.events[0][0] <= self.now:
                *_, happens, what = heappop(self.events)
                happens(what)
                self.settle()
            for node in self.nodes:
                if node.due <= self.now:
                    node.decide(self.now)
