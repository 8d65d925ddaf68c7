"""Routings against what is known of them: the supermarket model, and a small event simulation that shares nothing with ours."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
from scipy.special import gammaincc

from planner.errors import InputError
from planner.machine.iteration import IterationModel
from planner.predict.records import Replicas
from planner.predict.run import replay
from planner.routing import ROUTINGS, find_routing
from tests.papers.asked import asked

STEP = 0.01  # seconds per iteration; a job of n tokens in a replica of one slot is served for n steps
MEAN_TOKENS = 200


def single_servers(routing: str, load: float, replicas: int, requests: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(waiting, in system) [mean service times] of single-server queues with geometric (nearly exponential) services."""
    rng = np.random.default_rng(seed)
    tokens = rng.geometric(1.0 / MEAN_TOKENS, requests)
    times = np.cumsum(rng.exponential(MEAN_TOKENS * STEP / (load * replicas), requests))
    pool = Replicas(replicas, IterationModel(t0=STEP), 1, 10, routing=routing)
    run = replay(asked(times, 1, tokens, seed=seed), pool)
    window = slice(requests // 5, requests * 9 // 10)
    return (run.ttft_s[window] - STEP) / (MEAN_TOKENS * STEP), run.e2e_s[window] / (MEAN_TOKENS * STEP)


@pytest.mark.parametrize("load", [0.7, 0.9])
def test_two_choices_are_the_supermarket_model(load: float) -> None:
    """Mean field: a share s_k = rho^(2^k - 1) of the queues holds k or more, and an arrival joins one with k or more with
    probability s_k^2. 200 queues are within O(1/200) of it. Over ten other seeds the mean of all is within 1%, one run
    within 4%, and within 8% for the tail beyond three services: that is what the tolerances allow."""
    wait, stay = single_servers("p2c", load, 200, 120_000, 3)
    share = [load ** (2.0**k - 1) for k in range(12)]
    joins = [s * s for s in share]
    assert stay.mean() == pytest.approx(sum(joins), rel=0.04)
    assert (wait > 1e-9).mean() == pytest.approx(joins[1], rel=0.03)
    for t in (1.0, 3.0):  # the wait behind k jobs is the sum of k exponential services
        tail = sum((joins[k] - joins[k + 1]) * float(gammaincc(k, t)) for k in range(1, 11))
        assert (wait > t).mean() == pytest.approx(tail, rel=0.09, abs=0.001)


def test_order_of_the_routings_at_one_load() -> None:
    means = {
        name: single_servers(name, 0.85, 16, 40_000, 5)[1].mean() for name in ("random", "p2c", "least", "central")
    }
    assert means["central"] <= means["least"] * 1.02 < means["p2c"] < 0.75 * means["random"]
    assert means["random"] == pytest.approx(1.0 / 0.15, rel=0.15)  # M/M/1


def event_simulation(routing: str, load: float, replicas: int, requests: int, seed: int) -> np.ndarray:
    """Times in the system of the same queues, from a list of departures and nothing else."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1.0 / (load * replicas), requests))
    services = rng.exponential(1.0, requests)
    free_at, count, stay = [0.0] * replicas, [0] * replicas, np.empty(requests)
    leaving: list[tuple[float, int]] = []
    for i, now in enumerate(arrivals):
        while leaving and leaving[0][0] <= now:
            count[heapq.heappop(leaving)[1]] -= 1
        seen = rng.permutation(replicas)
        seen = seen[:2] if routing == "p2c" else seen
        chosen = min(seen, key=lambda r: count[r])
        free_at[chosen] = max(free_at[chosen], now) + services[i]
        count[chosen] += 1
        heapq.heappush(leaving, (free_at[chosen], chosen))
        stay[i] = free_at[chosen] - now
    return stay[requests // 5 : requests * 9 // 10]


@pytest.mark.parametrize("routing", ["p2c", "least"])
def test_few_replicas_against_an_event_simulation(routing: str) -> None:
    """Four queues, where the mean field does not hold: two independent samples of 120,000, means within 4% (about three
    standard errors of the difference), 99th percentiles within 6%."""
    ours = single_servers(routing, 0.8, 4, 120_000, 11)[1]
    theirs = event_simulation(routing, 0.8, 4, 120_000, 12)
    assert ours.mean() == pytest.approx(theirs.mean(), rel=0.04)
    assert np.quantile(ours, 0.99) == pytest.approx(np.quantile(theirs, 0.99), rel=0.06)


@pytest.mark.parametrize("name", ["random", "p2c", "least", "least-kv", "rr"])
def test_replicas_that_are_alike_are_taken_evenly(name: str) -> None:
    """Five idle replicas: each gets a fifth, within four standard deviations of a draw."""
    run = replay(asked(np.arange(20_000.0), 1, 1), Replicas(5, IterationModel(t0=0.01), routing=name))
    counts = np.bincount(run.replica, minlength=5)
    assert np.all(np.abs(counts - 4000) < 4 * math.sqrt(4000))


def test_names() -> None:
    assert find_routing("jsq") is ROUTINGS["least"] and find_routing("round-robin") is ROUTINGS["rr"]
    names = [n for r in ROUTINGS.values() for n in (r.name, *r.aliases)]
    assert len(set(names)) == len(names)
    with pytest.raises(InputError, match="did you mean 'p2c'"):
        find_routing("p2")
