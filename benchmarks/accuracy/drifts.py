"""Does `check` name what was planted, and nothing else? ``python -m benchmarks.accuracy drifts [apart|scaled] [REQUESTS [SEED]]``

Three plans; a simulator with other seeds stands in for their fleets and answers as Prometheus would. Six drifts of each (rate x2,
outputs +30%, iteration time +20%, cached share halved, a replica lost, routing at random) must each be named, and nothing else;
twenty runs as planned, ten of them of a fourth plan whose gateway does not look, must name nothing.

``apart``: three plans of prefill and decode pools, drifts planted in one pool or the other, and twelve quiet runs.

``scaled [DAYS [SEED]]``: the rules of a fleet that its derived scaler sizes, over 20 days of traffic, as a fleet that starts and
ends replicas shows them; nothing may fire. Then one replica fails to come for three hours of the last day, which must.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import planner as fo
from planner.operate.autoscale.backtest import run_policy, serving_of
from planner.operate.autoscale.objects import Place, render
from planner.operate.autoscale.windows import STEP_S as path_step
from planner.operate.autoscale.windows import hourly_path, signals_of, swings
from planner.workload.hours import hourly_rates
from tests.operate.monitor.exporter import exported, exported_pair, fleet_of
from tests.operate.monitor.fluid import STEP_S, Course, scraped
from tests.operate.monitor.promql import Store, fired

PLANS: dict[str, dict[str, Any]] = {
    "azure, p2c": {"workload": "azure", "rate": 60, "slo": 0.5, "tpot": 0.05, "routing": "p2c", "cached_share": 0.5},
    "lmsys, least": {"workload": "lmsys", "rate": 150, "slo": 0.5, "routing": "least", "cached_share": 0.4},
    "azure, a100, p2c": {"workload": "azure", "rate": 25, "slo": 1.0, "gpu": "a100", "routing": "p2c", "cached_share": 0.6},
    "azure, random": {"workload": "azure", "rate": 40, "slo": 0.5, "routing": "random"},
}  # fmt: skip
APART: dict[str, dict[str, Any]] = {
    "azure, p2c": {"workload": "azure", "rate": 60, "slo": 0.5, "tpot": 0.05, "cached_share": 0.5},
    "lmsys, a100": {"workload": "lmsys", "rate": 150, "slo": 0.5, "e2e": 15.0, "gpu": "a100", "cached_share": 0.4},
    "azure, random": {"workload": "azure", "rate": 100, "slo": 0.5, "tpot": 0.03, "routing": "random", "cached_share": 0.3},
}  # fmt: skip

Drift = tuple[str, str, dict[str, Any]]
"""Pool (none named where there is one), component that must be named (none = quiet), and what happens."""

DRIFTS: tuple[Drift, ...] = (
    ("", "traffic", {"rate": 2.0}),
    ("", "output lengths", {"outputs": 1.3}),
    ("", "iteration time", {"slower": 1.2}),
    ("", "cache", {"cached": 0.5}),
    ("", "replicas", {"lost": 1}),
    ("", "routing", {"routing": "random"}),
)
DRIFTS_APART: tuple[Drift, ...] = (
    ("prefill", "traffic", {"rate": 2.0}),
    ("decode", "output lengths", {"outputs": 1.3}),
    ("prefill", "iteration time", {"slower_prefill": 1.2}),
    ("decode", "iteration time", {"slower_decode": 1.2}),
    ("prefill", "cache", {"cached": 0.5}),
    ("prefill", "replicas", {"lost_prefill": 1}),
    ("decode", "replicas", {"lost_decode": 1}),
)
QUIET: Drift = ("", "", {})

Case = tuple[str, int, Drift]
"""Plan, seed and drift."""


def one_pool() -> Iterator[Case]:
    """Drifts of the first three plans, and twenty quiet runs."""
    names = [*PLANS]
    for k, name in enumerate(names[:3]):
        yield from ((name, 10 * k + j, drift) for j, drift in enumerate(DRIFTS))
    for k in range(20):
        yield "azure, random" if k % 2 else names[k // 2 % 3], 100 + k, QUIET


def two_pools() -> Iterator[Case]:
    """Drifts of every plan and four quiet runs of it."""
    several = [(name, drift) for name in APART for drift in (*DRIFTS_APART, *[QUIET] * 4)]
    yield from ((name, seed, drift) for seed, (name, drift) in enumerate(several))


def planted(
    plans: Mapping[str, fo.Plan], cases: Iterable[Case], export: Callable[..., Any], requests: int, first: int
) -> int:
    """What is named of each case; 0 where all that must be is, and in quiet runs nothing."""
    drifts = right = also = runs = quiet = calm = 0
    for name, seed, (pool, component, drift) in cases:
        found = fo.check(plans[name], export(plans[name], first + seed, requests, **drift))
        named = [(place if pool else "", moved.component) for place, moved in found.moved]
        if component:
            drifts += 1
            right += (pool, component) in named
            # a queue that grows in front of the prefill pool is less traffic for the other
            also += len([x for x in named if x != (pool, component) and x != ("decode", "traffic")])
        else:
            runs += 1
            quiet += not named
            calm += found.state == "kept"
        told = ", ".join(f"{place} {moved}".strip() for place, moved in named) or "nothing"
        print(f"{name}, {f'{pool} {component}'.strip() or 'quiet'}: {told} ({found.state})", flush=True)
    print(
        f"named {right} of {drifts}, {also} others with them; nothing named in {quiet} of {runs} quiet cases, kept in {calm}"
    )
    return 0 if right == drifts and quiet == runs else 1


def scaled(days: int, seed: int) -> int:
    """Rules about replicas and traffic of a scaled fleet over days, and again with a replica missing."""
    plan = fo.plan(pools=1, workload="azure", rate=60, slo=0.5, confidence=0.5)
    found = fo.autoscale(plan, hours="servegen-m-small", startup="110s")
    (pool,), fleet = found.pools, fleet_of(plan)
    hours = hourly_rates("servegen-m-small").rates_per_s(60.0, "peak")
    rng = np.random.Generator(np.random.PCG64(seed))
    path = swings(hourly_path(hours[:24] * days), fleet.question.traffic.arrivals, rng)
    paid = run_policy(pool.policy, path, 110.0, signals_of(fleet, 0, pool.peak))
    serving = serving_of(paid, 110.0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keda.yaml"
        file.write_text(render(found, "keda", Place(namespace="chat")))
        files = fo.monitoring_rules(plan, policy=[file], namespace="chat", deployed="k8s")
    about = ("requests:", "replicas:", "Replica", "Scaler", "Traffic")
    groups = yaml.safe_load(files["fleetopt-rules.yaml"])["groups"]
    rules = [
        {"rules": [r for g in groups for r in g["rules"] if any(a in r.get("record", r.get("alert")) for a in about)]}
    ]
    every, model = round(STEP_S / path_step), "meta-llama/Llama-3.1-8B-Instruct"

    def fire(replicas: np.ndarray, begin: float, end: float) -> dict[str, int]:
        course = Course(
            rate=np.append(path, path[-1])[::every], replicas=np.append(replicas, replicas[-1])[::every], late={}
        )
        store = Store(scraped(24.0 * days, course, model=model, latencies=False))
        return {k: len(v) for k, v in fired(rules, store, np.arange(begin, end, 120.0).tolist()).items()}

    quiet = fire(serving, 0.0, 86_400.0 * days)
    starts = int((np.diff(paid) > 0).sum())
    print(
        f"{days} days, {serving.min()} to {serving.max()} replicas, {starts} starts: {quiet or 'nothing'} fires",
        flush=True,
    )
    last = round(86_400.0 * (days - 1) / path_step)
    lost = serving.copy()
    lost[last : last + round(10_800 / path_step)] -= 1
    loud = fire(lost, 86_400.0 * (days - 1), 86_400.0 * days)
    print(f"a replica missing for three hours: {loud or 'nothing'} fires")
    return 0 if not quiet and set(loud) == {"FleetoptReplicaMissing warning"} else 1


def main(words: Sequence[str]) -> int:
    """One of the three."""
    given = [int(word) for word in words if word.isdigit()]
    first, second, *_ = [*given, *((20, 100) if "scaled" in words else (20_000, 100))[len(given) :]]
    if "scaled" in words:
        return scaled(first, second)
    if "apart" in words:
        plans = {name: fo.plan(shape="disaggregated", burst="poisson", **options) for name, options in APART.items()}
        return planted(plans, two_pools(), exported_pair, first, second)
    plans = {name: fo.plan(pools=1, burst="poisson", **options) for name, options in PLANS.items()}
    return planted(plans, one_pool(), exported, first, second)
