"""Latency of replicas and pools: exact limits, an independent iteration-level server, Pollaczek-Khinchine, refusals."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import calls
from hypothesis import given, settings
from hypothesis import strategies as st
from slot_pools import iteration_times, pool_latency

from planner.queueing.exact import phase_type_wait, two_phases
from planner.queueing.mixture import groups, mixture_quantiles, persistence
from planner.queueing.slots.chain import WAIT_SURVIVAL, SlotWait
from planner.queueing.slots.latency import ReplicaLatency

ROOT = Path(__file__).resolve().parents[2]
W, H = 0.008, 0.00065


def chat(rows: int = 300, seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    inputs = np.clip(np.ceil(rng.lognormal(6.6, 1.1, rows)), 1, 8192)
    outputs = np.clip(np.ceil(rng.lognormal(4.9, 0.95, rows)), 1, 2048)
    return inputs, outputs


# --- laws as mixtures of uniform pieces


@pytest.mark.parametrize(
    ("start", "width", "weight", "levels", "expected"),
    [
        ([0.0, 0.0], [0.0, 2.0], [0.5, 0.5], [0.25, 0.5, 0.75, 1.0], [0.0, 0.0, 1.0, 2.0]),
        ([-1.0, 0.0], [2.0, 0.0], [0.5, 0.5], [0.125, 0.25, 0.5, 0.75, 0.875], [-0.5, 0.0, 0.0, 0.0, 0.5]),
        ([0.0, 1.0, 1.0], [4.0, 0.0, 0.0], [0.5, 0.25, 0.25], [0.125, 0.5, 0.625, 0.75], [1.0, 1.0, 1.0, 2.0]),
        ([3.0], [0.0], [1.0], [0.0, 0.5, 1.0], [3.0, 3.0, 3.0]),
        ([0.0, 5.0], [0.0, 0.0], [0.5, 0.5], [0.4, 0.6], [0.0, 5.0]),
    ],
)
def test_point_masses_among_pieces(start, width, weight, levels, expected) -> None:
    # by hand: the CDF is a sum of ramps and jumps
    assert mixture_quantiles(start, width, weight, levels) == pytest.approx(expected, abs=1e-12)


def test_mixture_quantiles_against_sampling() -> None:
    rng = np.random.default_rng(2)
    start, width, weight = rng.uniform(0, 5, 40), rng.uniform(0, 2, 40), rng.uniform(0, 1, 40)
    pick = rng.choice(40, size=400_000, p=weight / weight.sum())
    sample = start[pick] + rng.random(400_000) * width[pick]
    levels = [0.01, 0.25, 0.5, 0.9, 0.99]
    np.testing.assert_allclose(
        mixture_quantiles(start, width, weight, levels), np.quantile(sample, levels), atol=0.03, rtol=0
    )


def test_mixture_of_points_is_their_quantile() -> None:
    got = mixture_quantiles([3.0, 1.0, 2.0], [0.0, 0.0, 0.0], [0.2, 0.5, 0.3], [0.1, 0.49, 0.51, 0.79, 0.81, 0.99])
    np.testing.assert_allclose(got, [1, 1, 2, 2, 3, 3], rtol=1e-6)


def test_groups_keep_mass_and_mean() -> None:
    rng = np.random.default_rng(0)
    values, weight = np.ceil(rng.lognormal(5, 1.5, 5000)), rng.random(5000)
    v, w = groups(values, weight, 30)
    assert len(v) <= 40
    assert w.sum() == pytest.approx(weight.sum())
    assert v @ w == pytest.approx(values @ weight)
    exact, mass = groups(np.array([2.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0]), 10)
    assert exact.tolist() == [1.0, 2.0] and mass.tolist() == [2.0, 4.0]


def test_persistence_limits() -> None:
    """One step keeps the whole deviation; many steps average it away as sqrt(2 / x)."""
    assert persistence(np.array([1e-6]), 1.0)[0] == pytest.approx(1.0, abs=1e-4)
    assert persistence(np.array([1e4]), 1.0)[0] == pytest.approx(math.sqrt(2e-4), rel=1e-3)


# --- the wait of the delayed


@pytest.mark.parametrize("load", [0.3, 0.8, 0.97])
@pytest.mark.parametrize("law", ["constant", "two", "exponential"])
def test_one_server_is_pollaczek_khinchine(load: float, law: str) -> None:
    if law == "constant":
        k, w = np.array([200.0]), np.array([1.0])
    elif law == "two":
        k, w = np.array([50.0, 800.0]), np.array([0.8, 0.2])
    else:
        q = (np.arange(2000) + 0.5) / 2000
        k, w = -200.0 * np.log1p(-q), np.full(2000, 1 / 2000)
    mean, second = w @ k, w @ k**2
    edges = SlotWait(k, w).edges(1, load)
    rng = np.random.default_rng(4)
    # the delayed wait of M/G/1: a geometric number (at least one) of residual lives
    # the hundredth part of 60,000 strays by 0.9% of an exponential tail's quantile, the mean by 0.4%
    count = rng.geometric(1 - load, 60_000)
    total = np.zeros(60_000)
    owner = np.repeat(np.arange(60_000), count)
    life = rng.choice(len(k), size=len(owner), p=w * k / mean)
    np.add.at(total, owner, k[life] * rng.random(len(owner)))
    assert total.mean() == pytest.approx(second / (2 * mean * (1 - load)), rel=0.03)
    for survival in (0.5, 0.2, 0.05, 0.01):
        at = float(edges[np.flatnonzero(np.isclose(survival, WAIT_SURVIVAL))[0]])
        assert at == pytest.approx(np.quantile(total, 1 - survival), rel=0.04)


@pytest.mark.parametrize("servers", [2, 16, 128])
def test_exponential_lives_wait_exponentially(servers: int) -> None:
    """M/M/c: the delayed wait is exponential with rate c mu (1 - rho), whatever c."""
    q = (np.arange(4000) + 0.5) / 4000
    edges = SlotWait(-1000.0 * np.log1p(-q), np.full(4000, 1 / 4000)).edges(servers, 0.8)
    expected = -np.log(WAIT_SURVIVAL) * 1000.0 / (servers * 0.2)
    np.testing.assert_allclose(edges[1:12], expected[1:12], rtol=0.03)


@pytest.mark.parametrize(
    ("servers", "load", "scv", "tolerance"), [(2, 0.5, 10.0, 0.01), (8, 0.85, 4.0, 0.01), (96, 0.9, 10.0, 0.15)]
)
def test_lives_of_two_phases_wait_as_before_their_exact_queue(
    servers: int, load: float, scv: float, tolerance: float
) -> None:
    """Newton on the matrix exponential is another way to the same quantiles; more than 32 slots are scaled from 32."""
    phases = two_phases(scv, 6.0 * (1.0 + scv) ** 2)
    assert phases is not None
    p, r = np.array([phases.first, 1.0 - phases.first]), np.array([phases.rate_1, phases.rate_2])
    x = np.concatenate(([0.0], np.geomspace(1e-3, 60.0 / r.min(), 4000)))
    mass = -np.diff(np.exp(-np.outer(x, r)) @ p)
    time = -np.diff((np.exp(-np.outer(x, r)) * (x[:, None] + 1.0 / r)) @ p)
    edges = SlotWait(300.0 * time / mass, mass).edges(servers, load)
    p_wait = phase_type_wait(load * servers, servers, phases)[0]
    exact = phase_type_wait(load * servers, servers, phases, 1.0 - p_wait * WAIT_SURVIVAL[1:13])[2]
    np.testing.assert_allclose(edges[1:13], 300.0 * exact, rtol=tolerance)


# --- limits


@pytest.mark.parametrize("routing", ["random", "rr", "jsq", "central"])
def test_no_load_is_one_request_alone(routing: str) -> None:
    at = pool_latency(
        1e-9, 4, 32, W, H, input_tokens=[1000.0], output_tokens=[101.0], chunk=512, routing=routing,
    )  # fmt: skip
    ttft, gap = 3 * (W + H), W + H
    np.testing.assert_allclose(at.ttft_s, ttft, rtol=2e-3)
    np.testing.assert_allclose(at.tpot_s, gap, rtol=2e-2)
    np.testing.assert_allclose(at.e2e_s, ttft + 100 * gap, rtol=2e-2)
    assert at.wait_probability < 1e-12 and at.slot_occupancy < 1e-6 and at.stable


@pytest.mark.parametrize("routing", ["random", "jsq"])
def test_overload_is_infinite_not_nan(routing: str) -> None:
    inputs, outputs = chat()
    replica = ReplicaLatency(inputs, outputs, iteration_time=iteration_times(32, W, H), chunk=512)
    most = replica.max_throughput(3)
    for factor in (1.0, 1.7):
        at = replica.predict(most * factor, 3, routing)
        assert not at.stable and np.all(np.isinf(at.ttft_s)) and np.all(np.isinf(at.e2e_s))
        assert at.slot_occupancy == 1.0 and at.wait_probability == 1.0 and at.load >= 1.0
        assert np.all(np.isfinite(at.tpot_s))
    close = replica.predict(most * 0.9999, 3, routing, quantiles=[0.0, 0.5, 0.999])
    assert close.stable and np.all(np.isfinite(close.ttft_s)) and close.ttft_s[1] > 0


@pytest.mark.parametrize("routing", ["random", "rr", "jsq", "central"])
@pytest.mark.parametrize("replicas", [1, 4])
def test_a_pool_does_what_its_slots_do(routing: str, replicas: int) -> None:
    """Three chunks, then an iteration a token: 104 of them; every slot does one in t(slots)."""
    slots = 32
    most = replicas * slots / (104.0 * (W + H * slots))
    for load in (0.3, 0.8):
        at = pool_latency(
            load * most, replicas, slots, W, H, input_tokens=[1100.0], output_tokens=[101.0], chunk=512, routing=routing
        )
        assert at.load == pytest.approx(load, rel=1e-12) and at.stable
        # Little: requests in slots are those that come in the time they spend there, of as many iterations each
        assert at.slot_occupancy == pytest.approx(at.mean_active / slots, rel=1e-9)
        # all but the prefill is 100 gaps, as long for each of the requests of one length
        assert at.mean_e2e_s - at.mean_ttft_s == pytest.approx(100.0 * at.mean_tpot_s, rel=0.01)


def test_requests_of_one_token_have_no_gaps() -> None:
    at = pool_latency(2.0, 1, 8, W, H, input_tokens=[600], output_tokens=[1], chunk=512)
    assert np.all(at.tpot_s == 0.0) and at.mean_tpot_s == 0.0
    assert np.all(np.isfinite(at.ttft_s)) and np.all(np.isfinite(at.e2e_s))


def test_one_slot_is_an_m_g_1_queue() -> None:
    """slots = 1: service K t(1), and the mean first-token time is Pollaczek-Khinchine's wait plus the prefill."""
    k, t1, load = 101.0, W + H, 0.6
    rate = load / (k * t1)
    at = pool_latency(rate, 1, 1, W, H, input_tokens=[500], output_tokens=[100], chunk=512)
    wait = load * k * t1 / (2 * (1 - load))
    assert at.wait_probability == pytest.approx(load, rel=1e-9)
    assert at.mean_delayed_wait_s * load == pytest.approx(wait, rel=0.01)
    assert at.mean_ttft_s == pytest.approx(wait + 2 * t1, rel=0.01)
    assert at.mean_e2e_s == pytest.approx(at.mean_ttft_s + 99 * t1, rel=0.01)


