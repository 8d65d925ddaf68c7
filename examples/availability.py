"""Spare replicas: N + k against a target of availability, and what one failure does to the promises.

python examples/availability.py
"""

from __future__ import annotations

import planner as fo

FAILURES_PER_HOUR, REPAIR_HOURS = 1.0 / 720.0, 4.0  # once a month, half a working day


def main() -> None:
    base = fo.plan("azure", slo=fo.Slo(ttft_s=1.0), rate=400, gpu="h100", method="occupancy", pools=1)
    needed = base.replicas
    print(f"needed to keep the promise: {needed} replicas, {base.cost_usd_per_hour:.2f} USD/hour")

    for spares in (1, 2):
        plan = fo.what_if(base, redundancy=spares).feasible()[0]
        print(f"N + {spares}: {plan.replicas} replicas, {plan.cost_usd_per_hour:.2f} USD/hour")

    print("replicas so that fewer than needed are up with at most this probability")
    for target in (1e-2, 1e-4, 1e-6):
        plan = fo.what_if(
            base, availability_target=target, failures_per_hour=FAILURES_PER_HOUR, repair_hours=REPAIR_HOURS
        ).feasible()[0]
        print(f"  {target:g}: {plan.replicas} replicas, {plan.replicas - needed} spare")

    # a replica is lost: the rest carries n/(n - 1) of the load
    lost = fo.evaluate(base, base.arrival_rate_per_s * needed / (needed - 1)).to_rows()[0]
    print(f"without spares and with one replica down: load {lost['load']:.2f}, P99 TTFT {lost['ttft_p99_s']:.2f} s, "
          f"promise {'kept' if lost['holds'] else 'broken'}")  # fmt: skip


if __name__ == "__main__":
    main()
