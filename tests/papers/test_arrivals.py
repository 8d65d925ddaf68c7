"""Arrival laws against what is known of them: counts, gaps, queues that have a closed form, and an event simulation."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from planner.errors import InputError
from planner.machine.iteration import IterationModel
from planner.papers.presets import PoolEngines
from planner.papers.traffic import SampledTraffic
from planner.workload.sending import Clients, Surge
from tests.papers.asked import simulate

pytestmark = pytest.mark.usefixtures("few_replayed")

# --- a client with a limit in flight ---------------------------------------------------------------------------------


def test_an_overloaded_client_is_a_closed_loop() -> None:
    """Far beyond capacity N requests are always under way: with deterministic service on one slot the throughput is that of
    the server and every request takes N services."""
    step, tokens, limit = 0.01, 10, 6
    engines = PoolEngines(1, IterationModel(t0=step), slots=1, token_budget=1000)
    result = simulate(
        SampledTraffic([5.0], [float(tokens)], None, 1000.0, 3000), engines, clients=Clients(in_flight=limit)
    )
    assert result.e2e_s[0.5].value == pytest.approx(limit * tokens * step, rel=1e-9)
    assert result.throughput_per_s.value == pytest.approx(1.0 / (tokens * step), rel=0.02)
    assert result.arrival_rate_per_s == pytest.approx(
        1.0 / (tokens * step), rel=0.02
    )  # what was sent, not what was offered
    assert result.stable and result.completed == 3000


def closed_loop(
    times: np.ndarray, services: np.ndarray, replicas: int, limit: int, rng: np.random.Generator
) -> np.ndarray:
    """Times under way of single servers in random order behind a client with a limit: an event simulation of its own."""
    free_at = [0.0] * replicas
    under_way: list[float] = []
    stay, now = [], 0.0
    for arrival, service in zip(times, services, strict=True):
        now = max(now, arrival)
        while under_way and under_way[0] <= now:
            heapq.heappop(under_way)
        if len(under_way) >= limit:
            now = heapq.heappop(under_way)
        chosen = int(rng.integers(replicas))
        free_at[chosen] = max(free_at[chosen], now) + service
        heapq.heappush(under_way, free_at[chosen])
        stay.append(free_at[chosen] - now)
    return np.array(stay)


@pytest.mark.parametrize("rate", [0.5, 1.4])
def test_a_limit_in_flight_against_an_event_simulation(rate: float) -> None:
    """Three servers of mean service 2 s, loads .33 and .93, at most five under way."""
    n, step = 60_000, 0.02
    engines = PoolEngines(3, IterationModel(t0=step), slots=1, token_budget=1000)
    rng = np.random.default_rng(1)
    tokens = rng.geometric(0.01, 5000).astype(float)
    ours = simulate(SampledTraffic(np.ones(5000), tokens, None, rate, n), engines, clients=Clients(in_flight=5))
    times = np.cumsum(rng.exponential(1.0 / rate, n))
    theirs = closed_loop(times, rng.choice(tokens, n) * step, 3, 5, rng)
    assert ours.e2e_mean_s.value == pytest.approx(theirs.mean(), rel=0.03)
    assert ours.quantile("e2e_s", 0.95).value == pytest.approx(np.quantile(theirs, 0.95), rel=0.04)
    assert not simulate(SampledTraffic([1.0], [1.0], None, 1.0, 10), engines, clients=Clients(in_flight=1e9)).rejected


def test_limits_that_mean_nothing_are_refused() -> None:
    central = PoolEngines(2, IterationModel(t0=0.01), slots=4, token_budget=100, routing="central")
    with pytest.raises(InputError, match="one queue"):
        simulate(SampledTraffic([1.0], [1.0], None, 1.0, 10), central, clients=Clients(in_flight=3))


# --- flash crowds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("surge", [Surge(3.0, 60.0), Surge(4.0, 30.0, 20.0), Surge(0.2, 50.0, 5.0)])
def test_the_rate_of_a_crowd(surge: Surge) -> None:
    """Counts of a dense even stream are the integral of the rate: 1 outside, the factor inside, a line on the ramps."""
    times = surge.warp(np.arange(0.0, 3.0 * surge.ordinary_s, 1e-3))
    phase = times % surge.cycle_s
    start = 9.0 * surge.length_s
    full = start + surge.ramp_s
    rates = {
        1.0: np.sum(phase < start) / (3 * start),
        surge.factor: np.sum((phase >= full) & (phase < full + surge.length_s)) / (3 * surge.length_s),
    }
    if surge.ramp_s:
        rates[(1.0 + surge.factor) / 2] = np.sum((phase >= start) & (phase < full)) / (3 * surge.ramp_s)
        middle = (phase >= start + 0.4 * surge.ramp_s) & (phase < start + 0.6 * surge.ramp_s)
        assert np.sum(middle) / (0.6 * surge.ramp_s) / 1e3 == pytest.approx((1.0 + surge.factor) / 2, rel=0.03)
    for expected, found in rates.items():
        assert found / 1e3 == pytest.approx(expected, rel=0.01)
    counted = surge.counts(times)
    assert not counted[: int(8.0 * surge.length_s * 1e3)].any()  # the first quiet time
    after = (times % surge.cycle_s < surge.length_s) & (times > surge.cycle_s)
    assert counted[after].all()


def test_a_crowd_beyond_capacity_waits_as_the_fluid_says() -> None:
    """Deterministic service, capacity 10/s, 5/s and for a minute 15/s: the backlog grows by 5/s to 300 requests, 30 s of work,
    and falls at 5/s for a minute. Waits of the crowd and the minute after rise and fall along a line: their mean is close to 15 s
    (weights 15 and 5 a second, the rise ends at 30 s)."""
    engines = PoolEngines(1, IterationModel(t0=0.01), slots=1, token_budget=1000)
    result = simulate(SampledTraffic([5.0], [10.0], None, 5.0, 40_000, surge=Surge(3.0, 60.0)), engines)
    assert result.ttft_mean_s.value == pytest.approx(15.0, rel=0.06)
    assert result.quantile("ttft_s", 0.99).value == pytest.approx(30.0, rel=0.15)
    assert result.stable
    calm = simulate(SampledTraffic([5.0], [10.0], None, 5.0, 40_000), engines)
    assert calm.quantile("ttft_s", 0.99).value < 1.0


@pytest.mark.parametrize("text", ["3x", "x/60s", "3x/60s/1s/1s", "0x/60s", "3x/0s"])
def test_crowds_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="surge"):
        Surge.parse(text)
