"""A prefill and a decode pool: queues that are known, and calls that come back, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from planner.ask.simulate import session_traffic
from planner.machine.iteration import IterationModel
from planner.papers.pool import simulate
from planner.papers.presets import PoolEngines
from planner.papers.traffic import SampledTraffic
from planner.predict.records import PrefixCache
from planner.workload.sending import Clients
from planner.workload.sessions import Sessions

MODEL = IterationModel(t0=4e-3, w=2e-3, b=3e-5, g=2e-7, h=2e-5, a=2e-9)


@pytest.mark.parametrize("routing", ["random", "p2c", "least", "rr"])
def test_prefill_of_equal_prompts_is_md1_or_better(routing: str) -> None:
    """Three replicas of deterministic service at load .8: random routing is M/D/1, whose mean wait is rho s/(2 (1 - rho));
    every other routing waits less, and no less than one server three times as fast."""
    engines = PoolEngines(3, IterationModel(t0=0.05), routing=routing)
    traffic = SampledTraffic([100.0], [1.0], None, 0.8 * 3 / 0.05, 60_000)
    first, second = simulate(traffic, engines, (PoolEngines(1, MODEL), np.zeros_like), seeds=2)
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
        found = simulate(
            traffic, PoolEngines(1, prefill), (PoolEngines(1, decode, slots=8), lambda length: 0.0 * length), seeds=1
        )
        assert tuple(r.stable for r in found) == stable


def test_clients_whom_nothing_turns_away_change_nothing() -> None:
    traffic = SampledTraffic([100.0, 900.0], [20.0, 1.0], None, 15.0, 3_000)
    found = [
        simulate(traffic, PoolEngines(1, MODEL), (PoolEngines(1, MODEL, slots=40), lambda p: 1e-5 * p), clients=rules)
        for rules in (None, Clients(timeout_s=1e6))
    ]
    for plain, limited in zip(*found, strict=True):
        assert limited.samples[0].ttft_s == pytest.approx(plain.samples[0].ttft_s, abs=1e-9)
        assert limited.samples[0].e2e_s == pytest.approx(plain.samples[0].e2e_s, abs=1e-9)


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
    first, second = simulate(
        session_traffic(calls, 0.02, 60),
        PoolEngines(1, prefill, kv_tokens=100_000.0),
        (PoolEngines(1, decode, kv_tokens=100_000.0), lambda prompt: 1e-3 * prompt),
        cache=PrefixCache(),
    )
    assert first.clients is not None
    # as many second calls as first ones, but for one at an end
    assert first.clients["cached_share"] == pytest.approx(992 / 3000, abs=0.02)
    sample = second.samples[0]
    # nobody meets anybody at this rate: 0.1 s and 1,000 or 1,008 tokens at 0.1 ms; the first moves for 1 s and decodes 4 tokens
    assert sorted({round(t, 6) for t in sample.ttft_s}) == [0.2, 0.2008]
    assert sample.tpot_s == pytest.approx((1.0 + 4 * 0.02) / 4)
