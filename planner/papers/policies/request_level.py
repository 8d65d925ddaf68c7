"""Request-level batching: a batch is formed, runs until its last member is done, and only then is the next one formed."""

from __future__ import annotations

from planner.papers.policy import PolicyEntry, as_engine, at_least
from planner.predict.engine import Node


class RequestLevel:
    """The pre-continuous-batching baseline (the exclusive-batching paper's Algorithm 3, whose mode names are exchanged there).

    Parameters
    ----------
    batch
        Requests per batch, >= 1. The prompts of a batch share one prefill iteration; a batch does not wait to be full.
    """

    def __init__(self, batch: int) -> None:
        self.batch = at_least("batch", batch, 1)

    def schedule(self, node: Node) -> None:
        """A new batch if the last one is gone, otherwise one token for everybody."""
        if node.residents:
            node.decode_all(node.decoding)
            return
        while node.waiting and node.fits(node.waiting.head, self.batch):
            node.prefill(node.admit(node.waiting.head))


POLICY = PolicyEntry("request-level batching", RequestLevel, as_engine(batch="slots"), ("batch",))
