"""Disaggregation: one node prefills, the other decodes, and the KV cache travels between them."""

from __future__ import annotations

import math

from planner.papers.policy import PolicyEntry, as_engine, at_least
from planner.predict.engine import Node, Request


class PrefillNode:
    """First come first served, one whole prompt per iteration; the first token is emitted here."""

    def schedule(self, node: Node) -> None:
        """The next prompt."""
        for request in list(node.residents.values()):  # its KV cache has left with the transfer
            node.leave(request)
        if node.waiting:
            node.prefill(node.admit(node.waiting.head))


def by_node_arrival(r: Request) -> tuple[float, ...]:
    """(arrival at the decode node, arrival, index)."""
    return (r.node_arrival, r.arrival, r.index)


class DecodeNode:
    """All residents decode; victims are swapped to the host and keep their progress.

    Parameters
    ----------
    decode_slots
        Most requests resident at once, >= 1.
    transfer_base, transfer_per_token
        Time after which a KV cache is here [s], and more for each token of the prompt [s/token].
    """

    def __init__(
        self, decode_slots: float = math.inf, transfer_base: float = 0.0, transfer_per_token: float = 0.0
    ) -> None:
        self.slots = at_least("decode_slots", decode_slots, 1)
        self.base = at_least("transfer_base", transfer_base, 0, whole=False)
        self.per_token = at_least("transfer_per_token", transfer_per_token, 0, whole=False)

    def moves_s(self, request: Request) -> float:
        """How long after its first token a request is here [s]."""
        return self.base + self.per_token * request.input_tokens

    def schedule(self, node: Node) -> None:
        """Everybody resident, then newcomers, which take part in this very iteration."""
        node.waiting.order_by(by_node_arrival)
        node.decode_all(list(node.residents.values()), swap=True)
        while not node.evicted and node.waiting and node.fits(node.waiting.head, self.slots):
            node.place(node.admit(node.waiting.head))


POLICY = PolicyEntry(
    "disaggregated prefill and decode nodes",
    DecodeNode,
    as_engine(decode_slots="slots"),
    ("disaggregated",),
)
