"""Scalers as objects: HorizontalPodAutoscaler, KEDA's ScaledObject, llm-d's VariantAutoscaling, each with the derived numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.ask.schedule import cron_spans
from planner.errors import refuse_unknown
from planner.operate.autoscale.derive import BY_GATEWAY, GATEWAY_GUARDS, Autoscaling, PoolScaler
from planner.operate.deploy.kubernetes import dump, made
from planner.operate.monitor.names import Running
from planner.operate.monitor.policy import Pace
from planner.shared.templates import refusals, templates

_filled: Callable[..., dict[str, Any]] = templates(__file__)
_refusal = refusals(__file__)

TIMEZONE = "UTC"
"""Of the hours; to be set where they are in another."""

SERVER = "http://prometheus-operated.monitoring:9090"
"""Where Prometheus usually is; to be set."""


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
    refuse_unknown("--to:", to, KINDS)
    if deployed == "kserve" and to != "keda":
        raise _refusal("itself", to=to)
    if to_zero and (to != "keda" or deployed not in BY_GATEWAY):
        raise _refusal("to_zero", gateways=" or ".join(BY_GATEWAY))
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
    documents = [document for pool in found.pools for document in make(_Scaled(found, pool, place))]
    if place.deployed == "kserve":
        documents = _services(documents)
    for document in documents if place.namespace else ():
        document["metadata"]["namespace"] = place.namespace
    head = [line for pool in found.pools for line in pool.lines()]
    head += [
        str(_filled("peak", pool=p, tokens=f"{p.peak.tokens_per_s:.6g}", chunk=f"{p.peak.chunk_tokens:g}"))
        for p in found.pools
    ]
    remarks = {
        "hours": to == "keda" and any(pool.clock for pool in found.pools),
        "adapter": to == "hpa",
        "deprecated": to == "wva",
        "merge": place.deployed == "kserve",
        "adapters": place.deployed == "dynamo",
        "everywhere": not place.namespace,
    }
    head += [str(_filled(name, zone=TIMEZONE)) for name, holds in remarks.items() if holds]
    return dump(documents, [*head, *found.notes])


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A pool's scaler, and where it works."""

    found: Autoscaling
    pool: PoolScaler
    place: Place

    @property
    def runs(self) -> Running:
        """The pool as it runs."""
        found, pool, place = self.found, self.pool, self.place
        return Running(
            place.deployed, found.prefix, pool.pool, pool.role, pool.nodes, found.engine, found.model, place.namespace
        )

    @property
    def target(self) -> Any:
        """What is scaled."""
        return self.runs.called("target")

    @property
    def behavior(self) -> dict[str, Any]:
        """How fast it goes either way."""
        policy = self.pool.policy

        def way(window_s: float, pace: Pace) -> dict[str, Any]:
            kinds = (("Percent", pace.by_percent), ("Pods", pace.by_pods))
            return _filled(
                "way",
                window=int(window_s),
                tolerance=f"{policy.tolerance:g}",
                select="Max" if pace.widest else "Min",
                policies=[
                    {"type": kind, "value": int(value), "periodSeconds": int(period)}
                    for kind, given in kinds
                    for value, period in given
                ],
            )

        return {"scaleUp": way(policy.up_window_s, policy.up), "scaleDown": way(policy.down_window_s, policy.down)}

    def queries(self) -> dict[str, str]:
        """What to ask Prometheus for, by metric of the rule: sums over the replicas, saturation as it is."""
        found, pool, runs = self.found, self.pool, self.runs
        known = runs.engines().watched(pool.policy)
        if _by_gateway(pool):
            picker, inference = f"{runs.name}-kserve-router-scheduler-.+", f"{runs.name}-inference-pool"
            if runs.deployed == "llm-d":
                picker, inference = f"{found.prefix}-epp-.+", found.prefix
            known |= _filled(
                "gateway",
                whose=runs.names(pod=f'=~"{picker}"', model_name=f'="{found.model}"').braces,
                of_pool=runs.names(inference_pool=f'="{inference}"').braces,
                ends=runs.names(endpoint_name=f'=~"{runs.called("pods")}"').braces,
                peak=f"{pool.peak.tokens_per_s:.6g}",
                plus=f" + {pool.policy.offset_per_s:.6g}" if pool.policy.offset_per_s else "",
                window=f"{pool.policy.rate_window_s:.0f}s",
            )
        return {name: known[name] for name in pool.policy.targets}


def _by_gateway(pool: PoolScaler) -> bool:
    """Whether the rule watches what an endpoint picker counts."""
    return bool(set(pool.policy.targets) & set(GATEWAY_GUARDS))


