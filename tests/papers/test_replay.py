"""Traces replayed: as they are against Lindley's recursion, and other draws of them than a prediction took."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.ask.simulate import draw_of, laid_traffic
from planner.machine.iteration import IterationModel
from planner.papers.presets import PoolEngines
from planner.papers.traffic import Traffic
from planner.predict.records import Replicas
from planner.predict.run import replay
from planner.predict.traffic import FleetTraffic, PoolTraffic
from planner.question import compiled
from planner.workload.pools import State
from planner.workload.trace import Trace
from planner.workload.workload import Workload
from tests.papers.asked import asked

PERIOD = 1000.0
ENGINES = PoolEngines(2, IterationModel(t0=0.01), slots=8, token_budget=512)


def bursty(n: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, prompts and outputs of a trace whose prompts are long while its rate is high."""
    rng = np.random.default_rng(seed)
    minute = rng.integers(0, 20, n)
    minute = np.where(rng.random(n) < 0.5, 3, minute)  # half of all requests come in one stretch of 50 s
    times = (minute + rng.random(n)) * PERIOD / 20
    inputs = np.where(minute == 3, 900, 100) + rng.integers(0, 50, n)
    order = np.argsort(times)
    return times[order], inputs[order].astype(float), rng.integers(1, 80, n)[order].astype(float)


def single_server(times: np.ndarray, service: np.ndarray) -> np.ndarray:
    """Waits of a queue served one after the other, by Lindley's recursion."""
    waits, wait = [], 0.0
    for gap, s in zip(np.diff(times, prepend=times[0]), np.concatenate([[0.0], service[:-1]]), strict=True):
        wait = max(0.0, wait + s - gap)
        waits.append(wait)
    return np.array(waits)


def test_a_replayed_pool_against_lindley() -> None:
    """One slot: a request takes one iteration per token, so waits follow from the stamps and lengths alone."""
    times, inputs, outputs = bursty(3000)
    step = 0.001
    run = replay(asked(times, inputs, outputs), Replicas(1, IterationModel(t0=step), 1, 10_000))
    assert run.ttft_s == pytest.approx(single_server(times, outputs * step) + step, abs=1e-9)


def test_lengths_that_come_with_their_bursts_need_more() -> None:
    times, inputs, outputs = bursty(8_000)
    replicas = Replicas(1, IterationModel(t0=2e-3, b=2.4e-5), 256, 2048)
    shuffled = np.random.default_rng(2).permutation(inputs)
    own, mixed = (np.quantile(replay(asked(times, x, outputs), replicas).ttft_s, 0.99) for x in (inputs, shuffled))
    assert own > 1.2 * mixed


def laid(rate_of: float, seeds: list[int], most: int = 10**6) -> tuple[Traffic, PoolTraffic, np.ndarray, float]:
    """The bursty trace at so many times its own rate."""
    times, inputs, outputs = bursty()
    trace = Trace(times - times[0], inputs, outputs, np.zeros(times.size, dtype=np.int64))
    workload = replace(Workload.from_arrays(inputs, outputs), recorded=trace)
    rate = rate_of * times.size / float(times[-1])
    traffic = compiled.Traffic(workload, rate)
    law = traffic.moments(512).law(State(0.0), State(1e9))
    pool = PoolTraffic(FleetTraffic(traffic), law)
    return laid_traffic(pool, rate, ENGINES, seeds, most), pool, times, rate


def test_at_its_own_rate_a_trace_is_sent_as_it_is_and_gateways_draw_anew() -> None:
    source, pool, times, rate = laid(1.0, [1, 2])
    first, second = source(1).requests, source(2).requests
    assert source(1).whole and first.arrival_s == pytest.approx(times - times[0], abs=1e-6)
    assert np.array_equal(first.arrival_s, second.arrival_s) and not np.array_equal(first.key, second.key)
    own = pool.lay(rate, ENGINES.count, ENGINES.routing, most=10**6)
    assert not np.intersect1d(own.key, first.key).size


def test_copies_are_shifted_otherwise_than_for_the_prediction() -> None:
    source, pool, times, rate = laid(6.0, [1, 2, 3, 4, 5, 6])
    ranked = pool.draws(rate).tolist()
    own = pool.lay(rate, ENGINES.count, ENGINES.routing, most=10**6)
    taken = [ranked.index(draw_of(pool.draws(rate), range(1, 7), seed)) for seed in range(1, 7)]
    assert taken == sorted(taken) and min(taken) < 10 and max(taken) > 53 and len(ranked) // 2 not in taken
    for seed in (1, 6):
        sent = source(seed).requests
        assert sent.size == 6 * times.size and not np.array_equal(sent.arrival_s, own.times_s)
