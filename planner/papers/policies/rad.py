"""RAD: one chunk of one prompt, or one token for all decodes; decodes run as soon as they fill a tile column."""

from __future__ import annotations

from typing import Any

from planner.papers.policy import PolicyEntry, Situation, at_least
from planner.predict.engine import Node


class Rad:
    """Resource-aware dynamic scheduling.

    Parameters
    ----------
    t_col
        Decodes that fill a tile column, >= 1.
    chunk
        Prompt tokens per prefill iteration; lcm(t_row, t_col, t_red) in the paper [tokens].
    n
        Most prefills begun in one cycle.
    """

    def __init__(self, t_col: float, chunk: float, n: float) -> None:
        self.t_col = at_least("t_col", t_col, 1)
        self.chunk = at_least("chunk", chunk, 1)
        self.n = at_least("n", n, 1)
        self.begun = 0

    def schedule(self, node: Node) -> None:
        """Finish the prompt in progress; then decode if the column is full or no prompt may begin; else begin one."""
        if not node.prefilling and not node.decoding:
            self.begun = 0
        full = not node.prefilling and len(node.decoding) >= self.t_col
        if full or not self.prefill(node):
            node.decode_all(node.decoding)

    def prefill(self, node: Node) -> bool:
        """Go on with a prompt or begin one; False where decodes have to run (or there is nothing to do)."""
        for request in node.prefilling:
            node.prefill(request, self.chunk)
            return True
        if not node.waiting or self.begun >= self.n or not node.fits(node.waiting.head):
            return False
        self.begun += 1
        node.prefill(node.admit(node.waiting.head), self.chunk)
        return True


def defaults(situation: Situation) -> dict[str, Any]:
    """A column as wide as the slots, chunks of the token budget."""
    return {"t_col": situation.slots, "chunk": situation.token_budget, "n": 10 * situation.slots}


POLICY = PolicyEntry("resource-aware dynamic scheduling", Rad, defaults)
