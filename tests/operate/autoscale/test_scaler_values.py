"""Scalers worked out by hand: what a small rule, pool or path comes to, and every field of what is written of one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.integrate import quad

from planner.operate.autoscale import derive
from planner.operate.autoscale.backtest import (
    UTILIZATION,
    Capacity,
    Outcome,
    Threshold,
    by_window,
    capacity_of,
    clock_counts,
    fast_counts,
    outcome,
    perfect_counts,
    run_policy,
    threshold_of,
    window_mean,
)
from planner.operate.autoscale.derive import (
    HEADROOMS,
    Autoscaling,
    PoolScaler,
    _rates_told,
    aimed_at,
    derive_policy,
    guard_values,
)
from planner.operate.autoscale.objects import Place, render
from planner.operate.autoscale.windows import (
    VALUES,
    PeakPrefill,
    Signals,
    Windows,
    arrivals_along,
    as_sized,
    between_swings,
    hourly_path,
    peak_prefill,
    variances,
)
from planner.operate.deploy.serving import Startup
from planner.operate.monitor.policy import Policy
from planner.predict.contract import MEAN_LEVELS
from planner.shared.version import __version__
from planner.workload import pools as m
from planner.workload.arrivals import Arrivals
from tests.operate.autoscale.test_autoscale import line, plan, shown
from tests.operate.monitor.exporter import fleet_of

pytestmark = pytest.mark.usefixtures("few_replayed", "few_paths", "short_traces")

POLICY = Policy({"requests": 8.0, "running": 11.5}, 2, 9, 0.0, 0.0, 120.0, 180.0, 4.0)
THRESHOLD = Threshold("all", "P99 TTFT", 10.0, 1000.0, 200.0, 12.5, 7.2, 0.4, 0.8)
PEAK = PeakPrefill(33821.0, 4096.0, "llama", "h100", "vllm x", "0123456789abcdef")
OUTCOMES = (Outcome("derived", 0.991, 100.0, 7, 12), Outcome("perfect", 1.0, 80.0, 6, 10))
POOL = PoolScaler(
    "all", THRESHOLD, POLICY, 0.25, Startup(110.0, {}), OUTCOMES, 3.5, 4, {"running": 11.5}, PEAK, "requests"
)
FOUND = Autoscaling("m/x", "fleet", "a file", (POOL,), None, {"mean": 5.0, "busiest_hour": 8.0}, ("a note",))


def test_a_scaler_as_json_and_rows_field_by_field() -> None:
    assert FOUND.to_rows() == [
        {
            "pool": "all",
            "scaler": name,
            "attained": attained,
            "replica_hours": hours,
            "cost_usd": 3.5 * hours,
            "most_replicas": most,
            "starts": starts,
            "threshold_requests_per_s": 10.0,
            "threshold_running": 12.5,
            "threshold_kv_usage": 0.4,
        }
        for name, attained, hours, most, starts in (("derived", 0.991, 100.0, 7, 12), ("perfect", 1.0, 80.0, 6, 10))
    ]
    told = FOUND.to_dict()
    assert told.pop("rows") == FOUND.to_rows()
    assert told == {
        "schema_version": 1,
        "kind": "fleetopt-autoscaling",
        "version": __version__,
        "path": "a file",
        "rates_per_s": {"mean": 5.0, "busiest_hour": 8.0},
        "pools": [
            {
                "name": "all",
                "threshold": THRESHOLD.to_dict(),
                "headroom": 0.25,
                "startup_s": 110.0,
                "clock_replicas": [],
                "planned_replicas": 4,
                "guards": {"running": 11.5},
                "peak_prefill": PEAK.to_dict(),
                "policy": {
                    "targets": {"requests": 8.0, "running": 11.5},
                    "min_replicas": 2,
                    "max_replicas": 9,
                    "tolerance": 0.0,
                    "scale_down_window_s": 120.0,
                    "rate_window_s": 180.0,
                    "offset_per_s": 4.0,
                    "scale_to_zero_after_s": None,
                },
                "cold": None,
            }
        ],
        "notes": ["a note"],
    }
    clocked = dataclasses.replace(POOL, clock=(2, 3), policy=dataclasses.replace(POLICY, idle_s=60.0))
    (of_pool,) = dataclasses.replace(FOUND, pools=(clocked,)).to_dict()["pools"]  # type: ignore[misc]
    assert of_pool["clock_replicas"] == [2, 3] and of_pool["policy"]["scale_to_zero_after_s"] == 60.0
    assert repr(FOUND) == "<Autoscaling: all 2..9>"
    assert POOL.lines() == [
        "all: P99 TTFT breaks at 10 requests/s per replica (12.5 running, 40% of the KV cache, load 80%); "
        "the rule aims 25% below it",
        "all, derived: 99.10% of requests, 100 replica-hours (1.25 of a perfect scaler's), 12 starts",
        "all, perfect: 100% of requests, 80 replica-hours (1.00 of a perfect scaler's), 10 starts",
    ]
    capped = dataclasses.replace(POOL, threshold=dataclasses.replace(THRESHOLD, binding=UTILIZATION), headroom=-0.2)
    assert "the utilization cap is reached at" in capped.lines()[0] and "aims 20% above it" in capped.lines()[0]
    assert _rates_told({"mean": 5.0, "busiest_hour": 8.0, "busiest_five_minutes": 9.5}).startswith(
        "rates: schedule and static have what plan buys for every hour and the busiest (8 requests/s); "
        "the rule and a perfect scaler follow shorter windows, the busiest five minutes having 9.5/s; the mean of the hours is 5/s"
    )


def objects(to: str, pool: PoolScaler = POOL) -> list[dict[str, Any]]:
    text = render(dataclasses.replace(FOUND, pools=(pool,)), to, Place("k8s", "http://p:9090", "chat"))
    return list(yaml.safe_load_all(text))


INSIDE = '{namespace="chat",model_name="m/x",pod=~"fleet-all-[a-z0-9]+-[a-z0-9]{5}"}'
REQUESTS = f"sum(rate(vllm:request_success_total{INSIDE}[180s])) + 4"
RUNNING = f"sum(avg_over_time(vllm:num_requests_running{INSIDE}[180s]))"
BEHAVIOR = {
    "scaleUp": {
        "stabilizationWindowSeconds": 0,
        "tolerance": "0",
        "selectPolicy": "Max",
        "policies": [
            {"type": "Percent", "value": 100, "periodSeconds": 15},
            {"type": "Pods", "value": 4, "periodSeconds": 15},
        ],
    },
    "scaleDown": {
        "stabilizationWindowSeconds": 120,
        "tolerance": "0",
        "selectPolicy": "Max",
        "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
    },
}
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "fleet-all"}


def test_a_horizontal_pod_autoscaler_field_by_field() -> None:
    hpa, config = objects("hpa")
    metrics = [
        {
            "type": "External",
            "external": {
                "metric": {
                    "name": f"chat_fleet_all_{name}",
                    "selector": {"matchLabels": {"fleet": "fleet", "pool": "all"}},
                },
                "target": {"type": "AverageValue", "averageValue": value},
            },
        }
        for name, value in (("requests", "8000m"), ("running", "11500m"))
    ]
    assert hpa == {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "fleet-all", "namespace": "chat"},
        "spec": {
            "scaleTargetRef": TARGET,
            "minReplicas": 2,
            "maxReplicas": 9,
            "metrics": metrics,
            "behavior": BEHAVIOR,
        },
    }
    assert (config["apiVersion"], config["kind"]) == ("v1", "ConfigMap")
    assert config["metadata"] == {"name": "fleet-all-adapter-rules", "namespace": "chat"}
    assert yaml.safe_load(config["data"]["config.yaml"]) == {
        "externalRules": [
            {
                "seriesQuery": series,
                "name": {"as": f"chat_fleet_all_{name}"},
                "resources": {"namespaced": False},
                "metricsQuery": f'label_replace({query}, "pool", "all", "", "")',
            }
            for name, series, query in (
                ("requests", "vllm:request_success_total", REQUESTS),
                ("running", "vllm:num_requests_running", RUNNING),
            )
        ]
    }


def test_a_scaled_object_of_keda_field_by_field() -> None:
    (keda,) = objects("keda")
    assert (keda["kind"], keda["metadata"]) == ("ScaledObject", {"name": "fleet-all", "namespace": "chat"})
    assert keda["spec"] == {
        "scaleTargetRef": TARGET,
        "minReplicaCount": 2,
        "maxReplicaCount": 9,
        "pollingInterval": 15,
        "fallback": {"failureThreshold": 3, "replicas": 4},
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": BEHAVIOR}},
        "triggers": [
            {
                "type": "prometheus",
                "name": name,
                "metricType": "AverageValue",
                "metadata": {
                    "serverAddress": "http://p:9090",
                    "query": query,
                    "threshold": value,
                    "ignoreNullValues": "false",
                },
            }
            for name, query, value in (("requests", REQUESTS, "8"), ("running", RUNNING, "11.5"))
        ],
    }
    # the hours: two replicas always, four from eight to noon, started two minutes ahead
    hours = tuple(4 if 8 <= h < 12 else 2 for h in range(24))
    (clocked,) = objects("keda", dataclasses.replace(POOL, clock=hours, startup=Startup(120.0, {})))
    (cron,) = (t for t in clocked["spec"]["triggers"] if t["type"] == "cron")
    assert cron["metadata"] == {"timezone": "UTC", "start": "58 7 * * *", "end": "0 12 * * *", "desiredReplicas": "4"}
    # more than the rule's least at any hour is its least, and no fallback lies outside its bounds
    (always,) = objects("keda", dataclasses.replace(POOL, clock=(3,) * 24, planned=1))
    assert always["spec"]["minReplicaCount"] == 3 == always["spec"]["fallback"]["replicas"]
    assert {t["type"] for t in always["spec"]["triggers"]} == {"prometheus"}
    (many,) = objects("keda", dataclasses.replace(POOL, planned=50))
    assert many["spec"]["fallback"]["replicas"] == 9


def test_a_variant_of_llm_d_field_by_field() -> None:
    """A quarter above the threshold's 1 / 1.25 is a fifth of it: of 40% of the memory and of the eight that 7.2 waiting are."""
    variant, scaler, config = objects("wva")
    assert variant == {
        "apiVersion": "llmd.ai/v1alpha1",
        "kind": "VariantAutoscaling",
        "metadata": {"name": "fleet-all", "namespace": "chat"},
        "spec": {"scaleTargetRef": TARGET, "modelID": "m/x", "variantCost": "3.5000"},
    }
    (metric,) = scaler["spec"]["metrics"]
    assert metric["external"]["metric"] == {
        "name": "wva_desired_replicas", "selector": {"matchLabels": {"variant_name": "fleet-all"}}
    }  # fmt: skip
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}
    assert config["metadata"] == {"name": "fleet-all-saturation-scaling-config", "namespace": "chat"}

    def thresholds(of: PoolScaler) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(objects("wva", of)[2]["data"]["fleet-all"])
        return found

    assert thresholds(POOL) == {
        "model_id": "m/x",
        "kvCacheThreshold": 0.4,
        "queueLengthThreshold": 8,
        "kvSpareTrigger": 0.08,
        "queueSpareTrigger": 2,
    }
    # never less than a fiftieth of room, than two waiting, nor than a hundredth or more than 98% of the memory
    for waiting, kv, queue, memory in ((math.nan, 0.001, 2, 0.01), (0.4, 1.0, 2, 0.98)):
        threshold = dataclasses.replace(THRESHOLD, waiting=waiting, kv_usage=kv)
        found = thresholds(dataclasses.replace(POOL, threshold=threshold, headroom=0.0))
        assert (found["queueLengthThreshold"], found["kvCacheThreshold"], found["queueSpareTrigger"]) == (
            queue,
            memory,
            1,
        )
        assert found["kvSpareTrigger"] == pytest.approx(0.02 * memory, abs=1e-4)


