"""Derived scalers against one that knows the future and a fixed 70%: ``python benchmarks/autoscale.py [N [SEED]]``

Twenty scenarios: workloads, GPUs, promises, routings, start-up times and stretches of shipped services' days. A rule is derived
from the plan and paths of the day with the swings of the arrivals; hours of another path of it, as bursty below a minute as the
workload is, are simulated iteration by iteration. Printed, as docs/autoscale.md has it: five-minute windows within every promise,
and paid replica-hours over those of the perfect scaler (every window's need, started ahead), of the derived rule and of 70% of
capacity.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import planner as fo
from planner.autoscale.backtest import perfect_counts
from planner.autoscale.derive import USUAL, derive_policy, running_of
from planner.autoscale.path import STEP_S, hourly_path, swings
from planner.autoscale.policy import Policy, Scaler
from planner.autoscale.thresholds import capacity_of, threshold_of
from planner.workload.hours import hourly_rates
from tests.autoscale.elastic import WARM_UP_S, simulate_elastic
from tests.monitor.exporter import fleet_of

TIGHT, LOOSE = {"slo": 1.0, "tpot": 0.06}, {"slo": 4.0, "tpot": 0.15}
KINDS = [
    ("azure", "l40s", "llama-3.1-8b", 14.0, {"slo": 1.5, "tpot": 0.08}),
    ("azure", "a100", "llama-3.1-8b", 30.0, TIGHT),
    ("azure", "a100", "llama-3.1-8b", 40.0, LOOSE),
    ("lmsys", "l40s", "llama-3.1-8b", 40.0, LOOSE),
    ("azure-conv", "h100", "llama-3.1-70b", 12.0, LOOSE),
]
DAYS = ("servegen-m-small", "servegen-m-large", "servegen-deepseek-r1", "servegen-m-mid")
ROUTINGS = ("random", "p2c", "least", "p2c")
STARTUPS = (60.0, 110.0, 180.0, 300.0)
LENGTH_S = 7200.0


def scenario(k: int, seed: int) -> tuple[str, list[float]]:
    workload, gpu, model, rate, promises = KINDS[k % len(KINDS)]
    day, routing, startup = DAYS[k % 4], ROUTINGS[(k // 5 + k) % 4], STARTUPS[(k // 4 + k) % 4]
    plan = fo.plan(workload=workload, gpu=gpu, model=model, rate=rate, pools=1, routing=routing, **promises)
    fleet = fleet_of(plan)
    (pool,) = fleet.pools
    mean = hourly_path(hourly_rates(day).rates_per_s(rate, "peak"))
    arrivals = fleet.question.traffic.arrivals
    paths = [swings(mean, arrivals, np.random.Generator(np.random.PCG64([seed, k, j]))) for j in range(4)]
    capacity = capacity_of(fleet, 0, most=3 * pool.bought)
    threshold, running = threshold_of(fleet, 0, capacity), running_of(fleet, pool, capacity)
    policy, _ = derive_policy(capacity, threshold, [p[: round(86_400 / STEP_S)] for p in paths[:3]], startup, running)
    # an hour of another path, begun anywhere in its first day
    begin = int(
        np.random.Generator(np.random.PCG64([seed, k, 9])).integers(0, round((86_400 - LENGTH_S - WARM_UP_S) / STEP_S))
    )
    rates = paths[3][begin : begin + round((LENGTH_S + WARM_UP_S) / STEP_S)]
    start = capacity.needed(float(rates[:20].mean()))

    def follow(rule: Policy) -> object:
        scaler = Scaler(rule, max(start, rule.least))

        def decide(step: int, now: float, metrics: dict[str, float]) -> int:
            if not metrics:
                return scaler.replicas
            totals = dict(metrics)
            totals["requests"] = max(0.0, totals["requests"] + rule.offset_per_s)
            return scaler.decide(now, totals)

        return decide

    ahead = perfect_counts(rates, capacity, startup)
    usual = Policy({"requests": USUAL * pool.model.capacity_per_s}, 1, capacity.most)
    courses = [
        (follow(policy), start, policy.rate_window_s),
        (follow(usual), start, usual.rate_window_s),
    ]
    warm = round(WARM_UP_S / STEP_S)
    found = [float(ahead[warm:].sum()) * STEP_S / 3600.0]
    for decide, first, window in courses:
        served = simulate_elastic(fleet, rates, decide, first, startup, window, seed=1000 * seed + k)
        found += [served.within, served.replica_hours]
    title = f"{workload} {gpu} {routing} | {promises['slo']:g}, {promises['tpot']:g} | {startup:g} | {start} | {threshold.load:.2f}"
    return title, found


def main(scenarios: int, seed: int) -> int:
    rows = []
    print(
        "| | scenario | TTFT, TPOT [s] | start [s] | replicas | threshold load | derived: windows, cost | 70%: windows, cost |"
    )
    print("|--:|:--|--:|--:|--:|--:|--:|--:|")
    for k in range(scenarios):
        title, found = scenario(k, seed)
        rows.append(found)
        perfect, derived, usual = found[0], found[1:3], found[3:5]
        told = " | ".join(f"{kept:.0%}, {cost / perfect:.2f}" for kept, cost in (derived, usual))
        print(f"| {k + 1} | {title} | {told} |", flush=True)
    perfect, ours, cost, theirs, paid = np.array(rows).T
    print(f"\nderived: {ours.mean():.1%} of windows at {cost.sum() / perfect.sum():.3f} of the perfect scaler's cost")
    print(f"70% of capacity: {theirs.mean():.1%} at {paid.sum() / perfect.sum():.3f}")
    kept, cheap, theirs_kept = ours >= 0.95, cost <= 1.10 * perfect, theirs >= 0.95
    print(f"95% of the windows: {kept.sum()} of {scenarios}, 70% of capacity {theirs_kept.sum()}")
    print(f"at most 1.10 of the perfect scaler's cost: {cheap.sum()}, and 95% with it: {(kept & cheap).sum()}")
    both = (ours >= theirs) & (cost <= paid)
    print(
        f"no worse than 70% on both: {both.sum()}; where 70% keeps 95% too: {(both & theirs_kept).sum()} of {theirs_kept.sum()}"
    )
    return 0


if __name__ == "__main__":
    given = [int(a) for a in sys.argv[1:]]
    sys.exit(main(*(given + [20, 1][len(given) :])))
