"""Cycles with all prefills first: the second throughput-optimal scheduler of the RAD paper (its Algorithm 2)."""

from __future__ import annotations

from planner.papers.policies.rad import Rad, defaults
from planner.papers.policy import PolicyEntry
from planner.predict.engine import Node, Request


class CyclePrefillAll(Rad):
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
        super().__init__(t_col, chunk, n)
        self.decode_mode = False
        self.active: list[Request] = []
        self.ready: list[Request] = []  # prefill done, in the order in which they ended

    def schedule(self, node: Node) -> None:
        """Prefill mode, then decode mode, then a new cycle."""
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


POLICY = PolicyEntry("cycles with all prefills first", CyclePrefillAll, defaults, ("cycle",))