def test_between_solved_numbers_a_replica_bears_more_with_the_logarithm() -> None:
    """Of 1 replica 10/s, of 4 15/s each: half way, of 2, 12.5; beyond the last the same each, of none nothing."""
    capacity = Capacity(np.array([1.0, 4.0]), np.array([10.0, 60.0]), 1, 2, 8, as_sized([0.9]), (0.9,))
    assert [capacity.rate_per_s(n) for n in (0, 1, 2, 4, 8)] == pytest.approx([0.0, 10.0, 25.0, 60.0, 120.0])
    assert [capacity.needed(r) for r in (0.1, 10.0, 10.1, 25.1, 60.1, 1e9)] == [2, 2, 3, 4, 6, 8]
    assert (capacity.window_s, capacity.promised) == (300.0, 0.9)
    assert dataclasses.replace(capacity, quantiles=()).promised == 1.0
    # no promise at all: as windows keep what they are sized for
    free = dataclasses.replace(capacity, quantiles=(), windows=Windows(1.0, 0.1, np.zeros(2), np.zeros((1, 2))))
    assert free.attained(np.array([10.0, 10.0]), np.array([10.0, 1e9])) == pytest.approx(0.75)


def test_windows_and_hours_of_paths() -> None:
    """Steps of 15 s: windows of five minutes are twenty of them; what is left over is no window."""
    path = np.concatenate((np.full(20, 1.0), np.full(20, 3.0), np.full(10, 9.0)))
    assert window_mean(path) == 3.0 and window_mean(np.linspace(0.0, 39.0, 40)) == pytest.approx(29.5)
    capacity = line(1.0, 0.0)
    assert perfect_counts(path, capacity, 0.0).tolist() == [1] * 20 + [3] * 30
    came, held = by_window(path, np.where(np.arange(50) < 30, 2, 4), capacity)
    assert came.tolist() == [1.0, 3.0] and held == pytest.approx([2.0, 3.0])
    longer = dataclasses.replace(capacity, windows_s=600.0)
    assert perfect_counts(path, longer, 0.0).tolist() == [2] * 50
    came, held = by_window(path, np.where(np.arange(50) < 30, 2, 4), longer)
    assert came.tolist() == [2.0] and held == pytest.approx([2.5])
    # started four steps ahead, the last need held to the end
    assert perfect_counts(path, capacity, 60.0).tolist() == [1] * 16 + [3] * 34
    # an hour is 240 steps; of a start-up of 100 s seven are needed, and the day begins again
    held_by_clock = clock_counts([1, 3], 500, 100.0)
    assert held_by_clock.tolist() == [1] * 233 + [3] * 247 + [1] * 20
    # from 2/s to 6/s, by a 240th of the difference a step, halfway at midnight
    edge = 4.0 * 0.5 / 240
    ends = [4.0 - edge, 2.0 + edge, 2.0 + edge, 4.0 - edge, 4.0 + edge, 6.0 - edge, 6.0 - edge, 4.0 + edge]
    assert hourly_path([2.0, 6.0])[[0, 119, 120, 239, 240, 359, 360, 479]] == pytest.approx(ends)
    done = outcome("x", path, np.full(50, 2), capacity, 0.0)
    assert (done.name, done.most, done.starts) == ("x", 2, 0) and done.replica_hours == pytest.approx(
        50 * 2 * 15 / 3600
    )