def _external(name: str, labels: Mapping[str, str], value: str, kind: str = "AverageValue") -> dict[str, Any]:
    """A metric of the pool, and what a replica may have of it."""
    each, whole = (value, None) if kind == "AverageValue" else (None, value)
    return _filled("external", name=name, labels=labels, kind=kind, each=each, whole=whole)


def _kind_of(metric: str) -> str:
    """Whether a target is of every replica, or of the pool as it is."""
    return "Value" if metric == "saturation" else "AverageValue"


def _hpa(scaled: _Scaled) -> list[dict[str, Any]]:
    """A HorizontalPodAutoscaler on the pool's own metrics, with the steps and waits of the rule."""
    # two fleets in one cluster have metrics of their own names
    stem = "_".join(filter(None, (scaled.place.namespace, scaled.runs.name))).replace("-", "_")
    labels = {"fleet": scaled.found.prefix, "pool": scaled.pool.pool.replace(" ", "-")}
    metrics, rules = [], []
    for metric, query in scaled.queries().items():
        value = f"{round(1000.0 * scaled.pool.policy.targets[metric])}m"
        metrics.append(_external(f"{stem}_{metric}", labels, value, _kind_of(metric)))
        series = query.partition("(")[2].split("(")[-1].partition("{")[0]
        rules.append(_filled("rule", series=series, name=f"{stem}_{metric}", query=query, pool=labels["pool"]))
    config = {"config.yaml": dump([{"externalRules": rules}])}
    shown = _filled("config_map", scaled=scaled, what="adapter-rules", data=config)
    return [_filled("hpa", scaled=scaled, metrics=metrics), shown]


def _keda(scaled: _Scaled) -> list[dict[str, Any]]:
    """Prometheus triggers, and cron triggers that hold what each hour's mean needs: KEDA takes the largest."""
    pool, policy, least = scaled.pool, scaled.pool.policy, scaled.pool.policy.least
    spans: list[tuple[str, str, int]] = []
    if pool.clock:
        held, spans = cron_spans(pool.clock, pool.startup.seconds)
        least = max(least, held)
    triggers = [
        _filled(
            "trigger",
            scaled=scaled,
            name=metric.replace("_", "-"),
            kind=_kind_of(metric),
            query=query,
            threshold=f"{policy.targets[metric]:.10g}",
            # no answer is not an idle fleet: keep what there is; a gauge that a gateway has not shown yet is nothing
            ignored="true" if _by_gateway(pool) and (metric != "requests" or policy.idle_s) else "false",
        )
        for metric, query in scaled.queries().items()
    ]
    triggers += [
        made("cron", start=start, end=end, replicas=str(n), timezone=TIMEZONE) for start, end, n in spans if n > least
    ]
    none, idle = (None, None) if policy.idle_s is None else (0, int(policy.idle_s))
    fallback = min(max(pool.planned, least), policy.most)
    spec = _filled("keda", scaled=scaled, least=least, none=none, idle=idle, fallback=fallback, triggers=triggers)
    return [made("scaled_object", name=scaled.runs.name, spec=spec)]


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


def _wva(scaled: _Scaled) -> list[dict[str, Any]]:
    """Its own saturation rule, with the plan's numbers: spare capacity is counted below what breaks a promise."""
    pool, t = scaled.pool, scaled.pool.threshold
    room = max(0.02, pool.headroom / (1.0 + pool.headroom))
    kv = min(0.98, max(0.01, t.kv_usage))
    # what waits for a decode slot is not told
    queue = 2 if math.isnan(t.waiting) else max(2, math.ceil(t.waiting))
    thresholds = {
        "model_id": scaled.found.model,
        "kvCacheThreshold": round(kv, 4),
        "queueLengthThreshold": queue,
        "kvSpareTrigger": round(kv * room, 4),
        "queueSpareTrigger": max(1, math.ceil(queue * room)),
    }
    metric = _external("wva_desired_replicas", {"variant_name": scaled.runs.name}, "1")
    data = {scaled.runs.name: dump([thresholds])}
    return [
        _filled("wva", scaled=scaled, cost=f"{pool.usd_per_replica_hour:.4f}"),
        _filled("hpa", scaled=scaled, metrics=[metric]),
        _filled("config_map", scaled=scaled, what="saturation-scaling-config", data=data),
    ]


KINDS: Mapping[str, Callable[[_Scaled], list[dict[str, Any]]]] = {"hpa": _hpa, "keda": _keda, "wva": _wva}
"""Kinds of objects by name."""
