"""Simulates the pools of a standing fleet and holds its promises against them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import planner
from planner.errors import InputError
from planner.iteration.model import IterationModel
from planner.methods.occupancy import iteration_times
from planner.simulate.arrivals import Arrival
from planner.simulate.result import SimulationResult
from planner.simulate.verify import (
    CANNOT_TELL,
    FAILS,
    HOLDS,
    MAX_REQUESTS,
    Check,
    fleet_estimate,
    judge,
    verify_pool,
)
from planner.studies.standing import FixedFleet, FixedPool
from planner.workload.pools import DECODE, KV
from planner.workload.workload import Workload

__all__ = [
    "Verification",
    "pool_settings",
    "verify_fleet",
]

FloatArray = NDArray[np.float64]

PRESET_OF_METHOD: Mapping[str, str] = {"mixed": "mixed", "occupancy": "slots", "mgc": "slots"}
"""Engine rules by the plan's method; ``paged`` can be asked for."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Every promise of a fleet against its simulation.

    Parameters
    ----------
    checks
        One per pool and promise; promises about the whole fleet come last.
    results
        Pool name -> its simulation.
    arrival_rate_per_s
        Rate of the fleet [1/s].
    warnings
        What to know before believing it.
    """

    checks: tuple[Check, ...]
    results: Mapping[str, SimulationResult]
    arrival_rate_per_s: float
    warnings: tuple[str, ...] = field(default=())

    def __repr__(self) -> str:
        return f"<Verification: {self.verdict}, {len(self.checks)} promises at {self.arrival_rate_per_s:g} requests/s>"

    @property
    def verdict(self) -> str:
        """``fails`` if any promise fails, ``cannot tell`` if any is open, else ``holds``."""
        verdicts = {c.verdict for c in self.checks}
        return FAILS if FAILS in verdicts else CANNOT_TELL if CANNOT_TELL in verdicts else HOLDS

    def to_rows(self) -> list[dict[str, object]]:
        """One row per promise."""
        return [c.to_dict() for c in self.checks]

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "schema_version": 1,
            "kind": "fleetopt-verification",
            "version": planner.__version__,
            "verdict": self.verdict,
            "arrival_rate_per_s": self.arrival_rate_per_s,
            "checks": self.to_rows(),
            "pools": {name: result.to_dict() for name, result in self.results.items()},
            "warnings": list(self.warnings),
        }


def pool_settings(fleet: FixedFleet, pool: FixedPool, preset: str | None = None) -> dict[str, Any]:
    """Arguments of :func:`planner.simulate.pool.simulate_pool` that describe one pool of a fleet (arrivals aside)."""
    inputs, law, option = fleet.inputs, pool.law, pool.option
    rules = PRESET_OF_METHOD[inputs.method] if preset is None else preset
    slots = pool.saved.slots
    iteration: IterationModel | list[float] = option.profile.iteration
    chunk: float = option.token_budget
    if rules == "slots":
        # the picture of these methods: durations by active slots at the mean context
        if inputs.method == "mgc":  # where prefill takes iterations and nothing else
            frozen, context = option.profile.iteration.at_batch(slots), law.mean(KV) / max(law.mean(DECODE), 1e-9)
            iteration = [frozen.time(n, n * context) for n in range(slots + 1)]
        else:
            iteration = iteration_times(law, option.profile.iteration, slots, inputs.chunk).tolist()
        chunk = inputs.chunk
    return {
        "input_tokens": law.input_tokens,
        "output_tokens": law.output_tokens,
        "weight": law.weight,
        "replicas": pool.serving,
        "iteration": iteration,
        "slots": slots,
        "token_budget": chunk,
        "kv_tokens": float(option.kv_tokens(slots)),
        "routing": inputs.routing,
        "preset": rules,
        "cached_share": law.cached_share,
        "api_overhead_s": 0.0 if inputs.method == "mgc" else option.profile.api_overhead_s,
    }


def pool_arrival(workload: Workload, share: float, rate_per_s: float, burst: str) -> Arrival:
    """Arrivals of a pool: Poisson, or with the dispersion of the workload, thinned to the pool's share."""
    known = workload.arrivals.dispersion if burst == "auto" and workload.arrivals is not None else ()
    pairs = tuple((w, max(1.0, 1.0 + share * (i - 1.0))) for w, i in known)
    if any(i > 1.0 for _, i in pairs):
        return Arrival(rate_per_s, "modulated", dispersion=pairs)
    return Arrival(rate_per_s)


