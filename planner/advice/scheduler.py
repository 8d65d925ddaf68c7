"""What a replica sustains under the papers' schedulers, by their theory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.advice.replica import Working
from planner.fleet.fleet import Fleet
from planner.fluid.exclusive import TP_EB_opt
from planner.fluid.wait import load_scale_max
from planner.iteration.derived import exclusive_parameters, wait_parameters
from planner.iteration.model import IterationModel
from planner.workload.pools import PoolLaw


@dataclass(frozen=True, eq=False)
class PooledReplica(Working):
    """One replica of a pool as theory and simulation look at it.

    Parameters
    ----------
    law
        The pool's requests.
    iteration
        Iteration times.
    slots, token_budget, kv_tokens
        Limits of the engine.
    overhead_s
        Time before the engine sees a request [s].
    mixed_per_s
        Capacity under the engine's own mixed batching [1/s].
    """

    law: PoolLaw
    iteration: IterationModel
    slots: int
    token_budget: int
    kv_tokens: float
    overhead_s: float
    mixed_per_s: float

    @property
    def mean_input(self) -> float:
        """Mean prompt [tokens]."""
        return self.mean(self.law.input_tokens)

    @property
    def mean_output(self) -> float:
        """Mean output [tokens]."""
        return self.mean(self.law.output_tokens)


def capacity(replica: PooledReplica, scheduler: str) -> tuple[float, str]:
    """Requests a replica completes at most under a scheduler, by its paper's theory.

    Parameters
    ----------
    replica
        The replica.
    scheduler
        One of :data:`SCHEDULERS`.

    Returns
    -------
    tuple
        Capacity [1/s] and where it comes from.
    """
    model, prompt, output = replica.iteration, replica.mean_input, replica.mean_output
    decodes = max(output - 1.0, 0.0)
    if scheduler == "eb":
        budget = float(replica.token_budget)
        # attention grows with the pairs of real prompts, not of a chunk: it is added per token
        chunks = (min(256.0, budget / 2.0), budget)
        lines = exclusive_parameters(replace(model, a=0.0), replica.context, chunks).values
        costs = [max(lines[name], 0.0) for name in ("alpha_p", "alpha_d", "beta_p", "beta_d")]
        costs[2] += model.a * replica.pairs / prompt
        return float(TP_EB_opt(replica.slots, *costs, prompt, output)), "exclusive batching, eq. 4"
    if scheduler == "wait":
        low, high = 0.05 * replica.kv_tokens, replica.kv_tokens
        lines = wait_parameters(model, prompt, max(decodes, 1.0), (low, high)).values
        # the token-iterations of the law itself, in one type that has them: the mean lengths would lose those of long outputs
        one_type = [(1, replica.mean(replica.work), 0)]
        most = load_scale_max(one_type, lines["d0"], max(lines["d1"], 0.0), replica.kv_tokens)
        return most, "WAIT, proposition 1 with its memory"
    if scheduler == "rad":
        n, context = float(replica.slots), replica.context
        decode_s = decodes * float(model.time(n, n * context, context_max=context)) / n
        prefill_s = _prefill_s(replica.law, model, float(replica.token_budget))
        return 1.0 / (prefill_s + decode_s), "RAD, theorem 2: prompts alone, decodes in full columns"
    return replica.mixed_per_s, "the engine's own mixed batching, which it does not change"


def _prefill_s(law: PoolLaw, model: IterationModel, chunk: float) -> float:
    """Mean time of a prompt prefilled alone in chunks [s]."""
    inputs = law.input_tokens
    whole = np.floor(inputs / chunk)
    total = np.zeros_like(inputs)
    for i in range(int(whole.max(initial=0.0)) + 1):
        new = np.clip(inputs - i * chunk, 0.0, chunk)
        pairs = new * (i * chunk + 0.5 * (new + 1.0))
        total += np.where(new > 0.0, model.time(0.0, 0.0, new, pairs, 0.0, i * chunk + new), 0.0)
    return float(law.weight @ total)


def pooled_replicas(fleet: Fleet) -> list[PooledReplica]:
    """The replicas of a fleet's pools, one a pool."""
    return [
        PooledReplica(
            pool.law,
            pool.option.profile.iteration,
            pool.setup.slots,
            pool.option.token_budget,
            float(pool.option.kv_tokens(pool.setup.slots)),
            pool.option.profile.api_overhead_s + pool.option.profile.request_s,
            pool.capacity_per_s,
        )
        for pool in fleet.pools
    ]
