"""Drives the replicas of a pool through a list of arrivals, whatever engine they run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from planner.routing import find_routing
from planner.simulate.routing import Router

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Replica", "drive"]

CHECKPOINTS = 200
"""How often a run reports its progress."""


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
    times: Sequence[float],
    routing: str,
    rng: np.random.Generator | None = None,
    slots: float = math.inf,
    progress: Callable[[float], None] | None = None,
    stop: Callable[[float], bool] | None = None,
) -> int:
    """Send arrivals to replicas and run until no work is left.

    Parameters
    ----------
    replicas
        Fresh replicas.
    times
        Arrival times, increasing [s]; request i arrives at ``times[i]``.
    routing
        A name of :data:`planner.routing.ROUTINGS`.
    rng
        Generator of the router.
    slots
        Requests a replica takes before arrivals wait in the common queue, where the routing has one.
    progress
        Called now and then with the share of arrivals sent.
    stop
        Called now and then with the time; when it says True no further arrival is sent and the run ends there.

    Returns
    -------
    int
        Number of requests that were sent.
    """
    rule = find_routing(routing)
    router = Router(rule, len(replicas), rng)
    if not router.looks:
        return _drive_apart(replicas, times, router, progress, stop)
    held = rule.least == "tokens"
    return _drive_together(replicas, times, router, held, slots if rule.one_queue else math.inf, progress, stop)


def _drive_apart(
    replicas: Sequence[Replica],
    times: Sequence[float],
    router: Router,
    progress: Callable[[float], None] | None,
    stop: Callable[[float], bool] | None,
) -> int:
    """Replicas do not see each other: each runs through its own arrivals, some at a time."""
    total = len(times)
    every = max(total // CHECKPOINTS, 1)
    position = 0
    while position < total:
        upto = min(position + every, total)
        for request in range(position, upto):
            replicas[router.blind()].enqueue(request, times[request])
        position = upto
        edge = times[position] if position < total else math.inf
        for replica in replicas:
            if not replica.asleep and replica.now <= edge:
                replica.run(edge)
        if progress is not None:
            progress(position / total)
        if stop is not None and position < total and stop(edge):
            return position
    return total


def _drive_together(
    replicas: Sequence[Replica],
    times: Sequence[float],
    router: Router,
    held: bool,
    slots: float,
    progress: Callable[[float], None] | None,
    stop: Callable[[float], bool] | None,
) -> int:
    """Every arrival looks at its candidates: at the tokens they hold, or at their requests.

    With finite `slots` there is one queue: an arrival goes to the replica chosen if that one has a free slot (fewer than
    `slots` requests) and waits in the common queue otherwise; its head goes to the replica that first gives a slot back.
    """
    total = len(times)
    every = max(total // CHECKPOINTS, 1)
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
        if report:
            if progress is not None:
                progress(request / total)
            if stop is not None and stop(time):
                return request + 1 - len(waiting)  # those in the common queue are the last that came
    hand_out(math.inf)
    for replica in replicas:
        replica.run(math.inf)
    if progress is not None:
        progress(1.0)
    return total


def _now(replica: Replica) -> float:
    return replica.now
