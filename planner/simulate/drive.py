"""Drives the replicas of a pool through a list of arrivals, whatever engine they run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from planner.routing import find_routing
from planner.simulate.routing import Router

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Replica", "drive"]

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

    Returns
    -------
    int
        Number of requests that were sent.
    """
    rule = find_routing(routing)
    router = Router(rule, len(replicas), rng)
    if not router.looks:
        return _drive_apart(replicas, times, router, look, every)
    held = rule.least == "tokens"
    return _drive_together(replicas, times, router, held, slots if rule.one_queue else math.inf, look, every)


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


def _drive_together(
    replicas: Sequence[Replica],
    times: Iterable[float],
    router: Router,
    held: bool,
    slots: float,
    look: Look,
    every: int,
) -> int:
    """Every arrival looks at its candidates: at the tokens they hold, or at their requests.

    With finite `slots` there is one queue: an arrival goes to the replica chosen if that one has a free slot (fewer than
    `slots` requests) and waits in the common queue otherwise; its head goes to the replica that first gives a slot back.
    """
    sent = 0
    waiting: deque[tuple[int, float]] = deque()

    def hand_out(until: float) -> None:
        while waiting:
            replica = min((r for r in replicas if not r.asleep), key=_now)
            time = replica.now
            if time > until:
                return
            replica.run(time)  # effects only
            while waiting and replica.in_system < slots:
                replica.enqueue(waiting.popleft()[0], time)
            replica.run(math.nextafter(time, math.inf))  # and the decision

    for request, time in enumerate(times):
        sent = request + 1
        if waiting:
            hand_out(time)
        candidates = router.candidates()
        report = request % every == 0
        seen = replicas if candidates is None else [replicas[i] for i in candidates]
        for replica in replicas if report else seen:
            if replica.now <= time and not replica.asleep:
                replica.run(time)
        if waiting or (slots < math.inf and min(r.in_system for r in replicas) >= slots):
            waiting.append((request, time))
        else:
            values: list[float] = [r.held_at(time) for r in seen] if held else [r.in_system for r in seen]
            replicas[router.least(candidates, values)].enqueue(request, time)
        if report and look(time, sent):
            return sent - len(waiting)  # those in the common queue are the last that came
    hand_out(math.inf)
    for replica in replicas:
        replica.run(math.inf)
    look(math.inf, sent)
    return sent


def _now(replica: Replica) -> float:
    return replica.now
