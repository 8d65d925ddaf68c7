"""Rules and dashboard of a plan as files: for a Prometheus server of one's own, or as objects of a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from planner.deploy.kubernetes import dump
from planner.engines import DEFAULT_ENGINE, engine
from planner.errors import InputError, did_you_mean
from planner.fleet.fleet import Fleet
from planner.monitor.rules import Watched, dashboard, rule_groups
from planner.shared.templates import templates

_filled: Callable[..., Any] = templates(__file__)

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

    known = {"prefix": prefix, "namespace": watched.namespace or None}
    scraped: dict[str, Any] = {"pod_monitor": None, "pod_monitoring": []}
    if (watched.deployed or SCRAPED[0]) in SCRAPED:
        path = engine(fleet.pools[0].option.profile.engine or DEFAULT_ENGINE).metrics_path
        picker = [{"port": "metrics", "interval": INTERVAL}] if watched.deployed == "llm-d" else []
        scraped = {name: _filled(name, **known, path=path, interval=INTERVAL, picker=picker) for name in scraped}
    heads = {
        f"{prefix}-prometheusrule.yaml": head,
        f"{prefix}-gke.yaml": ["Google's managed Prometheus, in place of the PodMonitor and PrometheusRule"],
    }
    found = _filled("kubernetes", **known, **scraped, groups=groups, board=board)
    return {name: dump(documents, heads.get(name, ())) for name, documents in found.items()}
