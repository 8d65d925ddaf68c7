"""A real Prometheus server scrapes a simulated fleet, and `check` reads it: ``python benchmarks/check_prometheus.py [SECONDS]``

Needs ``prometheus`` and ``promtool`` (Debian package prometheus). Everything listens on the loopback interface and ends by itself.
A quiet fleet and one without a replica are checked; promtool reads the rules of the plan, and the server loads them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import planner as fo
from tests.monitor.exporter import exported


def exporters(plan: fo.Plan, seconds: float, **drift: object) -> list[ThreadingHTTPServer]:
    """One server per replica that shows the simulated counters as time goes by."""
    series = exported(plan, 5, round(1.5 * seconds * plan.arrival_rate_per_s), points=4000, **drift)
    begun = time.monotonic()
    servers = []
    for who in sorted({s.labels["instance"] for of in series.values() for s in of}):
        mine = [(name, s) for name, of in series.items() for s in of if s.labels["instance"] == who]

        class Page(BaseHTTPRequestHandler):
            shown = mine

            def do_GET(self) -> None:
                lines = []
                for name, s in self.shown:
                    at = s.times[0] + time.monotonic() - begun
                    value = s.values[max(0, int(np.searchsorted(s.times, at, side="right")) - 1)]
                    labels = ",".join(f'{k}="{v}"' for k, v in s.labels.items() if k != "instance")
                    lines.append(f"{name}{{{labels}}} {float(value)!r}")
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(("\n".join(lines) + "\n").encode())

            def log_message(self, *_: object) -> None:
                """Silence."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
    return servers


def main(seconds: float) -> int:
    plan = fo.plan(workload="azure", rate=60, slo=0.5, tpot=0.05, pools=1, burst="poisson", routing="p2c")
    folder = Path(tempfile.mkdtemp())
    failed = False
    try:
        for name, text in fo.monitoring_rules(plan).items():
            (folder / name).write_text(text)
        done = subprocess.run(
            ["promtool", "check", "rules", str(folder / "fleetopt-rules.yaml")], capture_output=True, text=True
        )
        print((done.stdout + done.stderr).strip())
        failed |= done.returncode != 0
        for title, drift, wanted in (("quiet", {}, []), ("a replica lost", {"lost": 1}, ["replicas"])):
            servers = exporters(plan, seconds, **drift)
            targets = [f"127.0.0.1:{s.server_port}" for s in servers]
            config = {
                "global": {"scrape_interval": "1s", "evaluation_interval": "5s"},
                "rule_files": [str(folder / "fleetopt-rules.yaml")],
                "scrape_configs": [{"job_name": "vllm", "static_configs": [{"targets": targets}]}],
            }
            (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
            port = 19_090
            command = [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / title.replace(' ', '-')}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=error",
            ]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                time.sleep(seconds + 5.0)
                series = fo.metrics(f"http://127.0.0.1:{port}", window=seconds - 5.0)
                found = fo.check(plan, series)
                moved = [x.component for _, x in found.moved]
                print(f"{title}: {found!r}, {sum(map(len, series.values()))} series")
                for line in found.lines():
                    print(f"  {line}")
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/rules", timeout=10) as answer:
                    groups = json.load(answer)["data"]["groups"]
                unwell = [r["name"] for g in groups for r in g["rules"] if r["health"] == "err"]
                print(f"  {sum(len(g['rules']) for g in groups)} rules loaded, {len(unwell)} fail")
                failed |= moved != wanted or bool(unwell)
            finally:
                process.terminate()
                process.wait(20)
                for server in servers:
                    server.shutdown()
                    server.server_close()
    finally:
        shutil.rmtree(folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 120.0))
