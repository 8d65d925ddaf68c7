"""Replicas on hosts without a cluster: units, compose files and nginx against the plan they were made of."""

from __future__ import annotations

import math
import re

import pytest

import planner as fo
from tests.deploy.conftest import plan_of
from tests.deploy.test_values import after, p99_s, rendered


def test_options_of_hosts_and_clusters() -> None:
    for option in ({"replicas_by": "scaler"}, {"layout": "kustomize"}):
        for to in ("compose", "systemd"):
            with pytest.raises(fo.InputError, match=rf"--to {to} starts replicas on hosts"):
                fo.deploy(plan_of("one pool"), to, **option)  # type: ignore[arg-type]
    with pytest.raises(fo.InputError, match="--platform: 'gce' is none of generic, gke, eks, aks"):
        fo.deploy(plan_of("one pool"), platform="gce")
    with pytest.raises(fo.InputError, match="--revision: 'a b' is no commit"):
        fo.deploy(plan_of("one pool"), revision="a b")


def test_hosts_end_their_servers_in_good_order() -> None:
    drain = max(30, math.ceil(1.5 * p99_s(plan_of("cut").pools[0])))
    (compose,) = rendered("compose", "cut")
    service = compose["services"]["fleetopt-short-1"]
    assert after(service["command"], "--shutdown-timeout") == str(drain)
    assert int(service["stop_grace_period"].removesuffix("s")) > drain
    assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]
    unit = fo.deploy(plan_of("cut"), "systemd").files["fleetopt-short@.service"]
    # the signal is for the server alone: its engines end when the last request has
    assert "KillMode=mixed" in unit and f"--shutdown-timeout {drain}" in unit
    assert int(re.search(r"TimeoutStopSec=(\d+)", unit).group(1)) > drain  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "method"),
    [("one pool", "random;"), ("spare", "random two least_conn;"), ("groups", "least_conn;"), ("quantized here", "")],
)
def test_nginx_routes_as_planned(kind: str, method: str) -> None:
    files = fo.deploy(plan_of(kind), "systemd").files
    upstream = files["nginx.conf"].partition("upstream fleetopt-all {")[2].partition("}")[0]
    found = [x.strip() for x in upstream.splitlines() if x.strip()]
    servers = re.findall(r"server (\S+):(\d+) ", upstream)
    assert [x for x in found if not x.startswith(("zone", "server", "keepalive"))] == ([method] if method else [])
    ports = [re.search(r"PORT=(\d+)", text).group(1) for n, text in files.items() if n.endswith(".env")]  # type: ignore[union-attr]
    assert sorted(p for _, p in servers) == sorted(ports) and len(servers) == plan_of(kind).replicas


@pytest.mark.parametrize("kind", ["cut", "cut by prompt"])
def test_nginx_cuts_where_the_plan_does(kind: str) -> None:
    """By four bytes a token; what the plan cuts by input + output leaves room for the mean output."""
    conf = fo.deploy(plan_of(kind), "systemd").files["nginx.conf"]
    pattern = re.search(r'"~\^\((.*)\)\$" fleetopt-short;', conf)
    assert pattern is not None
    short = plan_of(kind).pools[0].high_tokens
    output = plan_of(kind).to_dict()["workload"]["mean_output_tokens"] if kind == "cut" else 0.0  # type: ignore[index]
    edge = round(4 * (short - output))
    assert [bool(re.fullmatch(pattern[1], str(n))) for n in (1, edge, edge + 1)] == [True, True, False]
