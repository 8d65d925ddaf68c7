"""Mixed batching with a token budget, the scheduler of vLLM and of Sarathi-Serve, as rules of a :class:`Node`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from planner.predict.engine import Node, Request, by_arrival


@dataclass(slots=True)
class Mixed:
    """Decodes first, then the prompt in progress, then new prompts, cut by what is left of the budget.

    Parameters
    ----------
    slots
        Most requests resident at once, >= 1.
    token_budget
        Tokens per iteration, decodes included, >= 1 [tokens]. Decodes are never dropped for it.
    key
        Order of the waiting queue; keys must differ between requests.
    restart
        Evicted requests lose their output too (the benchmark of the WAIT paper).
    rows
        Tokens that a decode takes of the budget.
    floored
        Whether what the decodes leave of the budget is cut to whole tokens.
    apart
        Whether prompts have iterations of their own, in which the decodes rest.
    gather
        Waiting requests begin only in every so many-th iteration while anything decodes.
    """

    slots: float = math.inf
    token_budget: float = math.inf
    key: Callable[[Request], tuple[float, ...]] = by_arrival
    restart: bool = False
    rows: float = 1.0
    floored: bool = False
    apart: bool = False
    gather: int = 1

    def schedule(self, node: Node) -> None:
        """(a) all decodes, (b) unfinished prefills, (c) new requests unless somebody was evicted."""
        node.waiting.order_by(self.key)
        if self.apart:
            node.make_room(node.decoding, restart=self.restart)
        else:
            node.decode_all(node.decoding, restart=self.restart)
        budget = self.token_budget - self.rows * len(node.batch.decodes)
        if self.floored and budget < math.inf:
            budget = math.floor(budget)
        for request in node.prefilling:
            chunk = min(request.prefill_left, budget)
            if chunk <= 0:
                continue
            if node.grows(request, chunk):
                budget -= node.prefill(request, chunk)
            else:
                node.evict(request)
        closed = node.iterations % self.gather > 0 and bool(node.decoding)
        while not (closed or node.evicted) and budget > 0 and node.waiting and node.fits(node.waiting.head, self.slots):
            request = node.admit(node.waiting.head)
            if request.prefilled < 0:  # prefilled elsewhere: it decodes in this very iteration
                node.place(request)
                budget -= self.rows
            else:
                budget -= node.prefill(request, budget)
        if self.apart and not node.batch.prefills:
            node.decode_all(node.decoding, restart=self.restart)
