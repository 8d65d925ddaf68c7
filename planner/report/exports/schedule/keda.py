"""KEDA: a ScaledObject per pool whose cron triggers hold the replicas of every stretch, start-up time ahead."""

from __future__ import annotations

from typing import Any

from planner.report.exports import Export
from planner.report.exports.schedule.cron import cron_time, object_name
from planner.studies.schedule import HOUR_S, Schedule, ScheduledPool

__all__ = ["EXPORT"]


def render(schedule: Schedule) -> str:
    """One YAML document per pool. Of several active triggers KEDA takes the largest, so a stretch may begin early."""
    import yaml

    documents = [_scaled_object(schedule, pool) for pool in schedule.pools]
    head = f"# {schedule.source}; replicas start {schedule.elasticity.startup_s:g} s ahead; timezone: set it to that of the rates"
    return head + "\n" + yaml.safe_dump_all(documents, sort_keys=False).rstrip("\n")


def _scaled_object(schedule: Schedule, pool: ScheduledPool) -> dict[str, Any]:
    weekly = schedule.hours > 24
    spans = [
        (first * HOUR_S - schedule.elasticity.startup_s, (first + hours) * HOUR_S, count)
        for first, hours, count in pool.stretches()
    ]
    # a stretch that, begun early, fills the whole period cannot be a trigger: start and end would coincide
    always = [count for start, end, count in spans if end - start >= schedule.hours * HOUR_S]
    least = max([min(pool.replicas), *always])
    triggers = []
    for start, end, count in spans:
        if count <= least:
            continue
        triggers.append(
            {
                "type": "cron",
                "metadata": {
                    "timezone": "UTC",
                    "start": cron_time(start, weekly),
                    "end": cron_time(end, weekly),
                    "desiredReplicas": str(count),
                },
            }
        )
    name = object_name(pool)
    spec: dict[str, Any] = {
        "scaleTargetRef": {"name": name},
        "minReplicaCount": least,
        "maxReplicaCount": pool.peak,
        "cooldownPeriod": 0,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}},
        "triggers": triggers,
    }
    return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": name}, "spec": spec}


EXPORT = Export("KEDA: a ScaledObject per pool whose cron triggers hold the replicas of every stretch", render)
