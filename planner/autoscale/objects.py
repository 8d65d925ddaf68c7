"""Scalers as objects: HorizontalPodAutoscaler, KEDA's ScaledObject, llm-d's VariantAutoscaling, each with the derived numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.autoscale.derive import Autoscaling, PoolScaler
from planner.deploy.kubernetes import cron_trigger, dump, scaled_object
from planner.deploy.serving import object_name
from planner.errors import InputError, did_you_mean
from planner.monitor.dialects import dialect_of_engine
from planner.monitor.names import Names, pods_of, scaled_by
from planner.monitor.policy import Pace
from planner.studies.schedule import cron_spans

TIMEZONE = "UTC"
"""Of the hours; to be set where they are in another."""

SERVER = "http://prometheus-operated.monitoring:9090"
"""Where Prometheus usually is; to be set."""

BY_GATEWAY = ("llm-d", "kserve")
"""Targets whose endpoint picker counts what is in flight and holds requests back."""

GATEWAY_GUARDS = ("in_flight", "saturation", "queued", "backlog_s")
"""What it shows."""


def guards_of(deployed: str, pools: int) -> tuple[str, ...]:
    """What is watched beside requests/s: where one pool is all that an endpoint picker sees, what that counts."""
    return GATEWAY_GUARDS if deployed in BY_GATEWAY and pools == 1 else ("running",)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fleet runs and who is asked about it.

    Parameters
    ----------
    deployed
        The target of ``fleetopt deploy`` that wrote it.
    server
        Address of Prometheus, for KEDA.
    namespace
        Kubernetes namespace; ``None`` = not written.
    """

    deployed: str = "k8s"
    server: str = SERVER
    namespace: str | None = None


def find_kind(to: str, deployed: str, to_zero: bool) -> Callable[..., list[dict[str, Any]]]:
    """What makes the objects of that kind; one that is not known, or cannot do what is asked, is an InputError."""
    if to not in KINDS:
        raise InputError(f"--to: {to!r} is none of {', '.join(KINDS)}{did_you_mean(to, KINDS)}")
    if deployed == "kserve" and to != "keda":
        raise InputError(f"--to {to}: KServe scales its services itself, by spec.scaling.keda", "Use --to keda.")
    if to_zero and (to != "keda" or deployed not in BY_GATEWAY):
        raise InputError(
            "--scale-to-zero: without a replica nothing tells of requests but a gateway that holds them",
            f"Use --to keda with --deployed {' or '.join(BY_GATEWAY)}.",
        )
    return KINDS[to]


def render(found: Autoscaling, to: str, place: Place | None = None) -> str:
    """The scalers as one file.

    Parameters
    ----------
    found
        The scalers.
    to
        A name of :data:`KINDS`.
    place
        Where they work; default that of plain Kubernetes.

    Raises
    ------
    InputError
        Another kind, or one that cannot do what is asked.
    """
    place = place or Place()
    make = find_kind(to, place.deployed, any(p.policy.idle_s is not None for p in found.pools))
    documents = [document for pool in found.pools for document in make(found, pool, place)]
    if place.deployed == "kserve":
        documents = _services(documents)
    for document in documents if place.namespace else ():
        document["metadata"]["namespace"] = place.namespace
    head = [line for pool in found.pools for line in pool.lines()]
    for p in found.pools:
        head.append(
            f"{p.pool}: peakPrefillThroughput {p.peak.tokens_per_s:.6g} tokens/s at chunks of {p.peak.chunk_tokens:g}, "
            f"fingerprint {p.peak.fingerprint} ({p.peak.model} on {p.peak.gpu}, {p.peak.engine})"
        )
    if to == "keda" and any(pool.clock for pool in found.pools):
        head.append(f"the hours of the cron triggers are in {TIMEZONE}: set timezone to that of the rates")
    if to == "hpa":
        head.append(
            "external metrics come from prometheus-adapter: its rules are the ConfigMap's; tolerance needs Kubernetes 1.35"
        )
    if to == "wva":
        head.append("llm-d has deprecated this scaler: its successor is --to keda --deployed llm-d")
    if place.deployed == "kserve":
        head.append("merge with the service of `deploy`: scaling and replicas exclude each other")
    if place.deployed == "dynamo":
        head.append("the adapters are there where a worker of the graph has scalingAdapter")
    if not place.namespace:
        head.append("without --namespace the queries count pods of these names in every namespace")
    return dump(documents, [*head, *found.notes])


