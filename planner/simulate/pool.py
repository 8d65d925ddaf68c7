"""Simulates one pool of replicas: the second opinion on a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import FleetOptError, InputError
from planner.iteration.model import IterationModel
from planner.routing import find_routing
from planner.simulate.arrivals import Arrival, arrival_times, sample_rows, whole_tokens
from planner.simulate.drive import drive
from planner.simulate.presets import Preset, build_replicas
from planner.simulate.presets import preset as find_preset
from planner.simulate.result import Sample, SimulationResult
from planner.simulate.statistics import batch_means, mean_of_batches, too_short
from planner.simulate.tables import RequestTable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["simulate_pool"]

WARM_UP = 0.1
"""Share of the requests, in order of arrival, that is not measured at the beginning."""
COOL_DOWN = 0.05
"""Share not measured at the end, where no later arrival disturbs anybody."""
TURNOVERS = 5
"""Mean residence times the warm-up lasts at least."""
BACKLOG_SHARE = 0.2
"""A run whose backlog is this share of the requests sent (and 2,000) is ended as unstable."""


def simulate_pool(
    input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    weight: ArrayLike | None,
    arrival: Arrival | float,
    *,
    replicas: int,
    iteration: IterationModel | Sequence[float],
    slots: float = math.inf,
    token_budget: float = math.inf,
    kv_tokens: float | None = None,
    routing: str = "random",
    preset: str = "mixed",
    requests: int = 50_000,
    seeds: int | Sequence[int] = 1,
    quantiles: Sequence[float] = (0.5, 0.9, 0.99),
    cached_share: ArrayLike = 0.0,
    api_overhead_s: float = 0.0,
    progress: Callable[[float], None] | None = None,
) -> SimulationResult:
    """Simulate a pool of replicas iteration by iteration.

    Parameters
    ----------
    input_tokens, output_tokens, weight
        Joint lengths by row and the weight of each row (``None`` = equal), shape (rows,). Fractional lengths are rounded to
        whole tokens >= 1 [tokens].
    arrival
        Arrival process, or a rate of Poisson arrivals to the whole pool [1/s].
    replicas
        Number of replicas, >= 1.
    iteration
        Iteration-time model [s]; the slots preset also takes a table of durations with 0..slots active slots [s].
    slots, token_budget, kv_tokens
        Engine settings per replica: sequences, tokens per iteration (the chunk of the slots presets), KV memory [tokens].
    routing
        A name of :data:`planner.routing.ROUTINGS`.
    preset
        Engine rules: ``mixed``, ``paged``, ``slots``, ``slots-shared`` or ``policies``.
    requests, seeds
        Requests per run; number of runs, or their seeds. Seed s draws rows and gaps from PCG64(s) and routes with
        PCG64([s, 1]).
    quantiles
        Shares in (0, 1).
    cached_share
        Share of a prompt whose KV a prefix cache supplies, in [0, 1): one for all, or one per row, shape (rows,).
    api_overhead_s
        Time outside the engine, added to TTFT and E2E [s].
    progress
        Called now and then with the share of the work done.

    Returns
    -------
    SimulationResult
        Quantiles with intervals; `stable` is False where the pool cannot keep up.

    Examples
    --------
    >>> result = simulate_pool([512.0], [64.0], None, 2.0, replicas=1, iteration=IterationModel(t0=0.01, c=1e-5),
    ...                        slots=64, token_budget=512, requests=2000)
    >>> result.stable, result.completed, round(result.quantile("tpot_s", 0.5).value, 4)
    (True, 2000, 0.0101)
    """
    rules = find_preset(preset)
    arrival = arrival if isinstance(arrival, Arrival) else Arrival(rate_per_s=arrival)
    memory = math.inf if kv_tokens is None else float(kv_tokens)
    routing = find_routing(routing).name
    shares = np.asarray(cached_share, dtype=np.float64)
    _check(replicas, iteration, slots, token_budget, memory, requests, quantiles, shares, api_overhead_s)
    seed_list = tuple(range(1, seeds + 1)) if isinstance(seeds, int) else tuple(int(s) for s in seeds)
    if not seed_list:
        raise InputError("seeds: at least one run is needed")
    inputs, outputs = whole_tokens(input_tokens, "input_tokens"), whole_tokens(output_tokens, "output_tokens")
    if inputs.shape != outputs.shape or inputs.ndim != 1:
        raise InputError("input_tokens and output_tokens must be two lists of the same length")
    if shares.shape not in ((), inputs.shape):
        raise InputError(f"cached_share must be one number or one per row ({inputs.size}), got {shares.size}")
    # at least one token of every prompt is processed
    cached = np.minimum(np.floor(shares * inputs), inputs - 1).astype(np.int64)
    fits = np.array([rules.fits(total, memory) for total in (inputs + outputs - 1).tolist()])
    if not fits.any():
        raise InputError(
            f"no request fits: the smallest needs {int((inputs + outputs - 1).min()):,} tokens of KV memory, a replica has "
            f"{memory:,.0f}",
            "Give the replica more GPUs (tensor parallelism) or more memory.",
        )
    runs: list[_Run] = []
    for number, seed in enumerate(seed_list):
        share: Callable[[float], None] | None = None
        if progress is not None:
            tell, done = progress, number

            def share(x: float, done: int = done, tell: Callable[[float], None] = tell) -> None:
                tell((done + x) / len(seed_list))

        rng = np.random.Generator(np.random.PCG64(seed))
        rows = sample_rows(weight, inputs.size, requests, rng)
        times = arrival_times(arrival, requests, rng)
        kept = fits[rows]
        router_rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1])))
        run = _simulate_one(
            rules, iteration, inputs[rows][kept], outputs[rows][kept], cached[rows][kept], times[kept], replicas, routing,
            router_rng, slots, token_budget, memory, arrival.process == "saturated", share,
        )  # fmt: skip
        run.rejected = int(requests - kept.sum())
        runs.append(run)
    return _result(runs, rules, routing, replicas, seed_list, requests, slots, quantiles, api_overhead_s, arrival)


def _check(
    replicas: int,
    iteration: IterationModel | Sequence[float],
    slots: float,
    token_budget: float,
    memory: float,
    requests: int,
    quantiles: Sequence[float],
    cached_share: NDArray[np.float64],
    api_overhead_s: float,
) -> None:
    problems = []
    if not (isinstance(replicas, int) and replicas >= 1):
        problems.append(f"replicas must be a whole number >= 1, got {replicas!r}")
    for name, value in (("slots", slots), ("token_budget", token_budget), ("kv_tokens", memory)):
        if not value >= 1:
            problems.append(f"{name} must be at least 1, got {value!r}")
    if not (isinstance(requests, int) and requests >= 1):
        problems.append(f"requests must be a whole number >= 1, got {requests!r}")
    problems += [f"quantiles: {q!r} does not lie in (0, 1)" for q in quantiles if not 0.0 < q < 1.0]
    if not (np.all(cached_share >= 0.0) and np.all(cached_share < 1.0)):
        problems.append("cached_share must lie in [0, 1)")
    if not (math.isfinite(api_overhead_s) and api_overhead_s >= 0.0):
        problems.append(f"api_overhead_s must not be negative, got {api_overhead_s!r}")
    if problems:
        raise InputError.from_problems(problems)


@dataclass(slots=True)
class _Run:
    """One seed: arrays over the requests sent, and totals at checkpoints (time, busy, resident time, completed)."""

    times: NDArray[np.float64]
    first: NDArray[np.float64]
    done: NDArray[np.float64]
    outputs: NDArray[np.int64]
    marks: list[tuple[float, float, float]]
    preemptions: int
    memory_bound: float
    stopped: bool
    rejected: int = 0


def _simulate_one(
    rules: Preset,
    iteration: IterationModel | Sequence[float],
    inputs: NDArray[np.int64],
    outputs: NDArray[np.int64],
    cached: NDArray[np.int64],
    times: NDArray[np.float64],
    replicas: int,
    routing: str,
    rng: np.random.Generator,
    slots: float,
    token_budget: float,
    memory: float,
    saturated: bool,
    progress: Callable[[float], None] | None,
) -> _Run:
    if rules.name == "policies":
        if cached.any():
            raise InputError("the policies preset has no prefix cache; use mixed or paged")
        if not isinstance(iteration, IterationModel):
            raise InputError("iteration: a table of durations is for the slots preset only")
        return _run_rule_exact(
            iteration, inputs, outputs, times, replicas, routing, rng, slots, token_budget, memory, progress
        )
    table = RequestTable(inputs.tolist(), outputs.tolist(), cached.tolist())
    pool = build_replicas(rules, table, iteration, replicas, slots, token_budget, memory)
    marks: list[tuple[float, float, float]] = []
    seen = 0

    def look(now: float) -> bool:
        """Record the totals; True ends the run: the backlog is a large share of everything sent so far."""
        nonlocal seen
        marks.append((now, sum(r.busy_s for r in pool), sum(r.resident_s for r in pool)))
        seen = int(np.searchsorted(times, now, side="right"))
        waiting = sum(r.in_system for r in pool)
        return (
            not saturated
            and seen > 0.2 * times.size
            and waiting > max(2000.0, BACKLOG_SHARE * seen)
            and _grows(waiting)
        )

    history: list[int] = []

    def _grows(waiting: int) -> bool:
        history.append(waiting)
        return len(history) > 20 and waiting > 1.2 * history[-20]

    sent = drive(pool, times.tolist(), routing, rng, slots, progress, look)
    stopped = sent < times.size
    if saturated:
        marks = [
            (0.0, 0.0, 0.0),
            (max(r.now for r in pool), sum(r.busy_s for r in pool), sum(r.resident_s for r in pool)),
        ]
    completed = sum(r.completed for r in pool)
    inside = sum(r.in_system for r in pool)
    if completed + inside != sent:
        raise FleetOptError(f"{sent} requests went in, {completed} came out and {inside} are inside: some were lost")
    iterations = sum(r.iterations for r in pool)
    return _Run(
        times=times[:sent],
        first=np.array(table.first[:sent]),
        done=np.array(table.done[:sent]),
        outputs=outputs[:sent],
        marks=marks,
        preemptions=sum(r.preemptions for r in pool),
        memory_bound=sum(r.memory_bound for r in pool) / iterations if iterations else 0.0,
        stopped=stopped,
    )


def _run_rule_exact(
    iteration: IterationModel,
    inputs: NDArray[np.int64],
    outputs: NDArray[np.int64],
    times: NDArray[np.float64],
    replicas: int,
    routing: str,
    rng: np.random.Generator,
    slots: float,
    token_budget: float,
    memory: float,
    progress: Callable[[float], None] | None,
) -> _Run:
    from planner.simulate.durations import Canonical
    from planner.simulate.engine import Request
    from planner.simulate.run import run_policy

    rows = zip(times.tolist(), inputs.tolist(), outputs.tolist(), strict=True)
    run = run_policy(
        [Request(i, *row) for i, row in enumerate(rows)],
        "mixed",
        Canonical(iteration),
        {"slots": slots, "token_budget": token_budget},
        capacity=memory,
        replicas=replicas,
        routing=routing,
        rng=rng,
        progress=progress,
    )
    first = np.array([r.first_token_s for r in run.requests])
    done = np.array([r.done_s for r in run.requests])
    resident = float(np.sum(done - first))  # without the time in prefill: the engine keeps no totals
    marks = [(0.0, 0.0, 0.0), (run.end_s, run.busy_s, resident)]
    return _Run(times, first, done, outputs, marks, run.evictions, 0.0, False)


def _result(
    runs: list[_Run],
    rules: Preset,
    routing: str,
    replicas: int,
    seeds: tuple[int, ...],
    requests: int,
    slots: float,
    quantiles: Sequence[float],
    overhead: float,
    arrival: Arrival,
) -> SimulationResult:
    warnings: list[str] = []
    samples: list[Sample] = []
    rates: list[NDArray[np.float64]] = []
    busy: list[NDArray[np.float64]] = []
    running: list[NDArray[np.float64]] = []
    unstable, short_warm_up = 0, False
    for run in runs:
        low, high, settled = _window(run, arrival.process == "saturated")
        short_warm_up |= not settled
        window = slice(low, high)
        finished = ~np.isnan(run.done[window])
        arrived, first, done = (x[window][finished] for x in (run.times, run.first, run.done))
        outputs = run.outputs[window][finished]
        several = outputs > 1
        samples.append(
            Sample(
                first - arrived + overhead,
                ((done - first)[several]) / (outputs[several] - 1),
                done - arrived + overhead,
            )
        )
        unstable += run.stopped or _backlog_grows(run, arrival.process == "saturated")
        start, end = (run.times[low], run.times[high - 1]) if high > low else (0.0, 0.0)
        if arrival.process == "saturated":
            start, end = _middle_of_completions(run.done)
        edges = np.linspace(start, end, 11)
        if end > start:
            counts = np.diff(np.searchsorted(np.sort(run.done[~np.isnan(run.done)]), edges))
            rates.append(counts / np.diff(edges))
        for series, column in ((busy, 1), (running, 2)):
            series.append(_rates_between_marks(run.marks, column, start, end) / replicas)
    stable = unstable * 2 < len(runs) or unstable == 0
    sent = sum(r.times.size + r.rejected for r in runs)
    rejected = sum(r.rejected for r in runs)
    completed = sum(int(np.sum(~np.isnan(r.done))) for r in runs)
    measured = sum(s.ttft_s.size for s in samples)
    if not stable:
        warnings.append(
            "unstable: the backlog grows as long as requests arrive, so the quantiles only tell how long the run was"
        )
    if rejected:
        warnings.append(f"{rejected:,} of {sent:,} requests can never fit into a replica's KV memory and were rejected")
    if short_warm_up and stable:
        warnings.append("the run is short against the time requests stay: the beginning may still be felt")
    for q in quantiles:
        if not batch_means([s.ttft_s for s in samples], q).enough:
            warnings.append(too_short(q, measured))
    tables = {
        name: {float(q): batch_means([getattr(s, name) for s in samples], q) for q in quantiles}
        for name in ("ttft_s", "tpot_s", "e2e_s")
    }
    mean_running = mean_of_batches(np.concatenate(running))
    spans = [float(r.times[-1] - r.times[0]) for r in runs if r.times.size > 1]
    total_span = sum(spans)
    return SimulationResult(
        ttft_s=tables["ttft_s"],
        tpot_s=tables["tpot_s"],
        e2e_s=tables["e2e_s"],
        ttft_mean_s=batch_means([s.ttft_s for s in samples]),
        tpot_mean_s=batch_means([s.tpot_s for s in samples]),
        e2e_mean_s=batch_means([s.e2e_s for s in samples]),
        throughput_per_s=mean_of_batches(np.concatenate(rates) if rates else np.empty(0)),
        arrival_rate_per_s=sum(r.times.size - 1 for r in runs) / total_span if total_span > 0.0 else None,
        busy_fraction=mean_of_batches(np.minimum(np.concatenate(busy), 1.0)),
        mean_running=mean_running,
        slot_occupancy=mean_running.value / slots if math.isfinite(slots) else None,
        preemptions_per_request=sum(r.preemptions for r in runs) / max(sent - rejected, 1),
        memory_bound_fraction=sum(r.memory_bound for r in runs) / len(runs),
        stable=stable,
        sent=sent,
        completed=completed,
        rejected=rejected,
        pending=sent - rejected - completed,
        preset=rules.name,
        routing=routing,
        replicas=replicas,
        seeds=seeds,
        requests=requests,
        warnings=tuple(dict.fromkeys(warnings)),
        samples=tuple(samples),
    )


def _window(run: _Run, saturated: bool) -> tuple[int, int, bool]:
    """Positions measured, and whether the warm-up lasted :data:`TURNOVERS` mean residence times."""
    total = run.times.size
    low, high = math.floor(WARM_UP * total), math.floor((1.0 - COOL_DOWN) * total)
    finished = run.done - run.times
    stay = float(np.nanmean(finished)) if np.any(~np.isnan(finished)) else math.inf
    if saturated:
        return low, high, True
    if high > low and run.times[low] - run.times[0] < TURNOVERS * stay and math.isfinite(stay):
        low = min(int(np.searchsorted(run.times, run.times[0] + TURNOVERS * stay)), total // 2)
    settled = high > low and bool(run.times[low] - run.times[0] >= 0.999 * TURNOVERS * stay)
    return low, max(high, low + 1), settled


def _backlog_grows(run: _Run, saturated: bool) -> bool:
    """Whether the number without a first token grows all the time: by more than 2% of the arrivals of the last half."""
    total = run.times.size
    if saturated or total < 1000:
        return False
    started = np.sort(run.first[~np.isnan(run.first)])

    def waiting(u: float, v: float) -> float:
        at = run.times[math.floor(u * total) : math.floor(v * total)]
        positions = np.arange(math.floor(u * total), math.floor(v * total)) + 1
        return float(np.mean(positions - np.searchsorted(started, at, side="right")))

    early, middle, late = waiting(0.3, 0.5), waiting(0.5, 0.75), waiting(0.8, 1.0)
    return late - early > 0.02 * 0.5 * total and late > middle > early and late > 1.4 * early


def _middle_of_completions(done: NDArray[np.float64]) -> tuple[float, float]:
    ordered = np.sort(done[~np.isnan(done)])
    return (
        (float(ordered[int(0.1 * ordered.size)]), float(ordered[int(0.9 * ordered.size)]))
        if ordered.size
        else (0.0, 0.0)
    )


def _rates_between_marks(
    marks: list[tuple[float, float, float]], column: int, start: float, end: float
) -> NDArray[np.float64]:
    """Increase per second of a total in ten parts of [start, end]; the totals are known at the marks."""
    if len(marks) < 2:
        return np.empty(0)
    table = np.array(marks)
    inside = table[(table[:, 0] >= start) & (table[:, 0] <= end)]
    if len(inside) < 2:  # all at once
        inside = table
    inside = inside[np.unique(np.linspace(0, len(inside) - 1, 11).astype(int))]
    spans = np.diff(inside[:, 0])
    good = spans > 0.0
    return np.asarray(np.diff(inside[:, column])[good] / spans[good])
