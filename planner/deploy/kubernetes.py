"""Kubernetes objects of a fleet as plain data: workloads, services, budgets for disruptions, network policies, and their files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from planner.deploy import Rendered
from planner.deploy.pods import LEAVES_S, grace_s, patience_s, placement_notes, pod_spec, sleeping
from planner.deploy.serving import PORT, Serving, ServingPool
from planner.errors import InputError
from planner.units import format_duration

Object = dict[str, Any]
"""One object."""

NAME = "app.kubernetes.io/name"
PART_OF = "app.kubernetes.io/part-of"
COMPONENT = "app.kubernetes.io/component"
NODE = "kubernetes.io/hostname"


_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""libyaml's where PyYAML was built with it: the same text, several times as fast."""


def to_yaml(document: Mapping[str, Any]) -> str:
    """One document."""
    return dump([document])


def dump(documents: Sequence[Mapping[str, Any]], head: Iterable[str] = ()) -> str:
    """Documents as one file, with lines of comment before them."""

    class Dumper(_DUMPER):  # type: ignore[misc]
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
    name = pool.object if pool else f"{serving.options.name}-router"
    return {
        PART_OF: serving.options.name,
        "app.kubernetes.io/managed-by": "fleetopt",
        COMPONENT: "engine" if pool else "router",
        NAME: name,
    }


def metadata(serving: Serving, name: str, **more: Any) -> Object:
    """Name and namespace."""
    found: Object = {"name": name}
    if serving.options.namespace:
        found["namespace"] = serving.options.namespace
    return found | more


def tagged(serving: Serving, name: str) -> Object:
    """Metadata of an object that is no workload."""
    own = {PART_OF: serving.options.name, "app.kubernetes.io/managed-by": "fleetopt", NAME: name}
    return metadata(serving, name, labels=own)


def counted(serving: Serving, pool: ServingPool) -> dict[str, int]:
    """How many replicas an object asks for; nothing where a scaler says it."""
    return {"replicas": pool.replicas} if serving.options.replicas_by == "plan" else {}


def workload(serving: Serving, pool: ServingPool, more: Mapping[str, str] | None = None) -> Object:
    """The replicas of a pool: a deployment, or groups of pods where a replica spans nodes; `more` labels mark those that answer."""
    return deployment(serving, pool, more) if pool.nodes == 1 else groups(serving, pool, more)


def _rolling(pool: ServingPool) -> dict[str, int]:
    """As many replicas may be missing as are spare, one where none is: no GPU is needed beyond the plan's."""
    return {"maxUnavailable": max(1, pool.spares), "maxSurge": 0}


def rollout_notes(serving: Serving) -> list[str]:
    """How long a new version takes to be everywhere."""
    found = []
    for pool in serving.pools:
        at_once = max(1, pool.spares)
        rounds = math.ceil(pool.replicas / at_once)
        longest = rounds * (grace_s(pool) + serving.startup.seconds)
        found.append(
            f"a rollout of {pool.name} needs no spare GPU and takes up to {format_duration(longest)}: {rounds} times "
            f"{at_once} of {pool.replicas} replicas, draining up to {format_duration(grace_s(pool))} and starting"
        )
    return found


