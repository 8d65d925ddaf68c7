"""Scalers: thresholds against the model and the rule of Kubernetes, backtests, objects against their schemas."""

from __future__ import annotations

import dataclasses
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import planner as fo
from planner.cli.main import app
from planner.operate.autoscale.backtest import (
    Capacity,
    by_window,
    capacity_of,
    fast_counts,
    largest_rate,
    outcome,
    perfect_counts,
    run_policy,
    serving_of,
    threshold_of,
)
from planner.operate.autoscale.windows import (
    STEP_S,
    Signals,
    Windows,
    _fit,
    as_sized,
    hourly_path,
    kept_windows,
    swings,
)
from planner.operate.monitor.policy import Policy
from planner.workload.arrivals import Arrivals
from tests.operate.autoscale.elastic import simulate_elastic
from tests.operate.monitor.exporter import fleet_of
from tests.operate.monitor.test_policy import hpa

pytestmark = pytest.mark.usefixtures("few_replayed")


@cache
def plan(**options: Any) -> fo.Plan:
    return fo.plan(**{"workload": "azure", "rate": 60, "slo": 0.5, "pools": 1, "method": "occupancy", **options})


@cache
def scaled(hours: str = "servegen-m-small", **options: Any) -> fo.Autoscaling:
    return fo.autoscale(plan(**options), hours=hours, startup="110s")


def line(slope: float, offset: float, most: int = 40, spares: int = 0) -> Capacity:
    """n replicas get slope n - offset."""
    numbers = np.arange(1.0, most + 1.0)
    rates = np.maximum(slope * numbers - offset, 1e-6)
    return Capacity(numbers, rates, spares, 1 + spares, most, as_sized([0.99]), (0.99,))


def shown(top_per_s: float, seconds: float = 2.0) -> Signals:
    """A replica whose requests stay so long, none of which waits."""
    rates = np.array([0.0, 0.9 * top_per_s])
    seen = {name: np.zeros(2) for name in ("waiting", "kv_usage", "saturation", "backlog_s")}
    seen |= {"running": seconds * rates, "in_flight": seconds * rates}
    return Signals(rates, seen, seen, top_per_s, 200.0)


def test_the_threshold_is_where_the_plan_stops_holding() -> None:
    """By evaluating the same fleet a little below and a little above; never above what keeps 95% of the windows."""
    fleet = fleet_of(plan(burst="poisson"))
    (pool,) = fleet.pools
    rate = largest_rate(fleet, 0, pool.replicas)
    assert fleet.holds(0.99 * rate)
    assert not fleet.holds(1.02 * rate)
    capacity = capacity_of(fleet, 0)
    found = threshold_of(fleet, 0, capacity)
    held = found.requests_per_s * pool.replicas
    kept = capacity.windows.kept(np.array([held]), np.array([held]))
    assert held <= 1.001 * rate
    assert held == pytest.approx(rate, rel=1e-3) or kept[0] == pytest.approx(0.95, abs=1e-3)
    (at,) = fleet.predict(held, [pool.replicas])
    assert found.running == pytest.approx(at.mean_running, rel=1e-6)
    assert found.load == pytest.approx(at.load, rel=1e-6)


def test_the_rate_at_which_windows_break_is_found_again() -> None:
    """Windows drawn from a known crossing and spread: the mean of many fits is it, to the error of so few windows."""
    rng = np.random.Generator(np.random.PCG64(8))
    found = []
    for _ in range(60):
        rates = np.sort(rng.uniform(-0.2, 0.8, 40))
        found.append(_fit(rates, rates < 0.3 + 0.1 * rng.standard_normal(40)))
    crossings = np.log([factor for factor, _ in found])
    assert crossings.mean() == pytest.approx(0.3, abs=0.015)
    assert (
        crossings.std() < 0.06
    )  # a crossing known to 0.1 over the root of the dozen windows near it, and a third more
    assert 0.08 < np.mean([spread for _, spread in found]) < 0.15


