"""What measured compression does to a plan: time and CPU it takes, and how its cost moves with p_c and gamma."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.errors import InfeasibleError
from planner.plans import Plan
from planner.question.files import engines_of, saved_pools
from planner.question.options import PlanInputs
from planner.question.values import span_of
from planner.shared.remarks import Remark
from planner.size.assemble import make_plan
from planner.workload.workload import Workload

GAMMAS = (1.0, 1.5, 2.0)
"""Bands whose cost is told beside the plan's own, and that are tried with other cuts."""
BUSY = 0.7
"""Largest share of its time that a core compresses: above it prompts queue for the compressor."""


def with_compression(
    plan: Plan,
    inputs: PlanInputs,
    workload: Workload,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """The plan with what its measured compressor costs and how sure its saving is.

    Parameters
    ----------
    plan, inputs, workload
        A plan, the question, whose ``compress`` is a table of ``compress measure``, and the traffic.
    progress
        Called with (plans made, plans to make).

    Returns
    -------
    Plan
        With `compression`: ``p_c`` (low, share, high), ``borderline_share`` and ``compressed_share`` of all requests [1],
        ``latency_s``, ``cores`` and ``cores_busy`` [1], ``cpu_usd_per_hour``, ``promises`` (with the compressor's P99 added
        to each predicted time [s]) and ``sensitivity``: rows of gamma, p_c, USD/hour and replicas at the plan's boundary.
    """
    measured = inputs.compress
    assert isinstance(measured, Mapping)
    taken = next((p for p in plan.pools if p.compressed_share > 0.0), None)
    boundary, gamma = (float(measured["boundary"]), 1.0) if taken is None else (taken.high_tokens, taken.gamma)
    low, share, high = span_of(measured)
    below, within = workload.cdf([boundary, gamma * boundary])
    borderline, times = float(within - below), measured.get("latency_s") or {}
    mean_s = times.get("mean", times.get("p50"))
    busy = None if mean_s is None else plan.arrival_rate_per_s * borderline * mean_s
    cores = None if busy is None else -int(-busy // BUSY)
    bear = list(_promises(plan, float(times["p99"]))) if "p99" in times else []
    found: dict[str, object] = {
        "source": measured.get("source"),
        "measured_at": {"boundary_tokens": measured["boundary"], "gamma": measured["gamma"]},
        "p_c": {"low": low, "share": share, "high": high},
        "boundary_tokens": boundary,
        "gamma": gamma,
        "borderline_share": borderline,
        "compressed_share": 0.0 if taken is None else taken.compressed_share,
        "latency_s": dict(times),
        "cores_busy": busy,
        "cores": cores,
        "cpu_usd_per_hour": None if cores is None else cores * inputs.cpu_price,
        "sensitivity": _sensitivity(plan, inputs, workload, None if taken is None else (boundary, gamma), progress),
        "promises": bear,
    }
    breaks = [Remark("compression_breaks", row) for row in bear if row["limit_s"] < row["with_compression_s"]]
    return replace(plan, compression=found).saying(notes=_notes(found), warnings=[*_elsewhere(found), *breaks])


def _elsewhere(found: Mapping[str, Any]) -> Iterator[Remark]:
    """That the plan compresses where nothing was measured: prompts of another length."""
    at = found["measured_at"]
    longest, measured = found["gamma"] * found["boundary_tokens"], at["gamma"] * at["boundary_tokens"]
    if found["compressed_share"] and not 0.8 <= longest / measured <= 1.25:
        values = {"measured": at["boundary_tokens"], "measured_gamma": at["gamma"]}
        yield Remark("compression_elsewhere", {**values, "boundary": found["boundary_tokens"], "gamma": found["gamma"]})


def _promises(plan: Plan, p99_s: float) -> Iterator[dict[str, Any]]:
    """Promised times of pools that get compressed prompts, the compressor's P99 added: no more than so much can be reached."""
    for pool in plan.pools:
        for value in pool.latency if pool.compressed_share > 0.0 else ():
            if value.metric in ("ttft_s", "e2e_s") and value.limit_s is not None:
                row = {"pool": pool.name, "promise": value.label, "limit_s": value.limit_s, "value_s": value.value_s}
                yield {**row, "with_compression_s": value.value_s + p99_s}


def _notes(found: Mapping[str, Any]) -> Iterator[Remark]:
    """What it means, in sentences."""
    if found["cores"] is not None and found["compressed_share"]:
        p50, p99 = (found["latency_s"].get(q, found["latency_s"].get("mean")) for q in ("p50", "p99"))
        yield Remark(
            "compression_costs",
            {
                "borderline": found["borderline_share"], "p50_s": p50, "p99_s": p99, "busy": found["cores_busy"],
                "cores": found["cores"], "usd_per_hour": found["cpu_usd_per_hour"], "source": found["source"] or "the table",
            },
        )  # fmt: skip
    rows = found["sensitivity"]
    if not found["compressed_share"]:
        yield Remark(
            "compression_pays_nothing",
            {"p_c": rows[0]["p_c"], "usd_per_hour": rows[0]["cost_usd_per_hour"] or math.inf},
        )
        return
    for code, axis, told in (
        ("compression_by_p_c", "p_c", "p_c {:.2f}"),
        ("compression_by_gamma", "gamma", "gamma {:g}"),
    ):
        costs = [(told.format(r[axis]), r["cost_usd_per_hour"]) for r in rows if r["varies"] == axis]
        said = [f"{label} {'infeasible' if usd is None else f'${usd:,.2f}'}" for label, usd in costs]
        yield Remark(code, {"boundary": found["boundary_tokens"], "costs": ", ".join(said)})


def _sensitivity(
    plan: Plan,
    inputs: PlanInputs,
    workload: Workload,
    state: tuple[float, float] | None,
    progress: Callable[[int, int], None] | None,
) -> list[dict[str, object]]:
    """Cost over p_c at the plan's band, and over bands at the measured p_c, with its boundary, GPUs and engine settings kept.

    Of a plan that compresses nothing (`state` is ``None``): its cost if all that can be compressed at all were.
    """
    own = (1.0 if state is None else state[1], "share")
    if state is None:
        asked, kept = [("p_c", 2.0, "all")], inputs
    else:
        asked = [("p_c", state[1], level) for level in ("none", "low", "share", "high", "all")]
        asked += [("gamma", g, "share") for g in sorted({*GAMMAS, state[1]})]
        engines = {
            k: v
            for k, v in engines_of(saved_pools(plan)).items()
            if k not in ("boundaries", "gammas", "pp", "dp", "ep")
        }
        kept = replace(inputs, tp=None).override({**engines, "boundaries": [state[0]]})
    found: dict[tuple[float, str], Plan | None] = {own: plan}
    rows: list[dict[str, object]] = []
    for done, (varies, gamma, level) in enumerate(asked, start=1):
        table = _at(inputs.compress, level)  # type: ignore[arg-type]
        # nothing compressed is no band
        key = (1.0, "share") if level == "none" or gamma == 1.0 else (gamma, level)
        if key not in found:
            question = replace(kept, gammas=inputs.gammas if state is None else key[:1], compress=table, p_c=None)
            try:
                found[key] = make_plan(question, workload, in_memory=True)
            except InfeasibleError:
                found[key] = None
        other, p_c = found[key], table["categories"]["all"]["p_c"]
        cost, replicas = (None, None) if other is None else (other.cost_usd_per_hour, other.replicas)
        rows.append({"varies": varies, "gamma": gamma, "p_c": p_c, "cost_usd_per_hour": cost, "replicas": replicas})
        if progress is not None:
            progress(done, len(asked))
    return rows


def _at(measured: Mapping[str, Any], level: str) -> dict[str, Any]:
    """The table with every category at one end of its interval, at nothing or at everything that was compressed at all."""

    def moved(row: Mapping[str, Any]) -> dict[str, Any]:
        at = {"none": 0.0, "low": row["p_c_low"], "share": row["p_c"], "high": row["p_c_high"]}
        p = at.get(level, float(row["p_c"] > 0.0))
        return {**row, "p_c": p, "p_c_low": min(p, row["p_c_low"]), "p_c_high": max(p, row["p_c_high"])}

    return {**measured, "categories": {name: moved(row) for name, row in measured["categories"].items()}}