def _names(found: Autoscaling, pool: PoolScaler, place: Place) -> Names:
    """Expressions over the engines of a pool."""
    dialect = dialect_of_engine(found.engine)
    pods = pods_of(place.deployed, found.prefix, pool.pool, pool.role, pool.nodes)
    return Names(dialect, {**_inside(place), dialect.model_label: f'="{found.model}"', "pod": f'=~"{pods}"'})


def _inside(place: Place) -> dict[str, str]:
    return {"namespace": f'="{place.namespace}"'} if place.namespace else {}


def queries(found: Autoscaling, pool: PoolScaler, place: Place) -> dict[str, str]:
    """What to ask Prometheus for, by metric of the rule: sums over the replicas, saturation as it is."""
    names, window = _names(found, pool, place), f"{pool.policy.rate_window_s:.0f}s"
    plus = f" + {pool.policy.offset_per_s:.6g}" if pool.policy.offset_per_s > 0.0 else ""
    known = {
        "requests": names.rate("requests", window) + plus,
        # one look at the running requests is noise: their mean over the window of the rate
        "running": f"sum(avg_over_time({names.gauge('running')}[{window}]))",
    }
    if set(pool.policy.targets) & set(GATEWAY_GUARDS):
        owner = found.prefix if place.deployed == "llm-d" else object_name(pool.pool, found.prefix)
        picker, inference = (
            (f"{owner}-epp-.+", owner)
            if place.deployed == "llm-d"
            else (f"{owner}-kserve-router-scheduler-.+", f"{owner}-inference-pool")
        )
        whose = Names(
            names.dialect, {**_inside(place), "pod": f'=~"{picker}"', "model_name": f'="{found.model}"'}
        ).braces
        of_pool = Names(names.dialect, {**_inside(place), "inference_pool": f'="{inference}"'}).braces
        endpoints = pods_of(place.deployed, found.prefix, pool.pool, pool.role, pool.nodes)
        ends = Names(names.dialect, {**_inside(place), "endpoint_name": f'=~"{endpoints}"'}).braces
        known |= {
            # every replica may be gone: the gateway counts what comes
            "requests": f"sum(rate(llm_d_epp_request_total{whose}[{window}]))" + plus,
            "in_flight": f"sum(avg_over_time(llm_d_epp_request_running{whose}[{window}]))",
            "saturation": f"max(llm_d_epp_flow_control_pool_saturation{of_pool})",
            "queued": f"sum(llm_d_epp_flow_control_queue_size{of_pool})",
            "backlog_s": f"sum(llm_d_epp_inflight_tokens{ends}) / {pool.peak.tokens_per_s:.6g}",
        }
    return {name: known[name] for name in pool.policy.targets}


def _behavior(pool: PoolScaler) -> dict[str, Any]:
    policy = pool.policy

    def way(window_s: float, pace: Pace) -> dict[str, Any]:
        kinds = (("Percent", pace.by_percent), ("Pods", pace.by_pods))
        return {
            "stabilizationWindowSeconds": int(window_s),
            "tolerance": f"{policy.tolerance:g}",
            "selectPolicy": "Max" if pace.widest else "Min",
            "policies": [
                {"type": kind, "value": int(value), "periodSeconds": int(period)}
                for kind, given in kinds
                for value, period in given
            ],
        }

    return {"scaleUp": way(policy.up_window_s, policy.up), "scaleDown": way(policy.down_window_s, policy.down)}


def _external(name: str, labels: Mapping[str, str], value: str, kind: str = "AverageValue") -> dict[str, Any]:
    """A metric of the pool from outside the cluster's own, and what a replica may have of it."""
    target = {"type": kind, "averageValue" if kind == "AverageValue" else "value": value}
    metric = {"name": name, "selector": {"matchLabels": dict(labels)}}
    return {"type": "External", "external": {"metric": metric, "target": target}}


def _kind_of(metric: str) -> str:
    """Whether a target is of every replica, or of the pool as it is."""
    return "Value" if metric == "saturation" else "AverageValue"


