"""Slots of a replica under the two KV policies: `paged` (what engines do) and `reserved` (a slot per longest context)."""

from __future__ import annotations

from planner.catalog.kv import (
    BLOCK_TOKENS,
    DEFAULT_MEMORY_UTILIZATION,
    DEFAULT_TOKEN_BUDGET,
    kv_bytes_per_token,
    overhead_bytes,
    weight_bytes,
)
from planner.catalog.profiles import Profile
from planner.errors import InputError
from planner.hardware import GpuSpec, ModelSpec
from planner.queueing.memory import OVERFLOW_LIMIT, PREEMPTION_LIMIT, SafeSlots, SlotLaw, safe_slots


class BlockCapacity:
    """KV blocks of a replica as a function of ``max_num_seqs``: the sampler's memory grows with it, so the cache shrinks.

    Parameters
    ----------
    model, gpu
        What runs on what.
    tp
        GPUs of the tensor-parallel group [1].
    token_budget
        Tokens of one iteration [tokens].
    memory_utilization
        Share of the device the engine may take [1].
    context_tokens
        Tokens a request holds on average, for sliding-window models; see :func:`planner.catalog.kv.kv_bytes_per_token` [tokens].
    kv_tokens
        Capacity the engine itself reported; then it does not depend on N [tokens].

    Examples
    --------
    >>> from planner.catalog import gpu, model
    >>> blocks = BlockCapacity(model("llama-3.1-8b"), gpu("h100"))
    >>> blocks(64), blocks(1024)
    (28263.0, 26252.0)
    """

    def __init__(
        self,
        model: ModelSpec,
        gpu: GpuSpec,
        tp: int = 1,
        *,
        token_budget: int = DEFAULT_TOKEN_BUDGET,
        memory_utilization: float = DEFAULT_MEMORY_UTILIZATION,
        context_tokens: float | None = None,
        kv_tokens: float | None = None,
    ) -> None:
        self.model, self.tp, self.token_budget = model, tp, token_budget
        self.room = memory_utilization * gpu.memory_bytes - weight_bytes(model, tp)
        per_token = kv_bytes_per_token(model, tp, context_tokens=context_tokens, token_budget=token_budget)
        self.block_bytes = BLOCK_TOKENS * per_token
        self.reported = None if kv_tokens is None else kv_tokens // BLOCK_TOKENS

    def __call__(self, max_num_seqs: int) -> float:
        """Blocks with that many slots; 0 when nothing is left [blocks]."""
        if self.reported is not None:
            return self.reported
        overhead = overhead_bytes(self.model, self.tp, max_num_seqs=max_num_seqs, token_budget=self.token_budget)
        return max(0.0, (self.room - overhead) // self.block_bytes)


def memory_safe_slots(
    law: SlotLaw,
    capacity: BlockCapacity,
    *,
    max_slots: int = 1024,
    overflow_limit: float = OVERFLOW_LIMIT,
    preemption_limit: float = PREEMPTION_LIMIT,
    horizon_iterations: float | None = None,
    horizon_limit: float = 0.01,
) -> SafeSlots:
    """The largest N with N <= N_safe(KV(N, B)): the `paged` policy.

    Token budget first, then this, then latency may lower N. Both sides move with N (more slots ask for more, and the sampler
    leaves less), so the bisection runs over N with the capacity at that N.

    Parameters
    ----------
    law
        Law of one slot of the pool's requests, built with the same token budget.
    capacity
        KV blocks as a function of N.
    max_slots, overflow_limit, preemption_limit, horizon_iterations, horizon_limit
        As :func:`planner.queueing.memory.safe_slots`.

    Returns
    -------
    SafeSlots

    Raises
    ------
    InputError
        The law was built with another token budget than the capacity.

    Examples
    --------
    >>> from planner.catalog import gpu, model
    >>> from planner.queueing.memory import slot_law
    >>> law = slot_law([500.0, 3000.0, 200.0], [300.0, 200.0, 900.0])
    >>> safe = memory_safe_slots(law, BlockCapacity(model("llama-3.1-8b"), gpu("l4")))
    >>> safe.slots, safe.limit
    (20, 'overflow')
    """
    if law.token_budget != capacity.token_budget:
        raise InputError(
            f"the slot law assumes a token budget of {law.token_budget:g}, the engine has {capacity.token_budget}"
        )
    return safe_slots(
        law,
        capacity,
        max_slots=max_slots,
        overflow_limit=overflow_limit,
        preemption_limit=preemption_limit,
        horizon_iterations=horizon_iterations,
        horizon_limit=horizon_limit,
    )


def reserved_slots(longest_tokens: float, kv_tokens: float, profile: Profile | None = None) -> int:
    """Slots when every slot reserves the longest context: FleetOpt's rule, and the profile's own where it has one.

    .. math:: n = \\lfloor n_{calib} C_{calib}/B \\rfloor \\quad\\text{or}\\quad \\lfloor KV/B \\rfloor

    Parameters
    ----------
    longest_tokens
        B, longest context the pool admits [tokens].
    kv_tokens
        KV cache of the replica [tokens].
    profile
        Whose ``reserved`` rule applies, if it has one.

    Returns
    -------
    int
        Slots, possibly 0.

    Examples
    --------
    >>> from planner.catalog import profile
    >>> [reserved_slots(b, 1e6, profile("fleetopt-paper")) for b in (65536, 8192, 4096)], reserved_slots(8192, 100_000)
    ([16, 128, 256], 12)
    """
    if not longest_tokens >= 1:
        raise InputError(f"longest_tokens must be at least 1, got {longest_tokens}")
    if profile is not None and profile.reserved is not None:
        return profile.reserved.at(longest_tokens)
    return int(kv_tokens // longest_tokens)
