"""Dynamo: one graph with a frontend and a worker per pool, or a prefill and a decode worker."""

from __future__ import annotations

from typing import Any

from planner.deploy import Rendered, Target
from planner.deploy import kubernetes as k
from planner.deploy.serving import Serving, ServingPool
from planner.errors import InputError

RUNTIMES = {"vllm": "vllm-runtime", "sglang": "sglang-runtime", "trtllm": "tensorrtllm-runtime"}
"""Engine -> Dynamo's image of it."""


def render(serving: Serving) -> Rendered:
    """One file."""
    if len(serving.pools) > 1 and not serving.split:
        raise InputError(
            "--to dynamo: a graph of workers has no cut by length",
            "Plan one pool (--pools 1), or use --to k8s or llm-d.",
        )
    image = serving.options.image or f"nvcr.io/nvidia/ai-dynamo/{RUNTIMES[serving.engine.name]}:latest"
    aware = bool(serving.routing.least) or serving.cached_share > 0.0
    mode = "kv" if aware else "round-robin" if serving.routing.in_turn else "random"
    services: dict[str, Any] = {
        "Frontend": {
            "componentType": "frontend",
            "replicas": 1,
            "envs": [{"name": "DYN_ROUTER_MODE", "value": mode}],
            "extraPodSpec": {"mainContainer": {"image": image}},
        }
    }
    for pool in serving.pools:
        kind = "Worker" if not serving.split else f"{pool.role.title()}Worker"
        services[kind] = _worker(serving, pool, image)
    document = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": k.metadata(serving, serving.options.name),
        "spec": {"backendFramework": serving.engine.name, "services": services},
    }
    notes = [*serving.notes, *k.selector_notes(serving), "images are of the release named latest: pin the one you run"]
    if serving.routing.least:
        notes.append(f"Dynamo's kv mode weighs cached prefixes and load; the plan was made for {serving.routing.name}")
    return Rendered({"dynamo.yaml": k.dump([document], notes)}, tuple(notes))


def _worker(serving: Serving, pool: ServingPool, image: str) -> dict[str, Any]:
    """A worker: Dynamo starts the engine as a module of its own, which takes the engine's flags."""
    words = [*pool.command[len(serving.engine.launch) :]]
    for flag in ("--host", "--port"):
        at = words.index(flag)
        del words[at : at + 2]
    arguments = ["--model", serving.repository, *(w for w in words if w not in serving.engine.always)]
    if serving.split:
        arguments += ["--disaggregation-mode", pool.role]
    started = k.pod_spec(serving, pool)["containers"][0]
    return {
        "componentType": "worker",
        **({"subComponentType": pool.role} if serving.split else {}),
        "replicas": pool.replicas,
        "envFromSecret": "hf-token",
        "resources": {"requests": {"gpu": str(pool.gpus)}, "limits": {"gpu": str(pool.gpus)}},
        "sharedMemory": {"size": f"{k.SHARED_MEMORY_GIB}Gi"},
        "extraPodSpec": {
            "nodeSelector": k.node_selector(pool),
            "terminationGracePeriodSeconds": int(pool.drain_s) + 15,
            "mainContainer": {
                "image": image,
                "command": ["python3", "-m", f"dynamo.{serving.engine.name}"],
                "args": arguments,
                "startupProbe": {
                    "httpGet": {"path": "/live", "port": 9090},
                    "periodSeconds": started["startupProbe"]["periodSeconds"],
                    "failureThreshold": started["startupProbe"]["failureThreshold"],
                },
            },
        },
    }


TARGET = Target(
    "Dynamo: a DynamoGraphDeployment with a frontend and a worker per pool, prefill and decode included", render
)
