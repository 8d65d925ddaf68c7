"""A replica beyond its capacity: what is answered, turned away and given up, and what retries make of it.

Requests present are a birth-death chain: below saturation n requests leave at the rate of iterations that grow with them,
beyond it at the largest throughput. A limit on the queue ends the chain; a client's patience T means that who stands further back
than T minus the time to a first token after admission gets an answer too late. First come, first served, an engine that is kept
busy with requests about to be given up answers few (:mod:`planner.queueing.abandonment`).
Attempts that fail come back up to r times: rate = demand (1 + p (1 + q + ... + q^(r - 1))) with q >= p, because a queue that was
full is full a moment later; solved from below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.queueing.abandonment import PromptsInIterations, WholePrompts

MOST_WATCHED = 120
"""Free places of a line that are followed until a request comes back."""

Floats = NDArray[np.float64]

MOST_WAITING = 200_000
"""Waiting requests that are told apart; a queue without limit ends there [requests]."""


@dataclass(frozen=True, slots=True)
class Door:
    """What limits a queue.

    Parameters
    ----------
    max_queue
        Requests that may wait at a replica; inf = no limit.
    timeout_s
        A client's patience for a first token [s]; inf = no limit.
    retries, retry_after_s
        Times a failed attempt is made again, and after how long [s].
    """

    max_queue: float = math.inf
    timeout_s: float = math.inf
    retries: int = 0
    retry_after_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Overload:
    """What becomes of the requests of a replica.

    Parameters
    ----------
    demand_per_s, attempts_per_s
        Requests that clients want answered, and attempts they make [1/s].
    goodput_per_s
        Requests answered in time [1/s].
    rejected_share, given_up_share
        Of all attempts [1].
    ttft_mean_s
        Mean time to first token of those answered [s].
    waiting
        Mean requests waiting.
    """

    demand_per_s: float
    attempts_per_s: float
    goodput_per_s: float
    rejected_share: float
    given_up_share: float
    ttft_mean_s: float
    waiting: float

    @property
    def amplification(self) -> float:
        """Attempts per request [1]."""
        return self.attempts_per_s / self.demand_per_s

    @property
    def answered_share(self) -> float:
        """Of the requests wanted [1]."""
        return self.goodput_per_s / self.demand_per_s


@dataclass(frozen=True, slots=True)
class _Line:
    """Requests that wait at a replica, as a birth-death chain with the drift and the variance of its queue.

    Parameters
    ----------
    lost, waiting, ttft_s
        Share turned away at the end of the line [1], mean requests waiting, mean TTFT of those admitted [s].
    joins, leaves
        Rates of the queue's steps up and down [1/s].
    places
        Requests that may wait.
    """

    lost: float
    waiting: float
    ttft_s: float
    joins: float
    leaves: float
    places: int

    def still_full(self, after_s: float) -> float:
        """Whether the line that turned a request away is full again, or still, so much later [1]."""
        places = min(self.places, MOST_WATCHED)
        if places == 0:
            return self.lost
        # free places: a reflected walk, made symmetric
        side = -math.sqrt(self.joins * self.leaves) * np.ones(places)
        middle = np.full(places + 1, self.joins + self.leaves)
        middle[0], middle[-1] = self.leaves, self.joins
        rates, vectors = np.linalg.eigh(np.diag(middle) + np.diag(side, 1) + np.diag(side, -1))
        return float(vectors[0] ** 2 @ np.exp(-np.maximum(rates, 0.0) * after_s))


@dataclass(frozen=True)
class OverloadedReplica:
    """One replica near and beyond its capacity.

    Parameters
    ----------
    capacity_per_s
        Largest throughput X [1/s].
    steps
        Mean iterations a request is resident.
    idle_iteration_s, full_iteration_s
        An iteration with next to nothing to do, and at capacity [s].
    first_token_s
        From admission to first token at capacity [s].
    work, prefill, weight
        Work of requests and of their prefill, each with mean 1, and how frequent they are; shape (rows,).
    engine
        How it takes prompts, and who is answered where all wait as long as patience allows.
    """

    capacity_per_s: float
    steps: float
    idle_iteration_s: float
    full_iteration_s: float
    first_token_s: float
    work: Floats
    prefill: Floats
    weight: Floats
    engine: WholePrompts | PromptsInIterations

    @property
    def scv(self) -> float:
        """Squared coefficient of variation of the work of a request [1]."""
        return float(self.weight @ (self.work - 1.0) ** 2)

    @property
    def resident(self) -> float:
        """Requests resident at capacity."""
        return self.capacity_per_s * self.steps * self.full_iteration_s

    def _line(self, rate: float, most: int) -> _Line:
        """At most `most` waiting requests, Poisson arrivals: for slots and memory, or for the prompts before them."""
        n = np.arange(1, max(round(self.resident), 1) + 1, dtype=np.float64)
        x = self.capacity_per_s
        per_request = (1.0 - self.idle_iteration_s / self.full_iteration_s) / x
        slots = self._chain(
            rate, np.minimum(n / (self.steps * self.idle_iteration_s + n * per_request), x), self.scv, most
        )
        scv = float(self.weight @ (self.prefill - 1.0) ** 2)
        prompts = self._chain(rate, np.array([max(self.engine.prompts_per_s(rate), x)]), scv, most)
        return max(slots, prompts, key=lambda line: (line.lost, line.waiting))

    def _chain(self, rate: float, leave: Floats, scv: float, most: int) -> _Line:
        """Poisson arrivals at servers that n requests leave at a rate leave[n - 1] [1/s], with `most` places behind them.

        In the line steps up and down have the drift rate - x and the variance rate + x scv of the true queue.
        """
        full, x = leave.size, float(leave[-1])
        joins, leaves = max(rate - 0.5 * x * (1.0 - scv), 1e-3 * rate), 0.5 * x * (1.0 + scv)
        places = np.arange(full + most + 1)
        logs = np.concatenate([[0.0], np.cumsum(np.log(rate / leave)), np.zeros(most)])
        logs[full + 1 :] = logs[full] + math.log(rate / leaves) + math.log(joins / leaves) * np.arange(most)
        law = np.exp(logs - logs.max())
        law /= law.sum()
        lost = float(law[-1]) * (joins / rate if most else 1.0)
        inside = law.copy()
        inside[-1] = max(inside[-1] - lost, 0.0)
        inside /= max(float(inside.sum()), 1e-300)
        wait = np.maximum(places + 1 - full, 0) / x
        first = self.first_token_s * (0.35 + 0.65 * np.minimum(1.0, (places + 1) / full))
        waiting = float(law @ np.maximum(places - full, 0))
        return _Line(lost, waiting, float(inside @ (wait + first)), joins, leaves, most)

    def _attempts(self, rate: float, door: Door) -> tuple[float, float, float, float, float, _Line | None]:
        """Of attempts at a rate [1/s]: shares answered, turned away and given up; mean TTFT [s]; mean waiting; the line."""
        x = self.capacity_per_s
        in_time = x * max(door.timeout_s - self.first_token_s, 0.0)
        limit = min(door.max_queue, MOST_WAITING)
        if limit <= in_time:
            most = round(limit)
            if rate < x:
                most = min(most, max(round(60.0 / max(1.0 - rate / x, 3e-4)), 100))
            line = self._line(rate, most)
            return 1.0 - line.lost, line.lost, 0.0, line.ttft_s, line.waiting, line
        most = round(min(in_time + 1.0, MOST_WAITING))
        if rate < x:
            line = self._line(rate, min(most, max(round(60.0 / max(1.0 - rate / x, 3e-4)), 100)))
            return 1.0 - line.lost, 0.0, line.lost, line.ttft_s, line.waiting, None
        # the queue is as long as patience: what is admitted is about to be given up
        admitted = max(limit / door.timeout_s, x * 1.02)
        if admitted < rate:
            # the queue holds less than would come within patience: what it cannot take is turned away, the rest fails as above
            share = self._succeeding(admitted) * admitted / rate
            return share, 1.0 - admitted / rate, admitted / rate - share, door.timeout_s, limit, None
        # but for the time in which it happens to be empty
        idle = max(self._line(rate, most).lost - (1.0 - x / rate), 0.0)
        share = max(self._succeeding(rate) - idle, 0.0)
        return share, 0.0, 1.0 - share, door.timeout_s, rate * door.timeout_s, None

    def _succeeding(self, rate: float) -> float:
        """Share of attempts answered where all wait as long as patience allows [1]."""
        return min(self.engine.answered_per_s(rate) / rate, 1.0)

    def at(self, demand_per_s: float, door: Door) -> Overload:
        """The steady state clients run into when their demand grows to this.

        Parameters
        ----------
        demand_per_s
            Requests wanted of one replica [1/s], > 0.
        door
            Limits and patience.
        """

        rate, again = demand_per_s, 0.0
        known = math.inf
        for _ in range(200):
            answered, *_, line = self._attempts(rate, door)
            failed = 1.0 - answered
            if door.retries and failed > 1e-9 and not abs(rate / known - 1.0) < 0.01:
                # a line that was full a moment ago is likely still full
                again, known = failed if line is None else max(line.still_full(door.retry_after_s), failed), rate
            more = demand_per_s * self._tries(failed, again if line is not None else failed, door.retries)
            if more <= rate * (1.0 + 1e-6):
                break
            rate = more
        answered, rejected, given_up, ttft, waiting, _ = self._attempts(rate, door)
        goodput = min(rate * answered, demand_per_s)
        return Overload(demand_per_s, rate, goodput, rejected, given_up, ttft, waiting)

    @staticmethod
    def _tries(failed: float, again: float, retries: int) -> float:
        """Attempts per request: the first fails with p, one that follows a failed one with `again`; `failed` is of all attempts.

        With a = 1 + again + ... over the retries, 1 + p a attempts fail p (1 + again a) times.
        """
        a = sum(again**k for k in range(retries))
        first = failed / max(1.0 + again * a - failed * a, failed, 1e-12)
        return 1.0 + first * a

    def queue_for(self, ttft_s: float, quantile: float = 0.99) -> int:
        """Requests that may wait so that a full queue keeps a TTFT promise [requests]; 0 = not even an empty one does.

        k requests leave in k/X on average, with a standard deviation of sqrt(k scv)/X.
        """
        from scipy.special import ndtri

        room = (ttft_s - self.first_token_s) * self.capacity_per_s
        if room <= 0.0:
            return 0
        z = float(ndtri(quantile)) * math.sqrt(max(self.scv, 0.0))
        root = 0.5 * (-z + math.sqrt(z * z + 4.0 * room))
        return math.floor(max(root, 0.0) ** 2)

    def recovery_s(self, rate_per_s: float, surge_per_s: float, duration_s: float, door: Door) -> float:
        """From the end of a surge until its queue is gone, at the usual rate [s]; inf where it never is.

        Retries of what a full queue turned away come at the same time and are turned away again: they lengthen nothing as long as
        the usual rate and they stay within capacity.
        """
        x = self.capacity_per_s
        growth = max(surge_per_s - x, 0.0) * duration_s
        limit = min(door.max_queue, x * door.timeout_s if math.isfinite(door.timeout_s) else math.inf)
        queue = min(growth, limit)
        if queue == 0.0:
            return 0.0
        lost = max(growth - limit, 0.0)
        again = min(door.retries, 1) * lost
        spare = x - rate_per_s
        return math.inf if spare <= 0.0 else (queue + min(again, limit)) / spare
