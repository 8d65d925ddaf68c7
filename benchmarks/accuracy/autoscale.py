"""Derived scalers against one that knows the future and a fixed 70%.

``python -m benchmarks.accuracy autoscale [N [SEED]]``:
Twenty scenarios: workloads, GPUs, promises, routings, start-up times and stretches of shipped services' days. A rule is derived
from the plan and paths of the day with the swings of the arrivals; hours of another path of it, as bursty below a minute as the
workload is, are simulated iteration by iteration. Into docs/data: windows within every promise, and paid replica-hours over those
of the perfect scaler (every window's need, started ahead), of the derived rule and of 70% of capacity.

``days [SEED]`` holds the rule of every pair of workload and hardware, derived from three days, against the plan held flat, its
schedule, 70% of capacity and llm-d's default knobs over another whole day: every five-minute window's requests are replayed by as
many replicas as serve in it throughout, after a minute of the same rate that fills them.

``apart [N [SEED]]`` simulates scenarios of prefill and decode pools, each with a rule of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import planner as fo
from planner.ask.schedule import needs_of
from planner.operate.autoscale.backtest import (
    Capacity,
    Threshold,
    capacity_of,
    clock_counts,
    perfect_counts,
    run_policy,
    serving_of,
    threshold_of,
)
from planner.operate.autoscale.derive import LLM_D, derive_policy
from planner.operate.autoscale.windows import (
    STEP_S,
    VALUES,
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
from planner.operate.monitor.policy import Policy, Scaler
from planner.size.fleet import Fleet
from planner.size.shapes.disaggregated import Disaggregated
from planner.workload.hours import hourly_rates
from tests.operate.autoscale.elastic import WARM_UP_S, Decide, Scaled, simulate_elastic, simulate_elastic_pair
from tests.operate.monitor.exporter import fleet_of
from tools.tables import markdown, write_csv

Floats = NDArray[np.float64]
Kind = tuple[str, str, str, float, dict[str, float]]
"""Workload, GPU, model, peak rate [1/s] and promises [s]."""

TIGHT, LOOSE = {"slo": 1.0, "tpot": 0.06}, {"slo": 4.0, "tpot": 0.15}
KINDS: tuple[Kind, ...] = (
    ("azure", "l40s", "llama-3.1-8b", 14.0, {"slo": 1.5, "tpot": 0.08}),
    ("azure", "a100", "llama-3.1-8b", 30.0, TIGHT),
    ("azure", "a100", "llama-3.1-8b", 40.0, LOOSE),
    ("lmsys", "l40s", "llama-3.1-8b", 40.0, LOOSE),
    ("azure-conv", "h100", "llama-3.1-70b", 12.0, LOOSE),
)
APART: tuple[Kind, ...] = (
    ("azure", "h100", "llama-3.1-8b", 60.0, {"slo": 0.5, "tpot": 0.05}),
    ("azure-conv", "a100", "llama-3.1-8b", 30.0, {"slo": 1.0, "tpot": 0.04}),
    ("lmsys", "l40s", "llama-3.1-8b", 40.0, {"slo": 1.0, "e2e": 25.0}),
    ("azure", "h100", "llama-3.1-70b", 12.0, {"slo": 3.0, "tpot": 0.06}),
)
DAYS = ("servegen-m-small", "servegen-m-large", "servegen-deepseek-r1", "servegen-m-mid")
ROUTINGS = ("random", "p2c", "least", "p2c")
STARTUPS = (60.0, 110.0, 180.0, 300.0)
LENGTH_S = 7200.0
DAY = round(86_400 / STEP_S)
"""Steps of a day."""

KEPT = 0.95
"""Share of windows from which a scenario counts as kept [1]."""


@dataclass(frozen=True)
class Rule:
    """A pool's scaler, derived from three paths of a day, and what it was derived with."""

    capacity: Capacity
    threshold: Threshold
    signals: Signals
    policy: Policy

    def scaled(self, rates: Floats) -> Scaled:
        """A pool that follows it, begun with what the first minutes need."""
        start = max(self.capacity.needed(float(rates[:20].mean())), self.policy.least)
        return Scaled(follow(self.policy, start), start, self.policy.rate_window_s)


