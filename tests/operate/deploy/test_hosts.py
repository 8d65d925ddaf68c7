"""Replicas on hosts without a cluster: units, compose files and Envoy against the plan they were made of."""

from __future__ import annotations

import math
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import planner as fo
from tests.operate.deploy.conftest import plan_of
from tests.operate.deploy.test_values import after, p99_s, rendered

NAMES = ("envoy.yaml", "replicas.yaml", "drain")


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


@pytest.mark.parametrize("kind", ["one pool", "cut", "groups"])
def test_who_starts_several_hosts_is_told_of_all(kind: str) -> None:
    written = fo.deploy(plan_of(kind), "systemd")
    hosts = {name.split("/")[0] for name in written.files if re.match(r"host\d+/", name)}
    told = [note for note in written.notes if "must resolve" in note]
    assert [int(note.split()[0]) for note in told] == ([len(hosts)] if len(hosts) > 1 else [])


def envoys(to: str, kind: str) -> tuple[Any, Any, str]:
    """Bootstrap and pools of the Envoy on a host, as written, and the script that drains."""
    if to == "systemd":
        files = fo.deploy(plan_of(kind), to).files
        texts = [files[f"host1/{name}"] for name in NAMES]
    else:
        (document,) = rendered(to, kind)
        router = document["services"]["fleetopt-router"]
        assert router["configs"] == [{"source": name, "target": f"/etc/envoy/{name}"} for name in NAMES]
        assert router["command"] == ["--config-path", "/etc/envoy/envoy.yaml"] and router["ports"] == ["8080:8080"]
        texts = [document["configs"][name]["content"].replace("$$", "$") for name in NAMES]
        texts[1] = re.sub(r"\$\{HOST(\d+):[^}]*\}", r"host\1", texts[1])
    return yaml.safe_load(texts[0]), texts[1], texts[2]


@pytest.mark.parametrize("to", ["compose", "systemd"])
@pytest.mark.parametrize("kind", ["one pool", "groups", "quantized here", "cut", "cut by prompt"])
def test_a_host_routes_as_a_cluster_does(to: str, kind: str) -> None:
    """What Envoy says there and here differs in where the replicas are, and in the file in which they are."""
    bootstrap, text, _ = envoys(to, kind)
    there = next(d["data"]["envoy.yaml"] for d in rendered("k8s", kind) if d["kind"] == "ConfigMap")
    expected = yaml.safe_load(there)
    *clusters, admin = expected["static_resources"]["clusters"]
    expected["static_resources"]["clusters"] = [admin]
    folder = {"compose": "/etc/envoy", "systemd": "/etc/fleetopt"}[to]
    expected["dynamic_resources"] = {"cds_config": {"path_config_source": {"path": f"{folder}/replicas.yaml"}}}
    expected["node"] = {"id": "fleetopt", "cluster": "fleetopt"}
    # pools that come from the file are not known when the routes are read
    connections = expected["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    connections["route_config"]["validate_clusters"] = False
    assert bootstrap == expected
    found = yaml.safe_load(text)["resources"]
    assert [c.pop("@type") for c in found] == ["type.googleapis.com/envoy.config.cluster.v3.Cluster"] * len(clusters)
    places = [e.pop("endpoints")[0]["lb_endpoints"] for e in (c["load_assignment"] for c in found)]
    for cluster in clusters:
        cluster["load_assignment"].pop("endpoints")
    assert found == clusters
    assert [len(p) for p in places] == [p.replicas for p in plan_of(kind).pools]
    at = [tuple(e["endpoint"]["address"]["socket_address"].values()) for p in places for e in p]
    assert len(set(at)) == plan_of(kind).replicas
    if to == "systemd":
        files = fo.deploy(plan_of(kind), to).files
        said = [dict(x.split("=", 1) for x in files[n].splitlines()) for n in files if n.endswith(".env")]
        assert sorted((s["ADDRESS"], int(s["PORT"])) for s in said) == sorted(at)
        assert all(s["ROUTER"] == ("sh" if s["ADDRESS"] == "127.0.0.1" else "ssh host1 sh") for s in said)


def test_a_replica_leaves_the_router_and_comes_back(tmp_path: Path) -> None:
    """By a line that becomes a comment: another file in the place of the first, each replica once, the last one included."""
    bootstrap, text, script = envoys("systemd", "cut")
    assert bootstrap["dynamic_resources"]["cds_config"]["path_config_source"]["path"] == "/etc/fleetopt/replicas.yaml"
    file, drain = tmp_path / "replicas.yaml", tmp_path / "drain"
    file.write_text(text)
    drain.write_text(script.replace("/etc/fleetopt", str(tmp_path)).replace("sleep 10", "sleep 0"))

    def run(*words: str) -> set[tuple[str, int]]:
        before = file.stat().st_ino
        subprocess.run(["sh", drain, *words], check=True, timeout=10)
        assert file.stat().st_ino != before
        places = [
            c["load_assignment"]["endpoints"][0]["lb_endpoints"] or []
            for c in yaml.safe_load(file.read_text())["resources"]
        ]
        return {tuple(e["endpoint"]["address"]["socket_address"].values()) for p in places for e in p}

    every = run("in", "127.0.0.1", "8001")
    assert file.read_text() == text and len(every) == plan_of("cut").replicas
    assert run("out", "127.0.0.1", "8001") == every - {("127.0.0.1", 8001)}
    # twice is once, and another host's replica at that port is another
    assert run("out", "127.0.0.1", "8001") == every - {("127.0.0.1", 8001)}
    assert run("out", "host2", "8001") == every - {("127.0.0.1", 8001), ("host2", 8001)}
    assert run("in", "127.0.0.1", "8001") == every - {("host2", 8001)}
    assert run("in", "host2", "8001") == every and file.read_text() == text
    # all at once: none undoes what another did
    together = [subprocess.Popen(["sh", drain, "out", host, str(port)]) for host, port in every]
    assert [p.wait(20) for p in together] == [0] * len(every)
    assert run("out", "127.0.0.1", "8001") == set()


def test_a_unit_leaves_the_router_before_it_ends() -> None:
    unit = fo.deploy(plan_of("one pool"), "systemd").files["fleetopt-all@.service"].splitlines()
    assert "ExecStop=-/bin/sh -c '${ROUTER} /etc/fleetopt/drain out ${ADDRESS} ${PORT}'" in unit
    answers, joins = (k for k, line in enumerate(unit) if line.startswith("ExecStartPost="))
    assert "/health" in unit[answers] and unit[joins].endswith("drain in ${ADDRESS} ${PORT}'")
    # the drain sleeps less than systemd waits for it
    _, _, script = envoys("systemd", "one pool")
    waits = int(next(x for x in unit if x.startswith("TimeoutStopSec=")).partition("=")[2])
    assert 5 < int(re.search(r"sleep (\d+)", script)[1]) < waits  # type: ignore[index]
