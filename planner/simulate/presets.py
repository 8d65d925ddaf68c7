"""The named engine rules a plan can be checked with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from planner.errors import InputError, did_you_mean
from planner.iteration.model import IterationModel
from planner.simulate.drive import Replica
from planner.simulate.fast import MixedReplica
from planner.simulate.slots import SlotReplica
from planner.simulate.tables import RequestTable

__all__ = ["PRESETS", "CountingReplica", "Preset", "build_replicas", "preset"]

BLOCK = 16
"""Tokens per KV block of the paged preset."""


class CountingReplica(Replica, Protocol):
    """A replica that keeps totals (times in seconds, summed over its iterations)."""

    busy_s: float
    resident_s: float
    iterations: int
    completed: int
    preemptions: int
    memory_bound: int


@dataclass(frozen=True, slots=True)
class Preset:
    """Engine rules by name.

    Parameters
    ----------
    name, summary
        Name and what it stands for.
    block
        Tokens per KV block; 1 = memory is counted in tokens; 0 = no memory.
    reserve
        Whether a prompt holds its memory from admission on (otherwise block by block with its chunks).
    shared_chunk
        Slots only: one chunk budget for all slots in prefill.
    """

    name: str
    summary: str
    block: int
    reserve: bool = True
    shared_chunk: bool = False

    def blocks(self, kv_tokens: float) -> float:
        """Memory in blocks."""
        return kv_tokens if self.block <= 1 or math.isinf(kv_tokens) else kv_tokens // self.block

    def fits(self, tokens: float, kv_tokens: float) -> bool:
        """Whether a request that holds `tokens` at its end can ever finish."""
        return self.block == 0 or -(-tokens // self.block) <= self.blocks(kv_tokens)


PRESETS: Mapping[str, Preset] = {
    "mixed": Preset("mixed", "mixed batching with a token budget, memory in tokens, whole-prompt admission", 1),
    "paged": Preset("paged", "the same with 16-token blocks allocated chunk by chunk", BLOCK, reserve=False),
    "slots": Preset("slots", "a fixed number of slots, iteration time W + H n, one chunk per slot and iteration", 0),
    "slots-shared": Preset("slots-shared", "slots with one prefill chunk budget for all", 0, shared_chunk=True),
    "policies": Preset("policies", "the rule-exact engine the scheduling policies run on, with mixed batching", 1),
}
"""Presets by name."""


def preset(name: str) -> Preset:
    """The preset `name`, or an InputError.

    >>> preset("paged").blocks(1000)
    62
    """
    if name not in PRESETS:
        raise InputError(f"preset {name!r} is not known{did_you_mean(name, PRESETS)}", f"Known: {', '.join(PRESETS)}.")
    return PRESETS[name]


def build_replicas(
    rules: Preset,
    table: RequestTable,
    iteration: IterationModel | Sequence[float],
    replicas: int,
    slots: float,
    token_budget: float,
    kv_tokens: float,
) -> list[CountingReplica]:
    """Fresh replicas of the fast engine that follows `rules`."""
    if rules.block == 0:
        return [SlotReplica(table, iteration, slots, token_budget, rules.shared_chunk) for _ in range(replicas)]
    if not isinstance(iteration, IterationModel):
        raise InputError("iteration: a table of durations is for the slots preset only")
    blocks = rules.blocks(kv_tokens)
    return [
        MixedReplica(table, iteration, slots, token_budget, blocks, rules.block, rules.reserve) for _ in range(replicas)
    ]
