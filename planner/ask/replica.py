"""One replica and its traffic, as the scheduler commands (`stability`, `batching`, `wait`) look at them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.catalog.profiles import Profile
from planner.errors import InfeasibleError, InputError
from planner.fluid.exclusive import TP_EB_opt
from planner.fluid.wait import load_scale_max
from planner.machine.derived import exclusive_parameters, wait_parameters
from planner.machine.iteration import IterationModel
from planner.predict.methods import find_method
from planner.predict.records import Replicas
from planner.predict.replica import USUAL_TOKEN_BUDGET, EngineOption, set_up
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs
from planner.shared.record import taken
from planner.shared.remarks import said
from planner.size.fleet import Fleet
from planner.size.grid import engine_choices
from planner.workload.importing import Frame, load_workload
from planner.workload.pools import FleetMoments, Lengths, PoolLaw, State
from planner.workload.workload import Workload

FloatArray = NDArray[np.float64]

DESCRIBED = (
    "workload=workload.name", "arrival_rate_per_s=rate_per_s", "mean_input_tokens=workload.mean_input",
    "mean_output_tokens=workload.mean_output", "gpu=option.gpu.name", "model=option.model.name", "tensor_parallel_size=option.tp",
    "profile=profile.name", "profile_trust=profile.trust", "max_num_seqs=slots", "max_num_batched_tokens=token_budget", "kv_tokens",
)  # fmt: skip
"""What is told of a replica, and where it lies."""

NEVER_S = 1e9
"""A limit that nothing breaks [s]: the promise that a question must carry where it is asked what can be sustained, not how fast."""


class Working:
    """Means over the lengths of the requests that a replica works on, as the papers' formulas take them."""

    law: Any
    """What has ``input_tokens`` and ``output_tokens`` [tokens] and ``weight``, a row per kind of request."""

    @cached_property
    def decodes(self) -> FloatArray:
        """Decode iterations of every row, max(O - 1, 0) [1]."""
        return np.asarray(np.maximum(self.law.output_tokens - 1.0, 0.0))

    def mean(self, values: FloatArray) -> float:
        """Weighted mean over the rows."""
        return float(self.law.weight @ values)

    @cached_property
    def mean_decodes(self) -> float:
        """Mean decode iterations of a request [1]."""
        return self.mean(self.decodes)

    @cached_property
    def kv_iterations(self) -> float:
        """Mean sum of contexts over a request's decodes, E[D(L + (D+1)/2)] [tokens x iterations]."""
        return self.mean(self.decodes * (self.law.input_tokens + 0.5 * (self.decodes + 1.0)))

    @property
    def work(self) -> FloatArray:
        """Token-iterations of every row, (D+1)(L + D/2) [tokens x iterations]."""
        return np.asarray((self.decodes + 1.0) * (self.law.input_tokens + 0.5 * self.decodes))

    @cached_property
    def pairs(self) -> float:
        """Mean query-key pairs of a prefill, E[L(L+1)/2] [1]."""
        L = self.law.input_tokens
        return self.mean(0.5 * L * (L + 1.0))

    @property
    def context(self) -> float:
        """Mean context of a decode [tokens]."""
        return self.kv_iterations / self.mean_decodes if self.mean_decodes > 0.0 else self.mean(self.law.input_tokens)


