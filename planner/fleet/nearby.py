"""Sizes of the same pools at other rates: where to look for those at one more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from planner.fleet.fleet import Fleet
from planner.kept import once

CLOSE = 1.35
"""Factor between rates within which a size says where the other one is, to a replica or two."""

ROUGH = 250
"""Replicas from which on a number is not read from others."""

NEIGHBOURS = 6
"""Rates that the number at one more is read from: single ones stray by a replica or two from a straight line."""


class Sized:
    """Numbers of replicas of the pools of a fleet, by the rate of the fleet they are for [1/s].

    Parameters
    ----------
    fleet
        The fleet; its models are held, so that what is known of them stays theirs.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._models = [pool.model for pool in fleet.pools]
        self.counts: dict[float, list[int]] = {}

    def near(self, rate_per_s: float) -> list[int] | None:
        """Numbers thought to be close at a rate [1/s]; ``None`` where no rate close to it is known, or of many replicas.

        Of many replicas a number is known to a share of it, and which one depends on where the search begins.
        """
        return None if (found := guessed(self.counts, rate_per_s)) is None or max(found) >= ROUGH else found


def sized_before(fleet: Fleet) -> Sized:
    """What is known of the pools of a fleet, kept as long as their models are.

    Where caches are shared between replicas, or promises by pools, a number hangs on more than the rate: each is then its own.
    """
    traffic, promises = fleet.question.traffic, fleet.promises
    if traffic.sessions is not None or promises.of_fleet:
        return Sized(fleet)
    return once(("sized", *(id(pool.model) for pool in fleet.pools), promises), lambda: Sized(fleet))


def guessed(counts: Mapping[float, Sequence[int]], rate_per_s: float) -> list[int] | None:
    """Replicas of every pool at a rate [1/s], rounded down: on a straight line through the nearest rates known.

    A number that is one too small costs no more looks than the right one: both that and one fewer are looked at anyhow.

    >>> guessed({10.0: [4, 1], 20.0: [6, 2]}, 25.0), guessed({10.0: [4, 1]}, 12.0), guessed({10.0: [4, 1]}, 80.0)
    ([7, 2], [4, 1], None)
    """
    rates = sorted(counts, key=lambda rate: abs(math.log(rate / rate_per_s)))[:NEIGHBOURS]
    if not rates or max(rates[0], rate_per_s) > CLOSE * min(rates[0], rate_per_s):
        return None
    if len(rates) == 1:
        return [max(int(n * rate_per_s / rates[0]), 1) for n in counts[rates[0]]]
    mean = math.fsum(rates) / len(rates)
    spread = math.fsum((rate - mean) ** 2 for rate in rates)
    found = []
    for k in range(len(counts[rates[0]])):
        numbers = [counts[rate][k] for rate in rates]
        rise = math.fsum((rate - mean) * n for rate, n in zip(rates, numbers, strict=True)) / spread
        found.append(max(int(math.fsum(numbers) / len(numbers) + rise * (rate_per_s - mean) + 1e-9), 1))
    return found
