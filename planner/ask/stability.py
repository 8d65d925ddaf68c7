"""What a replica and a fleet can sustain, with a certificate: which bound says so, and by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Unpack

import numpy as np

from planner.ask.options import ReplicaOptions
from planner.ask.replica import SchedulerReplica, scheduler_replica
from planner.errors import InputError, refuse_below_1
from planner.predict.bounds import MaxThroughput, max_throughput, mean_running
from planner.shared.arguments import spelled_out, told_types
from planner.shared.record import Record
from planner.shared.remarks import said
from planner.workload.importing import Frame
from planner.workload.workload import Workload

_CHUNKS = (128, 256, 512, 1024, 2048, 4096, 8192)
ENGINE_ERROR = 0.01
"""Error of the engine's maximum throughput against simulation, given the iteration times (18 of 18 within 0.7%)."""


@dataclass(frozen=True, slots=True)
class Bound(Record):
    """One statement about the largest sustainable rate.

    Parameters
    ----------
    name
        What it is about.
    kind
        ``"engine"`` (this engine with these settings), ``"achieved"`` (a scheduler that reaches it exists) or ``"limit"``
        (no scheduler exceeds it).
    replica_per_s, fleet_per_s
        Rate of one replica and of the fleet [1/s].
    load
        Arrival rate / fleet rate [1].
    because
        What it rests on.
    """

    name: str
    kind: str
    replica_per_s: float
    fleet_per_s: float
    load: float
    because: str


@dataclass(frozen=True, slots=True)
class Stability(Record):
    """Can this fleet keep up, and how is that known?

    Parameters
    ----------
    about
        Replica and traffic.
    replicas
        Replicas of the fleet [1].
    verdict
        ``"stable"``, ``"unstable"`` (this engine), or ``"impossible"`` (any scheduler).
    certificate
        One sentence: which bound, and the slack.
    slack
        1 - load of the engine's own limit [1].
    stable_within_band
        Whether the verdict holds if every iteration is longer or shorter by the profile's band.
    bounds
        All bounds, the deciding one first.
    burst
        Factor on the arrival rate asked about [1].
    busy_sequences
        Mean sequences running in one replica now [1]; the slots when overloaded.
    time_to_overload_s
        Until every slot is taken when the burst begins [s]; inf = the burst is sustained, 0 = overloaded already.
    growth_per_s
        Growth of the queue from then on [requests/s].
    recovery_s_per_s
        Seconds of recovery for every second of overload, after the burst [1]; inf when the fleet cannot recover.
    assumptions, warnings
        For the reader.
    """

    about: dict[str, Any]
    replicas: int
    verdict: str
    certificate: str
    slack: float
    stable_within_band: bool
    bounds: tuple[Bound, ...]
    burst: float
    busy_sequences: float
    time_to_overload_s: float
    growth_per_s: float
    recovery_s_per_s: float
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]

    versioned: ClassVar[bool] = True

    def __repr__(self) -> str:
        return f"<Stability: {self.verdict}, {self.certificate}>"

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per bound."""
        return [b.to_dict() for b in self.bounds]


@spelled_out
@told_types
def stability(
    workload: Workload | Frame | str | Path | None = None,
    *,
    replicas: int | None = None,
    burst: float = 2.0,
    **options: Unpack[ReplicaOptions],
) -> Stability:
    """What a replica and a fleet sustain: which bound says so, slack, time to overload.

    Parameters
    ----------
    workload, rate, gpu, model, tp, profile, token_budget, max_num_seqs
        As for :func:`plan`; one kind of replica.
    replicas
        Replicas of the fleet. Default: enough for a load of 0.85.
    burst
        Burst asked about, as a factor on the rate.

    Returns
    -------
    Stability
    """
    replica = scheduler_replica(workload, options)
    if not (math.isfinite(burst) and burst >= 1.0):
        raise InputError(f"burst: must be a factor of at least 1, got {burst!r}")
    refuse_below_1({"replicas": replicas})
    rate = replica.rate_per_s
    limit = max_throughput(replica.lengths, replica.engine)
    if limit.per_s <= 0.0 and replicas is None:
        raise InputError("no number of replicas sustains this workload: its longest prompt does not fit into KV memory")
    count = replicas or max(1, math.ceil(rate / (replica.utilization_cap * limit.per_s)))
    bounds = _bounds(replica, count, limit)
    engine = bounds[0]
    verdict, deciding, sure, text = _verdict(engine, bounds[-1], rate, replica.profile.band)
    busy = float(replica.slots)
    if rate < count * limit.per_s:
        step_s = float(mean_running(replica.lengths, replica.engine, rate / count)[1])
        busy = min(rate / count * step_s * (replica.mean_decodes + 1.0), busy)
    growth = max(0.0, burst * rate - engine.fleet_per_s)
    until = count * max(0.0, replica.slots - busy) / growth if growth > 0.0 else math.inf
    until = 0.0 if engine.load >= 1.0 else until
    spare, warnings = engine.fleet_per_s - rate, list(replica.warnings)
    if not sure:
        band = replica.profile.band
        ends = (engine.fleet_per_s / (1 + band), engine.fleet_per_s / max(1 - band, 0.05))
        warnings.append(said("stability_depends", band=band, low=ends[0], high=ends[1]))
    return Stability(
        about=replica.describe(),
        replicas=count,
        verdict=verdict,
        certificate=text,
        slack=1.0 - engine.load,
        stable_within_band=sure,
        bounds=tuple(sorted(bounds, key=lambda b: b is not deciding)),
        burst=burst,
        busy_sequences=busy,
        time_to_overload_s=until,
        growth_per_s=growth,
        recovery_s_per_s=growth / spare if spare > 0.0 else math.inf,
        assumptions=replica.assumptions(),
        warnings=tuple(warnings),
    )


def _bounds(replica: SchedulerReplica, count: int, limit: MaxThroughput) -> list[Bound]:
    """The engine's own limit first, then what separate batches reach, and last what no scheduler exceeds."""

    def bound(name: str, kind: str, per_s: float, because: str) -> Bound:
        fleet = count * per_s
        return Bound(name, kind, per_s, fleet, replica.rate_per_s / fleet if fleet > 0.0 else math.inf, because)

    batch, tile = replica.slots, max(1, replica.profile.iteration.tau)
    work, chunk = min((_separate_work(replica, c, batch), c) for c in _CHUNKS)
    binding, hard = said(f"bound_by_{limit.binding}"), said("bound_of_any")
    own, why = said("bound_engine_name", budget=replica.token_budget), {"binding": binding, "error": ENGINE_ERROR}
    bounds = [
        bound(own, "engine", limit.per_s, said("bound_engine", **why)),
        bound(said("bound_apart_name", chunk=chunk), "achieved", 1.0 / work, said("bound_apart", batch=batch)),
    ]
    if tile > 1:
        per_s = 1.0 / _separate_work(replica, tile, min(tile, replica.slots))
        bounds.append(bound(f"RAD of the paper, t_col = {tile}", "achieved", per_s, said("bound_tiles")))
    return [*bounds, bound("any scheduler on this memory", "limit", 1.0 / _least_work(replica), hard)]


