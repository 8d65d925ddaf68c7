"""A prefill and a decode pool: one replica each as the policy of two nodes, several as queues that are known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from planner.iteration.model import IterationModel
from planner.methods.overload import overloaded_prefill
from planner.methods.sessions import PrefixCache
from planner.predict.durations import Canonical
from planner.predict.engine import Request
from planner.queueing.overload import Door
from planner.simulate.clients import ClientRules
from planner.simulate.pair import ComingBack, simulate_pair
from planner.simulate.presets import PoolEngines
from planner.simulate.replay import ReplayedTraffic
from planner.simulate.run import run_policy
from planner.simulate.traffic import SampledTraffic
from planner.workload.sessions import Sessions

MODEL = IterationModel(t0=4e-3, w=2e-3, b=3e-5, g=2e-7, h=2e-5, a=2e-9)


@pytest.mark.parametrize("slots,memory", [(40, math.inf), (6, math.inf), (40, 1000)])
def test_one_replica_each_is_the_policy_of_two_nodes(slots: float, memory: float) -> None:
    """``distserve`` is checked iteration by iteration against two other programs."""
    rng = np.random.default_rng(2)
    n, period = 800, 60.0
    times = np.sort(rng.random(n)) * period
    inputs, outputs = rng.integers(5, 900, n), rng.integers(1, 60, n)
    rows = zip(times.tolist(), inputs.tolist(), outputs.tolist(), strict=True)
    parameters = {"decode_slots": slots, "transfer_base": 0.01, "transfer_per_token": 2e-5}
    run = run_policy(
        [Request(i, *row) for i, row in enumerate(rows)], "distserve", Canonical(MODEL), parameters, memory
    )
    first, second = simulate_pair(
        ReplayedTraffic(times, inputs, outputs, period),
        PoolEngines(1, MODEL),
        PoolEngines(1, MODEL, slots=slots, kv_tokens=memory),
        lambda length: 0.01 + 2e-5 * length,
        seeds=1,
    )
    (sample,) = second.samples
    assert sample.ttft_s == pytest.approx([r.first_token_s - r.arrival for r in run.requests], abs=1e-9)
    assert sample.e2e_s == pytest.approx([r.done_s - r.arrival for r in run.requests], abs=1e-9)
    assert np.array_equal(first.samples[0].e2e_s, sample.e2e_s)
    assert second.preemptions_per_request * n == pytest.approx(run.evictions)
    assert (run.evictions > 0) == (memory < math.inf)


@pytest.mark.parametrize("routing", ["random", "p2c", "least", "rr"])
def test_prefill_of_equal_prompts_is_md1_or_better(routing: str) -> None:
    """Three replicas of deterministic service at load .8: random routing is M/D/1, whose mean wait is rho s/(2 (1 - rho));
    every other routing waits less, and no less than one server three times as fast."""
    engines = PoolEngines(3, IterationModel(t0=0.05), routing=routing)
    traffic = SampledTraffic([100.0], [1.0], None, 0.8 * 3 / 0.05, 60_000)
    first, second = simulate_pair(traffic, engines, PoolEngines(1, MODEL), np.zeros_like, seeds=2)
    wait = first.ttft_mean_s.value - 0.05
    alone = 0.8 * 0.05 / (2.0 * 0.2)
    if routing == "random":
        assert wait == pytest.approx(alone, rel=0.08)
    else:
        assert 0.9 * alone / 3.0 - 0.05 < wait < 0.6 * alone
    assert first.busy_fraction.value == pytest.approx(0.8, rel=0.03)
    assert second.tpot_s[0.5].value != second.tpot_s[0.5].value  # nobody decodes
    assert first.stable and first.completed == first.sent


def test_each_pool_says_for_itself_whether_it_keeps_up() -> None:
    traffic = SampledTraffic([100.0], [20.0], None, 40.0, 4_000)
    fast, slow = IterationModel(t0=0.002), IterationModel(t0=0.05)
    for prefill, decode, stable in (
        (fast, fast, (True, True)),
        (slow, fast, (False, True)),
        (fast, slow, (True, False)),
    ):
        found = simulate_pair(
            traffic, PoolEngines(1, prefill), PoolEngines(1, decode, slots=8), lambda length: 0.0 * length, seeds=1
        )
        assert tuple(r.stable for r in found) == stable


def test_the_run_follows_the_time_requests_stay() -> None:
    engines = PoolEngines(1, IterationModel(t0=0.02))
    traffic = SampledTraffic([10.0], [500.0], None, 5.0, 200)
    first, _ = simulate_pair(traffic, engines, engines, np.zeros_like, seeds=1, max_requests=20_000)
    assert 25 * 10.0 * 5.0 * 0.9 <= first.sent <= 2000


def test_clients_whom_nothing_turns_away_change_nothing() -> None:
    traffic = SampledTraffic([100.0, 900.0], [20.0, 1.0], None, 15.0, 3_000)
    found = [
        simulate_pair(
            traffic, PoolEngines(1, MODEL), PoolEngines(1, MODEL, slots=40), lambda p: 1e-5 * p, seeds=1, rules=rules
        )
        for rules in (None, ClientRules(timeout_s=1e6))
    ]
    for plain, limited in zip(*found, strict=True):
        assert limited.samples[0].ttft_s == pytest.approx(plain.samples[0].ttft_s, abs=1e-9)
        assert limited.samples[0].e2e_s == pytest.approx(plain.samples[0].e2e_s, abs=1e-9)


@pytest.mark.parametrize("door", [Door(10), Door(10, retries=1), Door(timeout_s=4.0), Door(timeout_s=4.0, retries=1)])
@pytest.mark.parametrize("load", [0.8, 1.3, 2.0])
def test_a_prefill_pool_beyond_its_capacity(door: Door, load: float) -> None:
    """Closed form and simulation of the same prompts: within .03 of the demand answered, twice the error of a run."""
    rng = np.random.Generator(np.random.PCG64(4))
    prompts = np.ceil(rng.exponential(2000.0, 400)) + 50
    model = IterationModel(t0=0.01, c=5e-5)
    times = model.time(0.0, 0.0, prompts, 0.0)
    replica = overloaded_prefill(times, np.full(400, 1 / 400))
    rules = ClientRules(door.max_queue, math.inf, door.timeout_s, door.retries, 1.0)
    traffic = SampledTraffic(prompts, np.ones(400), None, load * replica.capacity_per_s, 12_000)
    first, _ = simulate_pair(traffic, PoolEngines(1, model), PoolEngines(1, model), np.zeros_like, seeds=1, rules=rules)
    assert first.clients is not None
    found = replica.at(first.clients["demand_per_s"], door)
    share = first.clients["goodput_per_s"] / first.clients["demand_per_s"]
    assert found.answered_share == pytest.approx(min(share, 1.0), abs=0.03)
    assert found.amplification == pytest.approx(first.clients["amplification"], abs=0.1)


def test_a_session_comes_back_after_its_answer_and_finds_its_prompt_but_not_the_answer() -> None:
    """Two calls, worked by hand: 1,000 tokens and 5 out; 10 s later 2,000 tokens, of which 992 are whole blocks of the first."""
    calls = Sessions.of(
        np.zeros(2, dtype=np.int64), np.array([0.0, 10.0]), np.array([1000.0, 2000.0]), np.array([5.0, 1.0])
    )
    assert calls.cached_tokens.tolist() == [0.0, 1005.0] and calls.prefilled(np.ones(2)).cached_tokens.tolist() == [
        0.0,
        1000.0,
    ]
    assert calls.prefilled(np.array([4.0, 4.0])).times_s.tolist() == [0.0, 14.0]
    prefill, decode = IterationModel(t0=0.1, c=1e-4), IterationModel(t0=0.02)
    coming_back = ComingBack(calls, 0.02, PrefixCache(math.inf))
    traffic = SampledTraffic([1000.0], [5.0], None, 0.02, 60)
    first, second = simulate_pair(
        traffic,
        PoolEngines(1, prefill, kv_tokens=100_000.0),
        PoolEngines(1, decode, kv_tokens=100_000.0),
        lambda prompt: 1e-3 * prompt,
        seeds=1,
        coming_back=coming_back,
    )
    assert first.clients is not None
    assert first.clients["cached_share"] == pytest.approx(992 / 3000, abs=0.02)  # as many second calls as first ones
    sample = second.samples[0]
    # nobody meets anybody at this rate: 0.1 s and 1,000 or 1,008 tokens at 0.1 ms; the first moves for 1 s and decodes 4 tokens
    assert sorted({round(t, 6) for t in sample.ttft_s}) == [0.2, 0.2008]
    assert sample.tpot_s == pytest.approx((1.0 + 4 * 0.02) / 4)


@pytest.mark.parametrize("routing", ["random", pytest.param("least", marks=pytest.mark.long)])
def test_calls_that_nobody_repeats_are_the_pools_one_after_the_other(routing: str) -> None:
    """Sessions of one call: the pools that advance together are the pools one after the other, within the error of a run."""
    rng = np.random.default_rng(5)
    inputs, outputs = rng.integers(50, 2000, 400).astype(float), rng.integers(1, 120, 400).astype(float)
    alone = Sessions.of(np.arange(400), np.zeros(400), inputs, outputs)
    engines = PoolEngines(3, MODEL, routing=routing), PoolEngines(2, MODEL, slots=40, kv_tokens=1e6, routing=routing)
    traffic = SampledTraffic(inputs, outputs, None, 35.0, 8_000)
    plain = simulate_pair(traffic, *engines, lambda p: 1e-5 * p, seeds=1)
    back = simulate_pair(
        traffic,
        *(replace(e, kv_tokens=1e6) for e in engines),
        lambda p: 1e-5 * p,
        seeds=1,
        coming_back=ComingBack(alone, 35.0, PrefixCache(math.inf)),
    )
    for metric, k in (("ttft_s", 0), ("tpot_s", 1), ("e2e_s", 1)):
        for level in (0.5, 0.9):
            expected = plain[k].quantile(metric, level).value
            assert back[k].quantile(metric, level).value == pytest.approx(expected, rel=0.06)
