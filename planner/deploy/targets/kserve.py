"""KServe: one LLMInferenceService per pool, or one with a prefill part for a split fleet, and budgets for disruptions."""

from __future__ import annotations

from typing import Any

from planner.deploy import Rendered, Target
from planner.deploy import kubernetes as k
from planner.deploy.router import POOL_HEADER, length_notes, picker, picker_notes
from planner.deploy.serving import Serving, ServingPool
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
    documents += [_budget(serving, p, p.object if not serving.split else serving.options.name) for p in pools]
    notes = [*serving.notes, *picker_notes(serving), *k.budget_notes(serving), *k.selector_notes(serving)]
    if serving.boundaries:
        notes += [
            *length_notes(serving),
            f"KServe routes by model name, not by length: send short requests with {POOL_HEADER}, or use --to k8s or llm-d",
        ]
        documents.append(_route(serving))
    return Rendered({"kserve.yaml": k.dump(documents, notes)}, tuple(notes))


def _workload(serving: Serving, pool: ServingPool) -> dict[str, Any]:
    """A pool as KServe's own template completes it: it mounts the weights, starts vLLM and knows the port and the group."""
    spec = k.pod_spec(serving, pool, "main")
    words, group = [*pool.command[len(serving.engine.launch) :]], serving.engine.flags["tp"]
    tensor = int(words[words.index(group) + 1])
    for flag in (group, "--host", "--port"):
        at = words.index(flag)
        del words[at : at + 2]
    started = spec["containers"][0]
    own: dict[str, Any] = {"name": "main", "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": " ".join(words)}]}
    if serving.options.image:
        own["image"] = serving.options.image
    own["resources"] = started["resources"]
    own["startupProbe"] = {name: started["startupProbe"][name] for name in ("periodSeconds", "failureThreshold")}
    own["volumeMounts"] = [{"name": "dshm", "mountPath": "/dev/shm"}]
    spec["containers"] = [own]
    spec["volumes"] = [{**v, "name": "dshm"} for v in spec["volumes"] if v["name"] == "shm"]
    return {"replicas": pool.replicas, "parallelism": {"tensor": tensor}, "template": spec}


def _service(serving: Serving, pool: ServingPool, name: str) -> dict[str, Any]:
    cache = serving.options.cache
    uri = f"pvc://{cache}/{serving.repository}" if cache else f"hf://{serving.repository}"
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


def _scorers(serving: Serving) -> dict[str, Any]:
    """The picker's configuration of one pool: a service serves one class of lengths, so none filters by length."""
    found = picker(serving)
    by_length = "context-length-aware"
    found["plugins"] = [p for p in found["plugins"] if p["type"] != by_length]
    for profile in found["schedulingProfiles"]:
        profile["plugins"] = [p for p in profile["plugins"] if p["pluginRef"] != by_length]
    return found


def _budget(serving: Serving, pool: ServingPool, service: str) -> dict[str, Any]:
    """Pods carry the labels KServe gives them."""
    budget = k.disruption_budget(serving, pool)
    part = "prefill" if pool.role.startswith("prefill") else "workload"
    budget["spec"]["selector"]["matchLabels"] = {
        "app.kubernetes.io/name": service,
        "app.kubernetes.io/component": f"llminferenceservice-{part}",
    }
    return budget


def _route(serving: Serving) -> dict[str, Any]:
    """Requests by the header that names their pool, the rest to the pool of the longest."""

    def backend(pool: ServingPool) -> dict[str, Any]:
        name = f"{pool.object}-inference-pool"
        return {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": name}

    rules: list[dict[str, Any]] = [
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


TARGET = Target("KServe: an LLMInferenceService per pool with the plan's settings and scorers", render)
