"""What stands in front of the replicas: the plan's routing and its cut by length, for Envoy and an endpoint picker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from planner.deploy.serving import Serving
from planner.deploy.templates import templates
from planner.routing import Routing

POOL_HEADER = "x-fleetopt-pool"
"""Names the pool of a request; a client that counts tokens itself may set it."""

SESSION_HEADER = "x-session-id"
"""Names the session of a request, where the plan lets sessions stay on a replica."""

BYTES_PER_TOKEN = 4
"""Bytes of a request's body taken for one token where nobody counts them [bytes]."""

ROUTER_PORT, STATUS_PORT, ADMIN_PORT = 8080, 8081, 9901
"""Ports of the router: for requests, for probes and metrics, and for orders from its own pod."""

ENVOY_IMAGE = "envoyproxy/envoy:v1.39.3"

DNS_S = 5
"""Envoy asks so often which replicas there are [s]."""

KEPT_S = 4
"""Idle connections to a replica are closed after so long [s]: before the servers do, after 5 s, and lose what comes just then."""

PROMETHEUS_PATH = "/stats/prometheus"

LARGEST_BODY = 16 << 20
"""Largest request that is looked at whole [bytes]."""

_filled: Callable[..., dict[str, Any]] = templates(__file__)


def length_notes(serving: Serving) -> Iterator[str]:
    """What a cut by length, and sessions that stay, need to be true."""
    if serving.routing.affinity:
        yield (
            f"a session stays on a replica by the header {SESSION_HEADER}, which clients or the gateway before must set"
            + ("; this router does not look at prompts" if serving.routing.affinity == "prefix" else "")
        )
    if not serving.boundaries:
        return
    counted = (
        f"a router counts {BYTES_PER_TOKEN} bytes of the body as a token; a client may say better with {POOL_HEADER}"
    )
    if serving.sees_output:
        counted += (
            f"; the plan cuts input + output, which only max_tokens tells (else the mean output of "
            f"{serving.mean_output_tokens:,.0f} is taken): plan with route_on input for what a router sees"
        )
    yield counted


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
    return _filled("balancer", name=name, kind=kind, more=more)


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
    routes: list[dict[str, Any]] = [
        {
            "match": {"prefix": "/", "headers": [{"name": POOL_HEADER, "string_match": {"exact": p.object}}]},
            "route": _filled("route", cluster=p.object, hash=hashed),
        }
        for p in first
    ]
    routes.append({"match": {"prefix": "/"}, "route": _filled("route", cluster=last.object, hash=hashed)})
    shown = [{"match": {"path": path}, "route": {"cluster": "admin"}} for path in ("/ready", PROMETHEUS_PATH)]
    by_length = [_filled("by_length", script=_lua(serving))] if first else []
    requests: dict[str, Any] = {"name": "requests", "port": ROUTER_PORT, "prefix": "fleetopt", "routes": routes}
    status = {"name": "status", "port": STATUS_PORT, "prefix": "status", "routes": shown, "filters": [], "buffer": None}
    return _filled(
        "envoy",
        admin=ADMIN_PORT,
        listeners=[
            _filled("listener", **requests, filters=by_length, buffer=LARGEST_BODY, known=not file),
            _filled("listener", **status, known=True),
        ],
        clusters=[] if file else clusters(serving, backends),
        # asked of whoever reads pools from elsewhere
        node=file and {"id": serving.options.name, "cluster": serving.options.name},
        read=file and {"cds_config": {"path_config_source": {"path": file}}},
    )


def clusters(serving: Serving, backends: Mapping[str, Sequence[tuple[str, int]]]) -> list[dict[str, Any]]:
    """The pools as Envoy knows them."""
    return [_cluster(serving, p.object, p.replicas * p.slots, backends[p.object]) for p in serving.pools]


