"""How bursty the arrivals of a fleet are, and what that adds to the wait in each of its pools."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.methods.stretches import CROWDS, MOST_DRAWS, USUAL_LOAD, WARM_UPS_S, WHOLE, Stretches, stretches
from planner.queueing.bursts import BurstSequence, rate_variances
from planner.queueing.order import distinct, quantiles_of
from planner.queueing.path import Followed, PathRequests
from planner.units import format_duration
from planner.workload.arrivals import Arrivals
from planner.workload.pools import FEWEST_REQUESTS, PoolLaw, PoolRequests
from planner.workload.sending import ORDINARY, Sending
from planner.workload.trace import Trace

FEW_PER_SWING = 0.05
"""Mean requests of a server within a swing below which the swing is left out; its cost grows with the inverse [1]."""


MOST_REQUESTS = 32_768
"""Requests followed in one prediction, about: the busiest stretches of many draws are among them."""

FEW_REQUESTS = 4096
"""Requests followed where an answer only says where to look."""

MOST_COPIES = 500
"""Copies of a trace, shifted in time, that are laid over each other at most: of 1,250 (Azure at 10,000 requests/s) P99 TTFT and
TPOT are within 4% of those of 500 at loads of 0.3 to 0.65, 9% at 0.8, where draws of the shifts differ as much."""

MOST_BALANCED = 5
"""Replicas of a pool balanced by numbers in flight that are followed, with evenly spread requests of all: P99 of TTFT and TPOT are
within 5% of those of 8 and 16 replicas."""

FEWEST_TOGETHER = 8
"""Replicas followed at least, of a pool that has them, where clients limit what they have under way or requests are drawn."""

MOST_DRAWN = 32
"""Replicas of a pool for which requests are drawn: of a larger one as full, so many see the same."""

EACH, STEPS_TWICE = 32, 10
"""Replicas up to which a path is followed of each number, and of how many numbers up to twice as many beyond that: P99 TTFT of
neighbouring numbers strays by 1.6% (root mean square), as a few requests more or less are followed, what one more replica brings is
less. Between two paths a prediction lies in proportion."""

IDLE_LOAD = 1e-6
"""A replica at this load is as good as idle: no burst reaches it [1]."""


@dataclass(frozen=True, slots=True)
class PoolArrivals:
    """How a pool's requests arrive at any rate.

    Parameters
    ----------
    arrivals
        The fleet's measured arrival process; ``None`` = Poisson.
    share
        Fraction of the fleet's requests the pool gets.
    requests
        Gives the pool's requests one by one, where the order they came in is known.
    growth
        What more than the trace's own rate stands for, as :meth:`planner.workload.trace.Trace.at_rate` takes it.
    most
        Requests followed in one prediction.
    sending
        What clients do beyond that.
    """

    arrivals: Arrivals | None
    share: float = 1.0
    requests: Callable[[], PoolRequests | None] = lambda: None
    growth: str = "users"
    most: int = MOST_REQUESTS
    sending: Sending = ORDINARY
    _found: dict[str, tuple[PathRequests, Trace] | None] = field(default_factory=dict, repr=False, compare=False)
    _rescaled: dict[str, Trace] = field(default_factory=dict, repr=False, compare=False)

    @property
    def known(self) -> bool:
        """Whether there are requests to follow, one by one."""
        return self._own_requests() is not None

    def sampled(self) -> PoolArrivals | None:
        """The same arrivals of which fewer requests are followed, else Poisson ones; ``None`` of Poisson arrivals."""
        if self.arrivals is None and self.sending.ordinary:
            return None
        if self.most == FEW_REQUESTS or self._own_requests() is None:
            return PoolArrivals(None)
        return replace(self, most=FEW_REQUESTS)

    def grown(self, growth: str) -> PoolArrivals:
        """The same requests where more than their own rate stands for something else."""
        return PoolArrivals(self.arrivals, self.share, self.requests, growth, sending=self.sending)

    def path(
        self,
        pool_rate: float,
        replicas: int,
        alike: bool,
        work_s: Callable[[PathRequests], NDArray[np.float64]],
        whole_s: Callable[[PathRequests], NDArray[np.float64]] | None = None,
        life_s: float = 0.0,
        balanced: int = MOST_BALANCED,
    ) -> PoolPath | None:
        """The path of the pool's requests at a rate [1/s], and the replicas it is for; ``None`` where none is known or
        hardly anything comes.

        Above the trace's own rate there are more users, shifted copies of those there are (or more use: the same path, higher);
        below it fewer.

        Parameters
        ----------
        pool_rate, replicas
            The pool.
        alike
            Whether every replica gets its share at random, whatever the others do: then some of them stand for all. Of a
            pool balanced by numbers in flight, `balanced` replicas at the same load do.
        work_s
            How long each request keeps a replica busy [s]: where it is busiest, the path is followed most closely.
        whole_s
            How long it does once decodes have filled up beside it [s], where that is longer.
        life_s
            How long it stays [s].
        """
        known = self._own_requests()
        if known is None:
            return None
        own, trace = known
        limit = self.sending.in_flight * self.share / replicas
        if self.sending.drawn:
            pool_rate *= min(1.0, MOST_DRAWN / replicas)
            replicas = min(replicas, MOST_DRAWN)
            trace = self._at_rate(trace, pool_rate)
        copies, servers = trace.copies(pool_rate), float(replicas)
        if copies > MOST_COPIES and replicas > 1:
            # a smaller pool of replicas as full: so many users already even out nearly all there is to even out, and what a
            # replica gets of so many copies that come together is as good as drawn anew
            smaller = max(MOST_COPIES / copies, 1.0 / replicas)
            copies, servers = smaller * copies, smaller * servers
            pool_rate = copies * trace.rate_per_s
        most = max(int(servers + 1e-9), 1)
        work, whole = work_s(own), None if whole_s is None else whole_s(own)
        if whole is not None:
            # each prompt alone in its iterations, which those that wait share: no more in all than full iterations take
            work = work * min(1.0, float(np.mean(whole)) / float(np.mean(work)))
        # as many at every size, and of the same stretches: a replica more may not look worse because others are followed
        usual = max(pool_rate * float(np.mean(work if whole is None else whole)) / USUAL_LOAD, 1.0)
        seen, alone = balanced, copies <= 1.0 or self.growth == "use"
        if self.growth == "use" and self.most == FEW_REQUESTS:
            # bursts that long fill all replicas alike: a rough look is at one
            seen = 1
        expected = trace.requests * copies * (1 if alone else MOST_DRAWS)
        if alike:
            if self.sending.surge is not None:
                # every crowd is followed whole, with what comes before and after it
                expected = max(expected, CROWDS[0] * pool_rate * self.sending.surge.window_s(WARM_UPS_S[1]))
            seen = most if expected <= WHOLE * self.most else max(1, round(self.most * usual / expected))
        elif expected <= WHOLE * self.most:
            # all there is: what a part of the replicas gets of one pass is more or less even by luck
            seen = most
        followed = min(most, seen)
        if limit < math.inf or (self.sending.drawn and not (alike and self.sending.surge)):
            # a limit is felt by all of them together, and few requests are drawn of each but for a crowd
            followed = max(followed, min(most, FEWEST_TOGETHER))
        found = stretches(
            trace,
            work,
            servers,
            pool_rate,
            growth=self.growth,
            keep=followed / servers,
            usual_keep=min(seen / usual, 1.0),
            even=not alike,
            whole_s=whole,
            life_s=life_s,
            most=self.most,
            surge=self.sending.surge,
        )
        if found.rows.size < FEWEST_REQUESTS:
            return None
        part = own.take(found.rows)
        requests = replace(
            part,
            times=found.times,
            weight=found.weight,
            block=found.run,
            keys=found.keys,
            level=found.level,
            backlog=found.backlog,
        )
        return PoolPath(requests, followed, found, limit * followed)

    def _at_rate(self, trace: Trace, rate: float) -> Trace:
        """Requests drawn at a rate [1/s], the same object for the same rate."""
        key = f"at {rate!r}"
        if key not in self._rescaled:
            self._rescaled.clear()
            self._rescaled[key] = trace.rescaled(rate)
        return self._rescaled[key]

    def _own_requests(self) -> tuple[PathRequests, Trace] | None:
        """The pool's requests as the trace has them."""
        if self.arrivals is None and self.sending.ordinary:
            return None
        if "own" not in self._found:
            requests = self.requests()
            self._found["own"] = None
            if requests is not None:
                t = requests.trace
                own = PathRequests.of(
                    t.times_s, t.input_tokens, t.output_tokens, requests.cached_share, requests.shared_prefix
                )
                self._found["own"] = own, t
        return self._found["own"]

    def at(self, pool_rate: float) -> Burst:
        """The bursts at a rate of the pool [1/s].

        Above the trace's own rate counts keep the index of dispersion measured there, as if the traffic were that many more
        independent users: relative swings shrink as the rate grows; where the same users do more, swings stay. Below it the
        traffic is a random part of the trace's: thinner, its counts come closer to Poisson and relative swings stay.
        """
        # twelve digits: pools of one fleet share what is known of its rate
        rate = float(f"{pool_rate / self.share:.12g}")
        arrivals = self.arrivals
        if arrivals is not None and arrivals.rate_per_s is not None and 0.0 < rate < arrivals.rate_per_s:
            arrivals = arrivals.thinned(rate / arrivals.rate_per_s)
        elif arrivals is not None and arrivals.rate_per_s is not None and self.growth == "use":
            arrivals = arrivals.busier(rate / arrivals.rate_per_s)
        return Burst(arrivals, rate, self.share)


