"""What an iteration should take on a GPU nobody has measured yet: bytes over bandwidth, operations over peak rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.machine.engines import engine as find_engine
from planner.machine.engines import engines
from planner.machine.hardware import DTYPE_BYTES, GpuSpec, ModelSpec, Parallelism, shard
from planner.machine.iteration import IterationModel
from planner.shared.documents import shipped

_FITTED = shipped(Path(__file__).with_name("constants.yaml"))

CONSTANTS: Mapping[str, float] = {name: float(value) for name, value in _FITTED["constants"].items()}
"""Shares of the data sheet [1] and times [s], fitted by ``python -m benchmarks.accuracy fit``; the file says from what."""

BANDS: Mapping[str, float] = _FITTED["bands"]
"""Half-widths by kind of estimate [1], of the same fit."""

ASSUMED: Mapping[str, Any] = shipped(Path(__file__).with_name("assumed.yaml"))
PRIOR_LOG_SD: Mapping[str, float] = ASSUMED["prior_log_sd"]
"""What is taken from data sheets and kernels, and how far a fit trusts a roofline; the file says why."""

ACTIVATION_BYTES = DTYPE_BYTES["bf16"]
ONE_KERNEL = (None, "vllm")
"""Engines that hand decodes and prompts to one kernel where the GPU's kernels are FlashAttention 2; others are not known."""


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
        Vocabulary x hidden size; 0 of a model that writes nothing [parameters].
    kv_bytes_per_token
        KV cache of one token in the layers with full attention [bytes].
    sequence_bytes
        What an iteration moves for one sequence however long it is: full sliding windows, and recurrent states read and
        written [bytes].
    pair_flops
        Operations per (query, key) pair of causal attention, all layers with full attention; of an encoder those of both
        directions [FLOP].
    window_token_flops
        Operations per token against a full window, all sliding-window layers [FLOP].
    decode_kv_flops
        Operations per KV token read by one decoding sequence [FLOP].
    allreduce_bytes_per_token
        Volume a ring all-reduce moves over each GPU's link, all layers [bytes].
    allreduces
        All-reduces of an iteration [1].
    activation_elements
        Values that norms, activations and the edges of the matrix products read and write per token, routed experts
        apart [elements].
    routed_elements
        The same around the routed experts of one token [elements].
    dispatch_bytes_per_token
        Volume of one token's way to its experts and back over each GPU's link, all layers [bytes].
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
    allreduces: float
    activation_elements: float
    routed_elements: float
    dispatch_bytes_per_token: float