def read_stamps(path: str | Path, input_format: str | None = None) -> tuple[FloatArray, FloatArray]:
    """Time stamps [s] and total lengths [tokens] of a trace in any known format, in order of time."""
    from planner.workload.formats.base import ReadOptions, TraceBuilder
    from planner.workload.importing import read_trace

    trace = read_trace(path, input_format, ReadOptions())
    times = np.array(trace.times) if isinstance(trace, TraceBuilder) else np.empty(0)
    if not isinstance(trace, TraceBuilder) or times.size < 2 or not np.all(np.isfinite(times)):
        raise InputError(f"{path}: holds no time stamps to replay")
    order = np.argsort(times, kind="stable")
    totals = np.array(trace.inputs) + np.array(trace.outputs)
    return times[order], totals[order]


def _replayed(stamps: tuple[FloatArray, FloatArray], pool: FixedPool, top: bool, rate_per_s: float) -> Arrival:
    times, totals = stamps
    inside = (totals > pool.law.lower.boundary) & (top | (totals <= pool.law.upper.boundary))
    if inside.sum() < 2:
        raise InputError(f"replay: no request of the trace belongs to pool {pool.saved.name}")
    return Arrival(rate_per_s, "replay", times_s=tuple(times[inside].tolist()))


def verify_fleet(
    fleet: FixedFleet,
    workload: Workload,
    arrival_rate_per_s: float,
    *,
    preset: str | None = None,
    requests: int = 50_000,
    seeds: int | Sequence[int] = 2,
    max_requests: int = MAX_REQUESTS,
    arrivals: str | None = None,
    replay: str | Path | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Verification:
    """Simulate every pool of a fleet and judge every promise.

    Parameters
    ----------
    fleet, workload
        The fleet and its traffic.
    arrival_rate_per_s
        Rate of the fleet [1/s].
    preset
        Engine rules; default those of the plan's method.
    requests, seeds, max_requests
        Requests per run, runs per pool, and how far a run may grow while a verdict is open.
    arrivals
        ``"poisson"`` or ``"auto"`` (the dispersion the workload measured); default the plan's own ``burst`` option.
    replay
        A trace whose time stamps are replayed instead, stretched to the fleet's rate; lengths stay those of the plan.
    progress
        Called with (pool name, share of the current run).

    Returns
    -------
    Verification
    """
    inputs = fleet.inputs
    if not arrival_rate_per_s > 0.0:
        raise InputError(f"rate: must be positive, got {arrival_rate_per_s!r}")
    checks: list[Check] = []
    results: dict[str, SimulationResult] = {}
    warnings: list[str] = []
    own = [p for p in inputs.promises if p.scope == "pool"]
    common = [p for p in inputs.promises if p.scope == "fleet"]
    if inputs.method == "mgc" and preset is None:
        warnings.append(
            "simulated as the mgc method pictures the engine, with prefill at no cost in tokens; --preset mixed is a real one"
        )
    stamps = None if replay is None else read_stamps(replay)
    predictions = fleet.at(arrival_rate_per_s)
    for pool, verdict in zip(fleet.pools, predictions, strict=True):
        name = pool.saved.name
        predicted = {(p.metric, p.quantile): verdict.prediction.value(p.metric, p.quantile) for p in inputs.promises}

        def tell(share: float, name: str = name) -> None:
            if progress is not None:
                progress(name, share)

        rate = arrival_rate_per_s * pool.law.share
        if stamps is None:
            arrival = pool_arrival(workload, pool.law.share, rate, arrivals or inputs.burst)
        else:
            arrival = _replayed(stamps, pool, pool is fleet.pools[-1], rate)
        check = verify_pool(
            own,
            predicted,
            name,
            max_requests,
            tell,
            arrival=arrival,
            requests=requests,
            seeds=seeds,
            **pool_settings(fleet, pool, preset),
        )
        checks += check.checks
        results[name] = check.result
        warnings += [f"pool {name}: {w}" for w in check.result.warnings]
    shares = [pool.law.share for pool in fleet.pools]
    stable = all(r.stable for r in results.values())
    for promise in common:
        simulated = fleet_estimate(list(results.values()), shares, promise.metric, promise.quantile)
        outcome, reason = judge(simulated, promise.limit_s, stable)
        checks.append(Check("fleet", promise, None, simulated, outcome, reason))
    return Verification(tuple(checks), results, arrival_rate_per_s, tuple(warnings))
