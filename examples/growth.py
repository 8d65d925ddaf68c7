"""Capacity over a year of growth: GPUs to hold in each month, and when to order them.

python examples/growth.py
"""

from __future__ import annotations

import planner as fo

FIRST_RATE = 120.0  # requests/s in the busiest hour of the first month
MONTHLY_GROWTH = 0.08
LEAD_MONTHS = 2  # from order to rack


def main() -> None:
    rates = [FIRST_RATE * (1.0 + MONTHLY_GROWTH) ** month for month in range(12)]
    base = fo.plan("azure", slo=fo.Slo(ttft_s=1.0), rate=rates[0], gpu="h100", method="occupancy", pools=1)
    plans = fo.what_if(base, rate=rates).feasible()

    held = 0
    year = 0.0
    print("month  requests/s  GPUs  order now  USD/month")
    for month, (rate, plan) in enumerate(zip(rates, plans, strict=True)):
        held = max(held, plan.gpus)
        # what the fleet will need when an order placed today arrives
        ahead = plans[min(month + LEAD_MONTHS, 11)].gpus
        before = plans[min(month - 1 + LEAD_MONTHS, 11)].gpus if month else held
        cost = plan.cost_usd_per_hour * 730.0
        year += cost
        print(f"{month + 1:>5}  {rate:>10.0f}  {held:>4}  {max(ahead - before, 0):>9}  {cost:>9,.0f}")
    print(
        f"a year: {year:,.0f} USD; bought for the last month at once: {12 * 730.0 * plans[-1].cost_usd_per_hour:,.0f} USD"
    )


if __name__ == "__main__":
    main()
