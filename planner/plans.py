"""The answer: a plan, its pools, and what was searched."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from planner.choices import Choices
from planner.hardware import Parallelism
from planner.notebook import InNotebooks
from planner.promise import Promise, Slo
from planner.remarks import Remark

HOURS_PER_YEAR = 8760.0
"""Hours of a year as the FleetOpt paper and most price sheets count them."""

PLAN_SCHEMA_VERSION = 1
"""Version of the JSON and YAML form of a plan."""


@dataclass(frozen=True, slots=True)
class LatencyValue:
    """One predicted latency quantile and how far to trust it.

    Parameters
    ----------
    metric, quantile
        As in :class:`Promise`.
    value_s
        Prediction [s]; ``inf`` when the pool is unstable.
    low_s, high_s
        Band of the truth given the method's measured error and the profile's [s].
    limit_s
        The promise it is held against [s]; ``None`` = reported only.
    share, share_low, share_high
        Of a joint promise: share of the pool's requests within all its limits, and the band of that [1]; else ``None``.
    """

    metric: str
    quantile: float
    value_s: float
    low_s: float
    high_s: float
    limit_s: float | None = None
    share: float | None = None
    share_low: float | None = None
    share_high: float | None = None

    @property
    def label(self) -> str:
        """How people write it, e.g. ``"P99 TTFT"``."""
        return Promise(self.metric, self.limit_s or 1.0, self.quantile).label

    @property
    def column(self) -> str:
        """Its name in a table, e.g. ``"ttft_p99_s"``; of a joint promise that of its share."""
        return Promise(self.metric, self.limit_s or 1.0, self.quantile).column

    @property
    def slack_s(self) -> float | None:
        """Limit minus prediction [s]."""
        return None if self.limit_s is None else self.limit_s - self.value_s

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "metric": self.metric,
            "quantile": self.quantile,
            "value_s": json_number(self.value_s),
            "low_s": json_number(self.low_s),
            "high_s": json_number(self.high_s),
            "limit_s": self.limit_s,
            **(
                {}
                if self.share is None
                else {"share": self.share, "share_low": self.share_low, "share_high": self.share_high}
            ),
        }


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the engines of a pool are to be started, in the words of vLLM, each with its reason.

    Parameters
    ----------
    max_model_len
        Longest request admitted, input + output [tokens].
    max_num_seqs
        Sequences a replica runs at once.
    max_num_batched_tokens
        Token budget of one iteration [tokens].
    tensor_parallel_size, pipeline_parallel_size, data_parallel_size, expert_parallel_size
        How a replica spreads the model: GPUs of a tensor-parallel group, stages, copies of the attention (sequences and token
        budget are each copy's), GPUs of a stage that share out whole experts.
    gpu_memory_utilization
        Share of GPU memory the engine may take.
    kv_cache_dtype, batching
        KV element dtype; ``"mixed"`` (prefill and decode share iterations) or ``"exclusive"``.
    speculative
        How to speculate, as vLLM's ``--speculative-config`` takes it (JSON); empty = not at all.
    reasons
        Setting -> why this value.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    tensor_parallel_size: int
    gpu_memory_utilization: float
    kv_cache_dtype: str
    batching: str
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    expert_parallel_size: int = 1
    speculative: str = ""
    reasons: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "tensor_parallel_size": self.tensor_parallel_size,
            "pipeline_parallel_size": self.pipeline_parallel_size,
            "data_parallel_size": self.data_parallel_size,
            "expert_parallel_size": self.expert_parallel_size,
            "speculative": self.speculative,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "kv_cache_dtype": self.kv_cache_dtype,
            "batching": self.batching,
            "reasons": dict(self.reasons),
        }


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One pool of a plan: who is served there, by what, and how well.

    Parameters
    ----------
    name
        ``"all"``, ``"short"``, ``"long"`` or ``"pool 2"``.
    low_tokens, high_tokens
        Serves requests with ``low < input <= high`` [tokens], of input and output together where ``route_on`` is total.
    gamma
        Requests up to ``gamma * high_tokens`` are compressed into this pool; 1 = none.
    share, compressed_share
        Fraction of all requests served here; fraction of all requests compressed into here.
    arrival_rate_per_s
        Rate of the pool [1/s].
    gpu, tp, profile, provenance
        What a replica is: GPU id, GPUs of a tensor-parallel group, profile name, ``measured`` | ``fitted`` | ``estimated``.
    pp, dp, ep
        How it spreads the model beyond that, see :class:`planner.hardware.Parallelism`.
    replicas, gpus, spares
        Replicas, GPUs bought (``replicas * tp * pp * dp``), and how many of the replicas are redundancy.
    slots
        Sequences a replica decodes at once.
    kv_tokens
        KV-cache capacity of a replica [tokens].
    capacity_per_s
        Largest stable rate of one replica [1/s].
    load
        Rate over capacity without the spares in use for load, i.e. ``arrival_rate / (replicas * capacity)``.
    slot_occupancy
        Mean busy slots / slots.
    wait_probability
        Probability that an arrival finds no free slot.
    overflow_probability, preemptions_per_1000
        Share of iterations in which all slots busy would not fit in memory; predicted preemptions per 1,000 requests.
    latency
        Predicted quantiles, promised ones with their limit.
    binding
        What fixes the number of replicas, in words.
    cost_usd_per_hour
        Cost of the pool [USD/hour].
    settings
        Engine settings with reasons.
    replicas_low, replicas_high
        The number if iterations took as little or as much time as the profile's band allows; ``replicas_high`` is
        ``None`` where no number would keep the promises at the slow end.
    warnings
        What the reader must know before trusting the numbers.
    reason
        `binding` for programs: its code and values.
    """

    name: str
    low_tokens: float
    high_tokens: float
    gamma: float
    share: float
    compressed_share: float
    arrival_rate_per_s: float
    mean_input_tokens: float
    mean_output_tokens: float
    gpu: str
    tp: int
    profile: str
    provenance: str
    replicas: int
    spares: int
    slots: int
    kv_tokens: float
    capacity_per_s: float
    load: float
    slot_occupancy: float
    wait_probability: float
    overflow_probability: float
    preemptions_per_1000: float
    latency: tuple[LatencyValue, ...]
    binding: str
    cost_usd_per_hour: float
    settings: EngineSettings
    replicas_low: int = 0
    replicas_high: int | None = 0
    warnings: tuple[str, ...] = ()
    reason: Remark | None = None
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def parallel(self) -> Parallelism:
        """How a replica spreads the model."""
        return Parallelism(self.tp, self.pp, self.dp, self.ep)

    @property
    def gpus(self) -> int:
        """GPUs bought."""
        return self.replicas * self.parallel.gpus

    @property
    def stability_margin(self) -> float:
        """``1 - load``: how much of the capacity is unused."""
        return 1.0 - self.load

    def quantile(self, metric: str, quantile: float) -> float | None:
        """The predicted value of one metric at one quantile [s], or ``None``."""
        for value in self.latency:
            if value.metric == metric and abs(value.quantile - quantile) < 1e-12:
                return value.value_s
        return None

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "name": self.name,
            "low_tokens": self.low_tokens,
            "high_tokens": self.high_tokens,
            "gamma": self.gamma,
            "share": self.share,
            "compressed_share": self.compressed_share,
            "arrival_rate_per_s": self.arrival_rate_per_s,
            "mean_input_tokens": self.mean_input_tokens,
            "mean_output_tokens": self.mean_output_tokens,
            "gpu": self.gpu,
            "tp": self.tp,
            "pp": self.pp,
            "dp": self.dp,
            "ep": self.ep,
            "profile": self.profile,
            "provenance": self.provenance,
            "replicas": self.replicas,
            "replicas_low": self.replicas_low,
            "replicas_high": self.replicas_high,
            "spares": self.spares,
            "gpus": self.gpus,
            "slots": self.slots,
            "kv_tokens": json_number(self.kv_tokens),
            "capacity_per_s": json_number(self.capacity_per_s),
            "load": self.load,
            "stability_margin": self.stability_margin,
            "slot_occupancy": self.slot_occupancy,
            "wait_probability": self.wait_probability,
            "overflow_probability": self.overflow_probability,
            "preemptions_per_1000": self.preemptions_per_1000,
            "latency": [v.to_dict() for v in self.latency],
            "binding": self.binding,
            "reason": None if self.reason is None else self.reason.to_dict(),
            "cost_usd_per_hour": self.cost_usd_per_hour,
            "settings": self.settings.to_dict(),
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, slots=True)
class SearchReport:
    """What was searched and what is left unproven.

    Parameters
    ----------
    candidates
        Fleets in the stated grid.
    examined
        Fleets evaluated with the reporting method; the others cost at least `lower_bound_usd_per_hour`.
    lower_bound_usd_per_hour
        No fleet of the grid costs less [USD/hour].
    gap_usd_per_hour
        Cost of the answer minus the lower bound; 0 = proven optimal over the grid.
    description
        The grid in words.
    """

    candidates: int
    examined: int
    lower_bound_usd_per_hour: float
    gap_usd_per_hour: float
    description: str

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "candidates": self.candidates,
            "examined": self.examined,
            "lower_bound_usd_per_hour": self.lower_bound_usd_per_hour,
            "gap_usd_per_hour": self.gap_usd_per_hour,
            "description": self.description,
        }


