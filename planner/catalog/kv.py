"""What a replica's memory holds: weights, the engine's own overhead, and the KV cache that is left.

The accounting is vLLM's (V1, 0.11-0.15): a share of the device's total minus weights minus what profiling measured;
CUDA graphs are not subtracted. Against the KV sizes that 18 text-model servers printed at start the median error is
0.3%; known to 0.5 GiB, of multimodal models to 5 (profiling their image tower is not counted). Everything is per
GPU of the tensor-parallel group unless it says replica; a replica's capacity in tokens equals one GPU's, as every GPU
keeps its share of every token. Of a replica with copies (attention data parallelism, pipeline stages) sequences, budgets
and tokens are those of one copy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from planner.errors import InputError, refuse
from planner.machine.hardware import DTYPE_BYTES, GROUPS, GpuSpec, ModelSpec, Parallelism, shard
from planner.shared.documents import shipped
from planner.units import GIB

_TAKEN: Mapping[str, Any] = shipped(Path(__file__).with_suffix(".yaml"))

BLOCK_TOKENS: int = _TAKEN["block_tokens"]
"""Tokens of one KV block, vLLM's default [tokens]."""

DEFAULT_MEMORY_UTILIZATION: float = _TAKEN["memory_utilization"]
"""Share of the device an engine may take: vLLM's ``gpu_memory_utilization`` default [1]."""

DEFAULT_TOKEN_BUDGET: int = _TAKEN["token_budget"]
"""vLLM's ``max_num_batched_tokens`` default for its API server on 80 GB parts [tokens]."""

ADAPTED_S: float = _TAKEN["adapted_s"]
"""What adapters add to every iteration, however many there are [s]."""


def _ceil_to(value: float, multiple: int) -> int:
    return multiple * math.ceil(value / multiple)


