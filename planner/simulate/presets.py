"""The named engine rules a plan can be checked with, and the replicas of a pool that follow them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from planner.errors import InputError, did_you_mean
from planner.iteration.model import IterationModel
from planner.iteration.speculation import Speculation
from planner.routing import find_routing
from planner.simulate.drive import Replica
from planner.simulate.fast import MixedReplica
from planner.simulate.slots import SlotReplica
from planner.simulate.tables import RequestTable

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

    @property
    def waiting(self) -> int:
        """Requests that wait to become resident."""


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
    rule_exact
        Whether it runs on the engine of the scheduling policies, iteration by iteration.
    """

    name: str
    summary: str
    block: int
    reserve: bool = True
    shared_chunk: bool = False
    rule_exact: bool = False

    def blocks(self, kv_tokens: float) -> float:
        """Memory in blocks."""
        return kv_tokens if self.block <= 1 or math.isinf(kv_tokens) else kv_tokens // self.block

    def fits(self, tokens: Any, kv_tokens: float) -> Any:
        """Whether requests that hold `tokens` (a number or an array) at their end can ever finish."""
        return self.block == 0 or -(-tokens // self.block) <= self.blocks(kv_tokens)


PRESETS: Mapping[str, Preset] = {
    p.name: p
    for p in (
        Preset("mixed", "mixed batching with a token budget, memory in tokens, whole-prompt admission", 1),
        Preset("paged", "the same with 16-token blocks allocated chunk by chunk", BLOCK, reserve=False),
        Preset("slots", "a fixed number of slots, iteration time W + H n, one chunk per slot and iteration", 0),
        Preset("slots-shared", "slots with one prefill chunk budget for all", 0, shared_chunk=True),
        Preset("policies", "the engine the scheduling policies run on, with mixed batching", 1, rule_exact=True),
    )
}
"""Presets by name."""


def find_preset(name: str) -> Preset:
    """The preset `name`, or an InputError.

    >>> find_preset("paged").blocks(1000)
    62
    """
    if name not in PRESETS:
        raise InputError(f"preset {name!r} is not known{did_you_mean(name, PRESETS)}", f"Known: {', '.join(PRESETS)}.")
    return PRESETS[name]


@dataclass(frozen=True, slots=True)
class PoolEngines:
    """The replicas of a pool and the gateway in front of them.

    Parameters
    ----------
    replicas
        Number of replicas.
    iteration
        Iteration-time model; for the slots presets also the durations of an iteration with 0..slots active slots [s].
    slots, token_budget
        Sequences at once and tokens per iteration, of each replica (for the slots presets the chunk).
    kv_tokens
        KV memory of each replica [tokens]; inf = unlimited.
    routing
        A name of :data:`planner.routing.ROUTINGS`.
    preset
        A name of :data:`PRESETS`.
    api_overhead_s
        Added to TTFT and E2E of every request [s].
    request_s
        Time of the host that each request takes from the iterations of mixed and paged [s].
    wake_s
        What a request of mixed or paged waits longer for where its replica got none for a tenth of a second [s].
    shared_prefix
        Tokens that begin every longer prompt and are kept once by mixed and paged; the traffic says what of a prompt is found
        [tokens].
    speculation
        How they speculate; how many steps a request takes is drawn, and its steps then yield equally many tokens. `iteration`
        is that of steps of the mean number.
    """

    replicas: int
    iteration: IterationModel | Sequence[float]
    slots: float = math.inf
    token_budget: float = math.inf
    kv_tokens: float = math.inf
    routing: str = "random"
    preset: str = "mixed"
    api_overhead_s: float = 0.0
    speculation: Speculation | None = None
    request_s: float = 0.0
    shared_prefix: int = 0
    wake_s: float = 0.0

    def __post_init__(self) -> None:
        find_routing(self.routing)
        rules = find_preset(self.preset)
        problems = []
        if not (isinstance(self.replicas, int) and self.replicas >= 1):
            problems.append(f"replicas must be a whole number >= 1, got {self.replicas!r}")
        for name in ("slots", "token_budget", "kv_tokens"):
            if not getattr(self, name) >= 1:
                problems.append(f"{name} must be at least 1, got {getattr(self, name)!r}")
        if not (math.isfinite(self.api_overhead_s) and self.api_overhead_s >= 0.0):
            problems.append(f"api_overhead_s must not be negative, got {self.api_overhead_s!r}")
        if rules.block and not isinstance(self.iteration, IterationModel):
            problems.append("iteration: a table of durations is for the slots preset only")
        if self.speculation is not None and (rules.block == 0 or rules.rule_exact):
            problems.append(f"preset {self.preset} does not speculate: use mixed or paged")
        if problems:
            raise InputError.from_problems(problems)

    @property
    def tokens_per_step(self) -> float:
        """Tokens a decode yields in an iteration."""
        return 1.0 if self.speculation is None else self.speculation.tokens_per_step

    @property
    def rules(self) -> Preset:
        """The preset."""
        return find_preset(self.preset)

    def build(self, table: RequestTable) -> list[CountingReplica]:
        """Fresh replicas that serve the requests of `table`."""
        return [self._replica(table) for _ in range(self.replicas)]

    def _replica(self, table: RequestTable) -> CountingReplica:
        """One replica."""
        rules, slots, budget = self.rules, self.slots, self.token_budget
        if rules.block == 0:
            return SlotReplica(table, self.iteration, slots, budget, rules.shared_chunk)
        assert isinstance(self.iteration, IterationModel)
        if not rules.rule_exact:
            # counted in what a step yields, contexts grow by one a step
            unit = self.tokens_per_step
            iteration = self.iteration if unit == 1.0 else self.iteration.in_units(unit)
            blocks = rules.blocks(self.kv_tokens / unit)
            return MixedReplica(
                table,
                iteration,
                slots,
                budget / unit,
                blocks,
                rules.block,
                rules.reserve,
                self.request_s,
                round(self.shared_prefix / unit),
                self.wake_s,
            )
        from planner.predict.durations import Canonical
        from planner.predict.engine import Node
        from planner.simulate.policies.mixed import Mixed
        from planner.simulate.policies.prefill_first import PrefillFirst
        from planner.simulate.run import TableReplica

        policy = PrefillFirst(slots, budget) if self.iteration.apart else Mixed(slots, budget)
        return TableReplica(Node(policy, Canonical(self.iteration), self.kv_tokens), table)
