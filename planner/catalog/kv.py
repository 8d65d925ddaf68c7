"""What a replica's memory holds: weights, the engine's own overhead, and the KV cache that is left.

The accounting is vLLM's (V1, 0.11-0.15): a share of the device's total minus weights minus what profiling measured;
CUDA graphs are not subtracted. Against the KV sizes that 18 text-model servers printed at start the median error is
0.3%; print +-0.5 GiB, +-5 GiB for multimodal models (profiling their image tower is not counted). Everything is per
GPU of the tensor-parallel group unless it says replica; a replica's capacity in tokens equals one GPU's, as every GPU
keeps its share of every token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from planner.errors import InputError
from planner.hardware import DTYPE_BYTES, GpuSpec, ModelSpec

__all__ = [
    "BLOCK_TOKENS",
    "DEFAULT_MEMORY_UTILIZATION",
    "DEFAULT_TOKEN_BUDGET",
    "KvCapacity",
    "kv_bytes_per_token",
    "kv_capacity",
    "kv_capacity_tokens",
    "overhead_bytes",
    "parameter_counts",
    "smallest_tp",
    "tensor_parallel_sizes",
    "weight_bytes",
    "with_parameter_counts",
]

GIB = 2.0**30

BLOCK_TOKENS = 16
"""Tokens of one KV block, vLLM's default [tokens]."""

DEFAULT_MEMORY_UTILIZATION = 0.9
"""Share of the device an engine may take: vLLM's ``gpu_memory_utilization`` default [1]."""

DEFAULT_TOKEN_BUDGET = 8192
"""vLLM's ``max_num_batched_tokens`` default for its API server on 80 GB parts [tokens]."""

SAMPLER_BYTES_PER_LOGIT = 38.5
"""Peak of the sampler during profiling, per sequence and vocabulary entry [bytes]; 38.4-39.6 in six text models."""

COMMUNICATION_GIB = {False: 0.13, True: 0.55}
"""Memory outside the framework's allocator: CUDA context, and NCCL buffers when TP > 1 [GiB]."""

FRAGMENTATION_GIB = 0.20
"""Allocator slack that profiling sees [GiB]."""

MXFP4_WIDTH = 256
"""mxfp4 expert kernels pad each GPU's share of the expert width to a multiple of this (gpt-oss: 2,880 -> 3,072)."""


def _ceil_to(value: float, multiple: int) -> int:
    return multiple * math.ceil(value / multiple)


def _attention_parameters(model: ModelSpec, tp: int) -> float:
    """Attention parameters of one layer on one GPU; what is replicated counts whole."""
    h, q = model.hidden_size, model.q_heads
    if model.kv_lora_rank:
        qk = model.qk_nope_head_dim + model.qk_rope_head_dim
        down = h * (model.kv_lora_rank + model.qk_rope_head_dim) + h * model.q_lora_rank
        query = (model.q_lora_rank or h) * q * qk
        up = model.kv_lora_rank * q * (model.qk_nope_head_dim + model.v_head_dim)
        return down + (query + up + q * model.v_head_dim * h) / tp
    return 2.0 * h * q * model.head_dim / tp + 2.0 * h * _kv_heads_per_gpu(model, tp) * model.head_dim


def _kv_heads_per_gpu(model: ModelSpec, tp: int) -> int:
    """KV heads a GPU keeps: heads are replicated, not divided, when there are fewer than GPUs."""
    return max(1, math.ceil(model.kv_heads / tp))