def _scaler(found: Autoscaling, pool: PoolScaler, place: Place, metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """A HorizontalPodAutoscaler of the pool."""
    spec = {
        "scaleTargetRef": scaled_by(place.deployed, found.prefix, pool.pool, pool.role, pool.nodes),
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


def _hpa(found: Autoscaling, pool: PoolScaler, place: Place) -> list[dict[str, Any]]:
    """A HorizontalPodAutoscaler on the pool's own metrics, with the steps and waits of the rule."""
    name = object_name(pool.pool, found.prefix)
    # two fleets in one cluster have metrics of their own names
    stem = "_".join(filter(None, (place.namespace, name))).replace("-", "_")
    labels = {"fleet": found.prefix, "pool": pool.pool.replace(" ", "-")}
    metrics, rules = [], []
    for metric, query in queries(found, pool, place).items():
        value = f"{round(1000.0 * pool.policy.targets[metric])}m"
        metrics.append(_external(f"{stem}_{metric}", labels, value, _kind_of(metric)))
        rules.append(
            {
                "seriesQuery": query.partition("(")[2].split("(")[-1].partition("{")[0],
                "name": {"as": f"{stem}_{metric}"},
                "resources": {"namespaced": False},
                "metricsQuery": f'label_replace({query}, "pool", "{labels["pool"]}", "", "")',
            }
        )
    config = {"config.yaml": dump([{"externalRules": rules}])}
    return [_scaler(found, pool, place, metrics), _config_map(f"{name}-adapter-rules", config)]


def _keda(found: Autoscaling, pool: PoolScaler, place: Place) -> list[dict[str, Any]]:
    """Prometheus triggers, and cron triggers that hold what each hour's mean needs: KEDA takes the largest."""
    policy, least = pool.policy, pool.policy.least
    spans: list[tuple[str, str, int]] = []
    if pool.clock:
        held, spans = cron_spans(pool.clock, pool.startup.seconds)
        least = max(least, held)
    by_gateway = bool(set(policy.targets) & set(GATEWAY_GUARDS))
    triggers = [
        {
            "type": "prometheus",
            "name": metric.replace("_", "-"),
            "metricType": _kind_of(metric),
            "metadata": {
                "serverAddress": place.server,
                "query": query,
                "threshold": f"{policy.targets[metric]:.10g}",
                # no answer is not an idle fleet: keep what there is; a gauge that a gateway has not shown yet is nothing
                "ignoreNullValues": "true" if by_gateway and (metric != "requests" or policy.idle_s) else "false",
            },
        }
        for metric, query in queries(found, pool, place).items()
    ]
    triggers += [cron_trigger(*span, timezone=TIMEZONE) for span in spans if span[2] > least]
    idle = {} if policy.idle_s is None else {"idleReplicaCount": 0, "cooldownPeriod": int(policy.idle_s)}
    spec = {
        "scaleTargetRef": scaled_by(place.deployed, found.prefix, pool.pool, pool.role, pool.nodes),
        "minReplicaCount": least,
        "maxReplicaCount": policy.most,
        **idle,
        "pollingInterval": 15,
        # where nobody knows what comes, what was planned for it
        "fallback": {"failureThreshold": 3, "replicas": min(max(pool.planned, least), policy.most)},
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(pool)}},
        "triggers": triggers,
    }
    return [scaled_object(object_name(pool.pool, found.prefix), spec)]


def _services(scaled: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """KServe's services with the scaling of ScaledObjects; a prefill pool's is in the service of its decode pool."""
    found: dict[str, dict[str, Any]] = {}
    for document in scaled:
        rule = dict(document["spec"])
        target, bounds = rule.pop("scaleTargetRef"), (rule.pop("minReplicaCount"), rule.pop("maxReplicaCount"))
        scaling = {"minReplicas": bounds[0], "maxReplicas": bounds[1], "keda": rule}
        name, part = target["name"], {"scaling": scaling}
        if len(scaled) > 1 and name.endswith("-prefill"):
            name, part = name.removesuffix("-prefill"), {"prefill": part}
        kind = {"apiVersion": target["apiVersion"], "kind": target["kind"], "metadata": {"name": name}}
        found.setdefault(name, {**kind, "spec": {}})["spec"] |= part
    return [*found.values()]


def _wva(found: Autoscaling, pool: PoolScaler, place: Place) -> list[dict[str, Any]]:
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
    scaler = _scaler(found, pool, place, [metric])
    return [
        {
            "apiVersion": "llmd.ai/v1alpha1",
            "kind": "VariantAutoscaling",
            "metadata": {"name": name},
            "spec": {
                "scaleTargetRef": scaler["spec"]["scaleTargetRef"],
                "modelID": found.model,
                "variantCost": f"{pool.usd_per_replica_hour:.4f}",
            },
        },
        scaler,
        _config_map(f"{name}-saturation-scaling-config", {name: dump([thresholds])}),
    ]


KINDS: Mapping[str, Callable[[Autoscaling, PoolScaler, Place], list[dict[str, Any]]]] = {
    "hpa": _hpa,
    "keda": _keda,
    "wva": _wva,
}
"""Kinds of objects by name."""