def _scraped(serving: Serving) -> dict[str, str]:
    """Annotations by which Prometheus finds the metrics."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(PORT),
        "prometheus.io/path": serving.engine.metrics_path,
    }


def groups(serving: Serving, pool: ServingPool, more: Mapping[str, str] | None = None) -> Object:
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
    # what follows answers nobody, and is not to leave before the first one has drained
    for name in ("ports", "startupProbe", "readinessProbe", "livenessProbe"):
        del started[name]
    started["lifecycle"] = sleeping(LEAVES_S + pool.drain_s)
    own = labels(serving, pool)
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata(serving, pool.object, labels=own),
        "spec": {
            **counted(serving, pool),
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


def deployment(serving: Serving, pool: ServingPool, more: Mapping[str, str] | None = None) -> Object:
    """The replicas of a pool; `more` labels mark its pods."""
    own = labels(serving, pool)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(serving, pool.object, labels=own),
        "spec": {
            **counted(serving, pool),
            "selector": {"matchLabels": {"app.kubernetes.io/name": pool.object}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": _rolling(pool)},
            "progressDeadlineSeconds": patience_s(serving) + grace_s(pool) + 300,
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
    serving: Serving, name: str, selected: str, ports: Mapping[str, tuple[int, int | str]], headless: bool = False
) -> Object:
    """A service of the pods called `selected`: name of a port -> port and target; a headless one resolves to every pod."""
    spec: Object = {"clusterIP": "None"} if headless else {}
    spec["selector"] = {NAME: selected}
    spec["ports"] = [{"name": key, "port": port, "targetPort": target} for key, (port, target) in ports.items()]
    return {"apiVersion": "v1", "kind": "Service", "metadata": tagged(serving, name), "spec": spec}


def budget(serving: Serving, name: str, pods: Mapping[str, str], gone: int = 1) -> Object:
    """No more of these pods are taken down at once; those that are not ready may always go, they serve nobody."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": tagged(serving, name),
        "spec": {
            "maxUnavailable": gone,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": dict(pods)},
        },
    }


def pool_budget(serving: Serving, pool: ServingPool, pods: Mapping[str, str] | None = None) -> Object:
    """No more replicas of a pool are taken down at once than are spare; one where none is. Of a group every pod counts."""
    own = NAME if pool.nodes == 1 else "leaderworkerset.sigs.k8s.io/name"
    return budget(serving, pool.object, pods or {own: pool.object}, max(1, pool.spares))


def network_policy(
    serving: Serving, name: str, pods: Mapping[str, str], callers: Sequence[Object], metrics: int, leaves: bool = True
) -> Object:
    """Who may call these pods: `callers`, and Prometheus at the port of their metrics; where they may call: each other, names, and
    the hub of the weights over TLS.

    Parameters
    ----------
    serving, name, pods
        The fleet; name of the policy, and labels of the pods.
    callers
        Rules of those who may call; an empty one is everybody.
    metrics
        Port of the metrics.
    leaves
        Whether it also says where the pods may call.
    """
    watching = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": serving.options.prometheus_namespace}}
    }
    rules = [*callers, {"from": [watching], "ports": [{"port": metrics, "protocol": "TCP"}]}]
    spec: Object = {"podSelector": {"matchLabels": dict(pods)}, "policyTypes": ["Ingress"], "ingress": rules}
    if leaves:
        spec["policyTypes"].append("Egress")
        spec["egress"] = [
            {"to": [{"podSelector": {"matchLabels": {PART_OF: serving.options.name}}}]},
            {"ports": [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]},
            {"ports": [{"port": 443, "protocol": "TCP"}]},
        ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": tagged(serving, name),
        "spec": spec,
    }


def from_pods(*pods: Mapping[str, str]) -> Object:
    """A rule of a network policy: pods of the same namespace with these labels."""
    return {"from": [{"podSelector": {"matchLabels": dict(one)}} for one in pods]}


def engine_policy(serving: Serving, *callers: Object) -> Object:
    """The engines of a fleet are called by its router, by each other, and by Prometheus."""
    fleet = {PART_OF: serving.options.name}
    name = f"{serving.options.name}-engines"
    return network_policy(serving, name, {**fleet, COMPONENT: "engine"}, [from_pods(fleet), *callers], PORT)


def router(serving: Serving, name: str, spec: Object, replicas: int, **more: Any) -> Object:
    """A deployment of what stands in front of the replicas."""
    own = labels(serving) | {NAME: name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(serving, name, labels=own),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {NAME: name}},
            **more,
            "template": {"metadata": {"labels": own}, "spec": spec},
        },
    }


