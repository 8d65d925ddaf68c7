"""A plan as Prometheus rules and a Grafana dashboard: what it predicts, and from where on its promises are in danger."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.deploy.startup import estimated_startup
from planner.fleet.fleet import Fleet
from planner.fleet.pool import Pool
from planner.monitor.check import BLIND_IMBALANCE, FEW_IN_FLIGHT
from planner.monitor.dialects import dialect_of_engine
from planner.monitor.names import Names, pods_of
from planner.monitor.policy import Policy
from planner.promise import MEAN, Promise

SHORT, LONG = "5m", "30m"
"""Windows of rates and latencies, and of mean lengths."""

LONGER = 1.1
"""Mean lengths this many times the planned ones are told of [1]."""

BURNS = (("1h", "5m", 14.4, "2m", "critical"), ("6h", "30m", 6.0, "15m", "warning"))
"""A promise is burning where over the long and the short window this many times the allowed share of requests are late: 2% of
what a month allows in an hour, 5% in six hours (The Site Reliability Workbook, chapter 5, table 5-8)."""

MOST_LATE = 0.5
"""Where so many times the allowed share would be more than this part of all requests, that part is enough [1]."""

FEWEST = 0.2
"""Requests/s below which a window of five minutes says nothing of a quantile: 60 of them [1/s]."""

SETTLED_S = 300.0
"""What a scaler may take beyond the start-up of a replica until there is what it wants [s]."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Whose series the rules are about.

    Parameters
    ----------
    prefix
        Objects of the fleet are called ``prefix-pool``.
    selector
        Further label matchers, without braces.
    deployed
        The target of ``fleetopt deploy`` that wrote it: pods are told apart by their names there; empty = by the name of the pool's
        object, where there are several.
    model
        Name under which the model is served; empty = not asked for.
    namespace
        Of its pods; ``None`` = not asked for.
    scalers
        Pool -> the rule that scales it.
    """

    prefix: str = "fleetopt"
    selector: str = ""
    deployed: str = ""
    model: str = ""
    namespace: str | None = None
    scalers: Mapping[str, Policy] = field(default_factory=dict)


def rule_groups(fleet: Fleet, watched: Watched) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """Groups of recording and alert rules, panels of a dashboard, and what no rule can see.

    Parameters
    ----------
    fleet
        The plan's fleet.
    watched
        Whose series they are about.
    """
    # the rate up to which the promises hold, at the planned mix
    most = fleet.headroom()
    groups: list[dict[str, Any]] = []
    panels: list[dict[str, Any]] = []
    for k, pool in enumerate(fleet.pools):
        told = _Told(fleet, k, watched, most)
        rules = [*told.recorded(), *told.alerts()]
        groups.append({"name": f"{watched.prefix}-{pool.name.replace(' ', '-')}", "interval": "30s", "rules": rules})
        panels += told.panels()
    seen = {metric for k in range(len(fleet.pools)) for metric in fleet.seen_in(k)}
    unseen = [p.label for p in fleet.promises.parts if p.metric not in seen]
    head = ["names of metrics are those of " + dialect_of_engine(fleet.pools[0].option.profile.engine).name]
    if unseen:
        head.append(f"{', '.join(unseen)}: no engine of this fleet sees a request from first to last, the gateway does")
    return groups, panels, head


class _Told:
    """Rules and panels of one pool."""

    def __init__(self, fleet: Fleet, k: int, watched: Watched, most: float) -> None:
        self.fleet, self.k, self.pool, self.most = fleet, k, fleet.pools[k], most
        self.scaler = watched.scalers.get(self.pool.name)
        self.own = {"fleet": watched.prefix, "pool": self.pool.name}
        dialect = dialect_of_engine(fleet.pools[0].option.profile.engine)
        role = self.pool.name if fleet.linked else "both"
        nodes = self.pool.option.gpu.nodes(self.pool.option.parallel.gpus)
        matchers = {"namespace": f'="{watched.namespace}"'} if watched.namespace else {}
        if watched.model:
            matchers[dialect.model_label] = f'="{watched.model}"'
        if watched.deployed or len(fleet.pools) > 1:
            pods = pods_of(watched.deployed or "k8s", watched.prefix, self.pool.name, role, nodes)
            matchers["pod"] = f'=~"{pods}"'
        self.names = Names(dialect, matchers, watched.selector, by="namespace")
        self.promises = [p for p in fleet.promises.parts if p.metric in fleet.seen_in(k)]

    def series(self, name: str, **labels: str) -> str:
        """A recorded series of the pool."""
        inside = ",".join(f'{k}="{v}"' for k, v in {**self.own, **labels}.items())
        return f"fleetopt:{name}{{{inside}}}"

    def lengths(self) -> list[tuple[float, str]]:
        """Mean lengths that the pool works on [tokens]."""
        both = zip(self.fleet.work_tokens(self.k), ("input_tokens", "output_tokens"), strict=True)
        return [(mean, quantity) for mean, quantity in both if mean > 0.0]

    def wanted(self) -> str | None:
        """Replicas that the pool's scaler wants for the traffic there is; ``None`` without one that engines can tell of."""
        scaler, names = self.scaler, self.names
        if scaler is None:
            return None
        window = f"{scaler.rate_window_s:.0f}s"
        in_flight = " + ".join(f"avg_over_time({names.gauge(q)}[{window}])" for q in ("running", "waiting"))
        plus = f" + {scaler.offset_per_s:.6g}" if scaler.offset_per_s else ""
        known = {
            "requests": names.rate("requests", window) + plus,
            "running": names.over("sum", f"avg_over_time({names.gauge('running')}[{window}])"),
            "in_flight": names.over("sum", in_flight),
        }
        watched = next((name for name in known if name in scaler.targets), None)
        if watched is None:
            return None
        asked = f"ceil(({known[watched]}) / {scaler.targets[watched]:.10g})"
        return f"clamp_max(clamp_min({asked}, {scaler.least}), {scaler.most})"

    def recorded(self) -> Iterator[dict[str, Any]]:
        """Recording rules: its rate, replicas, load, quantiles, and the share of requests that are late."""
        names = self.names

        def rule(name: str, expression: str, **labels: str) -> dict[str, Any]:
            return {"record": f"fleetopt:{name}", "expr": expression, "labels": {**self.own, **labels}}

        running = names.gauge("running")
        yield rule("requests:rate5m", names.rate("requests", SHORT))
        yield rule("replicas:count", names.over("count", running))
        if (wanted := self.wanted()) is not None:
            yield rule("replicas:wanted", wanted)
        yield rule("running:mean", names.over("avg", running))
        yield rule("waiting:mean", names.over("avg", names.gauge("waiting")))
        yield rule("kv_usage:max", names.over("max", names.gauge("kv_usage")))
        yield rule("imbalance:ratio", f"{names.over('stdvar', running)} / clamp_min({names.over('avg', running)}, 0.1)")
        for _, quantity in self.lengths():
            yield rule(f"{quantity}:mean30m", names.mean(quantity, LONG))
        for promise in self.promises:
            metric, level = promise.metric.removesuffix("_s"), f"{promise.quantile:.10g}"
            expression = names.quantile(promise.metric, promise.quantile, SHORT)
            yield rule(f"{metric}_seconds:quantile5m", expression, quantile=level)
            for window in sorted({w for burn in BURNS for w in burn[:2]}) if promise.quantile != MEAN else ():
                late = names.late(promise.metric, promise.limit_s, window)
                if late is not None:
                    yield rule(f"{metric}_late:ratio{window}", late, limit=f"{promise.limit_s:.10g}")

    def alerts(self) -> Iterator[dict[str, Any]]:
        """Alerts: burning promises, traffic and load beyond the plan, missing replicas, longer requests, blind routing."""
        pool = self.pool

        def alert(name: str, expression: str, wait: str, severity: str, summary: str, **of: str) -> dict[str, Any]:
            labels = {"severity": severity, **self.own, **of}
            return {
                "alert": f"Fleetopt{name}",
                "expr": expression,
                "for": wait,
                "labels": labels,
                "annotations": {"summary": summary},
            }

        for promise in self.promises:
            for long, short, factor, wait, severity in BURNS:
                summary = f"{promise.told} of pool {pool.name} is broken by more requests than it allows; fleetopt check says why"
                burning = self._burning(promise, long, short, factor)
                yield alert("PromiseBurning", burning, wait, severity, summary, promise=promise.label)
        yield from (alert(*told) for told in self._of_traffic())
        for mean, quantity in self.lengths():
            yield alert(
                "RequestsLonger",
                f"{self.series(f'{quantity}:mean30m')} > {LONGER * mean:.6g}",
                "30m",
                "warning",
                f"mean {quantity.replace('_', ' ')} of pool {pool.name} are more than 10% above the planned {mean:.4g}",
                quantity=quantity,
            )
        if self.fleet.question.routing.least and pool.bought > 1 and _running_at(self.fleet, pool, 1.0) > FEW_IN_FLIGHT:
            yield alert(
                "RoutingBlind",
                f"avg_over_time({self.series('imbalance:ratio')}[{LONG}]) > {BLIND_IMBALANCE:g}",
                "15m",
                "warning",
                f"replicas of pool {pool.name} differ as if the gateway did not look at them",
            )

    def _burning(self, promise: Promise, long: str, short: str, factor: float) -> str:
        """Where a promise burns over both windows; by its quantile where the bounds of the server's histogram are not known."""
        metric, level = promise.metric.removesuffix("_s"), f"{promise.quantile:.10g}"
        enough = f"{self.series('requests:rate5m')} > {FEWEST:g}"
        if promise.quantile == MEAN or self.names.late(promise.metric, promise.limit_s, short) is None:
            value = self.series(f"{metric}_seconds:quantile5m", quantile=level)
            return f"min_over_time({value}[{short}]) > {promise.limit_s:.6g} and ignoring(quantile) {enough}"
        limit = f"{promise.limit_s:.10g}"
        late = min(factor * (1.0 - promise.quantile), MOST_LATE)
        both = (self.series(f"{metric}_late:ratio{w}", limit=limit) for w in (long, short))
        return f"{' and '.join(f'{one} > {late:.6g}' for one in both)} and ignoring(limit) {enough}"

    def _of_traffic(self) -> Iterator[tuple[str, str, str, str, str]]:
        """More than the plan is for, and fewer replicas than there should be."""
        pool, scaler = self.pool, self.scaler
        if scaler is None or self.wanted() is None:
            rate = self.most * pool.arrival_rate_per_s
            yield (
                "TrafficBeyondPlan",
                f"{self.series('requests:rate5m')} > {rate:.6g}",
                "10m",
                "warning",
                f"pool {pool.name} gets more than the {rate:.4g} requests/s up to which its promises hold",
            )
            busy = _running_at(self.fleet, pool, self.most)
            if math.isfinite(busy):
                yield (
                    "ReplicasBusierThanPlanned",
                    f"{self.series('running:mean')} > {busy:.6g}",
                    "10m",
                    "warning",
                    f"replicas of pool {pool.name} run more than the {busy:.4g} requests at which its promises break",
                )
            yield (
                "ReplicaMissing",
                f"{self.series('replicas:count')} < {pool.bought}",
                "10m",
                "warning",
                f"pool {pool.name} has fewer than its {pool.bought} replicas",
            )
            return
        started = math.ceil((estimated_startup(pool.option.model, cached=False).seconds + SETTLED_S) / 60.0)
        wanted = self.series("replicas:wanted")
        yield (
            "ReplicaMissing",
            f"{self.series('replicas:count')} < min_over_time({wanted}[{started}m])",
            "5m",
            "warning",
            f"pool {pool.name} has had fewer replicas than its scaler wants for longer than one takes to start",
        )
        yield (
            "ScalerAtItsMost",
            f"min_over_time({wanted}[{LONG}]) >= {scaler.most}",
            "5m",
            "warning",
            f"the scaler of pool {pool.name} wants all of its {scaler.most} replicas",
        )

    def panels(self) -> Iterator[dict[str, Any]]:
        """Panels, each with the limit that the plan or the scaler sets."""
        pool, scaler = self.pool, self.scaler

        def series(name: str, **labels: str) -> str:
            return self.series(name, **labels)[:-1] + ',namespace=~"$namespace"}'

        busy = _running_at(self.fleet, pool, self.most)
        rate = None if scaler else self.most * pool.arrival_rate_per_s
        yield _panel(f"{pool.name}: requests/s", [series("requests:rate5m")], "reqps", rate)
        if scaler is not None and "requests" in scaler.targets:
            each = f"({series('requests:rate5m')} + {scaler.offset_per_s:.6g}) / {series('replicas:count')}"
            title = f"{pool.name}: requests/s per replica, as its scaler counts"
            yield _panel(title, [each], "reqps", scaler.targets["requests"])
        for promise in self.promises:
            value = series(
                f"{promise.metric.removesuffix('_s')}_seconds:quantile5m", quantile=f"{promise.quantile:.10g}"
            )
            yield _panel(f"{pool.name}: {promise.label}", [value], "s", promise.limit_s)
        yield _panel(
            f"{pool.name}: running per replica",
            [series("running:mean")],
            "short",
            scaler.targets.get("running", busy) if scaler else busy,
        )
        yield _panel(f"{pool.name}: waiting per replica", [series("waiting:mean")], "short", None)
        yield _panel(f"{pool.name}: KV cache in use", [series("kv_usage:max")], "percentunit", 0.95)
        counts = [series("replicas:count"), *([series("replicas:wanted")] if self.wanted() else [])]
        yield _panel(f"{pool.name}: replicas", counts, "short", float(scaler.most) if scaler else None)
        for mean, quantity in self.lengths():
            title = f"{pool.name}: mean {quantity.replace('_', ' ')}"
            yield _panel(title, [series(f"{quantity}:mean30m")], "short", LONGER * mean)