def test_windows_of_a_rate_are_kept_by_the_normal_law() -> None:
    windows = Windows(1.5, 0.2, np.array([-0.5, 0.0, 0.5]), np.array([[0.0, 0.01, 0.4], [0.02, 0.02, 1.0]]))
    came = np.array([10.0, 10.0, 10.0, 0.0, 0.0])
    held = np.array([10.0 / 1.5, 10.0 / 1.5 * math.exp(0.2), 0.0, 1.0, 0.0])
    assert windows.kept(came, held) == pytest.approx([0.5, 0.8413447461, 0.0, 1.0, 1.0])
    # half way between two points in the logarithm of the rate; the same beyond both ends
    late = windows.late_share(np.full(3, 10.0), 10.0 * np.exp([-0.25, 0.25, 9.0]))
    assert late == pytest.approx(np.array([[0.205, 0.005, 0.0], [0.51, 0.02, 0.02]]))


def test_the_period_is_what_is_promised() -> None:
    """Two windows, one with twice the requests: late requests are weighted by what came, and the promise used most counts."""
    windows = Windows(1.0, 0.1, np.array([0.0, 1.0]), np.array([[0.0, 0.1], [0.01, 0.01]]))
    numbers = np.array([1.0, 2.0])
    capacity = Capacity(numbers, 10.0 * numbers, 0, 1, 2, windows, (0.9, 0.98))
    came, held = np.array([10.0, 20.0]), np.array([10.0, 20.0 / math.e])
    # of the first 2/3 x 10% are late of the 10% allowed, of the second 1% of 2%
    assert capacity.promised == 0.98
    assert capacity.attained(came, held) == pytest.approx(1.0 - (2 / 3) * 0.02)
    by_windows = dataclasses.replace(capacity, windows_s=300.0)
    assert (by_windows.promised, by_windows.window_s) == (0.95, 300.0)
    assert by_windows.attained(came, held) == pytest.approx((0.5 + 0.0) / 2, abs=1e-9)


@pytest.mark.long("fixed fleets on other draws, by another simulation")
def test_windows_break_where_another_simulation_says() -> None:
    """Fixed fleets on other draws, simulated by other code: most windows kept a spread and a half below, broken as far above."""
    fleet = fleet_of(plan(routing="random", method="mixed"))
    (pool,) = fleet.pools
    replicas = pool.replicas
    sized = largest_rate(fleet, 0, replicas)
    windows = kept_windows(fleet, 0, replicas, sized / replicas, pool.capacity_per_s)
    for way, low, high in ((-1.5, 0.8, 1.0), (1.5, 0.0, 0.3)):
        rate = sized * windows.factor * math.exp(way * windows.spread)
        steps = round(5400.0 / STEP_S)
        path = swings(np.full(steps, rate), fleet.question.traffic.arrivals, np.random.Generator(np.random.PCG64(77)))
        # windows of this very mean
        path *= np.repeat(rate / path.reshape(-1, 20).mean(axis=1), 20)
        done = simulate_elastic(fleet, path, lambda *_: replicas, replicas, 0.0, 60.0, seed=78)
        assert low <= done.within <= high


def test_needs_follow_the_capacity_and_keep_the_spares() -> None:
    capacity = line(10.0, 5.0, spares=2)
    for rate in (1.0, 5.0, 5.1, 94.0, 96.0):
        assert capacity.needed(rate) == max(math.ceil((rate + 5.0) / 10.0), 1) + 2
    assert capacity.needed(1e9) == 40


def test_the_fast_course_is_the_slow_one() -> None:
    rates = (
        30.0 + 20.0 * np.sin(np.arange(2000) / 90.0) + np.random.Generator(np.random.PCG64(1)).normal(0.0, 2.0, 2000)
    )
    for down, window, offset in ((0.0, 60.0, 0.0), (120.0, 60.0, 7.0), (600.0, 300.0, 3.0)):
        policy = Policy({"requests": 4.0}, 2, 30, 0.0, 0.0, down, window, offset)
        fast, slow = fast_counts(policy, rates), run_policy(policy, rates, 120.0, shown(30.0))
        assert np.array_equal(fast[60:], slow[60:])


