"""What an iteration should take on a GPU nobody has measured yet: bytes over bandwidth, operations over peak rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.errors import InputError
from planner.hardware import DTYPE_BYTES, GpuSpec, ModelSpec
from planner.iteration.model import IterationModel
from planner.shard import shard

__all__ = ["EFFICIENCY", "PRIOR_LOG_SD", "ShardShape", "prior_band", "roofline", "shard_shape"]

EFFICIENCY: Mapping[str, float] = {
    "weights": 0.82,  # share of peak bandwidth when streaming weights
    "kv": 0.78,  # share of peak bandwidth when reading KV
    "matmul": 0.60,  # share of peak matrix rate
    "attention": 0.60,  # share of peak matrix rate in prefill attention ...
    "attention_pairs": 0.80,  # ... of 4 q_heads d operations per pair, masked tiles skipped
    "activations": 0.20,  # activation traffic, as a share of the GEMM time per token
}
"""Shares of the peak reached, set once from measured kernels of a few GPUs; not tuned to any one of them."""

LAUNCH_S_PER_LAYER = 50e-6
SEQUENCE_S_PER_LAYER = 30e-9
TILE_TOKENS = 128
ACTIVATION_BYTES = 2.0
PCIE_BYTES_PER_S = 25e9
"""What a PCIe 4.0 x16 slot sustains in one direction, assumed where a GPU has no other link."""

PRIOR_LOG_SD: Mapping[str, float] = {
    "t0": 0.90,
    "w": 0.40,
    "b": 0.50,
    "c": 1.00,
    "g": 0.30,
    "h": 1.50,
    "e": 1.50,  # of e/g
    "a": 0.30,
    "x": 1.50,  # of x/b
}
"""Standard deviation of the logarithm of (true parameter / roofline parameter): how far a fit trusts it."""

DENSE_BAND = 0.30
EXPERTS_BAND = 0.45
LIKENESS = 1.5
"""Factor on the band of an architecture that is known by its likeness to a family only: a convention, nothing measured it."""


@dataclass(frozen=True, slots=True)
class ShardShape:
    """Sizes of one GPU's share of a model under tensor parallelism, embeddings and head apart.

    Parameters
    ----------
    dense_parameters
        Weights of the layers that every token uses: attention and other mixers, dense MLP, shared experts, router [parameters].
    expert_parameters
        Weights of all routed experts [parameters].
    active_parameters
        Weights one token is multiplied with [parameters].
    head_parameters
        Vocabulary x hidden size [parameters].
    kv_bytes_per_token
        KV cache of one token in the layers with full attention [bytes].
    sequence_bytes
        What an iteration moves for one sequence however long it is: full sliding windows, and recurrent states read and
        written [bytes].
    pair_flops
        Operations per (query, key) pair, all layers with full attention [FLOP].
    window_token_flops
        Operations per token against a full window, all sliding-window layers [FLOP].
    decode_kv_flops
        Operations per KV token read by one decoding sequence [FLOP].
    allreduce_bytes_per_token
        Volume a ring all-reduce moves over each GPU's link, all layers [bytes].
    """

    dense_parameters: float
    expert_parameters: float
    active_parameters: float
    head_parameters: float
    kv_bytes_per_token: float
    sequence_bytes: float
    pair_flops: float
    window_token_flops: float
    decode_kv_flops: float
    allreduce_bytes_per_token: float


def shard_shape(model: ModelSpec, tp: int = 1) -> ShardShape:
    """Count one GPU's share of a model: parameters, KV bytes, attention operations, all-reduce volume.

    Parameters
    ----------
    model
        The model.
    tp
        GPUs of the tensor-parallel group [GPUs]. KV heads are replicated when there are fewer of them; the compressed
        cache of latent attention is replicated always.

    Returns
    -------
    ShardShape

    Raises
    ------
    InputError
        If `tp` < 1 or the attention heads cannot be divided over the group.

    Examples
    --------
    >>> m = ModelSpec("llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128256, 131072, full_attention_layers=32)
    >>> shape = shard_shape(m)
    >>> shape.dense_parameters, shape.kv_bytes_per_token
    (6979321856.0, 131072.0)
    >>> shard_shape(m, 2).kv_bytes_per_token, shard_shape(m, 16).kv_bytes_per_token
    (65536.0, 16384.0)
    """
    if isinstance(tp, bool) or tp != int(tp) or tp < 1:
        raise InputError(f"tp must be a whole number of GPUs >= 1, got {tp!r}")
    if model.q_heads % tp:
        raise InputError(f"{model.name}: {model.q_heads} attention heads cannot be divided over tp={tp}")
    part = shard(model, tp)
    q_heads = model.q_heads / tp
    if model.kv_lora_rank:
        query_key = model.qk_nope_head_dim + model.qk_rope_head_dim
        pair_layer_flops = 2.0 * q_heads * (query_key + model.v_head_dim)
        # decode runs in the latent space: scores over latent + rope, values over latent
        decode_layer_flops = 2.0 * q_heads * (2.0 * model.kv_lora_rank + model.qk_rope_head_dim)
    else:
        pair_layer_flops = decode_layer_flops = 2.0 * q_heads * (model.head_dim + model.value_dim)
    window_pair_flops = 2.0 * q_heads * (2.0 * model.sliding_head_dim or model.head_dim + model.value_dim)

    every_token = part.mixer_parameters + part.mlp_parameters + part.router_parameters
    # one all-reduce after the mixer and one after the MLP of every layer
    reductions = 2.0 * model.layers - model.mlp_free_layers
    reductions -= max(0, model.attention_free_layers - model.state_layers)
    ring = 2.0 * (tp - 1) / tp
    return ShardShape(
        dense_parameters=every_token,
        expert_parameters=part.expert_parameters,
        active_parameters=every_token + part.active_expert_parameters,
        head_parameters=part.vocabulary_parameters,
        kv_bytes_per_token=part.full_bytes_per_token,
        # a recurrent state is read and written in every iteration
        sequence_bytes=part.window_bytes_per_token * model.sliding_window + 2.0 * part.state_bytes_per_sequence,
        pair_flops=model.full_layers * pair_layer_flops,
        window_token_flops=model.sliding_layers * window_pair_flops * model.sliding_window,
        decode_kv_flops=model.full_layers * decode_layer_flops,
        allreduce_bytes_per_token=reductions * model.hidden_size * ACTIVATION_BYTES * ring,
    )


def matmul_rate(gpu: GpuSpec, weight_dtype: str) -> float:
    """Peak matrix rate an engine reaches with weights of `weight_dtype` [FLOP/s].

    8-bit and 4-bit floats run at their own rate where the GPU has it; otherwise, and always for int4, the weights are
    widened first and the 16-bit rate holds.
    """
    wide = gpu.flops_per_s.get("bf16") or gpu.flops_per_s.get("fp16")
    own = {"fp8": "fp8", "int8": "int8", "fp4": "fp4", "mxfp4": "fp4"}.get(weight_dtype)
    rate = gpu.flops_per_s.get(own) if own else None
    rate = rate or wide
    if not rate:
        raise InputError(f"{gpu.name}: no matrix rate for {weight_dtype} weights", "Give flops_per_s.bf16 of the GPU.")
    return rate


def roofline(gpu: GpuSpec, model: ModelSpec, tp: int = 1) -> IterationModel:
    r"""Prior of every iteration-time parameter from the data sheet of a GPU and the shape of a model.

    .. math::

        t_0 &= 50\,\mu s \cdot layers + head\ bytes/BW, & w &= weight\ bytes/(0.82\,BW), \\
        b &= 2\,params/(0.6\,FLOPS), & c &= 0.2\,b + all\text{-}reduce\ bytes/link, \\
        g &= KV\ bytes/(0.78\,BW), & h &= 30\,ns \cdot layers, \\
        a &= 0.8 \cdot 4\,q\,d\,layers/(0.6\,FLOPS\,TP), & \tau &= 128,\ e = g,\ x = 0

    params and bytes are one GPU's share and exclude embedding and head. Mixture of experts: parameters per token count
    the active experts, and the experts' bytes enter as ``w_experts``. Latent attention: g is the larger of reading the
    compressed cache and computing on it. Sliding-window layers read at most their window: it goes into h and c. Linear
    attention and state-space layers count their weights in w and b and move their state in h; their scan, a few percent of
    the products, is left out. Sparse attention counts as if it read everything: an upper bound beyond its top-k.

    Parameters
    ----------
    gpu
        The GPU.
    model
        The model, with the dtypes it is served in.
    tp
        GPUs of the tensor-parallel group [GPUs].

    Returns
    -------
    IterationModel
        All parameters in SI. Expect +-30% (dense) before anything was measured: see :func:`prior_band`.

    Raises
    ------
    InputError
        If `tp` does not divide the heads or exceeds the node.

    References
    ----------
    Roofline: Williams, Waterman, Patterson, CACM 52(4), 2009, doi:10.1145/1498765.1498785.

    Examples
    --------
    >>> h100 = GpuSpec("h100-80gb", 85e9, 3.35e12, {"bf16": 989e12}, 450e9, 2.99)
    >>> m = ModelSpec("llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128256, 131072, full_attention_layers=32)
    >>> p = roofline(h100, m)
    >>> [round(v, 3) for v in (p.t0 * 1e3, p.w * 1e3, p.b * 1e6, p.c * 1e6, p.h * 1e6, p.g * 1e9, p.a * 1e9)]
    [1.914, 5.081, 23.523, 4.705, 0.96, 50.162, 0.707]
    """
    shape = shard_shape(model, tp)
    if tp > gpu.gpus_per_node:
        raise InputError(
            f"tp={tp} exceeds the {gpu.gpus_per_node} GPUs of a {gpu.name} node",
            "Tensor parallelism across nodes is not modelled.",
        )
    weight_element = DTYPE_BYTES[model.weight_dtype]
    bandwidth = gpu.bandwidth_bytes_per_s
    rate = matmul_rate(gpu, model.weight_dtype)
    wide_rate = matmul_rate(gpu, "bf16")
    attention_s_per_flop = EFFICIENCY["attention_pairs"] / (EFFICIENCY["attention"] * wide_rate)

    head_bytes = shape.head_parameters * max(2.0, weight_element)
    t0 = LAUNCH_S_PER_LAYER * model.layers + head_bytes / bandwidth
    dense_element = DTYPE_BYTES[model.dense_weight_dtype]
    w = shape.dense_parameters * dense_element / (EFFICIENCY["weights"] * bandwidth)
    w_experts = shape.expert_parameters * weight_element / (EFFICIENCY["weights"] * bandwidth)
    b = 2.0 * shape.active_parameters / (EFFICIENCY["matmul"] * rate)
    link = gpu.link_bytes_per_s or PCIE_BYTES_PER_S
    c = EFFICIENCY["activations"] * b + shape.allreduce_bytes_per_token / link
    c += shape.window_token_flops * attention_s_per_flop
    kv_bandwidth = EFFICIENCY["kv"] * bandwidth
    g = shape.kv_bytes_per_token / kv_bandwidth
    if model.kv_lora_rank:
        g = max(g, shape.decode_kv_flops / (EFFICIENCY["attention"] * wide_rate))
    h = SEQUENCE_S_PER_LAYER * model.layers + shape.sequence_bytes / kv_bandwidth
    a = shape.pair_flops * attention_s_per_flop
    return IterationModel(
        t0=t0,
        w=w,
        b=b,
        c=c,
        # experts see a few tokens each: the staircase of the whole batch does not apply to them
        tau=1 if model.experts else TILE_TOKENS,
        g=g,
        h=h,
        e=g,
        a=a,
        x=0.0,
        w_experts=w_experts,
        expert_share=model.experts_per_token / model.experts if model.experts else 0.0,
    )


def prior_band(model: ModelSpec) -> float:
    """Half-width of the band to print around an unmeasured estimate, as a fraction of it [1].

    Measured mean errors of the prior alone: 14-20% on dense models. Mixtures of experts are less certain.

    >>> prior_band(ModelSpec("dense", 32, 4096, 14336, 32, 8, 128, 128256, 131072))
    0.3
    """
    band = EXPERTS_BAND if model.experts else DENSE_BAND
    return LIKENESS * band if model.like else band
