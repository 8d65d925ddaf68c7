"""What Prometheus would hold of a simulated fleet: vLLM's metrics by replica, with the drift that is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import planner as fo
from planner.fleet.fleet import Fleet
from planner.fleet.shapes import standing_fleet
from planner.monitor.prometheus import Series
from planner.question.compiled import compile_question
from planner.question.files import question_of
from planner.simulate.drive import drive
from planner.simulate.plan import pool_engines
from planner.simulate.tables import RequestTable
from planner.simulate.traffic import SampledTraffic

# vLLM's bounds, loggers.py of 0.32
SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    np.inf,
)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, np.inf)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, np.inf)
START_S = 1_700_000_000.0


def fleet_of(plan: fo.Plan) -> Fleet:
    question = question_of(plan)
    inputs = question.inputs()
    return standing_fleet(compile_question(inputs, question.traffic(inputs.cdf)), question.pools)


def exported(
    plan: fo.Plan,
    seed: int,
    requests: int = 20_000,
    *,
    rate: float = 1.0,
    outputs: float = 1.0,
    slower: float = 1.0,
    cached: float = 1.0,
    lost: int = 0,
    routing: str | None = None,
    points: int = 25,
) -> dict[str, list[Series]]:
    """The series of a plan's one pool. Engines `slower` by a factor: run at that many times the rate, all times stretched."""
    fleet = fleet_of(plan)
    (pool,) = fleet.pools
    law, engines = pool.law, pool_engines(fleet, pool)
    engines = replace(engines, replicas=plan.pools[0].replicas - lost, routing=routing or engines.routing)
    arrival = pool.arrival_rate_per_s * rate * slower
    traffic = SampledTraffic(
        law.input_tokens, law.output_tokens * outputs, law.weight, arrival, requests, law.cached_share * cached
    )
    batch = next(traffic.batches(np.random.Generator(np.random.PCG64(seed))))
    table = RequestTable.live()
    table.add(0, *(x.tolist() for x in (batch.input_tokens, batch.output_tokens, batch.cached_tokens)))
    replicas = engines.build(table)
    owner = np.zeros(requests, dtype=int)
    for number, one in enumerate(replicas):
        one.enqueue = _logged(one.enqueue, owner, number)  # type: ignore[method-assign]
    looks: list[tuple[float, list[float], list[float]]] = []

    def look(now: float, sent: int) -> bool:
        if np.isfinite(now):
            waiting = [float(r.waiting) for r in replicas]
            looks.append((now, [r.in_system - w for r, w in zip(replicas, waiting, strict=True)], waiting))
        return False

    drive(
        replicas,
        batch.times_s.tolist(),
        engines.routing,
        np.random.Generator(np.random.PCG64([seed, 1])),
        look=look,
        every=requests // 240,
    )
    numbers, first, done = (np.array(x) for x in table.take_complete())
    order = np.argsort(numbers)
    first, done = first[order] * slower, done[order] * slower
    times = batch.times_s * slower
    overhead = engines.api_overhead_s
    values = {
        "vllm:time_to_first_token_seconds": (first - times + overhead, SECONDS),
        "vllm:request_time_per_output_token_seconds": (
            (done - first) / np.maximum(batch.output_tokens - 1, 1),
            PER_TOKEN,
        ),
        "vllm:e2e_request_latency_seconds": (done - times + overhead, SECONDS),
        "vllm:request_prompt_tokens": (batch.input_tokens, TOKENS),
        "vllm:request_generation_tokens": (batch.output_tokens, TOKENS),
    }
    # the first tenth fills the fleet, after the last arrival it empties
    span = np.linspace(times[requests // 10], times[-1], points)
    found: dict[str, list[Series]] = {}

    def add(name: str, who: int, at: Any, series: Any, **more: str) -> None:
        labels = {"instance": f"10.0.0.{who}:8000", "model_name": "m", **more}
        found.setdefault(name, []).append(Series(labels, START_S + np.asarray(at), np.asarray(series, dtype=float)))

    for who in range(len(replicas)):
        mine = np.flatnonzero(owner == who)
        mine = mine[np.argsort(done[mine])]
        at = np.searchsorted(done[mine], span, side="right")
        add("vllm:request_success_total", who, span, at)
        add("vllm:num_preemptions_total", who, span, np.linspace(0, replicas[who].preemptions, points))
        for name, source in (("queries", batch.input_tokens), ("hits", batch.cached_tokens)):
            add(f"vllm:prefix_cache_{name}_total", who, span, np.append(0, np.cumsum(source[mine]))[at])
        for name, (samples, bounds) in values.items():
            x = samples[mine]
            add(f"{name}_sum", who, span, np.append(0.0, np.cumsum(x))[at])
            add(f"{name}_count", who, span, at)
            for bound in bounds:
                add(
                    f"{name}_bucket",
                    who,
                    span,
                    np.append(0, np.cumsum(x <= bound))[at],
                    le="+Inf" if np.isinf(bound) else str(bound),
                )
        kept = [(t * slower, r[who], w[who]) for t, r, w in looks if span[0] <= t * slower <= span[-1]]
        moments, running, waiting = zip(*kept, strict=True)
        add("vllm:num_requests_running", who, moments, running)
        add("vllm:num_requests_waiting", who, moments, waiting)
    return found


def _logged(enqueue: Any, owner: Any, number: int) -> Any:
    def taken(request: int, time: float) -> None:
        owner[request] = number
        enqueue(request, time)

    return taken