def weight_bytes(model: ModelSpec, tp: int = 1) -> float:
    """Weights on each GPU of the group.

    .. math::

        V_{64} H e\\,2/TP + L (2Hqd/TP + 2H\\max(1, kv/TP)d)\\,w + L_d\\,3HI w/TP
        + L_m (3HI_e(E + E_s) w/TP + 2HE) + 2H(2L+1)

    with :math:`V_{64}` the vocabulary padded to 64, :math:`e` = 1 if embeddings are tied else 2, :math:`w` the dtype's
    bytes. Embeddings, head, router and norms stay 2 bytes; under mxfp4 so does everything but the experts, whose width
    is padded to 256. The down-projections of latent attention are replicated. Of a multimodal model the published
    parameters beyond the text model's count as 2-byte weights.

    Parameters
    ----------
    model
        The model, in the dtype it is served in.
    tp
        GPUs of the tensor-parallel group [1].

    Returns
    -------
    float
        [bytes per GPU].

    Notes
    -----
    vLLM's own "model weights take" lines: 14.99, 33.88, 1.12, 61.03, 44.76, 13.47, 64.38 GiB; this formula: 14.96,
    33.83, 1.11, 61.02, 44.73, 13.43, 64.48 (Llama-3.1-8B, its 70B in fp8 on two GPUs, Qwen3-0.6B and 32B,
    Mistral-Small-24B, gpt-oss-20b and 120b).

    Examples
    --------
    >>> from planner.catalog import model
    >>> round(weight_bytes(model("llama-3.1-8b")) / 2**30, 2), round(weight_bytes(model("gpt-oss-20b")) / 2**30, 2)
    (14.96, 13.43)
    """
    h, w = model.hidden_size, DTYPE_BYTES[model.weight_dtype]
    # checkpoints in mxfp4 quantize their experts only
    dense_w = 2.0 if model.weight_dtype == "mxfp4" else w
    embeddings = _ceil_to(model.vocab_size, 64) * h * (1 if model.tied_embeddings else 2) * 2.0 / tp
    attention = model.layers * _attention_parameters(model, tp) * dense_w
    dense_layers = model.dense_layers if model.experts else model.layers
    dense = dense_layers * 3.0 * h * model.intermediate_size * dense_w / tp
    moe = 0.0
    if model.experts:
        width = model.moe_intermediate_size / tp
        if model.weight_dtype == "mxfp4":
            width = _ceil_to(width, MXFP4_WIDTH)
        routed = 3.0 * h * width * model.experts * w
        shared = 3.0 * h * model.moe_intermediate_size * model.shared_experts * dense_w / tp
        moe = (model.layers - dense_layers) * (routed + shared + 2.0 * h * model.experts)
    norms = 2.0 * h * (2 * model.layers + 1)
    tower = max(0.0, model.parameters_total - parameter_counts(model)[0]) * 2.0 / tp if model.multimodal else 0.0
    return embeddings + attention + dense + moe + norms + tower


def parameter_counts(model: ModelSpec) -> tuple[float, float]:
    """Parameters in total and per token, from the shape (norms and biases, under 0.1%, left out).

    Returns
    -------
    tuple of float
        (total, active) [parameters].

    Examples
    --------
    >>> from planner.catalog import model
    >>> [round(x / 1e9, 2) for x in parameter_counts(model("mixtral-8x7b"))]
    [46.7, 12.88]
    """
    h = model.hidden_size
    embeddings = model.vocab_size * h * (1 if model.tied_embeddings else 2)
    attention = model.layers * _attention_parameters(model, 1)
    dense_layers = model.dense_layers if model.experts else model.layers
    dense = dense_layers * 3.0 * h * model.intermediate_size
    moe_layers = model.layers - dense_layers
    expert = 3.0 * h * model.moe_intermediate_size
    common = embeddings + attention + dense + moe_layers * (expert * model.shared_experts + h * model.experts)
    return common + moe_layers * expert * model.experts, common + moe_layers * expert * model.experts_per_token


def with_parameter_counts(model: ModelSpec) -> ModelSpec:
    """The same model with :func:`parameter_counts` filled in."""
    total, active = parameter_counts(model)
    return replace(model, parameters_total=total, parameters_active=active)