def test_little_end_to_end() -> None:
    """Busy slots = rate x (time from slot to last token): E2E without what is spent outside a slot."""
    inputs, outputs = chat()
    replica = ReplicaLatency(inputs, outputs, iteration_time=iteration_times(400, W, H), chunk=512)
    rate = 0.6 * replica.max_throughput()
    at = replica.predict(rate)
    rest = 0.5 * float(np.interp(at.mean_active, np.arange(401), iteration_times(400, W, H)))
    assert rate * (at.mean_e2e_s - rest) == pytest.approx(at.mean_active, rel=0.01)


def test_percentiles_are_mixed_not_added() -> None:
    """The 99th percentile of E2E is below the sum of those of its parts, the mean equals the sum of means."""
    inputs, outputs = chat()
    replica = ReplicaLatency(inputs, outputs, iteration_time=iteration_times(32, W, H), chunk=512)
    at = replica.predict(0.8 * replica.max_throughput(), quantiles=[0.5, 0.99])
    decode = np.quantile(outputs - 1, 0.99) * at.tpot_s[1]
    assert at.e2e_s[1] < at.ttft_s[1] + decode


def test_any_iteration_time_and_linear_agree() -> None:
    inputs, outputs = chat()
    linear = pool_latency(3.0, 2, 24, W, H, input_tokens=inputs, output_tokens=outputs, chunk=256)
    table = pool_latency(
        3.0, 2, 24, input_tokens=inputs, output_tokens=outputs, chunk=256, iteration_time=iteration_times(24, W, H)
    )
    np.testing.assert_array_equal(linear.ttft_s, table.ttft_s)
    steps = W + H * 8.0 * np.ceil(np.arange(25) / 8.0)
    stairs = pool_latency(3.0, 2, 24, input_tokens=inputs, output_tokens=outputs, chunk=256, iteration_time=steps)
    assert np.all(stairs.ttft_s > linear.ttft_s) and np.all(stairs.tpot_s > linear.tpot_s)


