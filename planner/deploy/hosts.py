"""Replicas on hosts without a cluster: which GPUs of which host each gets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.deploy import kubernetes as k
from planner.deploy.router import clusters, envoy
from planner.deploy.serving import Serving, ServingPool, refusal
from planner.shared.templates import templates

FIRST_PORT = 8001
"""Port of the first replica on a host."""

MOST = 512
"""Replicas beyond which nobody starts them one by one."""


LEAVES_S = 10
"""Until Envoy has read which replicas are left, asked each for its health, and sends the others nothing [s]."""

_ENDPOINT = re.compile(r"- endpoint:\n *address:\n *socket_address:\n *address: (.+)\n *port_value: (\d+)")

_filled: Callable[..., str] = templates(__file__)


@dataclass(frozen=True, slots=True)
class Placed:
    """One replica: its pool, name, host and its GPUs there (counted from 0), and its port on the host."""

    pool: ServingPool
    name: str
    host: int
    gpus: Sequence[int]
    port: int


def router_files(serving: Serving, backends: Mapping[str, Sequence[tuple[str, int]]], folder: str) -> dict[str, str]:
    """Files of an Envoy that lie in a folder: how it starts, its replicas in a line each, and what takes one out and in."""
    file = f"{folder}/replicas.yaml"
    kind = {"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster"}
    text = k.to_yaml({"resources": [kind | c for c in clusters(serving, backends)]})
    return {
        "envoy.yaml": k.to_yaml(envoy(serving, backends, file)),
        "replicas.yaml": _ENDPOINT.sub(
            r"- {endpoint: {address: {socket_address: {address: \1, port_value: \2}}}}", text
        ),
        "drain": _filled("drain", file=file, seconds=LEAVES_S),
    }


def placed(serving: Serving, to: str) -> tuple[list[Placed], int]:
    """Every replica, and how many hosts there are; a host has GPUs of one type, as many as a node of the catalog, and none is left
    over needlessly.

    Raises
    ------
    InputError
        A fleet that needs a cluster, for a target without; more replicas than can sensibly be started one by one.
    """
    serving.colocated(to)
    serving.on_one_node(to)
    serving.by_hand(to)
    total = sum(p.replicas for p in serving.pools)
    if total > MOST:
        raise refusal("many", total=f"{total:,}", most=MOST)
    found: list[Placed] = []
    open_host: dict[str, tuple[int, int, int]] = {}  # GPU -> host, GPUs taken, replicas there
    hosts = 0
    for pool in serving.pools:
        for number in range(pool.replicas):
            host, taken, there = open_host.get(pool.device.name, (-1, pool.device.gpus_per_node, 0))
            if taken + pool.gpus > pool.device.gpus_per_node:
                host, taken, there = hosts, 0, 0
                hosts += 1
            gpus = range(taken, taken + pool.gpus)
            found.append(Placed(pool, f"{pool.object}-{number + 1}", host, gpus, FIRST_PORT + there))
            open_host[pool.device.name] = (host, taken + pool.gpus, there + 1)
    return found, hosts
