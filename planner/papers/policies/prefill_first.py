"""Prefill first, as vLLM's first engine does: whole prompts pre-empt decodes."""

from __future__ import annotations

import math

from planner.papers.policy import PolicyEntry, as_engine, at_least
from planner.predict.engine import Node


class PrefillFirst:
    """Whenever somebody can be admitted, an iteration of prefills only; otherwise one of decodes only.

    Parameters
    ----------
    slots
        Most requests resident at once, >= 1.
    token_budget
        Most prompt tokens per prefill iteration; the first prompt is taken even if it alone exceeds this [tokens].
    """

    def __init__(self, slots: float = math.inf, token_budget: float = math.inf) -> None:
        self.slots = at_least("slots", slots, 1)
        self.token_budget = at_least("token_budget", token_budget, 1)

    def schedule(self, node: Node) -> None:
        """Whole prompts from the head of the queue, or else all decodes."""
        taken = 0.0
        while node.waiting and node.fits(node.waiting.head, self.slots):
            if taken and taken + node.waiting.head.prefill_length > self.token_budget:
                break
            taken += node.prefill(node.admit(node.waiting.head))
        if not taken:
            node.decode_all(node.decoding)


LIMITS = as_engine(slots="slots", token_budget="token_budget")
POLICY = PolicyEntry("prefill first (vLLM v0)", PrefillFirst, LIMITS, ("vllm_v0",))
