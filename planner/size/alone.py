"""What is told of one pool by itself: what its prefix caches find, what it does beyond its capacity, what speculation gives it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from planner.predict.contract import PoolModel
from planner.predict.replayed import Answered, ReplayPool, weighted_quantiles
from planner.predict.sessions import SessionPool
from planner.promise import Promise
from planner.question.compiled import CompiledQuestion, Promises
from planner.routing import find_routing
from planner.shared.kept import once
from planner.shared.record import json_number
from planner.shared.remarks import Remark
from planner.size.pool import Pool, pool_model, traffic_of
from planner.units import format_count, format_duration, format_percent
from planner.workload import pools as m
from planner.workload.sending import Clients

FACTORS = (0.5, 1.0, 2.0)
"""Replicas of the curve over those of the plan."""

ROUTINGS = ("random", "sticky", "prefix")
"""Routings of the curve; the others that do not look at prompts find what random finds."""


def sessions_of(pool: Pool) -> SessionPool | None:
    """The model of a pool of sessions, of single copies; None where no caches are followed."""
    model = pool.model.single
    return model if isinstance(model, SessionPool) else None


def cache_curve(pool: Pool, model: SessionPool) -> dict[str, Any]:
    """The state of the caches as planned, and share found by routing and replicas."""
    replicas, copies = pool.replicas, pool.option.copies
    now = model.state(pool.rate_per_s, replicas * copies)
    curve = []
    for name in ROUTINGS:
        if name == "prefix" and not model.sessions.shared:
            continue
        other = model.routed(find_routing(name))
        for n in sorted({max(1, round(f * replicas)) for f in FACTORS}):
            # each copy has a cache of its own
            state = other.state(pool.rate_per_s, n * copies)
            curve.append({"routing": name, "replicas": n, "cached_share": state.share, "host_share": state.host_share})
    endless = float(
        np.maximum(model.sessions.cached_tokens, model.sessions.shared_tokens).sum() / model.sessions.input_tokens.sum()
    )
    return {**now.to_dict(), "repeated_share": endless, "routing": model.engine.routing, "curve": curve}


def cache_lines(pool: Pool, model: SessionPool) -> Iterator[str]:
    """The same in words, by routing."""
    facts = cache_curve(pool, model)
    share, host, again = (facts[k] for k in ("cached_share", "host_share", "repeated_share"))
    where = "host memory and disk" if model.cache.disk_tokens > 0.0 else "host memory"
    beside = f", {where} {format_percent(host)}" if host > 0.0 else ""
    alive, runs, pinned = (facts[k] for k in ("sessions", "busy_s", "pinned_tokens"))
    yield (
        f"{pool.name}: prefix caches supply {format_percent(share)} of the prompt tokens{beside}; {format_percent(again)} repeat."
        f" {format_count(round(alive))} sessions at a time, calls run {format_duration(runs)}, running requests hold "
        f"{format_percent(pinned / model.engine.kv_tokens)} of the KV memory."
    )
    for name in dict.fromkeys(point["routing"] for point in facts["curve"]):
        points = [p for p in facts["curve"] if p["routing"] == name]
        found = [f"{format_percent(p['cached_share'] + p['host_share'])} with {p['replicas']:,}" for p in points]
        yield f"{pool.name}: under routing {name} caches would supply {', '.join(found)} replicas."


SURGE_LOAD, SURGE_S = 2.0, 60.0
"""The surge from which recovery is told: demand over capacity [1], and how long it lasts [s]."""

LOADS = (0.8, 1.0, 1.2, 1.5, 2.0, 3.0)
"""Loads of the table, over capacity [1]."""

LONGEST_QUEUE = 4096
"""Requests waiting at a replica beyond which no limit is looked for."""


def _replayed(pool: Pool) -> ReplayPool | None:
    """The pool's model of single copies; ``None`` of a closed form, which knows no queues that close."""
    model = pool.model.single
    return model if isinstance(model, ReplayPool) else None


def _rules(pool: Pool, clients: Clients) -> Clients:
    """Doors and patience as engines see them."""
    # what comes before the engine takes its time from the clients' patience
    return replace(clients, timeout_s=max(clients.timeout_s - pool.option.profile.api_overhead_s, 1e-3))


def _row(found: Answered, rate_per_s: float) -> dict[str, float]:
    """What becomes of the requests of a pool."""
    return {
        "demand_per_s": rate_per_s,
        "goodput_per_s": rate_per_s * found.share,
        "answered_share": found.share,
        "rejected_share": found.rejected_share,
        "given_up_share": found.given_up_share,
        "amplification": found.attempts,
        "ttft_mean_s": float(found.ttft_s.mean()) if found.ttft_s.size else -1.0,
    }


def overload_at(pool: Pool, clients: Clients, rate_per_s: float) -> dict[str, float] | None:
    """What becomes of the requests of a pool at a rate [1/s]."""
    model = _replayed(pool)
    if model is None:
        return None
    n = pool.replicas * pool.option.copies
    return _row(model.answered(rate_per_s, n, _rules(pool, clients)), rate_per_s)


def beyond_capacity(pool: Pool, clients: Clients, promises: Promises) -> dict[str, Any]:
    """Table by load, the limit of the queue that keeps the tightest TTFT promise, and the time to recover from a surge."""
    of = (pool, clients, promises)
    *_, found = once(("beyond capacity", *map(id, of)), lambda: (*of, _beyond_capacity(*of)))
    return found


