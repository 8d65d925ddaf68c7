"""What one replica of a pool is: GPU, profile, slots and memory for the requests it gets, and the settings to start it with."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np

from planner.catalog.kv import kv_capacity_tokens, smallest_tp, tensor_parallel_sizes
from planner.catalog.load import gpu as find_gpu
from planner.catalog.load import model as find_model
from planner.catalog.profiles import Profile
from planner.catalog.profiles import profile as find_profile
from planner.errors import InputError
from planner.hardware import GpuSpec, ModelSpec
from planner.plans import EngineSettings
from planner.question.inputs import PlanInputs
from planner.replica.price import PriceRule
from planner.workload import pools as m
from planner.workload.pools import PoolLaw

__all__ = ["EngineOption", "ReplicaSetup", "engine_options", "set_up"]

MAX_NUM_SEQS_LIMIT = 1024
"""vLLM's own default of ``max_num_seqs`` on large GPUs: more slots than this are never proposed."""

DEFAULT_TOKEN_BUDGETS = (2048,)
"""Without a promise on TPOT: a quarter of vLLM's server default, which keeps decode stalls four times shorter."""

TPOT_TOKEN_BUDGETS = (512, 1024, 2048, 4096, 8192)
"""Budgets tried when TPOT or E2E is promised: powers of two, multiples of every GEMM tile."""

SLOT_STEP = 64
"""Proposed slots are rounded up to a multiple of this where memory does not decide."""

UNLIMITED_BUDGET = 1e9
"""Token budget that never binds [tokens]."""

MODEL_LEN_STEP = 16
"""``max_model_len`` is rounded up to whole KV blocks [tokens]."""


@dataclass(frozen=True, slots=True)
class EngineOption:
    """One way to run a replica, before it is known which requests it gets.

    Parameters
    ----------
    gpu, model, profile, tp
        Hardware, model, iteration times, GPUs per replica.
    price
        Cost rule of a pool of such replicas.
    kv
        ``paged`` or ``reserved``.
    token_budget
        Tokens per iteration [tokens].
    max_num_seqs
        Slots the user fixed; ``None`` = choose.
    memory_utilization
        Share of GPU memory.
    max_model_len
        Longest request the top pool must admit [tokens].
    """

    gpu: GpuSpec
    model: ModelSpec
    profile: Profile
    tp: int
    price: PriceRule
    kv: str
    token_budget: int
    max_num_seqs: int | None
    memory_utilization: float
    max_model_len: int

    @property
    def label(self) -> str:
        """``"h100-80gb x TP1, budget 2048"``."""
        return f"{self.gpu.name} x TP{self.tp}, budget {self.token_budget}"

    def kv_tokens(self, max_num_seqs: int) -> int:
        """KV capacity of a replica when the engine may run that many sequences [tokens]."""
        if self.profile.kv_tokens is not None:
            return self.profile.kv_tokens
        return kv_capacity_tokens(
            self.model,
            self.gpu,
            self.tp,
            max_num_seqs=max_num_seqs,
            token_budget=self.token_budget,
            memory_utilization=self.memory_utilization,
        )

    def slots_upper_bound(self, high_tokens: float) -> float:
        """No more slots than this for a pool that admits up to `high_tokens`."""
        limit = float(self.max_num_seqs or MAX_NUM_SEQS_LIMIT)
        if self.kv == "reserved":
            limit = min(limit if self.max_num_seqs else math.inf, float(self.reserved_slots(high_tokens)))
        return limit

    def reserved_slots(self, high_tokens: float) -> int:
        """Slots when every slot reserves the pool's longest context (FleetOpt section 6)."""
        if self.profile.reserved is not None:
            return self.profile.reserved.at(high_tokens)
        slots = 1
        # the sampler's share grows with the slots, so the capacity is looked up at the number it allows
        for _ in range(4):
            slots = max(1, math.floor(self.kv_tokens(slots) / high_tokens))
        return slots if self.kv_tokens(slots) >= high_tokens else 0


@dataclass(frozen=True, slots=True)
class ReplicaSetup:
    """A replica set up for the requests of one pool.

    Parameters
    ----------
    slots, kv_tokens
        Sequences at once; KV capacity at that setting [tokens].
    overflow_probability, preemptions_per_1000
        With every slot busy: share of iterations that would not fit; predicted preemptions per 1,000 requests.
    settings
        Engine settings with reasons.
    warnings
        Guards that applied.
    """

    slots: int
    kv_tokens: float
    overflow_probability: float
    preemptions_per_1000: float
    settings: EngineSettings
    warnings: tuple[str, ...] = field(default=())


