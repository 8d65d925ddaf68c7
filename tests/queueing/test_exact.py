"""Exact waits: M/D/c against its Markov chain and Pollaczek-Khinchine, M/PH/c against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from planner.queueing.erlang import erlang_c
from planner.queueing.exact import delayed_wait, deterministic_wait, phase_type_wait
from planner.queueing.service import TwoPhases


def chain_of_constant_service(load: float, servers: int, size: int) -> np.ndarray:
    """P(N <= n) of M/D/c from N' = (N - c)^+ + A iterated to rest."""
    arrivals = np.exp(np.arange(size) * np.log(load) - load - np.cumsum(np.log(np.maximum(np.arange(size), 1))))
    law = np.zeros(size)
    law[0] = 1.0
    for _ in range(20_000):
        left = np.concatenate([[law[: servers + 1].sum()], law[servers + 1 :], np.zeros(servers)])
        new = np.convolve(left, arrivals)[:size]
        new /= new.sum()
        if np.abs(new - law).max() < 1e-16:
            break
        law = new
    return np.cumsum(law)


@pytest.mark.parametrize("servers, utilization", [(2, 0.5), (3, 0.8), (10, 0.85), (40, 0.9)])
def test_constant_service_against_its_chain(servers, utilization):
    load = servers * utilization
    below = chain_of_constant_service(load, servers, 600)
    p_wait, mean, _ = deterministic_wait(load, servers)
    # an arrival sees N >= c; Little: E[(N - c)^+] = lambda E[W]
    assert p_wait == pytest.approx(1 - below[servers - 1], rel=1e-9)
    queue = (1 - below[servers:]).sum()
    assert mean == pytest.approx(queue / load, rel=1e-9)


def test_one_constant_server_is_pollaczek_khinchine():
    for load in (0.01, 0.3, 0.9, 0.999):
        p_wait, mean, _ = deterministic_wait(load, 1)
        assert p_wait == pytest.approx(load, rel=1e-9)
        assert mean == pytest.approx(load / (2 * (1 - load)), rel=1e-8)


def test_constant_service_quantiles_integrate_to_the_mean_and_are_ordered():
    q = 1 - np.geomspace(1, 1e-10, 4001)
    _, mean, waits = deterministic_wait(5.1, 6, q)
    assert (np.diff(waits) >= 0).all()
    area = ((waits[1:] + waits[:-1]) / 2 * np.diff(q)).sum()
    assert mean == pytest.approx(area, rel=1e-4)


def test_constant_service_near_saturation_and_nearly_idle():
    assert deterministic_wait(1 - 1e-7, 1) is None
    assert phase_type_wait(4 * (1 - 1e-7), 4, TwoPhases(1.0, 1.0, 1.0)) is None
    p_wait, mean, waits = deterministic_wait(1e-9, 5, [0.5, 0.999])
    assert 0 <= p_wait < 1e-12 and 0 <= mean < 1e-12 and waits.tolist() == [0.0, 0.0]
    # many servers: never more than M/M/c
    p_wait, mean, _ = deterministic_wait(1980.0, 2000)
    assert 0 < p_wait < erlang_c(2000, 1980.0) and 0 < mean < erlang_c(2000, 1980.0) / 20


@pytest.mark.parametrize("servers", [1, 2, 9, 60])
def test_equal_phases_are_the_markovian_queue(servers):
    load, q = 0.85 * servers, np.array([0.5, 0.99])
    p_wait, mean, waits = phase_type_wait(load, servers, TwoPhases(0.3, 1.0, 1.0), q)
    expected = erlang_c(servers, load)
    assert p_wait == pytest.approx(expected, rel=1e-10)
    assert mean == pytest.approx(expected / (servers - load), rel=1e-10)
    tail = np.maximum(np.log(expected / (1 - q)), 0) / (servers - load)
    assert waits == pytest.approx(tail, rel=1e-8, abs=1e-12)


def test_one_server_of_two_phases_is_pollaczek_khinchine():
    p, m = np.array([0.8, 0.2]), np.array([0.5, 3.0])
    for load in (0.2, 0.7, 0.97):
        p_wait, mean, _ = phase_type_wait(load, 1, TwoPhases(0.8, 1 / 0.5, 1 / 3.0))
        second = 2 * p @ m**2
        assert p_wait == pytest.approx(load, rel=1e-10)
        assert mean == pytest.approx(load * second / (2 * (1 - load)), rel=1e-10)


@pytest.mark.parametrize("function, name, arguments", [
    (deterministic_wait, "servers", (0.5, 0)), (deterministic_wait, "servers", (0.5, 1.5)),
    (deterministic_wait, "arrival_rate", (2.0, 2)), (deterministic_wait, "arrival_rate", (np.nan, 2)),
    (delayed_wait, "load", (1.0, 2, TwoPhases(1.0, 1.0, 1.0), [0.5])),
    (delayed_wait, "servers", (0.5, 1000, TwoPhases(1.0, 1.0, 1.0), [0.5])),
    (phase_type_wait, "servers", (0.5, 1000, TwoPhases(1.0, 1.0, 1.0))),
    (phase_type_wait, "arrival_rate", (0.0, 2, TwoPhases(1.0, 1.0, 1.0))),
])  # fmt: skip
def test_nonsense_names_the_argument(function, name, arguments):
    with pytest.raises(ValueError, match=name):
        function(*arguments)
