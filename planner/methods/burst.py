"""How bursty the arrivals of a fleet are, and what that adds to the wait in each of its pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from planner.queueing.bursts import BurstSequence, rate_variances
from planner.workload.arrivals import Arrivals
from planner.workload.pools import PoolLaw

__all__ = ["Burst", "PoolArrivals", "replica_rates"]

FEW_PER_SWING = 0.05
"""Mean requests of a server within a swing below which the swing is left out; its cost grows with the inverse [1]."""


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
    """

    arrivals: Arrivals | None
    share: float = 1.0

    def at(self, pool_rate: float) -> Burst:
        """The bursts at a rate of the pool [1/s].

        Above the trace's own rate counts keep the index of dispersion measured there, as if the traffic were that many more
        independent users: relative swings shrink as the rate grows. Below it the traffic is a random part of the trace's:
        thinner, its counts come closer to Poisson and relative swings stay.
        """
        # twelve digits: pools of one fleet share what is known of its rate
        rate = float(f"{pool_rate / self.share:.12g}")
        arrivals = self.arrivals
        if arrivals is not None and arrivals.rate_per_s is not None and 0.0 < rate < arrivals.rate_per_s:
            arrivals = arrivals.thinned(rate / arrivals.rate_per_s)
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


def replica_rates(rate: float, service: float, replicas: int, pooled: bool) -> tuple[float, float]:
    """Arrival rate and mean service time of the server a request sees: its replica, or the pool as one."""
    return (rate, service / replicas) if pooled else (rate / replicas, service)
