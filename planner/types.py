"""Plain records that cross layers: what a GPU is, what a model is, what was promised. No behaviour beyond checking itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.errors import InputError

__all__ = ["DTYPE_BYTES", "GpuSpec", "ModelSpec", "Promise", "Slo"]

DTYPE_BYTES: Mapping[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "fp4": 0.5,
    # 4-bit values with one 8-bit scale per 32 of them (OCP microscaling formats)
    "mxfp4": 0.53125,
}
"""Bytes of one weight or KV element by dtype."""

PROMISE_METRICS = ("ttft_s", "tpot_s", "e2e_s")


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
        On-demand price of one GPU [USD/hour].
    gpus_per_node
        Largest tensor-parallel group inside one node.
    aliases
        Other names users write.
    sources
        Where each number comes from, by field name.
    """

    name: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    link_bytes_per_s: float | None
    price_usd_per_hour: float
    gpus_per_node: int = 8
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer as its ``config.json`` states it, and the dtypes it is served in.

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
    multimodal
        Whether an image tower takes memory this description does not count.
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
    multimodal: bool = False
    aliases: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class Promise:
    """One latency promise: the `quantile` of `metric` is at most `limit_s`.

    Parameters
    ----------
    metric
        ``"ttft_s"``, ``"tpot_s"`` or ``"e2e_s"``.
    limit_s
        Limit [s], > 0.
    quantile
        Share of requests within the limit, in (0, 1).
    scope
        ``"pool"`` (each pool keeps it) or ``"fleet"`` (all requests together do).
    """

    metric: str
    limit_s: float
    quantile: float = 0.99
    scope: str = "pool"

    def __post_init__(self) -> None:
        problems = []
        if self.metric not in PROMISE_METRICS:
            problems.append(f"promise metric {self.metric!r} is none of {', '.join(PROMISE_METRICS)}")
        if not (math.isfinite(self.limit_s) and self.limit_s > 0.0):
            problems.append(f"{self.metric} limit must be a positive time, got {self.limit_s!r}")
        if not 0.0 < self.quantile < 1.0:
            problems.append(f"{self.metric} quantile must lie in (0, 1), got {self.quantile!r}")
        if self.scope not in ("pool", "fleet"):
            problems.append(f"promise scope {self.scope!r} is neither pool nor fleet")
        if problems:
            raise InputError.from_problems(problems)

    @property
    def label(self) -> str:
        """How people write it, e.g. ``"P99 TTFT"``.

        >>> Promise("ttft_s", 0.5).label, Promise("e2e_s", 20.0, 0.999).label
        ('P99 TTFT', 'P99.9 E2E')
        """
        return f"P{100 * self.quantile:.10g} {self.metric.removesuffix('_s').upper()}"

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {"metric": self.metric, "limit_s": self.limit_s, "quantile": self.quantile, "scope": self.scope}


@dataclass(frozen=True, slots=True, init=False)
class Slo:
    """The promises a fleet keeps. ``Slo(ttft_s=0.5)`` is sugar for one P99 promise.

    Parameters
    ----------
    ttft_s, tpot_s, e2e_s
        Limits [s] at `quantile`; ``None`` = not promised.
    quantile
        Share of requests within each of these limits.
    promises
        Further promises, with their own quantiles and scopes.
    """

    promises: tuple[Promise, ...]

    def __init__(
        self,
        ttft_s: float | None = None,
        tpot_s: float | None = None,
        e2e_s: float | None = None,
        quantile: float = 0.99,
        promises: tuple[Promise, ...] = (),
    ) -> None:
        limits = {"ttft_s": ttft_s, "tpot_s": tpot_s, "e2e_s": e2e_s}
        sugar = tuple(Promise(metric, limit, quantile) for metric, limit in limits.items() if limit is not None)
        object.__setattr__(self, "promises", (*sugar, *promises))
        if not self.promises:
            raise InputError("no latency promise given", "Give at least one: --slo 0.5 (P99 TTFT), --tpot 50ms or --e2e 20s.")

    def of(self, metric: str) -> tuple[Promise, ...]:
        """The promises about one metric."""
        return tuple(p for p in self.promises if p.metric == metric)

    def to_dict(self) -> list[dict[str, object]]:
        """JSON-ready."""
        return [p.to_dict() for p in self.promises]
