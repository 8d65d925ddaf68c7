"""GPU types side by side for one model and one set of promises: fleet, cost, and how sure the numbers are.

python examples/compare_gpus.py
"""

from __future__ import annotations

import planner as fo

GPUS = ["a100", "l40s", "h100", "h200"]


def main() -> None:
    slo = fo.Slo(ttft_s=1.0, tpot_s=0.1)
    base = fo.plan("azure", slo=slo, rate=300, gpu="h100", model="llama-3.1-8b", method="occupancy", pools=1)
    sweep = fo.what_if(base, gpu=GPUS)

    print("GPU            replicas  (band)    USD/hour  USD/M tokens  P99 TTFT  iteration times")
    for gpu, point in zip(GPUS, sweep.points, strict=True):
        if point.plan is None:
            print(f"{gpu:<13} {point.error}")
            continue
        pool = point.plan.pools[0]
        ttft = pool.quantile("ttft_s", 0.99) or float("nan")
        print(
            f"{pool.gpu:<13} {pool.replicas:>9}  {f'({pool.replicas_low}-{pool.replicas_high})':<9}"
            f"{point.plan.cost_usd_per_hour:>9.2f}  {point.plan.cost_usd_per_million_tokens:>12.3f}"
            f"  {ttft:>6.2f} s  {pool.provenance}"
        )
    best = min(sweep.feasible(), key=lambda p: p.cost_usd_per_hour)
    print(f"cheapest: {best.pools[0].gpu}")


if __name__ == "__main__":
    main()
