"""KServe: one LLMInferenceService per pool, or one with a prefill part for a split fleet, and budgets for disruptions."""

from __future__ import annotations

from planner.deploy import Rendered, Target
from planner.deploy import kubernetes as k
from planner.deploy.pods import SHARED_MEMORY_GIB, environment, placement, probes, resources
from planner.deploy.router import POOL_HEADER, length_notes, picker, picker_notes
from planner.deploy.serving import PORT, Serving, ServingPool, without
from planner.errors import InputError


def render(serving: Serving) -> Rendered:
    """All objects as one file."""
    pools = serving.pools
    if "{model}" not in serving.engine.launch[2:3]:
        raise InputError(f"--to kserve: KServe's template starts vLLM, not {serving.engine.title}", "Use --to k8s.")
    serving.on_one_node("kserve")
    if serving.split:
        prefill = next(p for p in pools if p.role.startswith("prefill"))
        decode = next((p for p in pools if p is not prefill), prefill)
        documents = [_service(serving, decode, serving.options.name)]
        if decode is not prefill:
            documents[0]["spec"]["prefill"] = _workload(serving, prefill)
    else:
        documents = [_service(serving, p, p.object) for p in pools]
    notes = [*picker_notes(serving)]
    for pool in pools:
        labels = _labels(serving, pool)
        policy = k.network_policy(
            serving, pool.object, labels, [_CALLERS, k.from_pods({k.NAME: labels[k.NAME]})], PORT, leaves=False
        )
        documents += [k.pool_budget(serving, pool, labels), policy]
    if serving.boundaries:
        notes += [
            *length_notes(serving),
            f"KServe routes by model name, not by length: send short requests with {POOL_HEADER}, or use --to k8s or llm-d",
        ]
        documents.append(_route(serving))
    about = f"requests go to KServe's gateway, path /{serving.options.namespace or 'NAMESPACE'}/NAME"
    return k.manifests(serving, "kserve", documents, about, notes)


_CALLERS: k.Object = {"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kserve"}}}]}
"""KServe's gateway."""

TEMPLATE_LEAVES_S, TEMPLATE_EXIT_S = 15, 5
"""What KServe's template takes of the grace before it gives vLLM the rest as `--shutdown-timeout` [s]."""


def _labels(serving: Serving, pool: ServingPool) -> dict[str, str]:
    """Labels that KServe gives the pods of a pool."""
    part = "prefill" if pool.role.startswith("prefill") else "workload"
    return {
        k.NAME: serving.options.name if serving.split else pool.object,
        k.COMPONENT: f"llminferenceservice-{part}",
    }


def _workload(serving: Serving, pool: ServingPool) -> k.Object:
    """A pool as KServe's own template completes it: it mounts the weights, starts vLLM, confines it, and lets it drain."""
    group, engine = serving.engine.flags["tp"], serving.engine
    words = pool.command[len(engine.launch) :]
    tensor = int(words[words.index(group) + 1])
    extra = without(words, group, "--host", "--port", *engine.drains[:1])
    variables = [{"name": "VLLM_ADDITIONAL_ARGS", "value": " ".join(extra)}]
    probe = probes(serving)["startupProbe"]
    own: k.Object = {
        "name": "main",
        "env": [*variables, *(e for e in environment(serving) if e["name"] == serving.key_variable)],
        "resources": resources(serving, pool),
        "startupProbe": {name: probe[name] for name in ("periodSeconds", "failureThreshold")},
        "volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm"}],
    }
    if serving.options.image:
        own["image"] = serving.options.image
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": TEMPLATE_LEAVES_S + pool.drain_s + TEMPLATE_EXIT_S,
        "containers": [own],
        "volumes": [{"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHARED_MEMORY_GIB}Gi"}}],
        **placement(serving, pool),
    }
    return {**k.counted(serving, pool), "parallelism": {"tensor": tensor}, "template": spec}


def _service(serving: Serving, pool: ServingPool, name: str) -> k.Object:
    cache = serving.options.cache
    revision = f":{serving.options.revision}" if serving.options.revision else ""
    uri = f"pvc://{cache}/{serving.repository}" if cache else f"hf://{serving.repository}{revision}"
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": k.metadata(serving, name, labels=k.labels(serving, pool)),
        "spec": {
            "model": {"uri": uri, "name": serving.repository},
            **_workload(serving, pool),
            "router": {"gateway": {}, "route": {}, "scheduler": {"config": {"inline": _scorers(serving)}}},
        },
    }


def _scorers(serving: Serving) -> k.Object:
    """The picker's configuration of one pool: a service serves one class of lengths, so none filters by length."""
    found = picker(serving)
    by_length = "context-length-aware"
    found["plugins"] = [p for p in found["plugins"] if p["type"] != by_length]
    for profile in found["schedulingProfiles"]:
        profile["plugins"] = [p for p in profile["plugins"] if p["pluginRef"] != by_length]
    return found


def _route(serving: Serving) -> k.Object:
    """Requests by the header that names their pool, the rest to the pool of the longest."""

    def backend(pool: ServingPool) -> k.Object:
        name = f"{pool.object}-inference-pool"
        return {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": name}

    rules: list[k.Object] = [
        {
            "matches": [{"headers": [{"name": POOL_HEADER, "value": p.object}]}],
            "backendRefs": [backend(p)],
            "timeouts": {"request": "0s"},
        }
        for p in serving.pools[:-1]
    ]
    rules.append({"backendRefs": [backend(serving.pools[-1])], "timeouts": {"request": "0s"}})
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": k.metadata(serving, serving.options.name, labels=k.labels(serving)),
        "spec": {"parentRefs": [{"name": "kserve-ingress-gateway", "namespace": "kserve"}], "rules": rules},
    }


TARGET = Target(
    "KServe: an LLMInferenceService per pool with the plan's settings and scorers",
    render,
    # the gateway's own address: each service has a path of its own there
    lambda s: (
        f"http://kserve-ingress-gateway-istio.kserve/{s.options.namespace or 'default'}/"
        f"{s.options.name if s.split else s.pools[-1].object}"
    ),
)
