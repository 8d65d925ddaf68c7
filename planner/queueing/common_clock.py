r"""A replica whose requests advance together, one step of all in every iteration, run along the path its traffic took.

The replica's clock counts iterations. It runs at :math:`1/t(n)` with `n` requests inside, so a request that enters at reading `A`
and takes `K` iterations leaves at reading `A + K`. Who is inside follows from the clock and the clock from who is inside: rounds of
substitution settle both, each a sort of all comings and goings. A request that finds no free slot enters when enough of those
before it have left.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from planner.queueing.common_draws import WITHIN, uniforms
from planner.queueing.held_back import admitted
from planner.queueing.path import APART_S, Followed, PathRequests, assign_replicas

Array = NDArray[np.float64]

ROUNDS = 24
"""Most rounds of substitution."""

FASTEST = 0.9
"""Share of a change that the next round may make at most for it to be led on [1]."""

SETTLED = 4e-3
"""Mean change of a stay over their mean at which they end [1]: quantiles are then within 2% of those of a hundred rounds."""


def follow_slots(
    requests: PathRequests,
    duration: Callable[[Array, Array], Array],
    iterations: Array,
    first: Array,
    *,
    slots: float = np.inf,
    before_s: Array | float = 0.0,
    replicas: int = 1,
    candidates: int | None = 1,
    in_turn: bool = False,
) -> Followed:
    """Run a pool of such replicas along a path.

    Parameters
    ----------
    requests
        The path, at the rate of the whole pool.
    duration
        Time of an iteration by requests inside and the sum of their contexts [tokens]; at least one is inside [s].
    iterations, first
        Iterations of each request, and those to its first token, shape (requests,); 0 to the first where it is out already.
    slots
        Requests a replica holds.
    before_s
        From the arrival to the moment a request could enter [s]: the transfer of its KV cache.
    replicas, candidates, in_turn
        The pool, as :func:`planner.queueing.path.assign_replicas` takes it.

    Returns
    -------
    Followed
        TTFT to the end of the iteration of the first token, TPOT per iteration after it; `waited` is the wait for a slot.
    """
    times = requests.times + APART_S * 1e-2 * requests.block
    seconds = max(float(np.sum(np.diff(requests.times)[np.diff(requests.block) == 0])), 1e-9)
    usual, inside = _usual(requests, duration, float(iterations.sum()) / (seconds * replicas), slots)
    stay = iterations * usual
    replica = assign_replicas(times, 0.0 * times, stay, 0.0, replicas, candidates, in_turn, requests.keys)
    order = np.argsort(replica, kind="stable")
    part, count, to_first = requests.take(order), iterations[order], first[order]
    arrived = times[order] + APART_S * 1e2 * replica[order]
    ready = arrived + (before_s[order] if isinstance(before_s, np.ndarray) else before_s)
    past = _there_at_first(part, arrived, inside)
    place = uniforms(part.keys, WITHIN)
    entered, end = ready, ready + stay[order]
    begin, reading, crowded = ready, ready, False
    changed = 0.0
    for _ in range(ROUNDS):
        clock = _Clock(entered, end, part.context, past, duration)
        # the iteration under way ends before anybody joins
        begin = entered + place * clock.left(entered)
        reading = clock.reading(begin)
        before, end = end, clock.time(reading + count)
        crowded = crowded or clock.most >= slots
        if crowded:
            stay = end - begin
            entered = admitted(ready, stay, slots)
            end = entered + stay
        step = end - before
        change = float(np.mean(np.abs(step)))
        if change < SETTLED * float(np.mean(end - ready)):
            break
        # changes shrink by about the same share every round: go where that leads, and look again
        share, changed = change / changed if changed else 1.0, change
        if share < FASTEST:
            end = np.maximum(end + share / (1.0 - share) * step, entered)
            changed = 0.0
    out = clock.time(reading + to_first)
    after = count - to_first
    keep = part.weight > 0.0
    # where the first token is out on arrival, what comes before the iterations counts too
    since = np.where(to_first > 0.0, out, arrived)
    return Followed(
        order[keep],
        part.weight[keep],
        (out - arrived)[keep],
        np.where(after > 0.0, (end - since) / np.maximum(after, 1.0), np.nan)[keep],
        (end - arrived)[keep],
        np.where(entered > ready + 1e-9, entered - ready, 0.0)[keep],
        float(np.sum(end - begin)) / (seconds * replicas),
    )


def _usual(
    requests: PathRequests, duration: Callable[[Array, Array], Array], rate: float, slots: float
) -> tuple[float, float]:
    """Mean iteration of a replica [s] and requests inside, by Little's law with iterations asked for per second."""
    context, inside, step = float(requests.context.mean()), 1.0, 0.0
    most = min(slots, float(requests.size))
    for _ in range(40):
        step = float(duration(np.array([max(inside, 1.0)]), np.array([max(inside, 1.0) * context]))[0])
        inside = min(rate * step, most)
    return step, inside