@dataclass(frozen=True)
class Scenario:
    """A fleet, four paths of a day's rates [1/s], and how long a replica takes to start [s]."""

    number: int
    seed: int
    title: str
    promises: dict[str, float]
    fleet: Fleet
    paths: list[Floats]
    hours: tuple[float, ...]
    startup_s: float

    def rng(self, *more: int) -> np.random.Generator:
        """Random numbers of its own."""
        return np.random.Generator(np.random.PCG64([self.seed, self.number, *more]))

    def rule(self, index: int = 0, share: float = 1.0) -> Rule:
        """The rule of a pool that gets that share of the requests."""
        pool = self.fleet.pools[index]
        capacity = capacity_of(self.fleet, index, most=3 * pool.bought)
        threshold = threshold_of(self.fleet, index, capacity)
        signals = signals_of(self.fleet, index, peak_prefill(pool))
        policy, _ = derive_policy(capacity, [share * p[:DAY] for p in self.paths[:3]], self.startup_s, signals)
        return Rule(capacity, threshold, signals, policy)

    def stretch(self) -> Floats:
        """Two hours of the fourth path, begun anywhere in its first day, and what fills the fleet before."""
        length = round((LENGTH_S + WARM_UP_S) / STEP_S)
        begin = int(self.rng(9).integers(0, DAY - length))
        return self.paths[3][begin : begin + length]


