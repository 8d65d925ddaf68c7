"""How bursty the arrivals of a fleet are, and what that adds to the wait in each of its pools."""

from __future__ import annotations

from dataclasses import dataclass

from planner.queueing.bursts import BurstSequence, rate_variances
from planner.sizing.moments import PoolLaw
from planner.workload.arrivals import Arrivals

__all__ = ["Burst", "replica_rates"]


@dataclass(frozen=True, slots=True)
class Burst:
    """Dispersion of the fleet's arrivals at the rate planned for.

    Parameters
    ----------
    arrivals
        The fleet's arrival process; ``None`` = Poisson.
    fleet_rate
        Rate planned for [1/s]. Counts keep the index of dispersion measured at the trace's own rate, as if the traffic
        were that many more independent users: relative swings shrink as the rate grows.
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

    def scales(self) -> list[tuple[float, float]]:
        """Time scales [s] and variances of the relative rate; thinning leaves them as they are."""
        if self.arrivals is None or not self.present:
            return []
        return rate_variances(self.arrivals.dispersion, self.fleet_rate)

    def sequence(self, law: PoolLaw, decode_weight: float, calm: bool = False) -> BurstSequence:
        """The fixed sequence of this pool: work = new prompt tokens + `decode_weight` per output token."""
        kept = 1.0 - law.cached_share
        work = kept * law.input_tokens + decode_weight * law.output_tokens
        return BurstSequence([] if calm else self.scales(), work, law.weight)


def replica_rates(rate: float, service: float, replicas: int, routing: str) -> tuple[float, float]:
    """Arrival rate and mean service time of the server a request sees: its replica, or under JSQ the pool as one."""
    return (rate, service / replicas) if routing == "jsq" else (rate / replicas, service)