@dataclass(frozen=True, eq=False)
class SchedulerReplica(Working):
    """Engine, memory-safe slots and request lengths of one replica that serves the whole workload.

    Parameters
    ----------
    workload
        The traffic.
    rate_per_s
        Arrival rate of the fleet [1/s].
    option
        GPU, model, profile, TP, token budget.
    slots
        Memory-safe number of sequences [1].
    kv_tokens
        KV capacity at that number [tokens].
    warnings
        Guards that applied.
    utilization_cap
        Share of the maximum throughput that a fleet is meant to use where its number of replicas is not given, as in a plan.
    """

    workload: Workload
    rate_per_s: float
    option: EngineOption
    slots: int
    kv_tokens: float
    warnings: tuple[str, ...]
    utilization_cap: float

    @property
    def profile(self) -> Profile:
        """Iteration times and how far to trust them."""
        return self.option.profile

    @property
    def token_budget(self) -> int:
        """Tokens per iteration [tokens]."""
        return self.option.token_budget

    @cached_property
    def lengths(self) -> Lengths:
        """The requests, as closed forms take them."""
        return Lengths(self.workload.input_tokens, self.workload.output_tokens, self.workload.weight, np.zeros(1))

    @property
    def engine(self) -> Replicas:
        """The replica as an engine that mixes prefill and decode under its token budget."""
        slots, budget = float(self.slots), float(self.token_budget)
        return Replicas(1, self.profile.iteration, slots, budget, float(self.kv_tokens))

    @cached_property
    def law(self) -> Workload:
        """Whose lengths it works on."""
        return self.workload

    def describe(self) -> dict[str, Any]:
        """What was asked about, JSON-ready."""
        return taken(self, DESCRIBED)

    def assumptions(self) -> tuple[str, ...]:
        """What was decided on the user's behalf."""
        option, profile = self.option, self.profile
        held = {"slots": self.slots, "budget": self.token_budget, "kv": self.kv_tokens}
        kind = {"gpu": option.gpu.name, "parallel": str(option.parallel), "model": option.model.name}
        lines = [said("replica_is", **kind, profile=profile.name, trust=profile.trust), said("replica_holds", **held)]
        if self.workload.provenance.length_split:
            lines.append(f"input and output lengths: {self.workload.provenance.length_split}")
        return tuple(lines)


def scheduler_replica(given: Workload | Frame | str | Path | None, options: Mapping[str, Any]) -> SchedulerReplica:
    """Resolve the options of a scheduler command, under the names they have in a plan.

    Parameters
    ----------
    given
        The traffic; default ``azure``.
    options
        Any of ``gpu``, ``model``, ``tp``, ``profile``, ``rate``, ``token_budget``, ``max_num_seqs``; ``None`` = default.

    Raises
    ------
    InputError
        An option cannot be; several GPU types.
    InfeasibleError
        Not one request fits into the memory of a replica.
    """
    workload = load_workload("azure" if given is None else given)
    stated = {k: v for k, v in options.items() if v is not None}
    # one kind of replica: what is not given is as the engine starts by itself
    inputs = PlanInputs.from_dict({"token_budget": USUAL_TOKEN_BUDGET, **stated, "ttft": f"{NEVER_S}s"})
    if len(inputs.gpu) > 1:
        raise InputError(
            f"gpu: {', '.join(inputs.gpu)}: this command looks at one kind of replica", "Ask once per GPU type."
        )
    asked = {"tp": inputs.tp_options, "token_budget": inputs.token_budget, "max_num_seqs": inputs.max_num_seqs}
    if name := next((name for name, values in asked.items() if len(values) > 1), None):
        raise InputError(f"{name}: several values: this command looks at one kind of replica", "Ask once per value.")
    question = compile_question(inputs, workload)
    option = engine_choices(question)[0]
    law = FleetMoments(workload).law(State(0.0), State(math.inf))
    parts, method = question.promises.parts, find_method(question.method)
    setup = None
    if law is not None:
        limits = method.iteration_limits(law, parts, question.inputs.chunk)
        setup = set_up(option, law, workload.max_total, question.inputs, method.shares_budget, limits)
    if setup is None:
        raise InfeasibleError(
            f"a request of {workload.max_total:,.0f} tokens does not fit into {option.kv_tokens(1):,} KV tokens of "
            f"{option.label}",
            "Take more GPUs per replica (--tp), a GPU with more memory, or a workload without its longest requests.",
        )
    held = setup.slots, setup.kv_tokens, setup.warnings
    return SchedulerReplica(workload, question.traffic.rate_per_s, option, *held, inputs.utilization_cap)


def mixed_cost_known(profile: Profile) -> bool:
    """Whether the profile says what a batch of prefill and decode together costs.

    Separate kernels cannot tell: interference needs mixed batches. A profile knows when its x is set, or when its
    settings say that mixed batches were measured and showed none (``mixed_measured: true``).
    """
    return profile.iteration.x > 0.0 or profile.settings.get("mixed_measured") is True


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
