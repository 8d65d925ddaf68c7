"""What one GPU of a tensor-parallel group holds of a model: parameters by kind, and the cache bytes of a sequence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from planner.machine.hardware import DTYPE_BYTES, ModelSpec


@dataclass(frozen=True, slots=True)
class Shard:
    """One GPU's share of a model under tensor parallelism.

    Parameters
    ----------
    mixer_parameters
        Attention, linear attention, state-space mixers and indexers of all layers [parameters].
    mlp_parameters
        What every token passes besides: dense MLPs, shared experts, projections into the experts' width [parameters].
    router_parameters
        Routers of the mixtures [parameters].
    expert_parameters, active_expert_parameters
        All routed experts; those one token is sent to [parameters].
    vocabulary_parameters
        One matrix of vocabulary x hidden size: the embedding, and again the head unless they are tied [parameters].
    full_bytes_per_token
        Cache of one token in the layers that attend to the whole context, indexers' keys included [bytes].
    window_bytes_per_token
        Cache of one token in the sliding-window layers, kept for the last window only [bytes].
    state_bytes_per_sequence
        Recurrent state of one sequence, however long [bytes].
    """

    mixer_parameters: float
    mlp_parameters: float
    router_parameters: float
    expert_parameters: float
    active_expert_parameters: float
    vocabulary_parameters: float
    full_bytes_per_token: float
    window_bytes_per_token: float
    state_bytes_per_sequence: float


@lru_cache(maxsize=256)
def shard(model: ModelSpec, tp: int = 1, expert_gpus: int | None = None) -> Shard:
    """Count one GPU's share of a model (norms and biases, under 0.1%, left out).

    KV heads are copied when there are fewer of them than GPUs; the compressed cache of latent attention, its
    down-projections and indexers are on every GPU; everything else is divided.

    Parameters
    ----------
    model
        The model.
    tp
        GPUs of the tensor-parallel group [GPUs].
    expert_gpus
        GPUs over which the routed experts are spread; ``None`` = the tensor-parallel group [GPUs].

    Returns
    -------
    Shard

    Examples
    --------
    >>> m = ModelSpec("llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128256, 131072, full_attention_layers=32)
    >>> s = shard(m)
    >>> s.mixer_parameters + s.mlp_parameters, s.full_bytes_per_token, shard(m, 16).full_bytes_per_token
    (6979321856.0, 131072.0, 16384.0)
    """
    hidden, matrices = model.hidden_size, model.mlp_matrices
    mixers = model.full_layers * _full_attention(model, tp) + model.sliding_layers * _sliding_attention(model, tp)
    mixers += model.state_layers * model.state_parameters / tp
    # an indexer scores with queries made from the compressed ones, one key, and a weight per head
    mixers += model.index_layers * (
        (model.q_lora_rank or hidden) * model.index_heads * model.index_head_dim
        + hidden * (model.index_head_dim + model.index_heads)
    )
    expert_layers = model.expert_layers
    dense_layers = model.dense_layers if model.experts else model.layers - model.mlp_free_layers
    mlp = matrices * hidden * (dense_layers * model.intermediate_size + expert_layers * model.shared_width) / tp
    if model.expert_hidden_size:
        mlp += 2.0 * expert_layers * hidden * model.expert_hidden_size / tp
    expert = matrices * (model.expert_hidden_size or hidden) * model.moe_intermediate_size / (expert_gpus or tp)

    element = DTYPE_BYTES[model.kv_dtype]
    if model.kv_lora_rank:
        cached = float(model.kv_lora_rank + model.qk_rope_head_dim)
    else:
        cached = _per_gpu(model.kv_heads, tp) * float(model.head_dim + model.value_dim)
    if model.pooling == "encoder":
        cached = 0.0
    kept = _per_gpu(_sliding_heads(model), tp) * float(_sliding_dim(model) + _sliding_values(model))
    return Shard(
        mixer_parameters=mixers,
        mlp_parameters=mlp,
        router_parameters=float(expert_layers * hidden * model.experts),
        expert_parameters=expert_layers * model.experts * expert,
        active_expert_parameters=expert_layers * model.experts_per_token * expert,
        vocabulary_parameters=model.vocab_size * hidden / tp,
        full_bytes_per_token=model.full_layers * cached * element + model.index_layers * model.index_bytes,
        window_bytes_per_token=model.sliding_layers * kept * element,
        state_bytes_per_sequence=model.state_layers * model.state_bytes / tp,
    )


def _per_gpu(heads: int, tp: int) -> int:
    """KV heads a GPU keeps: heads are copied, not divided, when there are fewer than GPUs."""
    return max(1, math.ceil(heads / tp))


def _sliding_heads(model: ModelSpec) -> int:
    return model.sliding_kv_heads or model.kv_heads


def _sliding_dim(model: ModelSpec) -> int:
    return model.sliding_head_dim or model.head_dim


def _sliding_values(model: ModelSpec) -> int:
    """Size of one head's values in a sliding-window layer: its own head size where that differs."""
    return model.sliding_head_dim or model.value_dim


def _full_attention(model: ModelSpec, tp: int) -> float:
    """Attention parameters of one layer that attends to the whole context, on one GPU; what is copied counts whole."""
    hidden, q = model.hidden_size, model.q_heads
    gate = hidden * q * model.value_dim / tp if model.attention_gate else 0.0
    if model.kv_lora_rank:
        query_key = model.qk_nope_head_dim + model.qk_rope_head_dim
        down = hidden * (model.kv_lora_rank + model.qk_rope_head_dim) + hidden * model.q_lora_rank
        query = (model.q_lora_rank or hidden) * q * query_key
        up = model.kv_lora_rank * q * (model.qk_nope_head_dim + model.v_head_dim)
        return gate + down + (query + up + q * model.v_head_dim * hidden) / tp
    values = 0 if model.tied_values else model.value_dim
    own = hidden * q * (model.head_dim + model.value_dim) / tp
    return gate + own + hidden * _per_gpu(model.kv_heads, tp) * (model.head_dim + values)


def _sliding_attention(model: ModelSpec, tp: int) -> float:
    """The same for one sliding-window layer."""
    hidden, key, value = model.hidden_size, _sliding_dim(model), _sliding_values(model)
    gate = hidden * model.q_heads * value / tp if model.attention_gate else 0.0
    own = hidden * model.q_heads * (key + value) / tp
    return gate + own + hidden * _per_gpu(_sliding_heads(model), tp) * (key + value)
