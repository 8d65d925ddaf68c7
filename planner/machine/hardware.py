"""What a GPU is and what a model is, as their makers state them. No behaviour."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from planner.errors import InputError, refuse

DTYPE_BYTES: Mapping[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    # 4-bit integers with a 16-bit scale and a 4-bit zero point per 128 of them (AWQ, GPTQ), and with a scale per 32
    "int4": 0.51953125,
    "int4-g32": 0.5625,
    # 4-bit floats as NVIDIA serves them (NVFP4): one 8-bit scale per 16 values
    "fp4": 0.5625,
    # 4-bit values with one 8-bit scale per 32 of them (OCP microscaling formats)
    "mxfp4": 0.53125,
}
"""Bytes of one weight or KV element by dtype, block scales included."""


NVLINK_BYTES_PER_S = 150e9
"""Links from here on are taken for NVLink or its like, not PCIe, when nothing says so [bytes/s]."""


SIZES: Mapping[str, str] = {f"{name[0]}p": f"{name}_parallel_size" for name in ("tensor", "pipeline", "data", "expert")}
"""How a model is spread, as :class:`Parallelism` calls it -> the engines' setting."""

GROUPS = (1, 2, 4, 8, 16, 32, 64)
"""Sizes of tensor-parallel groups that are tried, as far as the node and the model allow."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How one replica spreads a model over its GPUs.

    A replica runs ``copies`` batches side by side: one per attention replica and pipeline stage. Each has slots, cache and a
    token budget of its own, and its requests pass through it as through a replica.

    Parameters
    ----------
    tp
        GPUs of a tensor-parallel group [GPUs].
    pp
        Pipeline stages: they work on `pp` batches in turn [1].
    dp
        Attention replicas inside the replica (attention data parallelism) [1]. Beyond one, attention and dense layers
        are copied, each copy serves its own share of the requests, and the experts are spread over all tp x dp GPUs of
        a stage.
    ep
        GPUs of a stage over which whole experts are spread (expert parallelism): tp x dp, or 1 = every expert is cut over the
        tensor-parallel group [GPUs]. 0 = tp x dp where dp > 1, else 1.

    Raises
    ------
    InputError
        A number below 1, or experts over another number of GPUs than a stage has.

    Examples
    --------
    >>> Parallelism(tp=1, dp=8).gpus, str(Parallelism(tp=4, pp=2)), str(Parallelism(dp=8))
    (8, 'TP4 PP2', 'DP8 EP8')
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 0

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be a whole number of at least 1, got {value!r}"
            for name, value in (("tp", self.tp), ("pp", self.pp), ("dp", self.dp), ("ep", self.ep or 1))
            if isinstance(value, bool) or value != int(value) or value < 1
        ]
        refuse(problems)
        stage = self.tp * self.dp
        if self.ep == 0:
            object.__setattr__(self, "ep", stage if self.dp > 1 else 1)
        if self.ep not in (1, stage) or (self.dp > 1 and self.ep == 1):
            raise InputError(
                f"ep {self.ep}: experts are spread over all {stage} GPUs of tp {self.tp} x dp {self.dp}"
                + (", or not at all (ep 1)" if self.dp == 1 else "")
            )

    @classmethod
    def of(cls, tp: int | Parallelism) -> Parallelism:
        """A tensor-parallel group of so many GPUs, or what is one already."""
        return tp if isinstance(tp, Parallelism) else cls(tp)

    @property
    def gpus(self) -> int:
        """GPUs of the replica [GPUs]."""
        return self.tp * self.pp * self.dp

    @property
    def copies(self) -> int:
        """Batches that run side by side, dp x pp [1]."""
        return self.dp * self.pp

    @property
    def stage_gpus(self) -> int:
        """GPUs of one pipeline stage, tp x dp [GPUs]."""
        return self.tp * self.dp

    def __str__(self) -> str:
        parts = (("TP", self.tp), ("PP", self.pp), ("DP", self.dp), ("EP", self.ep))
        return " ".join(f"{name}{n}" for name, n in parts if n > 1 or (name == "TP" and self.dp == 1))


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU as its vendor states it.

    Parameters
    ----------
    name
        Canonical id, e.g. ``"h100-80gb"``.
    memory_bytes
        Memory an engine can see (torch's total) [bytes].
    bandwidth_bytes_per_s
        Peak memory bandwidth [bytes/s].
    flops_per_s
        Peak dense matrix rate by dtype (``bf16``, ``fp16``, ``fp8``, ``int8``, ``fp4``; absent = not supported) [FLOP/s].
    link_bytes_per_s
        Bandwidth to the other GPUs of the node, per GPU and direction [bytes/s]; ``None`` = PCIe only, not known.
    price_usd_per_hour
        On-demand price of one GPU [USD/hour]; ``None`` = no offer is known.
    gpus_per_node
        Largest tensor-parallel group inside one node.
    aliases
        Other names users write.
    sources
        Where each number comes from, by field name.
    gpu_class
        Family whose kernels reach similar shares of their data sheet: ``"sxm"`` (NVIDIA data-centre module with HBM and
        NVLink), ``"pcie"`` (such a card with a lower power limit), ``"workstation"`` (GDDR memory, no NVLink) or
        ``"amd"`` (Instinct). Where it is not given, ``"sxm"`` for a GPU with a fast link and ``"workstation"`` for one
        without.
    sm_count
        Streaming multiprocessors (compute units of an AMD GPU); 0 = not known.
    attention_kernel
        Family of attention kernels engines use on it: ``"fa2"`` (FlashAttention 2), ``"fa3"``, ``"other"``; empty = not
        known.
    node_link_bytes_per_s
        Network bandwidth to other nodes, per GPU and direction [bytes/s]; ``None`` = 400 Gbit/s per GPU.
    pair_bytes_per_s
        Bandwidth between the two GPUs of a bridged pair, per direction [bytes/s]; ``None`` = no bridge.
    power_w
        Power limit of the board [W]; 0 = not known.
    """

    name: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    link_bytes_per_s: float | None
    price_usd_per_hour: float | None
    gpus_per_node: int = 8
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    gpu_class: str = ""
    sm_count: int = 0
    attention_kernel: str = ""
    node_link_bytes_per_s: float | None = None
    pair_bytes_per_s: float | None = None
    power_w: float = 0.0

    def __post_init__(self) -> None:
        if not self.gpu_class:
            kind = "sxm" if (self.link_bytes_per_s or 0.0) >= NVLINK_BYTES_PER_S else "workstation"
            object.__setattr__(self, "gpu_class", "amd" if self.name.lower().startswith("mi") else kind)

    def nodes(self, gpus: int) -> int:
        """Nodes that so many of them lie on [nodes]."""
        return math.ceil(gpus / self.gpus_per_node)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A transformer as its ``config.json`` states it, and the dtypes it is served in.

    Parameters
    ----------
    name
        Canonical id, e.g. ``"llama-3.1-8b"``.
    layers, hidden_size, intermediate_size, q_heads, kv_heads, head_dim, vocab_size, max_context
        Shape. `intermediate_size` is that of a dense MLP layer (gated: three matrices).
    tied_embeddings
        Whether input embedding and head share their weights.
    weight_dtype, kv_dtype
        Keys of :data:`DTYPE_BYTES`. Embeddings and head stay 2 bytes under fp8/int4/mxfp4 weights.
    dense_dtype
        Dtype of everything but the routed experts where a mixture's checkpoint quantizes its experts only; empty = as
        `weight_dtype`, or bf16 under mxfp4.
    parameters_total, parameters_active
        As published [parameters]; active = per token (equal for dense models).
    experts, experts_per_token, moe_intermediate_size, shared_experts, dense_layers
        Mixture of experts; ``experts = 0`` means dense. `dense_layers` counts the layers with a dense MLP,
        `shared_experts` the experts every token uses.
    kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim, v_head_dim, q_lora_rank
        Multi-head latent attention; ``kv_lora_rank = 0`` means ordinary attention.
    sliding_window, full_attention_layers
        Hybrid attention; ``sliding_window = 0`` means every layer attends to the whole context
        (then `full_attention_layers` equals `layers`).
    sliding_kv_heads, sliding_head_dim
        KV heads and head size of the sliding-window layers where they differ; 0 = as `kv_heads` and `head_dim`.
    attention_gate, tied_values
        Whether attention has an output gate as wide as its values; whether its full layers project keys and values together.
    index_layers, index_heads, index_head_dim, index_bytes, index_topk
        Sparse attention: layers with an indexer of their own, its shape, the bytes it caches of a token, and the past
        tokens it lets attention read.
    attention_free_layers, mlp_free_layers
        Layers without attention; layers without an MLP (architectures whose blocks are one or the other).
    state_layers, state_bytes, state_parameters
        Layers with a recurrent state (linear attention, Mamba): how many; state of one sequence in one of them, of the
        same size however long the sequence [bytes]; weights of one such mixer [parameters].
    mlp_matrices
        Weight matrices of an MLP or an expert: 3 gated, 2 not.
    shared_intermediate_size
        Width of all shared experts of a layer together; 0 = `shared_experts` x `moe_intermediate_size`.
    expert_hidden_size
        Width the routed experts work in, where tokens are projected down for them; 0 = `hidden_size`.
    pooling
        Of a model that writes nothing (embeddings, rerankers): ``"encoder"``, whose tokens see each other both ways and which
        keeps no cache, or ``"decoder"``, which holds its cache while it reads; neither has a head over the vocabulary. Empty =
        a model that generates.
    multimodal
        Whether an image tower takes memory this description does not count.
    vision, image_family
        The image encoder as a model of its own, whose tokens are patches, and the family by whose rule images are cut
        (:mod:`planner.catalog.images`); ``None`` and empty = not known.
    like
        Family whose arithmetic was taken for an architecture that is not known; empty = known.
    """

    name: str
    layers: int
    hidden_size: int
    intermediate_size: int
    q_heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    tied_embeddings: bool = False
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    parameters_total: float = 0.0
    parameters_active: float = 0.0
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    q_lora_rank: int = 0
    sliding_window: int = 0
    full_attention_layers: int = 0
    sliding_kv_heads: int = 0
    sliding_head_dim: int = 0
    attention_gate: bool = False
    tied_values: bool = False
    index_layers: int = 0
    index_heads: int = 0
    index_head_dim: int = 0
    index_bytes: float = 0.0
    index_topk: int = 0
    attention_free_layers: int = 0
    mlp_free_layers: int = 0
    state_layers: int = 0
    state_bytes: float = 0.0
    state_parameters: float = 0.0
    mlp_matrices: int = 3
    shared_intermediate_size: int = 0
    expert_hidden_size: int = 0
    dense_dtype: str = ""
    pooling: str = ""
    multimodal: bool = False
    vision: ModelSpec | None = None
    image_family: str = ""
    like: str = ""
    aliases: tuple[str, ...] = ()
    source: str = ""

    def served_as(self, weights: str | None = None, kv: str | None = None) -> ModelSpec:
        """The same model served with other dtypes of weights and KV cache; ``None`` = as it is.

        >>> llama = ModelSpec("llama", 32, 4096, 14336, 32, 8, 128, 128256, 131072)
        >>> llama.served_as(weights="fp8").weight_dtype, llama.served_as() is llama
        ('fp8', True)
        """
        if weights in (None, self.weight_dtype) and kv in (None, self.kv_dtype):
            return self
        dense = self.dense_dtype if weights in (None, self.weight_dtype) else ""
        return replace(self, weight_dtype=weights or self.weight_dtype, kv_dtype=kv or self.kv_dtype, dense_dtype=dense)

    @property
    def dense_weight_dtype(self) -> str:
        """Dtype of attention, dense MLPs and shared experts."""
        return self.dense_dtype or ("bf16" if self.weight_dtype == "mxfp4" else self.weight_dtype)

    @property
    def full_layers(self) -> int:
        """Layers that attend to the whole context."""
        return self.full_attention_layers if self.sliding_window else self.layers - self.attention_free_layers

    @property
    def sliding_layers(self) -> int:
        """Layers that attend to the last `sliding_window` tokens."""
        return self.layers - self.attention_free_layers - self.full_layers

    @property
    def expert_layers(self) -> int:
        """Layers with a mixture of experts."""
        return self.layers - self.mlp_free_layers - self.dense_layers if self.experts else 0

    @property
    def value_dim(self) -> int:
        """Size of one head's values."""
        return self.v_head_dim or self.head_dim

    @property
    def shared_width(self) -> int:
        """Width of all shared experts of a layer together."""
        return self.shared_intermediate_size or self.shared_experts * self.moe_intermediate_size


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
    # of the sliding-window layers; their values are as large as their keys where they have a size of their own
    heads, key = model.sliding_kv_heads or model.kv_heads, model.sliding_head_dim or model.head_dim
    value = model.sliding_head_dim or model.value_dim
    projected = model.head_dim + (0 if model.tied_values else model.value_dim)
    whole = (model.kv_heads, model.head_dim, model.value_dim, projected)
    full = _latent_attention(model, tp) if model.kv_lora_rank else _attention(model, tp, *whole)
    mixers = model.full_layers * full + model.sliding_layers * _attention(model, tp, heads, key, value, key + value)
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
    kept = _per_gpu(heads, tp) * float(key + value)
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


def _latent_attention(model: ModelSpec, tp: int) -> float:
    """Parameters of a layer with latent attention on one GPU; what is copied counts whole."""
    hidden, q = model.hidden_size, model.q_heads
    gate = hidden * q * model.value_dim / tp if model.attention_gate else 0.0
    query_key = model.qk_nope_head_dim + model.qk_rope_head_dim
    down = hidden * (model.kv_lora_rank + model.qk_rope_head_dim) + hidden * model.q_lora_rank
    query = (model.q_lora_rank or hidden) * q * query_key
    up = model.kv_lora_rank * q * (model.qk_nope_head_dim + model.v_head_dim)
    return gate + down + (query + up + q * model.v_head_dim * hidden) / tp


def _attention(model: ModelSpec, tp: int, kv_heads: int, key: int, value: int, projected: int) -> float:
    """The same of ordinary attention with heads of that size, whose keys and values of a head are projected so wide together."""
    hidden, q = model.hidden_size, model.q_heads
    gate = hidden * q * value / tp if model.attention_gate else 0.0
    return gate + hidden * q * (key + value) / tp + hidden * _per_gpu(kv_heads, tp) * projected
