"""Plain Kubernetes: a deployment and a headless service per pool, and two Envoys that route as the plan assumes."""

from __future__ import annotations

from collections.abc import Callable

from planner.operate.deploy import Rendered
from planner.operate.deploy import kubernetes as k
from planner.operate.deploy.kubernetes import confined, spread
from planner.operate.deploy.router import ENVOY_IMAGE, ROUTER_PORT, STATUS_PORT, draining, envoy, length_notes
from planner.operate.deploy.serving import EXIT_S, NAME, PORT, Serving, note
from planner.shared.templates import templates

ENVOY_USER = 101
"""User of Envoy's image."""

ENVOYS = 2
"""Copies of the router, so that one may fail."""

_filled: Callable[..., k.Object] = templates(__file__)

ENVOY_LEAVES_S = 15
"""Until nobody connects to an Envoy that is taken out of its service [s]."""


def render(serving: Serving) -> Rendered:
    """All objects as one file."""
    serving.refuse_for("k8s", "split")
    router = serving.router
    # a set of groups has a service of its own name, by which its pods find each other before they are ready
    services = {p.object: p.object if p.nodes == 1 else f"{p.object}-leaders" for p in serving.pools}
    backends = {p.object: [(services[p.object], PORT)] for p in serving.pools}
    objects: list[k.Object] = []
    for pool in serving.pools:
        objects += [
            k.workload(serving, pool),
            # headless: Envoy sees every replica; a service of its own address would pick one per connection
            k.service(serving, services[pool.object], pool.object, {"http": (PORT, "http")}, headless=True),
            k.pool_budget(serving, pool),
        ]
    pods = {NAME: router}
    objects += [
        k.config_map(serving, router, {"envoy.yaml": k.to_yaml(envoy(serving, backends))}),
        k.router(serving, router, _router(serving, router), ENVOYS, _filled("one_by_one")),
        k.service(serving, serving.options.name, router, {"http": (80, "requests")}),
        k.budget(serving, router, pods),
        k.engine_policy(serving),
        k.network_policy(serving, router, pods, [_filled("anybody", port=ROUTER_PORT)], STATUS_PORT, leaves=False),
    ]
    notes = [*length_notes(serving)]
    if serving.routing.least:
        notes.append(note("envoys", envoys=ENVOYS))
    about = f"requests go to service {serving.options.name}, port 80"
    return k.manifests(serving, "kubernetes", objects, about, notes)


def _router(serving: Serving, name: str) -> k.Object:
    """The pod of an Envoy."""
    spec = _filled(
        "envoy",
        name=name,
        grace=ENVOY_LEAVES_S + max(p.drain_s for p in serving.pools) + EXIT_S,
        image=serving.options.router_image or ENVOY_IMAGE,
        requests=ROUTER_PORT,
        status=STATUS_PORT,
        draining=draining(ENVOY_LEAVES_S),
        apart=[spread({NAME: name}, over) for over in ("topology.kubernetes.io/zone", k.NODE)],
    )
    return confined(spec, ENVOY_USER)


def address(serving: Serving) -> str:
    """Where requests go inside the cluster."""
    return f"http://{serving.options.name}{serving.suffix}"
