"""Mixed batching with a token budget: vLLM's second engine and Sarathi-Serve."""

from __future__ import annotations

import math
from typing import Any

from planner.simulate.checks import at_least, queue_order
from planner.simulate.engine import Node
from planner.simulate.policy import PolicyEntry, Situation


class Mixed:
    """Decodes first, then the prompt in progress, then new prompts, cut by what is left of the budget.

    Parameters
    ----------
    slots
        Most requests resident at once, >= 1.
    token_budget
        Tokens per iteration, decodes included, >= 1 [tokens]. Decodes are never dropped for it.
    order
        ``"fcfs"`` or ``"spf"`` (shortest prompt first).
    class_priority
        Put the class in front of the key, smaller first.
    restart
        Evicted requests lose their output too (the benchmark of the WAIT paper).
    """

    def __init__(
        self,
        slots: float = math.inf,
        token_budget: float = math.inf,
        order: str = "fcfs",
        class_priority: bool = False,
        restart: bool = False,
    ) -> None:
        self.slots = at_least("slots", slots, 1)
        self.token_budget = at_least("token_budget", token_budget, 1)
        self.key = queue_order(order, class_priority)
        self.restart = restart

    def schedule(self, node: Node) -> None:
        """(a) all decodes, (b) unfinished prefills, (c) new requests unless somebody was evicted."""
        node.waiting.order_by(self.key)
        node.decode_all(node.decoding, restart=self.restart)
        budget = self.token_budget - len(node.batch.decodes)
        for request in node.prefilling:
            if budget <= 0:
                return
            chunk = min(request.prefill_left, budget)
            node.prefill(request, int(chunk))
            budget -= chunk
        if node.evicted:
            return
        while budget > 0 and node.waiting and node.fits(node.waiting.head, self.slots):
            request = node.waiting.head
            node.admit(request)
            chunk = min(request.prefill_length, budget)
            node.prefill(request, int(chunk))
            budget -= chunk


def defaults(situation: Situation) -> dict[str, Any]:
    """The engine's own limits."""
    return {"slots": situation.slots, "token_budget": situation.token_budget}


POLICY = PolicyEntry(
    "mixed batching with a token budget (vLLM v1, Sarathi-Serve)", Mixed, defaults, ("sarathi", "vllm", "vllm_v1")
)