def test_a_rule_step_by_step() -> None:
    """40/s fall to 10/s at step 40; a scaler at 10/s each sees four steps, one late: 32.5, 25, 17.5, 10/s at steps 42 to 45; of two
    minutes, eight steps, the most it wanted counts."""
    rates = np.concatenate((np.full(40, 40.0), np.full(30, 10.0)))
    policy = Policy({"requests": 10.0}, 1, 9, 0.0, 0.0, 120.0, 60.0)
    paid = run_policy(policy, rates, 0.0, shown(100.0))
    assert paid.tolist() == fast_counts(policy, rates).tolist() == [4] * 50 + [3, 2] + [1] * 18
    # from the first step on, and with nothing remembered: windows that begin before the path are as long as there is of it
    quick = Policy({"requests": 10.0}, 1, 9, 0.0, 0.0, 0.0, 60.0)
    assert run_policy(quick, np.full(12, 40.5), 0.0, shown(100.0)).tolist() == [5] * 12
    # tokens of 200 a request, 500/s each; what is watched as a maximum is of one replica, whatever there are
    assert run_policy(Policy({"tokens": 500.0}, 1, 9), rates, 0.0, shown(100.0), 200.0)[0] == 16 - 7
    assert run_policy(Policy({"tokens": 500.0}, 1, 20), rates, 0.0, shown(100.0), 200.0)[0] == 16
    # in flight two seconds' worth: 80 of 40/s, eight each; a flat one, of the one that serves, asks for ten, four at a time
    assert run_policy(Policy({"in_flight": 8.0}, 1, 20), rates, 0.0, shown(100.0))[0] == 10
    flat = Policy({"in_flight": 8.0}, 1, 20, flat=frozenset({"in_flight"}))
    assert run_policy(flat, rates, 0.0, shown(100.0))[0] == 1 + 4
    # nothing is held back where replicas do what comes, 0.15 requests of every step where one does 39.99/s
    queued = Policy({"queued": 0.25}, 1, 9)
    assert run_policy(queued, rates, 0.0, shown(100.0)).tolist() == [1] * 70
    assert run_policy(queued, rates, 1e4, shown(39.99)).tolist()[:5] == [1, 1, 2, 2, 3]


