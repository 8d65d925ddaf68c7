"""llm-d: pods with their roles, an inference pool, an endpoint picker with the scorers the plan relies on, a route."""

from __future__ import annotations

import json

from planner.deploy import Rendered, Target
from planner.deploy import kubernetes as k
from planner.deploy.pods import CONFINED, confined, grace_s
from planner.deploy.router import length_notes, picker, picker_notes
from planner.deploy.serving import PORT, Serving, ServingPool
from planner.errors import InputError

RELEASE = "v0.10.0"
PICKER_IMAGE = f"ghcr.io/llm-d/llm-d-router-endpoint-picker:{RELEASE}"
SIDECAR_IMAGE = f"ghcr.io/llm-d/llm-d-router-disagg-sidecar:{RELEASE}"
ROUTER_USER = 65532
"""User of both images."""

PICKER_PORT, HEALTH_PORT, METRICS_PORT = 9002, 9003, 9090

ENGINE_BEHIND = 8200
"""Port of an engine behind its sidecar."""

POOLS = "inference.networking.k8s.io"
"""Group of inference pools."""


def render(serving: Serving) -> Rendered:
    """All objects as one file."""
    name = serving.options.name
    chooser = f"{name}-epp"
    gateway = {"gateway.networking.k8s.io/gateway-name": name}
    objects: list[k.Object] = []
    for pool in serving.pools:
        objects += [_workload(serving, pool), k.pool_budget(serving, pool)]
    front = k.service(
        serving, chooser, chooser, {"grpc-ext-proc": (PICKER_PORT, "grpc"), "http-metrics": (METRICS_PORT, "metrics")}
    )
    front["spec"]["ports"][0]["appProtocol"] = "kubernetes.io/h2c"
    calls = k.from_pods(gateway) | {"ports": [{"port": PICKER_PORT, "protocol": "TCP"}]}
    objects += [
        {
            "apiVersion": f"{POOLS}/v1",
            "kind": "InferencePool",
            "metadata": k.tagged(serving, name),
            "spec": {
                "selector": {"matchLabels": {k.PART_OF: name, "llm-d.ai/inference-serving": "true"}},
                "targetPorts": [{"number": PORT}],
                "endpointPickerRef": {"name": chooser, "port": {"number": PICKER_PORT}, "failureMode": "FailOpen"},
            },
        },
        k.config_map(serving, chooser, {"config.yaml": k.to_yaml(picker(serving))}),
        *_access(serving, chooser),
        # it counts requests in flight itself, and two would each count half: the new one starts when the old one is gone
        k.router(serving, chooser, _picker(serving, chooser), 1, strategy={"type": "Recreate"}),
        front,
        *_gateway(serving, chooser),
        k.engine_policy(serving, k.from_pods(gateway)),
        k.network_policy(serving, chooser, {k.NAME: chooser}, [calls], METRICS_PORT, leaves=False),
    ]
    notes = [
        *picker_notes(serving),
        *length_notes(serving),
        "the gateway class is yours to set; the DestinationRule is Istio's",
    ]
    if serving.options.namespace:
        notes.append(
            f"metrics of the picker ask for a token that may get /metrics, such as one of its own account {chooser}"
        )
    else:
        notes.append(
            "metrics of the picker ask for no token: who may read them is a role of the cluster, which needs --namespace"
        )
    return k.manifests(serving, "llm-d", objects, f"requests go to gateway {name}", notes)


def _workload(serving: Serving, pool: ServingPool) -> k.Object:
    """A pool's workload, its pods marked for the picker; with a sidecar where KV caches are fetched."""
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
            "args": [
                f"--port={PORT}",
                f"--model-server-port={ENGINE_BEHIND}",
                "--kv-connector=nixlv2",
                "--secure-proxy=false",
            ],
            "ports": [{"name": "proxy", "containerPort": PORT}],
            "restartPolicy": "Always",
            "securityContext": dict(CONFINED),
        }
        spec["initContainers"] = [sidecar]
    return found


