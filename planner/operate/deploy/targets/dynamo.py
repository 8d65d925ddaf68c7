"""Dynamo: one graph with a frontend and a worker per pool, or a prefill and a decode worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from planner.operate.deploy import Rendered
from planner.operate.deploy import kubernetes as k
from planner.operate.deploy.kubernetes import NOBODY, confined, pod_spec
from planner.operate.deploy.serving import VALUES, Serving, ServingPool, filler, note, refusal, without
from planner.routing import Routing

_filled: Callable[..., k.Object] = filler(__file__)


def render(serving: Serving) -> Rendered:
    """One file."""
    workers = _filled("workers")
    worker = workers.get(serving.engine.name)
    if worker is None:
        raise refusal("workers", engine=serving.engine, workers=", ".join(workers))
    serving.refuse_for("dynamo", "no_key")
    if len(serving.pools) > 1 and not serving.split:
        raise refusal("dynamo_length")
    foreign = [p.device.name for p in serving.pools if p.gpu_resource != "nvidia.com/gpu"]
    if foreign and not serving.options.image:
        raise refusal("foreign", gpu=foreign[0])
    image = serving.options.image or VALUES.images["dynamo"].format(worker=worker["image"])
    mode = router_mode(serving.routing, serving.cached_share)
    front = {"name": "main", "image": image, "env": [*NOBODY, {"name": "DYN_ROUTER_MODE", "value": mode}]}
    frontend = confined({"containers": [front]})
    # its account is the operator's
    del frontend["automountServiceAccountToken"]
    components = [
        _filled("frontend", pod=frontend),
        *(_component(serving, pool, worker, image, mode) for pool in serving.pools),
    ]
    graph = {"nvidia.com/dynamo-graph-deployment-name": serving.options.name}
    objects = [_filled("graph", serving=serving, components=components)]
    for pool in serving.pools:
        own = {**graph, "nvidia.com/dynamo-component-type": _type(pool)}
        policy = k.network_policy(serving, pool.object, own, [k.from_pods(graph)], VALUES.ports["system"], leaves=False)
        objects += [k.pool_budget(serving, pool, own), policy]
    notes = [note("dynamo_operator", image=image)]
    if mode == "kv" and serving.routing.least:
        notes.append(note("dynamo_kv", serving=serving))
    return k.manifests(
        serving, "dynamo", objects, f"requests go to service {serving.options.name}-frontend, port 8000", notes
    )


def router_mode(routing: Routing, cached_share: float) -> str:
    """What its frontend calls a routing; a plan that counts on cached prefixes needs the mode that knows them.

    >>> from planner.routing import find_routing
    >>> [router_mode(find_routing(name), 0.0) for name in ("random", "rr", "p2c", "least")]
    ['random', 'round-robin', 'power-of-two', 'least-loaded']
    >>> router_mode(find_routing("least"), 0.5)
    'kv'
    """
    if cached_share > 0.0 or routing.affinity:
        return "kv"
    if routing.least:
        return "least-loaded" if routing.candidates is None else "power-of-two"
    return "round-robin" if routing.in_turn else "random"


def _type(pool: ServingPool) -> str:
    return "worker" if pool.role == "both" else pool.role


def _component(serving: Serving, pool: ServingPool, worker: Mapping[str, Any], image: str, mode: str) -> k.Object:
    """A worker: Dynamo starts the engine as a module of its own, which takes the engine's flags."""
    # its workers leave the router's list and finish what they have before they end
    words = without(pool.command[len(serving.engine.launch) :], "--host", "--port", *serving.engine.drains[:1])
    arguments = ["--model", serving.repository, *filter(None, (worker.get("flags", {}).get(w, w) for w in words))]
    if serving.split:
        arguments += ["--disaggregation-mode", pool.role, *worker["split"]]
    if overrides := dict(worker.get("overrides", {})):
        if serving.split:
            # a prefill worker's scheduler must not run ahead
            overrides["cache_transceiver_config"] = {"backend": "DEFAULT"}
            overrides["disable_overlap_scheduler"] = pool.role == "prefill"
        arguments += ["--override-engine-args", json.dumps(overrides)]
    if mode == "kv" and pool.role != "decode":
        arguments += worker["events"]
    spec = pod_spec(serving, pool, "main")
    del spec["automountServiceAccountToken"]
    main = spec["containers"][0]
    look = {"httpGet": {"path": "/live", "port": VALUES.ports["system"]}}
    main |= {"image": image, "command": ["python3", "-m", f"dynamo.{serving.engine.name}"], "args": arguments}
    main["startupProbe"] |= look
    # ports, the other probes, the end and the shared memory are the operator's
    for name in ("ports", "readinessProbe", "livenessProbe", "lifecycle"):
        del main[name]
    main["volumeMounts"] = [v for v in main["volumeMounts"] if v["name"] != "shm"]
    spec["volumes"] = [v for v in spec["volumes"] if v["name"] != "shm"]
    return _filled(
        "worker",
        serving=serving,
        pool=pool,
        name="Worker" if pool.role == "both" else f"{pool.role.title()}Worker",
        type=_type(pool),
        pod=spec,
        # its operator tells the nodes' engines of each other
        multinode={"nodeCount": pool.nodes} if pool.nodes > 1 else None,
    )


def address(serving: Serving) -> str:
    """Where requests go inside the cluster."""
    return f"http://{serving.options.name}-frontend{serving.suffix}:8000"
