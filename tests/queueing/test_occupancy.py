"""The occupancy chain: exact limits, the closed form against the sum, monotonicity, refusals."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slot_pools import iteration_times, occupancy

from planner.queueing.erlang import erlang_c
from planner.queueing.slots.chain import OccupancyChain, replica_dispersion

W, H = 0.008, 0.00065


def exact_law(work: Fraction, times: list[Fraction], slots: int) -> list[Fraction]:
    """The product form in rational arithmetic, states 0..slots (the last with everything beyond it)."""
    weights = [Fraction(1)]
    for n in range(1, slots + 1):
        weights.append(weights[-1] * work * times[n] / n)
    weights[-1] /= 1 - work * times[slots] / slots
    total = sum(weights)
    return [w / total for w in weights]


@pytest.mark.parametrize("load", [0.05, 0.5, 0.9, 0.99])
def test_product_form_against_rational_arithmetic(load: float) -> None:
    slots = 12
    times = [Fraction(8, 1000) + Fraction(65, 100_000) * n for n in range(slots + 1)]
    work = Fraction(load).limit_denominator(1000) * slots / times[slots]
    expected = [float(p) for p in exact_law(work, times, slots)]
    got = OccupancyChain(np.array([float(t) for t in times]), slots).solve(float(work))
    assert got.first == 0
    np.testing.assert_allclose(got.probability, expected, rtol=1e-11)
    assert got.all_busy == pytest.approx(expected[-1], rel=1e-11)
    assert got.slot_occupancy == pytest.approx(sum(n * p for n, p in enumerate(expected)) / slots, rel=1e-11)


def negative_binomial_law(rate: float, k: float, slots: int, g: int = 1) -> tuple[np.ndarray, float]:
    """The pool of t = W + H n in closed form: weights of states 0..g slots, and the load; r = 1 + g W / H."""
    r, p, c = 1.0 + g * W / H, H * rate * k / g, g * slots
    weight = np.exp([math.lgamma(n + r) - math.lgamma(n + 1) - math.lgamma(r) + n * math.log(p) for n in range(c + 1)])
    load = p * (r - 1 + c) / c
    weight[-1] /= 1 - load
    return weight / weight.sum(), load


@pytest.mark.parametrize(("slots", "load"), [(1, 0.4), (8, 0.8), (64, 0.9), (500, 0.97)])
def test_without_slot_time_it_is_erlang_c(slots: int, load: float) -> None:
    rate = load * slots / (100 * 0.01)
    chain = occupancy(rate, 100.0, iteration_times(slots, 0.01, 0.0), slots)
    assert chain.all_busy == pytest.approx(erlang_c(slots, load * slots), rel=1e-9)


@pytest.mark.parametrize(("g", "slots", "rate"), [(1, 128, 5.0), (1, 16, 3.0), (6, 20, 21.0)])
def test_linear_times_are_negative_binomial(g: int, slots: int, rate: float) -> None:
    expected, load = negative_binomial_law(rate, 220.0, slots, g)
    chain = occupancy(rate, 220.0, iteration_times(slots, W, H), slots, g, "jsq")
    # fewer requests than replicas: each runs at t(1), not at less; that hardly moves the tail
    assert chain.all_busy == pytest.approx(expected[-1], rel=1e-9 if g == 1 else 0.05)
    assert chain.load == pytest.approx(load, rel=1e-12)


def test_negative_binomial_moments_when_slots_are_plenty() -> None:
    r, p = 1.0 + W / H, H * 2.0 * 220.0
    free = occupancy(2.0, 220.0, iteration_times(400, W, H), 400)
    states = np.arange(free.first, free.first + len(free.probability))
    mean = free.probability @ states
    assert mean == pytest.approx(r * p / (1 - p), rel=1e-9)
    assert free.probability @ (states - mean) ** 2 == pytest.approx(r * p / (1 - p) ** 2, rel=1e-9)


@pytest.mark.parametrize("routing", ["random", "rr", "jsq", "central"])
@pytest.mark.parametrize("load", [0.2, 0.8, 0.97])
def test_little_per_iteration(routing: str, load: float) -> None:
    """Iterations done per second, E[n / t(n)], are the iterations brought, lambda E[K]."""
    slots, g, k = 32, 4, 150.0
    times = iteration_times(slots, W, H)
    rate = load * g * slots / (k * times[-1])
    got = occupancy(rate, k, times, slots, g, routing)
    if routing == "rr":  # the spread is scaled, the mean only about kept
        assert got.mean_active == pytest.approx(occupancy(rate, k, times, slots, g).mean_active, rel=0.2)
        return
    n = np.arange(got.first, got.first + len(got.probability))
    per_replica = np.maximum(n / got.replicas, 1.0)
    done = got.probability @ (n / np.interp(per_replica, np.arange(slots + 1), times))
    assert done == pytest.approx(rate * k * got.replicas / g, rel=1e-9)


def test_any_iteration_time() -> None:
    """A staircase: the ratio of neighbouring states is work x t(n) / n whatever t is."""
    slots = 20
    times = np.concatenate(([0.0], 0.01 + 0.004 * (np.arange(slots) // 8)))
    got = OccupancyChain(times, slots).solve(500.0)
    ratio = got.probability[1:-1] / got.probability[:-2]
    n = np.arange(got.first + 1, got.first + len(got.probability) - 1)
    np.testing.assert_allclose(ratio, 500.0 * times[n] / n, rtol=1e-12)


def test_no_load_and_too_much() -> None:
    times = iteration_times(16, W, H)
    empty = occupancy(0.0, 200.0, times, 16)
    assert (empty.slot_occupancy, empty.all_busy, empty.load) == (0.0, 0.0, 0.0)
    most = 16 / (200 * (W + H * 16))
    near = occupancy(most * (1 - 1e-6), 200.0, times, 16)
    assert near.stable and near.all_busy > 0.9999 and near.slot_occupancy > 0.9999
    over = occupancy(1.5 * most, 200.0, times, 16, replicas=1)
    assert not over.stable
    assert (over.all_busy, over.slot_occupancy, over.mean_active) == (1.0, 1.0, 16.0)
    assert over.load == pytest.approx(1.5)


@given(
    load=st.floats(0.01, 0.98),
    more=st.floats(1.0, 1.5),
    slots=st.integers(1, 200),
    ratio=st.floats(0.0, 20.0),
    routing=st.sampled_from(["random", "jsq", "central", "rr"]),
    g=st.integers(1, 8),
)
@settings(max_examples=150, deadline=None)
def test_monotone_in_load(load: float, more: float, slots: int, ratio: float, routing: str, g: int) -> None:
    times = iteration_times(slots, 0.01, 0.01 * ratio / slots)
    most = g * slots / (100.0 * times[-1])
    low = occupancy(load * most, 100.0, times, slots, g, routing)
    high = occupancy(min(load * more, 1.2) * most, 100.0, times, slots, g, routing)
    assert 0 <= low.all_busy <= 1 and 0 <= low.slot_occupancy <= 1
    assert high.all_busy >= low.all_busy - 1e-12
    assert high.slot_occupancy >= low.slot_occupancy - 1e-9


@given(load=st.floats(0.05, 0.95), slots=st.integers(1, 100), g=st.integers(1, 6))
@settings(max_examples=80, deadline=None)
def test_more_replicas_or_slots_wait_less(load: float, slots: int, g: int) -> None:
    times = iteration_times(slots, W, H)
    rate = load * g * slots / (200.0 * times[-1])
    here = occupancy(rate, 200.0, times, slots, g)
    assert occupancy(rate, 200.0, times, slots, g + 1).all_busy <= here.all_busy + 1e-12
    assert occupancy(rate, 200.0, iteration_times(slots + 1, W, H), slots + 1, g).all_busy <= here.all_busy + 1e-12
    pooled = occupancy(rate, 200.0, times, slots, g, "jsq")
    assert pooled.all_busy <= here.all_busy * (1 + 1e-9) + 1e-12


def test_dispersion_spreads_and_round_robin_narrows() -> None:
    times = iteration_times(48, W, H)
    rate = 8 * 2.8
    plain, bursty, dealt = (
        occupancy(rate, 220.0, times, 48, 8, routing, dispersion)
        for routing, dispersion in (("random", 1.0), ("random", 9.0), ("rr", 1.0))
    )
    assert bursty.all_busy > plain.all_busy > dealt.all_busy
    assert replica_dispersion(9.0, 8, "random") == 2.0
    assert replica_dispersion(9.0, 3, "rr") == 3.0


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("slots", {"slots": 0}),
        ("slots", {"slots": 2.5}),
        ("iteration_time", {"iteration_time": [0.1, 0.1]}),
        ("iteration_time", {"iteration_time": [0.0, 0.1, 0.0, 0.1]}),
        ("replicas", {"replicas": 0}),
    ],
)
def test_nonsense_is_named(name: str, change: dict[str, object]) -> None:
    arguments: dict[str, object] = {"iteration_time": [0.0, 0.1, 0.1, 0.1], "slots": 3}
    with pytest.raises(ValueError, match=name):
        OccupancyChain(**{**arguments, **change})  # type: ignore[arg-type]
    chain = OccupancyChain(np.array([0.0, 0.1]), 1)
    for work, peakedness in ((-1.0, 1.0), (math.nan, 1.0), (1.0, -0.1)):
        with pytest.raises(ValueError, match=r"work|peakedness"):
            chain.solve(work, peakedness)
    with pytest.raises(ValueError, match="routing"):
        replica_dispersion(1.0, 2, "best")
