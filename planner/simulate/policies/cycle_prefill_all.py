"""Cycles with all prefills first: the second throughput-optimal scheduler of the RAD paper (its Algorithm 2)."""

from __future__ import annotations

from typing import Any

from planner.predict.engine import Node, Request, by_arrival
from planner.simulate.checks import at_least
from planner.simulate.policy import PolicyEntry, Situation


class CyclePrefillAll:
    """Prefill up to n prompts, then decode them t_col at a time until all are gone, and again.

    Parameters
    ----------
    t_col
        Requests that decode together, >= 1.
    chunk
        Prompt tokens per prefill iteration [tokens].
    n
        Prefills per cycle.
    """

    def __init__(self, t_col: float, chunk: float, n: float) -> None:
        self.t_col = at_least("t_col", t_col, 1)
        self.chunk = at_least("chunk", chunk, 1)
        self.n = at_least("n", n, 1)
        self.begun = 0
        self.decode_mode = False
        self.active: list[Request] = []
        self.ready: list[Request] = []  # prefill done, in the order in which they ended

    def schedule(self, node: Node) -> None:
        """Prefill mode, then decode mode, then a new cycle."""
        node.waiting.order_by(by_arrival)
        if node.report is not None and not self.decode_mode:
            self.ready += [r for r in node.report.emitted if r.resident]
        if self.decode_mode:
            # finished and evicted requests have left the node
            self.active = [r for r in self.active if r.decoding]
            self.ready = [r for r in self.ready if r.decoding]
            if not self.active and not self.ready:
                self.decode_mode, self.begun = False, 0
        if not self.decode_mode:
            if self.prefill(node):
                return
            if not self.ready:  # nobody to decode (outputs of one token): the cycle is over
                self.begun = 0
                self.prefill(node)
                return
        self.decode_mode = True
        while self.ready and len(self.active) < self.t_col:
            self.active.append(self.ready.pop(0))
        node.decode_all(self.active)

    def prefill(self, node: Node) -> bool:
        """Go on with a prompt or begin one; False when the cycle has to decode (or has nothing to do)."""
        for request in node.prefilling:
            node.prefill(request, int(min(request.prefill_left, self.chunk)))
            return True
        if not node.waiting or self.begun >= self.n or not node.fits(node.waiting.head):
            return False
        request = node.waiting.head
        node.admit(request)
        self.begun += 1
        node.prefill(request, int(min(request.prefill_length, self.chunk)))
        return True


def defaults(situation: Situation) -> dict[str, Any]:
    """A column as wide as the slots, chunks of the token budget."""
    return {"t_col": situation.slots, "chunk": situation.token_budget, "n": 10 * situation.slots}


POLICY = PolicyEntry("cycles with all prefills first", CyclePrefillAll, defaults, ("cycle",))
