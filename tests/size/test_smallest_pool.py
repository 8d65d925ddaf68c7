"""The smallest pool, against brute force on latency curves whose answer is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.predict.contract import PoolModel, Prediction
from planner.predict.replayed import ReplayPool
from planner.predict.traffic import WHOLE
from planner.promise import PROMISE_METRICS, Promise
from planner.question.compiled import Promises, compile_question
from planner.question.options import PlanInputs
from planner.size.pool import Shortfall, smallest_pool
from planner.size.problem import FleetProblem
from planner.workload.workload import Workload

pytestmark = pytest.mark.usefixtures("fewer_replayed", "short_traces", "without_chances")

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
        return Prediction(quantiles, dict.fromkeys(PROMISE_METRICS, values), 0.0, 0.0, 0.0, 0.0)


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
    assert isinstance(size, tuple)
    n = size[0]
    assert curve.at(rate, n) <= 1.0
    assert rate <= 0.85 * n * capacity * (1.0 + 1e-9)
    if n > 1:
        assert curve.at(rate, n - 1) > 1.0 or rate > 0.85 * (n - 1) * capacity * (1.0 - 1e-9)
    assert curve.calls <= 60


def test_a_million_replicas_take_a_handful_of_predictions() -> None:
    curve = Curve(1.0, 0.5, 2.0)
    size = smallest_pool(curve, 1e6, TTFT)
    assert isinstance(size, tuple)
    # 0.5/(1-load)^2 <= 1 means load <= 1 - sqrt(0.5)
    assert size[0] == math.ceil(1e6 / (1.0 - math.sqrt(0.5)))
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
    assert isinstance(size, tuple)
    assert size[0] == 10


@pytest.mark.parametrize("rate", [20.0, 300.0, 1e4, 1e6])
@pytest.mark.parametrize("start", [None, 1.0, 1.3, 4.0])
def test_the_answer_hangs_on_no_start(rate: float, start: float | None) -> None:
    curve = Curve(1.0, 0.5, 2.0)
    size = smallest_pool(curve, rate, TTFT, start=None if start is None else start * rate)
    assert isinstance(size, tuple)
    assert size[2].code == "promise"
    assert curve.at(rate, size[0]) <= 1.0 < curve.at(rate, size[0] - 1)


class Telling(Curve):
    """A curve that tells how far it is from its limit."""

    def excess(self, rate: float, replicas: int, promises: Sequence[Promise]) -> float:
        return math.log(self.at(rate, replicas) / promises[0].limit_s)


@given(
    rate=st.floats(0.5, 1e5),
    idle=st.floats(0.01, 0.95),
    power=st.sampled_from([0.1, 0.5, 1.0, 2.0, 6.0]),
    start=st.sampled_from([None, 0.5, 1.2, 2.0, 5.0]),
)
@settings(max_examples=200, deadline=None)
def test_what_is_told_of_a_limit_changes_which_numbers_are_asked_about_and_no_answer(
    rate: float, idle: float, power: float, start: float | None
) -> None:
    telling, silent = Telling(1.0, idle, power), Curve(1.0, idle, power)
    begin = None if start is None else start * rate
    found, plain = (smallest_pool(curve, rate, TTFT, start=begin, quick=True) for curve in (telling, silent))
    assert isinstance(found, tuple) and isinstance(plain, tuple)
    assert found[0] == plain[0]
    # growing steps from either side, whatever is told: no more than twice what halves take
    assert telling.calls <= 2 * silent.calls + 10


def test_the_busiest_episodes_refuse_only_what_all_requests_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number of replicas, three gateways and three limits: the same answers where the whole trace is replayed each time."""
    asked = []
    breaks = ReplayPool._breaks_when_busiest

    def counted(self: ReplayPool, *args: Any) -> bool:
        asked.append(breaks(self, *args))
        return asked[-1]

    def answers() -> list[bool]:
        found = []
        for routing in ("p2c", "random", "rr"):
            inputs = PlanInputs(promises=TTFT.latency, routing=routing, pools=1)
            problem = FleetProblem(compile_question(inputs, Workload.from_file("azure")))
            for k in (0, 3):
                built = problem.build(0, 1, k)
                assert built is not None
                for n, limit in itertools.product((1, 2, 3, 4, 6), (0.35, 0.5, 1.5)):
                    model = built.model.under(1.15)
                    found.append(model.keeps(problem.rate, n, (Promise("ttft_s", limit),)))
        return found

    monkeypatch.setattr(ReplayPool, "_breaks_when_busiest", counted)
    quick = answers()
    monkeypatch.setattr(ReplayPool, "_breaks_when_busiest", lambda self, *args: False)
    assert quick == answers()
    # and they do refuse most of what is refused
    assert sum(asked) > 0.5 * (len(quick) - sum(quick))