def engine_options(inputs: PlanInputs, longest_tokens: float) -> list[EngineOption]:
    """Every (GPU, TP, token budget) the search may use.

    Raises
    ------
    InputError
        Unknown names, a request longer than the model's context, a model that fits on none of the GPUs.
    """
    options = []
    problems: list[str] = []
    hint: str | None = None
    if inputs.profile is not None:
        given = find_profile(inputs.profile)
        pairs: list[tuple[str, str, Profile | None]] = [(given.gpu, given.model, given)]
    else:
        pairs = [(name, inputs.model, None) for name in inputs.gpu]
    budgets = _budgets(inputs)
    for gpu_name, model_name, named in pairs:
        gpu, model = find_gpu(gpu_name), find_model(model_name, like=inputs.like)
        max_len = inputs.max_model_len or MODEL_LEN_STEP * math.ceil(longest_tokens / MODEL_LEN_STEP)
        if inputs.kv == "reserved" and named is not None and named.reserved is not None and not inputs.max_model_len:
            max_len = max(max_len, int(named.reserved.context_tokens))
        if longest_tokens > model.max_context:
            raise InputError(
                f"the workload's longest request has {longest_tokens:,.0f} tokens, {model.name} admits {model.max_context:,}",
                "Take a model with a longer context, or cut the workload.",
            )
        max_len = min(max_len, model.max_context)
        if longest_tokens > max_len:
            raise InputError(
                f"max_model_len {max_len:,} is shorter than the workload's longest request of {longest_tokens:,.0f} tokens"
            )
        for budget in budgets:
            try:
                sizes = (named.tp,) if named else _tp_sizes(inputs, model, gpu, max_len, budget)
            except InputError as error:
                problems.append(error.message)
                hint = error.hint
                continue
            for tp, kv in itertools.product(sizes, ("paged", "reserved") if inputs.kv == "both" else (inputs.kv,)):
                profile = named or find_profile(gpu=gpu, model=model, tp=tp)
                options.append(_option(inputs, gpu, model, profile, tp, kv, budget, max_len))
    if not options:
        raise InputError.from_problems(list(dict.fromkeys(problems)), hint)
    return options


def _tp_sizes(inputs: PlanInputs, model: ModelSpec, gpu: GpuSpec, max_len: int, budget: int) -> tuple[int, ...]:
    """Groups the search may use: those asked for that fit, else the one of :func:`_tp`."""
    one = _tp(inputs, model, gpu, max_len, budget)
    if not inputs.tp_options:
        return (one,)
    possible = [t for t in tensor_parallel_sizes(model, gpu) if t >= one and t in inputs.tp_options]
    if not possible:
        asked = ", ".join(map(str, inputs.tp_options))
        raise InputError(
            f"tp {asked}: none fits {model.name} on {gpu.name}; it takes at least TP{one} in a node of {gpu.gpus_per_node}"
        )
    return tuple(possible)


def _tp(inputs: PlanInputs, model: ModelSpec, gpu: GpuSpec, max_len: int, budget: int) -> int:
    smallest = smallest_tp(model, gpu, max_len, token_budget=budget, memory_utilization=inputs.memory_utilization)
    if inputs.tp is None:
        return smallest
    if inputs.tp > gpu.gpus_per_node:
        raise InputError(
            f"tp {inputs.tp} is more than the {gpu.gpus_per_node} GPUs of a {gpu.name} node",
            "Groups across nodes (pipeline or expert parallelism) are not modelled.",
        )
    if model.q_heads % inputs.tp:
        raise InputError(f"tp {inputs.tp} does not divide the {model.q_heads} attention heads of {model.name}")
    if inputs.tp < smallest:
        raise InputError(
            f"{model.name} does not fit on {gpu.name} x TP{inputs.tp} with a request of {max_len:,} tokens; TP{smallest} does"
        )
    return inputs.tp