@dataclass(frozen=True, slots=True)
class Alternative:
    """The fleet of another shape, for comparison.

    Parameters
    ----------
    shape
        ``"colocated"`` or ``"disaggregated"``.
    pools
        Its pools; empty when it does not keep the promises.
    reason
        Why it has no pools.
    """

    shape: str
    pools: tuple[PoolPlan, ...]
    reason: str | None = None

    @property
    def cost_usd_per_hour(self) -> float | None:
        """Cost of the fleet [USD/hour]; ``None`` without pools."""
        return math.fsum(p.cost_usd_per_hour for p in self.pools) if self.pools else None

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "shape": self.shape,
            "cost_usd_per_hour": self.cost_usd_per_hour,
            "pools": [p.to_dict() for p in self.pools],
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Oracle:
    """The cheapest fleet of a gateway that knows output lengths and rewrites prompts, beside a plan that asks for neither.

    Parameters
    ----------
    cost_usd_per_hour
        What it would cost; a guess where `pools` is empty [USD/hour].
    saving
        Share of the plan's cost that it would save [1]; negative where it would cost more.
    boundary_tokens, gamma
        Where it cuts, and how far above that prompts are compressed [tokens, 1].
    compressed_share
        Share of all requests whose prompt is rewritten [1].
    p_c
        Probability that a prompt of the band can be compressed; ``None`` = by category.
    pools
        Its pools, where it is cheaper.
    """

    cost_usd_per_hour: float
    saving: float
    boundary_tokens: float
    gamma: float
    compressed_share: float
    p_c: float | None
    pools: tuple[PoolPlan, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "cost_usd_per_hour": self.cost_usd_per_hour,
            "saving": self.saving,
            "boundary_tokens": self.boundary_tokens,
            "gamma": self.gamma,
            "compressed_share": self.compressed_share,
            "p_c": self.p_c,
            "guess": not self.pools,
            "pools": [p.to_dict() for p in self.pools],
        }


