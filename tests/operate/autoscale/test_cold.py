"""Models that are unloaded while nobody asks, against requests that come one by one."""

from __future__ import annotations

import numpy as np
import pytest

import planner as fo
from planner.operate.autoscale.backtest import ALLOWED, Cold, cold_of
from planner.operate.autoscale.windows import STEP_S, VALUES, hourly_path
from planner.promise import Promise

NIGHT_AND_DAY = [0.2 / 3600] * 10 + [6.0 / 3600] * 14
P99 = Promise("ttft_s", 5.0, 0.99)


def arrivals(path: np.ndarray, days: int, seed: int) -> np.ndarray:
    """Times of requests at the rates of a path, by thinning [s]."""
    rng, most = np.random.default_rng(seed), float(path.max())
    span = days * path.size * STEP_S
    times = np.sort(rng.random(rng.poisson(most * span)) * span)
    here = path[(times // STEP_S).astype(int) % path.size]
    kept: np.ndarray = times[rng.random(times.size) * most < here]
    return kept


def walked(times: np.ndarray, idle_s: float, startup_s: float, limit_s: float) -> tuple[float, int, float]:
    """Share that is late, starts, and time loaded, request after request [s]."""
    late, starts, last, ready = 0, 0, -np.inf, 0.0
    for now in times.tolist():
        if now - last > idle_s:
            starts, ready = starts + 1, now + startup_s
        late += ready - now > limit_s
        last = now
    return late / times.size, starts, float(np.minimum(np.diff(times), idle_s).sum())


@pytest.mark.parametrize(("idle_s", "startup_s"), [(600.0, 150.0), (3600.0, 20.0), (60.0, 300.0), (20_000.0, 600.0)])
def test_as_requests_one_by_one(idle_s: float, startup_s: float) -> None:
    path, days = hourly_path(NIGHT_AND_DAY), 4000
    found = cold_of(path, idle_s, startup_s, [P99])
    times = arrivals(path, days, seed=3)
    late, starts, loaded = walked(times, found.idle_s, startup_s, P99.limit_s)
    assert found.idle_s == max(idle_s, startup_s)
    # of some 340,000 requests, 2,500 starts at least; steps of 15 s
    assert found.late_share == pytest.approx(late, rel=0.03, abs=0.002)
    assert found.starts_per_day == pytest.approx(starts / days, rel=0.04)
    assert found.up_share == pytest.approx(loaded / (days * 86_400.0), rel=0.03)


def test_the_shortest_time_that_keeps_the_promise() -> None:
    path = hourly_path(NIGHT_AND_DAY)
    asked = Promise("ttft_s", 5.0, 0.95)
    after = cold_of(path, 600.0, 120.0, [asked, Promise("tpot_s", 0.1, 0.999)])
    assert after.allowed_share == pytest.approx(0.05) and after.keeps_after_s is not None and after.keeps_up_share
    there, before = (cold_of(path, after.keeps_after_s - back, 120.0, [asked]) for back in (0.0, STEP_S))
    assert there.late_share <= 0.05 < before.late_share and there.up_share == pytest.approx(after.keeps_up_share)
    # who may wait for the start is not late; nothing said of quantiles
    assert cold_of(path, 600.0, 4.0, [asked]).late_share == 0.0
    assert cold_of(path, 600.0, 120.0, []).allowed_share == ALLOWED
    # requests at random leave no pause that a P99 can do without
    assert cold_of(hourly_path([1e-5] * 24), 600.0, 120.0, [P99]).keeps_after_s is None


@pytest.mark.parametrize("places", [1, 2, 4])
def test_models_that_share_gpus(places: int) -> None:
    rate, idle, promised = 2e-4, 300.0, Promise("ttft_s", 1.0, 0.9)
    found = cold_of(hourly_path([rate] * 24), idle, 30.0, [promised])

    def none_free(models: int) -> float:
        """Of 20,000 starts, how many find so many others loaded."""
        rng = np.random.default_rng(models)
        last = np.full((models - 1, 20_000), 0.0)
        since = rng.exponential(1.0 / rate, size=last.shape)
        return float(((since < idle).sum(axis=0) >= places).mean())

    n = found.models[places]
    assert n > places and none_free(n) <= 0.1 + 0.006 and none_free(n + 1) > 0.1 - 0.006
    assert list(found.models) == [1, 2, 4, 8] and max(found.models.values()) <= 8 * VALUES["most_each"]


def test_autoscale_tells_what_scaling_to_zero_does(few_paths: None) -> None:
    plan = fo.plan(isl=500, osl=50, slo="ttft:p90=5s", rate=0.002, rate_is="peak", pools=1, method="mgc", kv="reserved")
    (pool,) = fo.autoscale(plan, hours="servegen-m-small", startup="30s", scale_to_zero="10min").pools
    assert (
        isinstance(pool.cold, Cold)
        and pool.policy.idle_s == pool.cold.idle_s == 600.0
        and 0.0 < pool.cold.up_share < 1.0
    )
    assert pool.lines()[-1].startswith("all: unloaded after 10 min without requests: ")
    for wrong in ("-5s", "0s", "8d"):
        with pytest.raises(fo.InputError, match=r"^--scale-to-zero: "):
            fo.autoscale(plan, hours="servegen-m-small", scale_to_zero=wrong)