def test_weights_are_repeats() -> None:
    times = iteration_times(24, W, H)
    many = ReplicaLatency([300.0] * 3 + [4000.0], [50.0] * 3 + [500.0], iteration_time=times, chunk=512).predict(2.0)
    few = ReplicaLatency([300.0, 4000.0], [50.0, 500.0], [3.0, 1.0], iteration_time=times, chunk=512).predict(2.0)
    np.testing.assert_allclose(few.ttft_s, many.ttft_s, rtol=1e-9)
    np.testing.assert_allclose(few.e2e_s, many.e2e_s, rtol=1e-9)


@given(
    load=st.floats(0.02, 0.9),
    more=st.floats(1.02, 1.3),
    slots=st.integers(2, 96),
    g=st.integers(1, 6),
    routing=st.sampled_from(["random", "jsq", "central", "rr"]),
)
@settings(max_examples=60, deadline=None)
def test_more_load_is_never_faster(load: float, more: float, slots: int, g: int, routing: str) -> None:
    inputs, outputs = chat(67)
    replica = ReplicaLatency(inputs, outputs, iteration_time=iteration_times(slots, W, H), chunk=512)
    most = replica.max_throughput(g)
    low = replica.predict(load * most, g, routing)
    high = replica.predict(min(load * more, 0.97) * most, g, routing)
    slack = 0.98  # strata of the occupancy move with the load
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        a, b = getattr(low, name), getattr(high, name)
        assert np.all(np.isfinite(a)) and np.all(np.diff(a) >= -1e-9 * a[0])
        assert np.all(b >= slack * a), name
    assert high.slot_occupancy >= low.slot_occupancy * 0.99