def _access(serving: Serving, name: str) -> list[k.Object]:
    """What the picker may read; and, where the namespace is known, whom it may ask who reads its metrics."""
    look = ["get", "list", "watch"]
    extra = {"resources": ["inferenceobjectives", "inferencemodelrewrites"], "verbs": look}
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": look},
        {"apiGroups": [POOLS], "resources": ["inferencepools"], "verbs": look},
        {"apiGroups": ["llm-d.ai"], **extra},
        {"apiGroups": ["inference.networking.x-k8s.io"], **extra},
    ]
    own = k.tagged(serving, name)
    found: list[k.Object] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": own},
        *_bound(serving, name, own, "Role", rules),
    ]
    if serving.options.namespace:
        rules = [
            {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
            {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
            {"nonResourceURLs": ["/metrics"], "verbs": ["get"]},
        ]
        of_cluster = {"name": f"{serving.options.namespace}-{name}-metrics", "labels": own["labels"]}
        found += _bound(serving, name, of_cluster, "ClusterRole", rules)
    return found


def _bound(serving: Serving, account: str, own: k.Object, kind: str, rules: list[k.Object]) -> list[k.Object]:
    """A role and who has it."""
    group = "rbac.authorization.k8s.io"
    subject: k.Object = {"kind": "ServiceAccount", "name": account}
    if serving.options.namespace:
        subject["namespace"] = serving.options.namespace
    role = {"apiGroup": group, "kind": kind, "name": own["name"]}
    return [
        {"apiVersion": f"{group}/v1", "kind": kind, "metadata": own, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}Binding",
            "metadata": own,
            "subjects": [subject],
            "roleRef": role,
        },
    ]


def _picker(serving: Serving, name: str) -> k.Object:
    """The pod of the endpoint picker."""
    arguments = ["--pool-name", serving.options.name, "--pool-group", POOLS, "--config-file", "/config/config.yaml"]
    arguments += [
        "--grpc-port",
        str(PICKER_PORT),
        "--grpc-health-port",
        str(HEALTH_PORT),
        "--metrics-port",
        str(METRICS_PORT),
    ]
    if serving.options.namespace:
        arguments += ["--pool-namespace", serving.options.namespace]
    else:
        arguments.append("--metrics-endpoint-auth=false")
    look = {"grpc": {"port": HEALTH_PORT, "service": "inference-extension"}}
    fields = {"NAMESPACE": "metadata.namespace", "POD_NAME": "metadata.name"}
    container = {
        "name": "epp",
        "image": serving.options.router_image or PICKER_IMAGE,
        "args": arguments,
        "env": [{"name": n, "valueFrom": {"fieldRef": {"fieldPath": path}}} for n, path in fields.items()],
        "ports": [
            {"name": "grpc", "containerPort": PICKER_PORT},
            {"name": "grpc-health", "containerPort": HEALTH_PORT},
            {"name": "metrics", "containerPort": METRICS_PORT},
        ],
        "readinessProbe": look | {"periodSeconds": 2},
        "livenessProbe": look | {"initialDelaySeconds": 5, "periodSeconds": 10},
        "resources": {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"memory": "8Gi"}},
        "volumeMounts": [{"name": "config", "mountPath": "/config"}],
    }
    spec: k.Object = {
        "serviceAccountName": name,
        # a stream of the gateway to it lasts as long as the request does
        "terminationGracePeriodSeconds": max(grace_s(p) for p in serving.pools),
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": name}}],
    }
    return confined(spec, ROUTER_USER, token=True)


def _gateway(serving: Serving, chooser: str) -> list[k.Object]:
    name, namespace = serving.options.name, serving.options.namespace
    backend = {"group": POOLS, "kind": "InferencePool", "name": name}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
        "backendRefs": [backend],
        "timeouts": {"request": "0s"},
    }
    return [
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": k.tagged(serving, name),
            "spec": {"gatewayClassName": "istio", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": k.tagged(serving, name),
            "spec": {"parentRefs": [{"name": name}], "rules": [rule]},
        },
        {
            # the picker answers over TLS, with a certificate that it signs itself
            "apiVersion": "networking.istio.io/v1",
            "kind": "DestinationRule",
            "metadata": k.tagged(serving, chooser),
            "spec": {
                "host": f"{chooser}.{namespace}.svc.cluster.local" if namespace else chooser,
                "trafficPolicy": {"tls": {"mode": "SIMPLE", "insecureSkipVerify": True}},
            },
        },
    ]


TARGET = Target(
    "llm-d: pods with roles, InferencePool, endpoint picker with the plan's scorers, Gateway and HTTPRoute",
    render,
    lambda s: f"http://{s.options.name}-istio{s.suffix}",
)