def test_totals_add_up_over_replicas() -> None:
    """Of three replicas at 4/s each, half way between what is known of none and of 8/s."""
    rates = np.array([0.0, 8.0])
    high = {"running": np.array([0.0, 9.0]), "waiting": np.array([0.0, 1.0])}
    seen = {name: np.array([0.0, value]) for name, value in
            (("running", 6.0), ("waiting", 2.0), ("in_flight", 8.0), ("kv_usage", 0.5), ("saturation", 0.8))}  # fmt: skip
    signals = Signals(rates, seen, high, 9.0, 10.0)
    assert signals.totals(12.0, 3.0, 5.0) == pytest.approx(
        {"running": 9.0, "waiting": 8.0, "in_flight": 17.0, "kv_usage": 0.75, "saturation": 2.2, "queued": 5.0}
    )
    full = signals.totals(27.0, 3.0, 0.0)  # the largest throughput: all ten slots of each
    assert (full["running"], full["in_flight"]) == (30.0, 30.0)
    assert signals.totals(4.0, 0.0, 0.0)["running"] == pytest.approx(3.0)
    assert (signals.at("running", 4.0), signals.guard("running", 4.0), signals.guard("waiting", 4.0)) == (3.0, 4.5, 1.2)
    policy = Policy({"requests": 6.0}, 1, 4, offset_per_s=8.0)
    assert aimed_at(policy) == 4.0
    found = guard_values(policy, dataclasses.replace(signals, high={name: 0.0 * v for name, v in seen.items()}))
    assert found == pytest.approx(
        {"running": 3.6, "waiting": 1.2, "in_flight": 4.8, "kv_usage": 0.3, "saturation": 0.48, "queued": 1.2}
    )