@lru_cache(maxsize=256)
def weight_bytes(model: ModelSpec, tp: int | Parallelism = 1) -> float:
    """Weights on each GPU of the group.

    .. math::

        V_{64} H e\\,2/TP + L (2Hqd/TP + 2H\\max(1, kv/TP)d)\\,w + L_d\\,3HI w/TP
        + L_m (3HI_e(E + E_s) w/TP + 2HE) + 2H(2L+1)

    with :math:`V_{64}` the vocabulary padded to 64, :math:`e` = 1 if embeddings are tied else 2, :math:`w` the dtype's
    bytes. Embeddings, head, router and norms stay 2 bytes; under mxfp4 so does everything but the experts, whose width
    is padded to 256. The down-projections of latent attention are replicated. Of a multimodal model the published
    parameters beyond the text model's count as 2-byte weights, its image encoder's at least where that is described.

    Parameters
    ----------
    model
        The model, in the dtype it is served in.
    tp
        GPUs of the tensor-parallel group [1], or the whole :class:`~planner.machine.hardware.Parallelism`: pipeline stages share
        the layers, and with attention data parallelism the routed experts are spread over all GPUs of a stage.

    Returns
    -------
    float
        [bytes per GPU], of the fullest one.

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
    spread = Parallelism.of(tp)
    tp = spread.tp
    part, w = shard(model, tp, spread.stage_gpus), DTYPE_BYTES[model.weight_dtype]
    dense_w = DTYPE_BYTES[model.dense_weight_dtype]
    vocabulary = _ceil_to(model.vocab_size, 64) / model.vocab_size * part.vocabulary_parameters
    routed = part.expert_parameters * w
    if model.experts and model.weight_dtype == "mxfp4":
        width = model.moe_intermediate_size / (1 if spread.ep > 1 else tp)
        routed *= _ceil_to(width, _TAKEN["mxfp4_width"]) / width
    norms = 2.0 * model.hidden_size * (2 * model.layers + 1)
    seen = parameter_counts(model.vision)[0] if model.vision else 0.0
    beyond = max(seen, model.parameters_total - parameter_counts(model)[0]) if model.multimodal else 0.0
    tower = 2.0 * beyond / tp
    dense = (part.mixer_parameters + part.mlp_parameters) * dense_w
    # the first pipeline stage holds the embedding, the last one the head
    embeddings = vocabulary * (1 if model.tied_embeddings or spread.pp > 1 else 2)
    return 2.0 * embeddings + (2.0 * part.router_parameters + dense + routed + norms) / spread.pp + tower


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
    part = shard(model)
    common = part.vocabulary_parameters * (1 if model.tied_embeddings else 2)
    common += part.mixer_parameters + part.mlp_parameters + part.router_parameters
    return common + part.expert_parameters, common + part.active_expert_parameters


def with_parameter_counts(model: ModelSpec) -> ModelSpec:
    """The same model with :func:`parameter_counts` filled in."""
    total, active = parameter_counts(model)
    return replace(model, parameters_total=total, parameters_active=active)


def kv_bytes_per_token(model: ModelSpec, tp: int | Parallelism = 1) -> float:
    """Cache of one token on each GPU of the group, in a request shorter than its windows.

    .. math:: 2 \\max(1, \\lceil kv/TP \\rceil)\\, d\\, w

    summed over the layers. Latent attention keeps :math:`L (kv\\_lora + rope)\\, w` on every GPU, undivided; an indexer adds its
    8-bit keys. What windows and recurrent states keep of long requests: :func:`kv_capacity`.

    Parameters
    ----------
    model
        The model.
    tp
        GPUs of the tensor-parallel group [1].

    Returns
    -------
    float
        [bytes per token per GPU].

    Examples
    --------
    >>> from planner.catalog import model
    >>> llama = model("llama-3.1-8b")
    >>> kv_bytes_per_token(llama), kv_bytes_per_token(llama, tp=16), kv_bytes_per_token(model("deepseek-v3"), tp=8)
    (131072.0, 16384.0, 70272.0)
    """
    part = shard(model, Parallelism.of(tp).tp)
    return part.full_bytes_per_token + part.window_bytes_per_token


def window_share(model: ModelSpec) -> float:
    """Cache of a token in layers with sliding windows over that in layers with full attention [1]; 0 where one of them is missing.

    >>> from planner.catalog import model
    >>> window_share(model("gpt-oss-20b")), window_share(model("llama-3.1-8b"))
    (1.0, 0.0)
    """
    part = shard(model)
    return part.window_bytes_per_token / part.full_bytes_per_token if part.full_bytes_per_token else 0.0


def overhead_bytes(
    model: ModelSpec, tp: int | Parallelism = 1, *, max_num_seqs: int, token_budget: int = DEFAULT_TOKEN_BUDGET
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
    spread = Parallelism.of(tp)
    sampler = 0.0 if model.pooling else _TAKEN["sampler_bytes_per_logit"] * max_num_seqs * model.vocab_size
    activations = token_budget * (4.0 * model.hidden_size + 6.0 * model.intermediate_size / spread.tp)
    communication = _TAKEN["communication_gib"]["several" if spread.gpus > 1 else "one"]
    return float((communication + _TAKEN["fragmentation_gib"]) * GIB + max(sampler, activations))


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
        Cache of one token in the layers that keep them all [bytes per token per GPU].
    bytes_per_sequence
        What a sequence keeps besides, however long it is: its windows in sliding-window layers, its recurrent states
        [bytes per GPU].
    usable_bytes, weight_bytes, overhead_bytes
        The engine's share of the device, weights, engine overhead [bytes per GPU].
    """

    tokens: int
    kv_bytes: float
    bytes_per_token: float
    bytes_per_sequence: float
    usable_bytes: float
    weight_bytes: float
    overhead_bytes: float


