"""What a prefix cache is worth: GPUs and latency against the share of prompt tokens it serves.

python examples/prefix_cache.py
"""

from __future__ import annotations

import planner as fo

SHARES = [0.0, 0.4, 0.8]


def main() -> None:
    # prompts are nine times as long as answers here: prefill is what the fleet is bought for
    base = fo.plan("azure", slo=fo.Slo(ttft_s=1.0), rate=200, gpu="h100", method="mixed", pools=1, burst="poisson")
    # the standing fleet gets faster; the planned one gets smaller
    print("cached  P99 TTFT of today's fleet  GPUs needed  USD/hour")
    for share in SHARES:
        today = fo.evaluate(base, cached_share=share).to_rows()[0]
        plan = base if share == 0.0 else fo.what_if(base, cached_share=share).feasible()[0]
        print(f"{share:>6.0%}  {today['ttft_p99_s']:>23.3f} s  {plan.gpus:>11}  {plan.cost_usd_per_hour:>8.2f}")


if __name__ == "__main__":
    main()
