"""Bursty arrivals: estimators against known processes, corrections against simulation, the Azure time stamps replayed."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.queueing.arrivals import (
    allen_cunneen_factor,
    hayward,
    index_of_dispersion,
    mix_quantiles,
    peak_rate,
    peakedness,
    peakedness_from_dispersion,
    profile_rates,
    rate_mixture,
    relaxation_time,
    renewal_wait_quantile,
    size_for_profile,
)
from planner.queueing.erlang import erlang_c
from planner.queueing.slots.chain import iteration_times, negative_binomial, occupancy
from planner.queueing.slots.latency import ReplicaLatency

ROOT = Path(__file__).resolve().parents[2]


def poisson(rate: float, span: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.sort(rng.uniform(0.0, span, rng.poisson(rate * span)))


# --- estimators


def test_poisson_has_dispersion_and_peakedness_one() -> None:
    t = poisson(5.0, 40_000.0)
    np.testing.assert_allclose(index_of_dispersion(t, [0.5, 5.0, 50.0]), 1.0, atol=0.08)
    assert peakedness(t, 3.0) == pytest.approx(1.0, abs=0.05)


def test_pairs_have_dispersion_two() -> None:
    """Every arrival doubled: counts are twice a Poisson count, so variance / mean = 2; peakedness 1 + 1/2."""
    t = np.repeat(poisson(2.0, 40_000.0), 2)
    np.testing.assert_allclose(index_of_dispersion(t, [1.0, 10.0]), 2.0, rtol=0.05)
    assert peakedness(t, 5.0) == pytest.approx(1.5, rel=0.05)
    assert peakedness_from_dispersion(2.0) == 1.5


def test_renewal_dispersion_tends_to_the_scv() -> None:
    rng = np.random.default_rng(3)
    for shape in (0.25, 4.0):
        t = np.cumsum(rng.gamma(shape, 1.0 / shape, 400_000))
        assert index_of_dispersion(t, 500.0) == pytest.approx(1.0 / shape, rel=0.12)
    # GI/M/infinity exactly: z = 1 / (1 - phi(mu)) - a
    t = np.cumsum(rng.gamma(0.25, 4.0, 600_000))
    tau = 10.0
    phi = (1.0 + 4.0 / tau) ** -0.25
    assert peakedness(t, tau) == pytest.approx(1.0 / (1.0 - phi) - tau, rel=0.03)


def test_slow_swings_show_at_long_windows_only() -> None:
    rng = np.random.default_rng(1)
    rates = np.tile([2.0, 6.0], 100)
    t = np.concatenate([i * 100.0 + rng.uniform(0, 100, rng.poisson(100 * r)) for i, r in enumerate(rates)])
    short, long = index_of_dispersion(t, [0.2, 100.0])
    assert short < 1.4
    assert long == pytest.approx(1.0 + 4.0 * 100.0 / 4.0, rel=0.15)
    split = rate_mixture(t, 2.0, window=50.0)
    assert split.dispersion == pytest.approx(1.0, abs=0.1)
    assert split.weights.sum() == pytest.approx(1.0)
    assert split.weights @ split.rates == pytest.approx((2**2 + 6**2) / (2 + 6), rel=0.05)


def test_work_dispersion_ignores_a_cheap_minority() -> None:
    """Bursts of light requests on a steady stream of heavy ones: counts are bursty, work hardly."""
    rng = np.random.default_rng(5)
    heavy = poisson(4.0, 20_000.0, 1)
    starts = poisson(0.02, 20_000.0, 2)
    light = np.concatenate([s + rng.uniform(0, 2, 100) for s in starts])
    t = np.concatenate((heavy, light))
    work = np.concatenate((np.full(len(heavy), 200.0), np.full(len(light), 2.0)))
    assert index_of_dispersion(t, 10.0) > 15
    assert index_of_dispersion(t, 10.0, work) < 1.5


@given(st.floats(0.05, 5.0), st.integers(0, 50))
@settings(max_examples=20, deadline=None)
def test_estimators_do_not_depend_on_origin_or_order(scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    t = np.cumsum(rng.exponential(scale, 300))
    shuffled = rng.permutation(t) + 1000.0
    assert index_of_dispersion(shuffled, 5 * scale) == pytest.approx(index_of_dispersion(t, 5 * scale), abs=0.3)
    assert peakedness(shuffled, 5 * scale) == pytest.approx(peakedness(t, 5 * scale), rel=1e-6)


# --- corrections


def test_hayward_and_allen_cunneen_reduce_to_poisson() -> None:
    assert hayward(20, 15, 1.0) == (20.0, 15.0)
    assert hayward(3, 2, 10.0)[0] == 1.0
    assert allen_cunneen_factor(1.0, 0.3) == 1.0
    wait = renewal_wait_quantile(8.0, 1.0, 10, quantile=[0.5, 0.99])
    expected = np.maximum(np.log(erlang_c(10, 8.0) / np.array([0.5, 0.01])) / 2.0, 0.0)
    np.testing.assert_allclose(wait, expected, rtol=1e-9)
    assert renewal_wait_quantile(10.0, 1.0, 10) == math.inf
    assert renewal_wait_quantile(0.0, 1.0, 10) == 0.0


@given(st.floats(0.3, 0.97), st.floats(0.1, 9.0), st.floats(0.0, 5.0), st.integers(1, 60))
@settings(max_examples=80, deadline=None)
def test_more_bursty_waits_longer(load: float, ca2: float, cs2: float, servers: int) -> None:
    low = renewal_wait_quantile(load * servers, 1.0, servers, ca2, cs2)
    high = renewal_wait_quantile(load * servers, 1.0, servers, ca2 * 1.5, cs2)
    assert math.isfinite(high) and high >= low >= 0


def test_renewal_waits_against_simulation(shared_data: Path) -> None:
    cases = json.loads((shared_data / "queueing" / "truth.json").read_text(encoding="utf-8"))["mgc"]
    errors = []
    for case in cases:
        if case["arrival"]["ca2"] == 1.0 or case["value"] < 0.3:
            continue
        m = case["service"]["moments"]
        got = renewal_wait_quantile(
            case["lambda"], m[0], case["c"], case["arrival"]["ca2"], m[1] / m[0] ** 2 - 1, case["percentile"]
        )
        errors.append(got / case["value"] - 1)
    assert len(errors) >= 10
    assert np.median(np.abs(errors)) < 0.09
    assert min(errors) > -0.10 and max(errors) < 0.5


def test_relaxation_time_of_the_linear_chain() -> None:
    """With slots to spare Var / mean = 1 / (1 - p); constant lives forget twice as fast as exponential ones."""
    w, h, k, rate = 0.01, 0.0005, 200.0, 5.0
    pool = occupancy(rate, k, iteration_times(500, w, h), 500)
    _, p = negative_binomial(rate, k, w, h)
    assert relaxation_time(pool, k, 0.02, 1.0) == pytest.approx(k * 0.02 / (1 - p), rel=1e-6)
    assert relaxation_time(pool, k, 0.02, 0.0) == pytest.approx(0.5 * k * 0.02 / (1 - p), rel=1e-6)
    full = occupancy(1e9, k, iteration_times(500, w, h), 500)
    assert relaxation_time(full, k, 0.02, 1.0) == math.inf


# --- mixtures and profiles


def test_mixture_of_quantile_tables() -> None:
    levels = np.linspace(0.0, 0.9999, 400)
    fast, slow = -np.log1p(-levels), -10.0 * np.log1p(-levels)
    got = mix_quantiles(levels, [fast, slow], [0.7, 0.3], [0.5, 0.9, 0.99])
    for q, x in zip((0.5, 0.9, 0.99), got, strict=True):
        assert 0.7 * (1 - math.exp(-x)) + 0.3 * (1 - math.exp(-x / 10)) == pytest.approx(q, abs=2e-3)


def test_mixture_with_an_unstable_share() -> None:
    levels = np.linspace(0, 1, 11)
    table = np.array([np.linspace(0, 1, 11), np.full(11, np.inf)])
    got = mix_quantiles(levels, table, [0.95, 0.05], [0.5, 0.9, 0.96])
    assert got[0] == pytest.approx(0.5 / 0.95) and got[1] == pytest.approx(0.9 / 0.95) and got[2] == math.inf
    assert mix_quantiles(levels, table[1:], [1.0], [0.1])[0] == math.inf


def test_profile_and_peak_hour() -> None:
    profile = [0.5] * 12 + [1.5] * 12
    rates = profile_rates(100.0, profile)
    assert rates.mean() == pytest.approx(100.0) and rates.max() == pytest.approx(150.0)
    assert peak_rate(100.0, profile) == pytest.approx(150.0)
    assert peak_rate(100.0, profile, dispersion=400.0, quantile=0.975) == pytest.approx(
        150.0 + 1.959964 * math.sqrt(400 * 150 / 3600), rel=1e-6
    )
    replica = ReplicaLatency([800.0], [150.0], iteration_time=iteration_times(64, 0.008, 0.0005), chunk=512)

    def smallest(rate: float) -> int:
        count = 1
        while not replica.predict(rate, count, "jsq").ttft_s[2] < 0.2:
            count += 1
        return count

    day = size_for_profile(20.0, profile, smallest)
    assert day.peak == day.replicas.max() == smallest(30.0)
    assert day.replicas.min() < day.peak and day.mean == pytest.approx(day.replicas.mean())


# --- the Azure time stamps through an iteration-level server


def azure(folder: Path, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = []
    for name in names:
        with (folder / "workloads" / "raw" / f"azure_{name}_2023.csv").open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                day, clock = row["TIMESTAMP"].split(" ")
                hours, minutes, seconds = clock.split(":")
                at = int(day[-2:]) * 86400 + int(hours) * 3600 + int(minutes) * 60 + float(seconds)
                rows.append((at, float(row["ContextTokens"]), max(float(row["GeneratedTokens"]), 1.0)))
    table = np.array(sorted(rows))
    return table[:, 0] - table[0, 0], table[:, 1], table[:, 2]


@pytest.mark.slow
@pytest.mark.parametrize("names", [("conv",), ("conv", "code")])
def test_azure_time_stamps_replayed(shared_data: Path, names: tuple[str, ...]) -> None:
    """Poisson is optimistic on the real stream; the dispersion at the relaxation time mends it."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from iteration_server import serve
    finally:
        sys.path.pop(0)
    w, h, slots = (0.020, 0.0003, 96) if names == ("conv",) else (0.010, 0.0003, 96)
    times, inputs, outputs = azure(shared_data, names)
    served = serve(times, inputs, outputs, fixed_time=w, time_per_slot=h, slots=slots, chunk=512, warm=0.01)
    levels = [0.5, 0.9, 0.99]
    ttft, tpot = np.quantile(served.ttft, levels), np.quantile(served.tpot, levels)

    table = iteration_times(slots, w, h)
    replica = ReplicaLatency(inputs, outputs, iteration_time=table, chunk=512)
    rate = len(times) / times[-1]
    plain = replica.predict(rate)
    assert plain.tpot_s[2] < 0.95 * tpot[2]  # Poisson assumed: optimistic

    pool = occupancy(rate, replica.mean_iterations, table, slots)
    at_mean = float(np.interp(pool.mean_active, np.arange(slots + 1), table))
    window = relaxation_time(pool, replica.mean_iterations, at_mean, replica.iterations_scv)
    counted = replica.predict(rate, dispersion=index_of_dispersion(times, window))
    assert ttft[2] * 0.97 < counted.ttft_s[2] < ttft[2] * 1.25
    assert tpot[2] * 0.97 < counted.tpot_s[2] < tpot[2] * 1.15
    np.testing.assert_allclose(counted.ttft_s[0], ttft[0], rtol=0.15)

    if names == ("conv",):  # slow swings as a mixture over rates, the work's dispersion within: 3% everywhere
        work = np.ceil(inputs / 512) + outputs
        mixture = rate_mixture(times, window, work=work)
        grid = np.concatenate((np.linspace(0, 0.98, 50), 1 - np.geomspace(0.018, 1e-4, 16)))
        laws = [replica.predict(r, quantiles=grid, dispersion=mixture.dispersion) for r in mixture.rates]
        mixed = [
            mix_quantiles(grid, [getattr(law, name) for law in laws], mixture.weights, levels)
            for name in ("ttft_s", "tpot_s")
        ]
        np.testing.assert_allclose(mixed[0], ttft, rtol=0.03)
        np.testing.assert_allclose(mixed[1], tpot, rtol=0.04)


