"""How bursty the arrivals of a fleet are, and what that adds to the wait in each of its pools."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from planner.queueing.bursts import BurstSequence, rate_variances
from planner.queueing.path import Followed, PathRequests, sample_blocks
from planner.workload.arrivals import Arrivals
from planner.workload.pools import PoolLaw, PoolRequests

__all__ = ["Burst", "PoolArrivals", "path_band", "replica_rates"]

FEW_PER_SWING = 0.05
"""Mean requests of a server within a swing below which the swing is left out; its cost grows with the inverse [1]."""


MOST_REQUESTS = 49_152
"""Requests followed in one prediction: P99 rests on 490 of them and the busiest minutes are all there."""

MOST_DRAWS = 4
"""Draws of the shifts of copies that one path holds at most."""

MOST_BALANCED = 12
"""Replicas of a pool balanced by numbers in flight that are followed; more even out a little further."""

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
    """

    arrivals: Arrivals | None
    share: float = 1.0
    requests: Callable[[], PoolRequests | None] = lambda: None
    growth: str = "users"
    _paths: dict[tuple[float, float], PathRequests | None] = field(default_factory=dict, repr=False, compare=False)

    def grown(self, growth: str) -> PoolArrivals:
        """The same requests where more than their own rate stands for something else."""
        return PoolArrivals(self.arrivals, self.share, self.requests, growth)

    def path(self, pool_rate: float, replicas: int, alike: bool) -> tuple[PathRequests, int] | None:
        """The path of the pool's requests at a rate [1/s], and the replicas it is for; ``None`` where none is known.

        `alike` says that every replica gets its share at random, whatever the others do.

        Above the trace's own rate there are more users, shifted copies of those there are; below it fewer. Replicas that are
        chosen at random are alike, so some of them stand for all; of a large pool balanced by numbers in flight, one of
        :data:`MOST_BALANCED` replicas at the same load does.
        """
        if self.arrivals is None:
            return None
        followed = min(replicas, MOST_BALANCED)
        if alike:
            requests = self.requests()
            each = 1.0 if requests is None else pool_rate / replicas * float(requests.trace.times_s[-1])
            followed = min(replicas, max(1, round(MOST_REQUESTS / max(each, 1.0))))
        found = self._path(pool_rate, followed / replicas)
        return None if found is None else (found, followed)

    def _path(self, pool_rate: float, keep: float) -> PathRequests | None:
        """The path with a share of the requests kept."""
        key = (float(f"{pool_rate:.12g}"), float(f"{keep:.12g}"))
        if key not in self._paths:
            requests = self.requests()
            if requests is not None:
                # a few copies may or may not bring their bursts together: several draws of their shifts, one after another
                copies = requests.trace.copies(key[0])
                expected = requests.trace.requests * copies * key[1]
                alone = copies <= 1.0 or self.growth == "use"
                draws = range(1 if alone else int(np.clip(MOST_REQUESTS / max(expected, 1.0), 1, MOST_DRAWS)))
                traces = [requests.trace.at_rate(key[0], growth=self.growth, keep=key[1], draw=k) for k in draws]
                span = float(requests.trace.times_s[-1])
                times = np.concatenate([k * span + t.times_s for k, t in enumerate(traces)])
                path = PathRequests.of(
                    times,
                    np.concatenate([t.input_tokens for t in traces]),
                    np.concatenate([t.output_tokens for t in traces]),
                    np.concatenate([requests.cached_by_category[t.category] for t in traces]),
                )
                order = np.argsort(path.times, kind="stable")
                self._paths[key] = sample_blocks(path.take(order), MOST_REQUESTS)
            else:
                self._paths[key] = None
        return self._paths[key]

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


def path_band(
    run: Followed, metric: str, quantiles: tuple[float, ...], own: tuple[float, float]
) -> tuple[tuple[float, float], ...]:
    """Truth over prediction - 1 of a pool run along a path, by level.

    The error `own` of the run itself, and how far another stretch of the same traffic would be off, taken as independent.
    """
    levels = np.array(quantiles)
    values = run.quantiles(metric, levels)
    found = []
    for value, low, high in zip(values.tolist(), *(x.tolist() for x in run.sampling(metric, levels)), strict=True):
        if value > 0.0:
            found.append((-min(math.hypot(own[0], low / value - 1.0), 0.99), math.hypot(own[1], high / value - 1.0)))
        else:
            found.append(own)
    return tuple(found)


def replica_rates(rate: float, service: float, replicas: int, pooled: bool) -> tuple[float, float]:
    """Arrival rate and mean service time of the server a request sees: its replica, or the pool as one."""
    return (rate, service / replicas) if pooled else (rate / replicas, service)
