"""A pool of replicas asked by a fixed number of users, each of whom waits for an answer and thinks before asking again.

Arrivals depend on answers here: a slower fleet is asked less. At the rate of its question the users are those of the question; at
another rate, as many more or fewer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.methods.base import Prediction
from planner.methods.replayed import Played, ReplayPool
from planner.predict.records import Requests, keys_of, uniforms
from planner.predict.run import replay
from planner.predict.traffic import LEAST_OTHERS, LEAST_REPLICAS, SAMPLE
from planner.promise import Promise

LEAST_CALLS, MOST_CALLS = 40, 4000
"""Requests of each user that are replayed."""

WARM = 0.2
"""Part of the time until the first user has asked all of its requests, before which nothing counts."""

DRAWN_BY_USERS = 200
"""Kind of draw that lengths, think times and phases of users hang on."""


class PopulationPool(ReplayPool):
    """See the module and :class:`planner.methods.replayed.ReplayPool`."""

    def users(self, rate_per_s: float) -> float:
        """Users of the pool at a rate of its question [1/s]."""
        population = self.traffic.fleet.sending.population
        assert population is not None
        return population.users * rate_per_s / population.asked_per_s

    def without_bursts(self) -> None:
        """Users are their own law of arrivals."""

    def grown(self, growth: str) -> None:
        """More users are more users."""

    def keeps(self, arrival_rate_per_s: float, replicas: int, promises: Sequence[Promise], sure: bool = False) -> bool:
        """See :class:`planner.methods.base.PoolModel`; nobody knows before the end who counts, so that none ends early."""
        key = (arrival_rate_per_s, replicas, tuple(promises), sure)
        if key not in self._kept:
            played = self._play(arrival_rate_per_s, replicas, 2 * SAMPLE if sure else SAMPLE, None, ())
            self._kept[key] = self._keeps_all(played, promises)
        return self._kept[key]

    def _at(self, rate: float, replicas: int, quantiles: tuple[float, ...], most: int, draw: int | None) -> Prediction:
        key = (rate, replicas, quantiles, most, draw)
        if key not in self._known:
            self._known[key] = self._told(self._play(rate, replicas, min(most, 2 * SAMPLE), draw, ()), quantiles)
        return self._known[key]

    def _told(self, played: Played, quantiles: tuple[float, ...]) -> Prediction:
        found = super()._told(played, quantiles)
        if played.requests.following is None:
            return found
        counted = played.requests.weight > 0.0  # type: ignore[operator]
        # Little's law: the time over which replicas were watched is not that of the requests that count
        running = played.rate_per_s * float(np.nanmean((played.run.done_s - played.run.admitted_s)[counted]))
        return replace(found, mean_running=running, slot_occupancy=min(running / self.engine.slots, 1.0))

    def _others(self, rate: float) -> list[int]:
        return [1, 2]

    def _play(self, rate: float, replicas: int, most: int, draw: int | None, promises: Sequence[Promise]) -> Played:
        """Let the users ask, those of a few replicas where there are many; what came while it was warm counts."""
        users = self.users(rate)
        least = LEAST_REPLICAS.get(self.engine.routing, LEAST_OTHERS)
        fewer = max(min(math.ceil(users * LEAST_CALLS / most), replicas // least), 1)
        looked_at = max(round(replicas / fewer), 1)
        clients = max(round(users * looked_at / replicas), 1)
        requests = self._asked_by(clients, max(min(most // clients, MOST_CALLS), LEAST_CALLS), draw or 0)
        run = replay(requests, replace(self.engine, count=looked_at))
        last = np.nan_to_num(run.sent_s[-clients:], nan=math.inf)
        end = float(last.min())
        start = WARM * end
        counted = (run.sent_s >= start) & (run.sent_s < end)
        per_s = float(np.count_nonzero(counted)) / (end - start)
        requests = replace(requests, weight=counted.astype(np.float64))
        return Played(requests, run, end, looked_at, per_s / looked_at, None)

    def _asked_by(self, clients: int, calls: int, draw: int) -> Requests:
        """The requests of so many users: their first in order of time, then their second ones, and so on."""
        population = self.traffic.fleet.sending.population
        assert population is not None
        own = self.traffic.own
        user = np.tile(np.arange(clients), calls)
        call = np.repeat(np.arange(calls), clients)
        key = keys_of(user, call, DRAWN_BY_USERS + draw)
        row = (uniforms(key, 0) * own.trace.requests).astype(np.int64)
        gap = population.gaps(uniforms(key, 1), uniforms(key, 2))
        # who thinks for long is met thinking; who does not comes within the first second
        first = np.sort(uniforms(key[:clients], 3)) * max(population.think_s, 1.0)
        inputs = np.maximum(np.rint(own.trace.input_tokens[row]), 1.0)
        return Requests(
            np.concatenate([first, np.full(clients * (calls - 1), math.inf)]),
            inputs,
            np.maximum(np.rint(own.trace.output_tokens[row]), 1.0),
            np.floor(np.minimum(own.cached_share[row] * inputs, inputs - 1.0)),
            key,
            following=np.where(call < calls - 1, np.arange(user.size) + clients, -1),
            gap_s=gap,
            images=None if own.images is None else own.images[row],
        )