# --- refusals


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("times", lambda: index_of_dispersion([1.0], 1.0)),
        ("times", lambda: index_of_dispersion([1.0, math.nan], 1.0)),
        ("times", lambda: peakedness([2.0, 2.0], 1.0)),
        ("window", lambda: index_of_dispersion([0.0, 1.0, 2.0], 0.0)),
        ("window", lambda: index_of_dispersion([0.0, 1.0, 2.0], 5.0)),
        ("work", lambda: index_of_dispersion([0.0, 1.0, 2.0], 0.5, [1.0])),
        ("mean_service", lambda: peakedness([0.0, 1.0, 2.0], -1.0)),
        ("mean_service", lambda: peakedness([0.0, 1.0, 2.0], 1.0)),
        ("dispersion", lambda: peakedness_from_dispersion(-1.0)),
        ("arrival_weight", lambda: peakedness_from_dispersion(1.0, 2.0)),
        ("arrival_scv", lambda: allen_cunneen_factor(-1.0, 1.0)),
        ("service_scv", lambda: allen_cunneen_factor(1.0, math.nan)),
        ("servers", lambda: hayward(0.5, 0.1, 1.0)),
        ("offered_load", lambda: hayward(2, -1.0, 1.0)),
        ("z", lambda: hayward(2, 1.0, 0.0)),
        ("quantile", lambda: renewal_wait_quantile(1.0, 1.0, 2, quantile=1.0)),
        ("arrival_rate", lambda: renewal_wait_quantile(-1.0, 1.0, 2)),
        ("service_time", lambda: renewal_wait_quantile(1.0, 0.0, 2)),
        ("servers", lambda: renewal_wait_quantile(1.0, 1.0, 0.5)),
        ("relaxation", lambda: rate_mixture([0.0, 1.0, 9.0], 0.0)),
        ("stretches", lambda: rate_mixture([0.0, 1.0, 9.0], 1.0, stretches=0)),
        ("levels", lambda: mix_quantiles([0.5, 0.1], [[1.0, 2.0]], [1.0], [0.5])),
        ("values", lambda: mix_quantiles([0.0, 1.0], [[1.0]], [1.0], [0.5])),
        ("weights", lambda: mix_quantiles([0.0, 1.0], [[1.0, 2.0]], [-1.0], [0.5])),
        ("quantiles", lambda: mix_quantiles([0.0, 1.0], [[1.0, 2.0]], [1.0], [1.5])),
        ("profile", lambda: profile_rates(1.0, [])),
        ("mean_rate", lambda: profile_rates(-1.0, [1.0])),
        ("quantile", lambda: peak_rate(1.0, [1.0], quantile=1.0)),
        ("dispersion", lambda: peak_rate(1.0, [1.0], dispersion=-1.0)),
    ],
)
def test_nonsense_is_named(name: str, call: object) -> None:
    with pytest.raises(ValueError, match=name):
        call()  # type: ignore[operator]
