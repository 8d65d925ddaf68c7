"""What Prometheus would hold of a simulated fleet: vLLM's metrics by replica, with the drift that is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from planner.simulate.drive import drive
from planner.simulate.pair import SUPPLIED, PrefillReplica, decode_replicas
from planner.simulate.tables import RequestTable

import planner as fo
from planner.fleet.fleet import Fleet
from planner.fleet.shapes import standing_fleet
from planner.fleet.shapes.disaggregated import Disaggregated
from planner.monitor.prometheus import Series
from planner.question.compiled import compile_question
from planner.question.files import question_of
from planner.simulate.plan import pair_engines, pool_engines
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
    values = _values(
        batch.input_tokens, batch.output_tokens, first - times + overhead, done - first, done - times + overhead
    )
    found: dict[str, list[Series]] = {}
    looks = [(t * slower, running, waiting) for t, running, waiting in looks]
    span = _window(times, points)
    for who, one in enumerate(replicas):
        mine = np.flatnonzero(owner == who)
        labels = {"instance": f"10.0.0.{who}:8000", "model_name": "m"}
        cache = batch.input_tokens[mine], batch.cached_tokens[mine]
        own = {name: (samples[mine], bounds) for name, (samples, bounds) in values.items()}
        seen = [(t, running[who], waiting[who]) for t, running, waiting in looks]
        _export(found, labels, span, done[mine], cache, own, seen, one.preemptions)
    return found


def exported_pair(
    plan: fo.Plan,
    seed: int,
    requests: int = 20_000,
    *,
    rate: float = 1.0,
    outputs: float = 1.0,
    slower_prefill: float = 1.0,
    slower_decode: float = 1.0,
    cached: float = 1.0,
    lost_prefill: int = 0,
    lost_decode: int = 0,
    points: int = 25,
) -> dict[str, list[Series]]:
    """The series of a plan's prefill and decode pools, as engines of such a fleet see their part of every request.

    To a prefill engine every request has one output token; to a decode engine it comes when its KV cache is there, and its
    first token is the second of the answer.
    """
    fleet = fleet_of(plan)
    assert isinstance(fleet, Disaggregated)
    law, (prefill, decode) = fleet.pools[0].law, pair_engines(fleet)
    arrival = fleet.rate * rate
    traffic = SampledTraffic(
        law.input_tokens, law.output_tokens * outputs, law.weight, arrival, requests, law.cached_share * cached
    )
    batch = next(traffic.batches(np.random.Generator(np.random.PCG64(seed))))
    router = np.random.Generator(np.random.PCG64([seed, 1]))
    lists = [x.tolist() for x in (batch.input_tokens, batch.output_tokens, batch.cached_tokens)]
    span = _window(batch.times_s, points)
    found: dict[str, list[Series]] = {}

    def run(replicas: list[Any], at: Any, slower: float) -> tuple[Any, list[tuple[float, list[float], list[float]]]]:
        owner = np.zeros(requests, dtype=int)
        for number, one in enumerate(replicas):
            one.enqueue = _logged(one.enqueue, owner, number)
        looks: list[tuple[float, list[float], list[float]]] = []

        def look(now: float, sent: int) -> bool:
            if np.isfinite(now):
                waiting = [float(getattr(r, "waiting", max(r.in_system - 1, 0))) for r in replicas]
                looks.append((now * slower, [r.in_system - w for r, w in zip(replicas, waiting, strict=True)], waiting))
            return False

        drive(replicas, (at / slower).tolist(), prefill.routing, router, look=look, every=requests // 240)
        return owner, looks

    def export(name: str, count: int, owner: Any, at: Any, ended: Any, values: Any, looks: Any) -> None:
        for who in range(count):
            mine = np.flatnonzero(owner == who)
            labels = {"pod": f"fleetopt-{name}-5d9c-{who}", "model_name": "m"}
            cache = batch.input_tokens[mine], batch.cached_tokens[mine] if name == "prefill" else 0 * mine
            own = {metric: (samples[mine], bounds) for metric, (samples, bounds) in values.items()}
            _export(found, labels, span, ended[mine], cache, own, [(t, r[who], w[who]) for t, r, w in looks], 0)

    table = RequestTable(*lists)
    nodes = [PrefillReplica(table, prefill.iteration) for _ in range(prefill.replicas - lost_prefill)]  # type: ignore[arg-type]
    owner, looks = run(nodes, batch.times_s, slower_prefill)
    first = np.array(table.first) * slower_prefill
    new = batch.input_tokens - batch.cached_tokens
    alone = prefill.iteration.time(0.0, 0.0, new, new * (batch.cached_tokens + 0.5 * (new + 1.0)))  # type: ignore[union-attr]
    ttft = first - batch.times_s + prefill.api_overhead_s
    values = _values(batch.input_tokens, np.ones(requests), ttft, np.zeros(requests), ttft)
    values["vllm:request_prefill_time_seconds"] = (slower_prefill * alone, SECONDS)
    export("prefill", len(nodes), owner, batch.times_s, first, values, looks)

    moves = fleet.transfer_s(batch.input_tokens.astype(float))
    arrives = first + moves
    order = np.argsort(arrives, kind="stable")
    table = RequestTable(
        (batch.input_tokens[order] + 1).tolist(),
        np.maximum(batch.output_tokens[order] - 1, 1).tolist(),
        [SUPPLIED] * requests,
    )
    engines = decode_replicas(replace(decode, replicas=decode.replicas - lost_decode), table)
    owner, looks = run(engines, arrives[order], slower_decode)
    began, done = (np.array(x) * slower_decode for x in (table.first, table.done))
    values = _values(
        batch.input_tokens[order],
        batch.output_tokens[order],
        began - arrives[order],
        done - arrives[order],
        done - arrives[order],
    )
    batch = replace(batch, input_tokens=batch.input_tokens[order], cached_tokens=0 * batch.cached_tokens)
    export("decode", len(engines), owner, arrives[order], done, values, looks)
    return found


def _values(inputs: Any, outputs: Any, ttft: Any, decoding: Any, e2e: Any) -> dict[str, tuple[Any, tuple[float, ...]]]:
    """Histograms: samples and bounds."""
    return {
        "vllm:time_to_first_token_seconds": (ttft, SECONDS),
        "vllm:request_time_per_output_token_seconds": (decoding / np.maximum(outputs - 1, 1), PER_TOKEN),
        "vllm:e2e_request_latency_seconds": (e2e, SECONDS),
        "vllm:request_prompt_tokens": (inputs, TOKENS),
        "vllm:request_generation_tokens": (outputs, TOKENS),
    }


def _window(times: Any, points: int) -> Any:
    """Moments of scrapes: the first tenth fills the fleet, after the last arrival it empties."""
    return np.linspace(times[len(times) // 10], times[-1], points)


def _export(
    found: dict[str, list[Series]],
    labels: dict[str, str],
    span: Any,
    done: Any,
    cache: tuple[Any, Any],
    values: dict[str, tuple[Any, tuple[float, ...]]],
    looks: list[tuple[float, float, float]],
    preemptions: int,
) -> None:
    """The series of one replica, from what became of its requests in any order."""

    def add(name: str, at: Any, series: Any, **more: str) -> None:
        found.setdefault(name, []).append(
            Series({**labels, **more}, START_S + np.asarray(at), np.asarray(series, dtype=float))
        )

    order = np.argsort(done)
    at = np.searchsorted(done[order], span, side="right")
    add("vllm:request_success_total", span, at)
    add("vllm:num_preemptions_total", span, np.linspace(0, preemptions, span.size))
    for name, source in zip(("queries", "hits"), cache, strict=True):
        add(f"vllm:prefix_cache_{name}_total", span, np.append(0, np.cumsum(source[order]))[at])
    for name, (samples, bounds) in values.items():
        x = samples[order]
        add(f"{name}_sum", span, np.append(0.0, np.cumsum(x))[at])
        add(f"{name}_count", span, at)
        for bound in bounds:
            label = "+Inf" if np.isinf(bound) else str(bound)
            add(f"{name}_bucket", span, np.append(0, np.cumsum(x <= bound))[at], le=label)
    kept = [look for look in looks if span[0] <= look[0] <= span[-1]]
    moments, running, waiting = zip(*kept, strict=True)
    add("vllm:num_requests_running", moments, running)
    add("vllm:num_requests_waiting", moments, waiting)


def _logged(enqueue: Any, owner: Any, number: int) -> Any:
    def taken(request: int, time: float) -> None:
        owner[request] = number
        enqueue(request, time)

    return taken
