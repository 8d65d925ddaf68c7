"""Derived scalers against one that knows the future and a fixed 70%: ``benchmarks/autoscale.py [days|apart] [N [SEED]]``

Twenty scenarios: workloads, GPUs, promises, routings, start-up times and stretches of shipped services' days. A rule is derived
from the plan and paths of the day with the swings of the arrivals; hours of another path of it, as bursty below a minute as the
workload is, are simulated iteration by iteration. Into docs/data, summed up as docs/autoscale.md has it: windows within every
promise, and paid replica-hours over those of the perfect scaler (every window's need, started ahead), of the derived rule and of
70% of capacity.

``days [SEED]`` holds the rule of every pair of workload and hardware, derived from three days, against the plan held flat, its
schedule, 70% of capacity and llm-d's default knobs over another whole day: every five-minute window's requests are replayed by as
many replicas as serve in it throughout, after a minute of the same rate that fills them.

``apart [N [SEED]]`` simulates scenarios of prefill and decode pools, each with a rule of its own.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import planner as fo
from planner.autoscale.backtest import (
    Capacity,
    Threshold,
    capacity_of,
    clock_counts,
    perfect_counts,
    run_policy,
    serving_of,
    threshold_of,
)
from planner.autoscale.derive import LLM_D, USUAL, derive_policy
from planner.autoscale.windows import (
    STEP_S,
    WINDOW_S,
    Signals,
    arrivals_along,
    drawn_requests,
    hourly_path,
    latencies,
    peak_prefill,
    served,
    signals_of,
    swings,
)
from planner.fleet.fleet import Fleet
from planner.fleet.shapes.disaggregated import Disaggregated
from planner.monitor.policy import Pace, Policy, Scaler
from planner.studies.schedule import needs_of
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
    signals: Signals
    policy: Policy
    startup_s: float
    path: Floats
    hours: tuple[float, ...]


def derived(k: int, seed: int, windows: str | None = None) -> Derived:
    workload, gpu, model, rate, promises = KINDS[k % len(KINDS)]
    day, routing, startup = DAYS[k % 4], ROUTINGS[(k // 5 + k) % 4], STARTUPS[(k // 4 + k) % 4]
    plan = fo.plan(
        workload=workload,
        gpu=gpu,
        model=model,
        rate=rate,
        pools=1,
        routing=routing,
        confidence=0.5,
        windows=windows,
        **promises,
    )
    fleet = fleet_of(plan)
    (pool,) = fleet.pools
    hours = hourly_rates(day).rates_per_s(rate, "peak")
    mean, arrivals = hourly_path(hours), fleet.question.traffic.arrivals
    paths = [swings(mean, arrivals, np.random.Generator(np.random.PCG64([seed, k, j]))) for j in range(4)]
    capacity = capacity_of(fleet, 0, most=3 * pool.bought)
    threshold, signals = threshold_of(fleet, 0, capacity), signals_of(fleet, 0, peak_prefill(pool))
    policy, _ = derive_policy(capacity, [p[: round(86_400 / STEP_S)] for p in paths[:3]], startup, signals)
    title = f"{workload} {gpu} {routing} | {promises['slo']:g}, {promises['tpot']:g} | {startup:g}"
    return Derived(title, fleet, capacity, threshold, signals, policy, startup, paths[3], tuple(hours[:24]))


def write(name: str, table: list[list[str]]) -> None:
    """A table of docs/data."""
    with (Path(__file__).resolve().parents[1] / "docs" / "data" / name).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(table)


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
    rows, table = (
        [],
        [
            [
                "",
                "scenario",
                "promises [s]",
                "start [s]",
                "replicas",
                "load where promises break",
                "windows kept",
                "cost",
            ]
        ],
    )
    for k in range(scenarios):
        workload, gpu, model, rate, promises = APART[k % len(APART)]
        day, routing, startup = DAYS[k % 4], ROUTINGS[(k // 4 + k) % 4], STARTUPS[(k // 4 + k) % 4]
        plan = fo.plan(
            workload=workload,
            gpu=gpu,
            model=model,
            rate=rate,
            shape="disaggregated",
            routing=routing,
            confidence=0.5,
            windows="5min",
            **promises,
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
            threshold, signals = threshold_of(fleet, j, capacity), signals_of(fleet, j, peak_prefill(pool))
            policy, _ = derive_policy(capacity, [p[: round(86_400 / STEP_S)] for p in own[:3]], startup, signals)
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
        kept_here, cost_here = f"{served.within:.0%}", f"{paid / perfect:.2f}"
        table.append([str(k + 1), title, told, f"{startup:g}", counts, breaks, kept_here, cost_here])
        print(f"{title}: {kept_here} of the windows at {cost_here}", flush=True)
    write("autoscale-apart.csv", table)
    kept, dear = np.array(rows).T
    enough = (kept >= 0.95).sum()
    print(
        f"\n{kept.mean():.1%} of windows; 95% in {enough} of {scenarios}; cost {dear.mean():.2f}, at most {dear.max():.2f}"
    )
    return 0


def scenario(k: int, seed: int) -> tuple[str, list[float]]:
    d = derived(k, seed, "5min")
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


def days(seed: int) -> int:
    """What rules keep over a day that none was derived from, replayed window by window, and what they cost."""
    print("| scenario | TTFT, TPOT [s] | start [s] | " + " | ".join(RULES) + " |")
    print("|:--|--:|--:|" + "--:|" * len(RULES))
    table = np.array([_day(k, seed) for k in range(len(KINDS))])
    kept, windows, cost = table[:, :, 0] >= 0.99, table[:, :, 1], table[:, :, 2]
    print(
        f"\npromise kept on {', '.join(f'{name}: {n} of 5' for name, n in zip(RULES, kept.sum(axis=0), strict=True))}"
    )
    print(f"windows kept: {', '.join(f'{name} {w:.1%}' for name, w in zip(RULES, windows.mean(axis=0), strict=True))}")
    ours = RULES.index("derived")
    for name in ("70% of capacity", "llm-d's defaults"):
        k = RULES.index(name)
        better = [
            (kept[j, ours] and not kept[j, k]) or (kept[j, ours] >= kept[j, k] and cost[j, ours] <= cost[j, k])
            for j in range(len(KINDS))
        ]
        print(
            f"better than {name} on {sum(better)} of 5 days, cost {cost[:, ours].sum() / cost[:, k].sum():.2f} of its"
        )
    return 0


RULES = ("derived", "this plan, held flat", "schedule", "70% of capacity", "llm-d's defaults")


def _day(k: int, seed: int) -> list[tuple[float, float, float]]:
    """Requests within the promise, windows that keep it, and cost over the plan's, of every rule."""
    d = derived(k, seed)
    (pool,), path, startup = d.fleet.pools, d.path[: round(86_400 / STEP_S)], d.startup_s
    needs = needs_of(d.fleet, d.hours)
    usual = Policy({"requests": USUAL * pool.model.capacity_per_s}, 1, d.capacity.most)
    theirs = Policy(LLM_D[0], 1, d.capacity.most, *LLM_D[1:], flat=frozenset({"saturation"}), up=Pace(((100.0, 15.0),)))
    courses = (
        run_policy(d.policy, path, startup, d.signals),
        np.full(path.size, pool.bought),
        clock_counts([pool.option.price.bought(needs[r][0]) for r in d.hours], path.size, startup),
        run_policy(usual, path, startup, d.signals),
        run_policy(theirs, path, startup, d.signals),
    )
    size, known = round(WINDOW_S / STEP_S), dict[tuple[int, int], tuple[int, list[int]]]()
    arrivals, promises = d.fleet.question.traffic.arrivals, d.fleet.promises.latency

    def served_in(window: int, replicas: int) -> tuple[int, list[int]]:
        """Requests of a window, and those within each promise."""
        if (window, replicas) not in known:
            rng = np.random.Generator(np.random.PCG64([seed, k, 1000 + window]))
            rates = path[window * size : (window + 1) * size]
            times = arrivals_along(np.concatenate((np.full(4, rates[0]), rates)), arrivals, rng)
            work = served(d.fleet, 0, replicas * pool.option.copies, drawn_requests(pool.law, times, rng))
            values, mine = latencies(work), times >= 60.0
            inside = [int((values[p.metric][mine] <= p.limit_s).sum()) for p in promises]
            known[window, replicas] = int(mine.sum()), inside
        return known[window, replicas]

    rows = []
    for paid in courses:
        serving = serving_of(paid, startup).reshape(-1, size).min(axis=1)
        seen = [served_in(window, int(n)) for window, n in enumerate(serving)]
        came = np.array([n for n, _ in seen])
        inside = np.array([hits for _, hits in seen])
        good = (inside >= np.array([p.quantile for p in promises]) * came[:, None]).all(axis=1)
        rows.append((float((inside.sum(axis=0) / came.sum()).min()), float(good.mean()), paid.sum() / courses[1].sum()))
    told = " | ".join(f"{share:.2%}, {windows:.0%}, {cost:.2f}" for share, windows, cost in rows)
    print(f"| {d.title} | {told} |", flush=True)
    return rows


def main(scenarios: int, seed: int) -> int:
    rows = []
    head = "|scenario|TTFT, TPOT [s]|start [s]|replicas|threshold load|derived: windows, cost|70%: windows, cost"
    table = [head.split("|")]
    for k in range(scenarios):
        title, found = scenario(k, seed)
        rows.append(found)
        perfect, derived, usual = found[0], found[1:3], found[3:5]
        told = [f"{kept:.0%}, {cost / perfect:.2f}" for kept, cost in (derived, usual)]
        table.append([str(k + 1), *title.split(" | "), *told])
        print(f"{title}: {told}", flush=True)
    write("autoscale.csv", table)
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
    if sys.argv[1:2] == ["days"]:
        sys.exit(days(int(sys.argv[2]) if len(sys.argv) > 2 else 1))
    given = [int(a) for a in sys.argv[1:]]
    sys.exit(main(*(given + [20, 1][len(given) :])))
