"""Scalers as objects, field by field: what is written is read back, scales the right object, and counts its own fleet alone."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import planner as fo
from planner.operate.autoscale.derive import GATEWAY_GUARDS, guards_of
from planner.operate.autoscale.objects import Place, render
from planner.operate.monitor.measured import Series
from planner.operate.monitor.names import find_deployed, names_of
from planner.operate.monitor.policy import policies_of
from tests.operate.deploy.schemas import crds, problems
from tests.operate.monitor.exporter import fleet_of
from tests.operate.monitor.fluid import Course, pod_name, scraped
from tests.operate.monitor.promql import Query, Store

pytestmark = pytest.mark.usefixtures("fewer_replayed", "few_paths", "short_traces")

MODEL = "meta-llama/Llama-3.1-8B-Instruct"

TOGETHER = (
    (40.0, "chat", "fleetopt-all", MODEL),
    (70.0, "search", "fleetopt-all", MODEL),
    (90.0, "chat", "fleetopt-all-2", MODEL),
    (60.0, "chat", "fleetopt-all", "other"),
)
"""Requests/s, namespace, object and model of fleets that one Prometheus sees."""


@cache
def plan(**options: Any) -> fo.Plan:
    return fo.plan(**{"workload": "azure", "rate": 60, "slo": 0.5, "pools": 1, "method": "occupancy", **options})


def scaled(deployed: str = "k8s", **asked: Any) -> fo.Autoscaling:
    """What is watched beside requests/s is all that hangs on where a fleet is deployed."""
    return asked_once(guards_of(find_deployed(deployed), 1), **asked)


@cache
def asked_once(guards: tuple[str, ...], **asked: Any) -> fo.Autoscaling:
    deployed = next(name for name in ("k8s", "llm-d") if guards_of(find_deployed(name), 1) == guards)
    return fo.autoscale(plan(), hours="servegen-m-small", startup="110s", deployed=deployed, **asked)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> fo.Autoscaling:
    """With the clock, beside the derived rule as an object holds it."""
    file = tmp_path_factory.mktemp("rule") / "rule.yaml"
    file.write_text(render(scaled(), "keda"))
    return scaled(policy=(str(file),), clock=True)


@cache
def apart() -> fo.Autoscaling:
    """Of prefill and decode pools, the least work that has both: objects do not hang on how they are sized."""
    two = {"shape": "disaggregated", "burst": "poisson", "routing": "random", "tp": 1, "token_budget": 2048}
    return fo.autoscale(
        fo.plan("azure", rate=4, slo=0.5, tpot=0.05, engine="sglang", confidence=0.5, **two), startup="110s"
    )


def documents(found: fo.Autoscaling, to: str, *place: Any) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(render(found, to, Place(*place))))


@pytest.mark.parametrize("to", ["hpa", "keda", "wva"])
def test_objects_are_valid(to: str) -> None:
    for found in (scaled(), apart()):
        for document in documents(found, to, "k8s", "http://p:9090", "serving"):
            wrong = problems(document)
            assert not wrong, wrong
            assert wrong is not None or not crds()
            assert document["metadata"]["namespace"] == "serving"


@pytest.mark.parametrize("deployed", ["k8s", "llm-d", "kserve", "dynamo"])
@pytest.mark.parametrize("to", ["hpa", "keda"])
def test_what_is_written_is_read_back_exactly(deployed: str, to: str, tmp_path: Path) -> None:
    if (deployed, to) == ("kserve", "hpa"):
        with pytest.raises(fo.InputError, match="--to hpa: KServe scales its services itself"):
            render(scaled(deployed), to, Place(deployed))
        return
    found, file = scaled(deployed), tmp_path / "rule.yaml"
    (pool,) = found.pools
    file.write_text(render(found, to, Place(deployed, namespace="chat")))
    back = policies_of([file], [("all", names_of("fleetopt", "all", "both"))])["all"]
    assert back == pool.policy
    guards = GATEWAY_GUARDS if deployed in ("llm-d", "kserve") else ("running",)
    assert set(back.targets) == {"requests", *guards}
    assert all(back.targets[name] == pool.guards[name] for name in guards)


def test_a_rule_read_back_does_as_the_derived_one(judged: fo.Autoscaling) -> None:
    """The row of the user's own rule is the derived rule's to the last replica-hour."""
    rows = {r["scaler"]: r for r in judged.to_rows()}
    same = ("attained", "replica_hours", "starts", "most_replicas")
    assert [rows["yours"][name] for name in same] == [rows["derived"][name] for name in same]
    assert {"this plan, held flat", "schedule", "perfect", "static", "70% of capacity", "llm-d's defaults"} < set(rows)
    # at seven tenths of the capacity nobody has less than the mean rate takes, and no more than one replica beyond it, nor five
    # minutes of the most
    (pool,) = fleet_of(plan()).pools
    usual = 24.0 * scaled().rates_per_s["mean"] / (0.7 * pool.model.capacity_per_s)
    assert usual <= rows["70% of capacity"]["replica_hours"] <= 1.25 * usual + 24.0
    flat, planned = rows["this plan, held flat"], plan().pools[0].replicas
    assert flat["replica_hours"] == 24.0 * planned and flat["starts"] == 0


def test_the_schedule_of_the_backtest_is_that_of_schedule(judged: fo.Autoscaling) -> None:
    schedule = fo.schedule(plan(), hours="servegen-m-small", rate_is="peak", startup="110s")
    assert judged.pools[0].clock == schedule.pools[0].replicas
    spec = documents(judged, "keda")[0]["spec"]
    cron = [t["metadata"] for t in spec["triggers"] if t["type"] == "cron"]
    assert {t["type"] for t in spec["triggers"]} == {"prometheus", "cron"}
    assert all(int(c["desiredReplicas"]) > spec["minReplicaCount"] and c["timezone"] == "UTC" for c in cron)
    assert max(int(c["desiredReplicas"]) for c in cron) == max(judged.pools[0].clock)


def test_a_scaled_object_field_by_field() -> None:
    (pool,) = scaled().pools
    (document,) = documents(scaled(), "keda", "k8s", "http://p:9090", "chat")
    assert document["metadata"] == {"name": "fleetopt-all", "namespace": "chat"}
    spec = document["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "fleetopt-all"}
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (pool.policy.least, pool.policy.most)
    assert spec["fallback"] == {"failureThreshold": 3, "replicas": plan().pools[0].replicas}
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == pool.policy.down_window_s
    assert behavior["scaleUp"] == {
        "stabilizationWindowSeconds": 0,
        "tolerance": "0",
        "selectPolicy": "Max",
        "policies": [
            {"type": "Percent", "value": 100, "periodSeconds": 15},
            {"type": "Pods", "value": 4, "periodSeconds": 15},
        ],
    }
    inside = f'{{namespace="chat",model_name="{MODEL}",pod=~"fleetopt-all-[a-z0-9]+-[a-z0-9]{{5}}"}}'
    window = f"{pool.policy.rate_window_s:.0f}s"
    plus = f" + {pool.policy.offset_per_s:.6g}" if pool.policy.offset_per_s else ""
    assert [t["metadata"]["query"] for t in spec["triggers"]] == [
        f"sum(rate(vllm:request_success_total{inside}[{window}])){plus}",
        f"sum(avg_over_time(vllm:num_requests_running{inside}[{window}]))",
    ]
    for trigger, name in zip(spec["triggers"], ("requests", "running"), strict=True):
        assert (trigger["name"], trigger["metricType"]) == (name, "AverageValue")
        assert float(trigger["metadata"]["threshold"]) == pool.policy.targets[name]
        assert trigger["metadata"]["serverAddress"] == "http://p:9090"
        assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert "idleReplicaCount" not in spec


def test_the_object_that_is_scaled_is_the_targets() -> None:
    many = dataclasses.replace(scaled(), pools=(dataclasses.replace(scaled().pools[0], nodes=2),))
    (groups,) = documents(many, "keda")
    name = {"name": "fleetopt-all"}
    assert groups["spec"]["scaleTargetRef"] == {
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", **name
    }  # fmt: skip
    assert 'pod=~"fleetopt-all-[0-9]+"' in groups["spec"]["triggers"][0]["metadata"]["query"]
    (adapter,) = documents(scaled("dynamo"), "keda", "dynamo")
    assert adapter["spec"]["scaleTargetRef"] == {
        "apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeploymentScalingAdapter", "name": "fleetopt-worker"
    }  # fmt: skip
    (service,) = documents(scaled("kserve"), "keda", "kserve")
    assert (service["kind"], service["metadata"]) == ("LLMInferenceService", name)
    scaling, policy = service["spec"]["scaling"], scaled("kserve").pools[0].policy
    assert (scaling["minReplicas"], scaling["maxReplicas"]) == (policy.least, policy.most)
    assert set(scaling["keda"]) == {"pollingInterval", "fallback", "advanced", "triggers"}
    pair = documents(dataclasses.replace(apart(), engine="vllm"), "keda", "kserve")
    assert [d["metadata"]["name"] for d in pair] == ["fleetopt"]
    prefill, decode = apart().pools
    assert pair[0]["spec"]["scaling"]["maxReplicas"] == decode.policy.most
    assert pair[0]["spec"]["prefill"]["scaling"]["maxReplicas"] == prefill.policy.most
    assert "chat-kserve" not in str(pair) and "fleetopt-kserve-prefill-[a-z0-9]+" in str(pair[0]["spec"]["prefill"])


def test_llm_ds_signals_have_thresholds_from_the_replay() -> None:
    (pool,) = scaled("llm-d").pools
    (document,) = documents(scaled("llm-d"), "keda", "llm-d", "http://p", "chat")
    triggers = {t["name"]: t for t in document["spec"]["triggers"]}
    epp = f'{{namespace="chat",pod=~"fleetopt-epp-.+",model_name="{MODEL}"}}'
    asked = {name: t["metadata"]["query"] for name, t in triggers.items()}
    assert asked["requests"].startswith(f"sum(rate(llm_d_epp_request_total{epp}[")
    assert asked["in-flight"].startswith(f"sum(avg_over_time(llm_d_epp_request_running{epp}[")
    of_pool = '{namespace="chat",inference_pool="fleetopt"}'
    assert asked["saturation"] == f"max(llm_d_epp_flow_control_pool_saturation{of_pool})"
    assert asked["queued"] == f"sum(llm_d_epp_flow_control_queue_size{of_pool})"
    assert asked["backlog-s"].endswith(f") / {pool.peak.tokens_per_s:.6g}")
    # a maximum does not grow with the pool: against all of it
    assert {n: t["metricType"] for n, t in triggers.items() if t["metricType"] == "Value"} == {"saturation": "Value"}
    for name, trigger in triggers.items():
        assert float(trigger["metadata"]["threshold"]) == pool.policy.targets[name.replace("-", "_")]
    head = render(scaled("llm-d"), "keda", Place("llm-d"))
    assert f"fingerprint {pool.peak.fingerprint} (llama-3.1-8b on h100-80gb" in head


def test_two_fleets_in_one_prometheus_are_counted_each_by_its_own_scaler() -> None:
    """The same names in two namespaces, another model beside them, a pool whose name begins alike: 40 requests/s of 260."""
    series: dict[str, list[Series]] = {}
    for rate, namespace, owner, model in TOGETHER:
        for name, of_one in scraped(1.0, Course(rate, 4, {}, running=rate / 4.0), owner, namespace, model).items():
            series.setdefault(name, []).extend(of_one)
    store = Store(series)
    (pool,) = scaled().pools
    for namespace, rate in (("chat", 40.0), ("search", 70.0)):
        (document,) = documents(scaled(), "keda", "k8s", "http://p", namespace)
        asked = {t["name"]: Query(t["metadata"]["query"]) for t in document["spec"]["triggers"]}
        ((labels, value),) = asked["requests"](store, 3600.0)
        assert labels == {} and value == pytest.approx(rate + pool.policy.offset_per_s, rel=1e-3)
        assert asked["running"](store, 3600.0) == [({}, pytest.approx(rate))]
        hpa, config = documents(scaled(), "hpa", "k8s", "http://p", namespace)
        names = [m["external"]["metric"]["name"] for m in hpa["spec"]["metrics"]]
        assert names == [f"{namespace}_fleetopt_all_requests", f"{namespace}_fleetopt_all_running"]
        rules = yaml.safe_load(config["data"]["config.yaml"])["externalRules"]
        assert [r["name"]["as"] for r in rules] == names
        assert [r["seriesQuery"] for r in rules] == ["vllm:request_success_total", "vllm:num_requests_running"]
        assert all(f'namespace="{namespace}"' in r["metricsQuery"] for r in rules)


def test_gauges_of_two_pickers_are_told_apart() -> None:
    series: dict[str, list[Series]] = {}
    times = np.arange(0.0, 601.0, 15.0)
    for namespace, pool, value in (("chat", "fleetopt", 3.0), ("chat", "fleetopt-2", 50.0), ("x", "fleetopt", 80.0)):
        labels = {
            "namespace": namespace,
            "inference_pool": pool,
            "model_name": MODEL,
            "pod": pod_name(f"{pool}-epp", 1),
        }
        for name in ("request_running", "flow_control_queue_size", "flow_control_pool_saturation"):
            series.setdefault(f"llm_d_epp_{name}", []).append(Series(labels, times, np.full(times.size, value)))
        ends = {"namespace": namespace, "endpoint_name": pod_name(f"{pool}-all", 7)}
        series.setdefault("llm_d_epp_inflight_tokens", []).append(Series(ends, times, np.full(times.size, 1e4 * value)))
    (document,) = documents(scaled("llm-d"), "keda", "llm-d", "http://p", "chat")
    for trigger in document["spec"]["triggers"][1:]:
        ((_, value),) = Query(trigger["metadata"]["query"])(Store(series), 600.0)
        peak = scaled("llm-d").pools[0].peak.tokens_per_s
        wanted = 3e4 / peak if trigger["name"] == "backlog-s" else 3.0
        assert value == pytest.approx(wanted, rel=1e-5)


def test_to_zero_only_where_a_gateway_holds_requests() -> None:
    (pool,) = scaled("llm-d").pools
    idle = dataclasses.replace(pool, policy=dataclasses.replace(pool.policy, idle_s=600.0))
    found = dataclasses.replace(scaled("llm-d"), pools=(idle,))
    spec = documents(found, "keda", "llm-d")[0]["spec"]
    assert (spec["idleReplicaCount"], spec["cooldownPeriod"]) == (0, 600)
    # without a replica nothing may count as an error
    assert {t["metadata"]["ignoreNullValues"] for t in spec["triggers"]} == {"true"}
    for to, deployed in (("keda", "k8s"), ("hpa", "llm-d"), ("keda", "dynamo")):
        with pytest.raises(fo.InputError, match="--scale-to-zero: without a replica"):
            render(found, to, Place(deployed))


def test_wva_says_what_followed_it_and_keeps_the_plans_thresholds() -> None:
    (pool,) = scaled().pools
    variant, scaler, config = documents(scaled(), "wva")
    assert "deprecated this scaler: its successor is --to keda --deployed llm-d" in render(scaled(), "wva")
    assert variant["spec"]["modelID"] == MODEL and variant["spec"]["scaleTargetRef"] == scaler["spec"]["scaleTargetRef"]
    assert float(variant["spec"]["variantCost"]) == pytest.approx(pool.usd_per_replica_hour, abs=1e-4)
    thresholds = yaml.safe_load(config["data"]["fleetopt-all"])
    assert thresholds["kvCacheThreshold"] == pytest.approx(max(0.01, pool.threshold.kv_usage), abs=1e-4)
    assert thresholds["queueLengthThreshold"] == max(2, int(np.ceil(pool.threshold.waiting)))


def test_objects_of_prefill_and_decode_pools_ask_the_plans_engine() -> None:
    assert [(p.threshold.pool, p.role) for p in apart().pools] == [("prefill", "prefill"), ("decode", "decode")]
    for to in ("hpa", "keda"):
        text = render(apart(), to)
        assert "vllm:" not in text and "sglang:num_requests" in text
    prefill, decode = documents(apart(), "keda")
    for document, pool in ((prefill, "prefill"), (decode, "decode")):
        assert f'pod=~"fleetopt-{pool}-[a-z0-9]+-' in document["spec"]["triggers"][0]["metadata"]["query"]


def test_kinds_that_are_none() -> None:
    with pytest.raises(fo.InputError, match="--to: 'kedda' is none of hpa, keda, wva"):
        render(scaled(), "kedda")
    with pytest.raises(fo.InputError, match="--deployed: 'llmd' is none of k8s"):
        fo.autoscale(plan(), deployed="llmd")
