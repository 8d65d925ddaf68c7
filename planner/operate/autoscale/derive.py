"""A rule for a pool: aimed below the threshold by what traffic grows while a replica starts, tried on the path of the rates."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import ClassVar

import numpy as np

from planner.ask.asked import standing_of, within
from planner.ask.schedule import needs_of
from planner.catalog.load import gpu as find_gpu
from planner.catalog.load import repository
from planner.operate.autoscale import backtest
from planner.operate.autoscale.windows import (
    STEP_S,
    VALUES,
    Floats,
    PeakPrefill,
    Signals,
    hourly_path,
    peak_prefill,
    signals_of,
    swings,
)
from planner.operate.deploy.serving import Startup, estimated_startup
from planner.operate.monitor.names import find_deployed, scalers_of
from planner.operate.monitor.policy import Pace, Policy, written
from planner.plans import Plan
from planner.question.compiled import compile_question
from planner.shared.arguments import told_types
from planner.shared.notebook import InNotebooks
from planner.shared.record import Record
from planner.size.alone import sessions_of
from planner.size.fleet import Fleet
from planner.size.pool import Pool
from planner.size.shapes import standing_fleet
from planner.size.shapes.disaggregated import Disaggregated
from planner.units import DAY_S, WEEK_S, format_count, format_duration, format_percent, format_share
from planner.workload.hours import hourly_rates

HEADROOMS = (*(0.2 + 0.025 * k for k in range(53)), 1.6, 1.8, 2.0)
"""Thresholds over what a rule aims at that are tried, ascending [1]."""

LLM_D = Policy(**VALUES["llm_d"], least=1, most=1, flat=frozenset({"saturation"}), up=Pace(((100.0, 15.0),)))
"""What llm-d's guide for KEDA ships."""


@dataclass(frozen=True, slots=True)
class PoolScaler(Record):
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
        Over the path: the rule, the plan held flat, the schedule, a scaler that knows the future, the plan's fleet at the
        busiest hour, a fixed 70% of capacity, llm-d's defaults, and the user's own rule where there is one.
    usd_per_replica_hour
        Cost of a replica [USD/hour].
    planned
        Replicas of the plan, spares included.
    guards
        Metric -> value of a replica beyond which it needs help, of every metric that is seen.
    peak
        Prompt tokens a replica works off.
    judged
        What share of what is promised, in words.
    clock
        Replicas held by the hour whatever the metrics say, spares included; empty = none.
    nodes
        Nodes that a replica spans.
    role
        ``both``, or ``prefill`` or ``decode`` where these are pools of their own.
    cold
        What unloading it while nobody asks does; ``None`` = it never is.
    """

    pool: str
    threshold: backtest.Threshold
    policy: Policy
    headroom: float
    startup: Startup
    outcomes: tuple[backtest.Outcome, ...]
    usd_per_replica_hour: float
    planned: int
    guards: Mapping[str, float]
    peak: PeakPrefill
    judged: str
    clock: tuple[int, ...] = ()
    nodes: int = 1
    role: str = "both"
    cold: backtest.Cold | None = None

    written: ClassVar[tuple[str, ...]] = (
        *("name=pool", "threshold", "headroom", "startup_s=startup.seconds", "clock_replicas=clock"),
        *("planned_replicas=planned", "guards", "peak_prefill=peak", "policy", "cold"),
    )

    def lines(self) -> list[str]:
        """In words."""
        t, perfect = self.threshold, next(o for o in self.outcomes if o.name == "perfect")
        reached = "the utilization cap is reached" if t.binding == backtest.UTILIZATION else f"{t.binding} breaks"
        aims = f"{format_percent(abs(self.headroom))} {'above' if self.headroom < 0 else 'below'} it"
        told = [
            f"{self.pool}: {reached} at {format_count(t.requests_per_s)} requests/s per replica ({t.running:.3g} running, "
            f"{format_percent(t.kv_usage)} of the KV cache, load {format_percent(t.load)}); the rule aims {aims}"
        ]
        told += [
            f"{self.pool}, {o.name}: {format_share(o.attained)} of {self.judged}, {o.replica_hours:,.0f} replica-hours "
            f"({o.replica_hours / perfect.replica_hours:.2f} of a perfect scaler's), {o.starts:,} starts"
            for o in self.outcomes
        ]
        return told if self.cold is None else [*told, f"{self.pool}: {self.cold.told()}"]


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
    rates_per_s
        Of the fleet: ``mean``, ``busiest_hour`` and ``busiest_five_minutes`` of the path [1/s].
    notes
        Worth knowing.
    """

    model: str
    prefix: str
    source: str
    pools: tuple[PoolScaler, ...]
    engine: str | None = None
    rates_per_s: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    document: ClassVar[str] = "fleetopt-autoscaling"
    written: ClassVar[tuple[str, ...]] = ("path=source", "rates_per_s", "pools", "rows=to_rows", "notes")

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
                "starts": o.starts,
                **{f"threshold_{n}": getattr(p.threshold, n) for n in ("requests_per_s", "running", "kv_usage")},
            }
            for p in self.pools
            for o in p.outcomes
        ]