def shard_shape(model: ModelSpec, tp: int = 1, expert_gpus: int | None = None) -> ShardShape:
    """Count one GPU's share of a model: parameters, KV bytes, attention operations, all-reduce volume.

    Parameters
    ----------
    model
        The model.
    tp
        GPUs of the tensor-parallel group [GPUs]. KV heads are replicated when there are fewer of them; the compressed
        cache of latent attention is replicated always.
    expert_gpus
        GPUs over which the routed experts are spread; ``None`` = the tensor-parallel group [GPUs].

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
    expert_gpus = expert_gpus or tp
    part = shard(model, tp, expert_gpus)
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
    spread = expert_gpus / tp
    if spread > 1.0:  # the experts' way back replaces the all-reduce after them
        reductions -= model.expert_layers
    ring = 2.0 * (tp - 1) / tp
    hidden, expert_hidden = model.hidden_size, model.expert_hidden_size or model.hidden_size
    dense_layers = model.layers - model.expert_layers - model.mlp_free_layers
    elements = 8.0 * hidden * model.layers
    elements += (
        model.mlp_matrices * (dense_layers * model.intermediate_size + model.expert_layers * model.shared_width) / tp
    )
    per_expert = 2.0 * expert_hidden + model.mlp_matrices * model.moe_intermediate_size / tp
    return ShardShape(
        dense_parameters=every_token,
        expert_parameters=part.expert_parameters,
        active_parameters=every_token + part.active_expert_parameters,
        head_parameters=0.0 if model.pooling else part.vocabulary_parameters,
        kv_bytes_per_token=part.full_bytes_per_token,
        # a recurrent state is read and written in every iteration
        sequence_bytes=part.window_bytes_per_token * model.sliding_window + 2.0 * part.state_bytes_per_sequence,
        # causal attention has half the pairs
        pair_flops=model.full_layers * pair_layer_flops * (2.0 if model.pooling == "encoder" else 1.0),
        window_token_flops=model.sliding_layers * window_pair_flops * model.sliding_window,
        decode_kv_flops=model.full_layers * decode_layer_flops,
        allreduce_bytes_per_token=reductions * hidden * ACTIVATION_BYTES * ring,
        allreduces=reductions if tp > 1 else 0.0,
        activation_elements=elements,
        routed_elements=model.expert_layers * model.experts_per_token * per_expert / spread,
        dispatch_bytes_per_token=_dispatch_bytes(model, round(spread)),
    )


def matmul_rate(gpu: GpuSpec, weight_dtype: str) -> tuple[float, str]:
    """Peak matrix rate an engine reaches with weights of `weight_dtype` [FLOP/s], and the dtype it multiplies in.

    8-bit and 4-bit floats run at their own rate where the GPU has it; otherwise, and always for int4, the weights are
    widened first and the 16-bit rate holds. mxfp4 weights are multiplied with 8-bit activations where the GPU has 4-bit
    matrix units, in 16 bits elsewhere.
    """
    wide = "bf16" if gpu.flops_per_s.get("bf16") else "fp16"
    own = {"fp8": "fp8", "int8": "int8", "fp4": "fp4"}.get(weight_dtype)
    if weight_dtype == "mxfp4" and gpu.flops_per_s.get("fp4"):
        own = "fp8"
    dtype = own if own and gpu.flops_per_s.get(own) else wide
    rate = gpu.flops_per_s.get(dtype)
    if not rate:
        raise InputError(f"{gpu.name}: no matrix rate for {weight_dtype} weights", "Give flops_per_s.bf16 of the GPU.")
    return rate, dtype


def power_share(gpu: GpuSpec, dtype: str, exponent: float) -> float:
    """Share of its matrix rate a GPU keeps because of its power limit, over that of one with power enough [1].

    Under a full load of matrix products a GPU lowers its clock until its power is at the limit. A product of half the bits
    takes half the energy. What has less power for its rate than an H100 SXM keeps (less/enough)^exponent of it.

    >>> nvl = GpuSpec("h100-nvl", 94e9, 3.9e12, {"bf16": 835e12, "fp8": 1671e12}, 63e9, None, power_w=400.0)
    >>> round(power_share(nvl, "fp8", 0.5), 2), round(power_share(nvl, "bf16", 0.5), 2)
    (0.82, 0.82)
    """
    if not gpu.power_w:
        return 1.0
    bits = {"fp8": 8.0, "int8": 8.0, "fp4": 4.0}.get(dtype, 16.0)
    enough = ASSUMED["full_rate_watts"] * gpu.flops_per_s[dtype] * bits / 8.0
    return float(min(gpu.power_w / enough, 1.0) ** exponent)


def roofline(
    gpu: GpuSpec,
    model: ModelSpec,
    tp: int | Parallelism = 1,
    *,
    engine: str | None = None,
    constants: Mapping[str, float] = CONSTANTS,
) -> IterationModel:
    r"""Estimate of every iteration-time parameter from the data sheet of a GPU and the shape of a model.

    .. math::

        t_0 &= launch \cdot layers + latency \cdot all\text{-}reduces + head\ bytes/BW, \\
        w &= weight\ bytes/(s_w\,BW), \qquad b = (1 - s_x)\,2\,params/(s_m\,FLOPS), \\
        c &= s_x\,2\,params/(s_m\,FLOPS) + activation\ bytes/BW + all\text{-}reduce\ bytes/(s_l\,link), \\
        g &= KV\ bytes/(s_{kv}\,BW), \qquad
        h = per\ sequence \cdot layers + 2\,head\ params/(s_m\,FLOPS) + logits/BW, \\
        a &= 4\,q\,d\,layers/(s_a\,FLOPS\,TP), \qquad \tau = 128,\ e = g,\ x = 0

    On GPUs whose engines use FlashAttention 2 batches with decodes and prompts follow the joined form of
    :class:`~planner.machine.iteration.IterationModel` with m = 66, :math:`h_m = 4\,\mu s\,q\,layers/SMs` and
    :math:`e_m = 0.9\,a\,m\,SMs/q`; elsewhere the two kernels add up, because nothing else was measured.

    The shares s and the launch times are fitted: ``constants.yaml`` says from how much. params and
    bytes are one GPU's share and exclude embedding and head. A share s_x of the products (``exposed``) is not hidden by
    streaming the weights: without it batches around the knee, where both take as long, come out 10 to 25% fast. Where a
    board's power limit is low for its matrix rate, the rate is that of :func:`power_share`. Mixture of experts: the experts'
    bytes enter as ``w_experts`` and b is their products, while those of the dense layers are in c: each expert sees few of
    the tokens, so that streaming the experts outlasts their products up to batches at which the dense layers compute long
    since; mixtures of 32 and more experts multiply them slower by the constant ``fine_products`` on GPUs without 4-bit matrix
    units, while experts stream like dense weights everywhere. An engine spends ``moe_launch_s`` on every layer of a mixture, and
    brings its inputs to fewer bits once more; heads of 64 values or fewer have their cache
    read ``narrow`` times longer, but not by engines tuned for MLPerf. Of
    experts that lie whole on GPUs the busiest has more touched than the mean (``uneven``) and, unless the engine moves them
    about, ``imbalance`` times the tokens. Latent attention: g is the larger of reading the compressed cache and computing on it.
    Sliding-window layers read at most their window: it goes into h and c. Linear attention and state-space layers count
    their weights in w and b and move their state in h; their scan, a few percent of the products, is left out. Sparse
    attention counts as if it read everything: an upper bound beyond its top-k.

    With pipeline stages or attention data parallelism the batch is that of one of the replica's copies
    (:class:`~planner.machine.hardware.Parallelism`), the others being as full: a batch passes all stages once in an iteration,
    while the others are on the other stages; experts that are spread see the tokens of all dp copies, and the busiest of their GPUs
    gets more than the mean by the constant ``imbalance``. What is not counted: copies wait for the one with the longest
    prompt, since all meet at the experts of every layer.

    Parameters
    ----------
    gpu
        The GPU.
    model
        The model, with the dtypes it is served in.
    tp
        GPUs of the tensor-parallel group [GPUs], or the whole :class:`~planner.machine.hardware.Parallelism`.
    engine
        Engine whose host costs are added, a name of :mod:`planner.machine.engines`, with its version or without; ``None`` =
        kernels alone.
    constants
        Shares and launch times; the fitted ones by default.

    Returns
    -------
    IterationModel
        All parameters in SI; how far they may be off: :func:`prior_band`.

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
    >>> [float(f"{v:.2g}") for v in (p.t0 * 1e3, p.w * 1e3, p.b * 1e6, p.c * 1e6, p.h * 1e6, p.g * 1e9, p.a * 1e9)]
    [1.9, 4.9, 16.0, 7.4, 4.9, 48.0, 0.53]
    """
    spread = Parallelism.of(tp)
    if spread.tp > gpu.gpus_per_node:
        raise InputError(
            f"tp={spread.tp} exceeds the {gpu.gpus_per_node} GPUs of a {gpu.name} node",
            "Tensor parallelism across nodes is not modelled: take pipeline stages (pp).",
        )
    shape = shard_shape(model, spread.tp, spread.stage_gpus)
    engine, k = _of_version(engine, constants)
    family = gpu.gpu_class
    bandwidth = gpu.bandwidth_bytes_per_s * k.get(f"bandwidth_{family}", 1.0)
    speed = k.get(f"compute_{family}", 1.0)

    weight_element = DTYPE_BYTES[model.weight_dtype]
    dense_dtype = model.dense_weight_dtype
    wide_rate = matmul_rate(gpu, "bf16")[0] * speed

    def flop_s(dtype: str) -> float:
        rate, kind = matmul_rate(gpu, dtype)
        share = k["matmul_fp4" if kind == "fp4" else "matmul"] * power_share(gpu, kind, k.get("power", 0.0))
        return 1.0 / (share * rate * speed)

    pair_s = 1.0 / (k["attention"] * wide_rate)
    stream_s = 1.0 / (k["weights"] * bandwidth)
    kv_s = 1.0 / (k["kv"] * bandwidth)
    bridged = gpu.pair_bytes_per_s if spread.gpus <= 2 else None
    link = k["link"] * (bridged or gpu.link_bytes_per_s or ASSUMED["pcie_bytes_per_s"])
    node_link = k["link"] * (gpu.node_link_bytes_per_s or ASSUMED["node_link_bytes_per_s"])

    head_bytes = shape.head_parameters * max(2.0, weight_element)
    # engines replay recorded launches, and bring activations into the dtype of the products
    launch_s = k["launch_s_per_layer"] * (k.get("graph_launch", 1.0) if engine else 1.0)
    if engine and matmul_rate(gpu, dense_dtype)[1] in ("fp8", "int8", "fp4"):
        launch_s += k.get("quantize_s_per_layer", 0.0)
    t0 = launch_s * model.layers + head_bytes * stream_s
    tuned = bool(engine and engine.endswith("_offline"))
    if engine and not tuned:
        # router, sorting by expert, grouped products at their floor, and their activations brought to fewer bits
        narrow_experts = matmul_rate(gpu, model.weight_dtype)[1] in ("fp8", "int8", "fp4")
        per_mixture = k.get("moe_launch_s", 0.0) + (k.get("quantize_s_per_layer", 0.0) if narrow_experts else 0.0)
        t0 += per_mixture * model.expert_layers
    t0 += k["allreduce_s"] * shape.allreduces
    w = shape.dense_parameters * DTYPE_BYTES[dense_dtype] * stream_s
    # whole experts on a GPU of their own: the one with the most tokens is waited for, unless the engine moves experts about
    busiest = k.get("imbalance", 1.0) if spread.ep > 1 and engine and not tuned else 1.0
    # many small experts: grouped kernels that multiply them well came with 4-bit matrix units
    fine = model.experts >= ASSUMED["fine_experts"] and not gpu.flops_per_s.get("fp4")
    routed_speed = k.get("fine_products", 1.0) if fine else 1.0
    w_experts = shape.expert_parameters * weight_element * stream_s
    # a GPU's experts see the tokens of all copies of the stage
    routed_flops = 2.0 * (shape.active_parameters - shape.dense_parameters) * spread.dp * busiest
    dense_s = 2.0 * shape.dense_parameters * flop_s(dense_dtype)
    routed_s = routed_flops * flop_s(model.weight_dtype) / k["experts"] / routed_speed
    activations = shape.activation_elements + shape.routed_elements * spread.dp * busiest
    # between quantized matrix products values are written once in 16 bits and once as the next product reads them
    narrow = {"fp8": 1.0, "int8": 1.0, "fp4": 0.5625}.get(matmul_rate(gpu, model.weight_dtype)[1], ACTIVATION_BYTES)
    element_bytes = 0.5 * (ACTIVATION_BYTES + narrow)
    c = k["activations"] * element_bytes * activations / bandwidth
    c += shape.allreduce_bytes_per_token / link
    if spread.dp > 1 and model.experts:
        nodes = math.ceil(spread.stage_gpus / gpu.gpus_per_node)
        inside = k.get("dispatch_link", k["link"]) / k["link"] * link
        c += busiest * shape.dispatch_bytes_per_token / inside
        # between nodes a token travels once to each node that holds any of its experts
        c += busiest * _dispatch_bytes(model, nodes) / node_link
        t0 += 2.0 * k.get("dispatch_s", k["allreduce_s"]) * model.expert_layers
    c += shape.window_token_flops * pair_s
    products_s = routed_s if model.experts else dense_s
    exposed_s = k.get("exposed", 0.0) * products_s
    c += exposed_s + (dense_s if model.experts else 0.0)
    g = shape.kv_bytes_per_token * kv_s
    if model.kv_lora_rank:
        g = max(g, shape.decode_kv_flops * pair_s)
    elif model.head_dim <= ASSUMED["narrow_head"] and not tuned:
        g *= k.get("narrow", 1.0)
    h = k["sequence_s_per_layer"] * model.layers + shape.sequence_bytes * kv_s
    # of every sequence that writes a token all logits are computed and sampled from
    head_s = 2.0 * shape.head_parameters * flop_s("bf16")
    head_s += k["activations"] * DTYPE_BYTES["fp32"] * shape.head_parameters / model.hidden_size / bandwidth
    a = shape.pair_flops * pair_s
    if spread.pp > 1:
        # from stage to stage over the network where the stages are on nodes of their own
        hop = node_link if spread.gpus > gpu.gpus_per_node else link
        c += model.hidden_size * ACTIVATION_BYTES / spread.tp * spread.pp / hop
        t0 += k["allreduce_s"] * spread.pp
    # one host makes the batches of all stages
    per_iteration = k.get(f"{engine}_iteration_s", 0.0) * spread.pp if engine else 0.0
    grown = per_iteration + k.get("offline_launch_s_per_layer", 0.0) * model.layers if tuned else 0.0
    per_sequence = k.get(f"{engine}_sequence_s", 0.0) if engine else 0.0
    rows = together = walked = 0.0
    apart = engine in engines() and find_engine(str(engine)).apart
    if not apart and gpu.attention_kernel == "fa2" and gpu.sm_count and engine in ONE_KERNEL and not model.kv_lora_rank:
        heads = model.q_heads / spread.tp
        joined = ASSUMED["joined"]
        rows = joined["query_rows"]
        together = joined["sequence_s"] * heads / gpu.sm_count * model.full_layers
        walked = joined["walk"] * a * rows * gpu.sm_count / heads
    # of all experts those that the tokens of dp copies touch, per token of one copy
    expert_share = 1.0 - (1.0 - model.experts_per_token / model.experts) ** spread.dp if model.experts else 0.0
    return IterationModel(
        t0=t0 + (0.0 if tuned else per_iteration),
        w=w,
        b=products_s - exposed_s,
        c=c,
        # experts see a few tokens each: the staircase of the whole batch does not apply to them
        tau=1 if model.experts else ASSUMED["tile_tokens"],
        g=g,
        h=h + head_s + per_sequence,
        e=g,
        a=a,
        x=0.0,
        w_experts=w_experts,
        expert_share=expert_share,
        uneven=_uneven(model, spread.ep),
        grown=grown,
        half=k.get("offline_half", 0.0) if grown else 0.0,
        m=rows,
        h_m=(together + head_s + per_sequence if rows else 0.0),
        e_m=walked,
        apart=float(apart),
    )


def _of_version(engine: str | None, constants: Mapping[str, float]) -> tuple[str | None, Mapping[str, float]]:
    """An engine's own name, and the constants of the version that is named with it."""
    if engine is None or "@" not in engine:
        return engine, constants
    name, _, version = engine.partition("@")
    measured = find_engine(f"{name.removesuffix('_offline')}@{version}").measured
    return name, dict(constants) | dict(measured.constants if measured else {})


