"""KEDA: a ScaledObject per pool whose cron triggers hold the replicas of every stretch, start-up time ahead."""

from __future__ import annotations

from typing import Any

from planner.ask.schedule import Schedule, ScheduledPool, cron_spans
from planner.operate.deploy.kubernetes import made
from planner.operate.deploy.serving import object_name


def render(schedule: Schedule) -> str:
    """One YAML document per pool. Of several active triggers KEDA takes the largest, so a stretch may begin early."""
    import yaml

    documents = [_scaled_object(schedule, pool) for pool in schedule.pools]
    head = f"# {schedule.source}; replicas start {schedule.elasticity.startup_s:g} s ahead; timezone: set it to that of the rates"
    return head + "\n" + yaml.safe_dump_all(documents, sort_keys=False).rstrip("\n")


def _scaled_object(schedule: Schedule, pool: ScheduledPool) -> dict[str, Any]:
    """The object of one pool."""
    least, spans = cron_spans(pool.replicas, schedule.elasticity.startup_s)
    # KEDA refuses an object without a trigger: a pool that never changes is held all day by one
    triggers = [
        made("cron", start=start, end=end, replicas=str(n), timezone="UTC")
        for start, end, n in spans or [("0 0 * * *", "59 23 * * *", least)]
    ]
    name = object_name(pool.name)
    spec: dict[str, Any] = {
        "scaleTargetRef": {"name": name},
        "minReplicaCount": least,
        "maxReplicaCount": pool.peak,
        "cooldownPeriod": 0,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}},
        "triggers": triggers,
    }
    return made("scaled_object", name=name, spec=spec)
