"""The sizes of single pools and why they are what they are, on latencies that are told."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from planner.predict.contract import PoolModel, Prediction
from planner.promise import Promise
from planner.question.compiled import Promises
from planner.shared.remarks import Remark
from planner.size.pool import (
    MOST_IDLE,
    Margin,
    Shortfall,
    broken,
    evaluate_pool,
    excess_of,
    smallest_pool,
    unsure,
    when_idle,
)

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances")


class Fixed(PoolModel):
    """Latencies that are told, whatever the rate."""

    def __init__(self, ttft: float, tpot: float = 0.01, capacity: float = 10.0) -> None:
        self.values, self.capacity = (ttft, tpot), capacity

    @property
    def capacity_per_s(self) -> float:
        return self.capacity

    def predict(self, rate: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        ttft, tpot = ((v,) * len(quantiles) for v in self.values)
        return Prediction(
            quantiles, {"ttft_s": ttft, "tpot_s": tpot, "e2e_s": ttft}, rate / (replicas * self.capacity), 0.0, 0.0, 0.0
        )


TTFT, TPOT = Promise("ttft_s", 0.5), Promise("tpot_s", 0.05)


def test_the_promise_that_is_missed_by_the_largest_factor() -> None:
    def found(ttft: float, tpot: float) -> Prediction:
        return Fixed(ttft, tpot).predict(5.0, 1, (0.99,))

    assert broken(found(0.5, 0.05), (TTFT, TPOT)) is None and broken(found(0.1, 0.01), ()) is None
    assert broken(found(0.6, 0.07), (TTFT, TPOT)) is TPOT and broken(found(0.8, 0.07), (TTFT, TPOT)) is TTFT
    assert broken(found(0.6, 0.01), (TTFT, TPOT)) is TTFT
    assert excess_of(found(1.0, 0.05), (TTFT, TPOT)) == pytest.approx(math.log(2.0))
    assert excess_of(found(0.25, 0.04), (TTFT, TPOT)) == pytest.approx(math.log(0.8))
    assert excess_of(found(0.25, 0.04), ()) == pytest.approx(math.log(0.5))
    late = Fixed(0.1).predict(20.0, 1, (0.99,))
    assert late.load == 2.0 and excess_of(late, (TTFT,)) == 700.0 and excess_of(found(0.0, 0.0), (TTFT,)) == -700.0


def test_shortfalls_in_order() -> None:
    miss, sure, near = Shortfall(TTFT, 0.75), Shortfall(TTFT, 0.4, 0.6), Shortfall(TTFT, 0.4, 0.9)
    assert miss.excess == 1.5 and not miss.unsure and Shortfall(TTFT, 0.25).excess == 0.5
    # kept by the profile's times, but not as surely as is asked: just beyond, the surer the nearer
    assert sure.unsure and near.unsure and 1.0 < near.excess < sure.excess < 1.0 + 1e-6
    assert not Shortfall(TTFT, 0.6, 0.2).unsure and Shortfall(TTFT, 0.6, 0.2).excess == pytest.approx(1.2)
    assert Shortfall(TTFT, 0.5, 0.2).unsure
    worst = when_idle(Fixed(0.3, 0.04), (TTFT, TPOT), (0.99,))
    assert worst == Shortfall(TPOT, 0.04) and when_idle(Fixed(0.3), (), (0.99,)) is None
    joint = Promise.joint({"ttft_s": 0.5, "tpot_s": 0.05}, 0.9)
    levels = (0.5, 0.9, 0.99)
    # of several at once the part that is broken alone says more
    assert when_idle(Fixed(0.3, 0.06), (joint,), levels) == Shortfall(Promise("tpot_s", 0.05, 0.9), 0.06)


def test_how_sure_an_idle_engine_can_be() -> None:
    """0.1 s before the engine and 0.3 s of iterations: within 0.5 s they may be 4/3 as long."""

    class Engine(Fixed):
        def __init__(self, slow: float) -> None:
            super().__init__(0.1 + 0.3 * slow)

    margin = Margin(2.0, 0.2)
    idle = 0.1 + 0.3 * margin.slow
    found = unsure(Shortfall(TTFT, idle), Engine(1.0), Engine(margin.slow), (0.99,), margin)
    from statistics import NormalDist

    assert found.best_s == pytest.approx(0.4) and found.chance == pytest.approx(
        NormalDist().cdf(math.log(4.0 / 3.0) / 0.2)
    )
    # a tenth longer at work than idle, 0.44 s and 0.33 s of them iterations: never as sure as the margin that was broken
    busy = unsure(Shortfall(TTFT, 1.1 * idle), Engine(1.0), Engine(margin.slow), (0.99,), margin)
    assert busy.best_s == pytest.approx(0.44) and busy.chance == pytest.approx(
        NormalDist().cdf(math.log(1.0 + 0.06 / 0.33) / 0.2)
    )
    same = Engine(1.0)
    own = Shortfall(TTFT, 0.6)
    assert unsure(own, same, same, (0.99,), margin) is own
    # what does not grow with the iterations is as sure as can be
    still = unsure(Shortfall(TTFT, 0.4), Fixed(0.4), Fixed(0.4), (0.99,), margin)
    assert still.chance == pytest.approx(1.0)


def test_why_a_pool_is_as_large_as_it_is() -> None:
    def why(promises: Promises, rate: float, least: int = 1) -> tuple[int, Remark]:
        size = smallest_pool(Fixed(0.1), rate, promises, least)
        assert isinstance(size, tuple)
        return size[0], size[2]

    plain = Promises((TTFT,))
    assert why(plain, 5.0) == (1, Remark("one_replica")) and why(plain, 85.0) == (
        10,
        Remark("utilization_cap", {"cap": 0.85}),
    )
    assert why(plain, 86.0) == (11, Remark("utilization_cap", {"cap": 0.85}))
    assert why(replace(plain, min_replicas=4), 5.0) == (4, Remark("minimum", {"replicas": 4}))
    assert why(replace(plain, min_replicas=4), 5.0, 6) == (6, Remark("hardware_floor"))
    assert why(replace(plain, min_replicas=4), 85.0, 6) == (10, Remark("utilization_cap", {"cap": 0.85}))
    assert why(Promises(()), 17.1) == (3, Remark("utilization_cap", {"cap": 0.85}))
    found = smallest_pool(Fixed(0.6), 85.0, plain)
    assert isinstance(found, Shortfall) and (found.promise, found.best_s) == (TTFT, 0.6)

    # one of two promises is broken by one replica fewer: 0.2 / (1 - load) and 0.04 / (1 - load)^2
    class Two(Fixed):
        def predict(self, rate: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
            left = 1.0 - rate / (10.0 * replicas)
            return Fixed(0.2 / left if left > 0 else math.inf, 0.02 / left**2 if left > 0 else math.inf).predict(
                rate, replicas, quantiles
            )

    size = smallest_pool(Two(0.0), 100.0, Promises((TTFT, TPOT)))
    # 1 - load >= 0.4 and >= sqrt(0.4)
    assert isinstance(size, tuple) and size[0] == math.ceil(10.0 / (1.0 - math.sqrt(0.4)))
    assert size[2] == Remark("promise", {"promise": "P99 TPOT"})
    assert size[1].load == pytest.approx(100.0 / (10.0 * size[0]))
    quick = smallest_pool(Two(0.0), 100.0, Promises((TTFT, TPOT)), quick=True)
    assert isinstance(quick, tuple) and quick[0] == size[0] and math.isnan(quick[1].load)


def test_of_a_pool_nobody_idle_enough_can_keep_the_least_well_kept_is_told() -> None:
    asked = []

    class Creeping(Fixed):
        """Just beyond its promises unless nothing at all is asked."""

        def predict(self, rate: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
            over = rate / replicas > 1e-9
            asked.append(replicas)
            return Fixed(0.51 if over else 0.49, 0.052 if over else 0.04).predict(rate, replicas, quantiles)

    found = smallest_pool(Creeping(0.0), 85.0, Promises((TTFT, TPOT)))
    assert isinstance(found, Shortfall) and (found.promise, found.best_s) == (TPOT, 0.052) and MOST_IDLE == 1000
    # idle within a fiftieth of the limit: the least that the load takes, and at once the most that anybody would buy
    assert {*asked} == {1, 10, 10_000}

    class Rising(Fixed):
        """0.48 s over what is idle."""

        def predict(self, rate: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
            return Fixed(0.48 / max(1.0 - rate / (10.0 * replicas), 1e-9)).predict(rate, replicas, quantiles)

    # a load of 0.04 keeps 0.5 s
    kept = smallest_pool(Rising(0.0), 85.0, Promises((TTFT,)), quick=True)
    assert isinstance(kept, tuple) and kept[0] == math.ceil(8.5 / 0.04)


def test_more_than_a_pool_bears_is_unstable() -> None:
    found = evaluate_pool(Fixed(0.1), 20.0, 2, (0.5, 0.99))
    assert found.load == 1.0 and found.latencies["ttft_s"] == (math.inf, math.inf)
    assert evaluate_pool(Fixed(0.1), 19.0, 2, (0.5,)).load == pytest.approx(0.95)
