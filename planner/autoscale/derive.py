"""A rule for a pool: aimed below the threshold by what traffic grows while a replica starts, tried on the path of the rates."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from planner._version import __version__
from planner.autoscale.backtest import (
    Outcome,
    Running,
    clock_counts,
    fast_counts,
    outcome,
    perfect_counts,
    run_policy,
    static_counts,
)
from planner.autoscale.path import STEP_S, hourly_path, swings
from planner.autoscale.policy import Policy
from planner.autoscale.thresholds import UTILIZATION, Capacity, Threshold, capacity_of, threshold_of
from planner.deploy.startup import Startup
from planner.fleet.caches import sessions_of
from planner.fleet.fleet import Fleet
from planner.fleet.pool import Pool
from planner.notebook import InNotebooks
from planner.units import format_count, format_percent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

HEADROOMS = (*(0.2 + 0.025 * k for k in range(53)), 1.6, 1.8, 2.0)
"""Thresholds over what a rule aims at that are tried, ascending [1]."""

DOWN_WINDOWS_S = (60.0, 120.0, 300.0, 600.0)
RATE_WINDOWS_S = (60.0, 120.0, 180.0, 300.0, 600.0)
"""Stabilization before scaling down, and windows of the rates, that are tried [s]."""

WANTED = 0.99
"""Share of the windows a derived rule is expected to keep on the paths it is derived from [1]: two or more of the 24 of two
hours are then broken in one case of forty, though 95% are promised."""

FINE = 0.0
"""Change that a derived rule ignores [1]; Kubernetes before 1.35 ignores 10% whatever it says."""

GUARD = 1.2
"""A replica that runs this many times the requests it does where the rule aims asks for more, whatever the rate says [1]."""

USUAL = 0.7
"""The fixed share of the capacity that a derived rule is compared with [1]."""

PATHS = 3
"""Paths of swings about the hours that a rule is derived from."""


def clock_of(capacity: Capacity, mean_per_s: Floats) -> tuple[int, ...]:
    """Replicas that the mean rate of each hour needs, swings left to the rule."""
    hours = mean_per_s.reshape(-1, round(3600.0 / STEP_S)).mean(axis=1)
    return tuple(capacity.needed(float(r)) for r in hours)


@dataclass(frozen=True, slots=True)
class PoolScaler:
    """One pool's scaler.

    Parameters
    ----------
    pool
        Name.
    threshold
        From where on its promises break.
    policy
        The rule.
    headroom
        Room between what the rule aims at and the threshold [1].
    startup
        From starting a replica until it serves.
    outcomes
        The rule, the busiest window's fleet, a scaler that knows the future, a fixed 70% of capacity, and the user's own rule
        where there is one, over the path.
    usd_per_replica_hour
        Cost of a replica [USD/hour].
    clock
        Replicas held by the hour whatever the metrics say, spares included; empty = none.
    nodes
        Nodes that a replica spans.
    """

    pool: str
    threshold: Threshold
    policy: Policy
    headroom: float
    startup: Startup
    outcomes: tuple[Outcome, ...]
    usd_per_replica_hour: float
    clock: tuple[int, ...] = ()
    nodes: int = 1

    def lines(self) -> list[str]:
        """In words."""
        t, perfect = self.threshold, next(o for o in self.outcomes if o.name == "perfect")
        reached = "the utilization cap is reached" if t.binding == UTILIZATION else f"{t.binding} breaks"
        told = [
            f"{self.pool}: {reached} at {format_count(t.requests_per_s)} requests/s per replica ({t.running:.3g} running, "
            f"{format_percent(t.kv_usage)} of the KV cache, load {format_percent(t.load)}); the rule aims "
            f"{format_percent(abs(self.headroom))} {'above' if self.headroom < 0 else 'below'} it"
        ]
        for o in self.outcomes:
            told.append(
                f"{self.pool}, {o.name}: {format_percent(o.attained)} of five-minute windows within the promise, "
                f"{o.replica_hours:,.0f} replica-hours ({o.replica_hours / perfect.replica_hours:.2f} of a perfect scaler's)"
            )
        return told


@dataclass(frozen=True, slots=True)
class Autoscaling(InNotebooks):
    """Scalers of a fleet.

    Parameters
    ----------
    model
        What the fleet serves, by its repository or name.
    prefix
        Objects of the fleet are called ``prefix-pool``.
    source
        Where the path of the rates is from.
    pools
        The pools.
    engine
        Whose metrics its objects ask for; ``None`` = the default engine's.
    notes
        Worth knowing.
    """

    model: str
    prefix: str
    source: str
    pools: tuple[PoolScaler, ...]
    engine: str | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Autoscaling: {', '.join(f'{p.pool} {p.policy.least}..{p.policy.most}' for p in self.pools)}>"

    def to_rows(self) -> list[dict[str, object]]:
        """One row per pool and scaler."""
        return [
            {
                "pool": p.pool,
                "scaler": o.name,
                "attained": o.attained,
                "replica_hours": o.replica_hours,
                "cost_usd": o.replica_hours * p.usd_per_replica_hour,
                "most_replicas": o.most,
                "changes": o.changes,
                "threshold_requests_per_s": p.threshold.requests_per_s,
                "threshold_running": p.threshold.running,
                "threshold_kv_usage": p.threshold.kv_usage,
            }
            for p in self.pools
            for o in p.outcomes
        ]

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "schema_version": 1,
            "kind": "fleetopt-autoscaling",
            "version": __version__,
            "path": self.source,
            "pools": [
                {
                    "name": p.pool,
                    "threshold": p.threshold.to_dict(),
                    "headroom": p.headroom,
                    "startup_s": p.startup.seconds,
                    "clock_replicas": list(p.clock) or None,
                    "policy": {
                        "targets": dict(p.policy.targets),
                        "min_replicas": p.policy.least,
                        "max_replicas": p.policy.most,
                        "tolerance": p.policy.tolerance,
                        "scale_down_window_s": p.policy.down_window_s,
                        "rate_window_s": p.policy.rate_window_s,
                    },
                }
                for p in self.pools
            ],
            "rows": self.to_rows(),
            "notes": list(self.notes),
        }


def running_of(fleet: Fleet, pool: Pool, capacity: Capacity) -> Running:
    """Mean requests running at a rate with so many replicas, from the plan's number of them; beyond capacity the slots fill."""
    replicas = pool.size.replicas
    top = pool.model.capacity_per_s
    each = np.linspace(0.02, 0.98, 13) * top
    found = [pool.model.predict(float(r) * replicas, replicas, fleet.levels).mean_running for r in each]
    loads, busy = np.append(each, 1.2 * top), np.append(found, float(pool.setup.slots))

    def running(rate_per_s: float, serving: float) -> float:
        serving = max(serving, 1.0)
        return float(serving * np.interp(rate_per_s / serving, loads, busy))

    return running


