"""Capacity over a year of growth: GPUs to hold in each month, and when to order them.

python examples/growth.py
"""

from __future__ import annotations

import planner as fo


def main() -> None:
    base = fo.plan("azure", slo=fo.Slo(ttft_s=1.0), rate=120.0, gpu="h100", method="occupancy", pools=1)
    ahead = fo.growth(base, "8%", lead_time="60d", months=12, start="2027-01-01")

    print("month       requests/s  GPUs  order by        USD/month")
    for month in ahead.months:
        gpus, cost = sum(month.gpus.values()), month.cost_usd_per_hour * 730.0
        print(f"{month.starts}  {month.rate_per_s:>10.0f}  {gpus:>4}  {month.order_by or '-':<10}  {cost:>13,.0f}")
    year = sum(month.cost_usd_per_hour for month in ahead.months) * 730.0
    at_once = 12 * 730.0 * ahead.months[-1].cost_usd_per_hour
    print(f"a year: {year:,.0f} USD; bought for the last month at once: {at_once:,.0f} USD")


if __name__ == "__main__":
    main()