def _there_at_first(part: PathRequests, arrived: Array, usual: float) -> tuple[Array, Array]:
    """When each stretch begins and how many are inside then: requests of the past, none of which is listed."""
    first = np.flatnonzero(np.diff(arrived, prepend=-np.inf) > APART_S * 5e-3)
    level = part.level[np.minimum(part.block[first], part.level.size - 1)]
    return arrived[first], level * usual


class _Clock:
    """Iterations done by every moment, given when requests come and go."""

    def __init__(
        self,
        entered: Array,
        end: Array,
        context: Array,
        past: tuple[Array, Array],
        duration: Callable[[Array, Array], Array],
    ) -> None:
        moments = np.concatenate((entered, end))
        change = np.concatenate((np.ones(entered.size), -np.ones(end.size)))
        order = np.argsort(moments, kind="stable")
        self.moments = moments[order]
        inside = np.cumsum(change[order])
        held = np.cumsum((change * np.tile(context, 2))[order])
        starts, level = past
        if level.any():
            stretch = np.maximum(np.searchsorted(starts, self.moments, side="right") - 1, 0)
            still = level[stretch] * _residual(end - entered, self.moments - starts[stretch])
            inside, held = inside + still, held + still * float(context.mean())
        self._inside = inside
        self.most = float(inside.max())
        self._iteration = duration(np.maximum(inside, 1.0), np.maximum(held, 1.0))
        self._readings = np.concatenate(([0.0], np.cumsum(np.diff(self.moments) / self._iteration[:-1])))

    def left(self, at: Array) -> Array:
        """Duration of the iteration under way just before a moment [s]; 0 where nobody is inside."""
        before = np.searchsorted(self.moments, at, side="left")
        where = np.maximum(before - 1, 0)
        return np.where((before > 0) & (self._inside[where] > 0.5), self._iteration[where], 0.0)

    def reading(self, at: Array) -> Array:
        """Iterations done [1]."""
        return np.asarray(np.interp(at, self.moments, self._readings))

    def time(self, reading: Array) -> Array:
        """When so many are done [s]; after the last going, at the pace of one."""
        beyond = np.maximum(reading - self._readings[-1], 0.0) * float(self._iteration[-1])
        return np.asarray(np.interp(reading, self._readings, self.moments) + beyond)


def _residual(stays: Array, age: Array) -> Array:
    """Share of those inside at some moment that are still there after `age` [s]: E[(S - age)^+]/E[S]."""
    stays = np.sort(stays)
    at = np.linspace(0.0, float(stays[-1]), 256)
    beyond = np.append(np.cumsum(stays[::-1])[::-1], 0.0)
    where = np.searchsorted(stays, at)
    survival = (beyond[where] - at * (stays.size - where)) / max(float(stays.sum()), 1e-300)
    return np.asarray(np.interp(age, at, survival, right=0.0))