@given(load=st.floats(0.1, 0.9), slots=st.integers(4, 64), routing=st.sampled_from(["random", "jsq", "central"]))
@settings(max_examples=30, deadline=None)
def test_one_more_replica_is_never_slower(load: float, slots: int, routing: str) -> None:
    inputs, outputs = chat(67)
    replica = ReplicaLatency(inputs, outputs, iteration_time=iteration_times(slots, W, H), chunk=512)
    rate = load * replica.max_throughput(4)
    here, more = replica.predict(rate, 4, routing), replica.predict(rate, 5, routing)
    assert np.all(more.ttft_s <= 1.02 * here.ttft_s) and np.all(more.tpot_s <= 1.02 * here.tpot_s)
    assert more.load < here.load


def test_bursts_slow_and_dispersion_one_is_poisson() -> None:
    inputs, outputs = chat()
    replica = ReplicaLatency(inputs, outputs, iteration_time=iteration_times(48, W, H), chunk=512)
    rate = 0.7 * replica.max_throughput()
    plain, same, bursty = (replica.predict(rate, dispersion=d) for d in (1.0, 1.0, 4.0))
    np.testing.assert_array_equal(plain.ttft_s, same.ttft_s)
    assert bursty.ttft_s[2] > 1.1 * plain.ttft_s[2] and bursty.tpot_s[2] > 1.05 * plain.tpot_s[2]
    assert replica.predict(rate * 4, 4, "rr").tpot_s[2] < plain.tpot_s[2]


# --- against iteration-level servers

GOLDEN = json.loads((ROOT / "tests" / "golden" / "iteration_server.json").read_text(encoding="utf-8"))["cases"]


