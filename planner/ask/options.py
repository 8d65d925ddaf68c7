"""The options that verbs take beside their own, as types: written from their table by ``python tools/signatures.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from planner.promise import Slo


class PlanOptions(TypedDict, total=False):
    """Options of a plan, whose meaning :func:`planner.ask.plan.plan` tells; ``None`` is none."""

    # options
    rate: float | str | None
    throughput: float | str | None
    users: int | str | None
    think_time: str | None
    requests_per_hour: float | str | None
    concurrency: int | str | None
    rate_is: Literal["mean", "peak"] | None
    headroom: float | str | None
    isl: int | str | None
    osl: int | str | None
    isl_spread: float | str | None
    osl_spread: float | str | None
    drop_longer_than: int | str | None
    osl_scale: float | str | None
    images: int | str | None
    image_size: str | None
    windows: float | str | None
    ttft: float | str | Sequence[float | str] | None
    tpot: float | str | Sequence[float | str] | None
    e2e: float | str | Sequence[float | str] | None
    goodput: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None
    quantile: float | str | None
    scope: Literal["pool", "fleet"] | None
    confidence: float | str | None
    gpu: str | Sequence[str] | None
    model: str | None
    like: str | None
    weights: Literal["bf16", "fp8", "fp4", "int4"] | None
    kv_dtype: Literal["bf16", "fp8"] | None
    tp: int | str | Sequence[int] | None
    pp: int | str | None
    dp: int | str | None
    ep: int | str | None
    speculate: str | Mapping[str, Any] | None
    engine: str | None
    api_overhead: float | str | None
    request_time: float | str | None
    lora: int | str | None
    lora_rank: int | str | None
    profile: str | None
    method: Literal["mixed", "closed", "occupancy", "mgc"] | None
    kv: Literal["paged", "reserved", "both"] | None
    routing: (
        Literal[
            "auto",
            "random",
            "rr",
            "round-robin",
            "p2c",
            "envoy",
            "least",
            "jsq",
            "least-requests",
            "sticky",
            "prefix",
        ]
        | None
    )
    utilization_cap: float | str | None
    pools: int | str | None
    boundaries: float | str | Sequence[float] | None
    gammas: float | str | Sequence[float] | None
    p_c: float | str | None
    route_on: Literal["input", "total"] | None
    scheduler: Literal["engine", "sarathi", "eb", "slai", "wait", "rad"] | None
    compress: bool | str | Mapping[str, Any] | None
    cpu_price: float | str | None
    token_budget: int | str | Sequence[int] | None
    max_num_seqs: int | str | Sequence[int] | None
    max_model_len: int | str | None
    max_output: int | str | None
    chunk: int | str | None
    memory_utilization: float | str | None
    cached_share: float | str | Mapping[str, float | str] | None
    shared_prefix: int | str | None
    prefix_cache: Literal["on", "off"] | None
    session_ttl: float | str | None
    offload: float | str | None
    offload_gbps: float | str | None
    offload_disk: float | str | None
    offload_disk_gbps: float | str | None
    write_through: bool | None
    max_queue: int | str | None
    max_queued_tokens: int | str | None
    client_timeout: float | str | None
    retries: int | str | None
    retry_after: float | str | None
    burst: str | None
    surge: str | None
    in_flight: int | str | None
    law: bool | None
    growth: Literal["users", "use"] | None
    min_replicas: int | str | None
    redundancy: int | str | None
    availability_target: float | str | None
    failures_per_hour: float | str | None
    repair_hours: float | str | None
    inventory: Mapping[str, int] | None
    max_kw: float | str | None
    price: Mapping[str, float] | None
    spot_price: Mapping[str, float] | None
    spot_share: float | str | None
    max_evaluations: int | str | None
    shape: Literal["colocated", "disaggregated", "both"] | None
    kv_transfer_gbps: float | str | None
    kv_transfer_base: float | str | None
    kv_transfer_layerwise: bool | None
    prefill_queue: int | str | None


class ReplicaOptions(TypedDict, total=False):
    """Options of a plan that say what one kind of replica is, and how much comes to it."""

    rate: float | str | None
    gpu: str | None
    model: str | None
    tp: int | str | None
    profile: str | None
    token_budget: int | str | None
    max_num_seqs: int | str | None


class OwnOptions(PlanOptions, total=False):
    """The same and the promises, for verbs that do not name these themselves."""

    slo: Slo | float | str | Sequence[float | str] | None