def _verdict(engine: Bound, hard: Bound, rate: float, band: float) -> tuple[str, Bound, bool, str]:
    """Verdict, the bound that decides, whether it holds all over the profile's band, and the certificate."""
    most = {"rate": rate, "load": engine.load, "limit": engine.fleet_per_s}
    if hard.load > 1.0:
        text = said("overload_proven", rate=rate, load=hard.load, limit=hard.fleet_per_s)
        return "impossible", hard, hard.load * (1.0 - band) > 1.0, text
    if engine.load < 1.0:
        sure = engine.load * (1.0 + band) * (1.0 + ENGINE_ERROR) < 1.0
        return "stable", engine, sure, said("stable", **most, slack=1.0 - engine.load)
    sure = engine.load * (1.0 - band) > 1.0 + ENGINE_ERROR
    return "unstable", engine, sure, said("unstable", **most, growth=rate - engine.fleet_per_s)


def _separate_work(replica: SchedulerReplica, chunk: int, batch: int) -> float:
    """Time per request of RAD's rule: prompts in chunks, one at a time; decodes in full batches [s/request]."""
    time = replica.profile.iteration.time
    L = replica.workload.input_tokens
    full = np.floor(L / chunk)
    rest = L - full * chunk
    # sum over full chunks of the pairs, chunk (p_j + (chunk + 1)/2), p_j = j chunk; attention is linear in the pairs
    pairs = full * chunk * 0.5 * (chunk + 1.0) + chunk * chunk * 0.5 * full * (full - 1.0)
    per_chunk = time(0.0, 0.0, float(chunk), 0.0)
    model = replica.profile.iteration
    prefill = full * per_chunk + model.a * pairs
    prefill += np.where(rest > 0.0, time(0.0, 0.0, rest, rest * (full * chunk + 0.5 * (rest + 1.0))), 0.0)
    n = float(max(1, batch))
    decode = float(time(n, n * replica.context, context_max=replica.context)) / n
    return replica.mean(np.asarray(prefill, dtype=np.float64)) + replica.mean_decodes * decode


def _least_work(replica: SchedulerReplica) -> float:
    r"""Time per request below which no scheduler on this memory gets [s/request].

    Decode contexts of one iteration fit into M tokens, so a request needs at least E[KV]/M iterations of its own share:
    :math:`i t_0 + \max(i w, b(L+D)) + c(L+D) + hD + gKV + aA`, i = E[KV]/M.
    """
    m = replica.profile.iteration
    tokens = replica.workload.mean_input + replica.mean_decodes
    i = replica.kv_iterations / replica.kv_tokens if replica.kv_tokens > 0.0 else math.inf
    work = i * m.t0 + max(i * m.w, m.b * tokens) + m.c * tokens
    return work + m.h * replica.mean_decodes + m.g * replica.kv_iterations + m.a * replica.pairs
