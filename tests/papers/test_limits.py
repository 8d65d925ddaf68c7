"""Simulated queues with known answers: M/M/c, M/D/1, processor sharing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.machine.iteration import IterationModel
from planner.papers.statistics import estimate_of
from planner.predict.records import Replicas
from planner.predict.run import replay
from tests.papers.asked import asked


def erlang_c(servers: int, load: float) -> float:
    terms = [load**k / math.factorial(k) for k in range(servers)]
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(terms) + last)


@pytest.mark.parametrize("servers,rho", [(1, 0.6), (4, 0.8)])
def test_slots_with_exponential_service_are_m_m_c(servers: int, rho: float) -> None:
    n, mean = 60_000, 400
    tick = 1.0 / mean  # iterations so short that service is exponential with mean 1
    rng = np.random.default_rng(1)
    outputs = rng.geometric(1.0 / mean, n)
    times = np.cumsum(rng.exponential(1.0 / (servers * rho), n))
    run = replay(asked(times, 1, outputs), Replicas(1, IterationModel(t0=tick), servers, 1, engine="slots"))
    # the prompt takes one iteration, the first token comes at the end of the next; half an iteration until the boundary
    wait = run.ttft_s - 2.5 * tick
    mean_wait = estimate_of([wait[n // 10 :]])
    exact = erlang_c(servers, servers * rho) / (servers * (1.0 - rho)) * (1.0 + tick) / 1.0
    assert abs(mean_wait.value - exact) <= mean_wait.half_width + 3 * tick
    waited = estimate_of([(wait[n // 10 :] > tick).astype(float)])
    assert abs(waited.value - erlang_c(servers, servers * rho)) <= waited.half_width + 0.01


def test_one_slot_with_constant_service_is_m_d_1() -> None:
    n, rho, length = 60_000, 0.7, 200
    tick = 1.0 / length
    times = np.cumsum(np.random.default_rng(2).exponential(1.0 / rho, n))
    run = replay(asked(times, 1, length - 1), Replicas(1, IterationModel(t0=tick), 1, 1, engine="slots"))
    wait = estimate_of([(run.ttft_s - 2 * tick)[n // 10 :]])
    assert abs(wait.value - rho / (2 * (1 - rho))) <= wait.half_width + tick


@pytest.mark.parametrize("engine", ["slots", "mixed"])
def test_iterations_of_h_n_are_processor_sharing(engine: str) -> None:
    """M/G/1-PS: the mean response of a request of size x is x/(1 - rho), whatever the distribution."""
    n, rho = 40_000, 0.7
    rng = np.random.default_rng(3)
    outputs = np.where(rng.random(n) < 0.1, 1510, 110)
    mean = float(outputs.mean())
    h = 1.0 / mean  # service alone: 1
    times = np.cumsum(rng.exponential(1.0 / rho, n))
    model = IterationModel(t0=0.0, h=h) if engine == "slots" else IterationModel(t0=0.0, c=h)
    replicas = Replicas(1, model, 1e6, 1 if engine == "slots" else 1e9, engine=engine)  # type: ignore[arg-type]
    response = replay(asked(times, 1, outputs), replicas).e2e_s[n // 10 :]
    for size in (110, 1510):
        chosen = estimate_of([response[outputs[n // 10 :] == size]])
        exact = size * h / (1.0 - rho)
        assert abs(chosen.value - exact) <= chosen.half_width + 0.03 * exact
