"""What timestamps say: rate, burstiness, profile; against processes whose figures are known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from planner.errors import InputError
from planner.workload.arrivals import (
    Arrivals,
    arrivals_from_times,
    count_dispersion,
    gap_spread,
    interarrival_scv,
    spread_ticks,
)
from planner.workload.importing import read_workload


def test_poisson_process_has_scv_and_dispersion_one() -> None:
    rng = np.random.default_rng(3)
    times = np.cumsum(rng.exponential(0.1, 200_000))
    found = arrivals_from_times(times)
    assert found.rate_per_s == pytest.approx(10.0, rel=0.01)
    assert found.scv == pytest.approx(1.0, abs=0.02)
    by_window = dict(found.dispersion)
    assert by_window[1.0] == pytest.approx(1.0, abs=0.05)
    assert by_window[60.0] == pytest.approx(1.0, abs=0.3)
    assert found.assumed is None


def test_dispersion_of_a_batch_process_is_the_batch_size() -> None:
    # batches of b at Poisson times: Var N = b^2 lambda w, E N = b lambda w
    rng = np.random.default_rng(4)
    times = np.repeat(np.cumsum(rng.exponential(1.0, 30_000)), 5) + 1e-6 * np.tile(np.arange(5), 30_000)
    assert dict(arrivals_from_times(times).dispersion)[10.0] == pytest.approx(5.0, rel=0.1)


def test_regular_arrivals_do_not_vary() -> None:
    found = arrivals_from_times(np.arange(0.0, 1000.0, 0.5))
    assert found.scv == pytest.approx(0.0, abs=1e-12)
    assert dict(found.dispersion)[1.0] == 0.0
    assert found.peak_over_mean == pytest.approx(1.0, abs=0.02)


def test_scv_by_window_equals_the_definition_written_out() -> None:
    rng = np.random.default_rng(5)
    times = np.sort(rng.uniform(0.0, 900.0, 700))
    elapsed = times - times[0]
    weights, values = [], []
    for start in np.arange(0.0, math.floor(elapsed[-1] / 60.0) * 60.0, 60.0):
        gaps = np.diff(elapsed[(elapsed >= start) & (elapsed < start + 60.0)])
        if gaps.size >= 2:
            weights.append(gaps.size)
            values.append(gaps.var() / gaps.mean() ** 2)
    found = gap_spread(times, 60.0)
    assert found is not None
    assert found[0].sum() / found[1].sum() == pytest.approx(np.average(values, weights=weights), rel=1e-12)


@pytest.mark.parametrize("at_once", [1, 7, 64])
def test_times_passed_a_part_at_a_time_say_the_same(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    times = 1.7e9 + np.cumsum(np.random.default_rng(3).gamma(0.3, 900.0, 2000))
    whole = arrivals_from_times(times, absolute=True)
    assert len(whole.hourly_profile) in (24, 168)
    monkeypatch.setattr("planner.workload.arrivals._AT_ONCE", at_once)
    assert arrivals_from_times(times, absolute=True) == whole


def test_empty_windows_count() -> None:
    # ten requests in the first of 100 windows: mean 0.1, variance 0.1 x 9.9
    found = count_dispersion(np.array([0.0, 100.0]), np.array([10.0, 1.0]), 1.0, 100.0)
    assert found is not None
    assert found[0] == pytest.approx(9.9)
    assert found[2] == 100


def test_hourly_profile_by_hour_of_day_and_of_week() -> None:
    # one request per minute, two in hour 13 UTC; 2024-01-01 was a Monday
    monday = 1_704_067_200
    minutes = monday + 60.0 * np.arange(60 * 24 * 14)
    busy = minutes[(minutes // 3600) % 24 == 13] + 1.0
    by_week = arrivals_from_times(np.concatenate([minutes, busy]), absolute=True).hourly_profile
    assert len(by_week) == 168
    assert by_week[13] == pytest.approx(2 * 24 / 25, rel=0.01)
    assert by_week[24 * 6 + 13] == pytest.approx(2 * 24 / 25, rel=0.01)
    assert by_week[12] == pytest.approx(24 / 25, rel=0.01)
    two_days = arrivals_from_times(np.concatenate([minutes, busy])[: 2 * 1440], absolute=True).hourly_profile
    assert len(two_days) == 24


@pytest.mark.parametrize("absolute", [True, False])
def test_a_day_that_ends_two_seconds_before_midnight_is_a_day(absolute: bool) -> None:
    """Hour 13 is twice as busy; a trace that lacks half an hour of the day holds none."""
    seconds = 1_704_067_200.0 * absolute + 2.0 * np.arange(43_200)
    busy = np.sort(np.concatenate([seconds, seconds[(seconds // 3600) % 24 == 13] + 1.0]))
    profile = arrivals_from_times(busy, absolute=absolute).hourly_profile
    assert profile[13] == pytest.approx(2 * 24 / 25, rel=2e-3)
    assert profile[23] == pytest.approx(24 / 25, rel=2e-3)
    assert arrivals_from_times(busy[busy < busy[0] + 84_600.0], absolute=absolute).hourly_profile == ()
    week = arrivals_from_times(1_704_067_200.0 * absolute + 60.0 * np.arange(60 * 24 * 7), absolute=absolute)
    assert len(week.hourly_profile) == 168


def test_no_span_no_rate() -> None:
    assert arrivals_from_times([5.0]).rate_per_s is None
    assert arrivals_from_times([5.0, 5.0]).rate_per_s is None


def test_interpolation_between_windows() -> None:
    known = Arrivals(dispersion=((1.0, 3.0), (10.0, 30.0)), assumed=None)
    assert known.dispersion_at(1.0) == pytest.approx(3.0)
    assert known.dispersion_at(0.5) == pytest.approx(2.0)
    assert known.dispersion_at(0.0) == 1.0
    assert known.dispersion_at(1e6) == pytest.approx(30.0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"rate_per_s": 0.0},
        {"rate_per_s": math.inf},
        {"scv": -1.0},
        {"hourly_profile": (1.0, 2.0)},
        {"hourly_profile": (math.nan,) * 24},
        {"dispersion": ((0.0, 1.0),)},
    ],
)
def test_nonsense_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Arrivals(**arguments)  # type: ignore[arg-type]


def test_regular_traffic_stays_regular_when_there_is_more_of_it() -> None:
    """One request a second, as a probe sends them: twenty times as many are no less regular, and no index is negative."""
    regular = arrivals_from_times(np.arange(200.0))
    busy = regular.busier(20.0)
    assert busy.rate_per_s == pytest.approx(20.0 * (200 / 199), rel=1e-12)
    assert all(0.0 <= index < 1.0 for _, index in busy.dispersion)
    assert busy.dispersion == regular.dispersion != ()


def test_a_clock_that_ticks_every_three_seconds_makes_no_crowds(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    times = np.cumsum(rng.exponential(0.5, 4000))
    coarse = 3.0 * np.floor(times / 3.0)
    spread, tick = spread_ticks(coarse)
    assert tick == 3.0
    assert arrivals_from_times(spread).dispersion_at(1.0) == pytest.approx(1.0, abs=0.1)
    assert arrivals_from_times(coarse).dispersion_at(1.0) > 3.0
    assert spread_ticks(times)[1] is None
    path = tmp_path / "ticks.csv"
    path.write_text("timestamp,input_tokens,output_tokens\n" + "\n".join(f"{t:.0f},100,10" for t in coarse))
    w, report = read_workload(path)
    assert any("ticks every 3 s" in note for note in report.notes)
    assert w.arrivals.scv == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("shape", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("gaps", [4.0, 40.0])
def test_interarrival_scv_has_no_bias_with_few_gaps_per_window(shape: float, gaps: float) -> None:
    """Gamma gaps have the scv 1/shape, however few fit into a window."""
    rng = np.random.default_rng(11)
    times = np.cumsum(rng.gamma(shape, 1.0 / shape, 60_000))
    # a full window of few gaps leaves its longest ones out: what that takes is the rest of the tolerance
    assert interarrival_scv(times, gaps) == pytest.approx(1.0 / shape, rel=0.35 if gaps < 10 else 0.06)