def derive_policy(
    capacity: Capacity, threshold: Threshold, paths: Sequence[Floats], startup_s: float, running: Running
) -> tuple[Policy, float]:
    """The cheapest rule that keeps the promise in :data:`WANTED` of the windows of the paths, and its headroom.

    The rule aims at requests per replica, with a guard on running requests for what the rate does not tell: longer requests,
    slower engines. Where no rule keeps as many windows, the one that keeps most.
    """
    aim, start = _line(capacity, paths)
    lowest = min(float(p.min()) for p in paths) / capacity.windows.factor
    least = min(capacity.needed(lowest), capacity.most)
    best: tuple[tuple[float, float], Policy, float] | None = None
    for down, window in product(DOWN_WINDOWS_S, RATE_WINDOWS_S):

        def tried(headroom: float, down: float = down, window: float = window) -> tuple[float, float, Policy]:
            target, offset = aim / headroom, start / headroom
            policy = Policy({"requests": target}, least, capacity.most, FINE, 0.0, down, window, offset)
            done = [outcome("", p, fast_counts(policy, p), capacity, startup_s) for p in paths]
            return float(np.mean([o.attained for o in done])), math.fsum(o.replica_hours for o in done), policy

        # a lower aim keeps more windows and costs more: the highest that keeps as many as wanted
        at = bisect_left(HEADROOMS, True, key=lambda headroom: tried(headroom)[0] >= WANTED)
        headroom = HEADROOMS[min(at, len(HEADROOMS) - 1)]
        attained, cost, policy = tried(headroom)
        rank = (0.0, cost) if attained >= WANTED else (1.0 - attained, cost)
        if best is None or rank < best[0]:
            best = rank, policy, headroom
    assert best is not None
    _, policy, headroom = best
    target = policy.targets["requests"]
    guard = max(
        GUARD * running(target, 1.0), running(capacity.windows.factor * headroom * target, 1.0), threshold.running
    )
    return replace(policy, targets={"requests": target, "running": guard}), headroom - 1.0


