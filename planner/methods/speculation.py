"""Pools whose engines speculate, replayed: everything is counted in what a step yields on average.

With a mean of u tokens per step a prompt of L tokens is one of L/u units, and a decode brings (1 + drafts)/u units into the batch.
How many steps a request takes for its tokens is drawn, on its own key: one whose drafts happen to be refused stays longer, and
waits longer for each of its tokens, above all where its answer is short and the steps it gets are full of others' prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.iteration.speculation import Speculation
from planner.methods.replayed import ReplayPool
from planner.predict.batch import Lengths
from planner.predict.bounds import max_throughput
from planner.predict.records import Floats, Limit, Replicas, Requests, uniforms
from planner.predict.traffic import Laid, PoolTraffic
from planner.promise import Promise
from planner.replica.engine import EngineOption, ReplicaSetup
from planner.workload.pools import PoolLaw, images_of

DRAWN = (101, 102)
"""Ordinals of the draws of a request's steps."""


def engine_in_steps(
    option: EngineOption, setup: ReplicaSetup, speculation: Speculation
) -> tuple[EngineOption, ReplicaSetup]:
    """An engine and its settings in units of what a step yields."""
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


class SpeculatingPool(ReplayPool):
    """See the module.

    Parameters
    ----------
    traffic
        The pool's requests, in tokens.
    engine
        One of its replicas and the gateway, in units: :func:`engine_in_steps`.
    overhead_s
        As for :class:`ReplayPool`.
    speculation
        How they speculate.
    """

    def __init__(self, traffic: PoolTraffic, engine: Replicas, overhead_s: float, speculation: Speculation) -> None:
        super().__init__(traffic, engine, overhead_s)
        self.speculation, self.tokens_per_unit = speculation, speculation.tokens_per_step

    def capacity_of(self, law: PoolLaw) -> float:
        """See :class:`ReplayPool`: with as many steps as requests take on average."""
        steps = self.speculation.steps(law.output_tokens - 1.0)
        lengths = Lengths(
            law.input_tokens / self.tokens_per_unit, steps + 1.0, law.weight, law.cached_share, images_of(law)
        )
        return max_throughput(lengths, self._as_told).per_s

    def _sent(self, traffic: PoolTraffic, laid: Laid) -> tuple[Requests, Floats]:
        """See :class:`ReplayPool`: prompts in units, outputs in steps, which are drawn."""
        requests, decodes = super()._sent(traffic, laid)
        # two uniform draws make a normal one (Box and Muller 1958)
        size, angle = (uniforms(requests.key, k) for k in DRAWN)
        normal = np.sqrt(-2.0 * np.log1p(-size)) * np.cos(2.0 * np.pi * angle)
        u = self.tokens_per_unit
        return (
            replace(
                requests,
                input_tokens=np.maximum(requests.input_tokens / u, 1.0),
                output_tokens=1.0 + self.speculation.steps_at(decodes, normal),
                cached_tokens=requests.cached_tokens / u,
            ),
            decodes,
        )

    def _limits(self, promises: Sequence[Promise], requests: Requests) -> list[Limit]:
        """See :class:`ReplayPool`: a replay knows times per step, which end nothing early."""
        return [limit for limit in super()._limits(promises, requests) if limit.metric != "tpot_s"]

    def _limits_say_all(self, promises: Sequence[Promise]) -> bool:
        """See :class:`ReplayPool`."""
        return False
