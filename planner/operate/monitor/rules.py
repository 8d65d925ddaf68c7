"""A plan as Prometheus rules and a Grafana dashboard: what it predicts, and from where on its promises are in danger."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.ask.asked import standing
from planner.catalog.load import repository
from planner.errors import refuse_unknown
from planner.machine.engines import DEFAULT_ENGINE, engine
from planner.operate.deploy.kubernetes import dump
from planner.operate.deploy.serving import estimated_startup
from planner.operate.monitor.check import LIMITS
from planner.operate.monitor.names import Running, dialect_of_engine, find_deployed, scalers_of
from planner.operate.monitor.policy import Policy
from planner.plans import Plan
from planner.promise import MEAN, Promise
from planner.shared.arguments import told_types
from planner.shared.templates import templates
from planner.size.fleet import Fleet
from planner.size.pool import Pool

_filled: Callable[..., dict[str, Any]] = templates(__file__)

ANY_CHOSEN = "$namespace"
"""The namespaces that are chosen on a dashboard."""

SHORT, LONG = "5m", "30m"
"""Windows of rates and latencies, and of mean lengths."""


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
        runs = Running(
            watched.deployed or "k8s",
            watched.prefix,
            self.pool.name,
            self.pool.name if fleet.linked else "both",
            self.pool.option.gpu.nodes(self.pool.option.parallel.gpus),
            fleet.pools[0].option.profile.engine,
            watched.model,
            watched.namespace,
        )
        told_apart = bool(watched.deployed) or len(fleet.pools) > 1
        self.names = runs.engines(told_apart, watched.selector, by="namespace")
        self.promises = [p for p in fleet.promises.parts if p.metric in fleet.seen_in(k)]

    def filled(self, template: str, **values: object) -> Any:
        """A template with what is known of the pool, and further values."""
        pool = {"pool": self.pool.name, "own": self.own, "inside": self.inside(), "over": LONG}
        return _filled(template, **pool | {"there": self.inside(namespace=ANY_CHOSEN)} | values)

    def inside(self, namespace: str = "", **labels: str) -> str:
        """Labels that pick a recorded series of the pool."""
        told = [f'{k}="{v}"' for k, v in {**self.own, **labels}.items()]
        return ",".join([*told, *([f'namespace=~"{namespace}"'] if namespace else [])])

    def lengths(self) -> list[tuple[float, str]]:
        """Mean lengths that the pool works on [tokens]."""
        both = zip(self.fleet.work_tokens(self.k), ("input_tokens", "output_tokens"), strict=True)
        return [(mean, quantity) for mean, quantity in both if mean > 0.0]

    def wanted(self) -> str | None:
        """Replicas that the pool's scaler wants for the traffic there is; ``None`` without one that engines can tell of."""
        scaler = self.scaler
        if scaler is None:
            return None
        known = self.names.watched(scaler)
        watched = next((name for name in known if name in scaler.targets), None)
        if watched is None:
            return None
        asked = f"ceil(({known[watched]}) / {scaler.targets[watched]:.10g})"
        return f"clamp_max(clamp_min({asked}, {scaler.least}), {scaler.most})"

    def recorded(self) -> Iterator[dict[str, Any]]:
        """Recording rules: its rate, replicas, load, quantiles, and the share of requests that are late."""
        names, wanted = self.names, self.wanted()
        gauges = {quantity: names.gauge(quantity) for quantity in ("running", "waiting", "kv_usage")}
        scaler = self.filled("scaler", wanted=wanted) if wanted is not None else []
        yield from self.filled("recorded", requests=names.rate("requests", SHORT), scaler=scaler, **gauges)
        for _, quantity in self.lengths():
            yield from self.filled("length", quantity=quantity, mean=names.mean(quantity, LONG))
        for promise in self.promises:
            windows = (
                sorted({w for burn in LIMITS["burns"] for w in (burn["long"], burn["short"])})
                if promise.quantile != MEAN
                else ()
            )
            shares = ((_late(promise, w), names.late(promise.metric, promise.limit_s, w)) for w in windows)
            late = [
                self.filled("late", share=share, expression=expression, limit=f"{promise.limit_s:.10g}")
                for share, expression in shares
                if expression is not None
            ]
            value = names.quantile(promise.metric, promise.quantile, SHORT)
            yield from self.filled("promise", **_quantile(promise), value=value, late=late)

    def alerts(self) -> Iterator[dict[str, Any]]:
        """Alerts: burning promises, traffic and load beyond the plan, missing replicas, longer requests, blind routing."""
        for promise in self.promises:
            for burn in LIMITS["burns"]:
                burning = self._burning(promise, burn["long"], burn["short"], burn["factor"])
                told = {"promise": promise.told, "label": promise.label}
                yield self.filled("PromiseBurning", burning=burning, burn=burn, **told)
        yield from self._of_traffic()
        for mean, quantity in self.lengths():
            told = {"what": quantity.replace("_", " "), "planned": f"{mean:.4g}"}
            yield self.filled("RequestsLonger", quantity=quantity, most=f"{LIMITS['longer'] * mean:.6g}", **told)
        running = _running_at(self.fleet, self.pool, 1.0)
        if self.fleet.question.routing.least and self.pool.bought > 1 and running > LIMITS["few_in_flight"]:
            yield self.filled("RoutingBlind", most=f"{LIMITS['blind']:g}")

    def _burning(self, promise: Promise, long: str, short: str, factor: float) -> str:
        """Where a promise burns over both windows; by its quantile where the bounds of the server's histogram are not known."""
        enough = f"fleetopt:requests:rate5m{{{self.inside()}}} > {LIMITS['fewest_per_s']:g}"
        if promise.quantile == MEAN or self.names.late(promise.metric, promise.limit_s, short) is None:
            of = _quantile(promise)
            value = f"fleetopt:{of['quantile']}{{{self.inside(quantile=of['level'])}}}"
            return f"min_over_time({value}[{short}]) > {promise.limit_s:.6g} and ignoring(quantile) {enough}"
        inside = self.inside(limit=f"{promise.limit_s:.10g}")
        late = min(factor * (1.0 - promise.quantile), LIMITS["most_late"])
        both = (f"fleetopt:{_late(promise, window)}{{{inside}}} > {late:.6g}" for window in (long, short))
        return f"{' and '.join(both)} and ignoring(limit) {enough}"

    def _of_traffic(self) -> Iterator[dict[str, Any]]:
        """More than the plan is for, and fewer replicas than there should be."""
        pool, scaler = self.pool, self.scaler
        if scaler is None or self.wanted() is None:
            rate, busy = self.most * pool.rate_per_s, _running_at(self.fleet, pool, self.most)
            yield self.filled("TrafficBeyondPlan", most=f"{rate:.6g}", told=f"{rate:.4g}")
            if math.isfinite(busy):
                yield self.filled("ReplicasBusierThanPlanned", most=f"{busy:.6g}", told=f"{busy:.4g}")
            yield self.filled("ReplicaMissing", bought=pool.bought)
            return
        started = math.ceil((estimated_startup(pool.option.model, cached=False).seconds + LIMITS["settled_s"]) / 60.0)
        yield self.filled("ReplicaMissing of a scaler", started=f"{started}m")
        yield self.filled("ScalerAtItsMost", most=scaler.most)

    def panels(self) -> list[dict[str, Any]]:
        """Panels, each with the limit that the plan or the scaler sets."""
        scaler, busy = self.scaler, _running_at(self.fleet, self.pool, self.most)
        targets = {} if scaler is None else scaler.targets
        each, promises, lengths = [], [], []
        if scaler is not None and "requests" in targets:
            plus = f"{scaler.offset_per_s:.6g}"
            each = self.filled("panel of a scaler", plus=plus, limit=targets["requests"])
        for promise in self.promises:
            of = _quantile(promise)
            there = self.inside(namespace=ANY_CHOSEN, quantile=of["level"])
            told = {"label": promise.label, "limit": promise.limit_s, "quantile": of["quantile"]}
            promises += self.filled("panel of a promise", there=there, **told)
        for mean, quantity in self.lengths():
            what = quantity.replace("_", " ")
            lengths += self.filled("panel of a length", what=what, quantity=quantity, limit=LIMITS["longer"] * mean)
        panels = self.filled(
            "panels",
            each=each,
            promises=promises,
            lengths=lengths,
            rate=None if scaler else self.most * self.pool.rate_per_s,
            running=targets.get("running", busy),
            wanted=[f"fleetopt:replicas:wanted{{{self.inside(namespace=ANY_CHOSEN)}}}"] if self.wanted() else [],
            most=float(scaler.most) if scaler else None,
        )
        return [_panel(**panel) for panel in panels]


