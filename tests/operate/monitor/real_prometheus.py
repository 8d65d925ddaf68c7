"""A real Prometheus server scrapes a simulated fleet, and `check` reads it.

``python tests/operate/monitor/real_prometheus.py [SECONDS]``

Needs ``prometheus`` and ``promtool`` (Debian package prometheus). Everything listens on the loopback interface and ends by itself.
promtool reads the rules of four plans, as files and as the objects of a cluster, and evaluates those of one over series in which
what an alert is for happens, or nothing does. A server that holds the series of two fleets is asked what the scaler of each asks.
Then a quiet fleet and one without a replica are scraped and checked, and the server loads the rules.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import planner as fo
from tests.operate.autoscale.test_objects import MODEL, TOGETHER, documents, scaled
from tests.operate.monitor.exporter import exported
from tests.operate.monitor.fluid import STEP_S, Course, scraped
from tests.operate.monitor.test_rules import SCALER, TTFT, course, later, plan, rules


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


def promtool(*words: object) -> bool:
    """Whether it finds nothing wrong; what it says otherwise."""
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        print((done.stdout + done.stderr).strip())
    return done.returncode == 0


def read(folder: Path) -> bool:
    """Rules of plans of several kinds, by promtool: as files, and out of the objects of a cluster."""
    of = {"workload": "azure", "rate": 60, "slo": 0.5, "method": "occupancy"}
    two = {"shape": "disaggregated", "burst": "poisson", "routing": "random", "method": "mixed", "confidence": 0.5}
    policy = folder / "policy.yaml"
    policy.write_text(yaml.safe_dump(SCALER))
    kinds: dict[str, tuple[fo.Plan, dict[str, Any]]] = {
        "one pool": (plan(), {}),
        "cut": (fo.plan(**of, pools=2), {}),
        "apart": (fo.plan(workload="azure", rate=20, slo=0.5, tpot=0.05, engine="sglang", **two), {}),
        "scaled": (plan(), {"policy": [policy]}),
    }
    good = True
    for kind, (planned, options) in kinds.items():
        for to in ("files", "kubernetes"):
            files = fo.monitoring_rules(planned, to=to, **options)
            found = [d for name, text in files.items() if name.endswith(".yaml") for d in yaml.safe_load_all(text)]
            held = [h for d in found if "groups" in (h := d.get("spec", d))]
            good &= len(held) == (1 if to == "files" else 2)  # Google's own object beside the operator's
            for groups in held:
                (folder / "read.yaml").write_text(yaml.safe_dump(groups))
                good &= promtool("check", "rules", "--lint-fatal", folder / "read.yaml")
                print(f"{kind}, {to}: {sum(len(g['rules']) for g in groups['groups'])} rules read", flush=True)
    return good


def selector(name: str, labels: Mapping[str, str]) -> str:
    """A series as it is written."""
    return name + "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}"


def evaluated(folder: Path) -> bool:
    """Rules of a plan by promtool: quiet where all is as planned, and each drift's own alerts, no other, with their words."""
    alerts = [r for g in rules() for r in g["rules"] if "alert" in r]
    burning = course(late={TTFT: (0.5, later(2.0, 1.0, 0.0, 0.5))})
    few, double = plan().pools[0].replicas - 1, 2.0 * float(str(course().output))
    # what happens, when [s], and which alerts speak: the quick one of a promise after 19.3 minutes
    cases: list[tuple[str, float, Course, dict[str, str]]] = [
        ("all as planned", 7200.0, course(late={TTFT: (0.5, 0.009)}), {}),
        ("not yet burning", 3600.0 + 1080.0, burning, {}),
        ("burning", 3600.0 + 1260.0, burning, {"alert": "FleetoptPromiseBurning", "severity": "critical", "promise": "P99 TTFT"}),
        ("busy", 3600.0, course(rate=120.0), {"alert": "FleetoptTrafficBeyondPlan"}),
        ("a replica lost", 3600.0, course(replicas=few), {"alert": "FleetoptReplicaMissing"}),
        ("longer", 7200.0, course(output=double), {"alert": "FleetoptRequestsLonger", "quantity": "output_tokens"}),
    ]  # fmt: skip
    tests = []
    for what, at, happens, spoken in cases:
        series = [
            {"series": selector(name, s.labels), "values": " ".join(repr(float(v)) for v in s.values)}
            for name, of in scraped(2.0, happens, model=MODEL).items()
            for s in of
        ]
        wanted: dict[str, list[dict[str, Any]]] = {a["alert"]: [] for a in alerts}
        for a in alerts if spoken else ():
            if spoken.items() <= (a["labels"] | {"alert": a["alert"]}).items():
                limit = {"limit": "0.5"} if "promise" in spoken else {}
                told = {
                    "exp_labels": {**a["labels"], "namespace": "chat", **limit},
                    "exp_annotations": a["annotations"],
                }
                wanted[a["alert"]].append(told)
        asked = [{"eval_time": f"{at:.0f}s", "alertname": name, "exp_alerts": w} for name, w in wanted.items()]
        tests.append({"name": what, "interval": f"{STEP_S:.0f}s", "input_series": series, "alert_rule_test": asked})
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": rules()}))
    of_all = {"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": tests}
    (folder / "tests.yaml").write_text(yaml.safe_dump(of_all))
    expected = sum(len(a["exp_alerts"]) for t in tests for a in t["alert_rule_test"])
    print(f"{len(alerts)} alerts, each in {len(cases)} cases, {expected} expected to speak", flush=True)
    return promtool("test", "rules", folder / "tests.yaml")