def budget_notes(serving: Serving) -> list[str]:
    """Pools that miss a promise while one replica is down."""
    bare = [p.name for p in serving.pools if not p.spares]
    if not bare:
        return []
    return [f"no spare replica in {', '.join(bare)}: while one is drained promises may break (--redundancy 1)"]


def config_map(serving: Serving, name: str, data: Mapping[str, str]) -> Object:
    """Files for pods."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": tagged(serving, name),
        "data": dict(data),
    }


def cron_trigger(start: str, end: str, replicas: int, timezone: str = "UTC") -> Object:
    """KEDA's trigger that holds replicas between two times of a crontab."""
    metadata = {"timezone": timezone, "start": start, "end": end, "desiredReplicas": str(replicas)}
    return {"type": "cron", "metadata": metadata}


def scaled_object(name: str, spec: Mapping[str, Any]) -> Object:
    """KEDA's object around what it scales, by how much and why."""
    return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": name}, "spec": dict(spec)}


def manifests(
    serving: Serving, file: str, objects: Sequence[Object], about: str, notes: Iterable[str] = ()
) -> Rendered:
    """Objects as one file, or as a base of kustomize and an overlay.

    Parameters
    ----------
    serving
        The fleet.
    file
        Name of the file, without its ending.
    objects
        The objects.
    about
        Where requests go.
    notes
        What the target says beside what every one says.
    """
    told = [*serving.notes, *notes, *budget_notes(serving), *rollout_notes(serving), *placement_notes(serving)]
    if any(o["kind"] == "NetworkPolicy" for o in objects):
        told.append(
            f"network policies let in Prometheus from namespace {serving.options.prometheus_namespace} (--prometheus-namespace); "
            "a cluster without a plugin for them ignores them"
        )
    if serving.options.replicas_by == "scaler":
        told.append(
            "no object says how many replicas there are: apply the scaler with it, or one of each starts (fleetopt autoscale)"
        )
    head = [f"{about}; model {serving.repository}", *told]
    if serving.options.layout == "file":
        return Rendered({f"{file}.yaml": dump(objects, head)}, tuple(told))
    return Rendered(_kustomized(serving, file, objects, head), tuple(told))


def _kustomized(serving: Serving, file: str, objects: Sequence[Object], head: Iterable[str]) -> dict[str, str]:
    """The base has no namespace and no number of replicas; the overlay sets them, and the images."""
    base, sizes, images = [], [], {}
    for found in objects:
        meta = {k: v for k, v in found["metadata"].items() if k != "namespace"}
        found = {**found, "metadata": meta}
        spec = found.get("spec", {})
        if "replicas" in spec:
            found["spec"] = {k: v for k, v in spec.items() if k != "replicas"}
            who = {"apiVersion": found["apiVersion"], "kind": found["kind"], "metadata": {"name": meta["name"]}}
            sizes.append({**who, "spec": {"replicas": spec["replicas"]}})
        base.append(found)
        pod = spec.get("template", {}).get("spec", {})
        for container in (*pod.get("initContainers", ()), *pod.get("containers", ())):
            name, _, digest = container.get("image", "").partition("@")
            name, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "")
            if name:
                images[name] = {"name": name, **({"digest": digest} if digest else {"newTag": tag})}
    kind = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    overlay: Object = {**kind, "resources": ["../../base"]}
    if serving.options.namespace:
        overlay["namespace"] = serving.options.namespace
    overlay["images"] = list(images.values())
    files = {
        "base/kustomization.yaml": to_yaml({**kind, "resources": [f"{file}.yaml"]}),
        f"base/{file}.yaml": dump(base, head),
    }
    if sizes:
        overlay["patches"] = [{"path": "replicas.yaml"}]
        files["overlays/plan/replicas.yaml"] = dump(sizes)
    return {**files, "overlays/plan/kustomization.yaml": to_yaml(overlay)}
