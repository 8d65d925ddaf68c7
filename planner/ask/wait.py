"""Settings of WAIT and Nested WAIT for a workload: thresholds, memory, segments, what they promise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Unpack

import numpy as np

from planner.ask.options import ReplicaOptions
from planner.ask.replica import SchedulerReplica, scheduler_replica
from planner.errors import InputError, refuse_below_1
from planner.fluid import nested_wait as nested
from planner.fluid import wait as fluid
from planner.machine.derived import wait_parameters
from planner.shared.arguments import spelled_out, told_types
from planner.shared.record import Record, json_number, taken
from planner.shared.remarks import said
from planner.units import parse_duration, parse_fraction
from planner.workload.importing import Frame
from planner.workload.workload import Workload

NESTED = ("segments", "ends", "thresholds=thresholds.n", "iteration_s=thresholds.dT", "memory_tokens=memory")
"""What is told of the segments of Nested WAIT, and where it lies."""

_LENGTHS = 48
"""Output lengths the segment design starts from: quantiles of the workload, so that 300 rows do not make 300 queues."""


@dataclass(frozen=True, slots=True)
class WaitSettings(Record):
    """Thresholds of WAIT (output lengths known) and Nested WAIT (not known) for one replica.

    Parameters
    ----------
    about
        Replica and traffic.
    replicas
        Replicas that share the rate [1].
    d0_s, d1_s_per_token
        Iteration time d0 + d1 M used.
    form_error
        Largest relative difference between that line and the iteration model on the range used [1].
    equilibrium
        Fluid memory [tokens], iteration time [s], slack 1 - d1 S [1], load scale (how much the rate may grow) [1].
    types
        One row per output class: input, output [tokens], rate [1/s], threshold [1], mean queue, TTFT and latency at most.
    memory_tokens, fits
        M^pi of WAIT [tokens] and whether it is within the KV memory.
    nested
        Segments, their ends, thresholds, memory with probability 1 - delta over the horizon, whether it fits; ``None`` at
        overload.
    verdict
        ``"stable"``, ``"memory too small"`` or ``"overload"``.
    reason
        One sentence.
    assumptions, warnings
        For the reader.
    """

    about: dict[str, Any]
    replicas: int
    d0_s: float
    d1_s_per_token: float
    form_error: float
    equilibrium: dict[str, Any]
    types: tuple[dict[str, Any], ...]
    memory_tokens: float | None
    fits: bool
    nested: dict[str, Any] | None
    verdict: str
    reason: str
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]

    versioned: ClassVar[bool] = True

    def __repr__(self) -> str:
        return f"<WaitSettings: {self.verdict}, {len(self.types)} output classes>"

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per output class."""
        return [dict(t) for t in self.types]


def _classes(replica: SchedulerReplica, count: int) -> list[tuple[float, float, float]]:
    """(share, input, decode iterations) of classes of about equal share, by output length.

    The input is the class's mean, the decode iterations those that keep its mean work W: with mean lengths alone the load
    of long outputs would be lost.
    """
    order = np.argsort(replica.decodes, kind="stable")
    weight = replica.workload.weight[order]
    # the class of a row is that of its middle, so that equal shares stay equal whatever the rows
    middle = np.cumsum(weight) - 0.5 * weight
    index = np.minimum((middle * count).astype(np.int64), count - 1)
    result = []
    for j in range(count):
        rows = order[index == j]
        share = float(replica.workload.weight[rows].sum())
        if share <= 0.0:
            continue
        w = replica.workload.weight[rows] / share
        l, mean_work = float(w @ replica.workload.input_tokens[rows]), float(w @ replica.work[rows])
        # (o + 1)(l + o/2) = W
        excess = max(0.0, mean_work - l)
        o = 2.0 * excess / (l + 0.5 + math.sqrt((l + 0.5) ** 2 + 2.0 * excess)) if excess else 0.0
        result.append((share, l, o))
    return result


def _round(value: float) -> float:
    # lengths and rates to nine digits: exact rational arithmetic on them stays small
    return float(f"{value:.9g}")


def _check_asked(replicas: int | None, types: int | None, segments: int | None, horizon_s: float, delta: float) -> None:
    """Numbers of at least one, a time, and a probability."""
    refuse_below_1({"types": types, "replicas": replicas, "segments": segments})
    if not (math.isfinite(horizon_s) and horizon_s > 0.0):
        raise InputError(f"horizon: must be a positive time, got {horizon_s!r}")
    if not 0.0 < delta < 1.0:
        raise InputError(f"delta: must lie between 0 and 1, got {delta!r}")


