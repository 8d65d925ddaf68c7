"""Plain Kubernetes: a deployment and a headless service per pool, and an Envoy that routes as the plan assumes."""

from __future__ import annotations

from typing import Any

from planner.deploy import Rendered, Target
from planner.deploy import kubernetes as k
from planner.deploy.router import ROUTER_PORT, envoy, length_notes
from planner.deploy.serving import PORT, Serving

ENVOY_IMAGE = "envoyproxy/envoy:v1.34-latest"


def render(serving: Serving) -> Rendered:
    """All objects as one file."""
    serving.colocated("k8s")
    router = f"{serving.options.name}-router"
    # a set of groups has a service of its own name, by which its pods find each other before they are ready
    services = {p.object: p.object if p.nodes == 1 else f"{p.object}-leaders" for p in serving.pools}
    backends = {p.object: [(services[p.object], PORT)] for p in serving.pools}
    config = k.to_yaml(envoy(serving, backends))
    documents: list[dict[str, Any]] = []
    for pool in serving.pools:
        documents += [
            k.workload(serving, pool),
            # headless: Envoy sees every replica; a service of its own address would pick one per connection
            k.service(serving, services[pool.object], pool.object, PORT, "http", headless=True),
            k.disruption_budget(serving, pool),
        ]
    documents += [
        k.config_map(serving, router, {"envoy.yaml": config}),
        _router(serving, router),
        k.service(serving, serving.options.name, router, 80, ROUTER_PORT),
    ]
    notes = [*serving.notes, *length_notes(serving), *k.budget_notes(serving), *k.selector_notes(serving)]
    if serving.routing.least:
        notes.append(
            "one Envoy routes: several would each count their own requests only, and balance less well than planned"
        )
    about = f"requests go to service {serving.options.name}, port 80; model {serving.repository}"
    return Rendered({"kubernetes.yaml": k.dump(documents, [about, *notes])}, tuple(notes))


def _router(serving: Serving, name: str) -> dict[str, Any]:
    own = k.labels(serving)
    look = {"tcpSocket": {"port": ROUTER_PORT}}
    envoy_container = {
        "name": "envoy",
        "image": ENVOY_IMAGE,
        "args": ["--config-path", "/etc/envoy/envoy.yaml"],
        "ports": [{"name": "requests", "containerPort": ROUTER_PORT}],
        "readinessProbe": look | {"periodSeconds": 5},
        "livenessProbe": look | {"periodSeconds": 15},
        "resources": {"requests": {"cpu": "1", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/envoy"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": k.metadata(serving, name, labels=own),
        "spec": {
            "replicas": 1 if serving.routing.least else 2,
            "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
            "template": {
                "metadata": {"labels": own},
                "spec": {
                    "terminationGracePeriodSeconds": max(int(p.drain_s) for p in serving.pools),
                    "containers": [envoy_container],
                    "volumes": [{"name": "config", "configMap": {"name": name}}],
                },
            },
        },
    }


TARGET = Target("Kubernetes: deployments, headless services, disruption budgets, Envoy with the plan's routing", render)
