"""How bursty the arrivals of one pool are at the time scale on which it recovers."""

from __future__ import annotations

from dataclasses import dataclass

from planner.workload.arrivals import Arrivals

__all__ = ["Burst"]


@dataclass(frozen=True, slots=True)
class Burst:
    """Dispersion of a pool's arrivals, from that of the workload.

    Parameters
    ----------
    arrivals
        The fleet's arrival process; ``None`` = Poisson.
    share
        Fraction of the requests the pool gets: thinning by length keeps ``1 + share (I - 1)`` of the dispersion.
    """

    arrivals: Arrivals | None
    share: float = 1.0

    def pool_dispersion(self, window_s: float) -> float:
        """Index of dispersion of the pool's counts over a window of one relaxation time [1]; 1 = Poisson."""
        if self.arrivals is None or not self.arrivals.dispersion:
            return 1.0
        fleet = self.arrivals.dispersion_at(window_s)
        return max(1.0, 1.0 + self.share * (fleet - 1.0))