def _option(
    inputs: PlanInputs, gpu: GpuSpec, model: ModelSpec, profile: Profile, tp: int, kv: str, budget: int, max_len: int
) -> EngineOption:
    def of(prices: object) -> float | None:
        found = None
        for name, value in getattr(prices, "items", dict)():
            if find_gpu(name).name == gpu.name:
                found = float(value)
        return found

    per_gpu = of(inputs.price)
    if per_gpu is None:
        per_gpu = gpu.price_usd_per_hour
        if profile.replica_usd_per_hour is not None:
            per_gpu = profile.replica_usd_per_hour / profile.gpus
        if per_gpu is None:
            raise InputError(
                f"no price of {gpu.name} is known",
                f"Give one with --price {gpu.name}=2.5, or import a list: fleetopt prices import FILE.",
            )
    rule = PriceRule(
        gpus_per_replica=profile.gpus,
        usd_per_gpu_hour=per_gpu,
        spot_usd_per_gpu_hour=of(inputs.spot_price),
        spot_share=inputs.spot_share,
        redundancy=inputs.redundancy,
        availability_target=inputs.availability_target,
        failures_per_hour=inputs.failures_per_hour,
        repair_hours=inputs.repair_hours,
    )
    return EngineOption(
        gpu, model, profile, tp, rule, kv, budget, inputs.max_num_seqs, inputs.memory_utilization, max_len
    )