@pytest.mark.parametrize(("seed", "noise", "stays_s"), [(5, 2.5, 2.0), (7, 2.5, 20.0), (9, 5.0, 20.0)])
def test_the_derived_rule_is_the_best_of_all(seed: int, noise: float, stays_s: float) -> None:
    """Against every rule tried one by one; a replica is drained for as long as a request stays."""
    rng = np.random.Generator(np.random.PCG64(seed))
    ends = np.linspace(0.0, 6.0, 400)
    paths = [25.0 + 15.0 * np.sin(ends) + rng.normal(0.0, noise, 400) for _ in range(2)]
    capacity, signals = line(8.0, 3.0, most=12), shown(9.0, stays_s)
    policy, headroom = derive_policy(capacity, paths, 60.0, signals)
    # n replicas get 8 n - 3: one more is 8/s, and 3/s are added
    found: list[tuple[float, float, int, float, float, float]] = []
    for down, window, room in product(VALUES["down_windows_s"], VALUES["rate_windows_s"], HEADROOMS):
        rule = Policy(
            {"requests": math.floor(8000.0 / room + 1e-9) / 1000.0},
            policy.least,
            12,
            0.0,
            0.0,
            down,
            window,
            float(f"{3.0 / room:.6g}"),
        )
        done = [outcome("", p, fast_counts(rule, p), capacity, 60.0, stays_s) for p in paths]
        kept = float(np.mean([o.attained for o in done]))
        found.append((kept, sum(o.replica_hours for o in done), sum(o.starts for o in done), down, window, room))
    wanted = 1.0 - 0.6 * 0.01  # of all requests 99% are promised
    first = {}  # of each pair of windows the tightest rule that keeps as much
    for rule_of in found:
        if rule_of[0] >= wanted:
            first.setdefault(rule_of[3:5], rule_of)
    cheapest = min(r[1] for r in first.values())
    best = min((r for r in first.values() if r[1] <= 1.01 * cheapest), key=lambda r: (r[2], r[1]))
    assert (policy.down_window_s, policy.rate_window_s, 1.0 + headroom) == pytest.approx(best[3:])
    assert policy.targets["requests"] == pytest.approx(8.0 / (1.0 + headroom), abs=1e-3)
    assert policy.offset_per_s == pytest.approx(3.0 / (1.0 + headroom), rel=1e-5)
    lowest = min(float(p.min()) for p in paths)
    assert (policy.least, policy.most) == (max(1, math.ceil((lowest + 3.0) / 8.0)), 12)
    assert policy.targets["running"] == pytest.approx(1.2 * stays_s * aimed_at(policy), abs=2e-3)


