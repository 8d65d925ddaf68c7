"""Drives the replicas of a pool through a list of arrivals, whatever engine they run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from planner.errors import InputError
from planner.routing import Routing, find_routing
from planner.simulate.routing import Router

if TYPE_CHECKING:
    import numpy as np

CHECKPOINT = 2000
"""Arrivals after which a run is looked at, unless told otherwise."""

Look = Callable[[float, int], bool]
"""Called now and then with the time [s] and the number of arrivals sent; True ends the run there."""


def go_on(time: float, sent: int) -> bool:
    """Nothing to look at."""
    return False


class Replica(Protocol):
    """What a driver needs of a replica."""

    @property
    def now(self) -> float:
        """Where the running iteration (or run of iterations) ends, or the decision that is due [s]."""

    @property
    def asleep(self) -> bool:
        """Whether it does nothing until something arrives."""

    def enqueue(self, request: int, time: float) -> None:
        """A request arrives."""

    def run(self, until: float) -> None:
        """Run until `until`."""

    @property
    def in_system(self) -> int:
        """Requests resident or waiting."""

    def held_at(self, time: float) -> float:
        """Tokens held at `time`."""


def drive(
    replicas: Sequence[Replica],
    times: Iterable[float],
    routing: str,
    rng: np.random.Generator | None = None,
    slots: float = math.inf,
    look: Look = go_on,
    every: int = CHECKPOINT,
    client: Client | None = None,
) -> int:
    """Send arrivals to replicas and run until no work is left.

    Parameters
    ----------
    replicas
        Fresh replicas.
    times
        Arrival times, increasing [s], taken from the iterable a little ahead of the run; request i arrives at the i-th.
    routing
        A name of :data:`planner.routing.ROUTINGS`.
    rng
        Generator of the router.
    slots
        Requests a replica takes before arrivals wait in the common queue, where the routing has one.
    look, every
        What is called after every so many arrivals.
    client
        Holds requests back while too many of its own are under way; ``None`` = sends them as they come.

    Returns
    -------
    int
        Number of requests that were sent.
    """
    rule = find_routing(routing)
    router = Router(rule, len(replicas), rng)
    if client is not None and rule.one_queue:
        raise InputError(
            f"routing {rule.name!r} keeps a queue of its own; a client's limit in flight needs another routing"
        )
    if client is None and not router.looks:
        return _drive_apart(replicas, times, router, look, every)
    return _Together(replicas, router, rule, slots if router.looks else math.inf, client).drive(times, look, every)


@dataclass(frozen=True, slots=True)
class Client:
    """A client that has at most `in_flight` requests under way, and sends the next when one is complete.

    Parameters
    ----------
    in_flight
        Its limit, >= 1.
    held_back
        Told the number of a request that had to wait and the time at which it was sent [s].
    """

    in_flight: float
    held_back: Callable[[int, float], None]


def _drive_apart(replicas: Sequence[Replica], times: Iterable[float], router: Router, look: Look, every: int) -> int:
    """Replicas do not see each other: each runs through its own arrivals, some at a time."""
    source = iter(times)
    sent = 0
    batch = list(islice(source, every))
    while batch:
        for request, time in enumerate(batch, sent):
            replicas[router.blind()].enqueue(request, time)
        sent += len(batch)
        batch = list(islice(source, every))
        edge = batch[0] if batch else math.inf
        for replica in replicas:
            if not replica.asleep and replica.now <= edge:
                replica.run(edge)
        if look(edge, sent):
            break
    return sent


class _Together:
    """Every arrival looks at its candidates: at the tokens they hold, or at their requests.

    Where the routing has one queue, an arrival goes to the replica chosen if that one has a free slot (fewer than `slots`
    requests) and waits in the common queue otherwise; its head goes to the replica that first gives a slot back. Requests a
    client holds back wait in the same way for any completion, and are routed when they are sent.
    """

    def __init__(
        self, replicas: Sequence[Replica], router: Router, rule: Routing, slots: float, client: Client | None
    ) -> None:
        self.replicas, self.router, self.client = replicas, router, client
        self.by_tokens = rule.least == "tokens"
        self.slots = slots if rule.one_queue else math.inf
        self.limited = client is not None or self.slots < math.inf
        self.waiting: deque[int] = deque()

    def full(self) -> bool:
        """Whether an arrival has to wait."""
        if self.client is not None:
            return sum(r.in_system for r in self.replicas) >= self.client.in_flight
        return min(r.in_system for r in self.replicas) >= self.slots

    def send(self, request: int, time: float, everywhere: bool = False) -> None:
        """Choose a replica and let the request arrive there, all candidates seen as they are at `time`."""
        candidates = self.router.candidates() if self.router.looks else [self.router.blind()]
        seen = self.replicas if candidates is None else [self.replicas[i] for i in candidates]
        for replica in self.replicas if everywhere else seen:
            if replica.now <= time and not replica.asleep:
                replica.run(time)
        if everywhere and (self.waiting or (self.limited and self.full())):
            self.waiting.append(request)
        elif not self.router.looks:
            seen[0].enqueue(request, time)
        else:
            values: list[float] = [r.held_at(time) for r in seen] if self.by_tokens else [r.in_system for r in seen]
            self.replicas[self.router.least(candidates, values)].enqueue(request, time)

    def hand_out(self, until: float) -> None:
        """Send those that wait, as places are given back, until `until`."""
        while self.waiting:
            replica = min((r for r in self.replicas if not r.asleep), key=_now)
            time = replica.now
            if time > until:
                return
            replica.run(time)  # effects only
            if self.client is None:
                while self.waiting and replica.in_system < self.slots:
                    replica.enqueue(self.waiting.popleft(), time)
            else:
                while self.waiting and not self.full():
                    request = self.waiting.popleft()
                    self.client.held_back(request, time)
                    self.send(request, time)
            replica.run(math.nextafter(time, math.inf))  # and the decision

    def drive(self, times: Iterable[float], look: Look, every: int) -> int:
        """Send all arrivals and run until no work is left."""
        sent = 0
        for request, time in enumerate(times):
            if self.waiting:
                self.hand_out(time)
            report = request % every == 0
            self.send(request, time, everywhere=report or self.limited)
            sent = request + 1
            if report and look(time, sent):
                return sent - len(self.waiting)  # those that wait are the last that came
        self.hand_out(math.inf)
        for replica in self.replicas:
            replica.run(math.inf)
        look(math.inf, sent)
        return sent


def _now(replica: Replica) -> float:
    return replica.now
