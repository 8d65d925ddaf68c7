"""Exclusive or mixed batching for this workload on this replica: thresholds, slots, throughput of each, how certain."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Unpack

import numpy as np

from planner.ask.options import ReplicaOptions
from planner.ask.replica import FloatArray, SchedulerReplica, mixed_cost_known, scheduler_replica
from planner.fluid import crossover as cross
from planner.fluid import exclusive as eb
from planner.fluid.exclusive_memory import ExclusiveSlots, exclusive_slots
from planner.machine.derived import exclusive_parameters, interference_parameters, mixed_parameters
from planner.machine.iteration import IterationModel
from planner.predict.bounds import max_throughput
from planner.shared.arguments import spelled_out, told_types
from planner.shared.record import Record, json_number
from planner.shared.remarks import said
from planner.workload.importing import Frame
from planner.workload.workload import Workload

OVERFLOW = 0.01
"""Share of decode iterations that may exceed the KV memory."""

FORM_ERROR = 0.03
"""Error of the two throughputs against simulation of the same iteration times (exclusive 0.3% median, 4% at worst, with
heavy tails; mixed 1%)."""


@dataclass(frozen=True, slots=True)
class Batching(Record):
    """Which batching to run, and the settings of exclusive batching.

    Parameters
    ----------
    about
        Replica and traffic.
    verdict
        ``"exclusive"``, ``"mixed"`` or ``"not measured"``.
    certainty
        ``"beyond the profile's error"``, ``"within the profile's error"`` or ``"unknown"``.
    reason
        One sentence.
    to_run
        What to run to know more; ``None`` when nothing is missing.
    exclusive
        Settings and throughput: N, k, theta, phase length [iterations], throughput_per_s, the constant-hazard theta0,
        overflow share.
    mixed
        N, alpha_MB_s, beta_MB_s_per_token, throughput_per_s, kappa; throughput and what rests on interference is ``None``
        when it was not measured.
    crossover
        gap_s_per_token (``None`` = not measured), rhs_s_per_token, N_crossover, break_even_beta_MB_s_per_token.
    parameters
        alpha_p, alpha_d [s], beta_p [s/token], beta_d [s/sequence], their range and error of form.
    assumptions, warnings
        For the reader.
    """

    about: dict[str, Any]
    verdict: str
    certainty: str
    reason: str
    to_run: str | None
    exclusive: dict[str, Any]
    mixed: dict[str, Any]
    crossover: dict[str, Any]
    parameters: dict[str, Any]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]

    versioned: ClassVar[bool] = True

    def __repr__(self) -> str:
        return f"<Batching: {self.verdict} ({self.certainty})>"

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per kind of batching."""
        keys = ("N", "k", "theta", "throughput_per_s")
        return [
            {"batching": name, **{k: part.get(k) for k in keys}}
            for name, part in (("exclusive", self.exclusive), ("mixed", self.mixed))
        ]


def _prefill_cost(alpha_p: float, tokens: float, budget: float) -> tuple[float, float]:
    """Fixed time of a prefill phase [s] and what its iterations add per token [s/token].

    Prompts beyond the budget take further iterations: ceil(x) is about x + 1/2, of which only the half is fixed.
    """
    alpha = max(0.0, alpha_p)
    return (alpha, 0.0) if tokens <= budget else (0.5 * alpha, alpha / budget)


_POINTS = 8
"""Points a row that stands for many requests is spread over."""


