"""The named engine rules a plan can be checked with, and the replicas of a pool that follow them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from planner.errors import InputError, did_you_mean
from planner.iteration.model import IterationModel
from planner.iteration.speculation import Speculation
from planner.predict.records import Replicas
from planner.routing import find_routing

BLOCK = 16
"""Tokens per KV block of the paged preset."""


@dataclass(frozen=True, slots=True)
class Preset:
    """Engine rules by name; fields but the first two as in :class:`planner.predict.records.Replicas`.

    Parameters
    ----------
    name, summary
        Name and what it stands for.
    engine, block, reserve
        See there.
    by_python
        Whether the reference in Python replays it, whatever program is asked for.
    """

    name: str
    summary: str
    engine: Literal["mixed", "slots", "slots-shared"] = "mixed"
    block: int = 1
    reserve: bool = True
    by_python: bool = False

    @property
    def has_memory(self) -> bool:
        """Whether requests hold KV memory."""
        return self.engine == "mixed"


PRESETS: Mapping[str, Preset] = {
    p.name: p
    for p in (
        Preset("mixed", "mixed batching with a token budget, memory in tokens, whole-prompt admission"),
        Preset("paged", "the same with 16-token blocks allocated chunk by chunk", block=BLOCK, reserve=False),
        Preset("slots", "a fixed number of slots, iteration time W + H n, one chunk per slot and iteration", "slots"),
        Preset("slots-shared", "slots with one prefill chunk budget for all", "slots-shared"),
        Preset("policies", "mixed, replayed by the reference in Python", by_python=True),
    )
}
"""Presets by name."""


def find_preset(name: str) -> Preset:
    """The preset `name`, or an InputError.

    >>> find_preset("paged").block
    16
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
        Iteration-time model; for the slots preset also the durations of an iteration with 0..slots active slots [s].
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
    speculation
        How they speculate; how many steps a request takes is drawn, and its steps then yield equally many tokens. `iteration`
        is that of steps of the mean number.
    request_s, shared_prefix, wake_s, image_s
        As in :class:`planner.predict.records.Replicas`.
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
    image_s: float = 0.0

    def __post_init__(self) -> None:
        find_routing(self.routing)
        rules = find_preset(self.preset)
        problems = []
        if not (isinstance(self.replicas, int) and self.replicas >= 1):
            problems.append(f"replicas must be a whole number >= 1, got {self.replicas!r}")
        if not (math.isfinite(self.api_overhead_s) and self.api_overhead_s >= 0.0):
            problems.append(f"api_overhead_s must not be negative, got {self.api_overhead_s!r}")
        if self.speculation is not None and not rules.has_memory:
            problems.append(f"preset {self.preset} does not speculate: use mixed or paged")
        if problems:
            raise InputError.from_problems(problems)

    @property
    def tokens_per_step(self) -> float:
        """Tokens a decode yields in an iteration: what lengths and memory are counted in."""
        return 1.0 if self.speculation is None else self.speculation.tokens_per_step

    @property
    def rules(self) -> Preset:
        """The preset."""
        return find_preset(self.preset)

    def pool(self, count: int | None = None) -> Replicas:
        """As a replay takes them, or so many of them."""
        rules, unit = self.rules, self.tokens_per_step
        iteration = self.iteration if isinstance(self.iteration, IterationModel) else tuple(self.iteration)
        # counted in what a step yields, contexts grow by one a step
        if unit != 1.0 and isinstance(iteration, IterationModel):
            iteration = iteration.in_units(unit)
        return Replicas(
            count or self.replicas,
            iteration,
            self.slots,
            self.token_budget / unit,
            self.kv_tokens / unit if rules.has_memory else math.inf,
            self.routing,
            rules.engine,
            rules.block,
            rules.reserve,
            self.request_s,
            self.wake_s,
            float(round(self.shared_prefix / unit)),
            self.image_s,
        )
