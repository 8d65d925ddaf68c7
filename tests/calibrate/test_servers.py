"""Fits of servers: synthetic closed loops, measured ones, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.calibrate.servers import (
    MIN_SHAPES,
    ServerPoint,
    closed_loop_tpot,
    fit_server,
    read_servers_csv,
)
from planner.catalog import gpu, model
from planner.errors import CalibrationError, InputError
from planner.iteration.model import IterationModel
from planner.iteration.roofline import roofline

TRUTH = IterationModel(t0=2.5e-3, w=5e-3, b=18e-6, c=6e-6, g=55e-9, h=3e-6, a=0.6e-9)
SHAPES = ((256, 64), (256, 256), (1024, 64), (1024, 256), (4096, 64), (4096, 256), (2048, 128))


def points(
    truth: IterationModel = TRUTH, scheduling: str = "mixed", noise: float = 0.0, seed: int = 0
) -> list[ServerPoint]:
    rng = np.random.default_rng(seed)
    found = []
    for isl, osl in SHAPES:
        for level in (1, 8, 32):
            tpot = closed_loop_tpot(truth, isl, osl, level, scheduling=scheduling)
            ttft = truth.time(0, 0, isl, isl * (isl + 1) / 2) + 4e-3 if level == 1 else 1.0
            jitter = np.exp(noise * rng.standard_normal(2))
            found.append(ServerPoint(isl, osl, level, tpot * jitter[0], ttft * jitter[1]))
    return found


@pytest.mark.parametrize("scheduling", ["mixed", "exclusive"])
def test_a_known_server_is_recovered(scheduling: str) -> None:
    prior = roofline(gpu("h100"), model("llama-3.1-8b"))
    fit = fit_server(points(scheduling=scheduling, noise=0.01), prior, scheduling=scheduling)
    assert fit.tpot_error < 0.03
    assert fit.ttft_error is not None and fit.ttft_error < 0.05
    low, high = fit.intervals["W"]
    assert 0.95 * low < 7.5e-3 < 1.05 * high
    assert fit.iteration.t0 + fit.iteration.w == pytest.approx(7.5e-3, rel=0.05)
    new = ServerPoint(3000, 200, 20, 1.0)
    truth = closed_loop_tpot(TRUTH, 3000, 200, 20, scheduling=scheduling)
    assert fit.predict_tpot(new) == pytest.approx(truth, rel=0.05)


def test_exclusive_formula_by_hand() -> None:
    # 8 decodes at 1,064 tokens, and 7 prompts of 1,000 in 128 steps stall them
    decode = TRUTH.t0 + TRUTH.w + 8 * (TRUTH.c + TRUTH.h + TRUTH.g * 1064)
    prompt = TRUTH.t0 + 18e-6 * 1000 + 6e-6 * 1000 + 0.6e-9 * 500500
    got = closed_loop_tpot(TRUTH, 1000, 128, 8, scheduling="exclusive")
    assert got == pytest.approx(decode + 7 / 128 * prompt)


def test_too_few_shapes_are_refused_or_warned_about() -> None:
    few = [p for p in points() if p.shape in SHAPES[:5]]
    with pytest.raises(CalibrationError, match=f"at least {MIN_SHAPES}"):
        fit_server(few)
    assert any("Only 5 shapes" in w for w in fit_server(few, force=True, resamples=2).warnings)
    with pytest.raises(CalibrationError, match="at least 3"):
        fit_server(few[:3], force=True)


def test_what_is_not_known_is_said() -> None:
    busy = [
        ServerPoint(p.input_tokens, p.output_tokens, p.concurrency, p.tpot_s) for p in points() if p.concurrency == 8
    ]
    fit = fit_server(busy, resamples=2)
    told = " ".join(fit.warnings)
    assert "Only concurrency 8" in told and "TTFT at concurrency 1" in told and "no roofline prior" in told
    assert fit.api_overhead_s is None and fit.ttft_error is None


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="tpot_s must be positive"):
        fit_server([ServerPoint(100, 10, 1, -1.0)])
    with pytest.raises(InputError, match="scheduling"):
        fit_server(points(), scheduling="sometimes")


@pytest.mark.slow
def test_measured_servers(shared_data: Path) -> None:
    found = []
    for key, group in read_servers_csv(shared_data / "calibration" / "servers.csv").items():
        if len({p.shape for p in group}) < MIN_SHAPES:
            with pytest.raises(CalibrationError):
                fit_server(group)
            continue
        spec = model(key[0], weight_dtype=key[4]) if key[4] else model(key[0])
        found.append(fit_server(group, roofline(gpu(key[1]), spec, int(float(key[5]))), resamples=2).tpot_error)
    assert len(found) == 12
    assert np.median(found) < 0.04
    assert max(found) < 0.10