def _lengths(replica: SchedulerReplica) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Input, output and weight of requests whose outputs differ as real ones do; means as in the workload.

    A row of a compact file stands for a bin: its lengths are spread over the bin's width, or they would be taken for many
    requests of one length, which stay in step. Where the output is only an assumed mean, it varies geometrically.
    """
    work = replica.workload
    if work.provenance.length_split:
        # means of the exponential law between its octiles
        edges = -np.log1p(-np.arange(_POINTS) / _POINTS)
        tail = np.append((1.0 + edges) * np.exp(-edges), 0.0)
        inputs = np.repeat(work.input_tokens, _POINTS)
        outputs = work.output_tokens[:, None] * (-np.diff(tail) * _POINTS)
    else:
        width = 2.0 * (work.total_tokens - work.lower_tokens) / (work.total_tokens + work.lower_tokens)
        if not np.any(width > 0.0):
            return work.input_tokens, work.output_tokens, work.weight
        factor = 1.0 + width[:, None] * ((np.arange(_POINTS) + 0.5) / _POINTS - 0.5)
        inputs = (work.input_tokens[:, None] * factor).ravel()
        outputs = work.output_tokens[:, None] * factor
    return inputs, outputs.ravel(), np.repeat(work.weight / _POINTS, _POINTS)


def _exclusive_throughput(
    replica: SchedulerReplica, outputs: FloatArray, weight: FloatArray, slots: int, T: int, alpha_p: float
) -> float:
    """Throughput of phases of T decode iterations from the iteration model itself, without its linear form [1/s].

    In iteration t of a phase a slot decodes with probability sum_j P(D >= jT + t) / E[max(1, ceil(D/T))].
    """
    time, D = replica.profile.iteration.time, np.rint(np.maximum(outputs - 1.0, 0.0)).astype(np.int64)
    phases = float(weight @ np.maximum(1.0, np.ceil(D / T)))
    ended = np.bincount(D, weight, int(D.max()) + 1)
    survival = np.maximum(0.0, 1.0 - np.cumsum(ended))  # P(D > t), t = 0, 1, ...
    padded = np.zeros(-(-survival.size // T) * T)
    padded[: survival.size] = survival
    n = slots * padded.reshape(-1, T).sum(axis=0) / phases
    n = n[n > 1e-9]
    decode = float(np.sum(time(n, n * replica.context, context_max=replica.context))) if n.size else 0.0
    completed = slots / phases
    tokens, per_token = completed * replica.workload.mean_input, replica.pairs / max(replica.workload.mean_input, 1e-9)
    budget = float(replica.token_budget)
    if tokens <= budget:
        prefill = float(time(0.0, 0.0, tokens, tokens * per_token))
    else:  # the last iteration of a phase is half full on average
        prefill = tokens / budget * float(time(0.0, 0.0, budget, budget * per_token)) + 0.5 * alpha_p
    total = decode + prefill
    return completed / total if total > 0.0 else math.inf


def _exclusive(
    replica: SchedulerReplica, linear: IterationModel, attention: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Exclusive batching with threshold and slots that suit each other (the memory of a threshold, and the threshold of so many
    slots), and what a phase costs in the papers' linear form, where that holds, and how far it strays."""
    work, budget = replica.workload, float(replica.token_budget)
    mean_input, mean_output = work.mean_input, work.mean_output
    inputs, outputs, weight = _lengths(replica)
    outputs = np.maximum(1.0, np.rint(outputs))
    slots, theta = replica.slots, 0.5
    memory: ExclusiveSlots | None = None
    for _ in range(4):
        chunks = (min(256.0, budget / 2.0), budget)
        params = exclusive_parameters(linear, replica.context, chunks, slots=float(max(slots, 2)))
        fixed, _ = _prefill_cost(params["alpha_p"], theta * slots * mean_input, budget)
        ratio = math.inf if params["alpha_d"] <= 0.0 else fixed / params["alpha_d"]
        choice = eb.theta_age_aware(outputs=outputs, weights=weight, alpha_ratio=ratio)
        if memory is None or choice.T != memory.T:
            memory = exclusive_slots(replica.kv_tokens, OVERFLOW, inputs, outputs, min(1.0, choice.theta), weight)
        settled = abs(choice.theta - theta) < 1e-3 and slots == memory.N
        theta, slots = choice.theta, max(1, min(memory.N, replica.option.max_num_seqs or 1024))
        if settled:
            break
    assert memory is not None
    alpha_p, alpha_d, beta_p, beta_d = (max(0.0, params[n]) for n in ("alpha_p", "alpha_d", "beta_p", "beta_d"))
    fixed, per_token = _prefill_cost(alpha_p, choice.k(slots) * mean_input, budget)
    beta_p += per_token + attention
    per_request = (fixed + alpha_d * choice.T) / max(1.0, theta * slots) + beta_d * mean_output + beta_p * mean_input
    known = fixed + alpha_d > 0.0
    constant = eb.theta0_of_costs(fixed, alpha_d, mu_O=mean_output) if known else eb.theta0(0)
    settings = {
        "N": slots,
        "k": choice.k(slots),
        "theta": theta,
        "phase_iterations": choice.T,
        "throughput_per_s": _exclusive_throughput(replica, outputs, weight, slots, choice.T, alpha_p),
        "throughput_linear_form_per_s": 1.0 / per_request if per_request > 0.0 else None,
        "theta0_constant_hazard": float(constant.theta0),
        "overflow_share": memory.share,
        "guards": list(memory.guards),
    }
    return settings, {
        "alpha_p_s": alpha_p,
        "alpha_p_per_phase_s": fixed,
        "beta_p_s_per_token": beta_p,
        "alpha_d_s": alpha_d,
        "beta_d_s_per_sequence": beta_d,
        "context_tokens": replica.context,
        "covers": {name: list(span) for name, span in params.covers.items()},
        "form_error": params.form_error,
    }