@dataclass(frozen=True, slots=True)
class Plan(InNotebooks):
    """The cheapest fleet found, with everything needed to trace, check and re-run it.

    Parameters
    ----------
    pools
        The fleet, shortest requests first.
    baseline
        The best fleet of one pool without compression; ``None`` when that is the answer itself.
    inputs
        The question, in the options' own names: valid as a configuration file.
    workload
        Summary of the traffic (name, source, requests, means, burstiness).
    method
        Latency method: ``mixed``, ``occupancy`` or ``mgc``.
    assumptions, warnings, notes
        Made on the user's behalf; to be read before buying; findings worth knowing.
    search
        What was searched.
    explanation
        What binds, what one step more or less would change.
    shape
        ``"colocated"`` (every replica prefills and decodes) or ``"disaggregated"`` (a prefill and a decode pool).
    alternatives
        Fleets of other shapes that were asked for beside this one.
    remarks
        `assumptions`, `warnings` and `notes` for programs: the codes and values the sentences are made of.
    choices
        What other choices would cost; ``None`` where that was not asked for.
    chance
        Chance that the least sure promise holds, given the errors of profile, method and sample [1]; ``None`` = not known.
    oracle
        What a gateway that knows outputs and compresses prompts would take; ``None`` where that was not asked or is the plan.
    caches
        By pool, what prefix caches find of sessions, and the curve of it by routing and replicas; ``None`` without sessions.
    overload
        By pool, what happens beyond its capacity under the limits stated, and the limit that keeps its TTFT promise; ``None`` where
        no limit of a queue and no patience is stated.
    compression
        What the compressor costs and how the plan's cost moves with p_c and gamma; ``None`` where none was measured.
    scheduler
        By pool, what a scheduler other than the engine's own sustains and takes; ``None`` for the engine's own.
    """

    pools: tuple[PoolPlan, ...]
    baseline: tuple[PoolPlan, ...] | None
    inputs: Mapping[str, object]
    workload: Mapping[str, object]
    slo: Slo
    arrival_rate_per_s: float
    method: str
    search: SearchReport
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    explanation: tuple[str, ...] = ()
    version: str = ""
    shape: str = "colocated"
    alternatives: tuple[Alternative, ...] = ()
    remarks: Mapping[str, tuple[Remark, ...]] = field(default_factory=dict)
    choices: Choices | None = None
    oracle: Oracle | None = None
    chance: float | None = None
    caches: Mapping[str, object] | None = None
    overload: Mapping[str, object] | None = None
    compression: Mapping[str, object] | None = None
    scheduler: Mapping[str, object] | None = None

    shown: ClassVar[tuple[str, ...]] = (
        "shape", "pool", "gpu", "tp", "replicas", "gpus", "share", "load", "ttft_p99_s", "tpot_p99_s", "cost_usd_per_hour",
    )  # fmt: skip

    def __repr__(self) -> str:
        fleet = " + ".join(f"{p.replicas} x {p.parallel} {p.gpu}" for p in self.pools)
        return f"<Plan: {fleet}, ${self.cost_usd_per_hour:,.2f}/hour, {self.arrival_rate_per_s:g} requests/s>"

    @property
    def replicas(self) -> int:
        """Replicas of all pools."""
        return sum(p.replicas for p in self.pools)

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return sum(p.gpus for p in self.pools)

    @property
    def cost_usd_per_hour(self) -> float:
        """Cost of the fleet [USD/hour]."""
        return math.fsum(p.cost_usd_per_hour for p in self.pools)

    @property
    def cost_usd_per_year(self) -> float:
        """Cost of the fleet, 8,760 hours [USD/year]."""
        return HOURS_PER_YEAR * self.cost_usd_per_hour

    @property
    def cost_usd_per_million_tokens(self) -> float:
        """Cost per million tokens served, input and output together, at the planned rate [USD]."""
        tokens = math.fsum(p.arrival_rate_per_s * (p.mean_input_tokens + p.mean_output_tokens) for p in self.pools)
        return self.cost_usd_per_hour / (tokens * 3600.0) * 1e6 if tokens > 0.0 else math.inf

    @property
    def baseline_cost_usd_per_hour(self) -> float | None:
        """Cost of the one-pool baseline [USD/hour]."""
        return None if self.baseline is None else math.fsum(p.cost_usd_per_hour for p in self.baseline)

    @property
    def saving(self) -> float:
        """Share of the one-pool cost saved, in [0, 1); 0 when one pool is the answer."""
        base = self.baseline_cost_usd_per_hour
        return 0.0 if not base else 1.0 - self.cost_usd_per_hour / base

    def to_dict(self) -> dict[str, object]:
        """JSON-ready; the contract of ``--format json``, with its version."""
        return {
            "schema_version": PLAN_SCHEMA_VERSION,
            "kind": "fleetopt-plan",
            "version": self.version,
            "inputs": dict(self.inputs),
            "workload": dict(self.workload),
            "slo": self.slo.to_dict(),
            "arrival_rate_per_s": self.arrival_rate_per_s,
            "method": self.method,
            "replicas": self.replicas,
            "gpus": self.gpus,
            "cost_usd_per_hour": self.cost_usd_per_hour,
            "cost_usd_per_year": self.cost_usd_per_year,
            "cost_usd_per_million_tokens": json_number(self.cost_usd_per_million_tokens),
            "baseline_cost_usd_per_hour": self.baseline_cost_usd_per_hour,
            "saving": self.saving,
            "shape": self.shape,
            "alternatives": [a.to_dict() for a in self.alternatives],
            "chance": self.chance,
            "oracle": None if self.oracle is None else self.oracle.to_dict(),
            "pools": [p.to_dict() for p in self.pools],
            "baseline": None if self.baseline is None else [p.to_dict() for p in self.baseline],
            "search": self.search.to_dict(),
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "explanation": list(self.explanation),
            "remarks": {kind: [r.to_dict() for r in of_kind] for kind, of_kind in self.remarks.items()},
            "choices": None if self.choices is None else self.choices.to_dict(),
            "caches": self.caches,
            "overload": self.overload,
            "compression": self.compression,
            "scheduler": self.scheduler,
        }

    def to_rows(self) -> list[dict[str, object]]:
        """One flat row per pool, for CSV and data frames; with a column `shape` when shapes were compared."""
        rows = []
        listed = [(self.shape, p) for p in self.pools]
        listed += [(a.shape, p) for a in self.alternatives for p in a.pools]
        for shape, pool in listed:
            row: dict[str, object] = {"shape": shape} if self.alternatives else {}
            row |= {
                "pool": pool.name,
                "low_tokens": pool.low_tokens,
                "high_tokens": pool.high_tokens,
                "gamma": pool.gamma,
                "share": pool.share,
                "arrival_rate_per_s": pool.arrival_rate_per_s,
                "gpu": pool.gpu,
                "tp": pool.tp,
                "replicas": pool.replicas,
                "gpus": pool.gpus,
                "slots": pool.slots,
                "load": pool.load,
                "slot_occupancy": pool.slot_occupancy,
            }
            for value in pool.latency:
                row[value.column] = json_number(value.value_s if value.share is None else value.share)
            row["cost_usd_per_hour"] = pool.cost_usd_per_hour
            row["binding"] = pool.binding
            rows.append(row)
        return rows


def json_number(value: float) -> float | None:
    """`value`, or ``None`` where JSON has no number for it (inf, nan).

    >>> json_number(1.5), json_number(float("inf"))
    (1.5, None)
    """
    return value if math.isfinite(value) else None
