"""Simulates one pool of replicas: the second opinion on a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.errors import FleetOptError, InputError
from planner.simulate.drive import Client, drive
from planner.simulate.measure import Run, result_of
from planner.simulate.presets import PoolEngines
from planner.simulate.result import SimulationResult
from planner.simulate.seeds import seeds_of
from planner.simulate.tables import RequestTable
from planner.simulate.traffic import SampledTraffic, Traffic

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from planner.simulate.arrivals import Arrival

LOOKS = 200
"""Times a run of one batch is looked at."""
STAYS = 25
"""Mean residence times a run lasts at least, where it may be longer than asked for."""
BACKLOG_SHARE = 0.2
"""A run in which this share of the requests sent (and 2,000) waits, more and more of them, is ended as unstable."""


def simulate_pool(
    input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    weight: ArrayLike | None,
    arrival: Arrival | float,
    *,
    requests: int = 50_000,
    cached_share: ArrayLike = 0.0,
    seeds: int | Sequence[int] = 1,
    quantiles: Sequence[float] = (0.5, 0.9, 0.99),
    progress: Callable[[float], None] | None = None,
    **engines: Any,
) -> SimulationResult:
    """:func:`simulate` of a :class:`SampledTraffic`, with the fields of :class:`PoolEngines` as keywords.

    Examples
    --------
    >>> from planner.iteration.model import IterationModel
    >>> result = simulate_pool([512.0], [64.0], None, 2.0, replicas=1, iteration=IterationModel(t0=0.01, c=1e-5),
    ...                        slots=64, token_budget=512, requests=2000)
    >>> result.stable, result.completed, round(result.quantile("tpot_s", 0.5).value, 4)
    (True, 2000, 0.0101)
    """
    traffic = SampledTraffic(input_tokens, output_tokens, weight, arrival, requests, cached_share)
    return simulate(traffic, PoolEngines(**engines), seeds=seeds, quantiles=quantiles, progress=progress)


def simulate(
    traffic: Traffic,
    engines: PoolEngines,
    *,
    seeds: int | Sequence[int] = 1,
    quantiles: Sequence[float] = (0.5, 0.9, 0.99),
    max_requests: int = 0,
    in_flight: float = math.inf,
    progress: Callable[[float], None] | None = None,
) -> SimulationResult:
    """Simulate a pool of replicas iteration by iteration.

    Parameters
    ----------
    traffic
        Its requests.
    engines
        Its replicas and its gateway.
    seeds
        Number of runs, or their seeds. Seed s draws the traffic from PCG64(s) and routes with PCG64([s, 1]).
    quantiles
        Shares in (0, 1).
    max_requests
        Requests a run may grow to until it lasts :data:`STAYS` mean residence times; it has one batch at least.
    in_flight
        Requests the client has under way at most: one that is held back is sent, and its times begin, when another is complete.
    progress
        Called now and then with the share of the work done.

    Returns
    -------
    SimulationResult
        Quantiles with intervals; `stable` is False where the pool cannot keep up.
    """
    if wrong := [q for q in quantiles if not 0.0 < q < 1.0]:
        raise InputError(f"quantiles: {wrong[0]!r} does not lie in (0, 1)")
    if not in_flight >= 1.0:
        raise InputError(f"in_flight must be at least 1, got {in_flight!r}")
    numbers = seeds_of(seeds)
    if not engines.rules.fits(traffic.smallest_tokens, engines.kv_tokens):
        raise InputError(
            f"no request fits: the smallest needs {traffic.smallest_tokens:,} tokens of KV memory, a replica has "
            f"{engines.kv_tokens:,.0f}",
            "Give the replica more GPUs (tensor parallelism) or more memory.",
        )
    runs = []
    for position, seed in enumerate(numbers):

        def tell(share: float, position: int = position) -> None:
            if progress is not None:
                progress((position + share) / len(numbers))

        runs.append(_run(traffic, engines, seed, max(max_requests, traffic.requests), in_flight, tell))
    return result_of(runs, engines, numbers, traffic, quantiles)


def in_steps(
    engines: PoolEngines,
    inputs: NDArray[Any],
    outputs: NDArray[Any],
    cached: NDArray[Any],
    rng: np.random.Generator,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Lengths as the replicas count them: tokens, or what a step of speculative decoding yields."""
    if engines.speculation is None:
        return inputs, outputs, cached
    unit = engines.tokens_per_step
    inputs = np.maximum(np.rint(inputs / unit), 1.0).astype(np.int64)
    steps = engines.speculation.draw_steps(outputs - 1.0, rng)
    return inputs, steps + 1, np.minimum(np.rint(cached / unit).astype(np.int64), inputs - 1)


def _run(
    traffic: Traffic,
    engines: PoolEngines,
    seed: int,
    most: int,
    in_flight: float,
    progress: Callable[[float], None],
) -> Run:
    """One seed."""
    table, run = RequestTable.live(), Run()
    pool = engines.build(table)
    accepting = np.random.Generator(np.random.PCG64([seed, 1]))

    def arrivals() -> Iterator[float]:
        """Times of the requests that can fit, until the run is long enough."""
        for batch in traffic.batches(np.random.Generator(np.random.PCG64(seed))):
            held = batch.input_tokens + batch.output_tokens - 1
            kept = batch.select(np.broadcast_to(engines.rules.fits(held, engines.kv_tokens), held.shape))
            run.rejected += held.size - kept.times_s.size
            if engines.rules.rule_exact and kept.cached_tokens.any():
                raise InputError("the policies preset has no prefix cache; use mixed or paged")
            lengths = in_steps(engines, kept.input_tokens, kept.output_tokens, kept.cached_tokens, accepting)
            table.add(run.sent, *(column.tolist() for column in lengths))
            run.extend(kept)
            yield from kept.times_s.tolist()
            sent = run.sent + run.rejected
            if sent >= most or (sent >= traffic.requests and run.span_s >= STAYS * run.mean_stay_s):
                return

    waiting: list[int] = []

    def look(now: float, sent: int) -> bool:
        """Record the totals; True ends the run: the backlog is a large share of everything sent so far."""
        run.record(*table.take_complete())
        if now < math.inf:
            run.marks.append((now, sum(r.busy_s for r in pool), sum(r.resident_s for r in pool)))
        progress(min(sent / traffic.requests, 1.0))
        waiting.append(sum(r.waiting for r in pool))
        grows = len(waiting) > 20 and waiting[-1] > 1.2 * waiting[-20]
        large = sent > 0.2 * min(traffic.requests, 100_000) and waiting[-1] > max(2000.0, BACKLOG_SHARE * sent)
        return grows and large and not (traffic.saturated or traffic.whole)

    router = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1])))
    every = max(traffic.requests // LOOKS, 1)
    client = Client(in_flight, run.send) if in_flight < math.inf else None
    sent = drive(pool, arrivals(), engines.routing, router, engines.slots, look, every, client)
    run.record(*table.take_complete())
    run.stopped = sent < run.sent
    run.cut(sent)
    if traffic.saturated:
        totals = (sum(r.busy_s for r in pool), sum(r.resident_s for r in pool))
        run.marks = [(0.0, 0.0, 0.0), (max(r.now for r in pool), *totals)]
    completed = sum(r.completed for r in pool)
    inside = sum(r.in_system for r in pool)
    if completed + inside != sent:
        raise FleetOptError(f"{sent} requests went in, {completed} came out and {inside} are inside: some were lost")
    iterations = sum(r.iterations for r in pool)
    run.preemptions = sum(r.preemptions for r in pool)
    run.memory_bound = sum(r.memory_bound for r in pool) / iterations if iterations else 0.0
    return run
