"""WAIT: a class runs only when enough of its requests wait; memory is bounded by the thresholds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from planner.errors import InputError
from planner.papers.policy import PolicyEntry, Situation, at_least
from planner.predict.engine import Node, Request, by_arrival


class Wait:
    """Waiting for accumulated inference threshold. All requests of a class have the same lengths, known on arrival.

    Parameters
    ----------
    thresholds
        n_j by class j: class j joins an iteration when at least n_j of its requests wait.

    Notes
    -----
    Slots and memory are not tested: the peak is a result, at most the sum over j of n_j times the sum of L..L + O - 1.
    """

    def __init__(self, thresholds: Mapping[str, float] | Mapping[int, float]) -> None:
        if not isinstance(thresholds, Mapping) or not thresholds:
            raise InputError("thresholds: give a number per class, such as {0: 4, 1: 2}")
        try:
            self.thresholds = {int(j): int(at_least(f"thresholds.{j}", n, 1)) for j, n in thresholds.items()}
        except ValueError:
            raise InputError("thresholds: the classes are whole numbers") from None
        self.queues: dict[int, deque[Request]] = {j: deque() for j in self.thresholds}

    def schedule(self, node: Node) -> None:
        """First n_j waiting requests of each joining class, and of its residents the first n_j at every stage."""
        for request in sorted(node.newcomers, key=by_arrival):
            if request.category not in self.queues:
                raise InputError(
                    f"thresholds: request {request.index} has class {request.category}, which has no threshold"
                )
            self.queues[request.category].append(request)
        joining = {j: n for j, n in self.thresholds.items() if len(self.queues[j]) >= n}
        if not joining:
            return
        at_stage: dict[tuple[int, int], int] = {}
        decodes = []
        for request in node.decoding:
            limit = joining.get(request.category)
            if limit is None:
                continue
            stage = (request.category, request.emitted)
            placed = at_stage.get(stage, 0)
            if placed < limit:
                at_stage[stage] = placed + 1
                decodes.append(request)
        node.decode_all(decodes)
        for category in sorted(joining):
            for _ in range(joining[category]):
                node.prefill(node.admit(self.queues[category].popleft()))


_MOST = 1 << 20
"""No iteration holds so many requests."""


def smallest_threshold(situation: Situation) -> int:
    """Smallest n at least 1.1 times the arrivals during an iteration that admits n and decodes n per stage."""
    mean_input, mean_output, rate = situation.mean_input, situation.mean_output, situation.rate_per_s
    n = 1
    while n < _MOST:
        decodes = n * (mean_output - 1.0)
        pairs = n * mean_input * (mean_input + 1.0) / 2.0
        duration = situation.model.time(decodes, decodes * situation.mean_context, n * mean_input, pairs)
        least = min(1.1 * rate * duration, _MOST)
        if n >= least:
            return n
        n = max(n + 1, math.ceil(least)) if n < 4096 else 2 * n
    raise InputError(f"wait: no threshold keeps up with {rate:g} requests/s on one replica")


def defaults(situation: Situation) -> dict[str, Any]:
    """The smallest threshold at which the iterations keep up with the arrivals, shared between the classes."""
    threshold, strict = smallest_threshold(situation), situation.strict_share
    if strict == 0.0:
        return {"thresholds": {0: threshold}}
    return {"thresholds": {0: math.ceil(threshold * strict), 1: max(1, math.ceil(threshold * (1.0 - strict)))}}


POLICY = PolicyEntry("WAIT", Wait, defaults, bounded_memory=False)