def kv_bytes_per_token(
    model: ModelSpec, tp: int = 1, *, context_tokens: float | None = None, token_budget: int = DEFAULT_TOKEN_BUDGET
) -> float:
    """KV cache of one token on each GPU of the group.

    .. math:: 2 \\max(1, \\lceil kv/TP \\rceil)\\, d\\, w \\cdot (L_{full} + L_{sliding}\\min(1, (window + B)/context))

    Latent attention keeps :math:`L (kv\\_lora + rope)\\, w` on every GPU, undivided.

    Parameters
    ----------
    model
        The model.
    tp
        GPUs of the tensor-parallel group [1].
    context_tokens
        Tokens a request holds [tokens], for models with sliding-window layers: those keep at most
        ``window + token_budget`` tokens of a request however long it is. ``None`` (the safe side) counts every layer in
        full, as an engine without hybrid KV groups does; ``math.inf`` counts the full-attention layers only.
    token_budget
        Tokens of one iteration [tokens].

    Returns
    -------
    float
        [bytes per token per GPU].

    Examples
    --------
    >>> from planner.catalog import model
    >>> llama, oss = model("llama-3.1-8b"), model("gpt-oss-20b")
    >>> kv_bytes_per_token(llama), kv_bytes_per_token(llama, tp=16), kv_bytes_per_token(model("deepseek-v3"), tp=8)
    (131072.0, 16384.0, 70272.0)
    >>> kv_bytes_per_token(oss), kv_bytes_per_token(oss, context_tokens=math.inf)
    (49152.0, 24576.0)
    """
    w = DTYPE_BYTES[model.kv_dtype]
    if model.kv_lora_rank:
        return model.layers * (model.kv_lora_rank + model.qk_rope_head_dim) * w
    per_layer = 2.0 * _kv_heads_per_gpu(model, tp) * model.head_dim * w
    if model.sliding_window <= 0:
        return model.layers * per_layer
    kept = 1.0 if context_tokens is None else min(1.0, (model.sliding_window + token_budget) / max(context_tokens, 1.0))
    return per_layer * (model.full_attention_layers + (model.layers - model.full_attention_layers) * kept)


def overhead_bytes(
    model: ModelSpec, tp: int = 1, *, max_num_seqs: int, token_budget: int = DEFAULT_TOKEN_BUDGET
) -> float:
    """What the engine takes besides weights and KV cache, on each GPU.

    .. math:: nt + 0.20\\,GiB + \\max(38.5\\,N V,\\; B(4H + 6I/TP))

    with nt = 0.13 GiB for TP = 1, 0.55 GiB beyond. The first term of the maximum is the sampler: what other planners
    call the activation constant of a model family is ``max_num_seqs`` x vocabulary. Settings therefore cost KV cache:
    1,024 -> 128 sequences give back 4 GiB on Llama-3.1-8B.

    Parameters
    ----------
    model
        The model.
    tp
        GPUs of the tensor-parallel group [1].
    max_num_seqs
        N, sequences the engine may run at once [1].
    token_budget
        B, tokens of one iteration [tokens].

    Returns
    -------
    float
        [bytes per GPU].

    Examples
    --------
    >>> from planner.catalog import model
    >>> [round(overhead_bytes(model("llama-3.1-8b"), max_num_seqs=n) / 2**30, 2) for n in (128, 1024)]
    [1.11, 5.04]
    """
    sampler = SAMPLER_BYTES_PER_LOGIT * max_num_seqs * model.vocab_size
    activations = token_budget * (4.0 * model.hidden_size + 6.0 * model.intermediate_size / tp)
    return (COMMUNICATION_GIB[tp > 1] + FRAGMENTATION_GIB) * GIB + max(sampler, activations)


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """KV cache of one replica and where the rest of the memory went (bytes are per GPU).

    Parameters
    ----------
    tokens
        Tokens the cache holds, whole blocks; 0 when nothing is left [tokens].
    kv_bytes
        Room for the cache; negative when weights and overhead do not fit [bytes per GPU].
    bytes_per_token
        [bytes per token per GPU].
    memory_bytes, usable_bytes, weight_bytes, overhead_bytes
        Device total, the engine's share of it, weights, engine overhead [bytes per GPU].
    uncertainty_bytes
        How far `kv_bytes` may be off: +-0.5 GiB for text models, +-5 GiB for multimodal ones [bytes per GPU].
    """

    tokens: int
    kv_bytes: float
    bytes_per_token: float
    memory_bytes: float
    usable_bytes: float
    weight_bytes: float
    overhead_bytes: float
    uncertainty_bytes: float

    @property
    def blocks(self) -> int:
        """Blocks of 16 tokens."""
        return self.tokens // BLOCK_TOKENS

    def to_dict(self) -> dict[str, float]:
        """JSON-ready."""
        return {name: getattr(self, name) for name in self.__slots__}


