"""llm-d: pods with their roles, an inference pool, an endpoint picker with the scorers the plan relies on, a route."""

from __future__ import annotations

import json

from planner.operate.deploy import Rendered
from planner.operate.deploy import kubernetes as k
from planner.operate.deploy.kubernetes import CONFINED, confined
from planner.operate.deploy.router import length_notes, picker, picker_notes
from planner.operate.deploy.serving import NAME, VALUES, Serving, ServingPool, filler, note, refusal

_filled = filler(__file__)


def render(serving: Serving) -> Rendered:
    """All objects as one file."""
    name = serving.options.name
    chooser = f"{name}-epp"
    gateway = {"gateway.networking.k8s.io/gateway-name": name}
    objects: list[k.Object] = []
    for pool in serving.pools:
        objects += [_workload(serving, pool), k.pool_budget(serving, pool)]
    calls = k.from_pods(gateway) | {"ports": [{"port": VALUES.ports["picker"], "protocol": "TCP"}]}
    objects += [
        _filled("pool", serving=serving, metadata=k.made("tagged", serving=serving, name=name), chooser=chooser),
        k.made("config_map", serving=serving, name=chooser, data={"config.yaml": k.to_yaml(picker(serving))}),
        *_access(serving, chooser),
        # it counts requests in flight itself, and two would each count half: the new one starts when the old one is gone
        k.router(serving, chooser, _picker(serving, chooser), 1, {"type": "Recreate"}),
        _filled("front", metadata=k.made("tagged", serving=serving, name=chooser), chooser=chooser),
        *_gateway(serving, chooser),
        k.engine_policy(serving, k.from_pods(gateway)),
        k.network_policy(serving, chooser, {NAME: chooser}, [calls], VALUES.ports["metrics"], leaves=False),
    ]
    token = note("picker_token", chooser=chooser) if serving.options.namespace else note("picker_open")
    notes = [*picker_notes(serving), *length_notes(serving), note("gateway"), token]
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
        raise refusal("moved", pool=pool)
    spec = found["spec"]["template"]["spec"]
    engine = spec["containers"][0]
    engine["args"] += ["--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})]
    engine["env"] += _filled("fetching")
    engine["ports"].append({"name": "nixl", "containerPort": VALUES.ports["nixl"]})
    if pool.role.startswith("decode"):
        engine["args"][engine["args"].index("--port") + 1] = str(VALUES.ports["behind"])
        engine["ports"][0]["containerPort"] = VALUES.ports["behind"]
        sidecar = _filled("sidecar", confined=dict(CONFINED))
        spec["initContainers"] = [sidecar]
    return found


def _access(serving: Serving, name: str) -> list[k.Object]:
    """What the picker may read; and, where the namespace is known, whom it may ask who reads its metrics."""
    own, namespace = k.made("tagged", serving=serving, name=name), serving.options.namespace
    roles = {"Role": ("rules", own)}
    if namespace:
        roles["ClusterRole"] = ("metrics_rules", {"name": f"{namespace}-{name}-metrics", "labels": own["labels"]})
    found = [_filled("account", metadata=own)]
    for kind, (rules, metadata) in roles.items():
        found += _filled(
            "bound", kind=kind, metadata=metadata, rules=_filled(rules), role=metadata["name"], account=name,
            namespace=namespace,
        )  # fmt: skip
    return found


def _picker(serving: Serving, name: str) -> k.Object:
    """The pod of the endpoint picker."""
    namespace = serving.options.namespace
    spec = _filled(
        "picker",
        serving=serving,
        name=name,
        grace=max(p.grace_s for p in serving.pools),
        image=serving.options.router_image or VALUES.images["picker"],
        last=["--pool-namespace", namespace] if namespace else ["--metrics-endpoint-auth=false"],
    )
    return confined(spec, VALUES.users["picker"], token=True)


def _gateway(serving: Serving, chooser: str) -> list[k.Object]:
    """The gateway, its route to the pool, and how it speaks with the picker."""
    namespace = serving.options.namespace
    found: list[k.Object] = _filled(
        "gateway",
        serving=serving,
        metadata=k.made("tagged", serving=serving, name=serving.options.name),
        of_chooser=k.made("tagged", serving=serving, name=chooser),
        host=f"{chooser}.{namespace}.svc.cluster.local" if namespace else chooser,
    )
    return found


def address(serving: Serving) -> str:
    """Where requests go inside the cluster."""
    return f"http://{serving.options.name}-istio{serving.suffix}"
