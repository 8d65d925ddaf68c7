"""Exclusive batching EB(k): every iteration is pure, and prefills wait until k slots are idle."""

from __future__ import annotations

import math
from typing import Any

from planner.errors import InputError
from planner.fluid.exclusive import theta0_of_costs
from planner.machine.derived import exclusive_parameters
from planner.papers.policy import PolicyEntry, Situation, at_least
from planner.predict.engine import Node


class ExclusiveBatching:
    """EB(k). With a backlog a prefill phase starts when k slots are idle; in light traffic, when the backlog is as large
    against the residents as k against the rest: f (N - k) >= n k.

    Parameters
    ----------
    slots
        N, >= 1.
    k
        Threshold, 1 (prefill first) .. N (refill only when empty).
    token_budget
        Most prompt tokens per iteration of a prefill phase [tokens].
    """

    def __init__(self, slots: float, k: float, token_budget: float = math.inf) -> None:
        self.slots = at_least("slots", slots, 1)
        self.k = at_least("k", k, 1)
        self.token_budget = at_least("token_budget", token_budget, 1)
        if not math.isfinite(self.slots):
            raise InputError("slots must be finite for exclusive batching")
        if self.k > self.slots:
            raise InputError(f"k must not exceed slots = {self.slots:g}, got {k!r}")

    def may_start_phase(self, node: Node) -> bool:
        """A further condition for starting a prefill phase; none here."""
        return True

    def schedule(self, node: Node) -> None:
        """Continue the prefill phase, start one, or decode."""
        if not node.prefilling:
            residents = len(node.residents)
            free = min(len(node.waiting), self.slots - residents)
            if free > 0 and free * (self.slots - self.k) >= residents * self.k and self.may_start_phase(node):
                while free > 0 and node.fits(node.waiting.head):
                    node.admit(node.waiting.head)
                    free -= 1
        budget = self.token_budget
        for request in node.prefilling:
            if budget <= 0:
                return
            budget -= node.prefill(request, budget)
        if not node.batch:
            node.decode_all(node.decoding)


def defaults(situation: Situation) -> dict[str, Any]:
    """The threshold of eq. 3 from the model's constants and the mean output."""
    lines = exclusive_parameters(situation.model, situation.mean_context).values
    theta = float(theta0_of_costs(lines["alpha_p"], lines["alpha_d"], mu_O=situation.mean_output).theta0)
    k = min(max(1, math.floor(theta * situation.slots)), situation.slots)
    return {"slots": situation.slots, "k": k, "token_budget": situation.token_budget}


POLICY = PolicyEntry("exclusive batching EB(k)", ExclusiveBatching, defaults)