def test_bursts_that_a_path_carries_are_not_drawn_again() -> None:
    """The variance of a mean over w of swings with correlation time t, by quadrature of their autocovariance."""
    arrivals = Arrivals(rate_per_s=10.0, dispersion=((1.0, 3.0), (10.0, 8.0), (60.0, 40.0), (600.0, 100.0)))
    slow = 99.0 / (10.0 * 600.0)
    fast = 39.0 / (10.0 * 60.0) - slow
    assert variances(arrivals) == pytest.approx((fast, slow))

    def carried(w: float) -> float:
        """Index of dispersion beyond chance of swings alone."""
        total = 0.0
        for variance, t in ((fast, 60.0), (slow, 600.0)):
            total += variance * quad(lambda s, t=t: 2.0 * (w - s) * math.exp(-s / t) / w**2, 0.0, w)[0]
        return 10.0 * w * total

    left = between_swings(arrivals)
    assert left is not None
    assert left.dispersion == pytest.approx(
        np.array([(1.0, 1.0 + 2.0 - carried(1.0)), (10.0, 1.0 + 7.0 - carried(10.0))])
    )
    calm = Arrivals(rate_per_s=10.0, dispersion=((1.0, 1.0), (60.0, 40.0)))
    assert between_swings(calm) is None
    # without bursts as many come as the path says, where it says
    path = np.concatenate((np.full(200, 5.0), np.full(200, 20.0)))
    times = arrivals_along(path, None, np.random.Generator(np.random.PCG64(4)))
    first = int((times < 3000.0).sum())
    assert (first, times.size - first) == (pytest.approx(15_000, abs=500), pytest.approx(60_000, abs=1000))
    assert times[-1] <= 6000.0


def test_the_fingerprint_is_of_all_that_it_stands_for() -> None:
    fleet = fleet_of(plan(burst="poisson"))
    peak = peak_prefill(fleet.pools[0])
    names = ("model", "gpu", "engine", "chunk_tokens", "tokens_per_s")
    text = json.dumps({name: getattr(peak, name) for name in sorted(names)})
    assert peak.fingerprint == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_a_threshold_is_the_prediction_at_the_largest_rate() -> None:
    """Little's law for what waits, the share of the memory from mean contexts; quantiles are those promised."""
    fleet = fleet_of(plan(burst="poisson"))
    (pool,) = fleet.pools
    capacity = capacity_of(fleet, 0)
    assert capacity.quantiles == (0.99,) and capacity.windows_s is None and capacity.spares == 0
    found, n = threshold_of(fleet, 0, capacity), pool.replicas
    assert (found.pool, found.binding) == ("all", "P99 TTFT")
    each = capacity.rate_per_s(n) / n
    inputs, outputs = fleet.work_tokens(0)
    assert (found.requests_per_s, found.input_tokens_per_s, found.output_tokens_per_s) == pytest.approx(
        (each, each * inputs, each * outputs)
    )
    (at,) = fleet.predict(n * each, [n])
    busy = pool.model.predict(n * each, n, MEAN_LEVELS).mean("ttft_s")
    alone = pool.model.unloaded(MEAN_LEVELS).mean("ttft_s")
    assert found.waiting == pytest.approx(each * (busy - alone), rel=0.02)
    context = pool.law.mean(m.KV) / pool.law.mean(m.DECODE)
    assert found.kv_usage == pytest.approx(at.mean_running * context / pool.setup.kv_tokens, rel=1e-6)
    assert found.load == pytest.approx(each / pool.model.capacity_per_s)


def test_a_path_says_whether_its_swings_were_measured() -> None:
    def told(dispersion: tuple[tuple[float, float], ...] | None) -> list[str]:
        arrivals = None if dispersion is None else SimpleNamespace(dispersion=dispersion)
        question = SimpleNamespace(traffic=SimpleNamespace(arrivals=arrivals))
        return list(derive._path_told(SimpleNamespace(question=question, linked=False), "a day"))  # type: ignore[arg-type]

    assert told(((1.0, 5.0),)) == ["path: a day, with the swings of the measured arrivals"]
    assert told(()) == told(None) == ["path: a day, without swings (no arrivals measured)"]