def _uneven(model: ModelSpec, gpus: int) -> float:
    """Standard deviations of an expert's being touched by which the busiest of `gpus` GPUs has more of its own touched [1].

    Their number on a GPU is near normal with variance E/G p (1 - p); the largest of G normal numbers is sqrt(2 ln G) standard
    deviations above the mean where G is large, three quarters of it for 4 to 64.
    """
    if gpus < 2 or not model.experts:
        return 0.0
    return float(ASSUMED["busiest"] * math.sqrt(2.0 * math.log(gpus) * gpus / model.experts))


def _dispatch_bytes(model: ModelSpec, places: int) -> float:
    """Bytes a token sends to its experts and gets back when they are spread evenly over `places`, all layers [bytes].

    A token goes once to each place that holds any of its experts, in 8 bits, and comes back in 16; its own is free.
    """
    held = places * (1.0 - (1.0 - 1.0 / places) ** model.experts_per_token)
    others = held * (places - 1.0) / places
    return model.expert_layers * (model.expert_hidden_size or model.hidden_size) * (1.0 + ACTIVATION_BYTES) * others


def band_kind(gpu: GpuSpec, model: ModelSpec, engine: str | None = None) -> str:
    """Kind of case an estimate belongs to, a key of :data:`BANDS`.

    Kernels alone are surer than servers, dense models than mixtures of experts, NVIDIA's data-centre GPUs than others.
    """
    what = "kernels" if engine is None else "offline" if engine.partition("@")[0].endswith("_offline") else "servers"
    family = "modules" if gpu.gpu_class == "sxm" else "others"
    return f"{what} {family} {'experts' if model.experts else 'dense'}"