def set_up(option: EngineOption, law: PoolLaw, high_tokens: float, inputs: PlanInputs) -> ReplicaSetup | None:
    """Slots, memory and settings of a replica for one pool; ``None`` when not even one request fits.

    Parameters
    ----------
    option, law
        Engine and requests.
    high_tokens
        Longest request the pool admits, input + output [tokens].
    inputs
        The question.
    """
    model_len = int(MODEL_LEN_STEP * math.ceil(high_tokens / MODEL_LEN_STEP))
    reasons = {"max_model_len": f"the pool admits requests up to {high_tokens:,.0f} tokens, in whole KV blocks"}
    warnings: list[str] = []
    overflow = preemptions = 0.0
    if option.kv == "reserved":
        slots = option.reserved_slots(high_tokens)
        why = f"every slot reserves {high_tokens:,.0f} tokens of {option.kv_tokens(max(slots, 1)):,} (reserved KV)"
        if option.max_num_seqs is not None and option.max_num_seqs < slots:
            slots, why = option.max_num_seqs, "as given"
    else:
        from planner.queueing.memory import BLOCK_TOKENS, overflow_probability, preemption, safe_slots, slot_law

        # where every slot prefills a chunk of its own, no common budget keeps slots idle
        budget = float(option.token_budget) if inputs.method == "mixed" else UNLIMITED_BUDGET
        blocks = slot_law(law.input_tokens, law.output_tokens, law.weight, token_budget=budget)
        most = MAX_NUM_SEQS_LIMIT
        if inputs.method == "mixed":
            # the token budget keeps about n_B sequences busy; half as many again is never the limit, and more slots cost cache
            most = min(most, SLOT_STEP * max(2, math.ceil(1.5 * blocks.budget_slots / SLOT_STEP)))
        safe = safe_slots(blocks, lambda n: option.kv_tokens(n) // BLOCK_TOKENS, max_slots=most)
        slots, overflow, preemptions = safe.slots, safe.overflow, 1000.0 * safe.preemptions_per_request
        why = _SLOT_REASONS.get(safe.limit, safe.limit)
        warnings.extend(_GUARD_WARNINGS[guard] for guard in safe.guards if guard in _GUARD_WARNINGS)
        if option.max_num_seqs is not None:
            if option.max_num_seqs > slots:
                capacity = option.kv_tokens(option.max_num_seqs) / BLOCK_TOKENS
                overflow = overflow_probability(blocks, option.max_num_seqs, capacity)
                preemptions = 1000.0 * preemption(blocks, option.max_num_seqs, capacity).per_request
                if safe.limit != "max_slots" or overflow > 0.01 or preemptions > 10.0:
                    warnings.append(
                        f"max_num_seqs {option.max_num_seqs} is beyond the memory-safe {slots}: "
                        f"{overflow:.1%} of full iterations would not fit, {preemptions:.0f} preemptions per 1,000 requests"
                    )
            else:
                overflow, preemptions = 0.0, 0.0
            slots, why = option.max_num_seqs, "as given"
    if slots < 1:
        return None
    if inputs.method != "mixed" and option.kv == "paged" and option.max_num_seqs is None:
        limited = _slots_for_latency(option, law, slots, inputs)
        if limited < slots:
            slots, why = limited, "an iteration with more sequences would break a latency promise"
    if slots < 1:
        return None
    kv = option.kv_tokens(slots)
    if kv < min(high_tokens, law.longest_tokens):
        # slots as given: what the sampler keeps for so many leaves no cache for one long request
        return None
    budget_why = (
        "as given"
        if inputs.token_budget
        else "a quarter of vLLM's server default: shorter decode stalls, same throughput"
    )
    if not inputs.token_budget and len(_budgets(inputs)) > 1:
        budget_why = "the cheapest of " + ", ".join(map(str, _budgets(inputs))) + " within the TPOT and E2E promises"
    reasons |= {
        "max_num_seqs": f"{why}; {preemptions:.2g} preemptions per 1,000 requests expected when full",
        "max_num_batched_tokens": budget_why,
        "tensor_parallel_size": "as given"
        if inputs.tp
        else f"the cheapest of TP {', '.join(map(str, inputs.tp_options))}"
        if inputs.tp_options
        else f"the smallest group that holds weights and a {model_len:,}-token request",
        "gpu_memory_utilization": f"KV cache for {kv:,} tokens at this share",
    }
    settings = EngineSettings(
        max_model_len=min(model_len, option.model.max_context),
        max_num_seqs=slots,
        max_num_batched_tokens=option.token_budget,
        tensor_parallel_size=option.tp,
        gpu_memory_utilization=option.memory_utilization,
        kv_cache_dtype=option.model.kv_dtype,
        batching="mixed" if inputs.method == "mixed" else "exclusive",
        reasons=reasons,
    )
    return ReplicaSetup(slots, float(kv), overflow, preemptions, settings, tuple(warnings))


_SLOT_REASONS = {
    "overflow": "the largest number whose KV cache overflows in at most 1% of full iterations",
    "preemptions": "the largest number with at most 10 preemptions per 1,000 requests",
    "max_slots": "half as many again as the token budget can keep busy; memory would allow more",
    "fixed output": "outputs of one length fill the cache together: memory / longest request",
    "horizon": "overflow over the horizon",
}

_GUARD_WARNINGS = {
    "long requests": "memory holds fewer than three of the longest requests: one long prompt can drain the machine "
    "(a quarter of the overflow promise was applied)",
    "fixed output": "output lengths hardly vary: slots run in step, so the worst case was reserved",
    "fixed input": "input lengths hardly vary: preemptions were counted eight times",
}


def _budgets(inputs: PlanInputs) -> tuple[int, ...]:
    if inputs.token_budget:
        return (inputs.token_budget,)
    wants = any(p.metric in ("tpot_s", "e2e_s") for p in inputs.promises)
    return TPOT_TOKEN_BUDGETS if wants and inputs.method == "mixed" else DEFAULT_TOKEN_BUDGETS


def _slots_for_latency(option: EngineOption, law: PoolLaw, slots: int, inputs: PlanInputs) -> int:
    """Largest number of slots whose full iteration leaves room for every promise.

    TPOT is one full iteration in both methods. For ``mgc``, which times prefill at full occupancy too, nine tenths of a
    TTFT promise may go to the prefill and the first decode; the rest is left for the wait.
    """
    from planner.methods.mgc import full_iteration_time

    decode = law.mean(m.DECODE)
    context = law.mean(m.KV) / decode if decode > 0.0 else 0.0
    limits = [p.limit_s for p in inputs.promises if p.metric == "tpot_s"]
    if inputs.method == "mgc":
        chunks = np.ceil((1.0 - law.cached_share) * law.input_tokens / inputs.chunk)
        order = np.argsort(chunks)
        cdf = np.cumsum(law.weight[order])
        for p in inputs.promises:
            if p.metric == "ttft_s":
                long = chunks[order][min(int(np.searchsorted(cdf, p.quantile - 5e-13)), len(order) - 1)]
                limits.append(0.9 * p.limit_s / (float(long) + 1.0))
    if not limits:
        return slots
    low, high = 0, slots
    while low < high:
        middle = (low + high + 1) // 2
        if full_iteration_time(option.profile.iteration, middle, context) <= min(limits):
            low = middle
        else:
            high = middle - 1
    # even one slot may be too slow; it is kept, so that the shortfall can be named
    return max(low, 1)
