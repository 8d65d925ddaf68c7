"""What is rendered, with a real vLLM: does it start, keep its promises behind Envoy, and lose nothing where it ends?

    python tests/deploy/real_vllm.py FOLDER [SECONDS]

FOLDER holds ``venv/bin/vllm`` (vLLM for CPUs) and ``tiny``, a small model with its config.json. The command of a rendered compose
file is run on the loopback interface, behind its Envoy where ``FLEETOPT_ENVOY`` names the binary. Then the plan is accepted: its
traffic is sent and judged. Then the server is told to end, as systemd with ``KillMode=mixed`` and the kubelet do, while requests
are under way, and others come. Gives up a start after SECONDS (half an hour: on a crowded machine the server compiles for ten
minutes).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml

import planner as fo
from planner.calibrate.http import HttpError
from planner.calibrate.live import Client, Dialect, Server
from planner.calibrate.window import Stream

PORT = "18765"
ROUTER_PORT, STATUS_PORT, ADMIN_PORT = "18766", "18767", "18768"
MOST_S = 1800.0
RATE_PER_S, REQUESTS = 1.0, 60


def started(words: list[str], environment: dict[str, str], most_s: float) -> tuple[subprocess.Popen[bytes], float]:
    """A server that answers, and after how long [s]."""
    begun = time.monotonic()
    server = subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2).close()
            return server, time.monotonic() - begun
        except OSError:
            if server.poll() is not None or time.monotonic() - begun > most_s:
                os.killpg(server.pid, signal.SIGKILL)
                raise SystemExit(f"it did not start within {most_s:g} s") from None
            time.sleep(1.0)


def routed(document: Any, folder: Path) -> subprocess.Popen[bytes] | None:
    """Envoy with the configuration of the compose file before the server, on ports of ours."""
    binary = os.environ.get("FLEETOPT_ENVOY")
    if not binary:
        return None
    text = document["configs"]["envoy"]["content"].replace("$$", "$")
    for old, new in (("8080", ROUTER_PORT), ("8081", STATUS_PORT), ("9901", ADMIN_PORT), ("8000", PORT)):
        text = text.replace(f"port_value: {old}\n", f"port_value: {new}\n")
    name = next(n for n in document["services"] if not n.endswith("-router"))
    (folder / "envoy.yaml").write_text(text.replace(f"address: {name}\n", "address: 127.0.0.1\n"))
    command = [binary, "--config-path", str(folder / "envoy.yaml"), "--log-level", "error", "--use-dynamic-base-id"]
    return subprocess.Popen(command)


def ended(server: subprocess.Popen[bytes], place: Server) -> tuple[int, int, list[str]]:
    """Requests under way when the server is told to end that are answered whole, how many there were, and what others hear."""
    whole: list[bool] = []
    heard: list[str] = []

    def ask(number: int, tokens: int, late: bool) -> None:
        client = Client(place, place.endpoint, Dialect(), number)
        try:
            client.request(Stream(0, 50, tokens, 0.0), 120.0)
            (heard.append("served") if late else whole.append(True))
        except HttpError as error:
            if late:
                heard.append(str(error))
            else:
                whole.append(False)

    threads = [threading.Thread(target=ask, args=(k, 64, False)) for k in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    server.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    late = [threading.Thread(target=ask, args=(100 + k, 4, True)) for k in range(3)]
    for thread in late:
        thread.start()
    for thread in (*threads, *late):
        thread.join()
    return sum(whole), len(threads), heard


def main(folder: Path, most_s: float) -> int:
    model = folder / "tiny"
    plan = fo.plan(
        isl=100,
        osl=20,
        rate=RATE_PER_S,
        slo=5.0,
        quantile=0.8,
        model=str(model / "config.json"),
        gpu="l4",
        max_model_len=2048,
    )
    document = yaml.safe_load(fo.deploy(plan, "compose", model_id=str(model)).text)
    name, service = next(iter(document["services"].items()))
    words = [*service["entrypoint"], *service["command"]]
    words[words.index("--host") + 1], words[words.index("--port") + 1] = "127.0.0.1", PORT
    print(name, *words)
    environment = {
        **os.environ,
        "PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": "",
    }
    # a CPU build reads the flag of GPU memory as a share of the host's
    words[words.index("--gpu-memory-utilization") + 1] = "0.05"
    server, ready = started(words, environment, most_s)
    with tempfile.TemporaryDirectory() as scratch:
        envoy = routed(document, Path(scratch))
        try:
            print(f"ready after {ready:.0f} s (the health check allows {service['healthcheck']['start_period']})")
            url = f"http://127.0.0.1:{PORT if envoy is None else ROUTER_PORT}"
            found = fo.accept(plan, url, requests=REQUESTS, seconds="3min", served_model=str(model))
            print(*found.lines(), sep="\n")
            whole, asked, heard = ended(server, Server(url, str(model)))
            code = server.wait(60)
            print(
                f"told to end: {whole} of {asked} requests under way were answered whole; exit code {code}; others: {heard}"
            )
            return 0 if found.state == "kept" and whole == asked else 1
        finally:
            if envoy is not None:
                envoy.kill()
            with contextlib.suppress(ProcessLookupError):
                # the server's engines too
                os.killpg(server.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), float(sys.argv[2]) if len(sys.argv) > 2 else MOST_S))
