"""Drives the replicas of a pool through a list of arrivals, whatever engine they run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

from planner.simulate.routing import Router

if TYPE_CHECKING:
    from planner.simulate.fast import SharedQueue

__all__ = ["Replica", "drive", "drive_central"]

CHECKPOINTS = 200
"""How often a run reports its progress."""


class Replica(Protocol):
    """What a driver needs of a replica."""

    now: float
    asleep: bool
    preemptions: int

    def enqueue(self, request: int, time: float) -> None:
        """A request arrives."""

    def notice(self, time: float) -> None:
        """Something arrived in the shared queue."""

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
    router: Router,
    progress: Callable[[float], None] | None = None,
    stop: Callable[[float], bool] | None = None,
) -> int:
    """Send arrivals to replicas by `router` and run until no work is left.

    Returns the number of requests that were sent: fewer than all when `stop(now)` said so at a checkpoint.
    """
    total = len(times)
    every = max(total // CHECKPOINTS, 1)
    if not router.needs_state:
        # Replicas do not see each other: each runs through its own arrivals.
        position = 0
        while position < total:
            upto = min(position + every, total)
            for request in range(position, upto):
                replicas[router.choose((), ())].enqueue(request, times[request])
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
    by_count = router.name == "jsq"
    for request, time in enumerate(times):
        for replica in replicas:
            if replica.now <= time and not replica.asleep:
                replica.run(time)
        if by_count:
            chosen = router.choose([r.in_system for r in replicas], ())
        else:
            chosen = router.choose((), [r.held_at(time) for r in replicas])
        replicas[chosen].enqueue(request, time)
        if request % every == 0:
            if progress is not None:
                progress(request / total)
            if stop is not None and stop(time):
                return request + 1
    for replica in replicas:
        replica.run(math.inf)
    if progress is not None:
        progress(1.0)
    return total


def drive_central(
    replicas: Sequence[Replica],
    queue: SharedQueue,
    times: Sequence[float],
    progress: Callable[[float], None] | None = None,
    stop: Callable[[float], bool] | None = None,
) -> int:
    """One queue for all replicas: they decide in the order of time, ties by number; arrivals wake those that sleep."""
    total = len(times)
    every = max(total // CHECKPOINTS, 1)
    events: list[tuple[float, int]] = []
    position = 0
    inf = math.inf
    while True:
        while events and (replicas[events[0][1]].asleep or replicas[events[0][1]].now != events[0][0]):
            heappop(events)  # the run was cut, or the replica sleeps
        arrival = times[position] if position < total else inf
        event = events[0][0] if events else inf
        time = arrival if arrival < event else event
        if time == inf:
            if progress is not None:
                progress(1.0)
            return total
        if arrival == time:
            queue.times.append(time)
            queue.ids.append(position)
            position += 1
            for i, replica in enumerate(replicas):
                before = replica.now
                slept = replica.asleep
                replica.notice(time)
                if slept or replica.now != before:
                    heappush(events, (replica.now, i))
            if position % every == 0:
                if progress is not None:
                    progress(position / total)
                if stop is not None and stop(time):
                    return position
            continue
        _, i = heappop(events)
        replica = replicas[i]
        preemptions = replica.preemptions
        replica.run(math.nextafter(time, inf))  # the decision due at `time`, and no further one
        if not replica.asleep:
            heappush(events, (replica.now, i))
        if replica.preemptions > preemptions:  # the others may take what it gave back
            for k, other in enumerate(replicas):
                if k != i:
                    before, slept = other.now, other.asleep
                    other.notice(time if k > i or slept else math.nextafter(time, inf))
                    if slept or other.now != before:
                        heappush(events, (other.now, k))
