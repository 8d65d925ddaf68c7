"""A day of a real service: what following the hours saves, by how long a replica must stay and takes to start.

Run: python examples/day_and_night.py
"""

from __future__ import annotations

import planner as fo

plan = fo.plan("azure", slo=2.0, rate=300, method="occupancy", pools=1)
for startup, dwell in (("0", "1h"), ("5min", "1h"), ("5min", "4h"), ("30min", "4h")):
    day = fo.schedule(plan, hours="servegen-m-small", rate_is="peak", startup=startup, dwell=dwell)
    print(
        f"start-up {startup:>5}, dwell {dwell}: {min(p.peak for p in day.pools)} replicas at the peak, "
        f"{day.mean_replicas:.1f} on average, {day.saving:.0%} saved "
        f"(perfect autoscaler {1 - day.perfect_cost_usd / day.static_cost_usd:.0%})"
    )