def kv_capacity(
    model: ModelSpec,
    gpu: GpuSpec,
    tp: int | Parallelism = 1,
    *,
    max_num_seqs: int,
    token_budget: int = DEFAULT_TOKEN_BUDGET,
    memory_utilization: float = DEFAULT_MEMORY_UTILIZATION,
    window_pool: float = 0.0,
) -> KvCapacity:
    """KV cache of a replica of `tp` GPUs.

    .. math::

        KV = util \\cdot total - weights - overhead \\ge
        b_{full} K + b_{window} \\min(K, N (window + 16) + B) + N\\, state

    solved for K, the tokens that N sequences may hold together. Layers with full attention keep every token; the
    sliding-window layers of a sequence keep its window, in whole blocks, and of the tokens being prefilled at most the
    budget (engines with one KV group per kind of layer: vLLM from 0.10 on, TensorRT-LLM), unless they have a pool of their own
    for a share of all tokens; a recurrent state is there once per sequence. For models with full attention only this is
    KV / bytes per token.

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
    window_pool
        Tokens that the pool of sliding-window layers has room for, over those of the others; 0 = there is none
        (:attr:`planner.machine.engines.Engine.window_pool`) [1].

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
    group = tp.tp if isinstance(tp, Parallelism) else tp
    counts = {"tp": group, "max_num_seqs": max_num_seqs, "token_budget": token_budget}
    problems = [f"{name} must be at least 1, got {value}" for name, value in counts.items() if value < 1]
    if not 0.0 < memory_utilization <= 1.0:
        problems.append(f"memory_utilization must lie in (0, 1], got {memory_utilization}")
    refuse(problems)
    usable = memory_utilization * gpu.memory_bytes
    weights = weight_bytes(model, tp)
    overhead = overhead_bytes(model, tp, max_num_seqs=max_num_seqs, token_budget=token_budget)
    room = usable - weights - overhead
    part = shard(model, Parallelism.of(tp).tp)
    # a stage keeps its layers of the tokens of all pp copies: as many bytes as all layers of the tokens of one
    full, window, states = part.full_bytes_per_token, part.window_bytes_per_token, part.state_bytes_per_sequence
    kept = max_num_seqs * (model.sliding_window + BLOCK_TOKENS) + token_budget if window else 0
    left = room - max_num_seqs * states
    if full > 0.0:
        # short sequences keep all they have in every layer, long ones their windows: the looser of the two bounds holds
        bounds = (left / (full + window), (left - window * kept) / full)
        tokens = left / (full + window_pool * window) if window_pool else max(bounds)
    else:
        # nothing grows with the context: the sequences fit whatever their length, or they do not
        tokens = max_num_seqs * model.max_context if left >= window * kept else left / window if window else 0.0
    blocks, kept_bytes = math.floor(tokens / BLOCK_TOKENS), window * (model.sliding_window + BLOCK_TOKENS) + states
    return KvCapacity(BLOCK_TOKENS * max(0, blocks), room, full, kept_bytes, usable, weights, overhead)


def fits(model: ModelSpec, gpu: GpuSpec, tp: int | Parallelism, longest_request_tokens: float, **settings: Any) -> bool:
    """Whether a replica holds one request of that many tokens; `settings` are those of :func:`kv_capacity`.

    >>> from planner.catalog import gpu, model
    >>> [fits(model("deepseek-v3"), gpu(name), Parallelism(dp=8), 8192) for name in ("h100", "h200")]
    [False, True]
    """
    capacity = kv_capacity(model, gpu, tp, max_num_seqs=1, **settings)
    return capacity.tokens >= BLOCK_TOKENS * math.ceil(longest_request_tokens / BLOCK_TOKENS)


def tensor_parallel_sizes(model: ModelSpec, gpu: GpuSpec) -> tuple[int, ...]:
    """Powers of two within a node that divide the query heads: the groups an engine accepts.

    Examples
    --------
    >>> from planner.catalog import gpu, model
    >>> tensor_parallel_sizes(model("qwen2.5-7b"), gpu("h100"))  # 28 heads
    (1, 2, 4)
    """
    return tuple(tp for tp in GROUPS if tp <= gpu.gpus_per_node and model.q_heads % tp == 0)


def smallest_tp(model: ModelSpec, gpu: GpuSpec, longest_request_tokens: float, **settings: Any) -> int:
    """Smallest tensor-parallel group whose KV cache holds one request of the longest admitted length.

    Parameters
    ----------
    model, gpu
        What runs on what.
    longest_request_tokens
        Input + output of the longest request [tokens].
    settings
        Token budget and share of the memory, see :func:`kv_capacity`.

    Returns
    -------
    int
        Power of two, at most the GPUs of a node.

    Raises
    ------
    InputError
        It does not fit at any size of a node; one line per size says why.

    Examples
    --------
    >>> from planner.catalog import gpu, model
    >>> smallest_tp(model("llama-3.1-70b"), gpu("h100"), 8192), smallest_tp(model("llama-3.1-8b"), gpu("l4"), 8192)
    (2, 1)
    """
    sizes = tensor_parallel_sizes(model, gpu)
    lines = []
    for tp in sizes:
        if fits(model, gpu, tp, longest_request_tokens, **settings):
            return tp
        c = kv_capacity(model, gpu, tp, max_num_seqs=1, **settings)
        taken = f"weights {c.weight_bytes / GIB:.1f} + overhead {c.overhead_bytes / GIB:.1f} GiB per GPU"
        left = f"KV cache for {c.tokens:,} tokens" if c.tokens > 0 else "nothing left for the KV cache"
        lines.append(f"TP{tp}: {taken} of {c.usable_bytes / GIB:.1f} usable, {left}")
    longest = longest_request_tokens
    cache = (c.bytes_per_token * longest + c.bytes_per_sequence) / GIB
    raise InputError(
        f"{model.name} ({model.weight_dtype}) does not fit on {gpu.name}: one request of {longest:,.0f} tokens needs "
        f"{cache:.2f} GiB of KV cache per GPU at TP{tp}",
        "Take larger GPUs, quantized weights or KV cache, shorter requests, or several nodes: --pp 2.",
        lines,
    )


def adapter_bytes(model: ModelSpec, spread: Parallelism, rank: int) -> float:
    """What one adapter takes of each GPU [bytes], in 16 bits, for all linear layers: attention and MLP.

    A layer of n inputs and m outputs has rank x (n + m) numbers. Engines cut one of both over a tensor-parallel group, as the layer
    itself, and copy the other: the input side of what is cut by outputs (queries, keys, values, gate, up), the output side of what
    is cut by inputs.

    Parameters
    ----------
    model
        A dense model with ordinary attention.
    spread
        How a replica spreads it.
    rank
        Of the adapter [1].

    Raises
    ------
    InputError
        What adapters of such a model take is not known here.

    Examples
    --------
    >>> from planner.catalog import model
    >>> adapter_bytes(model("llama-3.1-8b"), Parallelism(1), 16) / 2
    41943040.0
    """
    other = (
        "a mixture of experts" if model.experts
        else "a model that writes nothing" if model.pooling
        else "with attention of another kind" if model.kv_lora_rank or model.attention_free_layers or model.sliding_kv_heads
        else ""
    )  # fmt: skip
    if other:
        raise InputError(
            f"lora: {model.name} is {other}; adapters are known of dense models alone", "Leave --lora out."
        )
    hidden, tp = model.hidden_size, spread.tp
    queries, values = model.q_heads * model.head_dim, model.q_heads * model.value_dim
    kept = max(1, math.ceil(model.kv_heads / tp))
    by_outputs = [queries / tp, kept * model.head_dim, kept * model.value_dim]
    by_outputs += [model.intermediate_size / tp] * (model.mlp_matrices - 1)
    by_inputs = [values / tp, model.intermediate_size / tp]
    numbers = sum(hidden + width for width in by_outputs + by_inputs)
    return 2.0 * rank * numbers * model.layers / spread.pp
