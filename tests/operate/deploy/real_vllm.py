"""From a plan to a fleet, with real servers: planned for this machine, started, accepted, watched, drained.

    FLEETOPT_ENVOY=.../envoy python tests/operate/deploy/real_vllm.py FOLDER [RATE]

FOLDER is what ``python -m tests.operate.deploy.cpu_server FOLDER`` makes: vLLM for CPUs and a small model. Run as root,
``prometheus`` on the path.

1. vLLM is calibrated for two minutes on a core of its own (``FOLDER/fleet.yaml``; one that is there is taken).
2. Two replicas are planned from that profile, one of them spare. The planned rate is RATE (4/s), or what the plan says that one
   replica carries where that is less; the limit of the TTFT is twice the P95 that the plan predicts.
3. The plan is written for systemd. What its units say is done without systemd: the start lines, each on a core of its own, Envoy
   with its files, and what is run before a replica is told to end. Client, Envoy and Prometheus share what the replicas leave.
4. The planned traffic is sent and judged. ``check`` reads what a Prometheus scraped meanwhile.
5. It is sent again, and a replica is drained meanwhile by its unit's ``ExecStop`` and SIGTERM: no request may fail.
6. The other one is told to end with requests under way, without a drain: ``--shutdown-timeout`` is to answer them whole.

Exit code 0: kept, quiet, nothing lost.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import yaml

import planner as fo
from planner.calibrate.closed_loop import Stream
from planner.calibrate.http import HttpError
from planner.calibrate.live import Client, Dialect, Server
from planner.operate.deploy.targets.systemd import FOLDER as INSTALLED
from tests.operate.deploy.cpu_server import BUDGET, CORES, PRIORITIES, QUIET, SLOTS, calibrate, put_first, serving

RATE_PER_S = 4.0
LENGTHS = (100, 20)
REQUESTS, SECONDS = 480, 120.0
CALIBRATION_S = 120.0
START_S = 400.0
UNIT = "fleetopt-all@.service"
ROUTER = "http://127.0.0.1:8080"


def planned(folder: Path, rate: float) -> fo.Plan:
    """Two replicas for this machine, by its own profile."""
    profile = folder / "fleet.yaml"
    config = str(folder / "tiny" / "config.json")
    if not profile.exists():
        with serving(folder, "nice") as url:
            calibrate(url, profile, CALIBRATION_S)
        os.sched_setaffinity(0, set(CORES))
        known = yaml.safe_load(profile.read_text()) | {"model": config, "gpu": "l4-24gb", "tp": 1}
        profile.write_text(yaml.safe_dump(known, sort_keys=False))

    def plan(limit_s: float, at: float) -> fo.Plan:
        """The same with another limit."""
        return fo.plan(
            isl=LENGTHS[0], osl=LENGTHS[1], rate=at, slo=limit_s, quantile=0.95, model=config, gpu="l4", profile=str(profile),
            max_num_seqs=SLOTS, token_budget=BUDGET, max_model_len=2048, redundancy=1, routing="p2c", burst="poisson", pools=1,
        )  # fmt: skip

    found = plan(30.0, rate)
    while found.replicas > 2:
        rate *= 0.9
        found = plan(30.0, rate)
    told = next(
        v["value_s"] for v in found.to_dict()["pools"][0]["latency"] if (v["metric"], v["quantile"]) == ("ttft_s", 0.95)
    )  # type: ignore[index,union-attr,call-overload]
    return plan(2.0 * float(told), rate)


def environment(text: str) -> dict[str, str]:
    """What an EnvironmentFile says."""
    return dict(line.split("=", 1) for line in text.splitlines())


def words(unit: str, key: str, said: dict[str, str]) -> list[str]:
    """A line of a unit as systemd reads it: its last one of that key, with the variables of its file."""
    line = [x.removeprefix(f"{key}=").removeprefix("-") for x in unit.splitlines() if x.startswith(f"{key}=")][-1]
    for name, value in said.items():
        line = line.replace(f"${{{name}}}", value)
    return shlex.split(line)


def answers(url: str, most_s: float, *processes: subprocess.Popen[bytes]) -> None:
    """Wait until it does."""
    begun = time.monotonic()
    while True:
        try:
            urllib.request.urlopen(url, timeout=2).close()
        except OSError:
            if any(p.poll() is not None for p in processes) or time.monotonic() - begun > most_s:
                raise SystemExit(f"{url} does not answer after {time.monotonic() - begun:.0f} s") from None
            time.sleep(0.5)
        else:
            return


class Running:
    """The fleet as its files start it, without systemd."""

    def __init__(self, folder: Path, files: dict[str, str], scratch: Path, stack: contextlib.ExitStack) -> None:
        self.unit = files[UNIT].replace(INSTALLED, str(scratch))
        self.said = [environment(files[f"host1/fleetopt-all-{k}.env"]) for k in (1, 2)]
        self.servers = []
        known = os.environ | QUIET | {"PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": ""}
        for number, said in enumerate(self.said):
            line = words(self.unit, "ExecStart", said)
            # a CPU build reads the flag of GPU memory as a share of the host's
            line[line.index("--gpu-memory-utilization") + 1] = "0.1"
            line = [*PRIORITIES["nice"], "taskset", "-c", str(CORES[number % len(CORES)]), *line]
            log = stack.enter_context((folder / f"fleet-{number + 1}.log").open("wb"))
            self.servers.append(self._start(line, stack, env=known | said, stdout=log, stderr=log, cwd=folder))
        for name in ("envoy.yaml", "replicas.yaml", "drain"):
            (scratch / name).write_text(files[f"host1/{name}"].replace(INSTALLED, str(scratch)))
        for said, server in zip(self.said, self.servers, strict=True):
            answers(f"http://127.0.0.1:{said['PORT']}/health", START_S, server)
        line = [
            *PRIORITIES["nice"],
            os.environ["FLEETOPT_ENVOY"],
            "--config-path",
            str(scratch / "envoy.yaml"),
            "--log-level",
            "error",
        ]
        answers(f"{ROUTER}/health", 30.0, self._start(line, stack))
        targets = [f"127.0.0.1:{said['PORT']}" for said in self.said]
        config = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [{"job_name": "vllm", "static_configs": [{"targets": targets}]}],
        }
        (scratch / "prometheus.yml").write_text(yaml.safe_dump(config))
        line = ["prometheus", f"--config.file={scratch / 'prometheus.yml'}", f"--storage.tsdb.path={scratch / 'data'}"]
        self._start([*line, "--web.listen-address=127.0.0.1:19091", "--log.level=error"], stack)
        self.prometheus = "http://127.0.0.1:19091"
        answers(f"{self.prometheus}/-/ready", 30.0)

    def _start(self, line: list[str], stack: contextlib.ExitStack, **more: object) -> subprocess.Popen[bytes]:
        """A process, and its end with all it started."""
        process = subprocess.Popen(line, start_new_session=True, **more)  # type: ignore[call-overload]

        def end() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

        stack.callback(end)
        return process  # type: ignore[no-any-return]

    def drain(self, number: int) -> None:
        """What systemd does to stop a replica."""
        begun = time.monotonic()
        subprocess.run(words(self.unit, "ExecStop", self.said[number]), check=True)
        taken = time.monotonic() - begun
        self.servers[number].send_signal(signal.SIGTERM)
        print(f"drained in {taken:.0f} s, then told to end: exit code {self.servers[number].wait(60)}", flush=True)


def ended(server: subprocess.Popen[bytes], place: Server) -> tuple[int, int]:
    """Requests under way that are answered whole where a server is told to end, and how many there were."""
    whole: list[bool] = []

    def ask(number: int) -> None:
        client = Client(place, place.endpoint, Dialect(), number)
        try:
            client.request(Stream(0, 50, 128, 0.0), 120.0)
        except HttpError as error:
            print(f"  {error}")
            whole.append(False)
        else:
            whole.append(True)

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    under_way = sum(t.is_alive() for t in threads)
    server.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    return sum(whole) - (len(threads) - under_way), under_way


def main(folder: Path, rate: float) -> int:
    plan = planned(folder, rate)
    print(plan, flush=True)
    model = str(folder / "tiny")
    files = dict(fo.deploy(plan, "systemd", model_id=model).files)
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        begun = time.monotonic()
        fleet = Running(folder, files, Path(scratch), stack)
        # as the replicas are: what is measured shares two cores with nothing else, whatever this machine does
        put_first(-20)
        stack.callback(put_first, 0)
        print(f"two replicas, Envoy and Prometheus serve after {time.monotonic() - begun:.0f} s", flush=True)
        accepted = fo.accept(plan, ROUTER, requests=REQUESTS, seconds=SECONDS, served_model=model)
        print(*accepted.lines(), sep="\n", flush=True)
        print(*(f"  {row}" for row in accepted.to_rows()), sep="\n")
        checked = fo.check(plan, fo.metrics(fleet.prometheus, window=SECONDS))
        print("check:", *checked.lines(), sep="\n", flush=True)
        thread = threading.Timer(15.0, fleet.drain, (0,))
        thread.start()
        drained = fo.accept(plan, ROUTER, requests=REQUESTS // 2, seconds=SECONDS / 2.0, served_model=model)
        thread.join()
        print("while a replica is drained:", *drained.lines(), sep="\n", flush=True)
        whole, asked = ended(fleet.servers[1], Server(f"http://127.0.0.1:{fleet.said[1]['PORT']}", model))
        print(f"told to end without a drain: {whole} of {asked} requests under way were answered whole")
        quiet = not checked.moved
        kept = accepted.state == "kept" and accepted.failed == 0
        print(f"load of this machine {os.getloadavg()[0]:.1f}; kept {kept}, quiet {quiet}, lost {drained.failed}")
        return 0 if kept and quiet and drained.failed == 0 and thread.finished.is_set() and whole == asked > 0 else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), float(sys.argv[2]) if len(sys.argv) > 2 else RATE_PER_S))
