"""A closed loop: clients that have so many requests under way hold the next one back until one is complete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import heappush, heapreplace

import numpy as np
from numpy.typing import NDArray

from planner.queueing.path import APART_S, Followed, PathRequests

Array = NDArray[np.float64]

ROUNDS = 8
"""Most rounds in which requests are held back by how long those before them stay, and stay as long as that lets them."""

LONGEST_S = APART_S * 4e-3
"""Who would be held back longer is not sent at all [s]: the rate cannot be reached within the limit, and the stretches of a path
lie little more than that apart."""

SETTLED = 2e-3
"""Mean change of a moment of sending over the mean stay at which they end [1]."""


def with_limit(requests: PathRequests, in_flight: float, follow: Callable[[PathRequests], Followed]) -> Followed:
    """Run a pool along a path whose clients have at most so many requests under way.

    When a request is sent follows from how long those before it stay, and that from when they were sent: rounds of
    substitution, each halfway from the one before.

    Parameters
    ----------
    requests
        The path.
    in_flight
        Requests of all clients under way at most; inf = no limit.
    follow
        Runs the pool along a path.

    Returns
    -------
    Followed
        Of what was sent, when it was sent: the time with the client counts nowhere.
    """
    if in_flight == np.inf:
        return follow(requests)
    in_flight = max(in_flight, 1.0)
    everybody = replace(requests, weight=np.ones(requests.size))
    wanted = requests.times + APART_S * 1e-2 * requests.block
    sent, stay = wanted, np.zeros(requests.size)
    for turn in range(ROUNDS):
        run = _sent(everybody, sent - wanted, follow)
        found = np.full(requests.size, float(run.e2e.mean()))
        found[run.rows] = run.e2e
        stay = found if turn == 0 else 0.5 * (stay + found)
        before, sent = sent, admitted(wanted, stay, in_flight)
        if float(np.mean(np.abs(sent - before))) < SETTLED * float(np.mean(stay)):
            break
    waits = sent - wanted
    held_back = np.average(waits, weights=requests.weight)
    counted = requests if np.any(requests.weight[waits <= LONGEST_S] > 0.0) else everybody
    return replace(_sent(counted, waits, follow), held_back_s=float(held_back))


def _sent(requests: PathRequests, held_back: Array, follow: Callable[[PathRequests], Followed]) -> Followed:
    """The path as it is sent, without those who are held back for too long."""
    rows = np.flatnonzero(held_back <= LONGEST_S)
    run = follow(replace(requests.take(rows), times=requests.times[rows] + held_back[rows]))
    return replace(run, rows=rows[run.rows])


def admitted(ready: Array, stay: Array, slots: float) -> Array:
    """When each may enter: first come, first served, as slots are given back; stretches lie apart in `ready`."""
    order = np.argsort(ready, kind="stable")
    comes = ready[order]
    # inside with every arrival if nobody waited: a stretch of a replica without more than its slots has no one who waits
    # and those who come at once count for one another, however short they stay
    leaves = np.maximum(comes + stay[order], np.nextafter(comes, np.inf))
    inside = np.arange(1, comes.size + 1) - np.searchsorted(np.sort(leaves), comes, side="right")
    stretch = np.cumsum(np.diff(comes, prepend=-np.inf) > APART_S * 5e-3) - 1
    full = np.zeros(int(stretch[-1]) + 1, dtype=bool)
    full[stretch[inside > slots]] = True
    found = ready.copy()
    wait = order[full[stretch]]
    found[wait] = _in_turn(ready[wait], stay[wait], slots)
    return found


def _in_turn(ready: Array, stay: Array, slots: float) -> Array:
    """The same, request by request; `ready` does not decrease."""
    entered: list[float] = []
    ends: list[float] = []
    before = -np.inf
    for comes, stays in zip(ready.tolist(), stay.tolist(), strict=True):
        if comes - before > APART_S * 5e-3:  # another stretch or replica
            ends = []
        before = comes
        if len(ends) < slots:
            entered.append(comes)
            heappush(ends, comes + stays)
            continue
        first = ends[0]
        at = comes if comes > first else first
        entered.append(at)
        heapreplace(ends, at + stays)
    return np.array(entered)
