"""Plain Kubernetes: a deployment and a headless service per pool, and two Envoys that route as the plan assumes."""

from __future__ import annotations

from planner.operate.deploy import Rendered
from planner.operate.deploy import kubernetes as k
from planner.operate.deploy.kubernetes import confined, spread
from planner.operate.deploy.router import draining, envoy, length_notes
from planner.operate.deploy.serving import NAME, VALUES, Serving, filler, note

_filled = filler(__file__)


def render(serving: Serving) -> Rendered:
    """All objects as one file."""
    serving.refuse_for("k8s", "split")
    router = serving.router
    # a set of groups has a service of its own name, by which its pods find each other before they are ready
    services = {p.object: p.object if p.nodes == 1 else f"{p.object}-leaders" for p in serving.pools}
    backends = {p.object: [(services[p.object], serving.port)] for p in serving.pools}
    objects: list[k.Object] = []
    for pool in serving.pools:
        objects += [
            k.workload(serving, pool),
            # headless: Envoy sees every replica; a service of its own address would pick one per connection
            k.service(serving, services[pool.object], pool.object, {"http": (serving.port, "http")}, headless=True),
            k.pool_budget(serving, pool),
        ]
    pods = {NAME: router}
    objects += [
        k.made("config_map", serving=serving, name=router, data={"envoy.yaml": k.to_yaml(envoy(serving, backends))}),
        k.router(serving, router, _router(serving, router), VALUES.limits["envoys"], _filled("one_by_one")),
        k.service(serving, serving.options.name, router, {"http": (80, "requests")}),
        k.budget(serving, router, pods),
        k.engine_policy(serving),
        k.network_policy(serving, router, pods, [_filled("anybody")], VALUES.ports["status"], leaves=False),
    ]
    notes = [*length_notes(serving)]
    if serving.routing.least:
        notes.append(note("envoys"))
    about = f"requests go to service {serving.options.name}, port 80"
    return k.manifests(serving, "kubernetes", objects, about, notes)


def _router(serving: Serving, name: str) -> k.Object:
    """The pod of an Envoy."""
    spec = _filled(
        "envoy",
        name=name,
        grace=VALUES.times["envoy_leaves"] + max(p.drain_s for p in serving.pools) + VALUES.times["exit"],
        image=serving.options.router_image or VALUES.images["envoy"],
        draining=draining(VALUES.times["envoy_leaves"]),
        apart=[spread({NAME: name}, over) for over in ("topology.kubernetes.io/zone", k.NODE)],
    )
    return confined(spec, VALUES.users["envoy"])


def address(serving: Serving) -> str:
    """Where requests go inside the cluster."""
    return f"http://{serving.options.name}{serving.suffix}"
