"""Scalers as objects: HorizontalPodAutoscaler, KEDA's ScaledObject, llm-d's VariantAutoscaling, each with the derived numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from planner.autoscale.derive import Autoscaling, PoolScaler
from planner.deploy.kubernetes import cron_trigger, dump, scaled_object
from planner.deploy.serving import object_name
from planner.errors import InputError, did_you_mean
from planner.monitor.dialects import dialect_of_engine
from planner.studies.schedule import cron_spans

TIMEZONE = "UTC"
"""Of the hours; to be set where they are in another."""

SERVER = "http://prometheus-operated.monitoring:9090"
"""Where Prometheus usually is; to be set."""


def find_kind(to: str) -> Callable[[Autoscaling, PoolScaler, str], list[dict[str, Any]]]:
    """What makes the objects of that kind; an unknown one is an InputError."""
    if to not in KINDS:
        raise InputError(f"--to: {to!r} is none of {', '.join(KINDS)}{did_you_mean(to, KINDS)}")
    return KINDS[to]


def render(found: Autoscaling, to: str, server: str = SERVER, namespace: str | None = None) -> str:
    """The scalers as one file.

    Parameters
    ----------
    found
        The scalers.
    to
        A name of :data:`KINDS`.
    server
        Address of Prometheus, for KEDA.
    namespace
        Kubernetes namespace; ``None`` = not written.

    Raises
    ------
    InputError
        Another kind.
    """
    make = find_kind(to)
    documents = []
    for pool in found.pools:
        for document in make(found, pool, server):
            if namespace:
                document["metadata"]["namespace"] = namespace
            documents.append(document)
    head = [line for pool in found.pools for line in pool.lines()]
    if to == "keda" and any(pool.clock for pool in found.pools):
        head.append(f"the hours of the cron triggers are in {TIMEZONE}: set timezone to that of the rates")
    if to.startswith("hpa"):
        head.append(
            "external metrics come from prometheus-adapter: its rules are the ConfigMap's; tolerance needs Kubernetes 1.35"
        )
    return dump(documents, [*head, *found.notes])


def _selector(found: Autoscaling, pool: PoolScaler) -> str:
    called = object_name(pool.pool, found.prefix)
    return f'pod=~"{called}-.*"' if len(found.pools) > 1 else ""


def _queries(found: Autoscaling, pool: PoolScaler) -> dict[str, str]:
    """What to ask Prometheus for, by metric: sums over the replicas."""
    dialect, inside = dialect_of_engine(found.engine), _selector(found, pool)
    window = f"{pool.policy.rate_window_s:.0f}s"
    known = {
        "requests": f"sum(rate({dialect.counters['requests'][0]}{{{inside}}}[{window}]))"
        + _plus(pool.policy.offset_per_s),
        # one look at the running requests is noise: their mean over the window of the rate
        "running": f"sum(avg_over_time({dialect.gauges['running'][0]}{{{inside}}}[{window}]))",
    }
    return {name: known[name] for name in pool.policy.targets}


def _plus(offset: float) -> str:
    return f" + {offset:.6g}" if offset > 0.0 else ""


def _behavior(pool: PoolScaler) -> dict[str, Any]:
    policy = pool.policy
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": int(policy.up_window_s),
            "tolerance": f"{policy.tolerance:g}",
            "selectPolicy": "Max",
            "policies": [
                {"type": "Percent", "value": 100, "periodSeconds": 15},
                {"type": "Pods", "value": 4, "periodSeconds": 15},
            ],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": int(policy.down_window_s),
            "tolerance": f"{policy.tolerance:g}",
            "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
        },
    }


def _target(found: Autoscaling, pool: PoolScaler) -> dict[str, str]:
    """What `deploy` writes for the pool."""
    kind = {"apiVersion": "apps/v1", "kind": "Deployment"}
    if pool.nodes > 1:
        kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    return {**kind, "name": object_name(pool.pool, found.prefix)}


def _milli(value: float) -> str:
    """A quantity in thousandths, which is what the API keeps of a number."""
    return f"{max(1, math.floor(1000.0 * value))}m"


def _external(name: str, labels: Mapping[str, str], value: str) -> dict[str, Any]:
    """A metric of the pool from outside the cluster's own, and what a replica may have of it."""
    target = {"type": "AverageValue", "averageValue": value}
    metric = {"name": name, "selector": {"matchLabels": dict(labels)}}
    return {"type": "External", "external": {"metric": metric, "target": target}}


