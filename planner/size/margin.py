"""How much slower than their profile engines may be for a pool still to keep its promises: what buys confidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from planner.catalog.profiles import Profile
from planner.promise import Promise


def below(z: float) -> float:
    """P(a standard normal variable <= z)."""
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


@cache
def normal_quantile(p: float) -> float:
    """The z below which a standard normal variable lies with probability `p`, in (0, 1).

    >>> round(normal_quantile(0.8), 6), round(normal_quantile(0.9), 6)
    (0.841621, 1.281552)
    """
    low, high = -9.0, 9.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if below(middle) < p else (low, middle)
    return 0.5 * (low + high)


def deviation(band: float, holds: float) -> float:
    """Standard deviation of the logarithm of iteration times whose printed band holds a share of the cases [1].

    >>> round(deviation(0.26, 0.9), 3), round(deviation(0.26, 0.8), 3)
    (0.141, 0.18)
    """
    return math.log1p(band) / normal_quantile(0.5 * (1.0 + holds))


def error_of(profile: Profile, promises: Sequence[Promise]) -> float:
    """Standard deviation of the logarithm of what promises hang on: where TTFT is promised, prompts too [1]."""
    return deviation(band_of(profile, promises), profile.holds)


def band_of(profile: Profile, promises: Sequence[Promise]) -> float:
    """Half-width of the band around what promises hang on: where TTFT is promised, prompts too [1]."""
    first = any("ttft_s" in p.limits for p in promises)
    return max(profile.band, profile.band_prefill or 0.0) if first else profile.band


@dataclass(frozen=True, slots=True)
class Margin:
    """Iteration times that a pool is sized for.

    Parameters
    ----------
    deviations
        By how many standard deviations of their error they are longer than the profile says [1].
    sd
        That standard deviation, of their logarithm [1].
    """

    deviations: float = 0.0
    sd: float = 0.0

    @classmethod
    def of(cls, confidence: float, profile: Profile, promises: Sequence[Promise], errors: int = 1) -> Margin:
        """What keeps promises with a chance of `confidence` where the fleet has so many independent `errors`."""
        deviations = 0.0 if confidence == 0.5 and errors == 1 else normal_quantile(confidence ** (1.0 / errors))
        return cls(deviations, error_of(profile, promises))

    @property
    def slow(self) -> float:
        """Iteration times over those of the profile [1]."""
        return math.exp(self.deviations * self.sd)

    def most_chance(self, slowest: float) -> float:
        """The chance that iterations take no more than `slowest` times as long as the profile says [1]."""
        if self.sd == 0.0:
            return float(slowest >= 1.0)
        return below(math.log(slowest) / self.sd) if slowest > 0.0 else 0.0


MEDIAN = Margin()
"""Times as the profile has them."""
