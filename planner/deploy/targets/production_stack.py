"""vLLM production stack: a VLLMRuntime per pool and a VLLMRouter."""

from __future__ import annotations

from typing import Any

from planner.deploy import Rendered, Target
from planner.deploy import kubernetes as k
from planner.deploy.serving import PORT, Serving, ServingPool
from planner.errors import InputError


def render(serving: Serving) -> Rendered:
    """All objects as one file."""
    serving.colocated("production-stack")
    serving.on_one_node("production-stack")
    if "{model}" not in serving.engine.launch[2:3]:
        raise InputError(f"--to production-stack: runs vLLM, not {serving.engine.title}", "Use --to k8s.")
    documents: list[dict[str, Any]] = [_runtime(serving, p) for p in serving.pools]
    documents += [_router(serving), *(k.disruption_budget(serving, p) for p in serving.pools)]
    for budget, pool in zip(documents[-len(serving.pools) :], serving.pools, strict=True):
        budget["spec"]["selector"]["matchLabels"] = {"app": pool.object}
    notes = [*serving.notes, *k.budget_notes(serving), *k.selector_notes(serving)]
    if not serving.routing.in_turn:
        notes.append(
            f"the stack's router knows round robin, sessions and prefixes, not {serving.routing.name}: plan with "
            "--routing rr for what it does"
        )
    if serving.boundaries:
        notes.append("the stack's router does not cut by length: all pools get all lengths; use --to k8s or llm-d")
    return Rendered({"production-stack.yaml": k.dump(documents, notes)}, tuple(notes))


def _image(name: str) -> dict[str, Any]:
    registry, _, rest = name.partition("/")
    if "." in registry or ":" in registry:
        return {"registry": registry, "name": rest}
    return {"registry": "docker.io", "name": name}


def _runtime(serving: Serving, pool: ServingPool) -> dict[str, Any]:
    """One pool as an entry of the chart's `modelSpec`, which sets some flags by keys of its own."""
    flags, words = serving.engine.flags, pool.command

    def value(name: str) -> str:
        return words[words.index(flags[name]) + 1]

    own = ("tp", "slots", "max_model_len", "memory_utilization")
    extra = [*words[len(serving.engine.launch) :]]
    for flag in (*(flags[name] for name in own), "--host", "--port"):
        at = extra.index(flag)
        del extra[at : at + 2]
    asked = k.resources(serving, pool)["requests"]
    product = k.node_selector(pool)
    deployment: dict[str, Any] = {
        "replicas": pool.replicas,
        "deploymentStrategy": "RollingUpdate",
        "image": _image(serving.image),
        "resources": {
            "cpu": asked["cpu"],
            "memory": asked["memory"],
            "gpu": str(pool.gpus),
            "gpuType": k.gpu_resource(pool),
        },
        "shmSize": f"{k.SHARED_MEMORY_GIB}Gi",
    }
    if product:
        terms = [{"key": key, "operator": "In", "values": [name]} for key, name in product.items()]
        deployment["nodeSelectorTerms"] = [{"matchExpressions": terms}]
    return {
        "apiVersion": "production-stack.vllm.ai/v1alpha1",
        "kind": "VLLMRuntime",
        "metadata": k.metadata(serving, pool.object, labels=k.labels(serving, pool)),
        "spec": {
            "model": {
                "modelURL": serving.repository,
                "maxModelLen": int(value("max_model_len")),
                "maxNumSeqs": int(value("slots")),
                "hfTokenSecret": {"hfTokenSecretName": "hf-token", "hfTokenKeyName": "token"},
            },
            "vllmConfig": {
                "v1": True,
                "port": PORT,
                "tensorParallelSize": int(value("tp")),
                "gpuMemoryUtilization": value("memory_utilization"),
                "enablePrefixCaching": True,
                "enableChunkedPrefill": True,
                "extraArgs": extra,
            },
            "deploymentConfig": deployment,
        },
    }


def _router(serving: Serving) -> dict[str, Any]:
    return {
        "apiVersion": "production-stack.vllm.ai/v1alpha1",
        "kind": "VLLMRouter",
        "metadata": k.metadata(serving, f"{serving.options.name}-router", labels=k.labels(serving)),
        "spec": {
            "enableRouter": True,
            "replicas": 1,
            "port": 80,
            "serviceDiscovery": "k8s",
            "k8sLabelSelector": f"app.kubernetes.io/part-of={serving.options.name}",
            "routingLogic": "prefixaware" if serving.cached_share > 0.0 else "roundrobin",
            "engineScrapeInterval": 5,
            "requestStatsWindow": 60,
            "image": {"registry": "docker.io", "name": "lmcache/lmstack-router:latest"},
            "resources": {"cpu": "1", "memory": "1Gi"},
        },
    }


TARGET = Target("vLLM production stack: a VLLMRuntime per pool and a VLLMRouter", render)