def _quantile(promise: Promise) -> dict[str, str]:
    """The recorded series of a promise's quantile, and its level."""
    return {"quantile": f"{promise.metric.removesuffix('_s')}_seconds:quantile5m", "level": f"{promise.quantile:.10g}"}


def _late(promise: Promise, window: str) -> str:
    """The recorded series of the share of requests beyond a promise's limit."""
    return f"{promise.metric.removesuffix('_s')}_late:ratio{window}"


def _running_at(fleet: Fleet, pool: Pool, factor: float) -> float:
    """Mean requests a replica runs at that many times the planned rate."""
    rate, replicas = factor * pool.rate_per_s, pool.replicas
    if rate >= replicas * pool.model.capacity_per_s:
        return math.inf
    return pool.model.predict(rate, replicas, fleet.levels).mean_running


def _panel(title: str, of: Sequence[str], unit: str, limit: float | None = None) -> dict[str, Any]:
    """What a picture is filled with, with a line where the limit is."""
    steps: list[Mapping[str, Any]] = [{"color": "green", "value": None}]
    if limit is not None and math.isfinite(limit):
        steps.append({"color": "red", "value": round(limit, 6)})
    targets = [
        {"refId": chr(ord("A") + k), "expr": expression, "legendFormat": "{{__name__}} {{namespace}}"}
        for k, expression in enumerate(of)
    ]
    return {"title": title, "targets": targets, "unit": unit, "steps": steps}


