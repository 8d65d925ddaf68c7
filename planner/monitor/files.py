"""Rules and dashboard of a plan as files: for a Prometheus server of one's own, or as objects of a cluster."""

from __future__ import annotations

import json
from typing import Any

from planner.deploy.kubernetes import dump
from planner.engines import DEFAULT_ENGINE, engine
from planner.errors import InputError, did_you_mean
from planner.fleet.fleet import Fleet
from planner.monitor.rules import Watched, dashboard, rule_groups

KINDS = ("files", "kubernetes")
"""What rules are written as."""

SCRAPED = ("k8s", "llm-d")
"""Targets whose pods nobody else scrapes: KServe and Dynamo bring monitors of their own."""

INTERVAL = "15s"
"""Between two looks at a pod: a scaler's rates need several in their window."""


def monitoring_files(fleet: Fleet, watched: Watched, to: str = "files") -> dict[str, str]:
    """File -> text.

    Parameters
    ----------
    fleet
        The plan's fleet.
    watched
        Whose series they are about.
    to
        A name of :data:`KINDS`.

    Raises
    ------
    InputError
        Another kind.
    """
    if to not in KINDS:
        raise InputError(f"--to: {to!r} is none of {', '.join(KINDS)}{did_you_mean(to, KINDS)}")
    groups, panels, head = rule_groups(fleet, watched)
    head = ["Written by `fleetopt check --emit-rules` from a plan; " + head[0], *head[1:]]
    prefix, board = watched.prefix, json.dumps(dashboard(watched.prefix, panels), indent=1)
    if to == "files":
        return {f"{prefix}-rules.yaml": dump([{"groups": groups}], head), f"{prefix}-dashboard.json": board}

    def named(api: str, kind: str, name: str, spec: dict[str, Any], **labels: str) -> dict[str, Any]:
        own = {"app.kubernetes.io/part-of": prefix, "app.kubernetes.io/managed-by": "fleetopt", **labels}
        metadata = {"name": name, **({"namespace": watched.namespace} if watched.namespace else {}), "labels": own}
        return {"apiVersion": api, "kind": kind, "metadata": metadata, **spec}

    rules = {"spec": {"groups": groups}}
    data = {"data": {f"{prefix}.json": board}}
    found = {
        f"{prefix}-prometheusrule.yaml": dump(
            [named("monitoring.coreos.com/v1", "PrometheusRule", f"{prefix}-plan", rules)], head
        ),
        # the sidecar of Grafana's chart takes every such map
        f"{prefix}-dashboard.yaml": dump(
            [named("v1", "ConfigMap", f"{prefix}-dashboard", data, grafana_dashboard="1")]
        ),
    }
    gke = [named("monitoring.googleapis.com/v1", "Rules", f"{prefix}-plan", rules)]
    if (watched.deployed or SCRAPED[0]) in SCRAPED:
        path = engine(fleet.pools[0].option.profile.engine or DEFAULT_ENGINE).metrics_path
        pods = {"selector": {"matchLabels": {"app.kubernetes.io/part-of": prefix}}}
        look = {"port": "http", "path": path, "interval": INTERVAL}
        picker = [{"port": "metrics", "interval": INTERVAL}] if watched.deployed == "llm-d" else []
        ours = {"spec": {**pods, "podMetricsEndpoints": [look, *picker]}}
        google = {"spec": {**pods, "endpoints": [look, *picker]}}
        found[f"{prefix}-podmonitor.yaml"] = dump([named("monitoring.coreos.com/v1", "PodMonitor", prefix, ours)])
        gke.insert(0, named("monitoring.googleapis.com/v1", "PodMonitoring", prefix, google))
    found[f"{prefix}-gke.yaml"] = dump(
        gke, ["Google's managed Prometheus, in place of the PodMonitor and PrometheusRule"]
    )
    return found