def scenario(kinds: Sequence[Kind], k: int, seed: int, **options: Any) -> Scenario:
    """The scenario of that number."""
    workload, gpu, model, rate, promises = kinds[k % len(kinds)]
    day, routing, startup = DAYS[k % 4], ROUTINGS[(k // len(kinds) + k) % 4], STARTUPS[(k // 4 + k) % 4]
    plan = fo.plan(
        workload=workload, gpu=gpu, model=model, rate=rate, routing=routing, confidence=0.5, **options, **promises
    )
    fleet, hours = fleet_of(plan), hourly_rates(day).rates_per_s(rate, "peak")
    mean, arrivals = hourly_path(hours), fleet.question.traffic.arrivals
    paths = [swings(mean, arrivals, np.random.Generator(np.random.PCG64([seed, k, j]))) for j in range(4)]
    title = f"{workload} {gpu} {routing}"
    return Scenario(k, seed, title, promises, fleet, paths, tuple(hours[:24]), startup)


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


def told(promises: dict[str, float]) -> str:
    """``slo 1, tpot 0.06``."""
    return ", ".join(f"{name} {limit:g}" for name, limit in promises.items())


def windows(scenarios: int, seed: int) -> int:
    """One pool, by the derived rule and by 70% of capacity; cost over the perfect scaler's."""
    table = []
    for k in range(scenarios):
        s = scenario(KINDS, k, seed, pools=1, windows="5min")
        rule, rates = s.rule(), s.stretch()
        start = rule.capacity.needed(float(rates[:20].mean()))
        ahead = perfect_counts(rates, rule.capacity, s.startup_s)[round(WARM_UP_S / STEP_S) :]
        perfect = float(ahead.sum()) * STEP_S / 3600.0
        usual = Policy({"requests": VALUES["usual"] * s.fleet.pools[0].model.capacity_per_s}, 1, rule.capacity.most)
        found = []
        for policy in (rule.policy, usual):
            run = simulate_elastic(
                s.fleet, rates, follow(policy, start), start, s.startup_s, policy.rate_window_s, seed=1000 * seed + k
            )
            found += [run.within, run.replica_hours / perfect]
        cells = [f"{kept:.0%}, {cost:.2f}" for kept, cost in (found[:2], found[2:])]
        head = [str(k + 1), s.title, told(s.promises), f"{s.startup_s:g}", str(start), f"{rule.threshold.load:.2f}"]
        table.append([*head, *cells])
        print(f"{s.title}: {cells}", flush=True)
    head = "|scenario|promises [s]|start [s]|replicas|threshold load|derived: windows, cost|70%: windows, cost"
    write_csv("autoscale.csv", [head.split("|"), *table])
    return 0


def apart(scenarios: int, seed: int) -> int:
    """Prefill and decode pools, each scaled by its own rule, over two simulated hours; cost over the perfect scalers'."""
    rows, table = [], []
    for k in range(scenarios):
        s = scenario(APART, k, seed, shape="disaggregated", windows="5min")
        assert isinstance(s.fleet, Disaggregated)
        rates, scaled, perfect, loads, each = s.stretch(), [], 0.0, [], []
        for j, pool in enumerate(s.fleet.pools):
            rule, own = s.rule(j, pool.law.share), pool.law.share * rates
            each.append(pool.option.price.cost_usd_per_hour(pool.bought) / pool.bought)
            ahead = perfect_counts(own, rule.capacity, s.startup_s)[round(WARM_UP_S / STEP_S) :]
            perfect += each[-1] * float(ahead.sum()) * STEP_S / 3600.0
            scaled.append(rule.scaled(own))
            loads.append(f"{rule.threshold.load:.2f}")
        run = simulate_elastic_pair(s.fleet, rates, (scaled[0], scaled[1]), s.startup_s, seed=1000 * seed + k)
        cost = sum(usd * hours for usd, hours in zip(each, run.by_pool, strict=True)) / perfect
        rows.append((run.within, cost))
        counts = " + ".join(str(one.first) for one in scaled)
        cells = [f"{run.within:.0%}", f"{cost:.2f}"]
        table.append([str(k + 1), s.title, told(s.promises), f"{s.startup_s:g}", counts, " + ".join(loads), *cells])
        print(f"{s.title}: {cells[0]} of the windows at {cells[1]}", flush=True)
    head = "|scenario|promises [s]|start [s]|replicas|load where promises break|windows kept|cost"
    write_csv("autoscale-apart.csv", [head.split("|"), *table])
    kept, dear = np.array(rows).T
    enough = (kept >= KEPT).sum()
    print(f"{kept.mean():.1%} of windows; 95% in {enough} of {scenarios}; cost {dear.min():.2f} to {dear.max():.2f}")
    return 0


RULES = ("derived", "this plan, held flat", "schedule", "70% of capacity", "llm-d's defaults")


def days(_: int, seed: int) -> int:
    """What rules keep over a day that none was derived from, replayed window by window, and what they cost."""
    rows, found = [], []
    for k in range(len(KINDS)):
        s = scenario(KINDS, k, seed, pools=1)
        found.append(of_day(s))
        limits = f"{s.promises['slo']:g}, {s.promises['tpot']:g}"
        rows.append((s.title, limits, f"{s.startup_s:g}", *(f"{a:.2%}, {b:.0%}, {c:.2f}" for a, b, c in found[-1])))
        print(rows[-1], flush=True)
    print(markdown(("scenario", "TTFT, TPOT [s]", "start [s]", *RULES), rows))
    within = (np.array(found)[:, :, 0] >= 0.99).sum(axis=0)
    print(f"promise kept on {', '.join(f'{name}: {n} of 5' for name, n in zip(RULES, within, strict=True))}")
    return 0


def of_day(s: Scenario) -> list[tuple[float, float, float]]:
    """Requests within the promise, windows that keep it, and cost over the plan's, of every rule."""
    rule, (pool,), path, startup = s.rule(), s.fleet.pools, s.paths[3][:DAY], s.startup_s
    needs, most = needs_of(s.fleet, s.hours), rule.capacity.most
    usual = Policy({"requests": VALUES["usual"] * pool.model.capacity_per_s}, 1, most)
    theirs = replace(LLM_D, most=most)
    courses = (
        run_policy(rule.policy, path, startup, rule.signals),
        np.full(path.size, pool.bought),
        clock_counts([pool.option.price.bought(needs[r][0]) for r in s.hours], path.size, startup),
        run_policy(usual, path, startup, rule.signals),
        run_policy(theirs, path, startup, rule.signals),
    )
    size, arrivals, promises = round(WINDOW_S / STEP_S), s.fleet.question.traffic.arrivals, s.fleet.promises.latency

    @cache
    def served_in(window: int, replicas: int) -> tuple[int, list[int]]:
        """Requests of a window, and those within each promise."""
        rng, rates = s.rng(1000 + window), path[window * size : (window + 1) * size]
        times = arrivals_along(np.concatenate((np.full(4, rates[0]), rates)), arrivals, rng)
        work = served(s.fleet, 0, replicas * pool.option.copies, drawn_requests(pool.law, times, rng))
        values, mine = latencies(work), times >= 60.0
        return int(mine.sum()), [int((values[p.metric][mine] <= p.limit_s).sum()) for p in promises]

    rows = []
    for paid in courses:
        serving = serving_of(paid, startup).reshape(-1, size).min(axis=1)
        seen = [served_in(window, int(n)) for window, n in enumerate(serving)]
        came, inside = np.array([n for n, _ in seen]), np.array([hits for _, hits in seen])
        good = (inside >= np.array([p.quantile for p in promises]) * came[:, None]).all(axis=1)
        rows.append((float((inside.sum(axis=0) / came.sum()).min()), float(good.mean()), paid.sum() / courses[1].sum()))
    return rows


def main(words: Sequence[str]) -> int:
    """One of the three; a day has no number of scenarios."""
    given = [int(word) for word in words if word.isdigit()]
    if "days" in words:
        return days(len(KINDS), *(given or [1]))
    run, usual = (apart, (8, 1)) if "apart" in words else (windows, (20, 1))
    return run(*[*given, *usual[len(given) :]])
