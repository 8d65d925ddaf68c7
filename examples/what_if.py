"""A what-if in a script: every scenario of a file, then rate x GPU, the cheapest feasible point of each rate.

python examples/what_if.py
"""

from __future__ import annotations

from pathlib import Path

import planner as fo

QUESTION = Path(__file__).with_name("fleet.yaml")
SCENARIOS = ["launch", "cheaper gpus", "prefix cache", "one spare"]


def main() -> None:
    print("Scenarios")
    for name, point in zip(SCENARIOS, fo.what_if(QUESTION, scenarios=SCENARIOS).to_rows(), strict=True):
        if point["feasible"]:
            print(f"  {name:<13} {point['fleet']:<32} {point['cost_usd_per_hour']:>8.2f} USD/hour")
        else:
            print(f"  {name:<13} infeasible: {point['reason']}")

    print("Cheapest GPU type by rate")
    rates = [100, 200, 400]
    sweep = fo.what_if(QUESTION, rate=rates, gpu=["h100", "h200", "l40s"], pools=1)
    for rate in rates:
        plans = [p for p in sweep.feasible() if p.arrival_rate_per_s == rate]
        best = min(plans, key=lambda p: p.cost_usd_per_hour)
        print(f"  {rate:>4} requests/s: {best.gpus:>3} x {best.pools[0].gpu}, {best.cost_usd_per_hour:.2f} USD/hour")


if __name__ == "__main__":
    main()
