"""Requests laid out for a pool: what was asked before changes nothing, and every replica gets its share."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.predict.traffic import FleetTraffic, PoolTraffic
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
