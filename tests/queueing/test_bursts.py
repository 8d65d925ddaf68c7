"""Waits behind bursts: the calm limit is an exact queue, counts are as dispersed as asked, real time stamps agree."""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from planner.queueing.bursts import BurstSequence, _integrated_rate, rate_variances
from planner.queueing.exact import deterministic_wait

AZURE = ((1.0, 5.1), (5.0, 16.4), (10.0, 25.6), (60.0, 63.3), (300.0, 144.0))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_without_swings_it_is_the_exact_single_server_queue(load: float) -> None:
    calm = BurstSequence([], [1.0], [1.0])
    levels = np.array([0.9, 0.99])
    found = calm.waits(load, 1.0, levels)
    solved = deterministic_wait(load, 1, levels)
    assert solved is not None
    exact = solved[2]
    # 32,768 stratified arrivals: P99 of a correlated wait is good to about a tenth of a service time at load 0.8
    np.testing.assert_allclose(found, exact, rtol=0.08, atol=0.15)


def test_random_work_gives_the_pollaczek_khinchine_mean() -> None:
    rng = np.random.default_rng(3)
    work = rng.lognormal(0.0, 0.8, 400)
    sequence = BurstSequence([], work, np.ones(400))
    levels = (np.arange(4000) + 0.5) / 4000
    scv = float(np.var(work) / np.mean(work) ** 2)
    load = 0.5
    assert np.mean(sequence.waits(load, 1.0, levels)) == pytest.approx(load * (1 + scv) / 2 / (1 - load), rel=0.06)


@pytest.mark.parametrize("rate", [8.0, 200.0])
def test_counts_are_as_dispersed_as_asked(rate: float) -> None:
    """I(w) = 1 + rate Var[M(w)] / w over a path of three days, M the integral of the relative rate over a window."""
    grid, passed = _integrated_rate(tuple(rate_variances(AZURE, rate)), 262_144.0)
    for window, wanted in AZURE:
        edges = np.arange(0.0, grid[-1], window)
        masses = np.diff(np.interp(edges, grid, passed))
        # least squares over all windows leaves one or the other a fifth off
        assert 1.0 + rate * masses.var() / window == pytest.approx(wanted, rel=0.25)


def test_variances_reproduce_the_indices_they_were_fitted_to() -> None:
    rate = 8.0
    scales = rate_variances(AZURE, rate)
    for window, wanted in AZURE:
        index = 1.0
        for scale, variance in scales:
            x = window / scale
            index += rate * window * variance * (1 - x / 3 if x <= 1 else (1 - 1 / (3 * x)) / x)
        assert index == pytest.approx(wanted, rel=0.12)
    assert rate_variances([(1.0, 1.0), (10.0, 0.7)], 5.0) == []


def test_waits_grow_with_load_and_with_bursts() -> None:
    wild = BurstSequence(rate_variances(AZURE, 8.0), [1.0], [1.0])
    calm = BurstSequence([], [1.0], [1.0])
    by_service = [float(wild.waits(8.0, s, [0.99])[0]) for s in (0.02, 0.04, 0.06, 0.1)]
    assert by_service == sorted(by_service)
    assert wild.waits(8.0, 0.05, [0.9, 0.99]).tolist() > calm.waits(8.0, 0.05, [0.9, 0.99]).tolist()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: rate_variances(AZURE, 0.0), "rate"),
        (lambda: BurstSequence([], [1.0, 2.0], [1.0]), "work"),
        (lambda: BurstSequence([], [-1.0], [1.0]), "work"),
        (lambda: BurstSequence([], [1.0], [1.0]).waits(0.0, 1.0, [0.5]), "rate"),
        (lambda: BurstSequence([], [1.0], [1.0]).waits(1.0, 0.0, [0.5]), "mean_service"),
    ],
)
def test_nonsense_is_named(call: object, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("replicas", [2, 4])
def test_real_time_stamps_replayed_through_the_simulator(shared_data: Path, replicas: int) -> None:
    """The plan's TTFT under bursts against the trace's own arrivals; docs/accuracy/bursts.md has the whole table."""
    from planner.catalog import gpu, model, profile
    from planner.methods.burst import PoolArrivals
    from planner.methods.mixed import MixedPool
    from planner.routing import find_routing
    from planner.simulate.pool import simulate
    from planner.simulate.presets import PoolEngines
    from planner.simulate.replay import ReplayedTraffic
    from planner.simulate.traffic import sample_rows
    from planner.workload.pools import FleetMoments, State
    from planner.workload.workload import Workload

    times = []
    for name in ("azure_conv_2023.csv", "azure_code_2023.csv"):
        with (shared_data / "workloads" / "raw" / name).open(newline="") as file:
            times += [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in csv.DictReader(file)]
    stamps = np.sort(np.array(times))
    rate = stamps.size / float(stamps[-1] - stamps[0])
    azure = Workload.from_file("azure")
    law = FleetMoments(azure).law(State(0.0), State(azure.max_total))
    assert law is not None
    iteration = profile(gpu=gpu("h100"), model=model("llama-3.1-8b")).iteration
    pool = MixedPool(law, iteration, 320, 430_000, 2048, find_routing("random"), PoolArrivals(azure.arrivals))
    at = pool.predict(rate, replicas, (0.5, 0.9, 0.99))
    # lengths drawn anew, not those the bursts came with: the prediction knows the counts alone
    rows = sample_rows(azure.weight, azure.rows, stamps.size, np.random.default_rng(1))
    last = float(stamps[-1] - stamps[0])
    traffic = ReplayedTraffic(
        stamps - stamps[0], azure.input_tokens[rows], azure.output_tokens[rows], last + last / stamps.size
    )
    seen = simulate(traffic, PoolEngines(replicas, iteration, 320, 2048, 430_000), seeds=1)
    true = seen.quantile("ttft_s", 0.99).value
    low, high = at.bands["ttft_s"][2]
    assert at.ttft_s[2] * (1 + low) * 0.9 <= true <= at.ttft_s[2] * (1 + high) * 1.1


def test_rare_arrivals_neither_feel_bursts_nor_cost_memory() -> None:
    wild = BurstSequence(rate_variances(AZURE, 8.0), [1.0], [1.0])
    assert float(wild.waits(1e-9, 0.05, [0.99])[0]) == 0.0
    assert float(wild.waits(1e-3, 0.05, [0.99])[0]) < 0.05
