"""Clients with a limit on what they have under way: against the loop written out and against the simulator."""

from __future__ import annotations

import math

import numpy as np
import pytest

import planner as fo
from planner.iteration.model import IterationModel
from planner.queueing.held_back import LONGEST_S, with_limit
from planner.queueing.path import Followed, PathRequests, follow_path

ENGINE = IterationModel(t0=0.002, w=0.005, b=24e-6, c=5e-6, h=1e-6, g=5e-8, a=7e-10)


def _fixed(requests: PathRequests) -> Followed:
    """A pool in which everybody stays a second, or two with more than 500 tokens."""
    stay = np.where(requests.tokens > 500.0, 2.0, 1.0)
    keep = np.flatnonzero(requests.weight > 0.0)
    return Followed(keep, requests.weight[keep], *(3 * [stay[keep]]), requests.times[keep], 0.0)


def test_nobody_is_sent_before_there_is_room() -> None:
    rng = np.random.default_rng(3)
    times, prompts = np.cumsum(rng.exponential(0.12, 500)), rng.integers(1, 1000, 500).astype(float)
    sent = with_limit(PathRequests.of(times, prompts, np.ones(500)), 10.0, _fixed).waited
    under_way: list[float] = []
    for t, own, found in zip(times, np.where(prompts > 500.0, 2.0, 1.0), sent, strict=True):
        under_way = sorted(x for x in under_way if x > t)
        start = t if len(under_way) < 10 else under_way[len(under_way) - 10]
        under_way = [x for x in under_way if x > start]
        assert found == pytest.approx(start, abs=1e-6)
        under_way.append(start + own)


def test_who_is_held_back_for_an_hour_is_not_sent() -> None:
    """One at a time, a second each, ten ready a second: the k-th goes at second k, which is 0.9 k late."""
    ready = np.arange(6000) * 0.1
    found = with_limit(PathRequests.of(ready, np.full(6000, 100.0), np.ones(6000)), 1.0, _fixed)
    assert found.waited == pytest.approx(np.arange(found.rows.size), abs=1e-3)
    assert found.rows.size == pytest.approx(LONGEST_S / 0.9, abs=2.0)
    assert found.held_back_s == pytest.approx(0.9 * 2999.5, rel=1e-3)


def test_a_rate_beyond_what_the_limit_can_send_is_refused() -> None:
    """By Little's law: what decodes for a second and more of idle replicas comes back 50 times a second at most."""
    with pytest.raises(fo.InputError, match="in_flight: 50 requests under way are at most"):
        fo.plan("sharegpt4", rate=1211.0, gpu="b200", tp=8, ttft=15.0, quantile=0.5, in_flight=50)
    kept = fo.plan("sharegpt4", rate=20.0, gpu="b200", tp=8, ttft=15.0, quantile=0.5, in_flight=50)
    (row,) = fo.evaluate(kept, 20.0).to_rows()
    assert 0.0 < float(str(row["running"])) <= 50.0


@pytest.mark.parametrize("limit", [math.inf, 12.0])
def test_a_closed_loop_is_as_the_simulator_has_it(limit: float) -> None:
    from planner.simulate.pool import simulate
    from planner.simulate.presets import PoolEngines
    from planner.simulate.replay import ReplayedTraffic

    rng = np.random.default_rng(5)
    times = np.cumsum(rng.gamma(0.4, 1.0 / (0.4 * 5.0), 8000))
    inputs, outputs = np.ceil(rng.lognormal(6.8, 0.9, 8000)), np.ceil(rng.lognormal(4.8, 0.6, 8000))
    run = with_limit(
        PathRequests.of(times, inputs, outputs),
        limit,
        lambda requests: follow_path(requests, ENGINE.time, budget=2048, slots=256),
    )
    traffic = ReplayedTraffic(times, inputs, outputs, float(times[-1]), 1.0)
    seen = simulate(traffic, PoolEngines(1, ENGINE, 256, 2048), seeds=(1,), quantiles=(0.5, 0.9, 0.99), in_flight=limit)
    for metric, tolerance in (("ttft_s", 0.12), ("tpot_s", 0.08), ("e2e_s", 0.08)):
        truth = [seen.quantile(metric, level).value for level in (0.5, 0.9, 0.99)]
        assert run.quantiles(metric, np.array([0.5, 0.9, 0.99])) == pytest.approx(truth, rel=tolerance), metric
