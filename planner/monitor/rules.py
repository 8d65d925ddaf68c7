"""A plan as Prometheus rules and a Grafana dashboard: what it predicts, and from where on its promises are in danger."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from planner.deploy.kubernetes import dump
from planner.deploy.serving import object_name
from planner.fleet.fleet import Fleet
from planner.fleet.pool import Pool
from planner.monitor.check import BLIND_IMBALANCE, FEW_IN_FLIGHT
from planner.monitor.dialects import Dialect, dialect_of_engine
from planner.promise import Promise

SHORT, LONG = "5m", "30m"
"""Windows of rates and latencies, and of mean lengths."""

LONGER = 1.1
"""Mean lengths this many times the planned ones are told of [1]."""


def rules_of(fleet: Fleet, prefix: str = "fleetopt", selector: str = "") -> dict[str, str]:
    """Recording and alert rules, and a dashboard of them.

    Parameters
    ----------
    fleet
        The plan's fleet.
    prefix
        Objects of the fleet are called ``prefix-pool``.
    selector
        Label matchers of its series, without braces.

    Returns
    -------
    dict of str to str
        File -> text.
    """
    dialect = dialect_of_engine(fleet.pools[0].option.profile.engine)
    # the rate up to which the promises hold, at the planned mix
    most = fleet.headroom()
    groups: list[dict[str, Any]] = []
    panels: list[dict[str, Any]] = []
    for k, pool in enumerate(fleet.pools):
        names = _Names(dialect, pool, prefix, selector, alone=len(fleet.pools) == 1)
        rules = [*_recorded(fleet, k, names), *_alerts(fleet, k, names, most)]
        groups.append({"name": f"{prefix}-{pool.name.replace(' ', '-')}", "interval": "30s", "rules": rules})
        panels += _panels(fleet, k, most)
    head = ["Written by `fleetopt check --emit-rules` from a plan; names of metrics are those of " + dialect.name]
    seen = {metric for k in range(len(fleet.pools)) for metric in fleet.seen_in(k)}
    if unseen := [p.label for p in fleet.promises.parts if p.metric not in seen]:
        head.append(f"{', '.join(unseen)}: no engine of this fleet sees a request from first to last, the gateway does")
    return {
        f"{prefix}-rules.yaml": dump([{"groups": groups}], head),
        f"{prefix}-dashboard.json": json.dumps(_dashboard(prefix, panels), indent=1),
    }


class _Names:
    """Expressions over the series of one pool."""

    def __init__(self, dialect: Dialect, pool: Pool, prefix: str, selector: str, alone: bool) -> None:
        self.dialect = dialect
        mine = [] if alone else [f'pod=~"{object_name(pool.name, prefix)}-.*"']
        matchers = ",".join([*mine, *([selector] if selector else [])])
        self.braces = f"{{{matchers}}}"

    def gauge(self, quantity: str) -> str:
        return f"{self.dialect.gauges[quantity][0]}{self.braces}"

    def rate(self, quantity: str, window: str = SHORT) -> str:
        return f"sum(rate({self.dialect.counters[quantity][0]}{self.braces}[{window}]))"

    def quantile(self, quantity: str, level: float) -> str:
        bucket = f"{self.dialect.histograms[quantity][0]}_bucket{self.braces}"
        return f"histogram_quantile({level:.10g}, sum by (le) (rate({bucket}[{SHORT}])))"

    def mean(self, quantity: str) -> str:
        name = self.dialect.histograms[quantity][0]
        return f"sum(rate({name}_sum{self.braces}[{LONG}])) / sum(rate({name}_count{self.braces}[{LONG}]))"


def _seen(fleet: Fleet, k: int) -> list[Promise]:
    """Promises that the engines of the k-th pool measure."""
    return [p for p in fleet.promises.parts if p.metric in fleet.seen_in(k)]


def _lengths(fleet: Fleet, k: int) -> list[tuple[float, str]]:
    """Mean lengths that the k-th pool works on [tokens]."""
    both = zip(fleet.work_tokens(k), ("input_tokens", "output_tokens"), strict=True)
    return [(mean, quantity) for mean, quantity in both if mean > 0.0]


def _recorded(fleet: Fleet, k: int, names: _Names) -> Iterator[dict[str, Any]]:
    """Recording rules of a pool: its rate, replicas, load and quantiles."""
    pool = fleet.pools[k]
    own = {"pool": pool.name}

    def rule(name: str, expression: str, **labels: str) -> dict[str, Any]:
        return {"record": f"fleetopt:{name}", "expr": expression, "labels": {**own, **labels}}

    yield rule("requests:rate5m", names.rate("requests"))
    yield rule("replicas:count", f"count({names.gauge('running')})")
    yield rule("running:mean", f"avg({names.gauge('running')})")
    yield rule("waiting:mean", f"avg({names.gauge('waiting')})")
    yield rule("kv_usage:max", f"max({names.gauge('kv_usage')})")
    running = names.gauge("running")
    yield rule("imbalance:ratio", f"stdvar({running}) / clamp_min(avg({running}), 0.1)")
    for _, quantity in _lengths(fleet, k):
        yield rule(f"{quantity}:mean30m", names.mean(quantity))
    for promise in _seen(fleet, k):
        metric = promise.metric.removesuffix("_s")
        expression = names.quantile(promise.metric, promise.quantile)
        yield rule(f"{metric}_seconds:quantile5m", expression, quantile=f"{promise.quantile:.10g}")


def _alerts(fleet: Fleet, k: int, names: _Names, most: float) -> Iterator[dict[str, Any]]:
    """Alerts of a pool: broken promises, traffic and load beyond the plan, missing replicas, longer requests, blind routing."""
    pool = fleet.pools[k]
    mine = f'{{pool="{pool.name}"}}'

    def alert(name: str, expression: str, wait: str, severity: str, summary: str, **of: str) -> dict[str, Any]:
        labels = {"severity": severity, "pool": pool.name, **of}
        return {"alert": name, "expr": expression, "for": wait, "labels": labels, "annotations": {"summary": summary}}

    for promise in _seen(fleet, k):
        metric = promise.metric.removesuffix("_s")
        series = f'fleetopt:{metric}_seconds:quantile5m{{pool="{pool.name}",quantile="{promise.quantile:.10g}"}}'
        yield alert(
            "FleetoptPromiseBroken",
            f"{series} > {promise.limit_s:.6g}",
            "5m",
            "critical",
            f"{promise.label} of pool {pool.name} is beyond {promise.limit_s:g} s; fleetopt check says why",
            promise=promise.label,
        )
    rate = most * pool.arrival_rate_per_s
    yield alert(
        "FleetoptTrafficBeyondPlan",
        f"fleetopt:requests:rate5m{mine} > {rate:.6g}",
        "10m",
        "warning",
        f"pool {pool.name} gets more than the {rate:.4g} requests/s up to which its promises hold",
    )
    busy = _running_at(fleet, pool, most)
    if math.isfinite(busy):
        yield alert(
            "FleetoptReplicasBusierThanPlanned",
            f"fleetopt:running:mean{mine} > {busy:.6g}",
            "10m",
            "warning",
            f"replicas of pool {pool.name} run more than the {busy:.4g} requests at which its promises break",
        )
    yield alert(
        "FleetoptReplicaMissing",
        f"fleetopt:replicas:count{mine} < {pool.bought}",
        "10m",
        "warning",
        f"pool {pool.name} has fewer than its {pool.bought} replicas",
    )
    for mean, quantity in _lengths(fleet, k):
        yield alert(
            "FleetoptRequestsLonger",
            f"fleetopt:{quantity}:mean30m{mine} > {LONGER * mean:.6g}",
            "30m",
            "warning",
            f"mean {quantity.replace('_', ' ')} of pool {pool.name} are more than 10% above the planned {mean:.4g}",
            quantity=quantity,
        )
    if fleet.question.routing.least and pool.bought > 1 and _running_at(fleet, pool, 1.0) > FEW_IN_FLIGHT:
        yield alert(
            "FleetoptRoutingBlind",
            f"avg_over_time(fleetopt:imbalance:ratio{mine}[{LONG}]) > {BLIND_IMBALANCE:g}",
            "15m",
            "warning",
            f"replicas of pool {pool.name} differ as if the gateway did not look at them",
        )


def _running_at(fleet: Fleet, pool: Pool, factor: float) -> float:
    """Mean requests a replica runs at that many times the planned rate."""
    rate, replicas = factor * pool.arrival_rate_per_s, pool.size.replicas
    if rate >= replicas * pool.model.capacity_per_s:
        return math.inf
    return pool.model.predict(rate, replicas, fleet.levels).mean_running


def _panels(fleet: Fleet, k: int, most: float) -> Iterator[dict[str, Any]]:
    """Panels of a pool, each with the limit that the plan sets."""
    pool = fleet.pools[k]
    mine = f'{{pool="{pool.name}"}}'
    rate = most * pool.arrival_rate_per_s
    yield _panel(f"{pool.name}: requests/s", f"fleetopt:requests:rate5m{mine}", "reqps", rate)
    for promise in _seen(fleet, k):
        metric = promise.metric.removesuffix("_s")
        series = f'fleetopt:{metric}_seconds:quantile5m{{pool="{pool.name}",quantile="{promise.quantile:.10g}"}}'
        yield _panel(f"{pool.name}: {promise.label}", series, "s", promise.limit_s)
    busy = _running_at(fleet, pool, most)
    yield _panel(f"{pool.name}: running per replica", f"fleetopt:running:mean{mine}", "short", busy)
    yield _panel(f"{pool.name}: waiting per replica", f"fleetopt:waiting:mean{mine}", "short", None)
    yield _panel(f"{pool.name}: KV cache in use", f"fleetopt:kv_usage:max{mine}", "percentunit", 0.95)
    yield _panel(f"{pool.name}: replicas", f"fleetopt:replicas:count{mine}", "short", None)
    for mean, quantity in _lengths(fleet, k):
        title = f"{pool.name}: mean {quantity.replace('_', ' ')}"
        yield _panel(title, f"fleetopt:{quantity}:mean30m{mine}", "short", LONGER * mean)


def _panel(title: str, expression: str, unit: str, limit: float | None) -> dict[str, Any]:
    steps: list[Mapping[str, Any]] = [{"color": "green", "value": None}]
    if limit is not None and math.isfinite(limit):
        steps.append({"color": "red", "value": round(limit, 6)})
    custom = {"thresholdsStyle": {"mode": "line"}, "fillOpacity": 5}
    return {
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "targets": [{"refId": "A", "expr": expression, "legendFormat": title}],
        "fieldConfig": {
            "defaults": {"unit": unit, "min": 0, "custom": custom, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
    }


def _dashboard(prefix: str, panels: list[dict[str, Any]]) -> dict[str, Any]:
    for number, panel in enumerate(panels):
        panel["id"] = number + 1
        panel["gridPos"] = {"h": 8, "w": 8, "x": 8 * (number % 3), "y": 8 * (number // 3)}
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "title": f"{prefix}: the plan and what happens",
        "uid": f"{prefix}-plan",
        "schemaVersion": 39,
        "timezone": "browser",
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [source]},
        "panels": panels,
    }
