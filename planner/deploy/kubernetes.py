"""Kubernetes objects of a fleet as plain data: pods that know how long they load, services, budgets for disruptions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from planner.catalog.kv import weight_bytes
from planner.deploy.serving import PORT, Serving, ServingPool
from planner.errors import InputError

GIB = 2**30

PROBE_S = 10
"""Seconds between two looks at a replica that loads [s]."""

PATIENCE = 3.0
"""A replica that loads is given up after this many times its start-up time [1]."""

LEAST_PATIENCE_S = 600.0
"""But not before [s]."""

SHARED_MEMORY_GIB = 16
"""Shared memory of a pod, for the collectives of a group [GiB]."""

PRODUCT_WORDS = {"ada", "blackwell", "edition", "generation", "geforce", "max", "pro", "server", "workstation"}
"""Words of a GPU's name that its node label does not write in capitals."""


def to_yaml(document: Mapping[str, Any]) -> str:
    """One document."""
    return dump([document])


def dump(documents: Sequence[Mapping[str, Any]], head: Iterable[str] = ()) -> str:
    """Documents as one file, with lines of comment before them."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes texts of several lines as blocks, and no aliases."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    comments = "".join(f"# {line}\n" for line in head)
    return comments + yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, width=120)


def labels(serving: Serving, pool: ServingPool | None = None) -> dict[str, str]:
    """Labels of the objects of a pool, or of the router."""
    found = {"app.kubernetes.io/part-of": serving.options.name, "app.kubernetes.io/managed-by": "fleetopt"}
    return found | {"app.kubernetes.io/name": pool.object if pool else f"{serving.options.name}-router"}


def metadata(serving: Serving, name: str, **more: Any) -> dict[str, Any]:
    """Name and namespace."""
    found: dict[str, Any] = {"name": name}
    if serving.options.namespace:
        found["namespace"] = serving.options.namespace
    return found | more


def gpu_resource(pool: ServingPool) -> str:
    """The name under which nodes offer the GPU."""
    return "amd.com/gpu" if pool.gpu.gpu_class == "amd" else "nvidia.com/gpu"


def node_selector(pool: ServingPool) -> dict[str, str]:
    """Label of nodes with the GPU as NVIDIA's feature discovery writes it; empty where its spelling is not known."""
    product = next((a for a in pool.gpu.aliases if a.startswith("nvidia-")), "")
    if not product or PRODUCT_WORDS & set(product.split("-")):
        return {}
    return {"nvidia.com/gpu.product": product.upper()}


def selector_notes(serving: Serving) -> list[str]:
    """GPUs whose nodes the objects do not name."""
    missing = sorted({p.gpu.name for p in serving.pools if not node_selector(p)})
    return [
        f"no node label of {name} is known: add a nodeSelector where a cluster has several GPU types"
        for name in missing
    ]