def dashboard(prefix: str, panels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A Grafana dashboard of the panels, for the namespaces that are chosen."""
    placed = [_filled("panel", **panel, number=k + 1, x=8 * (k % 3), y=8 * (k // 3)) for k, panel in enumerate(panels)]
    return _filled("dashboard", prefix=prefix, panels=placed)


KINDS = ("files", "kubernetes")
"""What rules are written as."""

SCRAPED = ("k8s", "llm-d")
"""Targets whose pods nobody else scrapes: KServe and Dynamo bring monitors of their own."""

INTERVAL = "15s"
"""Between two looks at a pod: a scaler's rates need several in their window."""


@told_types
def monitoring_rules(
    fleet: Plan | str | Path,
    *,
    name: str = "fleetopt",
    selector: str = "",
    to: str = "files",
    deployed: str | None = None,
    namespace: str | None = None,
    policy: Sequence[str | Path] | None = None,
) -> dict[str, str]:
    """Prometheus rules and a Grafana dashboard of a plan.

    Parameters
    ----------
    fleet
        A plan or a plan file.
    name
        Objects of the fleet are called NAME-POOL, as `deploy` names them.
    selector
        Label matchers of the fleet's series, without braces.
    to
        With --emit-rules: files, or kubernetes (PodMonitor, PrometheusRule, the dashboard's ConfigMap, and Google's).
    deployed
        What `deploy --to` the fleet was written with: k8s, llm-d, kserve or dynamo. Default: of kubernetes k8s.
    namespace
        Kubernetes namespace of the fleet, for --emit-rules.
    policy
        The scaler of the fleet (what `autoscale --to` wrote, or yours): it says how many replicas to expect.

    Returns
    -------
    dict of str to str
        File -> text.

    Raises
    ------
    InputError
        Another kind.
    """
    built = standing(fleet)
    known = find_deployed(deployed or "k8s") if deployed or to == "kubernetes" else ""
    asked = str(built.question.asked["model"])
    scalers = scalers_of(policy, name, [p.name for p in built.pools])
    watched = Watched(name, selector, known, (repository(asked) or asked) if known else "", namespace, scalers)
    refuse_unknown("--to:", to, KINDS)
    groups, panels, head = rule_groups(built, watched)
    head = ["Written by `fleetopt check --emit-rules` from a plan; " + head[0], *head[1:]]
    board = json.dumps(dashboard(name, panels), indent=1)
    if to == "files":
        return {f"{name}-rules.yaml": dump([{"groups": groups}], head), f"{name}-dashboard.json": board}

    whose = {"prefix": name, "namespace": namespace or None}
    scraped: dict[str, Any] = {"pod_monitor": None, "pod_monitoring": []}
    if (known or SCRAPED[0]) in SCRAPED:
        path = engine(built.pools[0].option.profile.engine or DEFAULT_ENGINE).metrics_path
        picker = [{"port": "metrics", "interval": INTERVAL}] if known == "llm-d" else []
        scraped = {part: _filled(part, **whose, path=path, interval=INTERVAL, picker=picker) for part in scraped}
    heads = {
        f"{name}-prometheusrule.yaml": head,
        f"{name}-gke.yaml": ["Google's managed Prometheus, in place of the PodMonitor and PrometheusRule"],
    }
    found = _filled("kubernetes", **whose, **scraped, groups=groups, board=board)
    return {file: dump(documents, heads.get(file, ())) for file, documents in found.items()}
