"""A scaler's own rule over a path of rates: which windows keep their promises, and what it costs beside others."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from planner.ask.capacity import largest
from planner.errors import InfeasibleError
from planner.operate.autoscale.windows import (
    STEP_S,
    VALUES,
    WINDOW_S,
    Floats,
    Ints,
    Signals,
    Windows,
    as_sized,
    kept_windows,
)
from planner.operate.monitor.policy import Policy, Scaler
from planner.predict.contract import MEAN_LEVELS
from planner.predict.replayed import KEPT
from planner.promise import MEAN, Promise
from planner.shared.record import Record
from planner.size.alone import sessions_of
from planner.size.fleet import Fleet
from planner.size.pool import pool_keeps
from planner.units import DAY_S, HOUR_S, format_count, format_duration, format_percent
from planner.workload import pools as m

UTILIZATION = "utilization"
"""What binds where no promise does: the cap on the share of the maximum throughput in use."""

SOLVED = 6
"""Numbers of replicas that are solved; between them the rate per replica is taken as linear in log(n)."""

SURE = 1.645
"""Standard deviations below the rate at which every second window breaks where so many are kept."""

IDLE = 1e-6
"""Share of the capacity at which nobody waits [1]."""


@dataclass(frozen=True, slots=True, eq=False)
class Capacity:
    """The largest rate within the promises by number of replicas.

    Parameters
    ----------
    replicas, rates_per_s
        Solved numbers of replicas that serve, ascending, and the rate each serves within all promises as a plan is sized, and
        where they are about windows in 95% of them [1/s].
    spares
        Replicas kept beyond the need.
    least, most
        Fewest and most replicas, spares included.
    windows
        What windows keep, over those rates.
    quantiles
        Share of the requests within its limits that each promise of the pool asks for [1].
    windows_s
        Length of the windows that the promises are about [s]; ``None`` = they are about the whole period.
    """

    replicas: np.ndarray
    rates_per_s: np.ndarray
    spares: int
    least: int
    most: int
    windows: Windows
    quantiles: tuple[float, ...] = ()
    windows_s: float | None = None

    @property
    def window_s(self) -> float:
        """Length of the windows that are looked at [s]."""
        return self.windows_s or WINDOW_S

    @property
    def promised(self) -> float:
        """Share of the windows, or of the requests, that are to be within the promises [1]."""
        return KEPT if self.windows_s else max(self.quantiles, default=1.0)

    def attained(self, came: np.ndarray, held: np.ndarray) -> float:
        """That share, of windows of rates whose replicas are sized for others [1/s]; with several promises, one minus the allowed
        share times the largest part of it that is used."""
        if self.windows_s or not self.quantiles:
            return float(self.windows.kept(came, held).mean())
        late = (self.windows.late_share(came, held) * came).sum(axis=1) / max(float(came.sum()), 1e-300)
        used = max(share / (1.0 - q) for share, q in zip(late.tolist(), self.quantiles, strict=True))
        return float(max(0.0, 1.0 - used * (1.0 - self.promised)))

    def rate_per_s(self, replicas: float) -> float:
        """Largest rate that many serving replicas are sized for [1/s]."""
        if replicas <= 0.0:
            return 0.0
        each = np.interp(math.log(replicas), np.log(self.replicas), self.rates_per_s / self.replicas)
        return float(replicas * each)

    def needed(self, rate_per_s: float) -> int:
        """Replicas a rate needs, spares included, no more than the most."""
        fewer = bisect_left(range(1, self.most), True, key=lambda n: self.rate_per_s(n) >= rate_per_s)
        return min(max(1 + fewer + self.spares, self.least), self.most)


@dataclass(frozen=True, slots=True)
class Threshold(Record):
    """The load of one replica at which the first promise of its pool is about to break.

    Parameters
    ----------
    pool
        Name.
    binding
        The promise, or ``utilization`` where the cap on throughput comes first.
    requests_per_s, input_tokens_per_s, output_tokens_per_s
        Of one replica [1/s].
    running, waiting
        Mean requests running and waiting (about: the growth of the mean TTFT times the rate) of one replica.
    kv_usage
        Mean share of its KV cache in use [1].
    load
        Rate over capacity [1].
    """

    pool: str
    binding: str
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    running: float
    waiting: float
    kv_usage: float
    load: float


def capacity_of(fleet: Fleet, k: int, most: int | None = None) -> Capacity:
    """The largest rates of the k-th pool by its number of replicas.

    Parameters
    ----------
    fleet
        The fleet.
    k
        Which pool.
    most
        Most replicas, spares included; default twice the plan's.

    Raises
    ------
    InfeasibleError
        No rate keeps the promises.
    """
    pool, promises = fleet.pools[k], [p for p in fleet.promises_on(k) if p.quantile != MEAN]
    # as sure as the plan is
    slow = fleet.margins(fleet.promises.confidence)[k].slow
    spares = pool.bought - pool.replicas
    most = max(most or 2 * pool.bought, pool.bought)
    numbers = np.unique(np.round(np.geomspace(1, max(most, 1), SOLVED)).astype(int))
    if fleet.question.routing.by_rate_per_replica and not fleet.question.traffic.bursts:
        numbers = numbers[:1]
    rates = np.array([largest_rate(fleet, k, int(n)) for n in numbers])
    if not rates[-1] > 0.0:
        p = next(iter(fleet.promises_on(k)), None)
        told = p.told if p else "the promises"
        raise InfeasibleError(f"pool {pool.name}: {told} cannot be kept at any rate by {numbers[-1]} replicas")
    some = rates > 0.0
    found = Capacity(
        numbers[some].astype(float),
        rates[some],
        spares,
        fleet.promises.min_replicas + spares,
        most,
        as_sized([p.quantile for p in promises]),
        tuple(p.quantile for p in promises),
        fleet.promises.windows_s,
    )
    if fleet.linked and sessions_of(pool) is not None:
        return found
    replicas, least = pool.replicas, int(found.replicas[0])

    def held_by(n: int) -> tuple[Windows, float]:
        windows = kept_windows(fleet, k, n, found.rate_per_s(n) / n, pool.capacity_per_s / slow, slow)
        return windows, min(1.0, windows.factor * math.exp(-windows.spread * SURE)) if found.windows_s else 1.0

    windows, held = held_by(replicas)
    by_number = np.full(found.replicas.size, held)
    full = fleet.promises.utilization_cap * pool.model.capacity_per_s
    if fleet.linked and least < replicas and found.rate_per_s(least) >= 0.99 * full * least:
        # where sizes are fixed by the cap they do not say how much less few replicas bear; other pools kept their windows without
        share = np.log(found.replicas / least) / math.log(replicas / least)
        few = held_by(least)[1]
        by_number = few + np.minimum(share, 1.0) * (held - few)
    moved = replace(windows, factor=windows.factor / held, log_rates=windows.log_rates - math.log(held))
    return replace(found, rates_per_s=by_number * found.rates_per_s, windows=moved)


def largest_rate(fleet: Fleet, k: int, replicas: int) -> float:
    """Largest rate at which so many replicas of the k-th pool keep every promise on it and the utilization cap, as a plan has
    them [1/s]; 0 where there is none."""
    promises, levels, pool = fleet.promises_on(k), fleet.promises.levels(), fleet.pools[k]
    margin = fleet.margins(fleet.promises.confidence)[k]
    own = replace(pool, replicas=replicas)
    slowed = fleet.slowed(margin.deviations) if fleet.linked else fleet

    def keeps(rate: float) -> bool:
        if not fleet.linked:
            return pool_keeps(own, rate, fleet.promises.only(promises), margin.slow)
        found = slowed.pool_at(k, rate, replicas, levels)
        held = all(found.value(p.metric, p.quantile) <= p.limit_s for p in promises)
        return held and pool_keeps(own, rate, fleet.promises.only(()))

    return largest(keeps, replicas * pool.rate_per_s / pool.replicas)[0]


def threshold_of(fleet: Fleet, k: int, capacity: Capacity) -> Threshold:
    """The threshold of the k-th pool at the plan's number of replicas."""
    pool = fleet.pools[k]
    replicas = pool.replicas
    rate = capacity.rate_per_s(replicas)
    each = rate / replicas
    levels = tuple(sorted({*fleet.promises.levels(), *MEAN_LEVELS}))
    at, idle = (fleet.pool_at(k, r, replicas, levels) for r in (rate, IDLE * rate))
    full = fleet.promises.utilization_cap * replicas * pool.model.capacity_per_s
    tightest = max(fleet.promises_on(k), key=lambda p: at.value(p.metric, p.quantile) / p.limit_s, default=None)
    law = pool.law
    inputs, outputs = fleet.work_tokens(k)
    context = law.mean(m.KV) / law.mean(m.DECODE) if outputs > 0.0 and law.mean(m.DECODE) > 0.0 else law.mean(m.INPUT)

    return Threshold(
        pool.name,
        UTILIZATION if tightest is None or rate >= 0.99 * full else tightest.label,
        each,
        each * inputs,
        each * outputs,
        at.mean_running,
        each * max(0.0, at.mean("ttft_s") - idle.mean("ttft_s")),
        min(1.0, at.mean_running * context / max(pool.setup.kv_tokens, 1.0)),
        rate / (replicas * pool.model.capacity_per_s),
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a scaler did.

    Parameters
    ----------
    name
        Which.
    attained
        Share of the windows, or of the requests, expected within the promise [1].
    replica_hours
        Paid replicas, those that are drained included [h].
    most
        Most replicas at once.
    starts
        Replicas started.
    """

    name: str
    attained: float
    replica_hours: float
    most: int
    starts: int


def serving_of(paid: Ints, startup_s: float) -> Ints:
    """Replicas that serve when each takes `startup_s` from being paid, shape (steps,); those of the first step serve already."""
    return np.asarray(_around(paid, before=round(startup_s / STEP_S)).min(axis=1))


def _around(values: Ints, before: int = 0, after: int = 0, mode: Literal["edge", "wrap"] = "edge") -> Ints:
    """Every step with so many before and after it, the first and the last going on beyond the ends, shape (steps, window)."""
    padded = np.pad(values, (before, after), mode)
    return np.lib.stride_tricks.sliding_window_view(padded, before + after + 1)


def _means(rates: Floats, window_s: float) -> Floats:
    """Means of every whole window, shape (windows,)."""
    size = round(window_s / STEP_S)
    return np.asarray(rates[: rates.size // size * size].reshape(-1, size).mean(axis=1))


def by_window(rates: Floats, serving: Ints, capacity: Capacity) -> tuple[Floats, Floats]:
    """What came in every whole window, and what its replicas are sized for [1/s], shapes (windows,)."""
    room = np.array([capacity.rate_per_s(n) for n in range(int(serving.max()) + 1)])[serving]
    return _means(rates, capacity.window_s), _means(room, capacity.window_s)


def run_policy(policy: Policy, rates: Floats, startup_s: float, signals: Signals, tokens: float = 0.0) -> Ints:
    """Paid replicas of every step, shape (steps,).

    Parameters
    ----------
    policy
        The rule.
    rates
        The path [1/s].
    startup_s
        From being paid until serving [s].
    signals
        What is seen of the replicas.
    tokens
        Tokens of a request, for policies on tokens [tokens].
    """
    first = max(1, round(policy.rate_window_s / STEP_S))
    total = np.concatenate(([0.0], np.cumsum(rates)))
    start = total[first] / first
    begun = policy.most
    for _ in range(3):
        begun = policy.wanted(_seen(policy, start, begun, signals, tokens))
    scaler = Scaler(policy, begun)
    paid = np.empty(rates.size, dtype=np.int64)
    delay = max(1, round(startup_s / STEP_S))
    backlog = 0.0
    for k in range(rates.size):
        # what a scaler sees is a step old: half a scrape and the query
        end = k - 1
        begin = max(0, end - first)
        seen = (total[end] - total[begin]) / (end - begin) if end > 0 else start
        serving = int(paid[max(0, k - delay) : k].min()) if k else scaler.replicas
        paid[k] = scaler.decide(k * STEP_S, _seen(policy, seen, serving, signals, tokens, backlog))
        backlog = max(0.0, backlog + STEP_S * (rates[k] - serving * signals.top_per_s))
    return paid


def fast_counts(policy: Policy, rates: Floats) -> Ints:
    """:func:`run_policy` of a rule on requests alone that ignores no change and scales up at once: then no state is left.

    Every decision is the largest number wanted within the window for scaling down.
    """
    first = max(1, round(policy.rate_window_s / STEP_S))
    total = np.concatenate(([0.0], np.cumsum(rates)))
    end = np.arange(rates.size) - 1
    begin = np.maximum(0, end - first)
    seen = np.full(rates.size, total[first] / first)
    known = end > 0
    seen[known] = (total[end[known]] - total[begin[known]]) / (end - begin)[known]
    asked = np.ceil(np.maximum(0.0, seen + policy.offset_per_s) / policy.targets["requests"] - 1e-9)
    wanted = np.clip(asked, policy.least, policy.most).astype(np.int64)
    return np.asarray(_around(wanted, before=max(0, round(policy.down_window_s / STEP_S) - 1)).max(axis=1))


def _seen(
    policy: Policy, rate: float, serving: int, signals: Signals, tokens: float, backlog: float = 0.0
) -> dict[str, float]:
    """What the scaler's metrics add up to; a flat one is what it is of one replica."""
    found = {"requests": max(0.0, rate + policy.offset_per_s), "tokens": rate * tokens, "queued": backlog}
    if set(policy.targets) - set(found):
        found |= signals.totals(rate, serving, backlog)
    return {name: value / max(serving, 1) if name in policy.flat else value for name, value in found.items()}


def window_mean(rates: Floats) -> float:
    """Mean of the busiest whole window of five minutes [1/s]."""
    return float(_means(rates, WINDOW_S).max())


def perfect_counts(rates: Floats, capacity: Capacity, startup_s: float) -> Ints:
    """Paid replicas of a scaler that knows the path: every window's need, started ahead, shape (steps,)."""
    needs = np.array([capacity.needed(float(r)) for r in _means(rates, capacity.window_s)])
    needs = np.repeat(needs, round(capacity.window_s / STEP_S))
    needs = np.pad(needs, (0, rates.size - needs.size), "edge")
    return np.asarray(_around(needs, after=round(startup_s / STEP_S)).max(axis=1))


def clock_counts(by_hour: Sequence[int], steps: int, startup_s: float) -> Ints:
    """Paid replicas that the clock alone holds: those of every hour, started ahead, shape (steps,)."""
    held = np.repeat(np.asarray(by_hour, dtype=np.int64), round(HOUR_S / STEP_S))
    return np.resize(_around(held, after=math.ceil(startup_s / STEP_S), mode="wrap").max(axis=1), steps)


def outcome(
    name: str, rates: Floats, paid: Ints, capacity: Capacity, startup_s: float, drain_s: float = 0.0
) -> Outcome:
    """What a course of paid replicas attains and costs; one that leaves is paid until what it has is done, `drain_s` [s]."""
    came, held = by_window(rates, serving_of(paid, startup_s), capacity)
    steps = np.diff(paid)
    hours = (float(paid.sum()) * STEP_S + drain_s * float(-steps[steps < 0].sum())) / HOUR_S
    return Outcome(name, capacity.attained(came, held), hours, int(paid.max()), int(steps[steps > 0].sum()))


ALLOWED = 0.01
"""Share of requests that may wait for a start where no promise says [1]."""


@dataclass(frozen=True, slots=True)
class Cold(Record):
    """A replica that is unloaded after some time without requests.

    Requests come at random at the rates of a path (a Cox process), and the time runs from the last one, a request's own seconds
    left aside; a replica is not stopped while it starts.

    Parameters
    ----------
    idle_s
        That time: what was asked, at least the start-up's [s].
    starts_per_day
        How often it starts [1/d].
    late_share
        Requests that wait for a start longer than their promise allows: the one that starts it, and those that come meanwhile [1].
    up_share
        Of the time that it starts or is loaded: what it costs of one that is kept [1].
    allowed_share
        Requests that may be late by the tightest promise of a first token or of an answer, else :data:`ALLOWED` [1].
    keeps_after_s, keeps_up_share
        The shortest time with which no more are late, and :attr:`up_share` with it; ``None`` = keep it loaded [s], [1].
    models
        Replicas' worth of GPUs -> models like this, each on its own clock, that share them with :attr:`idle_s` so that in the
        busiest hour a start finds none free in at most :attr:`allowed_share` of the cases.
    """

    idle_s: float
    starts_per_day: float
    late_share: float
    up_share: float
    allowed_share: float
    keeps_after_s: float | None
    keeps_up_share: float | None
    models: Mapping[int, int]

    def told(self) -> str:
        """In words."""
        keeps = self.keeps_after_s
        kept = "the promise takes a replica that is kept"
        if keeps is not None:
            loaded = format_percent(self.keeps_up_share or 0.0)
            kept = f"the promise is kept from {format_duration(keeps)} on (loaded {loaded} of the time)"
        shared = ", ".join(f"{places:,} for {models:,}" for places, models in self.models.items())
        return (
            f"unloaded after {format_duration(self.idle_s)} without requests: {format_count(self.starts_per_day)} starts a day, "
            f"loaded {format_percent(self.up_share)} of the time, {format_percent(self.late_share)} of the requests wait for a "
            f"start ({format_percent(self.allowed_share)} may); {kept}; replicas and models like it that share them: {shared}"
        )


def _shares(path: Floats, idle_s: float, startup_s: float, limit_s: float) -> tuple[float, float, Floats]:
    """Share of the requests that is late [1], starts [1/s], and the chance in every step to be loaded [1], shape (steps,).

    `path` are the rates of a period's steps [1/s]; it is unloaded where none came for `idle_s`.
    """
    expected = STEP_S * np.concatenate(([0.0], np.cumsum(np.tile(path, 3))))
    at = path.size + np.arange(path.size) + 0.5

    def came(since: float, until: float) -> Floats:
        """Requests expected from and to so long after each step [s]."""
        ends = (np.interp(at + x / STEP_S, np.arange(expected.size), expected) for x in (since, until))
        return np.asarray(-np.subtract(*ends))

    nobody = np.exp(-came(-idle_s, 0.0))
    starts = path * nobody
    late = starts * (1.0 + came(0.0, startup_s - limit_s)) if startup_s > limit_s else 0.0 * path
    return float(late.sum() / path.sum()), float(starts.mean()), 1.0 - nobody


def cold_of(path: Floats, idle_s: float, startup_s: float, promises: Sequence[Promise]) -> Cold:
    """What unloading does to a model whose requests come at the rates of a path.

    Parameters
    ----------
    path
        Rate in every :data:`STEP_S` of whole hours that repeat, shape (steps,) [1/s].
    idle_s
        Time without requests after which it is unloaded [s].
    startup_s
        From a request that finds it unloaded until it serves, at most the period [s].
    promises
        What requests are promised.
    """
    waits = [p for p in promises if p.metric in ("ttft_s", "e2e_s") and p.quantile != MEAN]
    allowed, limit = min(((1.0 - p.quantile, p.limit_s) for p in waits), default=(ALLOWED, 0.0))
    period = path.size * STEP_S
    idle = min(max(idle_s, startup_s), period)
    late, starts, loaded = _shares(path, idle, startup_s, limit)
    times = np.arange(startup_s, period + STEP_S, STEP_S).clip(max=period)
    enough = bisect_left(times, True, key=lambda t: _shares(path, float(t), startup_s, limit)[0] <= allowed)
    keeps = float(times[enough]) if enough < times.size else None
    kept = None if keeps is None else float(_shares(path, keeps, startup_s, limit)[2].mean())
    busiest = float(loaded.reshape(-1, round(HOUR_S / STEP_S)).mean(axis=1).max())
    models = {places: _sharing(places, busiest, allowed) for places in VALUES["places"]}
    return Cold(idle, DAY_S * starts, late, float(loaded.mean()), allowed, keeps, kept, models)


def _sharing(places: int, loaded: float, allowed: float) -> int:
    """Models, each loaded with a chance, so that of one that starts all places are taken by others in an allowed share [1].

    >>> _sharing(1, 0.01, 0.01), _sharing(4, 1.0, 0.01)
    (2, 4)
    """
    models = places
    while models < VALUES["most_each"] * places:
        free = math.fsum(
            math.comb(models, k) * loaded**k * (1.0 - loaded) ** (models - k) for k in range(min(places, models + 1))
        )
        if 1.0 - free > allowed * (1.0 + 1e-9):
            break
        models += 1
    return models