def probes(serving: Serving) -> dict[str, Any]:
    """Started within three times the expected time; then ready and alive."""
    patience = max(LEAST_PATIENCE_S, PATIENCE * serving.startup.seconds)
    look = {"httpGet": {"path": "/health", "port": "http"}}
    return {
        "startupProbe": look | {"periodSeconds": PROBE_S, "failureThreshold": math.ceil(patience / PROBE_S)},
        "readinessProbe": look | {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": look | {"periodSeconds": 15, "timeoutSeconds": 10, "failureThreshold": 4},
    }


def resources(serving: Serving, pool: ServingPool) -> dict[str, Any]:
    """GPUs of a replica on one node, and what its host part needs: a core per GPU and four more, weights once in memory at the
    limit."""
    count = pool.gpus_per_node
    gpus = {gpu_resource(pool): str(count)}
    least = 16 + 4 * count
    most = least + SHARED_MEMORY_GIB + math.ceil(weight_bytes(serving.model) / GIB)
    return {
        "requests": {"cpu": str(4 + count), "memory": f"{least}Gi", **gpus},
        "limits": {"memory": f"{most}Gi", **gpus},
    }


def pod_spec(serving: Serving, pool: ServingPool, container: str = "engine") -> dict[str, Any]:
    """What runs in a pod of a pool."""
    cache = serving.options.cache
    program = {
        "name": container,
        "image": serving.image,
        "command": [pool.command[0]],
        "args": [*pool.command[1:]],
        "ports": [{"name": "http", "containerPort": PORT}],
        "env": [
            {"name": "HF_HOME", "value": "/models"},
            # a gated model needs a token; without the secret the variable stays empty
            {
                "name": "HF_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}},
            },
        ],
        "resources": resources(serving, pool),
        **probes(serving),
        # a replica leaves the endpoints before it stops taking requests
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", "15"]}}},
        "volumeMounts": [{"name": "models", "mountPath": "/models"}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": math.ceil(pool.drain_s) + 15,
        "containers": [program],
        "volumes": [
            {"name": "models", **({"persistentVolumeClaim": {"claimName": cache}} if cache else {"emptyDir": {}})},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHARED_MEMORY_GIB}Gi"}},
        ],
    }
    if selector := node_selector(pool):
        spec["nodeSelector"] = selector
    if gpu_resource(pool).startswith("nvidia"):
        spec["tolerations"] = [{"key": gpu_resource(pool), "operator": "Exists", "effect": "NoSchedule"}]
    return spec


def workload(serving: Serving, pool: ServingPool, more: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The replicas of a pool: a deployment, or groups of pods where a replica spans nodes; `more` labels mark those that answer."""
    return deployment(serving, pool, more) if pool.nodes == 1 else groups(serving, pool, more)


def _rolling(pool: ServingPool) -> dict[str, int]:
    """A spare replica may be missing while a new one starts; without one a new replica starts first."""
    return {"maxUnavailable": pool.spares, "maxSurge": 0} if pool.spares else {"maxUnavailable": 0, "maxSurge": 1}


def _scraped(serving: Serving) -> dict[str, str]:
    """Annotations by which Prometheus finds the metrics."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(PORT),
        "prometheus.io/path": serving.engine.metrics_path,
    }


def groups(serving: Serving, pool: ServingPool, more: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Replicas of a pod per node each, which start and end together; the first pod answers, the others follow it.

    Raises
    ------
    InputError
        The engine has no command for a replica on several nodes.
    """
    engine = serving.engine
    if not engine.joins:
        raise InputError(
            f"pool {pool.name}: a replica of {pool.gpus} GPUs spans {pool.nodes} nodes, and {engine.title} is started on them "
            "by a launcher of its own",
            "Use --to dynamo.",
        )
    # the variables are the controller's
    place = {"nodes": str(pool.nodes), "rank": "$(LWS_WORKER_INDEX)", "leader": "$(LWS_LEADER_ADDRESS)"}
    joins = [word.format(**place) for word in engine.joins]
    leader, follower = pod_spec(serving, pool), pod_spec(serving, pool)
    leader["containers"][0]["args"] += joins
    started = follower["containers"][0]
    started["args"] += [*joins, *engine.follows]
    # what follows answers nobody, and its group ends with it
    for name in ("ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle"):
        del started[name]
    own = labels(serving, pool)
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata(serving, pool.object, labels=own),
        "spec": {
            "replicas": pool.replicas,
            "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": _rolling(pool)},
            "leaderWorkerTemplate": {
                "size": pool.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": {
                    "metadata": {"labels": {**own, **(more or {})}, "annotations": _scraped(serving)},
                    "spec": leader,
                },
                "workerTemplate": {
                    "metadata": {"labels": {**own, "app.kubernetes.io/name": f"{pool.object}-follower"}},
                    "spec": follower,
                },
            },
        },
    }


def deployment(serving: Serving, pool: ServingPool, more: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The replicas of a pool; `more` labels mark its pods."""
    own = labels(serving, pool)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(serving, pool.object, labels=own),
        "spec": {
            "replicas": pool.replicas,
            "selector": {"matchLabels": {"app.kubernetes.io/name": pool.object}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": _rolling(pool)},
            "progressDeadlineSeconds": math.ceil(max(LEAST_PATIENCE_S, PATIENCE * serving.startup.seconds)) + 300,
            "template": {
                "metadata": {
                    "labels": {**own, **(more or {})},
                    "annotations": _scraped(serving),
                },
                "spec": pod_spec(serving, pool),
            },
        },
    }


def service(
    serving: Serving, name: str, selected: str, port: int, target: int | str, headless: bool = False
) -> dict[str, Any]:
    """A service of the pods called `selected`; a headless one resolves to every pod."""
    spec: dict[str, Any] = {
        "selector": {"app.kubernetes.io/name": selected},
        "ports": [{"name": "http", "port": port, "targetPort": target}],
    }
    if headless:
        spec = {"clusterIP": "None", **spec}
    own = {**labels(serving), "app.kubernetes.io/name": selected}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(serving, name, labels=own), "spec": spec}


def disruption_budget(serving: Serving, pool: ServingPool) -> dict[str, Any]:
    """No more replicas of a pool are taken down at once than are spare; one where none is. Of a group every pod counts."""
    pods = {"app.kubernetes.io/name": pool.object}
    if pool.nodes > 1:
        pods = {"leaderworkerset.sigs.k8s.io/name": pool.object}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(serving, pool.object, labels=labels(serving, pool)),
        "spec": {
            "maxUnavailable": max(1, pool.spares),
            "selector": {"matchLabels": pods},
        },
    }


def budget_notes(serving: Serving) -> list[str]:
    """Pools that miss a promise while one replica is down."""
    bare = [p.name for p in serving.pools if not p.spares]
    if not bare:
        return []
    return [f"no spare replica in {', '.join(bare)}: while one is drained promises may break (--redundancy 1)"]


def config_map(serving: Serving, name: str, data: Mapping[str, str]) -> dict[str, Any]:
    """Files for pods."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(serving, name, labels=labels(serving)),
        "data": dict(data),
    }


def cron_trigger(start: str, end: str, replicas: int, timezone: str = "UTC") -> dict[str, Any]:
    """KEDA's trigger that holds replicas between two times of a crontab."""
    metadata = {"timezone": timezone, "start": start, "end": end, "desiredReplicas": str(replicas)}
    return {"type": "cron", "metadata": metadata}


def scaled_object(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """KEDA's object around what it scales, by how much and why."""
    return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": name}, "spec": dict(spec)}
