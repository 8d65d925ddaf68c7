"""Users in front of a fleet, doors that close on them, and the busiest minutes: where every answer of a pool is known."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from planner.errors import InfeasibleError
from planner.predict.records import Requests
from planner.predict.replayed import Answered
from planner.promise import MEAN, Promise
from planner.question.compiled import CompiledQuestion, compile_question
from planner.question.options import PlanInputs
from planner.size import alone, notes, unknowns
from planner.workload.sending import Clients
from tests.size.four_requests import ASKED, FOUR, asked

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances")


def test_users_settle_where_their_fleet_is_asked_as_often_as_it_was_sized_for() -> None:
    """A fleet asked at 100 x (1 - 1 / replicas): more replicas answer sooner; a replica for every 10/s."""
    question = compile_question(PlanInputs.from_dict({**ASKED, "rate": None, "users": 900, "think_time": "60s"}), FOUR)
    rates: list[float] = []

    def solve(at: CompiledQuestion) -> Any:
        rates.append(at.traffic.rate_per_s)
        n = math.ceil(at.traffic.rate_per_s / 10.0 - 1e-9)
        return _asked(at, n)

    found, fleet = unknowns.settled(question, solve)
    n = fleet.pools[0].replicas
    assert found.traffic.rate_per_s == pytest.approx(100.0 * (1.0 - 1.0 / n), rel=0.005)
    sent = found.traffic.sending.population
    assert sent is not None and sent.asked_per_s == found.traffic.rate_per_s and sent.users == 900
    # two are asked at 50/s, which takes five, and so on, until nobody need be asked again
    assert rates[1:] == pytest.approx([50.0, 80.0, 87.5, 800.0 / 9.0])
    # nine are asked at 88.9 and are enough for that; eight at 87.5, which takes nine
    rest = unknowns.at_rest(question, solve)
    told = rest.traffic.changes[0]
    assert told.code == "users" and told.values["rate"] == rest.traffic.rate_per_s == pytest.approx(100.0 * 8.0 / 9.0)
    assert told.values["per_hour"] == pytest.approx(3600.0 * rest.traffic.rate_per_s / 900.0)
    more = unknowns.with_users(rest, 5000).traffic.sending.population
    assert more is not None and (more.users, more.asked_per_s) == (5000, 0.0)

    def fails(at: CompiledQuestion) -> Any:
        if abs(at.traffic.rate_per_s - 800.0 / 9.0) < 0.1:
            raise InfeasibleError("none")
        return _asked(at, 10)

    assert unknowns.at_rest(question, fails).traffic.rate_per_s == pytest.approx(90.0)


def _asked(at: CompiledQuestion, n: int) -> Any:
    model = SimpleNamespace(
        capacity_per_s=10.0,
        look=lambda rate, replicas, levels: SimpleNamespace(load=100.0 * (1.0 - 1.0 / replicas) / (10.0 * replicas)),
    )
    pool = SimpleNamespace(model=model, replicas=n)
    return SimpleNamespace(question=at, pools=[pool], cost_usd_per_hour=3.0 * n)


class Doors:
    """A pool that answers 10/s a replica, as fast as the queue in front of it is long."""

    capacity_per_s = 10.0

    def answered(self, rate: float, replicas: int, rules: Any) -> Answered:
        share = min(1.0, 10.0 * replicas / rate)
        wait = min(rules.max_queue, 5000.0) / 10.0
        return Answered(share=share, rejected_share=1.0 - share, given_up_share=0.0, attempts=1.0 + (1.0 - share),
                        ttft_s=np.array([0.1 * wait, 0.2 + wait]))  # fmt: skip

    def surged(self, rate: float, replicas: int, rules: Any, surge: float, length: float) -> float:
        self.seen = (rate, replicas, surge, length, rules)
        return 12.5


def doors(monkeypatch: pytest.MonkeyPatch, copies: int = 2) -> tuple[Any, Doors]:
    model = Doors()
    monkeypatch.setattr(alone, "_replayed", lambda pool: model)
    return SimpleNamespace(
        name="all",
        replicas=3,
        option=SimpleNamespace(copies=copies, profile=SimpleNamespace(api_overhead_s=0.5)),
        law=SimpleNamespace(mean=lambda what: 250.0),
        rate_per_s=40.0,
    ), model


def test_what_closes_a_door_and_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, model = doors(monkeypatch)
    clients = Clients(max_queue=7.0, max_queued_tokens=900.0, timeout_s=8.0, retries=2, retry_after_s=3.0)
    rules = alone._rules(pool, clients)
    assert (rules.max_queue, rules.max_queued_tokens, rules.timeout_s, rules.retries, rules.retry_after_s) == (
        7.0, 900.0, 7.5, 2, 3.0
    )  # fmt: skip
    # half a second goes by before the engine
    assert alone._rules(pool, replace(clients, timeout_s=0.4)).timeout_s == 1e-3
    row = alone.overload_at(pool, clients, 120.0)
    # six copies answer 60 of 120/s
    assert row == {
        "demand_per_s": 120.0, "goodput_per_s": 60.0, "answered_share": 0.5, "rejected_share": 0.5, "given_up_share": 0.0,
        "amplification": 1.5, "ttft_mean_s": pytest.approx((0.07 + 0.9) / 2.0),
    }  # fmt: skip
    facts: dict[str, Any] = alone.beyond_capacity(pool, clients, asked(ttft=2.0, tpot="50ms").promises)
    assert [(r["load"], r["demand_per_s"]) for r in facts["loads"]] == [
        (x, pytest.approx(60.0 * x)) for x in (0.8, 1.0, 1.2, 1.5, 2.0, 3.0)
    ]
    # 0.2 s and a tenth for each that waits: 18 may
    assert facts["limits"] == [{"promise": "P99 TTFT", "limit_s": 2.0, "max_queue": 18, "max_queued_tokens": 4500}]
    assert facts["surge"] == {"load": 2.0, "duration_s": 60.0, "recovery_s": 12.5}
    assert model.seen[:4] == (40.0, 6, 120.0, 60.0) and model.seen[4] == rules
    lines = list(alone.overload_lines(pool, clients, asked(ttft=2.0).promises))
    assert lines == [
        "all: at these loads of its capacity, 0.8x: 100% answered; 1x: 100% answered; 1.2x: 83% answered, 1.2 attempts each; "
        "1.5x: 67% answered, 1.3 attempts each; 2x: 50% answered, 1.5 attempts each; 3x: 33% answered, 1.7 attempts each.",
        "all: beyond capacity P99 TTFT holds for those admitted if at most 18 requests, 4,500 prompt tokens, wait at a replica "
        "(max_queue, vLLM --max-num-queued-tokens).",
        "all: the queue of a surge to 2x its capacity for 60 s is gone 12.5 s after it ends.",
    ]
    none = list(alone.overload_lines(pool, clients, asked(ttft=0.25).promises))
    assert len(none) == 3
    assert none[1] == "all: no queue keeps P99 TTFT beyond capacity: a first token alone takes longer."
    monkeypatch.setattr(model, "surged", lambda *given: math.inf)
    assert list(alone.overload_lines(pool, clients, asked().promises))[-1].endswith("for 60 s is gone never.")
    # no limit is looked for from 4,096 on
    assert alone._longest_queue(model, 3, 60.0, Promise("ttft_s", 1e6)) == 4095  # type: ignore[arg-type]
    monkeypatch.setattr(alone, "_replayed", lambda pool: None)
    assert alone.overload_at(pool, clients, 1.0) is None
    assert alone.beyond_capacity(pool, clients, asked().promises) == {"loads": [], "limits": [], "surge": None}
    assert list(alone.overload_lines(pool, clients, asked().promises)) == []


def _requests(times: list[float], tokens: list[float], outputs: list[float] | None = None, **more: Any) -> Requests:
    n = len(times)
    return Requests(
        np.array(times),
        np.array(tokens),
        np.array(outputs or [10.0] * n),
        np.zeros(n),
        np.zeros(n, dtype=np.uint64),
        **more,
    )


def test_the_busiest_minutes_and_what_becomes_of_their_requests() -> None:
    minutes = [0, 60, 120, 600, 660, 720, 780, 840, 900, 1200]
    tokens = [9.0, 9.0, 9.0, 10.0, 10.0, 30.0, 10.0, 10.0, 10.0, 40.0]
    # 600 to 900 has 70 and 660 to 960 too: the first
    assert notes._busiest(_requests([m + 5.0 for m in minutes], tokens)) == 600.0
    assert notes._busiest(_requests([1.0, 61.0], [1.0, 5.0])) == 0.0
    run: Any = SimpleNamespace(ttft_s=np.array([0.1, 0.2, 0.3, math.nan]), e2e_s=np.array([1.1, 2.2, 0.3, math.nan]))
    four = _requests([0.0, 1.0, 2.0, 3.0], [5.0] * 4, [11.0, 21.0, 1.0, 5.0])
    every, first = np.ones(4, dtype=bool), np.array([True, True, True, False])

    def of(metric: str, quantile: float, rows: Any = first, requests: Any = four) -> float:
        return notes._quantile(Promise(metric, 1.0, quantile), requests, run, 0.05, rows)

    assert of("ttft_s", 0.99) == pytest.approx(0.35) and of("e2e_s", 0.99) == pytest.approx(2.25)
    assert of("ttft_s", MEAN) == pytest.approx(0.25) and math.isinf(of("ttft_s", 0.99, every))
    # 0.1 s a token of both that decode; what is never answered has no such time
    assert of("tpot_s", 0.99) == of("tpot_s", 0.5, every) == pytest.approx(0.1)
    weighted = replace(four, weight=np.array([0.0, 1.0, 0.0, 0.0]))
    assert of("ttft_s", 0.01, first, weighted) == pytest.approx(0.25)
    assert math.isnan(of("ttft_s", 0.5, np.zeros(4, dtype=bool)))