def kv_capacity(
    model: ModelSpec,
    gpu: GpuSpec,
    tp: int = 1,
    *,
    max_num_seqs: int,
    token_budget: int = DEFAULT_TOKEN_BUDGET,
    memory_utilization: float = DEFAULT_MEMORY_UTILIZATION,
    context_tokens: float | None = None,
) -> KvCapacity:
    """KV cache of a replica of `tp` GPUs.

    .. math:: KV = util \\cdot total - weights - overhead

    Parameters
    ----------
    model, gpu
        What runs on what.
    tp
        GPUs of the tensor-parallel group [1].
    max_num_seqs
        Sequences the engine may run at once [1].
    token_budget
        Tokens of one iteration [tokens].
    memory_utilization
        Share of the device the engine may take, in (0, 1] [1].
    context_tokens
        For sliding-window models, see :func:`kv_bytes_per_token` [tokens].

    Returns
    -------
    KvCapacity

    Raises
    ------
    InputError
        A setting out of its range.

    Examples
    --------
    >>> from planner.catalog import gpu, model
    >>> # vLLM 0.15.1 printed 486,800
    >>> kv_capacity(model("llama-3.1-70b"), gpu("h100"), 4, max_num_seqs=128, token_budget=2048).tokens
    485952
    """
    problems = []
    if tp < 1:
        problems.append(f"tp must be at least 1, got {tp}")
    if max_num_seqs < 1:
        problems.append(f"max_num_seqs must be at least 1, got {max_num_seqs}")
    if token_budget < 1:
        problems.append(f"token_budget must be at least 1, got {token_budget}")
    if not 0.0 < memory_utilization <= 1.0:
        problems.append(f"memory_utilization must lie in (0, 1], got {memory_utilization}")
    if problems:
        raise InputError.from_problems(problems)
    usable = memory_utilization * gpu.memory_bytes
    weights = weight_bytes(model, tp)
    overhead = overhead_bytes(model, tp, max_num_seqs=max_num_seqs, token_budget=token_budget)
    room = usable - weights - overhead
    per_token = kv_bytes_per_token(model, tp, context_tokens=context_tokens, token_budget=token_budget)
    return KvCapacity(
        tokens=BLOCK_TOKENS * max(0, math.floor(room / (BLOCK_TOKENS * per_token))),
        kv_bytes=room,
        bytes_per_token=per_token,
        memory_bytes=gpu.memory_bytes,
        usable_bytes=usable,
        weight_bytes=weights,
        overhead_bytes=overhead,
        uncertainty_bytes=(5.0 if model.multimodal else 0.5) * GIB,
    )


