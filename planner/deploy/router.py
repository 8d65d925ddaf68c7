"""What stands in front of the replicas: the plan's routing and its cut by length, for Envoy, nginx and an endpoint picker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.deploy.serving import Serving, ServingPool
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

_TYPES = "type.googleapis.com/envoy.extensions"
_POLICIES = f"{_TYPES}.load_balancing_policies"
_MANAGER = f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager"
_ROUTER = {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"}}

# a replica that takes no connection has not seen the request: another one gets it. Nothing is sent again that may have begun.
_RETRY = {
    "retry_on": "connect-failure,refused-stream,reset-before-request",
    "num_retries": 3,
    "retry_host_predicate": [
        {
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {"@type": f"{_TYPES}.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
        }
    ],
    "host_selection_retry_max_attempts": 5,
}

# what two connections find dead gets nothing more for a while; what the server itself answers is no local origin
_OUTLIERS = {
    "split_external_local_origin_errors": True,
    "consecutive_local_origin_failure": 2,
    "interval": "1s",
    "base_ejection_time": "30s",
    "max_ejection_percent": 50,
}


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
    config: dict[str, Any]
    if routing.affinity:
        name, config = "maglev", {"@type": f"{_POLICIES}.maglev.v3.Maglev"}
    elif routing.least:
        name = "least_request"
        config = {"@type": f"{_POLICIES}.least_request.v3.LeastRequest"}
        if routing.candidates is None:
            config["selection_method"] = "FULL_SCAN"
        else:
            config["choice_count"] = routing.candidates
    elif routing.in_turn:
        name, config = "round_robin", {"@type": f"{_POLICIES}.round_robin.v3.RoundRobin"}
    else:
        name, config = "random", {"@type": f"{_POLICIES}.random.v3.Random"}
    return {
        "policies": [
            {"typed_extension_config": {"name": f"envoy.load_balancing_policies.{name}", "typed_config": config}}
        ]
    }


def envoy(serving: Serving, backends: Mapping[str, Sequence[tuple[str, int]]]) -> dict[str, Any]:
    """Bootstrap of an Envoy that routes to the pools.

    Parameters
    ----------
    serving
        The fleet.
    backends
        Pool -> addresses and ports of its replicas; a name may stand for several.
    """
    pools = serving.pools

    def route(pool: ServingPool) -> dict[str, Any]:
        # a stream lasts as long as it lasts
        found: dict[str, Any] = {"cluster": pool.object, "timeout": "0s", "retry_policy": _RETRY}
        return found | (
            {"hash_policy": [{"header": {"header_name": SESSION_HEADER}}]} if serving.routing.affinity else {}
        )

    routes: list[dict[str, Any]] = [
        {
            "match": {"prefix": "/", "headers": [{"name": POOL_HEADER, "string_match": {"exact": p.object}}]},
            "route": route(p),
        }
        for p in pools[:-1]
    ]
    routes.append({"match": {"prefix": "/"}, "route": route(pools[-1])})
    filters: list[dict[str, Any]] = [_ROUTER]
    if len(pools) > 1:
        script = {"@type": f"{_TYPES}.filters.http.lua.v3.Lua", "default_source_code": {"inline_string": _lua(serving)}}
        filters.insert(0, {"name": "envoy.filters.http.lua", "typed_config": script})
    requests = _listener("requests", ROUTER_PORT, "fleetopt", routes, filters) | {
        "per_connection_buffer_limit_bytes": LARGEST_BODY
    }
    shown = [{"match": {"path": path}, "route": {"cluster": "admin"}} for path in ("/ready", PROMETHEUS_PATH)]
    admin = ("127.0.0.1", ADMIN_PORT)
    clusters = [_cluster(serving, p.object, p.replicas * p.slots, backends[p.object]) for p in pools]
    clusters.append(
        {"name": "admin", "type": "STATIC", "connect_timeout": "1s", "load_assignment": _assigned("admin", [admin])}
    )
    return {
        "admin": {"address": _address(*admin)},
        "static_resources": {
            "listeners": [requests, _listener("status", STATUS_PORT, "status", shown, [_ROUTER])],
            "clusters": clusters,
        },
    }


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _assigned(name: str, addresses: Sequence[tuple[str, int]]) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": _address(host, port)}} for host, port in addresses]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}


def _listener(
    name: str, port: int, prefix: str, routes: Sequence[dict[str, Any]], filters: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """A port, and where its requests go; its figures are called by `prefix`."""
    manager = {
        "@type": _MANAGER,
        "stat_prefix": prefix,
        "stream_idle_timeout": "0s",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": list(routes)}]},
        "http_filters": list(filters),
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {"name": name, "address": _address("0.0.0.0", port), "filter_chains": [chain]}


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
    # Envoy refuses beyond 1,024 requests of a cluster, and beyond 3 tried again, by itself: queues belong to the engines
    most = max(4096, 16 * slots)
    limits = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), most)
    protocol = {
        "@type": f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions",
        "common_http_protocol_options": {"idle_timeout": f"{KEPT_S}s"},
        "explicit_http_config": {"http_protocol_options": {}},
    }
    return {
        "name": name,
        "type": "STRICT_DNS",
        "dns_refresh_rate": f"{DNS_S}s",
        "connect_timeout": "2s",
        "load_balancing_policy": _balancer(serving.routing),
        "circuit_breakers": {"thresholds": [limits]},
        # a replica whose name is gone gets nothing more, though it still answers health checks
        "ignore_health_on_host_removal": True,
        "outlier_detection": _OUTLIERS,
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": protocol},
        "health_checks": [
            {
                "timeout": "5s",
                "interval": "5s",
                "no_traffic_interval": "5s",
                "unhealthy_threshold": 3,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/health"},
            }
        ],
        "load_assignment": _assigned(name, addresses),
    }


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


def nginx(serving: Serving, backends: Mapping[str, Sequence[tuple[str, int]]]) -> str:
    """Configuration of an nginx that routes to the pools; it cuts by the length of the body, which is all it sees."""
    lines = ["# goes into the http block: include it from /etc/nginx/conf.d"]
    for pool in serving.pools:
        lines += [f"upstream {pool.object} {{", f"    zone {pool.object} 256k;"]
        if serving.routing.affinity:
            lines.append(f"    hash $http_{SESSION_HEADER.replace('-', '_')} consistent;")
        elif serving.routing.least:
            lines.append("    random two least_conn;" if serving.routing.candidates else "    least_conn;")
        elif not serving.routing.in_turn:
            lines.append("    random;")
        lines += [f"    server {host}:{port} max_fails=3 fail_timeout=10s;" for host, port in backends[pool.object]]
        lines += ["    keepalive 256;", "}"]
    last = serving.pools[-1].object
    if len(serving.pools) > 1:
        lines += ["map $content_length $fleetopt_by_length {", f"    default {last};"]
        output = serving.mean_output_tokens if serving.sees_output else 0.0
        for pool in serving.pools[:-1]:
            most = max(0, round(BYTES_PER_TOKEN * (pool.high_tokens - output)))
            lines.append(f'    "~^({at_most(most)})$" {pool.object};')
        header = f"$http_{POOL_HEADER.replace('-', '_')}"
        lines += ["}", f"map {header} $fleetopt_pool {{", "    default $fleetopt_by_length;"]
        lines += [f"    {pool.object} {pool.object};" for pool in serving.pools]
        lines.append("}")
        last = "$fleetopt_pool"
    lines += [
        "server {",
        f"    listen {ROUTER_PORT};",
        f"    client_max_body_size {LARGEST_BODY >> 20}m;",
        "    location / {",
        f"        proxy_pass http://{last};",
        "        proxy_http_version 1.1;",
        '        proxy_set_header Connection "";',
        "        proxy_buffering off;",
        "        proxy_read_timeout 1h;",
        "    }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def at_most(number: int) -> str:
    """A regular expression of the whole numbers up to `number`, without leading zeros.

    >>> import re
    >>> all((re.fullmatch(at_most(1234), str(k)) is not None) == (k <= 1234) for k in range(13000))
    True
    """
    digits = str(number)
    choices = [r"[0-9]" if len(digits) == 1 else f"[0-9]{{1,{len(digits) - 1}}}"] if len(digits) > 1 else []
    for place, digit in enumerate(digits):
        low = 1 if place == 0 and len(digits) > 1 else 0
        if int(digit) > low:
            rest = len(digits) - place - 1
            tail = f"[0-9]{{{rest}}}" if rest else ""
            choices.append(f"{digits[:place]}[{low}-{int(digit) - 1}]{tail}")
    return "|".join([*choices, digits])


def picker_notes(serving: Serving) -> Iterator[str]:
    """Where an endpoint picker does otherwise than the plan assumes."""
    routing = serving.routing
    if routing.in_turn or (routing.least and routing.candidates):
        yield (
            f"an endpoint picker has no {routing.name}: requests go where fewest are in flight, which keeps what "
            f"{routing.name} promises or better"
        )


def picker(serving: Serving) -> dict[str, Any]:
    """Configuration of an endpoint picker: the scorers the plan relies on.

    The names of plugins are those of the inference scheduler of llm-d, 2026-05.
    """
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
    if not serving.split:
        plugins.append({"type": "single-profile-handler"})
        profiles = [{"name": "default", "plugins": scored}]
    else:
        plugins += [
            {"type": "prefill-filter"},
            {"type": "decode-filter"},
            {"type": "always-disagg-pd-decider"},
            {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": "always-disagg-pd-decider"}}},
        ]
        profiles = [
            {"name": role, "plugins": [{"pluginRef": f"{role}-filter"}, *scored]} for role in ("prefill", "decode")
        ]
    return {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": plugins,
        "schedulingProfiles": profiles,
    }
