"""A crontab: one line per change of a pool, start-up time ahead."""

from __future__ import annotations

from planner.ask.schedule import Schedule, ScheduledPool, cron_time
from planner.operate.deploy.serving import object_name
from planner.units import HOUR_S


def running(pool: ScheduledPool, startup_s: float) -> list[tuple[float, int]]:
    """(moment [s], replicas running from then on), at every change; a replica runs from `startup_s` before it serves."""
    hours = len(pool.replicas)
    period = hours * HOUR_S
    moments = sorted({h * HOUR_S for h in range(hours)} | {(h * HOUR_S - startup_s) % period for h in range(hours)})
    counts = [_running_at(pool, moment, startup_s) for moment in moments]
    return [(t, n) for k, (t, n) in enumerate(zip(moments, counts, strict=True)) if n != counts[k - 1]]


def _running_at(pool: ScheduledPool, moment: float, startup_s: float) -> int:
    hours = len(pool.replicas)
    first = round(moment) // int(HOUR_S)
    last = min((round(moment) + round(startup_s)) // int(HOUR_S), first + hours)
    return max(pool.replicas[h % hours] for h in range(first, last + 1))


def render(schedule: Schedule) -> str:
    """Crontab lines that scale a deployment per pool."""
    weekly = schedule.hours > 24
    startup = schedule.elasticity.startup_s
    lines = [
        f"# {schedule.source}; hour 0 is {'Monday 0:00' if weekly else '0:00'} of the time zone below: set it to that of the rates",
        f"# replicas start {startup:g} s before they are needed",
        "CRON_TZ=UTC",
    ]
    for pool in schedule.pools:
        lines.append(f"# {pool.name}: {min(pool.replicas)} to {pool.peak} replicas on {pool.gpu}")
        for moment, count in running(pool, startup) or [(0.0, pool.peak)]:
            command = f"kubectl scale deployment/{object_name(pool.name)} --replicas={count}"
            lines.append(f"{cron_time(moment, weekly)} {command}")
    return "\n".join(lines)
