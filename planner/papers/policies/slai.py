"""SLAI: a decode is scheduled when its deadline between tokens asks for it; prefills come before decodes that can wait."""

from __future__ import annotations

from collections.abc import Mapping

from planner.errors import InputError
from planner.papers.policy import PolicyEntry, as_engine, at_least, fraction, queue_order
from planner.predict.engine import Node, Report, Request


def _deadline(r: Request) -> tuple[float, float, int]:
    return (r.priority, r.arrival, r.index)


class Slai:
    """SLO-aware LLM inference scheduling. Every request has a deadline between tokens (``tbt``).

    Parameters
    ----------
    token_budget
        Tokens per iteration [tokens].
    max_active
        Slots.
    max_decodes
        Most decodes per iteration.
    delta
        Safety offset in mean iteration durations: a number, or ``{"memory_threshold", "below", "above"}`` for an
        offset that depends on whether the memory held is below that share of the capacity.
    order
        ``"fcfs"`` or ``"spf"``.
    class_priority
        Smaller class first in the waiting queue.
    """

    def __init__(
        self,
        token_budget: float,
        max_active: float,
        max_decodes: float,
        delta: float | Mapping[str, float],
        order: str = "fcfs",
        class_priority: bool = False,
    ) -> None:
        self.token_budget = at_least("token_budget", token_budget, 1)
        self.max_active = at_least("max_active", max_active, 1)
        self.max_decodes = at_least("max_decodes", max_decodes, 1)
        self.key = queue_order(order, class_priority)
        if isinstance(delta, Mapping):
            missing = {"memory_threshold", "below", "above"} ^ set(delta)
            if missing:
                raise InputError(
                    f"delta: needs memory_threshold, below and above; wrong or missing: {', '.join(sorted(missing))}"
                )
            self.memory_threshold = fraction("delta.memory_threshold", delta["memory_threshold"])
            self.below = at_least("delta.below", delta["below"], 0, whole=False)
            self.above = at_least("delta.above", delta["above"], 0, whole=False)
        else:
            self.memory_threshold = 0.0
            self.below = self.above = at_least("delta", delta, 0, whole=False)
        self.total_s = 0.0
        self.count = 0

    def schedule(self, node: Node) -> None:
        """Critical decodes, prompts in progress, new prompts, and then the decodes that could have waited."""
        node.waiting.order_by(self.key)
        if node.report is not None:
            self.learn(node, node.report)
        decodes = sorted(node.decoding, key=_deadline)
        limit = min(self.token_budget, self.max_decodes)
        relaxed: list[Request] = []
        for request in decodes:
            if request.priority > node.now or len(node.batch.decodes) >= limit:
                relaxed.append(request)
            elif request.resident:
                node.decode(request)
        budget = self.token_budget - len(node.batch.decodes)
        for request in node.prefilling:
            if budget <= 0:
                break
            budget -= node.prefill(request, budget)
        while budget > 0 and not node.evicted and node.waiting and node.fits(node.waiting.head, self.max_active):
            budget -= node.prefill(node.admit(node.waiting.head), budget)
        room = min(budget, self.max_decodes - len(node.batch.decodes))
        relaxed = [r for r in relaxed if r.resident]
        without_eviction = min(room, node.capacity - node.held)
        if without_eviction > 0:
            node.decode_all(relaxed[: int(min(without_eviction, len(relaxed)))])
        elif not node.batch:
            for request in relaxed:
                if len(node.batch.decodes) >= room:
                    break
                if request.resident:
                    node.decode(request)

    def learn(self, node: Node, report: Report) -> None:
        """Update the mean duration, and set the last schedulable time of everybody who emitted a token."""
        self.total_s += report.duration
        self.count += 1
        delta = self.below if node.held < self.memory_threshold * node.capacity else self.above
        offset = delta * (self.total_s / self.count)
        end = report.start + report.duration
        for request in report.emitted:
            request.priority = end + request.tbt - offset


LIMITS = as_engine(token_budget="token_budget", max_active="slots", max_decodes="slots", delta=5)
POLICY = PolicyEntry("SLO-aware inference, last schedulable times", Slai, LIMITS)