@pytest.mark.parametrize("rate", [8.0, 120.0])
def test_how_far_a_latency_is_from_its_limit_hangs_on_nobody_who_asked_before(rate: float) -> None:
    """Rows of a page share what a thread replayed: which were answered on it must not decide what is asked next."""

    def model() -> ReplayPool:
        inputs = PlanInputs(promises=TTFT.latency, rate=rate, pools=1)
        built = FleetProblem(compile_question(inputs, Workload.from_file("azure"))).build(0, 1, 0)
        assert built is not None and isinstance(built.model, ReplayPool)
        return built.model

    n = math.ceil(rate / 2.0)
    tight, loose = (Promise("ttft_s", limit) for limit in (0.6, 1.5))
    first = model()
    assert first.keeps(rate, n, (tight,))
    told = first.excess(rate, n, (tight,))
    # what the tighter one counted late answers this one without a replay, and another was the last
    other = model()
    assert other.keeps(rate, n, (tight,)) and other.keeps(rate, n + 1, (loose,)) and other.keeps(rate, n, (tight,))
    assert other.excess(rate, n, (tight,)) == told < 0.0
    # the order statistic that may just be late, beside an interpolated quantile of the same replay
    value = first.overhead_s + (tight.limit_s - first.overhead_s) * math.exp(told)
    assert value == pytest.approx(first.look(rate, n, (0.99,)).value("ttft_s", 0.99), rel=0.005)


class Sampled(Curve):
    """A curve whose sample is off by some percent: all of it decides."""

    def __init__(self, off: float) -> None:
        super().__init__(1.0, 0.5, 2.0)
        self.off = off

    def look(self, rate: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        values = (self.off * self.at(rate, replicas),) * len(quantiles)
        return Prediction(quantiles, dict.fromkeys(PROMISE_METRICS, values), 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("off", [0.6, 0.95, 1.05, 1.6])
@pytest.mark.parametrize("rate", [3.0, 100.0])
def test_all_requests_decide_what_a_sample_brackets(off: float, rate: float) -> None:
    sampled, plain = smallest_pool(Sampled(off), rate, TTFT), smallest_pool(Curve(1.0, 0.5, 2.0), rate, TTFT)
    assert isinstance(sampled, tuple) and isinstance(plain, tuple)
    assert sampled[0] == plain[0]


@pytest.mark.usefixtures("as_many_replayed")
@pytest.mark.parametrize(
    "asked",
    [
        {"cdf": "azure", "slo": 0.5},
        {"cdf": "azure", "slo": 0.5, "tpot": "27ms"},
        {"cdf": "azure-code", "slo": 0.5, "gpu": "a100"},
        {"cdf": "azure-code", "slo": 0.5, "surge": "3x/60s"},
        {"cdf": "azure-conv", "e2e": 12.0, "gpu": "l40s", "in_flight": 40},
    ],
)
def test_a_decision_by_some_draws_of_the_gateway_is_that_of_all_at_once(asked: dict[str, object]) -> None:
    """Of every number of replicas about the answer, at three speeds: all draws laid out one after the other and replayed whole."""
    question = compile_question(
        PlanInputs.from_dict({"tp": 1, "token_budget": 2048, **asked}), Workload.from_file(str(asked["cdf"]))
    )
    problem = FleetProblem(question)
    built = problem.build(0, 1, 0)
    assert built is not None and isinstance(built.model, ReplayPool)
    rate, promises, by_turns = question.traffic.rate_per_s, question.promises.latency, 0
    for slow in (1.0, 1.15, 1.3):
        model = built.model.under(slow)
        assert isinstance(model, ReplayPool)
        for n in range(2, 8):
            assert model.is_short(rate, n)
            by_turns += model._by_turns(rate, n, promises) is not None
            at_once = model._play(rate, n, WHOLE, None, promises).run.ended_early < 0
            kept = at_once and rate < n * model.capacity_at(n)
            assert model.keeps(rate, n, promises, sure=True) == kept, (slow, n)
    assert by_turns
