"""What one replica of a pool is: GPU, profile, slots and memory for the requests it gets, and the settings to start it with."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from planner.catalog.images import image_s, parse_size
from planner.catalog.kv import ADAPTED_S, BLOCK_TOKENS, adapter_bytes, kv_bytes_per_token, kv_capacity
from planner.catalog.load import gpu as find_gpu
from planner.catalog.load import model as find_model
from planner.catalog.profiles import Profile
from planner.catalog.profiles import profile as find_profile
from planner.errors import InputError
from planner.machine.engines import DEFAULT_ENGINE
from planner.machine.engines import engine as find_engine
from planner.machine.hardware import SIZES, GpuSpec, ModelSpec, Parallelism
from planner.machine.iteration import IterationModel
from planner.machine.speculation import Speculation
from planner.plans import EngineSettings
from planner.predict.drafts import Draft, draft_of, speculating
from planner.predict.parallel import spreads
from planner.predict.price import PriceRule
from planner.question.compiled import CompiledQuestion
from planner.question.options import PlanInputs
from planner.question.prompts import USUAL_SIZE
from planner.shared.kept import once
from planner.shared.templates import refusals, templates
from planner.workload import pools as m
from planner.workload.pools import PoolLaw, own_tokens

if TYPE_CHECKING:
    # loaded with the memory law, which reserved slots do without
    from planner.queueing.memory import SlotLaw

_told, _refusal = templates(__file__), refusals(__file__)

MAX_NUM_SEQS_LIMIT = 1024
"""vLLM's own default of ``max_num_seqs`` on large GPUs: more slots than this are never proposed."""

TOKEN_BUDGETS = (512, 1024, 2048, 4096, 8192)
"""Budgets tried: powers of two, multiples of every GEMM tile, up to vLLM's server default."""

