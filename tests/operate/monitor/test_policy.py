"""The rule of the API server worked by hand, and rules read from files: ours exactly, llm-d's as it ships them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import planner as fo
from planner.operate.monitor.policy import DAY_S, Pace, Policy, Scaler, metric_of, policies_of, read_policy, written


def test_the_rule_is_that_of_the_api_server() -> None:
    """Worked by hand from the documentation: ceil(current x ratio), a tolerance, the most wanted of the window."""
    scaler = Scaler(Policy({"requests": 10.0}, 1, 40, tolerance=0.1, down_window_s=60.0), 5)
    assert scaler.decide(15.0, {"requests": 54.0}) == 5  # ratio 1.08
    assert scaler.decide(30.0, {"requests": 56.0}) == 6
    assert scaler.decide(45.0, {"requests": 20.0}) == 6  # wants 2, the window holds 6
    assert scaler.decide(75.0, {"requests": 20.0}) == 6
    assert scaler.decide(105.0, {"requests": 20.0}) == 2
    # four pods more or twice as many in 15 s, whichever is more
    assert scaler.decide(120.0, {"requests": 900.0}) == 6
    assert scaler.decide(125.0, {"requests": 900.0}) == 6
    assert scaler.decide(135.0, {"requests": 900.0}) == 12
    assert [scaler.decide(150.0 + 15.0 * k, {"requests": 900.0}) for k in range(3)] == [24, 40, 40]


def test_of_several_metrics_the_largest_counts() -> None:
    scaler = Scaler(Policy({"requests": 10.0, "running": 4.0}, 1, 50, tolerance=0.0, up=Pace(((900.0, 15.0),))), 2)
    assert scaler.decide(0.0, {"requests": 20.0, "running": 40.0}) == 10
    assert (
        scaler.policy.wanted({"requests": 81.0}) == 9 and scaler.policy.wanted({"requests": 81.0, "running": 3.0}) == 9
    )
    assert scaler.policy.wanted({}) == 1 and scaler.policy.wanted({"requests": 1e6}) == 50


def test_paces_hold_a_scaler_back() -> None:
    """One pod in three minutes up; down a tenth of what there was a minute before, the policy that allows least."""
    policy = Policy({"requests": 1.0}, 1, 100, 0.0, 0.0, 0.0, up=Pace((), ((1.0, 180.0),)))
    scaler = Scaler(policy, 10)
    assert [scaler.decide(15.0 * k, {"requests": 50.0}) for k in range(14)] == [11] * 12 + [12] * 2
    slow = Pace(((10.0, 60.0),), ((4.0, 60.0),), widest=False)
    scaler = Scaler(Policy({"requests": 1.0}, 1, 100, 0.0, 0.0, 0.0, down=slow), 50)
    assert [scaler.decide(30.0 * k, {"requests": 2.0}) for k in range(5)] == [46, 46, 42, 42, 38]
    never = Scaler(Policy({"requests": 1.0}, 1, 100, 0.0, 0.0, 0.0, down=Pace(by_pods=((0.0, 15.0),))), 50)
    assert never.decide(100.0, {"requests": 1.0}) == 50


def test_the_clock_holds_over_midnight_and_by_days() -> None:
    policy = Policy({"requests": 1.0}, 1, 9, held=((22 * 3600.0, DAY_S + 6 * 3600.0, 4), (6.5 * DAY_S, 0.5 * DAY_S, 7)))
    assert [policy.held_at(3600.0 * h) for h in (13, 23, 29, 30)] == [0, 4, 4, 0]
    assert [policy.held_at(DAY_S * d) for d in (6.4, 6.6, 7.2, 0.4)] == [0, 7, 7, 7]
    assert Scaler(policy, 1).decide(23 * 3600.0, {"requests": 1.0}) == 4


def test_targets_are_written_in_thousandths_and_never_below() -> None:
    assert [written(v) for v in (1.23456, 0.00001, 2.0, 0.0019999)] == [1.234, 0.001, 2.0, 0.001]


def hpa(**spec: Any) -> dict[str, Any]:
    target = {"type": "AverageValue", "averageValue": "1500m"}
    metric = {"type": "Pods", "pods": {"metric": {"name": "vllm_num_requests_waiting"}, "target": target}}
    return {
        "kind": "HorizontalPodAutoscaler",
        "spec": {"minReplicas": 2, "maxReplicas": 9, "metrics": [metric], **spec},
    }


def test_a_users_rule_is_read_as_the_server_does() -> None:
    policy = read_policy(hpa(), "hpa.yaml")
    assert policy == Policy({"waiting": 1.5}, 2, 9, 0.1, 0.0, 300.0)
    behavior = {
        "scaleDown": {"stabilizationWindowSeconds": 0, "selectPolicy": "Disabled"},
        "scaleUp": {"tolerance": "0.05", "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]},
    }
    found = read_policy(hpa(behavior=behavior), "a")
    assert (found.down_window_s, found.tolerance) == (0.0, 0.05)
    assert (found.up, found.down) == (Pace((), ((2.0, 60.0),)), Pace(by_pods=((0.0, 15.0),)))
    value = {"type": "External", "external": {"metric": {"name": "kv_cache_usage"}, "target": {"value": "800m"}}}
    assert read_policy(hpa(metrics=[value]), "a").targets == {"kv_usage": 0.8}


PODS = {"metric": {"name": "vllm:num_requests_waiting"}}


def keda(*triggers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    given = [
        {"type": "prometheus", **({"metricType": t.pop("metricType")} if "metricType" in t else {}), "metadata": t}
        for t in triggers
    ]
    return {"kind": "ScaledObject", "spec": {"maxReplicaCount": 8, "minReplicaCount": 1, "triggers": given, **spec}}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"kind": "Deployment", "spec": {}}, "expected a HorizontalPodAutoscaler"),
        (hpa(metrics=[]), "watches at least one"),
        (hpa(metrics=[{"type": "Resource", "resource": {"name": "cpu"}}]), "metrics\\[0\\]"),
        (hpa(metrics=[{"type": "Pods", "pods": {**PODS, "target": {"averageValue": "1.2.3"}}}]), "metrics\\[0\\]"),
        (hpa(minReplicas=10), "1 <= least <= most"),
        (hpa(maxReplicas=2.5), "whole numbers"),
        (hpa(behavior={"scaleUp": {"stabilizationWindowSeconds": 4000}}), "at most an hour"),
        (
            hpa(behavior={"scaleUp": {"policies": [{"type": "Cups", "value": 1, "periodSeconds": 5}]}}),
            "scaleUp.policies",
        ),
        (keda({"query": "sum(rate(requests[1m]))", "threshold": "3", "metricType": "Value"}), "square of the pool"),
        (keda({"query": "up", "threshold": "3"}), "triggers\\[0\\]: 'up' with target 3.0 is not a load"),
        (
            keda(
                {"query": "sum(rate(requests[1m]))", "threshold": "3"},
                advanced={"scalingModifiers": {"formula": "a + b"}},
            ),
            "formulas are not computed",
        ),
    ],
)
def test_rules_that_cannot_be_judged(document: dict[str, Any], told: str) -> None:
    with pytest.raises(fo.InputError, match=told):
        read_policy(document, "hpa.yaml")


def test_llm_ds_own_objects_are_accepted() -> None:
    """The three triggers of its guide: a maximum that does not grow with the pool, sums that do, tokens over a velocity."""
    epp = '{namespace="${NAMESPACE}",service="${EPP_SERVICE}",model_name="${MODEL}"}'
    behavior = {
        "scaleUp": {
            "stabilizationWindowSeconds": 300,
            "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
        },
        "scaleDown": {"stabilizationWindowSeconds": 300},
    }
    found = read_policy(
        keda(
            {"query": 'max(llm_d_epp_flow_control_pool_saturation{inference_pool="p"})', "threshold": "0.7"},
            {"query": f"sum(llm_d_epp_request_running{epp})", "threshold": "16"},
            {"query": f"sum(llm_d_epp_flow_control_queue_size{epp})\n", "threshold": "1"},
            {
                "query": '(\n  sum(llm_d_epp_inflight_tokens{endpoint_name=~".*prefill.*"}) / 33821\n) or vector(0)\n',
                "threshold": "1.5",
            },
            {"query": 'sum(vllm:kv_cache_usage_perc{pod=~"d.*"})', "threshold": "0.8"},
            minReplicaCount=1,
            cooldownPeriod=300,
            advanced={"horizontalPodAutoscalerConfig": {"behavior": behavior}},
        ),
        "llm-d.yaml",
    )
    targets = {"saturation": 0.7, "in_flight": 16.0, "queued": 1.0, "backlog_s": 1.5, "kv_usage": 0.8}
    assert found == Policy(
        targets, 1, 8, 0.1, 300.0, 300.0, flat=frozenset({"saturation"}), up=Pace(((100.0, 15.0),)), idle_s=None
    )
    # a pool that is as full as can be asks for two replicas, whatever there are
    assert found.wanted({"saturation": 1.0}) == 2
    to_zero = keda({"query": "sum(rate(requests[1m]))", "threshold": "3"}, minReplicaCount=0, cooldownPeriod=120)
    assert (read_policy(to_zero, "z").least, read_policy(to_zero, "z").idle_s) == (1, 120.0)


@pytest.mark.parametrize(
    ("name", "about"),
    [
        ("llm_d_epp_request_running", "in_flight"),
        ("inference_objective_running_requests", "in_flight"),
        ("vllm:num_requests_running", "running"),
        ("sglang:num_queue_reqs", "waiting"),
        ("dynamo_frontend_queued_requests", "queued"),
        ("sum(rate(vllm:prompt_tokens_total[1m]))", "tokens"),
        ("sum(rate(vllm:request_success_total[1m]))", "requests"),
        ("DCGM_FI_DEV_GPU_UTIL", None),
    ],
)
def test_what_a_metric_is_about(name: str, about: str | None) -> None:
    assert metric_of(name) == about


def test_files_of_rules_are_found_by_what_they_scale(tmp_path: Path) -> None:
    one, two = keda({"query": "sum(rate(requests[2m])) + 3.5", "threshold": "4"}), hpa()
    one["spec"]["scaleTargetRef"], two["spec"]["scaleTargetRef"] = {"name": "fleetopt-short"}, {"name": "fleetopt-long"}
    cron = {"start": "30 7 * * *", "end": "0 20 * * *", "desiredReplicas": "5", "timezone": "UTC"}
    one["spec"]["triggers"].append({"type": "cron", "metadata": cron})
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump_all([{"kind": "Service"}, one, two]))
    pools = [("short", ["fleetopt-short"]), ("long", ["fleetopt-long", "fleetopt-worker"])]
    found = policies_of([file], pools)
    assert (found["short"].rate_window_s, found["short"].offset_per_s) == (120.0, 3.5)
    assert found["short"].held == tuple((DAY_S * d + 27_000.0, DAY_S * d + 72_000.0, 5) for d in range(7))
    assert found["long"].targets == {"waiting": 1.5}
    with pytest.raises(fo.InputError, match="scales 'fleetopt-long', which is no pool"):
        policies_of([file], [("short", ["fleetopt-short"]), ("other", ["x"])])
    cron["start"] = "*/5 7 * * *"
    file.write_text(yaml.safe_dump(one))
    with pytest.raises(fo.InputError, match="start: expected minute, hour"):
        policies_of([file], pools)
    file.write_text("a: b")
    with pytest.raises(fo.InputError, match="holds no HorizontalPodAutoscaler"):
        policies_of([file], pools)


def test_what_nobody_writes_is_the_api_servers() -> None:
    """Its documentation: 10% tolerance, up at once, down after five minutes; 4 pods or 100% in 15 s up, 100% in 15 s down."""
    policy = Policy({"requests": 1.0}, 1, 2)
    assert (policy.tolerance, policy.up_window_s, policy.down_window_s) == (0.1, 0.0, 300.0)
    assert (policy.rate_window_s, policy.offset_per_s, policy.idle_s, policy.held) == (60.0, 0.0, None, ())
    assert policy.up == Pace(((100.0, 15.0),), ((4.0, 15.0),)) and policy.down == Pace(((100.0, 15.0),))
    assert policy.up.longest_s == 15.0 and Pace(((10.0, 60.0),), ((1.0, 180.0),)).longest_s == 180.0
    # minReplicas and maxReplicaCount have defaults of their own, 1 and 100
    bare = hpa()
    del bare["spec"]["minReplicas"]
    assert read_policy(bare, "a").least == 1
    unbounded = keda({"query": "sum(rate(requests[1m]))", "threshold": "3"})
    del unbounded["spec"]["maxReplicaCount"], unbounded["spec"]["minReplicaCount"]
    found = read_policy(unbounded, "a")
    assert (found.least, found.most, found.idle_s) == (1, 100, 300.0)


def test_a_scaler_to_zero_waits_from_the_first_moment_and_wakes_with_requests() -> None:
    scaler = Scaler(Policy({"requests": 1.0}, 1, 9, down_window_s=0.0, idle_s=60.0), 3)
    assert [scaler.decide(15.0 * k, {"requests": 0.0}) for k in range(6)] == [1, 1, 1, 1, 0, 0]
    assert scaler.decide(90.0, {"requests": 0.5}) == 1
    assert [scaler.decide(t, {"requests": 0.0}) for t in (149.0, 150.0)] == [1, 0]
    # what a gateway holds back wakes it too
    assert scaler.decide(165.0, {"requests": 0.0, "queued": 2.0}) == 1


def test_what_was_wanted_first_counts_for_the_whole_window() -> None:
    """A controller begins with what there is: from ten it goes down only once five minutes have passed."""
    scaler = Scaler(Policy({"requests": 1.0}, 1, 20, 0.0), 10)
    assert [scaler.decide(t, {"requests": 2.0}) for t in (15.0, 299.0, 300.0)] == [10, 10, 2]
    slow = Scaler(Policy({"requests": 1.0}, 1, 20, 0.0, up_window_s=60.0), 2)
    assert [slow.decide(t, {"requests": 9.0}) for t in (0.0, 15.0, 45.0, 60.0, 75.0)][:3] == [2, 2, 2]
    assert slow.replicas == 9


@pytest.mark.parametrize(
    ("start", "end", "held"),
    [
        # Monday 0:00 is the first second of the week; 1 is Monday, 0 and 7 are Sunday
        ("0 8 * * 1", "30 18 * * 1", ((28_800.0, 66_600.0, 3),)),
        ("0 22 * * 5", "0 6 * * 6", ((4 * DAY_S + 79_200.0, 5 * DAY_S + 21_600.0, 3),)),
        ("0 22 * * 0", "0 6 * * 1", ((6 * DAY_S + 79_200.0, 21_600.0, 3),)),
        ("0 22 * * 7", "0 6 * * 1", ((6 * DAY_S + 79_200.0, 21_600.0, 3),)),
        # over midnight every day; Sunday's ends on Monday
        ("0 22 * * *", "0 6 * * *", tuple((d * DAY_S + 79_200.0, (d + 1) % 7 * DAY_S + 21_600.0, 3) for d in range(7))),
    ],
)
def test_crons_hold_from_a_second_of_the_week_to_another(start: str, end: str, held: tuple[Any, ...]) -> None:
    one = keda({"query": "sum(rate(requests[1m]))", "threshold": "3"})
    one["spec"]["triggers"].append({"type": "cron", "metadata": {"start": start, "end": end, "desiredReplicas": "3"}})
    assert read_policy(one, "a").held == held


@pytest.mark.parametrize(
    ("cron", "told"),
    [
        (
            {"start": "0 8 1 * *", "end": "0 9 * * *", "desiredReplicas": "3"},
            "triggers\\[1\\]: start: expected minute, hour",
        ),
        ({"start": "0 8 * * *", "end": "9", "desiredReplicas": "3"}, "end: expected minute, hour .*, got 9"),
        ({"start": "0 8 * * *", "end": "0 9 * * 1", "desiredReplicas": "3"}, "of every day or of days of the week"),
        ({"start": "0 8 * * *", "end": "0 9 * * *", "desiredReplicas": "2.5"}, "expected desiredReplicas"),
        ({"start": "0 8 * * *", "end": "0 9 * * *"}, "expected desiredReplicas"),
        ({"start": "0 8 * * *", "end": "0 9 * * *", "desiredReplicas": "1000001"}, "expected desiredReplicas"),
    ],
)
def test_crons_that_cannot_be_followed(cron: dict[str, str], told: str) -> None:
    one = keda({"query": "sum(rate(requests[1m]))", "threshold": "3"})
    one["spec"]["triggers"].append({"type": "cron", "metadata": cron})
    with pytest.raises(fo.InputError, match=told):
        read_policy(one, "a")


@pytest.mark.parametrize(
    ("written_as", "value"),
    [
        ("4", 4.0),
        ("500m", 0.5),
        ("2k", 2000.0),
        ("1.5M", 1.5e6),
        (".25", 0.25),
        (" 3 ", 3.0),
        (7, 7.0),
        ("1G", 1e9),
        ("9." + 38 * "1", 9.111111),
    ],
)
def test_quantities_are_kubernetes(written_as: Any, value: float) -> None:
    target = {"type": "Value", "value": written_as}
    external = {"type": "External", "external": {"metric": {"name": "queue_size"}, "target": target}}
    assert read_policy(hpa(metrics=[external]), "a").targets["waiting"] == pytest.approx(value)


def test_all_that_is_wrong_with_a_rule_is_told_at_once() -> None:
    pods = {"type": "Pods", "pods": {**PODS, "target": {"averageValue": "many\x1b[2J"}}}
    behavior = {"scaleUp": {"tolerance": "a lot"}, "scaleDown": {"stabilizationWindowSeconds": 3601}}
    with pytest.raises(fo.InputError) as told:
        read_policy(hpa(metrics=[pods, {"type": "Resource"}, "x"], maxReplicas=True, behavior=behavior), "f.yaml")
    lines = str(told.value).splitlines()
    for place in ("metrics[0]", "metrics[1]", "maxReplicas: expected a number, got True", "tolerance: expected a number, got a lot",
                  "stabilizationWindowSeconds: at most an hour, got 3601"):  # fmt: skip
        assert sum(f"f.yaml: {place}" in line for line in lines) == 1
    assert "\x1b" not in str(told.value)
    for policies in (
        [{"type": "Pods", "value": 0, "periodSeconds": 15}],
        [{"type": "Pods", "value": 1, "periodSeconds": 1801}],
        ["x"],
    ):
        with pytest.raises(fo.InputError, match=r"f: scaleUp.policies\[0\]: expected Percent or Pods"):
            read_policy(hpa(behavior={"scaleUp": {"policies": policies}}), "f")
    least = {"selectPolicy": "Min"}
    assert read_policy(hpa(behavior={"scaleUp": least}), "f").up == Pace(((100.0, 15.0),), ((4.0, 15.0),), widest=False)


def test_queries_of_an_adapter_and_rules_of_a_service_are_found(tmp_path: Path) -> None:
    """A metric of a HorizontalPodAutoscaler is what prometheus-adapter asks for; KServe's service holds rules of both its parts."""
    query = 'sum(rate(vllm:request_success_total{pod=~"a.*"}[2m])) + 1.5'
    adapter = {"externalRules": [{"name": {"as": "load"}, "metricsQuery": f'label_replace({query}, "a", "b", "c", "d")'},
                                 {"name": {"as": "other"}, "metricsQuery": "avg(vllm:kv_cache_usage_perc)"}, "x"]}  # fmt: skip
    config = {"kind": "ConfigMap", "data": {"config.yaml": yaml.safe_dump(adapter), "else": "{", "n": 3}}
    metrics = [
        {
            "type": "External",
            "external": {"metric": {"name": "load"}, "target": {"type": "AverageValue", "averageValue": "4"}},
        },
        {"type": "External", "external": {"metric": {"name": "other"}, "target": {"type": "Value", "value": "900m"}}},
    ]
    file = tmp_path / "hpa.yaml"
    file.write_text(yaml.safe_dump_all([config, hpa(metrics=metrics)]))
    found = policies_of([file], [("all", ["fleetopt-all"])])["all"]
    assert found.targets == {"requests": 4.0, "kv_usage": 0.9}
    assert (found.rate_window_s, found.offset_per_s, found.flat) == (120.0, 1.5, frozenset())
    trigger = {"type": "prometheus", "metadata": {"query": "sum(rate(requests[1m]))", "threshold": "3"}}
    decode = {"minReplicas": 2, "maxReplicas": 5, "keda": {"triggers": [trigger]}}
    spec = {"scaling": decode, "prefill": {"scaling": {**decode, "maxReplicas": 7, "minReplicas": 3}}}
    service = {"kind": "LLMInferenceService", "metadata": {"name": "chat"}, "spec": spec}
    file.write_text(
        yaml.safe_dump_all([service, {"kind": "LLMInferenceService", "metadata": {"name": "b"}, "spec": {}}])
    )
    both = policies_of([file], [("prefill", ["chat-prefill"]), ("decode", ["chat"])])
    assert {pool: (p.least, p.most, p.idle_s) for pool, p in both.items()} == {
        "decode": (2, 5, None),
        "prefill": (3, 7, None),
    }