def kv_capacity_tokens(
    model: ModelSpec,
    gpu: GpuSpec,
    tp: int = 1,
    *,
    max_num_seqs: int,
    token_budget: int = DEFAULT_TOKEN_BUDGET,
    memory_utilization: float = DEFAULT_MEMORY_UTILIZATION,
    context_tokens: float | None = None,
) -> int:
    """Tokens the KV cache of a replica holds: :func:`kv_capacity`'s `tokens` [tokens].

    Examples
    --------
    >>> from planner.catalog import gpu, model
    >>> kv_capacity_tokens(model("llama-3.1-8b"), gpu("l4"), max_num_seqs=128)
    30784
    """
    return kv_capacity(
        model,
        gpu,
        tp,
        max_num_seqs=max_num_seqs,
        token_budget=token_budget,
        memory_utilization=memory_utilization,
        context_tokens=context_tokens,
    ).tokens


def tensor_parallel_sizes(model: ModelSpec, gpu: GpuSpec) -> tuple[int, ...]:
    """Powers of two within a node that divide the query heads: the groups an engine accepts.

    Examples
    --------
    >>> from planner.catalog import gpu, model
    >>> tensor_parallel_sizes(model("qwen2.5-7b"), gpu("h100"))  # 28 heads
    (1, 2, 4)
    """
    return tuple(tp for tp in (1, 2, 4, 8, 16, 32, 64) if tp <= gpu.gpus_per_node and model.q_heads % tp == 0)


def smallest_tp(
    model: ModelSpec,
    gpu: GpuSpec,
    longest_request_tokens: float,
    *,
    max_num_seqs: int = 1,
    token_budget: int = DEFAULT_TOKEN_BUDGET,
    memory_utilization: float = DEFAULT_MEMORY_UTILIZATION,
) -> int:
    """Smallest tensor-parallel group whose KV cache holds one request of the longest admitted length.

    Parameters
    ----------
    model, gpu
        What runs on what.
    longest_request_tokens
        Input + output of the longest request [tokens].
    max_num_seqs, token_budget, memory_utilization
        Engine settings, see :func:`kv_capacity`.

    Returns
    -------
    int
        Power of two, at most the GPUs of a node.

    Raises
    ------
    InputError
        It does not fit at any size; one line per size says why. Groups across nodes are not modelled.

    Examples
    --------
    >>> from planner.catalog import gpu, model
    >>> smallest_tp(model("llama-3.1-70b"), gpu("h100"), 8192), smallest_tp(model("llama-3.1-8b"), gpu("l4"), 8192)
    (2, 1)
    """
    need = BLOCK_TOKENS * math.ceil(longest_request_tokens / BLOCK_TOKENS)
    tried: list[tuple[int, KvCapacity]] = []
    for tp in tensor_parallel_sizes(model, gpu):
        capacity = kv_capacity(
            model,
            gpu,
            tp,
            max_num_seqs=max_num_seqs,
            token_budget=token_budget,
            memory_utilization=memory_utilization,
            context_tokens=longest_request_tokens,
        )
        if capacity.tokens >= need:
            return tp
        tried.append((tp, capacity))
    raise _does_not_fit(model, gpu, longest_request_tokens, tried)


def _does_not_fit(model: ModelSpec, gpu: GpuSpec, longest: float, tried: list[tuple[int, KvCapacity]]) -> InputError:
    def line(tp: int, c: KvCapacity) -> str:
        taken = f"weights {c.weight_bytes / GIB:.1f} + overhead {c.overhead_bytes / GIB:.1f} GiB per GPU"
        left = f"KV cache for {c.tokens:,} tokens" if c.tokens > 0 else "nothing left for the KV cache"
        return f"TP{tp}: {taken} of {c.usable_bytes / GIB:.1f} usable, {left}"

    cache = tried[-1][1].bytes_per_token * longest / GIB
    return InputError(
        f"{model.name} ({model.weight_dtype}) does not fit on {gpu.name}: one request of {longest:,.0f} tokens needs "
        f"{cache:.2f} GiB of KV cache per GPU at TP{tried[-1][0]}",
        "Take larger GPUs, quantized weights or KV cache, or shorter requests; groups across nodes are not modelled.",
        [line(tp, c) for tp, c in tried],
    )
