"""Which replica takes an arrival: random, round robin, fewest requests, least KV memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ROUTINGS", "Router", "check_routing"]

ROUTINGS = ("random", "rr", "jsq", "least-kv", "central")
"""Names of the routing rules; ``central`` is one queue for all replicas."""


def check_routing(name: str) -> str:
    """The canonical name, or an InputError."""
    key = {"round-robin": "rr", "round_robin": "rr", "least_kv": "least-kv"}.get(name, name)
    if key not in ROUTINGS:
        raise InputError(
            f"routing {name!r} is not known{did_you_mean(name, ROUTINGS)}", f"Known: {', '.join(ROUTINGS)}."
        )
    return key


class Router:
    """Chooses a replica for every arrival.

    Draws: ``random`` takes ``int(u * replicas)`` and a tie of m replicas ``int(u * m)`` of one ``rng.random()`` each,
    drawn in blocks of 4,096; no draw is made where nothing is to be chosen.
    """

    def __init__(self, name: str, replicas: int, rng: np.random.Generator | None) -> None:
        self.name = check_routing(name)
        self.replicas = replicas
        self.needs_state = self.name in ("jsq", "least-kv")
        if rng is None and replicas > 1 and self.name != "rr":
            raise InputError(f"routing {name!r} needs a random generator")
        self._rng = rng
        self._block: list[float] = []
        self._next = 0

    def uniform(self) -> float:
        """One number in [0, 1)."""
        if not self._block:
            assert self._rng is not None
            self._block = self._rng.random(4096).tolist()[::-1]
        return self._block.pop()

    def choose(self, counts: Sequence[int], held: Sequence[float]) -> int:
        """The replica, given the requests in every replica and the memory each holds."""
        if self.replicas == 1:
            return 0
        if self.name == "rr":
            chosen = self._next
            self._next = (chosen + 1) % self.replicas
            return chosen
        if self.name == "random":
            return int(self.uniform() * self.replicas)
        measure = counts if self.name == "jsq" else held
        least = min(measure)
        best = [i for i, x in enumerate(measure) if x == least]
        return best[0] if len(best) == 1 else best[int(self.uniform() * len(best))]
