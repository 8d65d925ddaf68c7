"""Does it pay to prefill and decode on pools of their own? One table per promise on the time between tokens.

Run: python examples/disaggregation.py
"""

from __future__ import annotations

import planner as fo
from planner.errors import InfeasibleError

for tpot in ("60ms", "30ms", "18ms"):
    try:
        plan = fo.plan("azure", slo=1.0, tpot=tpot, rate=200, shape="both", method="occupancy", pools=1)
    except InfeasibleError as error:
        print(f"TPOT {tpot}: {str(error).splitlines()[0]}")
        continue
    other = plan.alternatives[0]
    against = f"${other.cost_usd_per_hour:,.2f}/hour" if other.cost_usd_per_hour else "no such fleet"
    pools = " + ".join(f"{p.replicas} {p.name}" for p in plan.pools)
    print(f"TPOT {tpot}: {plan.shape} ({pools}) ${plan.cost_usd_per_hour:,.2f}/hour; {other.shape}: {against}")