def wanted_of(capacity: backtest.Capacity) -> float:
    """Share of the windows or requests that a derived rule is expected to keep on the paths it is derived from [1]."""
    return float(VALUES["wanted"] if capacity.windows_s else 1.0 - VALUES["late"] * (1.0 - capacity.promised))


def derive_policy(
    capacity: backtest.Capacity,
    paths: Sequence[Floats],
    startup_s: float,
    signals: Signals,
    guards: Sequence[str] = ("running",),
) -> tuple[Policy, float]:
    """The cheapest rule that keeps the promise as :func:`wanted_of` says on the paths, and its headroom.

    The rule aims at requests per replica, with guards on what the rate does not tell: longer requests, slower engines. Of rules
    within a hundredth of the cheapest, what is drained counted, the one that starts the fewest replicas; where no rule keeps as
    much as is wanted, the one that keeps most.
    """
    aim, start = _line(capacity, paths)
    lowest = min(float(p.min()) for p in paths) / capacity.windows.factor
    least = min(capacity.needed(lowest), capacity.most)
    wanted = wanted_of(capacity)
    rules: list[tuple[float, float, int, Policy, float]] = []
    for down, window in product(VALUES["down_windows_s"], VALUES["rate_windows_s"]):

        def tried(headroom: float, down: float = down, window: float = window) -> tuple[float, float, int, Policy]:
            # clusters before Kubernetes 1.35 ignore changes of 10% whatever a rule says
            target, offset = written(aim / headroom), float(f"{start / headroom:.6g}")
            policy = Policy({"requests": target}, least, capacity.most, 0.0, 0.0, down, window, offset)
            drain_s = signals.at("in_flight", aimed_at(policy)) / aimed_at(policy)
            done = [
                backtest.outcome("", p, backtest.fast_counts(policy, p), capacity, startup_s, drain_s) for p in paths
            ]
            cost = math.fsum(o.replica_hours for o in done)
            return float(np.mean([o.attained for o in done])), cost, sum(o.starts for o in done), policy

        # a lower aim keeps more windows and costs more: the highest that keeps as many as wanted
        at = bisect_left(HEADROOMS, True, key=lambda headroom: tried(headroom)[0] >= wanted)
        headroom = HEADROOMS[min(at, len(HEADROOMS) - 1)]
        rules.append((*tried(headroom), headroom))
    most = max(attained for attained, *_ in rules)
    enough = [rule for rule in rules if rule[0] >= min(wanted, most)]
    cheapest = min(cost for _, cost, *_ in enough)
    *_, policy, headroom = min((r for r in enough if r[1] <= VALUES["alike"] * cheapest), key=lambda r: (r[2], r[1]))
    found = guard_values(policy, signals)
    targets = {"requests": policy.targets["requests"], **{name: found[name] for name in guards}}
    return replace(policy, targets=targets), headroom - 1.0


def aimed_at(policy: Policy) -> float:
    """The most requests/s that a rule leaves to one replica of the largest pool [1/s]."""
    return policy.targets["requests"] - policy.offset_per_s / policy.most


def guard_values(policy: Policy, signals: Signals) -> dict[str, float]:
    """Values of a replica beyond which more is asked for, whatever the rate says, by metric; in a gateway's queue at least one."""
    aim = aimed_at(policy)
    found = {name: written(signals.guard(name, aim)) for name in signals.seen}
    return found | {"queued": written(max(1.0, signals.guard("waiting", aim)))}


def _line(capacity: backtest.Capacity, paths: Sequence[Floats]) -> tuple[float, float]:
    """Requests of one replica more, and the offset, of the line through what the numbers of replicas on the paths may get.

    Spares are on the line: n replicas, k of them spare, get what n - k may.
    """
    needs = [capacity.needed(float(r)) for p in paths for r in np.quantile(p, (0.02, 0.98))]
    numbers = np.arange(min(needs), max(max(needs), min(needs) + 1) + 1, dtype=float)
    rates = np.array([capacity.rate_per_s(max(n - capacity.spares, 0.5)) for n in numbers])
    slope, start = np.polyfit(numbers, rates, 1)
    return float(slope), float(max(0.0, -start))


BY_GATEWAY = ("llm-d", "kserve")
"""Targets whose endpoint picker counts what is in flight and holds requests back."""

