"""Requests laid out for a pool: what was asked before changes nothing, and every replica gets its share."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.predict.traffic import APART_S, POOLED, SAMPLE, FleetTraffic, PoolTraffic
from planner.question.compiled import Traffic
from planner.workload.pools import State
from planner.workload.workload import Workload

RATE = 200.0


def traffic(bursts: bool) -> PoolTraffic:
    asked = Traffic(Workload.from_file("azure"), RATE, bursts=bursts)
    law = asked.moments(512).law(State(0.0), State(math.inf))
    assert law is not None
    return PoolTraffic(FleetTraffic(asked), law)


@pytest.mark.parametrize("bursts", [False, True])
def test_a_part_of_the_replicas_is_sent_its_part_whatever_was_asked_before(bursts: bool) -> None:
    asked = traffic(bursts)
    for replicas in (18, 19, 20, 21, 26, 27):
        laid = asked.lay(RATE, replicas, "p2c", most=40_000)
        alone = traffic(bursts).lay(RATE, replicas, "p2c", most=40_000)
        assert laid.replicas == alone.replicas < replicas
        assert np.array_equal(laid.times_s, alone.times_s) and np.array_equal(laid.key, alone.key)
        if not bursts:
            # forty thousand gaps: half a percent of the mean
            sent = laid.times_s.size / laid.span_s / laid.replicas
            assert sent == pytest.approx(RATE / replicas, rel=0.02)


def test_a_short_trace_is_repeated_to_decide_under_other_draws_and_only_then() -> None:
    asked = traffic(bursts=True)
    own = asked.fleet.rate_per_s
    size = asked.own.requests
    sampled, decided = asked.lay(own, 3, "p2c", most=SAMPLE), asked.lay(own, 3, "p2c")
    assert not sampled.whole and sampled.repeats == 1 and sampled.times_s.size == size
    assert decided.whole and decided.times_s.size == decided.repeats * size
    assert abs(decided.times_s.size - POOLED) <= size / 2
    times, keys = (column.reshape(decided.repeats, size) for column in (decided.times_s, decided.key))
    # the same times again and again, each time a queue's end later, and no request chooses as it did before
    assert np.allclose(times - times[:, :1], sampled.times_s - sampled.times_s[0], atol=1e-9)
    assert float((times[1:, 0] - times[:-1, -1]).min()) >= APART_S - 1e-9
    assert np.unique(keys).size == keys.size and np.array_equal(keys[0], sampled.key)
    # where nothing is drawn, and where there is enough already, once is enough
    for replicas, routing, rate in ((1, "p2c", own), (3, "rr", own), (30, "p2c", 10.0 * own)):
        assert asked.lay(rate, replicas, routing).repeats == 1
