"""Derived scalers against one that knows the future and a fixed 70%: ``benchmarks/autoscale.py [shares|apart] [N [SEED]]``

Twenty scenarios: workloads, GPUs, promises, routings, start-up times and stretches of shipped services' days. A rule is derived
from the plan and paths of the day with the swings of the arrivals; hours of another path of it, as bursty below a minute as the
workload is, are simulated iteration by iteration. Printed, as docs/autoscale.md has it: five-minute windows within every promise,
and paid replica-hours over those of the perfect scaler (every window's need, started ahead), of the derived rule and of 70% of
capacity.

``shares`` holds the rule of every pair of workload and hardware against fixed shares of the capacity over another day of it, by the
windows' own law (no simulation): what the share costs that is expected to keep as many windows; the number after it is the seed.

``apart [N [SEED]]`` simulates scenarios of prefill and decode pools, each with a rule of its own.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import planner as fo
from planner.autoscale.backtest import Running, outcome, perfect_counts, run_policy
from planner.autoscale.derive import USUAL, derive_policy, running_of
from planner.autoscale.path import STEP_S, hourly_path, swings
from planner.autoscale.policy import Policy, Scaler
from planner.autoscale.thresholds import Capacity, Threshold, capacity_of, threshold_of
from planner.fleet.fleet import Fleet
from planner.fleet.shapes.disaggregated import Disaggregated
from planner.workload.hours import hourly_rates
from tests.autoscale.elastic import WARM_UP_S, Decide, Scaled, simulate_elastic, simulate_elastic_pair
from tests.monitor.exporter import fleet_of

Floats = NDArray[np.float64]

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


@dataclass(frozen=True)
class Derived:
    """A scenario's fleet, the rule derived from three paths of its day, and a fourth path."""

    title: str
    fleet: Fleet
    capacity: Capacity
    threshold: Threshold
    running: Running
    policy: Policy
    startup_s: float
    path: Floats


def derived(k: int, seed: int) -> Derived:
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
    title = f"{workload} {gpu} {routing} | {promises['slo']:g}, {promises['tpot']:g} | {startup:g}"
    return Derived(title, fleet, capacity, threshold, running, policy, startup, paths[3])


def follow(rule: Policy, start: int) -> Decide:
    """The rule as a simulated pool asks it."""
    scaler = Scaler(rule, max(start, rule.least))

    def decide(step: int, now: float, metrics: dict[str, float]) -> int:
        if not metrics:
            return scaler.replicas
        totals = dict(metrics)
        totals["requests"] = max(0.0, totals["requests"] + rule.offset_per_s)
        return scaler.decide(now, totals)

    return decide


APART = [
    ("azure", "h100", "llama-3.1-8b", 60.0, {"slo": 0.5, "tpot": 0.05}),
    ("azure-conv", "a100", "llama-3.1-8b", 30.0, {"slo": 1.0, "tpot": 0.04}),
    ("lmsys", "l40s", "llama-3.1-8b", 40.0, {"slo": 1.0, "e2e": 25.0}),
    ("azure", "h100", "llama-3.1-70b", 12.0, {"slo": 3.0, "tpot": 0.06}),
]


