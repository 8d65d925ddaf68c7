"""Mixed batching with a token budget: vLLM's second engine and Sarathi-Serve."""

from __future__ import annotations

import math

from planner.papers.policy import PolicyEntry, as_engine, at_least, queue_order
from planner.predict.mixed import Mixed


def mixed(
    slots: float = math.inf,
    token_budget: float = math.inf,
    order: str = "fcfs",
    class_priority: bool = False,
    restart: bool = False,
) -> Mixed:
    """The rules of :class:`planner.predict.mixed.Mixed`, with the parameters of `simulate`.

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
    slots, token_budget = at_least("slots", slots, 1), at_least("token_budget", token_budget, 1)
    return Mixed(slots, token_budget, queue_order(order, class_priority), restart)


LIMITS = as_engine(slots="slots", token_budget="token_budget")
NAMES = ("sarathi", "vllm", "vllm_v1")
POLICY = PolicyEntry("mixed batching with a token budget (vLLM v1, Sarathi-Serve)", mixed, LIMITS, NAMES)