@spelled_out
@told_types
def wait(
    workload: Workload | Frame | str | Path | None = None,
    *,
    replicas: int | None = None,
    types: int | None = None,
    segments: int | None = None,
    horizon: float | str = "1h",
    delta: float | str = 0.01,
    **options: Unpack[ReplicaOptions],
) -> WaitSettings:
    """Thresholds of WAIT and Nested WAIT: how many requests to wait for, the memory they need, what they promise.

    Parameters
    ----------
    workload, rate, gpu, model, tp, profile, token_budget, max_num_seqs
        As for :func:`plan`; one kind of replica.
    replicas
        Replicas that share the rate. Default: enough for 0.85 of capacity.
    types
        Output classes of WAIT. Default: up to four, as memory allows.
    segments
        Segments of Nested WAIT. Default: those with the least memory.
    horizon
        Time the memory promise covers, e.g. 1h [s].
    delta
        Probability that memory is exceeded in that time, e.g. 1%.

    Returns
    -------
    WaitSettings
    """
    horizon_s, risk = parse_duration(horizon, "--horizon"), parse_fraction(delta, "--delta")
    replica = scheduler_replica(workload, options)
    _check_asked(replicas, types, segments, horizon_s, risk)
    C = replica.kv_tokens
    mean_L, mean_D = max(1.0, replica.workload.mean_input), max(1.0, replica.mean_decodes)
    derived = wait_parameters(
        replica.profile.iteration, mean_L, mean_D, (max(1.0, min(mean_L, C / 16.0)), max(C, 16.0))
    )
    d0, d1 = _round(max(derived["d0"], 1e-9)), _round(max(derived["d1"], 0.0))
    # one prefill-only type with the mean work has the same S
    work = _round(replica.mean(replica.work))
    growth = fluid.load_scale_max([(_round(replica.rate_per_s), work, 0)], d0, d1, C)
    count = replicas or max(1, math.ceil(1.0 / (replica.utilization_cap * growth)))
    rate = replica.rate_per_s / count
    total = [(_round(rate), work, 0)]
    fluid_state, scale = fluid.fluid_equilibrium(total, d0, d1), fluid.load_scale_max(total, d0, d1, C)

    own, found = _classes_that_fit(replica, rate, types, d0, d1)
    warnings = list(replica.warnings)
    if derived.form_error > 0.2:
        warnings.append(said("wait_strays", error=derived.form_error))
    asked = {"horizon_s": horizon_s, "delta": risk}
    design = _nested(replica, rate, d0, d1, segments, horizon_s, risk) if found.stable else None
    verdict, reason = _verdict(found, fluid_state, scale, rate, C)
    return WaitSettings(
        about=replica.describe(),
        replicas=count,
        d0_s=d0,
        d1_s_per_token=d1,
        form_error=derived.form_error,
        equilibrium=taken(fluid_state, ("memory_tokens=M", "iteration_s=dT", "slack"))
        | {"load_scale": json_number(scale), "output_tokens_per_s": rate * replica.mean_decodes},
        types=_rows(own, found, d0, d1),
        memory_tokens=json_number(found.M_pi),
        fits=found.stable and found.fits,
        nested=None if design is None else taken(design, NESTED) | {"fits": design.memory <= C, **asked},
        verdict=verdict,
        reason=reason,
        assumptions=(
            *replica.assumptions(),
            said("wait_classes", replicas=count, rate=rate, classes=len(own)),
            said("nested_rounded"),
        ),
        warnings=tuple(warnings),
    )


_Class = tuple[float, float, float]
"""Rate [1/s], input [tokens] and decode iterations of a class of outputs."""


def _classes_that_fit(
    replica: SchedulerReplica, rate: float, types: int | None, d0: float, d1: float
) -> tuple[list[_Class], fluid.WaitThresholds]:
    """The classes and their thresholds: as many as asked for, or the most that are stable and fit into memory."""

    def with_thresholds(count: int) -> tuple[list[_Class], fluid.WaitThresholds]:
        rows = [(_round(rate * share), _round(l), _round(o)) for share, l, o in _classes(replica, count)]
        return rows, fluid.wait_min_thresholds(rows, d0, d1, C=replica.kv_tokens)

    if types is not None:
        return with_thresholds(types)
    for count in (4, 3, 2):
        own, found = with_thresholds(count)
        if found.stable and found.fits:
            return own, found
    return with_thresholds(1)


def _rows(own: list[_Class], found: fluid.WaitThresholds, d0: float, d1: float) -> tuple[dict[str, Any], ...]:
    """A row per class; thresholds and bounds where the queue is stable."""
    bounds = fluid.wait_bounds(found.n, own, d0, d1) if found.stable else [None] * len(own)
    at_most = ("queue_mean_at_most=queue", "ttft_mean_at_most_s=ttft_s", "latency_mean_at_most_s=latency_s")
    return tuple(
        {"input_tokens": l, "output_tokens": o + 1.0, "rate_per_s": lam, "threshold": found.n[j] if bounds[j] else None}
        | taken(bounds[j], at_most)
        for j, (lam, l, o) in enumerate(own)
    )


def _verdict(
    found: fluid.WaitThresholds, state: fluid.FluidEquilibrium, scale: float, rate: float, C: float
) -> tuple[str, str]:
    """Verdict, and why in a sentence."""
    if not found.stable:
        return "overload", said("wait_overload", rate=rate, slack=state.slack)
    if scale <= 1.0 or not found.fits:
        return "memory too small", said("wait_memory", need=found.M_pi if scale > 1.0 else state.M, there=C)
    return "stable", said("wait_stable", scale=scale, there=C)


def _nested(
    replica: SchedulerReplica, rate: float, d0: float, d1: float, segments: int | None, horizon: float, delta: float
) -> nested.NestedDesign | None:
    """Segments of Nested WAIT with the least memory; the lengths at the quantiles of the outputs may end one."""
    weight, decodes = replica.workload.weight, np.maximum(1.0, np.ceil(replica.decodes))
    order = np.argsort(decodes, kind="stable")
    cumulative = np.cumsum(weight[order])
    levels = (np.arange(_LENGTHS) + 1.0) / _LENGTHS
    last = np.minimum(np.searchsorted(cumulative, levels * cumulative[-1] - 1e-12), order.size - 1)
    ends = np.unique(decodes[order][last])
    shares = np.diff(np.concatenate([[0.0], [float(weight[decodes <= e].sum()) for e in ends]]))
    kept = shares > 0.0
    lambdas = [_round(rate * float(s)) for s in shares[kept]]
    mean, most = _round(replica.workload.mean_input), None if segments is None else [min(segments, len(lambdas))]
    designs = nested.nested_design(lambdas, mean, ends[kept].tolist(), d0, d1, horizon, delta, most)
    return designs[0] if designs else None
