"""The named engine rules a plan can be checked with, and the replicas of a pool that follow them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from planner.errors import InputError, refuse_unknown
from planner.machine.iteration import IterationModel
from planner.machine.speculation import Speculation
from planner.predict.records import Replicas

BY_PYTHON = "policies"
"""The preset that the reference in Python replays, whatever program is asked for."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # a token budget, memory in tokens, whole-prompt admission
    "mixed": {"engine": "mixed"},
    # the same with 16-token blocks allocated chunk by chunk
    "paged": {"engine": "mixed", "block": 16, "reserve": False},
    # a fixed number of slots, iteration time W + H n, one chunk per slot and iteration
    "slots": {"engine": "slots"},
    # slots with one prefill chunk budget for all
    "slots-shared": {"engine": "slots-shared"},
    BY_PYTHON: {"engine": "mixed"},
}
"""Presets by name: fields of :class:`planner.predict.records.Replicas`."""


@dataclass(frozen=True, slots=True)
class PoolEngines(Replicas):
    """The replicas of a pool and the gateway in front of them, in tokens; for the slots presets `token_budget` is the chunk.

    Parameters
    ----------
    preset
        A name of :data:`PRESETS`.
    api_overhead_s
        Added to TTFT and E2E of every request [s].
    speculation
        How they speculate; how many steps a request takes is drawn, and its steps then yield equally many tokens. `iteration`
        is that of steps of the mean number.
    """

    preset: str = "mixed"
    api_overhead_s: float = 0.0
    speculation: Speculation | None = None

    def pool(self, count: int | None = None) -> Replicas:
        """As a replay takes them, or so many of them.

        Raises
        ------
        InputError
            The preset is not known, or does not speculate.
        """
        refuse_unknown("preset", self.preset, PRESETS)
        rules, unit, iteration = PRESETS[self.preset], 1.0, self.iteration
        has_memory = rules["engine"] == "mixed"
        if self.speculation is not None:
            if not has_memory:
                raise InputError(f"preset {self.preset} does not speculate: use mixed or paged")
            unit = self.speculation.tokens_per_step
        # counted in what a step yields, contexts grow by one a step
        if unit != 1.0 and isinstance(iteration, IterationModel):
            iteration = iteration.in_units(unit)
        return replace(
            Replicas(**{f.name: getattr(self, f.name) for f in fields(Replicas)}),
            count=self.count if count is None else count,
            iteration=iteration,
            token_budget=self.token_budget / unit,
            kv_tokens=self.kv_tokens / unit if has_memory else math.inf,
            shared_prefix=float(round(self.shared_prefix / unit)),
            **rules,
        )