def law_of(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    sys.path.insert(0, str(ROOT / "tests" / "golden"))
    try:
        from iteration_server import draw
    finally:
        sys.path.pop(0)
    rng = np.random.default_rng(case["law_seed"])
    inputs, outputs = (draw(tuple(case[name]), case["population"], rng) for name in ("input_law", "output_law"))
    return inputs, outputs


@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: f"{c['routing']}-{c['slots']}")
def test_against_an_independent_server(case: dict[str, Any]) -> None:
    inputs, outputs = law_of(case)
    at = pool_latency(
        case["arrival_rate"], case["replicas"], case["slots"], case["fixed_time"], case["time_per_slot"],
        input_tokens=inputs, output_tokens=outputs, chunk=case["chunk"],
        routing=case["routing"],
    )  # fmt: skip
    assert at.slot_occupancy == pytest.approx(case["slot_occupancy"], rel=0.05)
    assert at.ttft_s[0] == pytest.approx(case["ttft"][0], rel=0.10)
    assert at.ttft_s[2] == pytest.approx(case["ttft"][2], rel=0.10)
    assert at.tpot_s[0] == pytest.approx(case["tpot"][0], rel=0.03)
    assert at.tpot_s[2] == pytest.approx(case["tpot"][2], rel=0.10)
    # p90 of a law of two lengths falls between them
    np.testing.assert_allclose(at.e2e_s[[0, 2]], np.array(case["e2e"])[[0, 2]], rtol=0.10)


def test_shared_truth_within_the_bars(shared_data: Path) -> None:
    """Slot occupancy <= 0.85: occupancy within 5%, TTFT p50/p99 and TPOT p99 within 10% where prefill runs per slot."""
    assert (shared_data / "queueing" / "truth.json").is_file()
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks.accuracy.slots import independent
    finally:
        sys.path.pop(0)
    per_slot = np.array([served.predicted()[1] for served in independent() if served.truth[0] <= 0.85])
    assert len(per_slot) >= 30
    columns = [0, 1, 3, 6]  # occupancy, TTFT p50, TTFT p99, TPOT p99
    assert np.all(np.abs(per_slot[:, 0]) <= 0.06)  # one pool of 64 at rho 0.95, whose own interval is 5% wide
    assert np.mean(np.abs(per_slot[:, 0]) <= 0.05) > 0.95
    assert np.all(np.abs(per_slot[:, columns[1:]]) <= 0.10)
    assert np.all(np.median(np.abs(per_slot), axis=0)[columns] <= 0.015)


def test_the_work_does_not_grow_with_the_pool() -> None:
    inputs, outputs = chat(300)
    replica = ReplicaLatency(inputs, outputs, iteration_time=iteration_times(128, W, H), chunk=512)
    few, many = (calls(lambda n=n: replica.predict(0.7 * replica.max_throughput(n), n, "jsq")) for n in (8, 800))  # type: ignore[misc]
    assert many < 2 * few


# --- refusals


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("input_tokens", {"input_tokens": [-1.0]}),
        ("input_tokens", {"input_tokens": [math.nan]}),
        ("output_tokens", {"output_tokens": [1.0, 2.0]}),
        ("weight", {"weight": [0.0]}),
        ("weight", {"weight": [-1.0]}),
        ("chunk", {"chunk": 0}),
        ("iteration_time", {"iteration_time": [0.1]}),
        ("iteration_time", {"iteration_time": [0.1, -0.1]}),
    ],
)
def test_nonsense_law_is_named(name: str, change: dict[str, object]) -> None:
    arguments: dict[str, object] = {
        "input_tokens": [10.0], "output_tokens": [5.0], "iteration_time": [0.0, 0.1, 0.2], "chunk": 512,
    }  # fmt: skip
    with pytest.raises(ValueError, match=name):
        ReplicaLatency(**{**arguments, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("arrival_rate", {"arrival_rate": -1.0}),
        ("arrival_rate", {"arrival_rate": math.inf}),
        ("replicas", {"replicas": 0}),
        ("replicas", {"replicas": 1.5}),
        ("routing", {"routing": "nearest"}),
        ("quantiles", {"quantiles": [1.0]}),
        ("quantiles", {"quantiles": [-0.1]}),
        ("dispersion", {"dispersion": math.nan}),
    ],
)
def test_nonsense_question_is_named(name: str, change: dict[str, object]) -> None:
    replica = ReplicaLatency([10.0], [5.0], iteration_time=[0.1, 0.1, 0.2], chunk=512)
    arguments: dict[str, object] = {"arrival_rate": 1.0, "replicas": 1}
    with pytest.raises(ValueError, match=name):
        replica.predict(**{**arguments, **change})  # type: ignore[arg-type]