def draining(leaves_s: float) -> list[str]:
    """Command that ends an Envoy in good order: clients are told to come back elsewhere, and it goes on until nothing is under way.

    Parameters
    ----------
    leaves_s
        Until nobody sends new connections here [s].
    """
    # bash is all that its image has to speak HTTP with
    script = [
        "ask() {",
        f"  exec 3<>/dev/tcp/127.0.0.1/{ADMIN_PORT} || return 1",
        r"""  printf '%s HTTP/1.1\r\nHost: envoy\r\nConnection: close\r\nContent-Length: 0\r\n\r\n' "$1" >&3""",
        "  cat <&3",
        "  exec 3>&-",
        "}",
        "ask 'POST /healthcheck/fail' > /dev/null",
        f"sleep {leaves_s:.0f}",
        "active='http.fleetopt.downstream_rq_active: [1-9]'",
        "while ask 'GET /stats?filter=downstream_rq_active' | grep -q \"$active\"; do sleep 1; done",
    ]
    return ["/bin/bash", "-c", "\n".join(script)]


def _cluster(serving: Serving, name: str, slots: int, addresses: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """The replicas of a pool."""
    return _filled(
        "cluster",
        name=name,
        refresh=f"{DNS_S}s",
        kept=f"{KEPT_S}s",
        balancer=_balancer(serving.routing),
        most=max(4096, 16 * slots),
        endpoints=[_filled("endpoint", host=host, port=port) for host, port in addresses],
    )


def _lua(serving: Serving) -> str:
    """Script that names the pool of a request from its length."""
    mean = round(serving.mean_output_tokens)
    lines = [
        "function envoy_on_request(handle)",
        f"  if handle:headers():get('{POOL_HEADER}') then return end",
        "  local body = handle:body()",
        "  if not body then return end",
        "  local size = body:length()",
        f"  local tokens = size / {BYTES_PER_TOKEN}",
    ]
    if serving.sees_output:
        lines += [
            "  local text = body:getBytes(0, size)",
            """  local most = string.match(text, '"max_completion_tokens"%s*:%s*(%d+)')""",
            """    or string.match(text, '"max_tokens"%s*:%s*(%d+)')""",
            f"  tokens = tokens + (tonumber(most) or {mean})",
        ]
    for pool in serving.pools[:-1]:
        lines.append(
            f"  if tokens <= {pool.high_tokens:.0f} then "
            f"handle:headers():replace('{POOL_HEADER}', '{pool.object}') return end"
        )
    return "\n".join([*lines, "end", ""])


def picker_notes(serving: Serving) -> Iterator[str]:
    """Where an endpoint picker does otherwise than the plan assumes."""
    routing = serving.routing
    if routing.in_turn or (routing.least and routing.candidates):
        yield (
            f"an endpoint picker has no {routing.name}: requests go where fewest are in flight, which keeps what "
            f"{routing.name} promises or better"
        )


def picker(serving: Serving) -> dict[str, Any]:
    """Configuration of an endpoint picker: the scorers the plan relies on."""
    plugins: list[dict[str, Any]] = []
    scored: list[dict[str, Any]] = []
    routing = serving.routing
    if serving.boundaries:
        plugins.append({"type": "context-length-aware", "parameters": {"enableFiltering": True}})
        scored.append({"pluginRef": "context-length-aware", "weight": 1})
    blind = not routing.least and not routing.in_turn
    if not blind:
        for scorer in ("active-request-scorer", "queue-scorer"):
            plugins.append({"type": scorer})
            scored.append({"pluginRef": scorer, "weight": 2 if scorer.startswith("active") else 1})
    by_prefix = serving.cached_share > 0.0 or bool(routing.affinity)
    if by_prefix:
        plugins.append({"type": "prefix-cache-scorer"})
        scored.append({"pluginRef": "prefix-cache-scorer", "weight": 2})
    choice = "random-picker" if blind and not by_prefix else "max-score-picker"
    plugins.append({"type": choice})
    scored.append({"pluginRef": choice})
    profiles = [{"name": "default", "plugins": scored}]
    if serving.split:
        profiles = [
            {"name": role, "plugins": [{"pluginRef": f"{role}-filter"}, *scored]} for role in ("prefill", "decode")
        ]
    handlers = _filled("two_profiles" if serving.split else "one_profile")
    return _filled("picker", plugins=plugins, handlers=handlers, profiles=profiles)
