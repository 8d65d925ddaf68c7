"""A pool whose engines speculate, in the picture of any latency method: everything is counted in what a step yields.

With a mean of u tokens per step, a request of L prompt tokens and D decodes is one of L/u units and about D/u steps whose context
grows by one unit each; the iteration takes the same times, and a decode brings (1 + drafts)/u units into the batch. What a method
predicts of such requests is true of the real ones, but for the time per output token: that of its steps over its tokens, of
which some requests need more and some fewer, as their drafts happen to be accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


LEVELS = (0.01, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99, 0.999)
"""At which the time of a step is asked for, to be mixed with the number of steps: always these, so that a quantile is the same
whichever others are asked for."""

GROUPS, DRAWS, STEP_DRAWS = 8, 32, 256
"""Lengths, numbers of steps of each, and times of a step that are mixed."""


def steps_per_token(law: PoolLaw, speculation: Speculation) -> NDArray[np.float64]:
    """Steps over tokens of the pool's requests, equally likely values [1]: groups of lengths, and what chance makes of each."""
    decodes = law.output_tokens - 1.0
    order = np.argsort(decodes, kind="stable")
    order = order[decodes[order] > 0.0]
    if order.size == 0:
        return np.array([1.0 / speculation.tokens_per_step])
    share = np.cumsum(law.weight[order])
    middle = (np.arange(GROUPS) + 0.5) / GROUPS * share[-1]
    d = decodes[order][np.searchsorted(share, middle).clip(0, order.size - 1)][:, None]
    drawn = speculation.steps(d) + speculation.steps_sd(d) * normal_scores(DRAWS)
    return np.asarray(np.clip(drawn, d / (1.0 + speculation.draft_tokens), d) / d).ravel()


def normal_scores(count: int) -> NDArray[np.float64]:
    """Middles of so many equally likely parts of the standard normal law."""
    law = NormalDist()
    return np.array([law.inv_cdf((k + 0.5) / count) for k in range(count)])


class InSteps(PoolModel):
    """See the module.

    Parameters
    ----------
    one
        The model of the pool in units.
    per_token
        Steps a token takes, equally likely values: :func:`steps_per_token` [1].
    """

    def __init__(self, one: PoolModel, per_token: NDArray[np.float64]) -> None:
        self.one, self.per_token = one, per_token

    @property
    def capacity_per_s(self) -> float:
        """See :class:`PoolModel`."""
        return self.one.capacity_per_s

    def without_bursts(self) -> PoolModel | None:
        """See :class:`PoolModel`."""
        calm = self.one.without_bursts()
        return None if calm is None else InSteps(calm, self.per_token)

    def grown(self, growth: str) -> PoolModel | None:
        """See :class:`PoolModel`."""
        other = self.one.grown(growth)
        return None if other is None else InSteps(other, self.per_token)

    def predict(self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`PoolModel`."""
        asked = tuple(sorted({*quantiles, *LEVELS}))
        found = self.one.predict(arrival_rate_per_s, replicas, asked)
        levels = np.array(asked)
        scores = np.array([NormalDist().inv_cdf(q) for q in LEVELS])
        step_s = np.interp(normal_scores(STEP_DRAWS), scores, np.array(found.tpot_s)[np.searchsorted(levels, LEVELS)])
        if not np.isfinite(step_s).all():
            tpot = np.full(len(quantiles), np.inf)
        else:
            tpot = np.quantile(np.outer(step_s, self.per_token), quantiles)
        places = np.searchsorted(levels, quantiles).tolist()

        def kept(values: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(values[k] for k in places)

        return replace(
            found,
            quantiles=quantiles,
            ttft_s=kept(found.ttft_s),
            tpot_s=tuple(float(t) for t in tpot),
            e2e_s=kept(found.e2e_s),
            bands={metric: kept(values) for metric, values in found.bands.items()},
            margins={metric: kept(values) for metric, values in found.margins.items()},
        )
