"""A simulated pool whose replicas come and go: engines iteration by iteration, requests drawn along a path of rates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.autoscale.backtest import LAG_S
from planner.autoscale.path import STEP_S, WINDOW_S
from planner.autoscale.windows import arrivals_along
from planner.fleet.fleet import Fleet
from planner.simulate.plan import pool_engines
from planner.simulate.tables import RequestTable

Decide = Callable[[int, float, dict[str, float]], int]
"""(step, time [s], what the metrics add up to) -> replicas to pay for."""


WARM_UP_S = 600.0
"""Beginning of a path that fills the fleet and the windows of the metrics, and is not counted [s]."""


@dataclass
class Served:
    """What came out: share of the windows within every promise, paid replica-hours, and each window."""

    within: float
    windows: int
    replica_hours: float
    kept: tuple[bool, ...] = ()


def simulate_elastic(
    fleet: Fleet, rates: Any, decide: Decide, first: int, startup_s: float, rate_window_s: float, seed: int
) -> Served:
    """Serve a path; replicas start `startup_s` after they are asked for, and one that leaves finishes what it has, paid."""
    (pool,) = fleet.pools
    rng = np.random.Generator(np.random.PCG64(seed))
    law, engines = pool.law, pool_engines(fleet, pool)
    routing = fleet.question.routing
    times = arrivals_along(rates, fleet.question.traffic.arrivals, rng)
    total = times.size
    counts = np.histogram(times, np.arange(len(rates) + 1) * STEP_S)[0]
    rows = rng.choice(law.weight.size, size=total, p=law.weight / law.weight.sum())
    inputs = np.maximum(1, np.round(law.input_tokens[rows])).astype(int)
    outputs = np.maximum(1, np.round(law.output_tokens[rows])).astype(int)
    cached = np.minimum(np.floor(law.cached_share[rows] * inputs), inputs - 1).astype(int)
    table = RequestTable(inputs.tolist(), outputs.tolist(), cached.tolist())

    def fresh(ready: float) -> list[Any]:
        return [engines.build(table)[0], ready]

    serving = [fresh(0.0) for _ in range(first)]
    leaving: list[list[Any]] = []
    paid_s, sent = 0.0, 0
    done: list[int] = []
    busy: list[float] = []
    for step, count in enumerate(counts):
        begin = step * STEP_S
        lag, window = round(LAG_S / STEP_S), round(rate_window_s / STEP_S)
        seen = done[max(0, len(done) - lag - window) : max(0, len(done) - lag)]
        metrics = {}
        if seen and begin >= 0.5 * WARM_UP_S:
            metrics["requests"] = sum(seen) / (len(seen) * STEP_S)
            metrics["running"] = float(np.mean(busy[-window:]))
        wanted = decide(step, begin, metrics)
        while len(serving) < wanted:
            serving.append(fresh(begin + startup_s))
        while len(serving) > wanted:
            # the youngest goes first, as those that do not serve yet
            leaving.append(serving.pop())
        ready = [r for r, at in serving if at <= begin] or [serving[0][0]]
        before = sum(r.completed for r, _ in serving + leaving)
        for number, at in enumerate(times[sent : sent + count].tolist(), sent):
            if routing.least:
                few = (
                    ready
                    if routing.candidates is None or len(ready) <= routing.candidates
                    else [ready[int(k)] for k in rng.choice(len(ready), routing.candidates, replace=False)]
                )
                for r in few:
                    if r.now <= at and not r.asleep:
                        r.run(at)
                least = min(r.in_system for r in few)
                tied = [r for r in few if r.in_system == least]
                chosen = tied[int(rng.integers(len(tied)))]
            else:
                chosen = ready[int(rng.integers(len(ready)))]
                if chosen.now <= at and not chosen.asleep:
                    chosen.run(at)
            chosen.enqueue(number, at)
        sent += count
        end = begin + STEP_S
        for r, _ in serving + leaving:
            if not r.asleep and r.now <= end:
                r.run(end)
        done.append(sum(r.completed for r, _ in serving + leaving) - before)
        busy.append(float(sum(r.in_system - r.waiting for r, _ in serving)))
        leaving = [pair for pair in leaving if pair[0].in_system > 0]
        if begin >= WARM_UP_S:
            paid_s += STEP_S * (len(serving) + len(leaving))
    for r, _ in serving + leaving:
        r.run(math.inf)
    first_token, last = np.array(table.first), np.array(table.done)
    values = {
        "ttft_s": first_token - times + engines.api_overhead_s,
        "tpot_s": (last - first_token) / np.maximum(outputs - 1, 1),
        "e2e_s": last - times + engines.api_overhead_s,
    }
    window = (times // WINDOW_S).astype(int)
    kept = []
    for k in range(int(WARM_UP_S // WINDOW_S), int(len(rates) * STEP_S // WINDOW_S)):
        mine = window == k
        if mine.any():
            kept.append(all((values[p.metric][mine] <= p.limit_s).mean() >= p.quantile for p in fleet.promises.latency))
    return Served(float(np.mean(kept)), len(kept), paid_s / 3600.0, tuple(kept))