def test_start_ups_are_paid_and_do_not_serve() -> None:
    paid = np.array([2, 2, 5, 5, 5, 3, 3, 3])
    assert serving_of(paid, 2 * STEP_S).tolist() == [2, 2, 2, 2, 5, 3, 3, 3]
    assert serving_of(paid, 0.0).tolist() == paid.tolist()


def test_the_perfect_scaler_keeps_every_window_and_costs_least() -> None:
    capacity = line(10.0, 5.0)
    rates = hourly_path([20.0, 60.0, 180.0, 90.0] * 6)
    paid = perfect_counts(rates, capacity, 110.0)
    came, held = by_window(rates, serving_of(paid, 110.0), capacity)
    assert (held >= came).all()
    fewer = np.maximum(paid - 1, 1)
    came, held = by_window(rates, serving_of(fewer, 110.0), capacity)
    assert (held >= came).mean() < 0.6


def test_what_is_drained_is_paid_and_starts_are_counted() -> None:
    """Two steps of 15 s with 2, 5 and 3 replicas: 20 steps, three started, two drained for a minute each."""
    paid = np.array([2, 2, 5, 5, 3, 3] * 4)
    done = outcome("", np.full(24, 1.0), paid, line(10.0, 0.0), 0.0, drain_s=60.0)
    assert done.starts == 4 * 3 + 0 and done.most == 5
    assert done.replica_hours == pytest.approx((80 * STEP_S + (4 * 2 + 3 * 1) * 60.0) / 3600.0)
    assert done.attained == 1.0


def test_what_a_replica_cannot_serve_piles_up() -> None:
    """Requests beyond the capacity wait: a rule on what is in flight sees them, one on running requests sees full slots."""
    rates = np.concatenate((np.full(20, 5.0), np.full(60, 30.0)))
    waiting = run_policy(Policy({"in_flight": 100.0}, 1, 50), rates, 1200.0, shown(10.0))
    # one replica serves 10 of 30/s: after 300 s 6,000 wait, and more than fifty replicas are asked for
    assert waiting[19] == 1 and waiting[60] == 50
    full = run_policy(Policy({"running": 150.0}, 1, 50, tolerance=0.0), rates, 1200.0, shown(10.0))
    assert full.max() == 2


def test_without_requests_nothing_is_paid_where_that_was_asked_for() -> None:
    """Five minutes after the last request, until the next; the window of the rate is a minute."""
    rates = np.concatenate((np.full(40, 20.0), np.zeros(80), np.full(40, 20.0)))
    paid = run_policy(Policy({"requests": 10.0}, 1, 9, down_window_s=0.0, idle_s=300.0), rates, 60.0, shown(20.0))
    assert paid[30] == 2 and paid[119] == 0 and paid[-1] == 2
    gone, back = int(np.flatnonzero(paid == 0)[0]), int(np.flatnonzero(paid == 0)[-1])
    # the last request leaves the window of the rate after 60 s and is seen 15 s late
    assert 40 + 300 / STEP_S <= gone <= 40 + (300 + 60 + 30) / STEP_S
    assert 120 <= back + 1 <= 120 + 2


def test_swings_have_the_dispersion_they_stand_for() -> None:
    """Variance of the mean rate over ten minutes against (I - 1) rate / window."""
    arrivals = Arrivals(rate_per_s=10.0, dispersion=((60.0, 40.0), (600.0, 100.0)))
    flat = np.full(400_000, 10.0)
    path = swings(flat, arrivals, np.random.Generator(np.random.PCG64(3)))
    assert path.mean() == pytest.approx(10.0, rel=0.02)
    minutes = path.reshape(-1, 4).mean(axis=1)
    expected = (40.0 - 1.0) * 10.0 / 60.0
    # correlated within the window: the mean over one correlation time keeps about three quarters of the variance
    assert 0.5 * expected < minutes.var() < 1.1 * expected
    assert np.array_equal(swings(flat, None, np.random.Generator(np.random.PCG64(3))), flat)


