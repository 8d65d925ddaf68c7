"""A replica beyond its capacity: what is answered, turned away and given up, and what retries make of it.

Requests present are a birth-death chain: below saturation n requests leave at the rate of iterations that grow with them,
beyond it at the largest throughput. A limit on the queue ends the chain; a client's patience T means that who stands further back
than T minus the time to a first token after admission gets an answer too late. First come, first served, an engine that is kept
busy with requests about to be given up answers few: beyond capacity the heads of the queue are as old as patience allows, and what
slack they have left is the time a customer stays in a queue GI/M/1 with the roles of arrivals and service exchanged.
Attempts that fail come back up to r times: rate = demand (1 + p + ... + p^r), solved from below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

GROUPS = 48
"""Kinds of requests that patience tells apart, by their prefill."""

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
    retries
        Times a failed attempt is made again.
    """

    max_queue: float = math.inf
    timeout_s: float = math.inf
    retries: int = 0


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


@dataclass(frozen=True)
class OverloadedReplica:
    """One replica of mixed batching near and beyond its capacity.

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
    prompt_iterations
        Iterations that a mean prompt fills [1].
    work, prefill, weight
        Work of requests and its prefill part, the mean work being 1, and how frequent each is; shape (rows,).
    whole_prompts
        Iterations are one whole prompt, which is computed to its end whatever its client does.
    """

    capacity_per_s: float
    steps: float
    idle_iteration_s: float
    full_iteration_s: float
    first_token_s: float
    prompt_iterations: float
    work: Floats
    prefill: Floats
    weight: Floats
    whole_prompts: bool = False

    @property
    def scv(self) -> float:
        """Squared coefficient of variation of the work of a request [1]."""
        return float(self.weight @ (self.work - 1.0) ** 2)

    @property
    def resident(self) -> float:
        """Requests resident at capacity."""
        return self.capacity_per_s * self.steps * self.full_iteration_s

    def _chain(self, rate: float, most: int) -> tuple[Floats, Floats]:
        """Stationary law of requests present, 0 to resident + `most`, for Poisson arrivals; and the rate they leave at [1/s]."""
        full = max(round(self.resident), 1)
        n = np.arange(1, full + 1, dtype=np.float64)
        per_request = (1.0 - self.idle_iteration_s / self.full_iteration_s) / self.capacity_per_s
        leave = np.minimum(n / (self.steps * self.idle_iteration_s + n * per_request), self.capacity_per_s)
        # work that varies more than an exponential service fills a queue sooner: the usual heavy-traffic exponent
        beyond = math.log(rate / self.capacity_per_s) * 2.0 / (1.0 + self.scv)
        logs = np.concatenate([[0.0], np.cumsum(np.log(rate / leave)), np.zeros(most)])
        logs[full + 1 :] = logs[full] + beyond * np.arange(1, most + 1)
        law = np.exp(logs - logs.max())
        return np.asarray(law / law.sum()), np.concatenate([[0.0], leave, np.full(most, self.capacity_per_s)])

    def _attempts(self, rate: float, door: Door) -> tuple[float, float, float, float, float]:
        """Of attempts at a rate [1/s]: shares answered, turned away and given up; mean TTFT [s]; mean waiting."""
        x, full = self.capacity_per_s, max(round(self.resident), 1)
        in_time = x * max(door.timeout_s - self.first_token_s, 0.0)
        limit = min(door.max_queue, MOST_WAITING)
        patient = limit <= in_time
        if patient or rate < x:
            most = round(min(limit, in_time + 1.0, MOST_WAITING))
            if rate < x:
                most = min(most, max(round(60.0 / max(1.0 - rate / x, 3e-4)), 100))
            law, leave = self._chain(rate, most)
            # what does not leave is lost, whatever the law's exponent made of its last place
            lost = max(1.0 - float(law @ leave) / rate, 0.0) if rate >= x else float(law[-1])
            places = np.arange(law.size)
            wait = np.maximum(places + 1 - full, 0) / x
            inside = law[:-1] / max(float(law[:-1].sum()), 1e-300)
            pace = np.minimum(1.0, (places + 1) / full)
            first = self.first_token_s * (0.35 + 0.65 * pace)
            ttft = float(inside @ (wait + first)[:-1]) if law.size > 1 else self.first_token_s
            waiting = float(law @ np.maximum(places - full, 0))
            rejected, given_up = (lost, 0.0) if patient else (0.0, lost)
            return 1.0 - lost, rejected, given_up, ttft, waiting
        # the queue is as long as patience: what is admitted is about to be given up
        share = self._succeeding(rate)
        if limit < x * door.timeout_s:
            # the queue holds less than patience allows: what it cannot take is turned away, the rest fails as above
            share = self._succeeding(min(rate, x * 1.02))
            return share * x / rate, 1.0 - x / rate, (1.0 - share) * x / rate, door.timeout_s, limit
        return share, 0.0, 1.0 - share, door.timeout_s, rate * door.timeout_s

    @cached_property
    def _groups(self) -> tuple[Floats, Floats, Floats]:
        """Prefill and other work, and share of at most GROUPS kinds of requests, in the order of their prefill; shape (groups,)."""
        order = np.argsort(self.prefill)
        weight = self.weight[order]
        group = np.minimum((np.cumsum(weight) - 0.5 * weight) * GROUPS, GROUPS - 1).astype(np.int64)
        shares: Floats = np.bincount(group, weight).astype(np.float64)
        kept = shares > 0.0
        shares = shares[kept]
        sums = [np.bincount(group, weight * w)[kept] for w in (self.prefill[order], self.work[order])]
        prefill = np.maximum(sums[0] / shares, 1e-9)
        return prefill, np.maximum(sums[1] / shares - prefill, 0.0), shares

    def _succeeding(self, rate: float) -> float:
        r"""Share of attempts answered where all wait as long as patience allows [1].

        First come, first served, prompts are computed one after the other. When one is taken, its client has a slack e left; it
        takes s, or e if that is less, and the next in line has the slack

        .. math:: e' = (e - s)^+ + A, \quad A \sim \text{Exp}(\lambda)

        because clients come at rate :math:`\lambda` and give up in the order in which they came. That is the time a customer of
        a queue GI/M/1 stays, served at rate :math:`\lambda` and arriving every s: e is exponential with the rate
        :math:`\theta = \lambda(1 - E[e^{-\theta s}])`. The first token comes at the end of an iteration, U later (uniform), so
        an attempt succeeds with :math:`E[e^{-\theta(s + U)}]` and its prompt costs :math:`E[\min(e + U, s)]` of the engine's time
        for prefill, whose share phi is what the decodes of those answered leave: s = prefill/(X phi). Prompts of clients that are
        gone leave their slots at once, so that iterations grow until prompts fill them, if they are not that long already.
        """
        x = self.capacity_per_s
        prefill, rest, share = self._groups
        moments = (np.arange(8)[:, None] + 0.5) / 8.0

        def used(phi: float) -> tuple[float, float]:
            """Share of the engine's time that prefill at `phi` and what it leads to take, and answers per second."""
            s = prefill / (x * phi)
            if rate * float(share @ s) <= 1.0:
                return math.inf, rate
            tau = max(self.full_iteration_s, float(share @ s) / self.prompt_iterations)
            ends, theta = moments * tau, rate
            for _ in range(20):
                gone = share * np.exp(-theta * s)
                step = (rate * (1.0 - float(gone.sum())) - theta) / (rate * float(gone @ s) - 1.0)
                theta -= step
                if abs(step) <= 1e-10 * rate:
                    break
            theta = max(theta, 1e-12)
            if self.whole_prompts:
                begun = 1.0 / float(share @ s)
                return phi, begun * float(share @ np.exp(-theta * s))
            late = -math.expm1(-theta * tau) / (theta * tau)
            kept = share * np.exp(-theta * s) * late
            taken = np.minimum(ends, s) - np.expm1(-theta * np.maximum(s - ends, 0.0)) / theta
            begun = 1.0 / float((taken @ share).mean())
            return phi + begun * float(kept @ rest) / x, begun * float(kept.sum())

        low, high = 1e-4, 1.0
        for _ in range(40):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if used(middle)[0] > 1.0 else (middle, high)
        return min(used(low)[1] / rate, 1.0)

    def at(self, demand_per_s: float, door: Door) -> Overload:
        """The steady state clients run into when their demand grows to this.

        Parameters
        ----------
        demand_per_s
            Requests wanted of one replica [1/s], > 0.
        door
            Limits and patience.
        """

        def attempts(rate: float) -> float:
            failed = 1.0 - self._attempts(rate, door)[0]
            return demand_per_s * sum(failed**k for k in range(door.retries + 1))

        rate = demand_per_s
        for _ in range(200):
            more = attempts(rate)
            if more <= rate * (1.0 + 1e-6):
                break
            rate = more
        answered, rejected, given_up, ttft, waiting = self._attempts(rate, door)
        goodput = min(rate * answered, demand_per_s)
        return Overload(demand_per_s, rate, goodput, rejected, given_up, ttft, waiting)

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
