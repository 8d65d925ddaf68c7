"""A pool whose engines speculate, in the picture of any latency method: everything is counted in what a step yields.

With a mean of u tokens per step, a request of L prompt tokens and D decodes is one of L/u units and about D/u steps whose context
grows by one unit each; the iteration takes the same times, and a decode brings (1 + drafts)/u units into the batch. What a method
predicts of such requests is true of the real ones, but for the time per output token, which is u times as short.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.iteration.speculation import Speculation
from planner.methods.base import PoolModel, Prediction
from planner.replica.engine import EngineOption, ReplicaSetup
from planner.workload import pools as m
from planner.workload.pools import PoolLaw, PoolRequests


def law_in_steps(law: PoolLaw, speculation: Speculation) -> PoolLaw:
    """The requests of a pool in units of what a step yields."""
    u = speculation.tokens_per_step
    inputs, steps = law.input_tokens / u, speculation.steps(law.output_tokens - 1.0)
    new = (1.0 - law.cached_share) * inputs
    moments = law.moments.copy()
    columns = {
        m.INPUT: inputs,
        m.NEW_INPUT: new,
        m.DECODE: steps,
        m.OUTPUT: steps + 1.0,
        m.KV: steps * (inputs + 0.5 * (steps + 1.0)),
        m.PAIRS: new * (inputs - new + 0.5 * (new + 1.0 / u)),
        m.NEW_INPUT2: new * new,
    }
    for column, values in columns.items():
        moments[column] = moments[m.SHARE] * float(law.weight @ values)

    def requests() -> PoolRequests | None:
        found = law.requests()
        if found is None:
            return None
        trace = found.trace
        output = speculation.steps(trace.output_tokens - 1.0) + 1.0
        trace = replace(trace, input_tokens=np.asarray(trace.input_tokens / u), output_tokens=output)
        return replace(found, trace=trace, shared_prefix=found.shared_prefix / u)

    return replace(law, input_tokens=inputs, output_tokens=steps + 1.0, moments=moments, requests=requests)


def engine_in_steps(
    option: EngineOption, setup: ReplicaSetup, speculation: Speculation
) -> tuple[EngineOption, ReplicaSetup]:
    """An engine and its settings in the same units."""
    u = speculation.tokens_per_step
    profile = replace(option.profile, iteration=option.profile.iteration.in_units(u))
    return (
        replace(
            option,
            profile=profile,
            token_budget=max(1, int(option.token_budget / u)),
            shared_prefix=option.shared_prefix / u,
        ),
        replace(setup, kv_tokens=setup.kv_tokens / u),
    )


class InSteps(PoolModel):
    """See the module.

    Parameters
    ----------
    one
        The model of the pool in units.
    tokens_per_step
        Tokens of a unit.
    """

    def __init__(self, one: PoolModel, tokens_per_step: float) -> None:
        self.one, self.tokens_per_step = one, tokens_per_step

    @property
    def capacity_per_s(self) -> float:
        """See :class:`PoolModel`."""
        return self.one.capacity_per_s

    def without_bursts(self) -> PoolModel | None:
        """See :class:`PoolModel`."""
        calm = self.one.without_bursts()
        return None if calm is None else InSteps(calm, self.tokens_per_step)

    def grown(self, growth: str) -> PoolModel | None:
        """See :class:`PoolModel`."""
        other = self.one.grown(growth)
        return None if other is None else InSteps(other, self.tokens_per_step)

    def predict(self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`PoolModel`."""
        found = self.one.predict(arrival_rate_per_s, replicas, quantiles)
        return replace(found, tpot_s=tuple(t / self.tokens_per_step for t in found.tpot_s))
