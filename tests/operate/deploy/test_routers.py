"""What stands in front of the replicas: two Envoys, and llm-d's endpoint picker, field by field."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import yaml

from planner.operate.deploy.router import envoy, length_notes
from planner.operate.deploy.serving import DeployOptions, serving_of
from planner.question.files import saved_pools
from planner.routing import find_routing
from tests.operate.deploy.conftest import plan_of
from tests.operate.deploy.test_values import PAIRS, after, of, rendered


def test_two_envoys_end_in_good_order() -> None:
    objects = rendered("k8s", "spare")
    router, budget = (
        of(objects, "Deployment")["fleetopt-router"]["spec"],
        of(objects, "PodDisruptionBudget")["fleetopt-router"],
    )
    pod = router["template"]["spec"]
    (container,) = pod["containers"]
    assert router["replicas"] == 2 and budget["spec"]["maxUnavailable"] == 1
    assert {c["topologyKey"] for c in pod["topologySpreadConstraints"]} == {
        "topology.kubernetes.io/zone",
        "kubernetes.io/hostname",
    }
    script = container["lifecycle"]["preStop"]["exec"]["command"][-1]
    waits = int(re.search(r"^sleep (\d+)$", script, re.MULTILINE).group(1))  # type: ignore[union-attr]
    engine = of(objects, "Deployment")["fleetopt-all"]["spec"]["template"]["spec"]["containers"][0]
    assert pod["terminationGracePeriodSeconds"] >= waits + int(after(engine["args"], "--shutdown-timeout"))
    bootstrap = yaml.safe_load(of(objects, "ConfigMap")["fleetopt-router"]["data"]["envoy.yaml"])
    opened = {p["containerPort"] for p in container["ports"]}
    listeners = {x["address"]["socket_address"]["port_value"] for x in bootstrap["static_resources"]["listeners"]}
    assert listeners == opened
    assert f"/dev/tcp/127.0.0.1/{bootstrap['admin']['address']['socket_address']['port_value']}" in script


@pytest.mark.parametrize("kind", [kind for to, kind in PAIRS if to == "k8s"])
def test_envoy_knows_the_services_and_leaves_the_dead(kind: str) -> None:
    objects = rendered("k8s", kind)
    bootstrap = yaml.safe_load(of(objects, "ConfigMap")["fleetopt-router"]["data"]["envoy.yaml"])["static_resources"]
    services = of(objects, "Service")
    clusters = [c for c in bootstrap["clusters"] if c["name"] != "admin"]
    assert [c["name"] for c in clusters] == [f"fleetopt-{p.name.replace(' ', '-')}" for p in plan_of(kind).pools]
    for cluster in clusters:
        (endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        host = endpoint["endpoint"]["address"]["socket_address"]
        found = services[host["address"]]["spec"]
        assert found["clusterIP"] == "None" and found["ports"][0]["port"] == host["port_value"] == 8000
        assert cluster["ignore_health_on_host_removal"] is True
        assert cluster["health_checks"][0]["no_traffic_interval"] == "5s"
        outliers = cluster["outlier_detection"]
        assert outliers["split_external_local_origin_errors"] and outliers["interval"] == "1s"
        assert outliers["consecutive_local_origin_failure"] == 2
        (protocol,) = cluster["typed_extension_protocol_options"].values()
        # uvicorn closes what is idle for 5 s
        assert float(protocol["common_http_protocol_options"]["idle_timeout"].removesuffix("s")) < 5.0
    manager = bootstrap["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    for route in manager["route_config"]["virtual_hosts"][0]["routes"]:
        retry = route["route"]["retry_policy"]
        assert "connect-failure" in retry["retry_on"] and "5xx" not in retry["retry_on"]
        assert [p["name"] for p in retry["retry_host_predicate"]] == ["envoy.retry_host_predicates.previous_hosts"]


BALANCERS = {
    "random": ("random", "Random", {}),
    "rr": ("round_robin", "RoundRobin", {}),
    "p2c": ("least_request", "LeastRequest", {"choice_count": 2}),
    "least": ("least_request", "LeastRequest", {"selection_method": "FULL_SCAN"}),
    "sticky": ("maglev", "Maglev", {}),
}


@pytest.mark.parametrize("routing", list(BALANCERS))
def test_every_request_finds_its_pool_and_a_replica(routing: str) -> None:
    """By the header that names a pool, else to the last one; by the plan's routing, where sessions stay by the header they bear."""
    plan = plan_of("cut")
    serving = replace(serving_of(plan.to_dict(), saved_pools(plan), DeployOptions()), routing=find_routing(routing))
    names = [p.object for p in serving.pools]
    found = envoy(serving, {name: [(name, 8000)] for name in names})["static_resources"]
    requests, status = (
        one["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]["virtual_hosts"][0]["routes"]
        for one in found["listeners"]
    )
    named = {"prefix": "/", "headers": [{"name": "x-fleetopt-pool", "string_match": {"exact": "fleetopt-short"}}]}
    assert [(r["match"], r["route"]["cluster"]) for r in requests] == [(named, names[0]), ({"prefix": "/"}, names[1])]
    held = [{"header": {"header_name": "x-session-id"}}] if routing == "sticky" else None
    assert [r["route"].get("hash_policy") for r in requests] == [held] * 2
    assert [(r["match"]["path"], r["route"]["cluster"]) for r in status] == [
        ("/ready", "admin"), ("/stats/prometheus", "admin")
    ]  # fmt: skip
    name, kind, more = BALANCERS[routing]
    package = "envoy.load_balancing_policies"
    config = {"@type": f"type.googleapis.com/envoy.extensions.load_balancing_policies.{name}.v3.{kind}", **more}
    policies = [{"typed_extension_config": {"name": f"{package}.{name}", "typed_config": config}}]
    assert [c["load_balancing_policy"]["policies"] for c in found["clusters"][:-1]] == [policies] * 2
    notes = list(length_notes(serving))
    assert any("a session stays on a replica by the header x-session-id" in n for n in notes) == (routing == "sticky")


@pytest.mark.parametrize("namespace", [None, "serving"])
def test_llm_d_as_it_is_today(namespace: str | None) -> None:
    objects = rendered("llm-d", "split", namespace=namespace)
    picker = of(objects, "Deployment")["fleetopt-epp"]["spec"]
    (container,) = picker["template"]["spec"]["containers"]
    assert picker["strategy"] == {"type": "Recreate"} and picker["replicas"] == 1
    assert re.fullmatch(r"ghcr.io/llm-d/llm-d-router-endpoint-picker:v[\d.]+", container["image"])
    fields = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in container["env"]}
    assert fields["NAMESPACE"] == "metadata.namespace"
    assert ("--pool-namespace" in container["args"]) == (namespace is not None)
    assert after(container["args"], "--pool-name") in of(objects, "InferencePool")
    assert after(container["args"], "--metrics-port") == "9090"
    assert ("--metrics-endpoint-auth=false" in container["args"]) == (namespace is None)
    sidecar = of(objects, "Deployment")["fleetopt-decode"]["spec"]["template"]["spec"]["initContainers"][0]
    assert re.fullmatch(r"ghcr.io/llm-d/llm-d-router-disagg-sidecar:v[\d.]+", sidecar["image"])
    engine = of(objects, "Deployment")["fleetopt-decode"]["spec"]["template"]["spec"]["containers"][0]
    assert f"--model-server-port={after(engine['args'], '--port')}" in sidecar["args"]
    rule = of(objects, "DestinationRule")["fleetopt-epp"]["spec"]
    assert rule["host"].partition(".")[0] in of(objects, "Service")
    assert rule["trafficPolicy"]["tls"] == {"mode": "SIMPLE", "insecureSkipVerify": True}
    rules = of(objects, "Role")["fleetopt-epp"]["rules"]
    assert {"llm-d.ai", "inference.networking.k8s.io", ""} <= {g for r in rules for g in r["apiGroups"]}
    roles = of(objects, "ClusterRole")
    assert bool(roles) == (namespace is not None)
    for name, role in roles.items():
        assert {r for rule in role["rules"] for r in rule.get("resources", ())} == {
            "tokenreviews",
            "subjectaccessreviews",
        }
        (subject,) = of(objects, "ClusterRoleBinding")[name]["subjects"]
        assert subject == {"kind": "ServiceAccount", "name": "fleetopt-epp", "namespace": "serving"}
    ports = {p["name"]: p for p in of(objects, "Service")["fleetopt-epp"]["spec"]["ports"]}
    assert ports["http-metrics"]["port"] == 9090 and ports["grpc-ext-proc"]["appProtocol"] == "kubernetes.io/h2c"