def _running_at(fleet: Fleet, pool: Pool, factor: float) -> float:
    """Mean requests a replica runs at that many times the planned rate."""
    rate, replicas = factor * pool.arrival_rate_per_s, pool.size.replicas
    if rate >= replicas * pool.model.capacity_per_s:
        return math.inf
    return pool.model.predict(rate, replicas, fleet.levels).mean_running


def _panel(title: str, expressions: Sequence[str], unit: str, limit: float | None) -> dict[str, Any]:
    """One picture, with a line where the limit is."""
    steps: list[Mapping[str, Any]] = [{"color": "green", "value": None}]
    if limit is not None and math.isfinite(limit):
        steps.append({"color": "red", "value": round(limit, 6)})
    custom = {"thresholdsStyle": {"mode": "line"}, "fillOpacity": 5}
    return {
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "targets": [
            {"refId": chr(ord("A") + k), "expr": expression, "legendFormat": "{{__name__}} {{namespace}}"}
            for k, expression in enumerate(expressions)
        ],
        "fieldConfig": {
            "defaults": {"unit": unit, "min": 0, "custom": custom, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
    }


def dashboard(prefix: str, panels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A Grafana dashboard of the panels, for the namespaces that are chosen."""
    placed = [
        {**panel, "id": k + 1, "gridPos": {"h": 8, "w": 8, "x": 8 * (k % 3), "y": 8 * (k // 3)}}
        for k, panel in enumerate(panels)
    ]
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    namespace = {
        "name": "namespace",
        "type": "query",
        "label": "Namespace",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": f'label_values(fleetopt:replicas:count{{fleet="{prefix}"}}, namespace)',
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
    }
    return {
        "title": f"{prefix}: the plan and what happens",
        "uid": f"{prefix}-plan",
        "schemaVersion": 39,
        "timezone": "browser",
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [source, namespace]},
        "panels": placed,
    }