def _beyond_capacity(pool: Pool, clients: Clients, promises: Promises) -> dict[str, Any]:
    """The same, made anew."""
    model = _replayed(pool)
    if model is None:
        return {"loads": [], "limits": [], "surge": None}
    n, rules = pool.replicas * pool.option.copies, _rules(pool, clients)
    full = n * model.capacity_per_s
    limits = []
    for p in promises.parts:
        if p.metric == "ttft_s":
            waiting = _longest_queue(model, n, SURGE_LOAD * full, p)
            tokens = round(waiting * pool.law.mean(m.INPUT))
            limits.append({"promise": p.label, "limit_s": p.limit_s, "max_queue": waiting, "max_queued_tokens": tokens})
    recovery = model.surged(pool.rate_per_s, n, rules, SURGE_LOAD * full, SURGE_S)
    return {
        "loads": [{"load": x, **_row(model.answered(x * full, n, rules), x * full)} for x in LOADS],
        "limits": limits,
        "surge": {"load": SURGE_LOAD, "duration_s": SURGE_S, "recovery_s": json_number(recovery)},
    }


def _longest_queue(model: ReplayPool, replicas: int, rate_per_s: float, promise: Promise) -> int:
    """Requests that may wait at a replica so that those admitted keep a TTFT promise beyond capacity; 0 = none."""

    def keeps(waiting: int) -> bool:
        found = model.answered(rate_per_s, replicas, Clients(max_queue=float(waiting))).ttft_s
        if not found.size:
            return False
        value = weighted_quantiles(found, found * 0.0 + 1.0, (promise.quantile,))[0]
        return value <= promise.limit_s

    return bisect_left(range(1, LONGEST_QUEUE), True, key=lambda waiting: not keeps(waiting))


def overload_lines(pool: Pool, clients: Clients, promises: Promises) -> Iterator[str]:
    """The same in words."""
    facts = beyond_capacity(pool, clients, promises)
    rows, limits, surge = facts["loads"], facts["limits"], facts["surge"]
    if not rows:
        return
    told = "; ".join(
        f"{row['load']:g}x: {format_percent(row['answered_share'])} answered"
        + (f", {row['amplification']:.1f} attempts each" if row["amplification"] > 1.05 else "")
        for row in rows
    )
    yield f"{pool.name}: at these loads of its capacity, {told}."
    for limit in limits:
        if limit["max_queue"] < 1:
            yield f"{pool.name}: no queue keeps {limit['promise']} beyond capacity: a first token alone takes longer."
            continue
        yield (
            f"{pool.name}: beyond capacity {limit['promise']} holds for those admitted if at most "
            f"{limit['max_queue']:,} requests, {format_count(limit['max_queued_tokens'])} prompt tokens, wait at a replica "
            "(max_queue, vLLM --max-num-queued-tokens)."
        )
    after = surge["recovery_s"]
    told = "never" if after is None or math.isinf(after) else f"{format_duration(after)} after it ends"
    yield f"{pool.name}: the queue of a surge to {SURGE_LOAD:g}x its capacity for {format_duration(SURGE_S)} is gone {told}."


HALVINGS = 7
"""Of the range of rates in which the crossing lies."""


def speculation_remark(question: CompiledQuestion, pool: Pool) -> Remark | None:
    """Gain or loss of a pool that speculates, and the load from which on it loses; ``None`` for one that does not.

    Both are compared under Poisson arrivals at the same rate per replica by the median time per output token; the load is
    that of the replica that speculates.
    """
    option = pool.option
    if option.speculation is None or option.plain is None:
        return None
    arrivals = traffic_of(question.traffic, pool.law).poisson()
    plain_option = replace(option, speculation=None, draft=None, profile=option.plain)
    setup = replace(pool.setup, kv_tokens=float(plain_option.kv_tokens(pool.setup.slots)))
    plain = pool_model(question, plain_option, setup, arrivals)
    own = pool_model(question, option, pool.setup, arrivals)
    rate = pool.rate_per_s / pool.replicas

    def gain(at: float) -> float:
        return _median(plain, at) / _median(own, at)

    most = 0.98 * min(own.capacity_per_s, plain.capacity_per_s)
    slower = own.capacity_per_s < plain.capacity_per_s
    crossing: float | None = None
    if gain(0.02 * most) <= 1.0:
        crossing = 0.0
    elif gain(most) < 1.0:
        low, high = 0.02 * most, most
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if gain(middle) >= 1.0 else (low, middle)
        crossing = high
    elif slower:
        crossing = own.capacity_per_s
    load = rate / own.capacity_per_s
    values = {
        "pool": pool.name,
        "tokens": option.speculation.tokens_per_step,
        "assumed": ", assumed: state your own acceptance" if option.speculation.assumed else "",
        "tpot_s": _median(own, rate),
        "plain_s": _median(plain, rate) if rate < plain.capacity_per_s else float("inf"),
        "capacity": own.capacity_per_s,
        "plain_capacity": plain.capacity_per_s,
        "load": load,
    }
    if crossing is None:
        return Remark("speculation_gains", values)
    return Remark("speculation_crosses", values | {"crossing": crossing / own.capacity_per_s})


def _median(model: PoolModel, rate_per_s: float) -> float:
    """Median time per output token of one replica [s]."""
    return model.look(rate_per_s, 1, (0.5,)).value("tpot_s", 0.5)
