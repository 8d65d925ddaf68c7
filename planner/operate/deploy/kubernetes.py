"""Kubernetes objects of a fleet as plain data: workloads, services, budgets for disruptions, network policies, and their files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from planner.catalog.kv import weight_bytes
from planner.operate.deploy import Rendered
from planner.operate.deploy.serving import COMPONENT, NAME, PART_OF, VALUES, Serving, ServingPool, filler, note, refusal
from planner.shared.documents import shipped
from planner.units import GIB, format_duration

made: Callable[..., dict[str, Any]] = filler(__file__)
"""An object of kubernetes.yaml by its name there."""


PRODUCT_WORDS = {"ada", "blackwell", "edition", "generation", "geforce", "max", "pro", "server", "workstation"}
"""Words of a GPU's name that its node label does not write in capitals."""

CONFINED: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""A container as the Pod Security Standard "restricted" wants it, beside what its pod says."""


def confined(spec: Mapping[str, Any], user: int = VALUES.users["program"], token: bool = False) -> dict[str, Any]:
    """A pod as the Pod Security Standard "restricted" wants it, on a root that cannot be written; /tmp is a volume.

    Parameters
    ----------
    spec
        The pod.
    user
        Who its programs run as.
    token
        Whether they may speak to the API server.
    """
    found, scratch = dict(spec), {"name": "tmp", "mountPath": "/tmp"}
    for kind in spec.keys() & {"initContainers", "containers"}:
        found[kind] = [
            one | {"securityContext": dict(CONFINED), "volumeMounts": [*one.get("volumeMounts", ()), scratch]}
            for one in spec[kind]
        ]
    found["volumes"] = [*spec.get("volumes", ()), {"name": "tmp", "emptyDir": {}}]
    return made("confined", token=token, user=user, spec=found)


platforms = cache(lambda: shipped(Path(__file__).with_name("platforms.yaml")))
"""Platform -> the label of its nodes, and its values by GPU."""


def node_terms(serving: Serving, pool: ServingPool) -> list[dict[str, Any]]:
    """What the label of a node with the GPU is; empty where its spelling is not known."""
    platform = platforms()[serving.options.platform]
    values: Sequence[str] = platform["gpus"].get(pool.device.name, ())
    if serving.options.platform == "generic":
        # as NVIDIA's feature discovery writes it
        product = next((a for a in pool.device.aliases if a.startswith("nvidia-")), "")
        values = [product.upper()] if product and not PRODUCT_WORDS & set(product.split("-")) else ()
    return [{"key": platform["label"], "operator": "In", "values": list(values)}] if values else []


def placement(serving: Serving, pool: ServingPool) -> dict[str, Any]:
    """Nodes with the GPU, their taints, and with spare replicas as many zones as there are."""
    found: dict[str, Any] = {}
    if terms := node_terms(serving, pool):
        found["affinity"] = made("affinity", terms=terms)
    taints = [{"key": pool.gpu_resource, "operator": "Exists", "effect": "NoSchedule"}]
    found["tolerations"] = [*taints, *platforms()[serving.options.platform].get("tolerations", ())]
    if pool.spares:
        found["topologySpreadConstraints"] = [spread({NAME: pool.object})]
    return found


def spread(labels: Mapping[str, str], over: str = "topology.kubernetes.io/zone") -> dict[str, Any]:
    """Evenly over zones where they have room: a pod that waits for a GPU in the right zone serves nobody."""
    selector = {"matchLabels": dict(labels)}
    return {"maxSkew": 1, "topologyKey": over, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}


def placement_notes(serving: Serving) -> list[str]:
    """GPUs whose nodes the objects do not name, and what programs without root need beside."""
    platform = serving.options.platform
    missing = sorted({p.device.name for p in serving.pools if not node_terms(serving, p)})
    notes = [note("unlabelled", gpu=name, platform=platform) for name in missing]
    if any(p.gpu_resource.startswith("amd") for p in serving.pools):
        notes.append(note("amd"))
    return notes


def probes(serving: Serving) -> dict[str, Any]:
    """Started within three times the expected time; then ready and alive."""
    return made("probes", looks=math.ceil(serving.patience_s / VALUES.times["probe"]))


def resources(serving: Serving, pool: ServingPool) -> dict[str, Any]:
    """GPUs of a replica on one node, and what its host part needs: a core per GPU and four more, weights once in memory at the
    limit."""
    count = pool.gpus_per_node
    gpus = {pool.gpu_resource: str(count)}
    least = 16 + 4 * count
    most = least + serving.shared_gib + math.ceil(weight_bytes(serving.model) / GIB)
    return {
        "requests": {"cpu": str(4 + count), "memory": f"{least}Gi", **gpus},
        "limits": {"memory": f"{most}Gi", **gpus},
    }


def sleeping(seconds: float) -> dict[str, Any]:
    """What delays the signal to end."""
    return {"preStop": {"exec": {"command": ["sleep", f"{seconds:.0f}"]}}}


def secret(variable: str, name: str, key: str, optional: bool = False) -> dict[str, Any]:
    """A variable from a Secret; an optional one stays empty where there is none."""
    return made("secret", variable=variable, name=name, key=key, optional=optional or None)


NOBODY = ({"name": "HOME", "value": "/tmp"}, {"name": "USER", "value": "engine"})
"""A user without an entry in the image's passwd has no home and no name; caches and PyTorch's compiler ask for them."""


def environment(serving: Serving) -> list[dict[str, Any]]:
    """Where weights lie, the token of a gated model, and the key that requests must bear."""
    found = [*NOBODY, {"name": "HF_HOME", "value": "/models"}, secret("HF_TOKEN", "hf-token", "token", optional=True)]
    if serving.options.api_key_secret:
        found.append(secret(serving.key_variable, serving.options.api_key_secret, "api-key"))
    return found


def pod_spec(serving: Serving, pool: ServingPool, container: str = "engine") -> dict[str, Any]:
    """What runs in a pod of a pool."""
    kept = serving.options.cache
    spec = made(
        "pod",
        serving=serving,
        pool=pool,
        container=container,
        command=[pool.command[0]],
        args=[*pool.command[1:]],
        env=environment(serving),
        resources=resources(serving, pool),
        probes=probes(serving),
        lifecycle=sleeping(VALUES.times["leaves"]),
        claim={"claimName": kept} if kept else None,
        scratch=None if kept else {},
        placement=placement(serving, pool),
    )
    return confined(spec)


Object = dict[str, Any]
"""One object."""

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


def workload(serving: Serving, pool: ServingPool, marks: Mapping[str, str] | None = None) -> Object:
    """The replicas of a pool: a deployment, or groups of pods where a replica spans nodes; `marks` label those that answer."""
    if pool.nodes > 1:
        return _groups(serving, pool, marks or {})
    patience, pod = serving.patience_s + pool.grace_s + 300, pod_spec(serving, pool)
    return made("deployment", serving=serving, pool=pool, marks=marks or {}, patience=patience, pod=pod)


def rollout_notes(serving: Serving) -> list[str]:
    """How long a new version takes to be everywhere."""
    found = []
    for pool in serving.pools:
        rounds, draining = math.ceil(pool.replicas / pool.gone), format_duration(pool.grace_s)
        longest = format_duration(rounds * (pool.grace_s + serving.startup.seconds))
        found.append(note("rollout", pool=pool, rounds=rounds, longest=longest, draining=draining))
    return found


def _groups(serving: Serving, pool: ServingPool, marks: Mapping[str, str]) -> Object:
    """Replicas of a pod per node each, which start and end together; the first pod answers, the others follow it.

    Raises
    ------
    InputError
        The engine has no command for a replica on several nodes.
    """
    engine = serving.engine
    if not engine.joins:
        raise refusal("launcher", pool=pool, engine=engine)
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
    started["lifecycle"] = sleeping(VALUES.times["leaves"] + pool.drain_s)
    return made("group", serving=serving, pool=pool, marks=marks, leader=leader, follower=follower)


def service(
    serving: Serving, name: str, selected: str, ports: Mapping[str, tuple[int, int | str]], headless: bool = False
) -> Object:
    """A service of the pods called `selected`: name of a port -> port and target; a headless one resolves to every pod."""
    listed = [{"name": key, "port": port, "targetPort": target} for key, (port, target) in ports.items()]
    address = "None" if headless else None
    return made("service", serving=serving, name=name, address=address, selected=selected, ports=listed)


def budget(serving: Serving, name: str, pods: Mapping[str, str], gone: int = 1) -> Object:
    """No more of these pods are taken down at once; those that are not ready may always go, they serve nobody."""
    return made("budget", serving=serving, name=name, gone=gone, pods=dict(pods))


def pool_budget(serving: Serving, pool: ServingPool, pods: Mapping[str, str] | None = None) -> Object:
    """No more replicas of a pool are taken down at once than are spare; one where none is. Of a group every pod counts."""
    own = NAME if pool.nodes == 1 else "leaderworkerset.sigs.k8s.io/name"
    return budget(serving, pool.object, pods or {own: pool.object}, pool.gone)


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
    return made(
        "network_policy",
        serving=serving,
        name=name,
        pods=dict(pods),
        kinds=["Ingress", "Egress"] if leaves else ["Ingress"],
        callers=list(callers),
        metrics=metrics,
        egress=made("egress", serving=serving) if leaves else None,
    )


def from_pods(*pods: Mapping[str, str]) -> Object:
    """A rule of a network policy: pods of the same namespace with these labels."""
    return {"from": [{"podSelector": {"matchLabels": dict(one)}} for one in pods]}


def engine_policy(serving: Serving, *callers: Object) -> Object:
    """The engines of a fleet are called by its router, by each other, and by Prometheus."""
    fleet = {PART_OF: serving.options.name}
    name = f"{serving.options.name}-engines"
    return network_policy(serving, name, {**fleet, COMPONENT: "engine"}, [from_pods(fleet), *callers], serving.port)


def router(serving: Serving, name: str, pod: Object, replicas: int, strategy: Object) -> Object:
    """A deployment of what stands in front of the replicas."""
    own = serving.labels | {NAME: name}
    return made("router", serving=serving, name=name, labels=own, replicas=replicas, strategy=strategy, pod=pod)


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
    # pools that miss a promise while one replica is down
    bare = ", ".join(p.name for p in serving.pools if not p.spares)
    told = [*serving.notes, *notes, *([note("bare", pools=bare)] if bare else [])]
    told += [*rollout_notes(serving), *placement_notes(serving)]
    if any(o["kind"] == "NetworkPolicy" for o in objects):
        told.append(note("policies", serving=serving))
    if serving.options.replicas_by == "scaler":
        told.append(note("scaled"))
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