def _line(capacity: Capacity, paths: Sequence[Floats]) -> tuple[float, float]:
    """Requests of one replica more, and the offset, of the line through what the numbers of replicas on the paths may get.

    Spares are on the line: n replicas, k of them spare, get what n - k may.
    """
    needs = [capacity.needed(float(r)) for p in paths for r in np.quantile(p, (0.02, 0.98))]
    numbers = np.arange(min(needs), max(max(needs), min(needs) + 1) + 1, dtype=float)
    rates = np.array([capacity.rate_per_s(max(n - capacity.spares, 0.5)) for n in numbers])
    slope, start = np.polyfit(numbers, rates, 1)
    return float(slope), float(max(0.0, -start))


def autoscaling(
    fleet: Fleet,
    rates_per_s: Sequence[float],
    source: str,
    startup: Callable[[Pool], Startup],
    model: str,
    prefix: str = "fleetopt",
    own: Mapping[str, Policy] | None = None,
    clock: bool = False,
    seed: int = 1,
) -> Autoscaling:
    """Scalers of every pool, derived from some paths about the hours and tried on another.

    Parameters
    ----------
    fleet
        The plan's fleet.
    rates_per_s
        Mean rate of the fleet in every hour of a day or a week [1/s].
    source
        Where they are from.
    startup
        Of a pool's replicas.
    model, prefix
        See :class:`Autoscaling`.
    own
        Pool -> a rule to be judged beside.
    clock
        Whether every hour holds what its mean rate needs, started ahead, beside the rule.
    seed
        Of the swings.
    """
    day = hourly_path(rates_per_s)
    arrivals = fleet.question.traffic.arrivals
    found = []
    for k, pool in enumerate(fleet.pools):
        draws = [np.random.Generator(np.random.PCG64([seed, k, j])) for j in range(PATHS + 1)]
        paths = [pool.law.share * swings(day, arrivals, rng) for rng in draws]
        begin = startup(pool)
        peak = float(max(p.max() for p in paths))
        capacity = capacity_of(
            fleet,
            k,
            most=max(2 * pool.bought, math.ceil(1.5 * pool.bought * peak / max(pool.arrival_rate_per_s, 1e-9))),
        )
        capacity = replace(capacity, most=min(capacity.most, max(capacity.needed(1.25 * peak), 2)))
        threshold = threshold_of(fleet, k, capacity)
        running = running_of(fleet, pool, capacity)
        # a step of fifteen seconds over a week is many: rules are derived from a day of it
        short = [p[: round(86_400 / STEP_S)] for p in paths[:PATHS]]
        policy, headroom = derive_policy(capacity, threshold, short, begin.seconds, running)
        tokens = math.fsum(fleet.work_tokens(k))
        outcomes = _outcomes(
            capacity, policy, paths[-1], begin.seconds, running, pool, (own or {}).get(pool.name), tokens
        )
        held: tuple[int, ...] = ()
        if clock:
            held = clock_of(capacity, pool.law.share * day)
            alone = run_policy(policy, paths[-1], begin.seconds, running)
            both = np.maximum(alone, clock_counts(held, paths[-1].size, begin.seconds))
            outcomes = (*outcomes, outcome("derived, with the clock", paths[-1], both, capacity, begin.seconds))
        cost = pool.option.price.cost_usd_per_hour(pool.bought) / pool.bought
        nodes = pool.option.gpu.nodes(pool.option.parallel.gpus)
        found.append(PoolScaler(pool.name, threshold, policy, headroom, begin, outcomes, cost, held, nodes))
    notes = [
        found[0].startup.told,
        f"path: {source}, with the swings of the measured arrivals"
        if arrivals and arrivals.dispersion
        else f"path: {source}, without swings (no arrivals measured)",
    ]
    if fleet.linked and sessions_of(fleet.pools[0]) is not None:
        notes.append(
            "windows of pools whose prompts come back are taken to break where the promises about all requests do"
        )
    engine = fleet.pools[0].option.profile.engine
    return Autoscaling(model, prefix, source, tuple(found), engine, tuple(notes))


def _outcomes(
    capacity: Capacity,
    policy: Policy,
    path: Floats,
    startup_s: float,
    running: Running,
    pool: Pool,
    own: Policy | None,
    tokens: float,
) -> tuple[Outcome, ...]:
    """What becomes of the path under every scaler; the user's own may count the tokens of requests [tokens]."""
    usual = Policy({"requests": USUAL * pool.model.capacity_per_s}, policy.least, capacity.most)
    courses = {
        "derived": run_policy(policy, path, startup_s, running),
        "perfect": perfect_counts(path, capacity, startup_s),
        "static": static_counts(path, capacity),
        "70% of capacity": run_policy(usual, path, startup_s),
    }
    if own is not None:
        courses["yours"] = run_policy(own, path, startup_s, running, tokens)
    return tuple(outcome(name, path, paid, capacity, startup_s) for name, paid in courses.items())
