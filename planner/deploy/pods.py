"""Pods of a fleet: what they run and need, how they start and end, and what they may not do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from planner.catalog.kv import weight_bytes
from planner.deploy.serving import LEAVES_S, NAME, Serving, ServingPool, note
from planner.shared.documents import shipped
from planner.shared.templates import templates

GIB = 2**30

_filled: Callable[..., dict[str, Any]] = templates(__file__)

PROBE_S = 10
"""Seconds between two looks at a replica that loads [s]."""

PRODUCT_WORDS = {"ada", "blackwell", "edition", "generation", "geforce", "max", "pro", "server", "workstation"}
"""Words of a GPU's name that its node label does not write in capitals."""

USER = 1000
"""Who programs run as where their image names root."""

CONFINED: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""A container as the Pod Security Standard "restricted" wants it, beside what its pod says."""


def confined(spec: Mapping[str, Any], user: int = USER, token: bool = False) -> dict[str, Any]:
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
    found = dict(spec)
    for kind in spec.keys() & {"initContainers", "containers"}:
        found[kind] = [
            {
                **container,
                "securityContext": dict(CONFINED),
                "volumeMounts": [*container.get("volumeMounts", ()), {"name": "tmp", "mountPath": "/tmp"}],
            }
            for container in spec[kind]
        ]
    found["volumes"] = [*spec.get("volumes", ()), {"name": "tmp", "emptyDir": {}}]
    return _filled("confined", token=token, user=user, spec=found)


@cache
def platforms() -> Mapping[str, Mapping[str, Any]]:
    """Platform -> the label of its nodes, and its values by GPU."""
    loaded: Mapping[str, Mapping[str, Any]] = shipped(Path(__file__).with_name("platforms.yaml"))
    return loaded


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
        found["affinity"] = _filled("affinity", terms=terms)
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
    return _filled("probes", every=PROBE_S, looks=math.ceil(serving.patience_s / PROBE_S))


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
    return _filled("secret", variable=variable, name=name, key=key, optional=optional or None)


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
    spec = _filled(
        "pod",
        serving=serving,
        pool=pool,
        container=container,
        command=[pool.command[0]],
        args=[*pool.command[1:]],
        env=environment(serving),
        resources=resources(serving, pool),
        probes=probes(serving),
        lifecycle=sleeping(LEAVES_S),
        claim={"claimName": kept} if kept else None,
        scratch=None if kept else {},
        placement=placement(serving, pool),
    )
    return confined(spec)
