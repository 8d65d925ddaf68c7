"""The closed form of one replica: exact limits, invariants, and a replay of Poisson arrivals, which shares nothing with it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner as fo
from benchmarks.accuracy.poisson import poisson, replayed
from planner.errors import InputError
from planner.machine.iteration import IterationModel
from planner.predict.bounds import idle_latency
from planner.predict.closed import POINTS, ClosedReplica, Room, occupancy
from planner.predict.records import Replicas
from planner.queueing.erlang import erlang_c
from planner.workload.pools import Lengths

MODEL = IterationModel(t0=0.0019, w=0.0051, b=23.5e-6, c=4.7e-6, h=1e-6, g=5e-8, a=7e-10, tau=128)
RNG = np.random.default_rng(7)
PROMPTS = np.ceil(RNG.lognormal(6.6, 0.9, 2000))
OUTPUTS = np.ceil(RNG.lognormal(4.9, 0.8, 2000))
LAW = Lengths(PROMPTS, OUTPUTS, np.ones(2000), np.zeros(1))
FEW = Lengths(PROMPTS[:300], OUTPUTS[:300], np.ones(300), np.zeros(1))
ONE = Replicas(1, MODEL, slots=256.0, token_budget=2048.0)
METRICS = ("ttft_s", "tpot_s", "e2e_s")
LEVELS = (0.5, 0.9, 0.99)


def at_load(replica: ClosedReplica, load: float):
    return replica.at(load * replica.limit.per_s)


# ------------------------------------------------------------------------------------------------- beside another program


@pytest.mark.parametrize(("budget", "load"), [(512.0, 0.5), (2048.0, 0.7), (8192.0, 0.6)])
def test_a_replay_agrees(budget: float, load: float) -> None:
    """40,000 requests: their means are known to 2%, their P99 to 6%."""
    engine = replace(ONE, token_budget=budget)
    replica = ClosedReplica(LAW, engine)
    found = at_load(replica, load)
    ttft, tpot = replayed(poisson(LAW, load * replica.limit.per_s, 40_000, 2), engine)
    assert found.mean("ttft_s") == pytest.approx(ttft[4000:].mean(), rel=0.04)
    assert found.quantiles("ttft_s", (0.99,))[0] == pytest.approx(np.quantile(ttft[4000:], 0.99), rel=0.1)
    assert found.mean("tpot_s") == pytest.approx(np.nanmean(tpot[4000:]), rel=0.025)
    assert found.quantiles("tpot_s", (0.5,))[0] == pytest.approx(np.nanquantile(tpot[4000:], 0.5), rel=0.03)


# ---------------------------------------------------------------------------------------------------- exact limits


def test_alone_it_is_idle_latency() -> None:
    engine = replace(ONE, token_budget=512.0)
    found = ClosedReplica(LAW, engine, overhead_s=0.02).at(0.0)
    ttft, tpot = idle_latency(LAW, engine)
    assert found.mean("ttft_s") == pytest.approx(ttft.mean() + 0.02, rel=2e-3)
    assert found.quantiles("ttft_s", LEVELS) == pytest.approx(np.quantile(ttft, LEVELS) + 0.02, rel=0.02)
    assert found.mean("tpot_s") == pytest.approx(np.nanmean(tpot), rel=2e-3)
    assert found.wait_probability == 0.0


def test_whoever_comes_late_finds_the_front_end_cold() -> None:
    cold = ClosedReplica(LAW, replace(ONE, wake_s=0.05)).at(1e-6)
    assert cold.mean("ttft_s") - ClosedReplica(LAW, ONE).at(1e-6).mean("ttft_s") == pytest.approx(0.05, rel=1e-9)


def test_constant_iterations_are_an_infinite_server() -> None:
    """With t = t0 every request lives D t0 whatever the others do: E[n] = lambda E[D] t0, TPOT = t0."""
    found = ClosedReplica(LAW, Replicas(1, IterationModel(t0=0.01), slots=1e5, token_budget=65_536.0)).at(20.0)
    assert found.quantiles("tpot_s", LEVELS) == pytest.approx((0.01,) * 3, rel=1e-6)
    assert found.running_mean == pytest.approx(20.0 * (OUTPUTS - 1).mean() * 0.01, rel=6e-3)
    # half an iteration until it begins and one of its own
    assert found.mean("ttft_s") == pytest.approx(0.015, rel=1e-3)


def test_product_form_with_constant_times_is_poisson() -> None:
    law = occupancy(10.0, np.array([1.0, 5.0, 20.0]), np.full(3, 0.5), Room(math.inf), 0.1)
    n = np.arange(law.size)
    expected = np.exp(-5.0 + n * math.log(5.0) - np.array([math.lgamma(k + 1) for k in n]))
    assert np.allclose(law, expected, atol=1e-9)


@pytest.mark.parametrize("slots", [8.0, 64.0])
@pytest.mark.parametrize("load", [0.8, 0.95])
def test_waits_for_slots_are_erlangs_where_outputs_are_geometric(slots: float, load: float) -> None:
    """Iterations of one length, prompts that cost nothing: M/M/c, as nearly as 200 iterations are a continuous life."""
    outputs = np.arange(1.0, 4001.0)
    law = Lengths(np.full(4000, 10.0), outputs + 1, (1 - 1 / 200) ** (outputs - 1), np.zeros(1))
    replica = ClosedReplica(law, Replicas(1, IterationModel(t0=0.02), slots=slots, token_budget=1e6))
    most = slots / (201 * 0.02)
    found = replica.at(load * most)
    waits = float(erlang_c(slots, load * slots))
    assert found.wait_probability == pytest.approx(waits, rel=0.07)
    exact = math.log(waits / 0.01) / (most * (1 - load))
    assert found.quantiles("ttft_s", (0.99,))[0] == pytest.approx(exact + 0.03, rel=0.04)


def test_requests_of_one_output_token_have_no_decode() -> None:
    replica = ClosedReplica(replace(LAW, output_tokens=np.ones(2000)), ONE)
    found = at_load(replica, 0.5)
    assert found.quantiles("tpot_s", LEVELS) == (0.0,) * 3 and found.running_mean == 0.0
    assert np.array_equal(found.ttft_s, found.e2e_s)


# ------------------------------------------------------------------------------------------------------ invariants


def test_latency_grows_with_the_rate() -> None:
    replica = ClosedReplica(LAW, ONE)
    found = [at_load(replica, x) for x in (0.1, 0.4, 0.6, 0.8, 0.9)]
    for metric in METRICS:
        rows = np.array([at.quantiles(metric, LEVELS) for at in found])
        assert np.all(np.diff(rows, axis=0) > -0.01 * rows[1:]), metric
        assert all(b > a for a, b in pairwise(at.mean(metric) for at in found))


@settings(max_examples=3)
@given(s=st.floats(0.01, 100.0), load=st.floats(0.05, 0.9))
def test_all_times_pressed_by_one_factor_are_one_clock(s: float, load: float) -> None:
    timed = ("t0", "w", "b", "c", "g", "h", "a")
    slow = IterationModel.from_dict({k: v * s if k in timed else v for k, v in MODEL.to_dict().items()})
    one, other = (at_load(ClosedReplica(FEW, replace(ONE, iteration=m)), load) for m in (MODEL, slow))
    for metric in METRICS:
        assert other.mean(metric) == pytest.approx(s * one.mean(metric), rel=1e-3)
        assert other.quantiles(metric, LEVELS) == pytest.approx(
            [s * x for x in one.quantiles(metric, LEVELS)], rel=1e-2
        )


def test_littles_law_holds() -> None:
    replica = ClosedReplica(LAW, ONE)
    found, rate = at_load(replica, 0.7), 0.7 * replica.limit.per_s
    assert found.e2e_s.mean() == pytest.approx(found.ttft_s.mean() + found.running_mean / rate, rel=1e-9)
    assert found.ttft_s.shape == (POINTS,)


def test_the_same_question_has_the_same_answer() -> None:
    first, second = (at_load(ClosedReplica(LAW, ONE), 0.6) for _ in range(2))
    assert np.array_equal(first.e2e_s, second.e2e_s)


@settings(max_examples=6)
@given(
    load=st.floats(0.0, 0.97),
    budget=st.sampled_from([256.0, 1024.0, 8192.0]),
    slots=st.sampled_from([2.0, 64.0, 512.0]),
    mean=st.floats(20.0, 8000.0),
    steps=st.floats(1.0, 800.0),
    kv=st.sampled_from([1e5, 1e6, math.inf]),
)
def test_any_engine_gives_ordered_finite_numbers(
    load: float, budget: float, slots: float, mean: float, steps: float, kv: float
) -> None:
    law = Lengths(
        np.ceil(PROMPTS[:300] / PROMPTS[:300].mean() * mean), np.ceil(OUTPUTS[:300] / OUTPUTS[:300].mean() * steps),
        np.ones(300), np.full(1, 0.2),
    )  # fmt: skip
    replica = ClosedReplica(law, replace(ONE, token_budget=budget, slots=slots, kv_tokens=kv))
    found = at_load(replica, load)
    for metric in METRICS:
        values = np.array(found.quantiles(metric, LEVELS))
        assert np.isfinite(values).all() and (values >= 0.0).all() and (np.diff(values) >= 0.0).all()
    assert 0.0 <= found.wait_probability <= 1.0 and found.running_mean >= 0.0


def test_beyond_the_limit_nothing_ends() -> None:
    found = at_load(ClosedReplica(LAW, ONE), 1.01)
    assert found.load > 1.0 and found.quantiles("ttft_s", LEVELS) == (math.inf,) * 3
    assert math.isinf(found.mean("tpot_s"))


def test_what_it_does_not_know_is_refused() -> None:
    with pytest.raises(InputError, match="iterations of their own"):
        ClosedReplica(LAW, replace(ONE, iteration=replace(MODEL, apart=1.0)))
    with pytest.raises(InputError, match="rate"):
        ClosedReplica(LAW, ONE).at(-1.0)


# ------------------------------------------------------------------------------------------------------- as a method

QUESTION = {"slo": 0.5, "rate": 50.0, "method": "closed", "pools": 1, "tp": 1, "token_budget": 2048}


@pytest.mark.usefixtures("without_chances")
def test_a_plan_by_it_says_what_it_assumes() -> None:
    plan = fo.plan(isl=200, osl=20, isl_spread=0, osl_spread=0, confidence=0.5, **{**QUESTION, "rate": 300.0})
    pool = plan.pools[0]
    assert pool.replicas >= 1
    text = " ".join((*plan.notes, *plan.assumptions))
    assert "Poisson arrivals and every replica chosen at random" in text
    assert "--routing random" in text


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("routing", "p2c"), ("shape", "disaggregated"), ("shape", "both"), ("surge", "3x/60s"), ("in_flight", 30),
        ("burst", "paced:4"), ("max_queue", 10), ("client_timeout", "5s"), ("max_queued_tokens", 10_000),
    ],
)  # fmt: skip
def test_options_it_does_not_know_are_refused(option: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{option} .*: method closed knows random routing and Poisson arrivals alone"):
        fo.plan("azure", **{**QUESTION, option: value})


def test_sessions_are_refused() -> None:
    with pytest.raises(InputError, match="method closed: knows no sessions"):
        fo.plan("turns=12,first=4000,growth=900,osl=250,gap=40s", **QUESTION)