def _scaler(found: Autoscaling, pool: PoolScaler, metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """A HorizontalPodAutoscaler of the pool."""
    spec = {
        "scaleTargetRef": _target(found, pool),
        "minReplicas": pool.policy.least,
        "maxReplicas": pool.policy.most,
        "metrics": metrics,
        "behavior": _behavior(pool),
    }
    name = object_name(pool.pool, found.prefix)
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": name}, "spec": spec}


def _config_map(name: str, data: Mapping[str, str]) -> dict[str, Any]:
    """Files for who reads them in the cluster."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(data)}


def _hpa(found: Autoscaling, pool: PoolScaler, server: str) -> list[dict[str, Any]]:
    """A HorizontalPodAutoscaler on the pool's own metrics, with the steps and waits of the rule."""
    name = object_name(pool.pool, found.prefix)
    metrics = [
        _external(f"fleetopt_{metric}", {"pool": pool.pool.replace(" ", "-")}, _milli(value))
        for metric, value in pool.policy.targets.items()
    ]
    dialect = dialect_of_engine(found.engine)
    label = f'"pool", "{pool.pool.replace(" ", "-")}", "", ""'
    rules = [
        {
            "seriesQuery": dialect.counters["requests"][0] if metric == "requests" else dialect.gauges["running"][0],
            "name": {"as": f"fleetopt_{metric}"},
            "resources": {"namespaced": False},
            "metricsQuery": f"label_replace({query}, {label})",
        }
        for metric, query in _queries(found, pool).items()
    ]
    config = {"config.yaml": dump([{"externalRules": rules}])}
    return [_scaler(found, pool, metrics), _config_map(f"{name}-adapter-rules", config)]


def _keda(found: Autoscaling, pool: PoolScaler, server: str) -> list[dict[str, Any]]:
    """Prometheus triggers, and cron triggers that hold what each hour's mean needs: KEDA takes the largest."""
    least = pool.policy.least
    spans: list[tuple[str, str, int]] = []
    if pool.clock:
        held, spans = cron_spans(pool.clock, pool.startup.seconds)
        least = max(least, held)
    triggers = [
        {
            "type": "prometheus",
            "metricType": "AverageValue",
            "metadata": {
                "serverAddress": server,
                "query": query,
                "threshold": f"{pool.policy.targets[metric]:.6g}",
                # no answer is not an idle fleet: keep what there is
                "ignoreNullValues": "false",
            },
        }
        for metric, query in _queries(found, pool).items()
    ]
    triggers += [cron_trigger(*span, timezone=TIMEZONE) for span in spans if span[2] > least]
    spec = {
        "scaleTargetRef": _target(found, pool),
        "minReplicaCount": least,
        "maxReplicaCount": pool.policy.most,
        "pollingInterval": 15,
        "fallback": {"failureThreshold": 3, "replicas": pool.policy.most},
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(pool)}},
        "triggers": triggers,
    }
    return [scaled_object(object_name(pool.pool, found.prefix), spec)]


def _wva(found: Autoscaling, pool: PoolScaler, server: str) -> list[dict[str, Any]]:
    """Its own saturation rule, with the plan's numbers: spare capacity is counted below what breaks a promise."""
    name = object_name(pool.pool, found.prefix)
    t = pool.threshold
    room = max(0.02, pool.headroom / (1.0 + pool.headroom))
    kv = min(0.98, max(0.01, t.kv_usage))
    # what waits for a decode slot is not told
    queue = 2 if math.isnan(t.waiting) else max(2, math.ceil(t.waiting))
    thresholds = {
        "model_id": found.model,
        "kvCacheThreshold": round(kv, 4),
        "queueLengthThreshold": queue,
        "kvSpareTrigger": round(kv * room, 4),
        "queueSpareTrigger": max(1, math.ceil(queue * room)),
    }
    metric = _external("wva_desired_replicas", {"variant_name": name}, "1")
    return [
        {
            "apiVersion": "llmd.ai/v1alpha1",
            "kind": "VariantAutoscaling",
            "metadata": {"name": name},
            "spec": {
                "scaleTargetRef": _target(found, pool),
                "modelID": found.model,
                "variantCost": f"{pool.usd_per_replica_hour:.4f}",
            },
        },
        _scaler(found, pool, [metric]),
        _config_map(f"{name}-saturation-scaling-config", {name: dump([thresholds])}),
    ]


KINDS: Mapping[str, Callable[[Autoscaling, PoolScaler, str], list[dict[str, Any]]]] = {
    "hpa": _hpa,
    "keda": _keda,
    "wva": _wva,
}
"""Kinds of objects by name."""