@spelled_out
@told_types
def batching(
    workload: Workload | Frame | str | Path | None = None,
    **options: Unpack[ReplicaOptions],
) -> Batching:
    """Exclusive or mixed batching, with the settings of each, and how certain that is.

    The threshold is the age-aware optimum for the workload's own output lengths; N the largest whose memory overflows in
    at most 1% of decode iterations at that threshold. Mixed batching is judged only where its cost was measured.

    Parameters
    ----------
    workload, rate, gpu, model, tp, profile, token_budget, max_num_seqs
        As for :func:`plan`; one kind of replica.

    Returns
    -------
    Batching
    """
    replica = scheduler_replica(workload, options)
    model, work = replica.profile.iteration, replica.workload
    mu_L, mu_O = work.mean_input, work.mean_output
    # prefill attention grows with the pairs of real prompts, not of a chunk: it is added per token afterwards
    linear = replace(model, a=0.0)
    attention = model.a * replica.pairs / mu_L if mu_L > 0.0 else 0.0
    exclusive, form = _exclusive(replica, linear, attention)
    per_s = exclusive["throughput_per_s"]
    budget, share = float(replica.token_budget), mu_O / (mu_L + mu_O)
    # the token budget admits no more sequences than this on average, whatever N is
    mixed_slots = max(1, min(replica.slots, math.floor(budget * (1.0 + mu_O) / (mu_L + mu_O))))
    low, high = max(64.0, budget / 16.0), budget
    derived = mixed_parameters(linear, share, replica.context, token_range=(low, max(high, 2 * low)))
    alpha_MB, beta_MB = max(0.0, derived["alpha_MB"]), max(0.0, derived["beta_MB"]) + attention * (1.0 - share)
    # mixed wins iff its throughput is higher: beta_MB below this
    break_even = (1.0 / per_s - alpha_MB * (1.0 + mu_O) / mixed_slots) / (mu_L + mu_O)
    costs = (form["alpha_p_per_phase_s"], form["alpha_d_s"], alpha_MB)
    betas = (form["beta_p_s_per_token"], form["beta_d_s_per_sequence"], mu_L, mu_O)
    beta_exclusive = cross.beta_EB(*betas)
    verdict, certainty, reason, to_run, throughput = _judged(replica, per_s, break_even)
    known = throughput is not None
    crossing = cross.N_crossover(*costs, beta_MB, *betas) if known else math.inf
    mixed: dict[str, Any] = {"N": mixed_slots, "k": None, "theta": None, "alpha_MB_s": alpha_MB, "decode_share": share}
    mixed |= {"beta_MB_s_per_token": beta_MB if known else None, "throughput_per_s": throughput}
    if known:
        mixed["throughput_linear_form_per_s"] = cross.TP_MB(mixed_slots, alpha_MB, beta_MB, mu_L, mu_O)
    interference = interference_parameters(model, replica.context, budget, max(1.0, mu_L))
    mixed["kappa"] = interference["kappa"] if known else None
    return Batching(
        about=replica.describe(),
        verdict=verdict,
        certainty=certainty,
        reason=reason,
        to_run=to_run,
        exclusive=exclusive,
        mixed=mixed,
        crossover={
            "beta_EB_s_per_token": beta_exclusive,
            "rhs_s_per_token": cross.crossover_rhs_closed(exclusive["N"], *costs, mu_L, mu_O),
            "break_even_beta_MB_s_per_token": break_even,
            "gap_s_per_token": beta_MB - beta_exclusive if known else None,
            "N_crossover": json_number(crossing),
        },
        parameters=form,
        assumptions=(
            *replica.assumptions(),
            *((said("geometric"),) if work.provenance.length_split else ()),
            said("refills", **exclusive),
        ),
        warnings=_warnings(replica, exclusive, form["form_error"]),
    )


def _judged(
    replica: SchedulerReplica, exclusive_per_s: float, break_even: float
) -> tuple[str, str, str, str | None, float | None]:
    """Verdict, certainty and reason, what to run where nothing is known of mixed batches, and their throughput where it is."""
    profile, option = replica.profile, replica.option
    if not mixed_cost_known(profile):
        reason = said("mixed_not_measured", profile=profile.name, trust=profile.trust, us=1e6 * break_even)
        to_run = said("run_mixed", gpu=option.gpu.name, model=option.model.name, tp=option.tp)
        return "not measured", "unknown", reason, to_run, None
    # the engine's own limit (within 1% of simulation) decides; the paper's linear form stands beside it
    per_s = max_throughput(replica.lengths, replica.engine).per_s
    verdict = "mixed" if per_s > exclusive_per_s else "exclusive"
    margin = abs(math.log(per_s / exclusive_per_s)) if per_s > 0.0 else math.inf
    certainty = "beyond the profile's error" if margin > profile.band + FORM_ERROR else "within the profile's error"
    reason = said("faster", verdict=verdict, by=math.expm1(margin), band=profile.band, error=FORM_ERROR)
    return verdict, certainty, reason, None, per_s


def _warnings(replica: SchedulerReplica, exclusive: dict[str, Any], form_error: float) -> tuple[str, ...]:
    """What the profile does not cover, and where the linear form strays."""
    outside = replica.profile.outside(decodes=float(exclusive["N"]), context_tokens=replica.context)
    warnings = [*replica.warnings, *exclusive["guards"], *outside]
    if form_error > 0.2:
        warnings.append(said("line_strays", error=form_error))
    return tuple(dict.fromkeys(warnings))
