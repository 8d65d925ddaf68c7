"""The smallest pool, against brute force on latency curves whose answer is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.fleet.pool import PoolSize, Shortfall, smallest_pool
from planner.methods.base import PoolModel, Prediction
from planner.promise import Promise
from planner.question.compiled import Promises

TTFT = Promises((Promise("ttft_s", 1.0),))


class Curve(PoolModel):
    """Latency t0 / (1 - load)^power: monotone, unbounded at capacity, t0 when idle."""

    def __init__(self, capacity: float, idle: float, power: float) -> None:
        self.capacity, self.idle, self.power = capacity, idle, power
        self.calls = 0

    @property
    def capacity_per_s(self) -> float:
        return self.capacity

    def at(self, rate: float, n: int) -> float:
        load = rate / (n * self.capacity_per_s)
        return math.inf if load >= 1.0 else self.idle / (1.0 - load) ** self.power

    def predict(self, rate: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        self.calls += 1
        values = (self.at(rate, replicas),) * len(quantiles)
        return Prediction(quantiles, values, values, values, 0.0, 0.0, 0.0, 0.0)


@given(
    capacity=st.floats(0.05, 50.0),
    rate=st.floats(0.01, 1e6),
    idle=st.floats(0.01, 0.95),
    power=st.sampled_from([0.5, 1.0, 2.0, 6.0]),
)
@settings(max_examples=200, deadline=None)
def test_one_replica_fewer_breaks_the_promise_or_the_cap(
    capacity: float, rate: float, idle: float, power: float
) -> None:
    curve = Curve(capacity, idle, power)
    size = smallest_pool(curve, rate, TTFT)
    assert isinstance(size, PoolSize)
    n = size.replicas
    assert curve.at(rate, n) <= 1.0
    assert rate <= 0.85 * n * capacity * (1.0 + 1e-9)
    if n > 1:
        assert curve.at(rate, n - 1) > 1.0 or rate > 0.85 * (n - 1) * capacity * (1.0 - 1e-9)
    assert curve.calls <= 40


def test_a_million_replicas_take_a_handful_of_predictions() -> None:
    curve = Curve(1.0, 0.5, 2.0)
    size = smallest_pool(curve, 1e6, TTFT)
    assert isinstance(size, PoolSize)
    # 0.5/(1-load)^2 <= 1 means load <= 1 - sqrt(0.5)
    assert size.replicas == math.ceil(1e6 / (1.0 - math.sqrt(0.5)))
    assert curve.calls < 30


def test_a_promise_no_size_keeps_is_a_shortfall_with_the_idle_value() -> None:
    size = smallest_pool(Curve(1.0, 1.5, 1.0), 10.0, TTFT)
    assert isinstance(size, Shortfall)
    assert size.best_s == pytest.approx(1.5, rel=1e-6)


def test_a_promise_that_only_idle_replicas_keep_is_a_shortfall() -> None:
    """0.9999 / (1 - load) <= 1 takes ten thousand replicas for the work of one: nobody buys them."""
    curve = Curve(1.0, 0.9999, 1.0)
    size = smallest_pool(curve, 10.0, TTFT)
    assert isinstance(size, Shortfall)
    assert 1.0 < size.best_s < 1.01
    assert curve.calls < 40


def test_an_exact_multiple_of_the_capacity_is_not_rounded_up() -> None:
    size = smallest_pool(Curve(10.0, 1e-6, 0.1), 85.0, TTFT)
    assert isinstance(size, PoolSize)
    assert size.replicas == 10


class Jam(Curve):
    """A curve that takes long to follow above a load of a half, with a guide that is off by a fifth."""

    def takes_long(self, arrival_rate_per_s: float, replicas: int) -> bool:
        return arrival_rate_per_s > 0.5 * replicas * self.capacity

    def guide(self) -> PoolModel:
        return Curve(self.capacity, 0.8 * self.idle, self.power)


@pytest.mark.parametrize("start", [9, 20, None])
def test_what_takes_long_and_is_far_beyond_a_promise_is_not_followed(start: float | None) -> None:
    jam, plain = Jam(1.0, 0.5, 6.0), Curve(1.0, 0.5, 6.0)
    size, expected = smallest_pool(jam, 7.0, TTFT, start=start), smallest_pool(plain, 7.0, TTFT, start=start)
    assert isinstance(size, PoolSize) and isinstance(expected, PoolSize)
    assert size.replicas == expected.replicas
    assert size.prediction == expected.prediction
    # up to 13 replicas only the guide was asked: nobody followed 0.5 / (1 - load)^6 s there
    assert all(n >= 14 or values == (pytest.approx(0.8 * jam.at(7.0, int(n))),) for n, values in size.trials)


class Guided(Curve):
    """A curve with a guide: of many replicas a number within one in 250 is taken."""

    def guide(self) -> PoolModel:
        return Curve(self.capacity, 0.9 * self.idle, self.power)


@pytest.mark.parametrize("rate", [20.0, 300.0, 1e4, 1e6])
def test_as_many_replicas_fewer_break_it_as_is_told(rate: float) -> None:
    curve = Guided(1.0, 0.5, 2.0)
    size = smallest_pool(curve, rate, TTFT)
    assert isinstance(size, PoolSize)
    fewer = size.binding.values.get("fewer", 1)
    assert size.binding.code == ("promise" if fewer == 1 else "promise_about")
    assert 1 <= fewer <= max(1, size.replicas / 250)
    assert curve.at(rate, size.replicas) <= 1.0 < curve.at(rate, size.replicas - fewer)