def apart(scenarios: int, seed: int) -> int:
    """Prefill and decode pools, each scaled by its own rule, over two simulated hours; cost over the perfect scalers'."""
    print("| | scenario | promises [s] | start [s] | replicas | load where promises break | windows kept | cost |")
    print("|--:|:--|:--|--:|--:|--:|--:|--:|")
    rows = []
    for k in range(scenarios):
        workload, gpu, model, rate, promises = APART[k % len(APART)]
        day, routing, startup = DAYS[k % 4], ROUTINGS[(k // 4 + k) % 4], STARTUPS[(k // 4 + k) % 4]
        plan = fo.plan(
            workload=workload, gpu=gpu, model=model, rate=rate, shape="disaggregated", routing=routing, **promises
        )
        fleet = fleet_of(plan)
        assert isinstance(fleet, Disaggregated)
        mean = hourly_path(hourly_rates(day).rates_per_s(rate, "peak"))
        arrivals = fleet.question.traffic.arrivals
        paths = [swings(mean, arrivals, np.random.Generator(np.random.PCG64([seed, k, j]))) for j in range(4)]
        length, warm = round((LENGTH_S + WARM_UP_S) / STEP_S), round(WARM_UP_S / STEP_S)
        begin = int(np.random.Generator(np.random.PCG64([seed, k, 9])).integers(0, round(86_400 / STEP_S) - length))
        rates = paths[3][begin : begin + length]
        scaled, perfect, loads, cost = [], 0.0, [], []
        for j, pool in enumerate(fleet.pools):
            own = [pool.law.share * p for p in paths]
            capacity = capacity_of(fleet, j, most=3 * pool.bought)
            threshold, running = threshold_of(fleet, j, capacity), running_of(fleet, pool, capacity)
            policy, _ = derive_policy(
                capacity, threshold, [p[: round(86_400 / STEP_S)] for p in own[:3]], startup, running
            )
            start = capacity.needed(float(pool.law.share * rates[:20].mean()))
            scaled.append(Scaled(follow(policy, start), max(start, policy.least), policy.rate_window_s))
            each = pool.option.price.cost_usd_per_hour(pool.bought) / pool.bought
            perfect += (
                each * float(perfect_counts(pool.law.share * rates, capacity, startup)[warm:].sum()) * STEP_S / 3600.0
            )
            loads.append(threshold.load)
            cost.append(each)
        served = simulate_elastic_pair(fleet, rates, (scaled[0], scaled[1]), startup, seed=1000 * seed + k)
        paid = sum(usd * hours for usd, hours in zip(cost, served.by_pool, strict=True))
        rows.append((served.within, paid / perfect))
        told = ", ".join(f"{name} {limit:g}" for name, limit in promises.items())
        counts, breaks = (" + ".join(x) for x in ([str(s.first) for s in scaled], [f"{x:.2f}" for x in loads]))
        title = f"{workload} {gpu} {model} {routing}"
        print(
            f"| {k + 1} | {title} | {told} | {startup:g} | {counts} | {breaks} | {served.within:.0%} | {paid / perfect:.2f} |",
            flush=True,
        )
    kept, dear = np.array(rows).T
    enough = (kept >= 0.95).sum()
    print(
        f"\n{kept.mean():.1%} of windows; 95% in {enough} of {scenarios}; cost {dear.mean():.2f}, at most {dear.max():.2f}"
    )
    return 0


def scenario(k: int, seed: int) -> tuple[str, list[float]]:
    d = derived(k, seed)
    fleet, capacity, policy, startup = d.fleet, d.capacity, d.policy, d.startup_s
    (pool,) = fleet.pools
    # an hour of another path, begun anywhere in its first day
    begin = int(
        np.random.Generator(np.random.PCG64([seed, k, 9])).integers(0, round((86_400 - LENGTH_S - WARM_UP_S) / STEP_S))
    )
    rates = d.path[begin : begin + round((LENGTH_S + WARM_UP_S) / STEP_S)]
    start = capacity.needed(float(rates[:20].mean()))

    ahead = perfect_counts(rates, capacity, startup)
    usual = Policy({"requests": USUAL * pool.model.capacity_per_s}, 1, capacity.most)
    courses = [
        (follow(policy, start), start, policy.rate_window_s),
        (follow(usual, start), start, usual.rate_window_s),
    ]
    warm = round(WARM_UP_S / STEP_S)
    found = [float(ahead[warm:].sum()) * STEP_S / 3600.0]
    for decide, first, window in courses:
        served = simulate_elastic(fleet, rates, decide, first, startup, window, seed=1000 * seed + k)
        found += [served.within, served.replica_hours]
    return f"{d.title} | {start} | {d.threshold.load:.2f}", found


def shares(seed: int) -> int:
    """What a fixed share of the capacity costs that keeps as many windows as the derived rule does."""
    print(
        "| scenario | TTFT, TPOT [s] | start [s] | derived: windows, cost | 70% | share that keeps as many | its cost |"
    )
    print("|:--|--:|--:|--:|--:|--:|--:|")
    for k in range(len(KINDS)):
        d = derived(k, seed)
        path = d.path[: round(86_400 / STEP_S)]
        top = d.fleet.pools[0].model.capacity_per_s

        def told(policy: Policy, d: Derived = d, path: Floats = path) -> tuple[float, float]:
            paid = run_policy(policy, path, d.startup_s, d.running)
            found = outcome("", path, paid, d.capacity, d.startup_s)
            perfect = perfect_counts(path, d.capacity, d.startup_s).sum() * STEP_S / 3600.0
            return found.attained, found.replica_hours / perfect

        def fixed(share: float, d: Derived = d, top: float = top) -> tuple[float, float]:
            return told(Policy({"requests": share * top}, 1, d.capacity.most))

        ours, usual = told(d.policy), fixed(USUAL)
        share = next(u for u in np.arange(0.95, 0.04, -0.01) if fixed(u)[0] >= ours[0])
        row = " | ".join(f"{kept:.1%}, {cost:.2f}" for kept, cost in (ours, usual))
        print(f"| {d.title} | {row} | {share:.2f} | {fixed(share)[1]:.2f} |", flush=True)
    return 0


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
    if sys.argv[1:2] == ["apart"]:
        given = [int(a) for a in sys.argv[2:]]
        sys.exit(apart(*(given + [8, 1][len(given) :])))
    if sys.argv[1:2] == ["shares"]:
        sys.exit(shares(int(sys.argv[2]) if len(sys.argv) > 2 else 1))
    given = [int(a) for a in sys.argv[1:]]
    sys.exit(main(*(given + [20, 1][len(given) :])))
