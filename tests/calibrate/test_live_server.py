"""Calibration of a running server against one on loopback with known timing and faults to order."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fake_engine import FakeEngine

from planner.calibrate.live import Load, Server, describe_loads, measure_server, planned_loads
from planner.calibrate.run import calibrate_server, measured_points
from planner.calibrate.servers import ServerPoint, fit_server
from planner.errors import CalibrationError, InputError
from planner.iteration.model import IterationModel

TRUTH = IterationModel(t0=6e-3, c=6e-6, h=0.25e-3, g=0.4e-6)


def server(engine: FakeEngine, **options: float) -> Server:
    return Server(engine.url, "fake", **{"timeout_s": 5.0, "start_wait_s": 2.0, **options})


@pytest.mark.slow
def test_known_timing_is_recovered() -> None:
    loads = planned_loads(max_input=512, max_output=32, max_concurrency=6, rounds=2)
    with FakeEngine(TRUTH) as engine:
        results = measure_server(server(engine), loads, max_seconds=60.0)
        prompts = [tuple(b["prompt"]) for b in engine.bodies]
    assert all(r.point is not None for r in results)
    assert len(set(prompts)) == len(prompts)  # no prefix cache can help
    points = measured_points(results)
    fit = fit_server(points)
    assert fit.shapes == 7
    # a shared machine wakes sleeping threads late: wide, but far from what a wrong formula would give
    assert fit.tpot_error < 0.12
    assert fit.ttft_error is not None
    assert fit.iteration.t0 + fit.iteration.w == pytest.approx(TRUTH.t0, rel=0.25)
    far = fit.predict_tpot(ServerPoint(256, 24, 6, 1.0))
    assert far == pytest.approx(TRUTH.t0 + 6 * (0.25e-3 + 6e-6 + 0.4e-6 * 268) + (6e-6 * 256 * 5 / 24), rel=0.2)


def test_cold_start_and_dropped_connections_are_survived() -> None:
    load = (Load(64, 16, 4, 12),)
    with FakeEngine(TRUTH, "cold") as engine:
        result = measure_server(server(engine, start_wait_s=5.0), load)[0]
    assert result.point is not None
    slow_start = TRUTH.time(4, 4 * 72)
    assert slow_start * 0.9 < result.point.tpot_s < slow_start * 1.6
    with FakeEngine(TRUTH, "drop") as engine:
        result = measure_server(server(engine), load)[0]
    assert result.failed >= 1 and "dropped" in result.reason
    assert result.point is not None or result.failed > 0.2 * (result.failed + result.measured)


def test_a_server_without_the_extras_is_asked_plainly() -> None:
    with FakeEngine(TRUTH, "400-extras") as engine:
        result = measure_server(server(engine), [Load(32, 8, 1, 2)])[0]
        assert "ignore_eos" not in engine.bodies[-1]
    assert result.point is not None
    assert result.point.output_tokens == 8


@pytest.mark.parametrize(
    ("fault", "told"),
    [("500", "HTTP 500"), ("hang", "no answer in time"), ("garbage", "not OpenAI's")],
)
def test_a_server_that_fails_is_a_clear_error(fault: str, told: str, tmp_path: Path) -> None:
    with FakeEngine(TRUTH, fault) as engine:
        started = time.monotonic()
        with pytest.raises(CalibrationError, match=told):
            calibrate_server(server(engine, timeout_s=0.5, start_wait_s=0.2), [Load(32, 8, 1, 2)])
        assert time.monotonic() - started < 4.0


def test_nobody_listens() -> None:
    with pytest.raises(CalibrationError, match="refused"):
        measure_server(Server("http://127.0.0.1:9", "m", start_wait_s=0.1), [Load(32, 8, 1, 2)])


def test_time_bound_is_kept() -> None:
    slow = IterationModel(t0=0.05)
    with FakeEngine(slow) as engine:
        started = time.monotonic()
        loads = [Load(32, 16, 2, 8), Load(64, 16, 2, 8), Load(64, 8, 2, 8)]
        with pytest.raises(CalibrationError, match="at least 6"):
            calibrate_server(server(engine), loads, max_seconds=1.0)
        assert time.monotonic() - started < 4.0


def test_a_server_that_falls_silent_does_not_hold_the_run() -> None:
    with FakeEngine(TRUTH, "silent") as engine:
        started = time.monotonic()
        result = measure_server(server(engine, timeout_s=30.0), [Load(32, 8, 2, 4)], max_seconds=1.0)[0]
        assert time.monotonic() - started < 4.0
    assert result.point is None


def test_plan_is_bounded_and_described() -> None:
    loads = planned_loads(max_requests=300)
    assert sum(load.sent for load in loads) <= 300
    assert len({(load.input_tokens, load.output_tokens) for load in loads}) >= 6
    assert {load.concurrency for load in loads} >= {1}
    assert describe_loads(loads)[-1].startswith("in all ")
    with pytest.raises(InputError, match="too few"):
        planned_loads(max_requests=10)
    with pytest.raises(InputError, match="at least 2"):
        planned_loads(max_concurrency=1)
    with pytest.raises(InputError, match="not http"):
        Server("localhost:8000", "m")
