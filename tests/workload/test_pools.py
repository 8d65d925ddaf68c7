"""Pool moments from cumulative sums against sums over the requests a router would really send there."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.machine.iteration import IterationModel
from planner.predict.bounds import max_throughput
from planner.predict.methods.occupancy import OccupancyPool
from planner.predict.records import Replicas
from planner.predict.replayed import ReplayPool
from planner.predict.traffic import FleetTraffic
from planner.question.compiled import Traffic
from planner.routing import find_routing
from planner.workload import pools as m
from planner.workload.pools import FleetMoments, Lengths, State, capacity_upper_bound
from planner.workload.workload import Workload
from tests.papers.asked import simulate_pool


def _trace(seed: int, size: int = 400) -> Workload:
    rng = np.random.default_rng(seed)
    category = np.where(rng.random(size) < 0.4, "code", "prose")
    return Workload.from_arrays(
        rng.integers(1, 3000, size),
        rng.integers(1, 900, size),
        category=category,
        compressible={"code": 0.0, "prose": 0.8},
        arrival_rate_per_s=1.0,
    )


def _routed(w: Workload, lower: State, upper: State) -> tuple[float, float, float]:
    """Share, mean input and mean output of a pool, request by request (compression in expectation)."""
    share = inputs = outputs = 0.0
    for i, o, c, p in zip(w.input_tokens, w.output_tokens, w.category, w.weight, strict=True):
        p_c = w.compressible[c] or 0.0
        total = i + o
        if lower.boundary < total <= upper.boundary:
            given = p_c if total <= lower.gamma * lower.boundary and o < lower.boundary else 0.0
            part = p * (1.0 - given)
            share, inputs, outputs = share + part, inputs + part * i, outputs + part * o
        elif upper.boundary < total <= upper.gamma * upper.boundary and o < upper.boundary:
            part = p * p_c
            share, inputs, outputs = share + part, inputs + part * (upper.boundary - o), outputs + part * o
    return share, inputs, outputs


@given(
    seed=st.integers(0, 50),
    low=st.floats(50, 1500),
    gamma_low=st.sampled_from([1.0, 1.3, 2.0]),
    gamma_high=st.sampled_from([1.0, 1.5, 2.0]),
)
@settings(max_examples=60, deadline=None)
def test_moments_and_law_equal_routing_request_by_request(
    seed: int, low: float, gamma_low: float, gamma_high: float
) -> None:
    w = _trace(seed)
    lower, upper = State(low, gamma_low), State(3.1 * low, gamma_high)
    f = FleetMoments(w)
    up, down = f.states([lower, upper])
    sums = up[1] - down[0]
    share, inputs, outputs = _routed(w, lower, upper)
    np.testing.assert_allclose(sums[[m.SHARE, m.INPUT, m.OUTPUT]], [share, inputs, outputs], rtol=1e-9, atol=1e-12)
    law = f.law(lower, upper)
    if law is None:
        assert share < 1e-9
        return
    np.testing.assert_allclose(law.moments, sums, rtol=1e-9, atol=1e-12)
    assert law.weight.sum() == pytest.approx(1.0, rel=1e-12)


def test_compressed_requests_arrive_with_the_boundary_as_their_total() -> None:
    w = Workload.from_arrays([500.0, 1200.0], [100.0, 200.0], compressible=[1.0], arrival_rate_per_s=1.0)
    law = FleetMoments(w).law(State(0.0), State(1000.0, 1.5))
    assert law is not None
    assert sorted((law.input_tokens + law.output_tokens).tolist()) == [600.0, 1000.0]
    assert sorted(law.output_tokens.tolist()) == [100.0, 200.0]
    assert law.compressed_share == pytest.approx(0.5)


@pytest.mark.parametrize("gamma", [1.0, 1.7])
def test_the_pools_of_a_fleet_get_every_request_once(gamma: float) -> None:
    w = Workload.from_file("azure")
    f = FleetMoments(w)
    middle, top = State(2500.0, gamma), State(float(w.max_total))
    laws = [f.law(State(0.0), middle), f.law(middle, top)]
    assert math.fsum(law.share for law in laws if law) == pytest.approx(1.0, rel=1e-12)


def test_prompt_counts_are_the_law_s_own_quantiles() -> None:
    w = _trace(3)
    f = FleetMoments(w)
    states = [State(700.0, 1.5), State(2500.0, 1.2)]
    bins = np.array([100.0, 400.0, 650.0, 1000.0, 5000.0])
    up, down = f.prompt_counts(states, bins)
    law = f.law(*states)
    assert law is not None
    direct = [law.share * law.weight[law.input_tokens <= b].sum() for b in bins]
    np.testing.assert_allclose(up[1] - down[0], direct, rtol=1e-9, atol=1e-12)


def test_no_method_exceeds_the_capacity_bound() -> None:
    it = IterationModel(t0=2e-3, w=5e-3, b=23.5e-6, c=4.7e-6, g=50e-9, h=1e-6, a=0.7e-9)
    for seed in range(4):
        w = _trace(seed)
        f = FleetMoments(w)
        top = State(float(w.max_total))
        up, down = f.states([State(0.0), top])
        for budget, slots, kv in ((512, 64, 60_000), (2048, 256, 400_000), (4096, 16, 1e6)):
            bound = float(capacity_upper_bound(up[1] - down[0], it, budget, float(slots), kv))
            lengths = Lengths(w.input_tokens, w.output_tokens, w.weight, np.zeros(1))
            found = max_throughput(lengths, Replicas(1, it, slots, budget, kv))
            assert found.per_s <= bound * (1.0 + 1e-9)


# ------------------------------------------------------------------------------------- cached shares that differ by row


def _half_cached() -> tuple[Workload, dict[str, float]]:
    """Prompts of 300 to 6,000 tokens: three in four 80% cached, the others not at all."""
    prompts = np.tile(np.linspace(300.0, 6000.0, 200), 4)
    category = np.repeat(["chat", "chat", "chat", "cold"], 200)
    w = Workload.from_arrays(prompts, np.full(800, 150.0), category=category, arrival_rate_per_s=1.0)
    return w, {"chat": 0.8, "cold": 0.0}


ENGINE = IterationModel(t0=0.002, w=0.005, b=24e-6, c=5e-6, h=1e-6, g=5e-8, a=7e-10)


def _pool(w: Workload, cached: dict[str, float], method: str) -> ReplayPool | OccupancyPool:
    law = FleetMoments(w, chunk=512, cached_share=cached).law(State(0.0), State(math.inf))
    assert law is not None
    poisson = FleetTraffic(Traffic(w, 1.0)).of(law)
    if method == "mixed":
        return ReplayPool(poisson, Replicas(1, ENGINE, 256, 8192))
    return OccupancyPool(ENGINE, 256, 512, find_routing("random"), poisson)


@pytest.mark.parametrize("method", ["mixed", "occupancy"])
def test_the_uncached_quarter_makes_the_tail(method: str) -> None:
    """With hardly any traffic a prompt waits for nothing but itself: P99 of all is P96 of the uncached quarter."""
    w, cached = _half_cached()
    cold = w.rebuilt(w.columns(w.category == w.categories.index("cold")))
    rate = 1e-4
    (tail,) = _pool(w, cached, method).predict(rate, 1, (0.99,)).latencies["ttft_s"]
    (alone,) = _pool(cold, {}, method).predict(rate, 1, (0.96,)).latencies["ttft_s"]
    assert tail == pytest.approx(alone, rel=0.02)  # 200 lengths a class: one of them is 0.5%, the lattice 1%
    averaged = Workload.from_arrays(w.input_tokens, w.output_tokens, category=w.category.astype(str))
    (mean,) = (
        _pool(averaged, dict.fromkeys(averaged.categories, 0.6), method).predict(rate, 1, (0.99,)).latencies["ttft_s"]
    )
    assert tail > 1.5 * mean


def test_cached_shares_are_one_number_or_one_per_row() -> None:
    with pytest.raises(InputError, match="one per row"):
        simulate_pool([100.0, 200.0], [5.0, 5.0], None, 1.0, count=1, iteration=ENGINE, cached_share=[0.1] * 3)