USUAL_TOKEN_BUDGET = TOKEN_BUDGETS[len(TOKEN_BUDGETS) // 2]
"""Where no common budget is shared, and it decides nothing but the memory set aside."""

SLOT_STEP = 64
"""Proposed slots are rounded up to a multiple of this where memory does not decide."""

UNLIMITED_BUDGET = 1e9
"""Token budget that never binds [tokens]."""


@dataclass(frozen=True, slots=True)
class EngineOption:
    """One way to run a replica, before it is known which requests it gets.

    Parameters
    ----------
    gpu, model, profile, parallel
        Hardware, model, iteration times, how a replica spreads the model.
    price
        Cost rule of a pool of such replicas.
    kv
        ``paged`` or ``reserved``.
    token_budget
        Tokens per iteration [tokens].
    max_num_seqs
        Slots of a copy the user fixed; ``None`` = choose.
    memory_utilization
        Share of GPU memory.
    max_model_len
        Longest request the top pool must admit [tokens].
    speculation, draft
        How it speculates and what proposing costs; ``None`` = not at all. `profile` then has the iteration of its steps.
    plain
        The profile without speculation.
    shared_prefix
        Tokens that begin every longer prompt: each copy keeps them once [tokens].
    image_s
        Time of the image encoder for an image [s].
    lora, lora_rank, most_loras
        Adapters that a replica keeps, their rank, and as many as its memory bears beside one longest request; `profile` then has
        the time that they take.

    Notes
    -----
    Slots, KV tokens and the token budget are those of one of the replica's copies
    (:class:`~planner.machine.hardware.Parallelism`); a replica without pipeline stages and attention copies is one copy.
    """

    gpu: GpuSpec
    model: ModelSpec
    profile: Profile
    parallel: Parallelism
    price: PriceRule
    kv: str
    token_budget: int
    max_num_seqs: int | None
    memory_utilization: float
    max_model_len: int
    speculation: Speculation | None = None
    draft: Draft | None = None
    plain: Profile | None = None
    shared_prefix: float = 0.0
    image_s: float = 0.0
    lora: int = 0
    lora_rank: int = 0
    most_loras: int = 0

    @property
    def label(self) -> str:
        """``"h100-80gb x TP1, budget 2048"``."""
        return f"{self.gpu.name} x {self.parallel}, budget {self.token_budget}"

    @property
    def tp(self) -> int:
        """GPUs of a tensor-parallel group."""
        return self.parallel.tp

    @property
    def copies(self) -> int:
        """Batches a replica runs side by side."""
        return self.parallel.copies

    def does_as(self, other: EngineOption) -> bool:
        """Whether two engines differ in nothing but what they cost."""
        return all(getattr(self, name) == getattr(other, name) for name in _DOES)

    def kv_tokens(self, max_num_seqs: int) -> int:
        """KV capacity of a copy when it may run that many sequences [tokens]."""
        adapted = self.lora * adapter_bytes(self.model, self.parallel, self.lora_rank) if self.lora else 0.0
        if self.profile.kv_tokens is not None:
            taken = adapted / kv_bytes_per_token(self.model, self.parallel) if adapted else 0.0
            return max(self.profile.kv_tokens - math.ceil(taken), 0)
        room = kv_capacity(
            self.model,
            self.gpu,
            self.parallel,
            max_num_seqs=max_num_seqs,
            token_budget=self.token_budget,
            memory_utilization=self.memory_utilization,
            window_pool=find_engine(self.profile.engine or DEFAULT_ENGINE).window_pool,
        )
        if (self.draft is None and not adapted) or room.kv_bytes <= 0.0:
            return room.tokens
        drafted, shared = (0.0, 0.0) if self.draft is None else (self.draft.weight_bytes, self.draft.kv_share)
        left = max(room.kv_bytes - drafted - adapted, 0.0) / room.kv_bytes / (1.0 + shared)
        return BLOCK_TOKENS * math.floor(room.tokens * left / BLOCK_TOKENS)

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
        each = high_tokens - self.shared_prefix if high_tokens > self.shared_prefix else high_tokens
        # the sampler's share grows with the slots, so the capacity is looked up at the number it allows
        for _ in range(4):
            slots = max(1, math.floor(self.room(slots) / each))
        return slots if self.room(slots) >= each else 0

    def room(self, max_num_seqs: int) -> float:
        """KV memory of a copy that requests have between them: what they share is in it once already [tokens]."""
        return self.kv_tokens(max_num_seqs) - self.shared_prefix


_DOES = sorted((f.name for f in fields(EngineOption) if f.name != "price"), key=lambda name: name != "token_budget")
"""What an engine does, the setting that mostly tells two apart first."""


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


def full_iteration_time(iteration: IterationModel, slots: float, mean_context: float) -> float:
    """Iteration time with every slot decoding at the mean context, W + H(ctx) slots (FleetOpt eq. 3) [s]."""
    return iteration.at_batch(slots).time(slots, slots * mean_context)


def engine_options(question: CompiledQuestion, shares_budget: bool) -> list[EngineOption]:
    """Every (GPU, way to spread the model, token budget) that a question leaves open to a latency method.

    Raises
    ------
    InputError
        Unknown names, a request longer than the model's context, a model that fits on none of the GPUs.
    """
    inputs, traffic = question.inputs, question.traffic
    speculate = None if inputs.speculate is None else Speculation.parse(inputs.speculate)
    given: dict[str, Any] = {"api_overhead_s": inputs.api_overhead, "request_s": inputs.request_time}
    times = {name: value for name, value in given.items() if value is not None}
    kinds = ("paged", "reserved") if inputs.kv == "both" else (inputs.kv,)
    asked = {"tp": inputs.tp, "pp": inputs.pp, "dp": inputs.dp, "ep": inputs.ep}
    serves, share = inputs.engine or DEFAULT_ENGINE, inputs.memory_utilization
    pool = find_engine(serves).window_pool
    spread = partial(spreads, asked=asked, tp_options=inputs.tp_options, memory_utilization=share, window_pool=pool)
    images = parse_size(inputs.image_size or USUAL_SIZE) if traffic.images else None
    options = []
    problems: list[str] = []
    hint: str | None = None
    bears: dict[str, int] = {}
    if inputs.profile is not None:
        one = find_profile(inputs.profile)
        pairs: list[tuple[str, str, Profile | None]] = [(one.gpu, one.model, one)]
    else:
        pairs = [(name, inputs.model, None) for name in inputs.gpu]
    for gpu_name, model_name, named in pairs:
        gpu, model = find_gpu(gpu_name), find_model(model_name, like=inputs.like)
        model = model if named else model.served_as(inputs.weights, inputs.kv_dtype)
        max_len = _longest_admitted(inputs, model, named, traffic.workload.max_total, traffic.longest)
        measured: dict[Parallelism, Profile] = {}
        for budget in token_budgets(inputs, shares_budget, whole=max_len if model.pooling == "encoder" else 0):
            try:
                ways = (named.parallel,) if named else spread(model, gpu, max_len, token_budget=budget)
            except InputError as error:
                problems.append(error.message)
                hint = error.hint
                continue
            for way, kv, given_seqs in itertools.product(ways, kinds, inputs.max_num_seqs or (None,)):
                profile = named or measured.get(way)
                if profile is None:
                    profile = measured[way] = find_profile(gpu=gpu, model=model, tp=way, engine=serves)
                profile = replace(profile, **times) if times else profile
                price = _price_rule(inputs, gpu, profile)
                # the engine's setting is that of all stages together
                seqs = given_seqs and max(1, given_seqs // way.pp)
                seen = 0.0 if images is None else image_s(gpu, model, way.tp, images)
                option = EngineOption(
                    gpu, model, profile, way, price, kv, budget, seqs, share, max_len,
                    shared_prefix=traffic.shared_prefix, image_s=seen,
                )  # fmt: skip
                if inputs.lora:
                    option = _adapted(option, inputs)
                    bears[gpu.name] = max(bears.get(gpu.name, 0), option.most_loras)
                    if option.most_loras < inputs.lora:
                        continue
                options.append(option if speculate is None else _speculating(option, speculate, shares_budget))
    if not options:
        for name, most in bears.items():
            rest = f"; write {most}" if most else ""
            problems.append(_told("adapters", gpu=name, most=f"{most:,}", rank=inputs.lora_rank, rest=rest))
        raise InputError.from_problems(list(dict.fromkeys(problems)), hint)
    return options


def _adapted(option: EngineOption, inputs: PlanInputs) -> EngineOption:
    """The same engine with its adapters, their time in every iteration."""
    iteration = option.profile.iteration
    profile = replace(option.profile, iteration=replace(iteration, t0=iteration.t0 + ADAPTED_S))

    def short(adapters: int) -> bool:
        return replace(option, lora=adapters, lora_rank=inputs.lora_rank).kv_tokens(1) < option.max_model_len

    fit = option.gpu.memory_bytes // adapter_bytes(option.model, option.parallel, inputs.lora_rank)
    most = max(bisect_right(range(int(fit) + 1), False, key=short) - 1, 0)
    return replace(option, profile=profile, lora=inputs.lora, lora_rank=inputs.lora_rank, most_loras=most)


def _speculating(option: EngineOption, speculate: Speculation, shares_budget: bool) -> EngineOption:
    """The same engine with speculative decoding."""
    if not shares_budget:
        raise _refusal("mixed")
    small = find_model(speculate.draft_model) if speculate.draft_model else None
    if speculate.method == "mtp" and not option.model.experts and not option.model.kv_lora_rank:
        raise _refusal("mtp", model=option.model)
    draft = draft_of(speculate, option.gpu, option.model, option.parallel, small)
    iteration = speculating(option.profile.iteration, speculate, draft, option.model, option.gpu)
    profile = replace(option.profile, iteration=iteration)
    return replace(option, profile=profile, speculation=speculate, draft=draft, plain=option.profile)


def _longest_admitted(
    inputs: PlanInputs, model: ModelSpec, named: Profile | None, longest_tokens: float, room_tokens: float
) -> int:
    """Longest request the largest pool admits [tokens]."""
    max_len = inputs.max_model_len or BLOCK_TOKENS * math.ceil(room_tokens / BLOCK_TOKENS)
    if inputs.kv == "reserved" and named is not None and named.reserved is not None and not inputs.max_model_len:
        max_len = max(max_len, int(named.reserved.context_tokens))
    if longest_tokens > model.max_context:
        raise _refusal("long", longest=f"{longest_tokens:,.0f}", model=model, most=f"{model.max_context:,}")
    max_len = min(max_len, model.max_context)
    if longest_tokens > max_len and inputs.max_model_len:
        raise _refusal("short", told=f"{max_len:,}", most=max_len, longest=f"{longest_tokens:,.0f}")
    return max_len


def _price_of(gpu: GpuSpec, prices: Mapping[str, float]) -> float | None:
    """The price given for a GPU under any of its names [USD/hour]."""
    return next((float(v) for name, v in reversed([*prices.items()]) if find_gpu(name).name == gpu.name), None)


def _price_rule(inputs: PlanInputs, gpu: GpuSpec, profile: Profile) -> PriceRule:
    """What a pool of such replicas costs."""
    per_gpu = _price_of(gpu, inputs.price)
    if per_gpu is None:
        per_gpu = gpu.price_usd_per_hour
        if profile.replica_usd_per_hour is not None:
            per_gpu = profile.replica_usd_per_hour / profile.gpus
        if per_gpu is None:
            raise _refusal("price", gpu=gpu)
    own = ("spot_share", "redundancy", "availability_target", "failures_per_hour", "repair_hours")
    return PriceRule(
        profile.gpus, per_gpu, _price_of(gpu, inputs.spot_price), **{name: getattr(inputs, name) for name in own}
    )


@dataclass(frozen=True, slots=True)
class Slots:
    """Sequences a replica may run at once.

    Parameters
    ----------
    count
        The number.
    why
        Its reason.
    overflow_probability, preemptions_per_1000
        As in :class:`ReplicaSetup`.
    warnings
        Guards that applied.
    """

    count: int
    why: str
    overflow_probability: float = 0.0
    preemptions_per_1000: float = 0.0
    warnings: tuple[str, ...] = ()


def memory_safe_slots(
    option: EngineOption, blocks: SlotLaw, most: int, reasons: Mapping[str, str], tell_all: bool = False
) -> Slots:
    """The largest number of paged slots whose memory seldom overflows, or the number given.

    Parameters
    ----------
    option
        Engine; its ``max_num_seqs`` is the number given.
    blocks
        Memory of a slot.
    most
        Never more.
    reasons
        What decided -> why, in words.
    tell_all
        Whether a given number beyond the safe one is always warned of.
    """
    from planner.queueing.memory import BLOCK_TOKENS, preemption, safe_slots

    safe = safe_slots(blocks, lambda n: option.room(n) // BLOCK_TOKENS, max_slots=most)
    # nothing grows of a request that is its prompt: none runs in step with others
    names = {guard: f"guard {guard}" for guard in ("long requests", "fixed output", "fixed input")}
    if option.model.pooling:
        del names["fixed output"]
    warnings = tuple(_told(names[guard]) for guard in safe.guards if guard in names)
    given = option.max_num_seqs
    if given is None:
        why = reasons.get(safe.limit, safe.limit)
        return Slots(safe.slots, why, safe.overflow, 1000.0 * safe.preemptions, warnings)
    if given <= safe.slots:
        return Slots(given, "as given", warnings=warnings)
    capacity = option.room(given) / BLOCK_TOKENS
    overflow, preempted = preemption(blocks, given, capacity)
    preemptions = 1000.0 * preempted
    if tell_all or safe.limit != "max_slots" or overflow > 0.01 or preemptions > 10.0:
        shares = {"overflow": f"{overflow:.1%}", "preemptions": f"{preemptions:.0f}"}
        warnings += (_told("unsafe", given=given, safe=safe.slots, **shares),)
    return Slots(given, "as given", overflow, preemptions, warnings)


def reserved_slots(option: EngineOption, high_tokens: float) -> Slots:
    """A slot for every longest request, or the smaller number given."""
    slots = option.reserved_slots(high_tokens)
    if option.max_num_seqs is not None and option.max_num_seqs < slots:
        return Slots(option.max_num_seqs, "as given")
    held = option.kv_tokens(max(slots, 1))
    return Slots(slots, f"every slot reserves {high_tokens:,.0f} tokens of {held:,} (reserved KV)")


def set_up(
    option: EngineOption,
    law: PoolLaw,
    high_tokens: float,
    inputs: PlanInputs,
    shares_budget: bool,
    limits: Sequence[float],
) -> ReplicaSetup | None:
    """Slots, memory and settings of a replica for one pool; ``None`` when not even one request fits.

    Parameters
    ----------
    option, law
        Engine and requests.
    high_tokens
        Longest request the pool admits, input + output [tokens].
    inputs
        What was left open.
    shares_budget, limits
        Whether prefill and decode share iterations under a token budget; what a full iteration may take where they do not, so that
        each promise can be kept at all [s].
    """
    if option.kv == "reserved":
        slots = reserved_slots(option, high_tokens)
    else:
        from planner.queueing.memory import slot_law

        # where every slot prefills a chunk of its own, no common budget keeps slots idle
        budget = float(option.token_budget) if shares_budget else UNLIMITED_BUDGET
        prefix = option.shared_prefix
        _, blocks = once(
            ("slot law", id(law), budget, prefix),
            lambda: (
                law,
                slot_law(own_tokens(law.input_tokens, prefix), law.output_tokens, law.weight, token_budget=budget),
            ),
        )
        most = MAX_NUM_SEQS_LIMIT
        if shares_budget:
            # the budget keeps about n_B sequences busy; half as many again is never the limit, and more slots cost cache
            most = min(most, SLOT_STEP * max(2, math.ceil(1.5 * blocks.budget_slots / SLOT_STEP)))
        slots = memory_safe_slots(option, blocks, most, _told("slots"))
        if option.max_num_seqs is not None and not inputs.max_num_seqs:
            # one of those tried: where memory bears no more, the memory-safe ones stand for it
            if slots.count >= memory_safe_slots(replace(option, max_num_seqs=None), blocks, most, _told("slots")).count:
                return None
            slots = replace(slots, why=_told("slots")["waits"])
        if slots.count >= 1 and not shares_budget and option.max_num_seqs is None:
            limited = _slots_for_latency(option, law, slots.count, limits)
            if limited < slots.count:
                why = "an iteration with more sequences would break a latency promise"
                slots = replace(slots, count=limited, why=why)
    if slots.count < 1:
        return None
    if option.kv_tokens(slots.count) < min(high_tokens, law.longest_tokens):
        # slots as given: what the sampler keeps for so many leaves no cache for one long request
        return None
    batching = "pooling" if option.model.pooling else "mixed" if shares_budget else "exclusive"
    reasons = _reasons(option, slots, high_tokens, inputs, shares_budget)
    return replica_with(option, slots, high_tokens, option.token_budget, batching, reasons)


def in_blocks(longest_tokens: float) -> int:
    """The longest request in whole KV blocks [tokens]."""
    return int(BLOCK_TOKENS * math.ceil(longest_tokens / BLOCK_TOKENS))


def replica_with(
    option: EngineOption,
    slots: Slots,
    longest_tokens: float,
    token_budget: int,
    batching: str,
    reasons: Mapping[str, str],
) -> ReplicaSetup:
    """A replica of so many slots, and the settings to start it with.

    Parameters
    ----------
    option, slots
        Its engine, and the sequences of each copy.
    longest_tokens
        Longest request it admits [tokens].
    token_budget, batching, reasons
        As in :class:`planner.plans.EngineSettings`.
    """
    settings = EngineSettings(
        max_model_len=min(in_blocks(longest_tokens), option.model.max_context),
        max_num_seqs=slots.count * option.parallel.pp,
        max_num_batched_tokens=token_budget,
        **_sizes(option.parallel),
        speculative="" if option.speculation is None else option.speculation.vllm_config(),
        gpu_memory_utilization=option.memory_utilization,
        kv_cache_dtype=option.model.kv_dtype,
        max_loras=option.lora,
        max_lora_rank=option.lora_rank,
        batching=batching,
        reasons=reasons,
    )
    return ReplicaSetup(
        slots.count,
        float(option.kv_tokens(slots.count)),
        slots.overflow_probability,
        slots.preemptions_per_1000,
        settings,
        slots.warnings,
    )


def _sizes(spread: Parallelism) -> dict[str, int]:
    """How a replica spreads the model, in the engines' settings."""
    return {setting: getattr(spread, name) for name, setting in SIZES.items()}


def _reasons(option: EngineOption, slots: Slots, high_tokens: float, inputs: PlanInputs, mixed: bool) -> dict[str, str]:
    """Why the settings of a pool's replica are as they are."""
    budgets, encoder = inputs.token_budget or TOKEN_BUDGETS, option.model.pooling == "encoder"
    why = "given" if len(budgets) == 1 else "encoder" if encoder else "shared" if mixed else "alone"
    spread = option.parallel
    often = f"{slots.preemptions_per_1000:,.3f}".rstrip("0").rstrip(".")
    preempted = f"{often} preemptions per 1,000 requests expected when full"
    return {
        "max_model_len": f"the pool admits requests up to {high_tokens:,.0f} tokens, in whole KV blocks",
        "max_num_seqs": f"{slots.why}; {preempted}",
        "max_num_batched_tokens": _told(f"budget {why}", budgets=", ".join(map(str, budgets))),
        "tensor_parallel_size": group_why(inputs, spread, f"weights and a {in_blocks(high_tokens):,}-token request"),
        **{name: _told(name) for name, size in _sizes(spread).items() if size > 1 and name != SIZES["tp"]},
        **({"max_loras": f"as given; its memory bears {option.most_loras:,}"} if option.lora else {}),
        "gpu_memory_utilization": "weights and what the engine takes; an encoder keeps no cache"
        if encoder
        else f"KV cache for {option.kv_tokens(slots.count):,} tokens at this share",
    }


def group_why(inputs: PlanInputs, spread: Parallelism, held: str) -> str:
    """Why the tensor-parallel group has its size."""
    if inputs.tp:
        why = "given"
    elif spread.dp > 1 or spread.pp > 1:
        why = "copied" if spread.dp > 1 else "staged"
    else:
        why = "chosen" if inputs.tp_options else "smallest"
    return str(_told(f"group {why}", held=held, options=", ".join(map(str, inputs.tp_options))))


def token_budgets(inputs: PlanInputs, shares_budget: bool, whole: int = 0) -> tuple[int, ...]:
    """Token budgets to choose from: those given, else several where prefill and decode share one; all hold `whole` tokens.

    Raises
    ------
    InputError
        None of those given does: an encoder's prompts cannot be cut.
    """
    budgets = inputs.token_budget or (TOKEN_BUDGETS if shares_budget else (USUAL_TOKEN_BUDGET,))
    if inputs.token_budget and max(budgets) < whole:
        raise _refusal("whole", budget=f"{max(budgets):,}", whole=f"{whole:,}")
    return tuple(b for b in budgets if b >= whole) or (whole,)


def _slots_for_latency(option: EngineOption, law: PoolLaw, slots: int, limits: Sequence[float]) -> int:
    """Largest number of slots whose full iteration leaves room for every promise."""
    if not limits:
        return slots
    decode = law.mean(m.DECODE)
    context = law.mean(m.KV) / decode if decode > 0.0 else 0.0
    enough = min(limits)
    low = bisect_left(
        range(1, slots + 1), True, key=lambda n: not full_iteration_time(option.profile.iteration, n, context) <= enough
    )
    # even one slot may be too slow; it is kept, so that the shortfall can be named
    return max(low, 1)
