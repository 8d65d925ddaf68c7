"""llm-d: pods with their roles, an inference pool, an endpoint picker with the scorers the plan relies on, a route."""

from __future__ import annotations

import json
from typing import Any

from planner.deploy import Rendered, Target
from planner.deploy import kubernetes as k
from planner.deploy.router import length_notes, picker, picker_notes
from planner.deploy.serving import PORT, Serving, ServingPool
from planner.errors import InputError

PICKER_IMAGE = "ghcr.io/llm-d/llm-d-inference-scheduler:latest"
SIDECAR_IMAGE = "ghcr.io/llm-d/llm-d-routing-sidecar:latest"
PICKER_PORT = 9002
ENGINE_BEHIND = 8200
"""Port of an engine behind its sidecar."""


def render(serving: Serving) -> Rendered:
    """All objects as one file."""
    name = serving.options.name
    chooser = f"{name}-epp"
    documents: list[dict[str, Any]] = []
    for pool in serving.pools:
        documents += [_deployment(serving, pool), k.disruption_budget(serving, pool)]
    documents += [
        {
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "metadata": k.metadata(serving, name, labels=k.labels(serving)),
            "spec": {
                "selector": {"matchLabels": {"app.kubernetes.io/part-of": name, "llm-d.ai/inference-serving": "true"}},
                "targetPorts": [{"number": PORT}],
                "endpointPickerRef": {"name": chooser, "port": {"number": PICKER_PORT}, "failureMode": "FailOpen"},
            },
        },
        k.config_map(serving, chooser, {"config.yaml": k.to_yaml(picker(serving))}),
        *_access(serving, chooser),
        _picker(serving, chooser),
        k.service(serving, chooser, chooser, PICKER_PORT, PICKER_PORT),
        *_gateway(serving),
    ]
    notes = [
        *serving.notes,
        *picker_notes(serving),
        *length_notes(serving),
        *k.budget_notes(serving),
        *k.selector_notes(serving),
        f"images {PICKER_IMAGE.rpartition('/')[2]}: pin the release you run; the gateway class is yours to set",
    ]
    about = f"requests go to gateway {name}; model {serving.repository}"
    return Rendered({"llm-d.yaml": k.dump(documents, [about, *notes])}, tuple(notes))


def _deployment(serving: Serving, pool: ServingPool) -> dict[str, Any]:
    """A pool's deployment, its pods marked for the picker; with a sidecar where KV caches are fetched."""
    role = pool.role if serving.split else "prefill-decode"
    marks = {"llm-d.ai/inference-serving": "true", "llm-d.ai/role": role}
    if serving.boundaries:
        # the picker filters by prompt: ranges meet at the plan's boundaries
        marks["llm-d.ai/context-length-range"] = f"{pool.low_tokens:.0f}-{pool.high_tokens:.0f}"
    found = k.workload(serving, pool, marks)
    if not serving.split:
        return found
    if pool.nodes > 1:
        raise InputError(
            f"--to llm-d: pool {pool.name}: KV caches between replicas of {pool.nodes} nodes are not written here",
            "Use --to dynamo.",
        )
    spec = found["spec"]["template"]["spec"]
    engine = spec["containers"][0]
    engine["args"] += ["--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})]
    engine["env"] += [
        {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": "5600"},
        {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    engine["ports"].append({"name": "nixl", "containerPort": 5600})
    if pool.role.startswith("decode"):
        engine["args"][engine["args"].index("--port") + 1] = str(ENGINE_BEHIND)
        engine["ports"][0]["containerPort"] = ENGINE_BEHIND
        sidecar = {
            "name": "routing-proxy",
            "image": SIDECAR_IMAGE,
            "args": [f"--port={PORT}", f"--vllm-port={ENGINE_BEHIND}", "--kv-connector=nixlv2", "--secure-proxy=false"],
            "ports": [{"containerPort": PORT}],
            "restartPolicy": "Always",
        }
        spec["initContainers"] = [sidecar]
    return found


def _access(serving: Serving, name: str) -> list[dict[str, Any]]:
    """What the picker may read."""
    own = k.metadata(serving, name, labels=k.labels(serving))
    account: dict[str, Any] = {"kind": "ServiceAccount", "name": name}
    if serving.options.namespace:
        account["namespace"] = serving.options.namespace
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {
            "apiGroups": ["inference.networking.k8s.io"],
            "resources": ["inferencepools"],
            "verbs": ["get", "list", "watch"],
        },
        {"apiGroups": ["inference.networking.x-k8s.io"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
    ]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": own},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": own, "rules": rules},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": own,
            "subjects": [account],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        },
    ]


def _picker(serving: Serving, name: str) -> dict[str, Any]:
    own = {**k.labels(serving), "app.kubernetes.io/name": name}
    arguments = ["--pool-name", serving.options.name, "--config-file", "/config/config.yaml"]
    if serving.options.namespace:
        arguments += ["--pool-namespace", serving.options.namespace]
    container = {
        "name": "epp",
        "image": PICKER_IMAGE,
        "args": [*arguments, "--grpc-port", str(PICKER_PORT), "--grpc-health-port", "9003"],
        "ports": [{"name": "grpc", "containerPort": PICKER_PORT}, {"name": "metrics", "containerPort": 9090}],
        "readinessProbe": {"grpc": {"port": 9003}, "periodSeconds": 5},
        "resources": {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"memory": "8Gi"}},
        "volumeMounts": [{"name": "config", "mountPath": "/config"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": k.metadata(serving, name, labels=own),
        "spec": {
            # it counts requests in flight itself: two would each count half
            "replicas": 1,
            "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
            "template": {
                "metadata": {"labels": own},
                "spec": {
                    "serviceAccountName": name,
                    "containers": [container],
                    "volumes": [{"name": "config", "configMap": {"name": name}}],
                },
            },
        },
    }


def _gateway(serving: Serving) -> list[dict[str, Any]]:
    name = serving.options.name
    backend = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": name}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
        "backendRefs": [backend],
        "timeouts": {"request": "0s"},
    }
    return [
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": k.metadata(serving, name, labels=k.labels(serving)),
            "spec": {"gatewayClassName": "istio", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": k.metadata(serving, name, labels=k.labels(serving)),
            "spec": {"parentRefs": [{"name": name}], "rules": [rule]},
        },
    ]


TARGET = Target(
    "llm-d: pods with roles, InferencePool, endpoint picker with the plan's scorers, Gateway and HTTPRoute", render
)
