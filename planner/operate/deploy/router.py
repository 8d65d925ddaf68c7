"""What stands in front of the replicas: the plan's routing and its cut by length, for Envoy and an endpoint picker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.operate.deploy import kubernetes as k
from planner.operate.deploy.serving import VALUES, Serving, ServingPool, filler, note, refusal
from planner.routing import Routing

POOL_HEADER = "x-fleetopt-pool"
"""Names the pool of a request; a client that counts tokens itself may set it."""

SESSION_HEADER = "x-session-id"
"""Names the session of a request, where the plan lets sessions stay on a replica."""

_filled: Callable[..., dict[str, Any]] = filler(__file__)


def length_notes(serving: Serving) -> Iterator[str]:
    """What a cut by length, and sessions that stay, need to be true."""
    if serving.routing.affinity:
        blind = "; this router does not look at prompts" if serving.routing.affinity == "prefix" else ""
        yield note("session", header=SESSION_HEADER, blind=blind)
    if serving.boundaries:
        output = note("output", mean=f"{serving.mean_output_tokens:,.0f}") if serving.sees_output else ""
        yield note("counted", header=POOL_HEADER, output=output)


def _balancer(routing: Routing) -> dict[str, Any]:
    """The routing as a load-balancing policy of Envoy."""
    more: dict[str, Any] = {}
    if routing.affinity:
        name, kind = "maglev", "Maglev"
    elif routing.least:
        name, kind = "least_request", "LeastRequest"
        every = routing.candidates is None
        more = {"selection_method": "FULL_SCAN"} if every else {"choice_count": routing.candidates}
    elif routing.in_turn:
        name, kind = "round_robin", "RoundRobin"
    else:
        name, kind = "random", "Random"
    return _filled("balancer", name=name, type=f"{name}.v3.{kind}", more=more)


def envoy(
    serving: Serving, backends: Mapping[str, Sequence[tuple[str, int]]], file: str | None = None
) -> dict[str, Any]:
    """Bootstrap of an Envoy that routes to the pools.

    Parameters
    ----------
    serving
        The fleet.
    backends
        Pool -> addresses and ports of its replicas; a name may stand for several.
    file
        Where the pools are read, and read again when another file takes its place; here when ``None``.
    """
    *first, last = serving.pools
    hashed = [{"header": {"header_name": SESSION_HEADER}}] if serving.routing.affinity else None
    routes = [
        _filled("route", headers=_filled("of_pool", header=POOL_HEADER, pool=p), cluster=p.object, hash=hashed)
        for p in first
    ]
    routes.append(_filled("route", headers=None, cluster=last.object, hash=hashed))
    ports, most = VALUES.ports, VALUES.limits["body_bytes"]
    front = {"name": "requests", "port": ports["router"], "prefix": "fleetopt", "buffer": most, "known": not file}
    status = {"name": "status", "port": ports["status"], "prefix": "status", "buffer": None, "known": True}
    by_length = [_filled("by_length", script=_lua(serving))] if first else []
    return _filled(
        "envoy",
        listeners=[
            _filled("listener", **front, routes=routes, filters=by_length),
            _filled("listener", **status, routes=_filled("shown"), filters=[]),
        ],
        clusters=[] if file else clusters(serving, backends),
        # asked of whoever reads pools from elsewhere
        node=file and {"id": serving.options.name, "cluster": serving.options.name},
        read=file and {"cds_config": {"path_config_source": {"path": file}}},
    )


def clusters(serving: Serving, backends: Mapping[str, Sequence[tuple[str, int]]]) -> list[dict[str, Any]]:
    """The pools as Envoy knows them."""
    return [
        _filled(
            "cluster",
            name=p.object,
            balancer=_balancer(serving.routing),
            most=max(4096, 16 * p.replicas * p.slots),
            endpoints=[_filled("endpoint", host=host, port=port) for host, port in backends[p.object]],
        )
        for p in serving.pools
    ]


def draining(leaves_s: float) -> list[str]:
    """Command that ends an Envoy in good order: clients are told to come back elsewhere, and it goes on until nothing is under way.

    Parameters
    ----------
    leaves_s
        Until nobody sends new connections here [s].
    """
    return ["/bin/bash", "-c", str(_filled("draining", leaves=f"{leaves_s:.0f}"))]


def _lua(serving: Serving) -> str:
    """Script that names the pool of a request from its length."""
    output = _filled("lua_output", mean=round(serving.mean_output_tokens)) if serving.sees_output else ""
    cuts = [_filled("lua_cut", most=f"{p.high_tokens:.0f}", header=POOL_HEADER, pool=p) for p in serving.pools[:-1]]
    return str(_filled("lua", header=POOL_HEADER, output=output, cuts="".join(map(str, cuts))))


def picker_notes(serving: Serving) -> Iterator[str]:
    """Where an endpoint picker does otherwise than the plan assumes."""
    routing = serving.routing
    if routing.in_turn or (routing.least and routing.candidates):
        yield note("picked", routing=routing.name)


def picker(serving: Serving) -> dict[str, Any]:
    """Configuration of an endpoint picker: the scorers the plan relies on."""
    scorers: dict[str, int] = {"context-length-aware": 1} if serving.boundaries else {}
    routing = serving.routing
    if sees := bool(routing.least) or routing.in_turn:
        scorers |= {"active-request-scorer": 2, "queue-scorer": 1}
    if by_prefix := serving.cached_share > 0.0 or bool(routing.affinity):
        scorers["prefix-cache-scorer"] = 2
    choice = "max-score-picker" if sees or by_prefix else "random-picker"
    parameters = {"context-length-aware": {"enableFiltering": True}}
    plugins = [_filled("plugin", type=name, parameters=parameters.get(name)) for name in (*scorers, choice)]
    scored = [*({"pluginRef": name, "weight": weight} for name, weight in scorers.items()), {"pluginRef": choice}]
    profiles = [{"name": "default", "plugins": scored}]
    if serving.split:
        profiles = [
            {"name": role, "plugins": [{"pluginRef": f"{role}-filter"}, *scored]} for role in ("prefill", "decode")
        ]
    handlers = _filled("two_profiles" if serving.split else "one_profile")
    return _filled("picker", plugins=plugins, handlers=handlers, profiles=profiles)


_ENDPOINT = re.compile(r"- endpoint:\n *address:\n *socket_address:\n *address: (.+)\n *port_value: (\d+)")


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
        "drain": str(_filled("drain", file=file)),
    }


def placed(serving: Serving, to: str) -> tuple[list[Placed], int]:
    """Every replica, and how many hosts there are; a host has GPUs of one type, as many as a node of the catalog, and none is left
    over needlessly.

    Raises
    ------
    InputError
        A fleet that needs a cluster, for a target without; more replicas than can sensibly be started one by one.
    """
    serving.refuse_for(to, "split", "wide", "on_hosts")
    total = sum(p.replicas for p in serving.pools)
    if total > VALUES.limits["replicas"]:
        raise refusal("many", total=f"{total:,}", most=VALUES.limits["replicas"])
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
            found.append(Placed(pool, f"{pool.object}-{number + 1}", host, gpus, VALUES.ports["first"] + there))
            open_host[pool.device.name] = (host, taken + pool.gpus, there + 1)
    return found, hosts