def known_band(kind: str, bands: Mapping[str, float]) -> float:
    """The band of a kind of case, or what those next to it say of it [1].

    A kind nobody has published has the band of another of its sort of measurement, and in quadrature what that kind errs
    more among MLPerf's Offline results, which have them all.

    >>> known = {"servers modules dense": 0.2, "offline modules dense": 0.1, "offline modules experts": 0.15}
    >>> round(known_band("servers modules experts", known), 3)
    0.229
    """
    if kind in bands:
        return bands[kind]
    what, family, sort = kind.split()
    offline = bands.get(f"offline {family} {sort}", 0.0)
    found = []
    for other, width in bands.items():
        if other.split()[0] == what:
            beside = bands.get("offline " + " ".join(other.split()[1:]), offline)
            found.append(math.sqrt(width**2 + max(offline**2 - beside**2, 0.0)))
    return min(found, default=max(bands.values()))


def prior_band(gpu: GpuSpec, model: ModelSpec, engine: str | None = None) -> float:
    """Half-width of the band to print around an unmeasured estimate, as a fraction of it [1].

    It is told as an 80% band: it holds 85% of the public measurements of the estimate's kind, each predicted once by a fit without
    its GPU type and once by one without its model, and 75 to 87% of those of GPU types that did not make it; of a kind that
    nobody has published: :func:`known_band`.

    >>> h100 = GpuSpec("h100-80gb", 85e9, 3.35e12, {"bf16": 989e12}, 450e9, 2.99)
    >>> dense = ModelSpec("dense", 32, 4096, 14336, 32, 8, 128, 128256, 131072)
    >>> prior_band(h100, dense) < prior_band(h100, dense, "vllm")
    True
    """
    return _likened(known_band(band_kind(gpu, model, engine), BANDS), model)


def prefill_band(gpu: GpuSpec, model: ModelSpec) -> float:
    """The same of the time of prompts alone, on which the first token hangs [1]."""
    return _likened(known_band(band_kind(gpu, model).replace("kernels", "prompts"), BANDS), model)


def _likened(band: float, model: ModelSpec) -> float:
    """A band, wider where only likeness speaks."""
    return float(ASSUMED["likeness"]) * band if model.like or model.state_layers or model.index_layers else band