def apart(folder: Path) -> bool:
    """What two fleets' scalers ask a server that holds the series of both, and of others beside them."""
    until = 60.0 * (time.time() // 60.0) - 600.0
    held: dict[str, list[str]] = {}
    for rate, namespace, owner, model in TOGETHER:
        found = scraped(1.0, Course(rate, 4, {}, running=rate / 4.0), owner, namespace, model, latencies=False)
        for name, series in found.items():
            rows = held.setdefault(name, [f"# TYPE {name} unknown"])
            for s in series:
                at = (f"{float(v)!r} {until - 3600.0 + float(t):.3f}" for t, v in zip(s.times, s.values, strict=True))
                rows += [f"{selector(name, s.labels)} {one}" for one in at]
    (folder / "series.txt").write_text("\n".join([*(row for rows in held.values() for row in rows), "# EOF", ""]))
    good = promtool("tsdb", "create-blocks-from", "openmetrics", folder / "series.txt", folder / "two")
    (folder / "none.yml").write_text("{}\n")
    (pool,) = scaled().pools
    with server(folder / "none.yml", folder / "two") as url:
        for namespace, rate in (("chat", 40.0), ("search", 70.0)):
            (document,) = documents(scaled(), "keda", "k8s", url, namespace)
            asked = {t["name"]: t["metadata"]["query"] for t in document["spec"]["triggers"]}
            for name, wanted in (("requests", rate + pool.policy.offset_per_s), ("running", rate)):
                query = urllib.parse.urlencode({"query": asked[name], "time": until})
                with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=10) as answer:
                    values = [float(one["value"][1]) for one in json.load(answer)["data"]["result"]]
                print(f"{namespace}, {name}: {values}, wanted {wanted:g}", flush=True)
                good &= len(values) == 1 and abs(values[0] / wanted - 1.0) < 1e-3
    return good


@contextlib.contextmanager
def server(config: Path, data: Path) -> Iterator[str]:
    """A Prometheus server that answers."""
    url = "http://127.0.0.1:19090"
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        "--web.listen-address=127.0.0.1:19090",
        "--log.level=error",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/-/ready", timeout=2).close()
                break
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def main(seconds: float) -> int:
    of = plan()
    folder = Path(tempfile.mkdtemp())
    failed = False
    try:
        failed |= not (read(folder) & evaluated(folder) & apart(folder))
        for name, text in fo.monitoring_rules(of).items():
            (folder / name).write_text(text)
        for title, drift, wanted in (("quiet", {}, []), ("a replica lost", {"lost": 1}, ["replicas"])):
            servers = exporters(of, seconds, **drift)
            targets = [f"127.0.0.1:{s.server_port}" for s in servers]
            config = {
                "global": {"scrape_interval": "1s", "evaluation_interval": "5s"},
                "rule_files": [str(folder / "fleetopt-rules.yaml")],
                "scrape_configs": [{"job_name": "vllm", "static_configs": [{"targets": targets}]}],
            }
            (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
            try:
                with server(folder / "prometheus.yml", folder / title.replace(" ", "-")) as url:
                    time.sleep(seconds + 5.0)
                    series = fo.metrics(url, window=max(60.0, seconds - 5.0))
                    found = fo.check(of, series)
                    moved = [x.component for _, x in found.moved]
                    print(f"{title}: {found!r}, {sum(map(len, series.values()))} series")
                    for line in found.lines():
                        print(f"  {line}")
                    with urllib.request.urlopen(f"{url}/api/v1/rules", timeout=10) as answer:
                        groups = json.load(answer)["data"]["groups"]
                    unwell = [r["name"] for g in groups for r in g["rules"] if r["health"] == "err"]
                    print(f"  {sum(len(g['rules']) for g in groups)} rules loaded, {len(unwell)} fail")
                    failed |= moved != wanted or bool(unwell)
            finally:
                for page in servers:
                    page.shutdown()
                    page.server_close()
    finally:
        shutil.rmtree(folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 120.0))
