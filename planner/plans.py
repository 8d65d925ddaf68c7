"""The answer: a plan, its pools, and what was searched."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from planner.choices import Choices
from planner.errors import InputError
from planner.machine.hardware import Parallelism
from planner.promise import Promise, Slo
from planner.shared.documents import load_document
from planner.shared.notebook import InNotebooks
from planner.shared.record import Record, json_number
from planner.shared.remarks import Remark
from planner.units import HOUR_S

HOURS_PER_YEAR = 8760.0
HOURS_PER_MONTH = HOURS_PER_YEAR / 12.0
"""Hours of a year and of a twelfth of it, as the FleetOpt paper and most price sheets count them."""

POOL_COLUMNS = (
    "low_tokens", "high_tokens", "gamma", "share", "arrival_rate_per_s", "gpu", "tp", "replicas", "gpus", "slots", "load",
    "slot_occupancy",
)  # fmt: skip
"""What a table of pools says of each, before its latencies."""


def plan_document(path: str | Path) -> dict[str, Any]:
    """What a plan file holds.

    Raises
    ------
    InputError
        It is none.
    """
    data = load_document(path, f"A plan: fleetopt plan --cdf azure --slo 0.5 -o {Path(path).name}")
    if not isinstance(data, dict) or data.get("kind") != Plan.document:
        raise InputError(f"{path}: holds no plan", "Make one: fleetopt plan --cdf azure --slo 0.5 -o plan.yaml")
    return data


@dataclass(frozen=True, slots=True)
class LatencyValue(Record):
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

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; shares are there of a joint promise only."""
        values = Record.to_dict(self)
        return values if self.share is not None else {k: v for k, v in values.items() if not k.startswith("share")}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings(Record):
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
        KV element dtype; ``"mixed"`` (prefill and decode share iterations), ``"exclusive"``, or ``"pooling"`` of a model
        that writes nothing.
    speculative
        How to speculate, as vLLM's ``--speculative-config`` takes it (JSON); empty = not at all.
    max_loras, max_lora_rank
        Adapters that it keeps, and their rank; 0 = none.
    reasons
        Setting -> why this value.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    tensor_parallel_size: int
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    expert_parallel_size: int = 1
    speculative: str = ""
    gpu_memory_utilization: float
    kv_cache_dtype: str
    batching: str
    max_loras: int = 0
    max_lora_rank: int = 0
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPool:
    """A pool as a plan file states it: what `evaluate`, `simulate` and `schedule` rebuild it from.

    Parameters
    ----------
    name
        As in the plan.
    low_tokens, high_tokens, gamma
        Requests served, compression into the pool.
    gpu, tp, profile, pp, dp, ep
        Replica; older plans state no pp, dp, ep: 1.
    replicas, spares
        Replicas bought, and how many of them are redundancy.
    slots, token_budget
        Engine settings.
    """

    name: str
    low_tokens: float
    high_tokens: float
    gamma: float
    gpu: str
    tp: int
    profile: str
    replicas: int
    spares: int
    slots: int
    token_budget: int = 0
    pp: int = 1
    dp: int = 1
    ep: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan(SavedPool, Record):
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
        How it spreads the model beyond that, see :class:`planner.machine.hardware.Parallelism`.
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
        The numbers that keep the promises with a chance of 10 and 90%; ``replicas_high`` is ``None`` where none does.
    warnings
        What the reader must know before trusting the numbers.
    reason
        `binding` for programs: its code and values.
    iteration
        Parameters of the iteration-time model it was planned with, see :class:`planner.machine.iteration.IterationModel`: with the
        digest of the requests all that a replay takes.
    """

    share: float
    compressed_share: float
    arrival_rate_per_s: float
    mean_input_tokens: float
    mean_output_tokens: float
    provenance: str
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
    iteration: Mapping[str, float] = field(default_factory=dict)

    written: ClassVar[tuple[str, ...]] = (
        "name", "low_tokens", "high_tokens", "gamma", "share", "compressed_share", "arrival_rate_per_s", "mean_input_tokens",
        "mean_output_tokens", "gpu", "tp", "pp", "dp", "ep", "profile", "provenance", "replicas", "replicas_low",
        "replicas_high", "spares", "gpus", "slots", "kv_tokens", "capacity_per_s", "load", "stability_margin",
        "slot_occupancy", "wait_probability", "overflow_probability", "preemptions_per_1000", "latency", "binding", "reason",
        "cost_usd_per_hour", "settings", "iteration", "warnings",
    )  # fmt: skip

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_budget", self.settings.max_num_batched_tokens)

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
        found = self.latency_at(metric, quantile)
        return None if found is None else found.value_s

    def latency_at(self, metric: str, quantile: float) -> LatencyValue | None:
        """What is predicted of one quantile; ``None`` when it is not reported."""
        return next((v for v in self.latency if v.metric == metric and abs(v.quantile - quantile) < 1e-12), None)


@dataclass(frozen=True, slots=True)
class SearchReport(Record):
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


@dataclass(frozen=True, slots=True)
class Alternative(Record):
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

    written: ClassVar[tuple[str, ...]] = ("shape", "cost_usd_per_hour", "pools", "reason")

    @property
    def cost_usd_per_hour(self) -> float | None:
        """Cost of the fleet [USD/hour]; ``None`` without pools."""
        return math.fsum(p.cost_usd_per_hour for p in self.pools) if self.pools else None


@dataclass(frozen=True, slots=True)
class Sized(Record):
    """A number of replicas and how sure it is.

    Parameters
    ----------
    chance
        Chance that every promise holds [1].
    replicas
        Replicas that serve, by pool; ``None`` where no number of them has that chance.
    gpus
        GPUs bought with them, spares included.
    cost_usd_per_hour
        Their cost [USD/hour].
    """

    chance: float
    replicas: tuple[int, ...] | None
    gpus: int | None = None
    cost_usd_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Narrowing(Record):
    """What would be known better, and what that would save at the same confidence.

    Parameters
    ----------
    by
        ``calibration`` of the engines, or a longer ``trace``.
    sd
        Standard deviation of the logarithm of iteration times, or of the critical speed between hours, that it would do away with
        or leave [1].
    gpus
        GPUs fewer.
    cost_usd_per_hour
        Cost saved [USD/hour].
    """

    by: str
    sd: float
    gpus: int
    cost_usd_per_hour: float


@dataclass(frozen=True, slots=True)
class Sureness(Record):
    """How sure it is that a fleet keeps its promises, and what other numbers of replicas would make of it.

    The errors of iteration times are log-normal and one for all pools of a GPU type; hours of the traffic are draws of the shifts
    by which copies of the trace are laid over each other.

    Parameters
    ----------
    confidence
        What the fleet was sized for [1].
    chance
        The chance it has [1].
    sd
        Standard deviation of the logarithm of iteration times [1].
    draws
        Draws of the traffic it rests on.
    deviations
        Standard deviations of the error of iteration times that the middle draw has to bear for that confidence.
    median, low, high
        The smallest fleets with a chance of at least 50, 10 and 90%.
    steps
        Numbers of replicas near the answer and their chances, fewest first.
    most
        The chance no number of replicas passes, as even idle engines may be too slow [1].
    narrowing
        What would narrow it, what saves most first.
    """

    confidence: float
    chance: float
    sd: float
    draws: int
    deviations: float
    median: Sized
    low: Sized
    high: Sized
    steps: tuple[Sized, ...]
    most: float
    narrowing: tuple[Narrowing, ...] = ()


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
        Latency method: ``mixed``, ``closed``, ``occupancy`` or ``mgc``.
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
    sureness
        How sure it is that the promises hold, and what other numbers of replicas would make of it; ``None`` = not known.
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
    sureness: Sureness | None = None
    caches: Mapping[str, object] | None = None
    overload: Mapping[str, object] | None = None
    compression: Mapping[str, object] | None = None
    scheduler: Mapping[str, object] | None = None

    schema_version: ClassVar[int] = 2
    document: ClassVar[str] = "fleetopt-plan"
    written: ClassVar[tuple[str, ...]] = (
        "inputs", "workload", "slo", "arrival_rate_per_s", "method", "replicas", "gpus", "cost_usd_per_hour",
        "cost_usd_per_year", "cost_usd_per_million_tokens", "baseline_cost_usd_per_hour", "saving", "shape", "alternatives",
        "sureness", "pools", "baseline", "search", "assumptions", "warnings", "notes", "explanation", "remarks",
        "choices", "caches", "overload", "compression", "scheduler",
    )  # fmt: skip
    shown: ClassVar[tuple[str, ...]] = (
        "shape", "pool", "gpu", "tp", "replicas", "gpus", "share", "load", "ttft_p99_s", "tpot_p99_s", "cost_usd_per_hour",
    )  # fmt: skip

    def __repr__(self) -> str:
        fleet = " + ".join(f"{p.replicas} x {p.parallel} {p.gpu}" for p in self.pools)
        return f"<Plan: {fleet}, ${self.cost_usd_per_hour:,.2f}/hour, {self.arrival_rate_per_s:g} requests/s>"

    def saying(self, first: bool = False, **more: Iterable[Remark]) -> Plan:
        """The plan with more `assumptions`, `warnings` or `notes`, behind those it has or in front of them."""
        told: dict[str, Any] = {"remarks": dict(self.remarks)}
        for kind, remarks in more.items():
            own, new = self.remarks.get(kind, ()), tuple(remarks)
            words, said = getattr(self, kind), tuple(map(str, new))
            told["remarks"][kind] = (*new, *own) if first else (*own, *new)
            told[kind] = (*said, *words) if first else (*words, *said)
        return replace(self, **told)

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
        return self.cost_usd_per_hour / (tokens * HOUR_S) * 1e6 if tokens > 0.0 else math.inf

    @property
    def baseline_cost_usd_per_hour(self) -> float | None:
        """Cost of the one-pool baseline [USD/hour]."""
        return None if self.baseline is None else math.fsum(p.cost_usd_per_hour for p in self.baseline)

    @property
    def saving(self) -> float:
        """Share of the one-pool cost saved, in [0, 1); 0 when one pool is the answer."""
        base = self.baseline_cost_usd_per_hour
        return 0.0 if not base else 1.0 - self.cost_usd_per_hour / base

    def to_rows(self) -> list[dict[str, object]]:
        """One flat row per pool, for CSV and data frames; with a column `shape` when shapes were compared."""
        rows = []
        listed = [(self.shape, p) for p in self.pools]
        listed += [(a.shape, p) for a in self.alternatives for p in a.pools]
        for shape, pool in listed:
            row: dict[str, object] = {"shape": shape} if self.alternatives else {}
            row |= {"pool": pool.name, **{name: getattr(pool, name) for name in POOL_COLUMNS}}
            for value in pool.latency:
                row[value.column] = json_number(value.value_s if value.share is None else value.share)
            row["cost_usd_per_hour"] = pool.cost_usd_per_hour
            row["binding"] = pool.binding
            rows.append(row)
        return rows