@dataclass(frozen=True, slots=True)
class PoolPath:
    """Requests that stand for a pool's traffic.

    Parameters
    ----------
    requests
        The requests to follow.
    followed
        Replicas they are for.
    stretches
        Where they were taken from.
    in_flight
        Requests of those replicas that clients have under way at most.
    """

    requests: PathRequests
    followed: int
    stretches: Stretches
    in_flight: float = math.inf
    _hours: dict[tuple[str, tuple[float, ...]], NDArray[np.float64]] = field(
        default_factory=dict, init=False, repr=False
    )

    def hours(self, run: Followed, metric: str, quantiles: tuple[float, ...]) -> NDArray[np.float64]:
        """Quantiles of a metric in a calm, a typical and a busy hour [s], shape (3, levels).

        Of an hour that is calmer than nineteen in twenty, of the mean one, and of one busier than nineteen in twenty. Where there
        are several draws of the shifts these are draws: what requests go through depends on the draw by what they meet, so that a
        draw has its own share of each class of them. Else the typical hour is the one there is, and the others follow from its
        minutes.
        """
        key = (metric, quantiles)
        if key not in self._hours:
            self._hours[key] = np.maximum.accumulate(self._hours_of(run, metric, np.array(quantiles)), axis=1)
        return self._hours[key]

    def _hours_of(self, run: Followed, metric: str, levels: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same, worked out."""
        values, weight, rows = run.values(metric)
        shares = self.stretches.shares
        if not values.size:
            return np.zeros((3, levels.size))
        if shares.shape[0] == 1:
            # the share beyond is of a few busy stretches, more skewed than a normal one
            factor, tail = np.exp(1.645 * self.stretches.deviations(levels)), 1.0 - levels
            at = np.stack((1.0 - np.minimum(tail * factor, 1.0), levels, 1.0 - tail / factor))
            return run.quantiles(metric, at)
        kind, classes = self.stretches.kind[rows], shares.shape[1]
        # a few hundred values, most of them in the tail, tell a distribution
        ends = distinct(
            (values.size * np.append(np.linspace(0.0, 0.8, 201)[1:], np.linspace(0.8, 1.0, 601)[1:])).astype(np.int64)
        )
        ends = ends[ends > 0]
        cell = np.repeat(np.arange(ends.size), np.diff(ends, prepend=0)) * classes + kind
        below = np.cumsum(np.bincount(cell, weight, ends.size * classes).reshape(ends.size, classes), axis=0)
        of_draw = below @ (shares / np.maximum(below[-1], 1e-300)).T
        found = _inverse(of_draw, values[ends - 1], levels)
        calm, busy = quantiles_of(found, (0.05, 0.95))
        return np.stack((calm, found.mean(axis=0), busy))

    def typical(self, run: Followed, quantiles: tuple[float, ...]) -> NDArray[np.float64]:
        """Quantiles of the TTFT of a typical hour [s]: bursts meet as they usually do, not as they do once in a while."""
        found: NDArray[np.float64] = self.hours(run, "ttft_s", quantiles)[1]
        return found


@dataclass(frozen=True, slots=True)
class Burst:
    """Dispersion of the fleet's arrivals at one rate, as a pool of it feels it; made by :meth:`PoolArrivals.at`.

    Parameters
    ----------
    arrivals
        The fleet's arrival process at that rate; ``None`` = Poisson.
    fleet_rate
        Rate of the fleet [1/s].
    share
        Fraction of the requests the pool gets.
    """

    arrivals: Arrivals | None
    fleet_rate: float
    share: float = 1.0

    @property
    def present(self) -> bool:
        """Whether anything but Poisson arrivals is known."""
        return self.arrivals is not None and any(i > 1.0 for _, i in self.arrivals.dispersion)

    def pool_dispersion(self, window_s: float) -> float:
        """Index of dispersion of the pool's counts over a window [1]; thinning by length keeps ``1 + share (I - 1)``."""
        if self.arrivals is None or not self.present:
            return 1.0
        fleet = self.arrivals.dispersion_at(window_s)
        return max(1.0, 1.0 + self.share * (fleet - 1.0))

    def scales(self, server_rate: float = math.inf) -> tuple[tuple[float, float], ...]:
        """Time scales [s] and variances of the relative rate that a server with `server_rate` [1/s] can feel.

        Thinning leaves the variances as they are; a swing too short for a second request to fall into it is none.
        """
        if self.arrivals is None or not self.present:
            return ()
        found = _variances(self.arrivals.dispersion, self.fleet_rate)
        return tuple((scale, v) for scale, v in found if server_rate * scale >= FEW_PER_SWING)

    @staticmethod
    def sequence(law: PoolLaw, decode_weight: float, scales: Sequence[tuple[float, float]]) -> BurstSequence:
        """The fixed sequence of this pool: work = new prompt tokens + `decode_weight` per output token."""
        work = (1.0 - law.cached_share) * law.input_tokens + decode_weight * law.output_tokens
        return BurstSequence(scales, work, law.weight)


@lru_cache(maxsize=64)
def _variances(dispersion: tuple[tuple[float, float], ...], rate: float) -> tuple[tuple[float, float], ...]:
    return tuple(rate_variances(dispersion, rate))


def _inverse(
    below: NDArray[np.float64], values: NDArray[np.float64], levels: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Where columns that ascend pass shares of their last, linear between `values`; shape (columns, levels)."""
    column, found = np.arange(below.shape[1]), []
    for level in levels.tolist():
        wanted = level * below[-1]
        above = np.minimum(np.sum(below < wanted, axis=0), values.size - 1)
        under = np.maximum(above - 1, 0)
        low, high = below[under, column], below[above, column]
        part = np.clip((wanted - low) / np.maximum(high - low, 1e-300), 0.0, 1.0)
        found.append(values[under] + part * (values[above] - values[under]))
    return np.stack(found, axis=1)


def path_band(
    run: Followed, path: PoolPath, metric: str, quantiles: tuple[float, ...], own: tuple[float, float]
) -> tuple[tuple[float, float], ...]:
    """Truth over prediction - 1 of a pool run along a path, by level.

    The error `own` of the run itself, and how far an hour may be off a typical one, taken as independent.
    """
    calm, typical, busy = path.hours(run, metric, quantiles).tolist()
    return tuple(
        (-min(math.hypot(own[0], low / value - 1.0), 0.99), math.hypot(own[1], high / value - 1.0))
        if value > 0.0
        else own
        for low, value, high in zip(calm, typical, busy, strict=True)
    )


def held_back(run: Followed) -> tuple[str, ...]:
    """What a prediction says where clients hold requests back."""
    if run.held_back_s < 1e-3:
        return ()
    return (
        f"requests wait {format_duration(run.held_back_s)} with their clients on average, which no latency here counts",
    )


def followed_sizes(replicas: int) -> tuple[int, int]:
    """The numbers of replicas next to one, below and above, of which paths are followed; twice itself where its own is.

    >>> followed_sizes(20), followed_sizes(100), followed_sizes(512)
    ((20, 20), (97, 104), (512, 512))
    """
    if replicas <= EACH:
        return replicas, replicas
    step = math.floor(STEPS_TWICE * math.log2(replicas / EACH))
    near = [round(EACH * 2.0 ** (k / STEPS_TWICE)) for k in range(step - 1, step + 3)]
    return max(n for n in near if n <= replicas), min(n for n in near if n >= replicas)


def replica_rates(rate: float, service: float, replicas: int, pooled: bool) -> tuple[float, float]:
    """Arrival rate and mean service time of the server a request sees: its replica, or the pool as one."""
    return (rate, service / replicas) if pooled else (rate / replicas, service)
