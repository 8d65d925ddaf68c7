"""Nested WAIT: output lengths unknown; a threshold in front of every segment of the output."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from planner.errors import InputError
from planner.papers.policies.wait import smallest_threshold
from planner.papers.policy import PolicyEntry, Situation, at_least
from planner.predict.engine import Node, Request, by_arrival


class NestedWait:
    """Segments 1..m of the output; requests about to enter a segment wait until n_k of them are there.

    Parameters
    ----------
    thresholds
        n_1..n_m.
    segment_ends
        e_1 < ... < e_m: last decode iteration of each segment. No output may be longer than e_m + 1.
    """

    def __init__(self, thresholds: Sequence[float], segment_ends: Sequence[float]) -> None:
        if len(thresholds) != len(segment_ends) or not thresholds:
            raise InputError("thresholds and segment_ends must have the same number of entries, at least one")
        self.thresholds = [int(at_least("thresholds", n, 1)) for n in thresholds]
        self.ends = [int(at_least("segment_ends", e, 1)) for e in segment_ends]
        if any(b <= a for a, b in zip(self.ends, self.ends[1:], strict=False)):
            raise InputError("segment_ends must increase")
        self.entries: list[deque[Request]] = [deque() for _ in self.ends]
        # number of tokens emitted -> segment a request is about to enter
        self.entered_at = {end + 1: k for k, end in enumerate(self.ends[:-1], start=1)}

    def schedule(self, node: Node) -> None:
        """Segments 1..K, K the largest for which all of them have enough waiting at their entries."""
        for request in sorted(node.newcomers, key=by_arrival):
            if request.output_tokens - 1 > self.ends[-1]:
                raise InputError(
                    f"segment_ends: request {request.index} needs decode iteration {request.output_tokens - 1}"
                )
            self.entries[0].append(request)
        if node.report is not None:
            for request in node.report.emitted:
                if request.resident and request.emitted in self.entered_at:
                    self.entries[self.entered_at[request.emitted]].append(request)
        depth = 0
        while depth < len(self.ends) and len(self.entries[depth]) >= self.thresholds[depth]:
            depth += 1
        if depth == 0:
            return
        entering = {self.entries[k].popleft().index for k in range(1, depth) for _ in range(self.thresholds[k])}
        last = self.ends[depth - 1]
        decodes = [
            r for r in node.decoding if r.emitted <= last and (r.index in entering or r.emitted not in self.entered_at)
        ]
        node.decode_all(decodes)
        for _ in range(self.thresholds[0]):
            node.prefill(node.admit(self.entries[0].popleft()))


def defaults(situation: Situation) -> dict[str, Any]:
    """One segment with the threshold of WAIT."""
    return {"thresholds": [smallest_threshold(situation)], "segment_ends": [1 << 30]}


POLICY = PolicyEntry("Nested WAIT", NestedWait, defaults, bounded_memory=False)