GATEWAY_GUARDS = ("in_flight", "saturation", "queued", "backlog_s")
"""What it shows."""


def guards_of(deployed: str, pools: int) -> tuple[str, ...]:
    """What is watched beside requests/s: where one pool is all that an endpoint picker sees, what that counts."""
    return GATEWAY_GUARDS if deployed in BY_GATEWAY and pools == 1 else ("running",)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of scalers beyond the plan.

    Parameters
    ----------
    own
        Pool -> a rule to be judged beside.
    clock
        Whether every hour holds what the schedule has for it, started ahead, beside the rule.
    guards
        What is watched beside requests/s.
    idle_s
        Without requests for so long no replica is kept [s]; ``None`` = the fewest always are.
    """

    own: Mapping[str, Policy]
    clock: bool
    guards: tuple[str, ...]
    idle_s: float | None


@told_types
def autoscale(
    fleet: Plan | str | Path,
    *,
    hours: str | Path | None = None,
    rate_is: str = "peak",
    startup: float | str | None = None,
    policy: Sequence[str | Path] | None = None,
    name: str = "fleetopt",
    clock: bool = False,
    deployed: str = "k8s",
    windows: float | str | None = None,
    scale_to_zero: float | str | None = None,
) -> Autoscaling:
    """Scalers of a plan's pools: thresholds, a derived rule, and a backtest.

    Parameters
    ----------
    fleet
        A plan or a plan file.
    hours
        File with 24 or 168 rates, or a shipped service (servegen-m-small, ...). Default: the workload's own hours, else a constant
        rate.
    rate_is
        peak: the plan's rate is the busiest hour's; mean: the mean over the hours.
    startup
        From starting a replica until it serves: 110s. Default: estimated from the weights.
    policy
        HorizontalPodAutoscaler or ScaledObject of yours, judged beside the derived rule; one for several pools names its target.
    name
        Objects are called NAME-POOL, as `deploy` names them.
    clock
        Every hour also holds what its mean rate needs, started ahead: KEDA's cron triggers.
    deployed
        What `deploy --to` the fleet was written with: k8s, llm-d, kserve or dynamo.
    windows
        Promises hold in 95% of windows of this length: 5min. Default: as the plan takes them.
    scale_to_zero
        Without requests for so long (5min) no replica is kept; --to keda with --deployed llm-d or kserve. Default: the fewest
        always are.

    Returns
    -------
    Autoscaling
    """
    saved = standing_of(fleet)
    inputs = saved.inputs()
    if windows is not None:
        inputs = inputs.override({"windows": windows})
    loaded = saved.traffic(inputs.cdf)
    built = standing_fleet(compile_question(inputs, loaded), saved.pools)
    by_hour = hourly_rates(hours, loaded, saved.folder, flat="a constant rate")
    rates = by_hour.rates_per_s(by_hour.mean_rate_per_s or built.rate, "mean" if by_hour.mean_rate_per_s else rate_is)
    seconds = None if startup is None else within(startup, "--startup", 0.0, DAY_S, "0 and a day")
    week = 1.0, WEEK_S, "a second and a week"
    idle = None if scale_to_zero is None else within(scale_to_zero, "--scale-to-zero", *week)
    own = scalers_of(policy, name, [p.name for p in built.pools])
    asked = Asked(own, clock, guards_of(find_deployed(deployed), len(built.pools)), idle)
    day, arrivals = hourly_path(rates), built.question.traffic.arrivals
    # the sizer is asked, as schedule and plan ask it
    needs = needs_of(built, rates)
    found, most = [], 0.0
    for k, pool in enumerate(built.pools):
        draws = [np.random.Generator(np.random.PCG64([1, k, j])) for j in range(VALUES["paths"] + 1)]
        paths = [pool.law.share * swings(day, arrivals, rng) for rng in draws]
        most = max(most, backtest.window_mean(paths[-1]) / pool.law.share)
        paid = tuple(pool.option.price.bought(needs[rate][k]) for rate in rates)
        begin = estimated_startup(pool.option.model, cached=False) if seconds is None else Startup(seconds, {})
        found.append(_scaler(built, k, paths, paid, begin, asked))
    told = {"mean": math.fsum(rates) / len(rates), "busiest_hour": max(rates), "busiest_five_minutes": most}
    notes = [_rates_told(told), found[0].startup.told, *_path_told(built, by_hour.source)]
    engine, model = built.pools[0].option.profile.engine, repository(inputs.model) or inputs.model
    return Autoscaling(model, name, by_hour.source, tuple(found), engine, told, tuple(notes))


def _rates_told(rates_per_s: Mapping[str, float]) -> str:
    """Which rate each number is for."""
    mean, hour, window = (format_count(rates_per_s[k]) for k in ("mean", "busiest_hour", "busiest_five_minutes"))
    return (
        f"rates: schedule and static have what plan buys for every hour and the busiest ({hour} requests/s); the rule and a "
        f"perfect scaler follow shorter windows, the busiest five minutes having {window}/s; the mean of the hours is {mean}/s"
    )


def _path_told(fleet: Fleet, source: str) -> Iterator[str]:
    """Where the path is from, and what it does not know."""
    arrivals = fleet.question.traffic.arrivals
    measured = arrivals is not None and bool(arrivals.dispersion)
    swings_told = "with the swings of the measured arrivals" if measured else "without swings (no arrivals measured)"
    yield f"path: {source}, {swings_told}"
    if fleet.linked and sessions_of(fleet.pools[0]) is not None:
        yield "windows of pools whose prompts come back are taken to break where the promises about all requests do"


def most_in_stock(fleet: Fleet, pool: Pool) -> float:
    """Replicas of a pool that the inventory holds where all pools on its GPU grow as one; inf without an inventory of it."""
    stock = {find_gpu(name).name: count for name, count in fleet.question.inputs.inventory.items()}
    if pool.option.gpu.name not in stock:
        return math.inf
    same = [p for p in fleet.pools if p.option.gpu.name == pool.option.gpu.name]
    taken = sum(p.bought * p.option.price.gpus_per_replica for p in same)
    return max(pool.bought, math.floor(pool.bought * stock[pool.option.gpu.name] / taken + 1e-9))


def _scaler(
    fleet: Fleet, k: int, paths: Sequence[Floats], hours: tuple[int, ...], begin: Startup, asked: Asked
) -> PoolScaler:
    """The scaler of the k-th pool: derived from all paths but the last, tried on that."""
    pool, path = fleet.pools[k], paths[-1]
    peak = float(max(p.max() for p in paths))
    most = max(2 * pool.bought, math.ceil(1.5 * pool.bought * peak / max(pool.rate_per_s, 1e-9)))
    capacity = backtest.capacity_of(fleet, k, most=most)
    most = min(capacity.most, max(capacity.needed(1.25 * peak), 2))
    capacity = replace(capacity, most=int(min(most, most_in_stock(fleet, pool))))
    threshold, velocity = backtest.threshold_of(fleet, k, capacity), peak_prefill(pool)
    signals = signals_of(fleet, k, velocity)
    # a step of fifteen seconds over a week is many: rules are derived from a day of it
    short = [p[: round(DAY_S / STEP_S)] for p in paths[:-1]]
    policy, headroom = derive_policy(capacity, short, begin.seconds, signals, asked.guards)
    policy = replace(policy, idle_s=asked.idle_s)
    tokens = math.fsum(fleet.work_tokens(k))
    held = backtest.clock_counts(hours, path.size, begin.seconds)
    theirs = replace(LLM_D, least=policy.least, most=capacity.most)
    usual = Policy({"requests": VALUES["usual"] * pool.model.capacity_per_s}, policy.least, capacity.most)
    alone = backtest.run_policy(policy, path, begin.seconds, signals)
    courses = {
        "derived": alone,
        **({"derived, with the clock": np.maximum(alone, held)} if asked.clock else {}),
        "this plan, held flat": np.full(path.size, pool.bought),
        "schedule": held,
        "perfect": backtest.perfect_counts(path, capacity, begin.seconds),
        "static": np.full(path.size, max(hours)),
        "70% of capacity": backtest.run_policy(usual, path, begin.seconds, signals),
        "llm-d's defaults": backtest.run_policy(theirs, path, begin.seconds, signals),
    }
    if (own := asked.own.get(pool.name)) is not None:
        courses["yours"] = backtest.run_policy(own, path, begin.seconds, signals, tokens)
    drain_s = signals.at("in_flight", aimed_at(policy)) / aimed_at(policy)
    judged = f"windows of {format_duration(capacity.window_s)}" if capacity.windows_s else "requests"
    return PoolScaler(
        pool.name,
        threshold,
        policy,
        headroom,
        begin,
        tuple(backtest.outcome(name, path, paid, capacity, begin.seconds, drain_s) for name, paid in courses.items()),
        pool.option.price.cost_usd_per_hour(pool.bought) / pool.bought,
        pool.bought,
        guard_values(policy, signals),
        velocity,
        f"{judged} within the promise",
        hours if asked.clock else (),
        pool.option.gpu.nodes(pool.option.parallel.gpus),
        ("prefill", "decode")[k] if isinstance(fleet, Disaggregated) else "both",
        None if asked.idle_s is None else backtest.cold_of(path, asked.idle_s, begin.seconds, fleet.promises.latency),
    )
