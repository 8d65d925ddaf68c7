"""The mechanics of :mod:`planner.routing`: which replica takes an arrival."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from planner.errors import InputError
from planner.routing import Routing

if TYPE_CHECKING:
    import numpy as np


class Seen(Protocol):
    """What a gateway sees of a replica."""

    @property
    def in_system(self) -> int:
        """Requests resident or waiting."""

    def held_at(self, time: float) -> float:
        """Tokens held at `time`."""


class Router:
    """Chooses a replica for every arrival.

    Draws: a replica out of m takes ``int(u * m)`` of one ``rng.random()``, drawn in blocks of 4,096. Candidates are drawn one
    after the other from the replicas that are left, and a tie goes to the one drawn first, so that no further draw is made;
    where all replicas are candidates, one draw decides a tie. No draw is made where nothing is to be chosen.

    Parameters
    ----------
    routing
        The rule.
    replicas
        Replicas to choose from, >= 1.
    rng
        Generator; not needed where nothing is drawn.
    """

    def __init__(self, routing: Routing, replicas: int, rng: np.random.Generator | None) -> None:
        self.replicas = replicas
        self.looks = bool(routing.least) and replicas > 1
        self._wanted = routing.candidates if (routing.candidates or replicas) < replicas else None
        self._in_turn, self._by_tokens = routing.in_turn, routing.least == "tokens"
        self._rng = rng
        self._block: list[float] = []
        self._next = 0
        if rng is None and replicas > 1 and not routing.in_turn:
            raise InputError(f"routing {routing.name!r} needs a random generator")

    def _draw(self, below: int) -> int:
        """A whole number in [0, below)."""
        if not self._block:
            assert self._rng is not None
            self._block = self._rng.random(4096).tolist()[::-1]
        return int(self._block.pop() * below)

    def blind(self) -> int:
        """The replica of a rule that does not look at them."""
        if self.replicas == 1:
            return 0
        if not self._in_turn:
            return self._draw(self.replicas)
        chosen = self._next
        self._next = (chosen + 1) % self.replicas
        return chosen

    def candidates(self) -> list[int] | None:
        """The replicas an arrival looks at, the first drawn first; ``None`` = all of them."""
        if self._wanted is None:
            return None
        chosen: list[int] = []
        for taken in range(self._wanted):
            position = self._draw(self.replicas - taken)
            for other in sorted(chosen):
                position += position >= other
            chosen.append(position)
        return chosen

    def choose(self, replicas: Sequence[Seen], now: float) -> int:
        """The replica that takes an arrival, all seen as they are at `now` [s]."""
        if not self.looks:
            return self.blind()
        candidates = self.candidates()
        seen = replicas if candidates is None else [replicas[k] for k in candidates]
        return self.least(candidates, [r.held_at(now) if self._by_tokens else r.in_system for r in seen])

    def least(self, candidates: list[int] | None, values: list[float]) -> int:
        """The candidate with the smallest of `values`, which are what the rule looks at, one per candidate."""
        smallest = min(values)
        if candidates is not None:
            return candidates[values.index(smallest)]
        best = [i for i, x in enumerate(values) if x == smallest]
        return best[0] if len(best) == 1 else best[self._draw(len(best))]