@pytest.mark.long("a rule derived on three paths and judged on others")
def test_a_derived_rule_beats_the_peak_and_keeps_its_windows() -> None:
    (pool,) = scaled().pools
    by_name = {o.name: o for o in pool.outcomes}
    assert by_name["derived"].attained >= 0.97  # aimed at 0.99 on three paths, another one of 288 windows
    assert by_name["derived"].replica_hours <= 1.1 * by_name["perfect"].replica_hours
    assert by_name["derived"].replica_hours < by_name["static"].replica_hours
    assert by_name["perfect"].attained >= 0.95
    # the plan's own fleet at its peak
    assert (by_name["static"].most, by_name["static"].starts) == (plan().pools[0].replicas, 0)


@cache
def apart() -> fo.Plan:
    return fo.plan(
        workload="azure",
        rate=60,
        slo=0.5,
        tpot=0.05,
        e2e=6.0,
        shape="disaggregated",
        burst="poisson",
        engine="sglang",
        tp=1,
        token_budget=2048,
    )


@pytest.mark.parametrize("k", [0, 1])
def test_each_pool_of_prefill_and_decode_has_the_threshold_of_its_promises(k: int) -> None:
    """At the threshold the fleet keeps what is the pool's, as the plan predicts it, and beyond does not."""
    fleet = fleet_of(apart())
    pool = fleet.pools[k]
    rate = largest_rate(fleet, k, pool.replicas) / pool.law.share
    # with the confidence of the plan
    slow = fleet.slowed(fleet.margins(fleet.promises.confidence)[k].deviations)

    def kept(rate: float) -> bool:
        # the other pool grows in the plan's proportion
        counts = [max(1, math.ceil(n * rate / fleet.rate - 1e-9)) for n in fleet.counts]
        counts[k] = pool.replicas
        found = slow.predict(rate, counts)
        own = [p for p in fleet.promises.latency if p.metric == ("ttft_s", "tpot_s")[k]]
        both = [p for p in fleet.promises.latency if p.metric == "e2e_s"]
        return all(found[k].value(p.metric, p.quantile) <= p.limit_s for p in own) and all(
            found[-1].value(p.metric, p.quantile) <= p.limit_s for p in both
        )

    assert len(fleet.promises.latency) == 3
    # the largest rate is found to a 250th
    assert kept(rate / 1.01) and not kept(rate * 1.01)


@pytest.mark.long("a rule derived and judged by the command")
def test_the_command_judges_a_users_rule(tmp_path: Path) -> None:
    written, rule = tmp_path / "plan.yaml", tmp_path / "hpa.yaml"
    written.write_text(yaml.safe_dump(plan().to_dict()))
    target = {"type": "AverageValue", "averageValue": "2"}
    rule.write_text(
        yaml.safe_dump(
            hpa(
                metrics=[{"type": "Pods", "pods": {"metric": {"name": "requests_per_second"}, "target": target}}],
                maxReplicas=90,
            )
        )
    )
    arguments = [
        "autoscale",
        str(written),
        "--hours",
        "servegen-m-small",
        "--startup",
        "110s",
        "--policy",
        str(rule),
        "--format",
        "json",
    ]
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 0, run.output
    rows = {r["scaler"]: r for r in json.loads(run.stdout)["rows"]}
    assert rows["yours"]["attained"] > 0.999
    assert rows["yours"]["replica_hours"] > rows["derived"]["replica_hours"]
    rule.write_text("a: b")
    with pytest.raises(fo.InputError, match="holds no HorizontalPodAutoscaler"):
        fo.autoscale(written, hours="servegen-m-small", policy=[rule])


@pytest.mark.parametrize("startup", ["-5s", "2e5s"])
def test_start_up_times_that_cannot_be(startup: str) -> None:
    with pytest.raises(fo.InputError, match="--startup: must lie between 0 and a day"):
        fo.autoscale(plan(burst="poisson"), startup=startup)


def test_replicas_that_serve_at_once_are_not_estimated() -> None:
    (pool,) = fo.autoscale(plan(burst="poisson"), startup=0).pools
    assert pool.judged == "requests within the promise"
    assert pool.startup.seconds == 0.0
