"""What Prometheus would hold of a simulated fleet: vLLM's metrics by replica, with the drift that is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import planner as fo
from planner.ask.simulate import pair_engines, pool_engines
from planner.machine.iteration import IterationModel
from planner.operate.monitor.measured import Series
from planner.papers.traffic import SampledTraffic
from planner.predict.records import Decoders, Replicas
from planner.predict.run import replay
from planner.question.compiled import compile_question
from planner.question.files import question_of
from planner.size.fleet import Fleet
from planner.size.shapes import standing_fleet
from planner.size.shapes.disaggregated import Disaggregated

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
E2E = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
    960.0,
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
    engines = replace(engines, count=plan.pools[0].replicas - lost, routing=routing or engines.routing)
    arrival = pool.rate_per_s * rate * slower
    traffic = SampledTraffic(
        law.input_tokens, law.output_tokens * outputs, law.weight, arrival, requests, law.cached_share * cached
    )
    asked = traffic(seed).requests
    run = replay(asked, engines.pool())
    first, done = run.first_s * slower, run.done_s * slower
    times = asked.arrival_s * slower
    overhead = engines.api_overhead_s
    values = _values(
        asked.input_tokens, asked.output_tokens, first - times + overhead, done - first, done - times + overhead
    )
    found: dict[str, list[Series]] = {}
    span = _window(times, points)
    for who in range(engines.count):
        mine = np.flatnonzero(run.replica == who)
        labels = {"instance": f"10.0.0.{who}:8000", "model_name": "m"}
        cache = asked.input_tokens[mine], asked.cached_tokens[mine]
        own = {name: (samples[mine], bounds) for name, (samples, bounds) in values.items()}
        seen = _looks(span, times[mine], run.admitted_s[mine] * slower, done[mine])
        _export(found, labels, span, done[mine], cache, own, seen, int(run.preempted[mine].sum()))
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
    asked = traffic(seed).requests
    times, inputs, outputs, cached = asked.arrival_s, asked.input_tokens, asked.output_tokens, asked.cached_tokens
    span = _window(times, points)
    found: dict[str, list[Series]] = {}

    def export(
        name: str, engines: Replicas, owner: Any, at: Any, began: Any, ended: Any, own_cached: Any, values: Any
    ) -> None:
        for who in range(engines.count):
            mine = np.flatnonzero(owner == who)
            labels = {"pod": f"fleetopt-{name}-5d9c-{who}", "model_name": "m"}
            own = {metric: (samples[mine], bounds) for metric, (samples, bounds) in values.items()}
            seen = _looks(span, at[mine], began[mine], ended[mine])
            _export(found, labels, span, ended[mine], (inputs[mine], own_cached[mine]), own, seen, 0)

    nodes = replace(prefill.pool(prefill.count - lost_prefill), engine="prefill", kv_tokens=np.inf)
    run = replay(replace(asked, arrival_s=times / slower_prefill), nodes)
    first = run.first_s * slower_prefill
    new = inputs - cached
    alone = prefill.iteration.time(0.0, 0.0, new, new * (cached + 0.5 * (new + 1.0)))  # type: ignore[union-attr]
    ttft = first - times + prefill.api_overhead_s
    values = _values(inputs, np.ones(requests), ttft, np.zeros(requests), ttft)
    values["vllm:request_prefill_time_seconds"] = (slower_prefill * alone, SECONDS)
    export("prefill", nodes, run.replica, times, run.admitted_s * slower_prefill, first, cached, values)

    # decode engines by themselves: what comes to them, each with its first token
    arrives = first + fleet.transfer_s(inputs)
    steps = np.maximum(outputs - 1.0, 1.0)
    engines = decode.pool(decode.count - lost_decode)
    begin = float(arrives.min())
    comes = replace(asked, arrival_s=np.zeros(requests), output_tokens=steps + 1.0)
    at_once = Replicas(1, IterationModel(t0=0.0), engine="prefill")
    run = replay(comes, at_once, decoders=Decoders(engines, (arrives - begin) / slower_decode))
    done = run.done_s * slower_decode + begin
    # the first iteration of its own is over
    began = done - (done - arrives) * (steps - 1.0) / steps
    values = _values(inputs, steps, began - arrives, done - arrives, done - arrives)
    export(
        "decode", engines, run.decode_replica - run.decode_replica.min(), arrives, arrives, done, 0.0 * cached, values
    )
    return found


def _looks(span: Any, came: Any, began: Any, ended: Any) -> list[tuple[float, float, float]]:
    """(time [s], running, waiting) on a replica, four times in each gap between scrapes."""
    at = np.linspace(span[0], span[-1], 4 * span.size)
    here, in_batch, gone = (np.searchsorted(np.sort(x), at, side="right") for x in (came, began, ended))
    return list(zip(at.tolist(), (in_batch - gone).tolist(), (here - in_batch).tolist(), strict=True))


def _values(inputs: Any, outputs: Any, ttft: Any, decoding: Any, e2e: Any) -> dict[str, tuple[Any, tuple[float, ...]]]:
    """Histograms: samples and bounds."""
    return {
        "vllm:time_to_first_token_seconds": (ttft, SECONDS),
        "vllm:request_time_per_output_token_seconds": (decoding / np.maximum(outputs - 1, 1), PER_TOKEN),
        "vllm:e2e_request_latency_seconds": (e2e, E2E),
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
