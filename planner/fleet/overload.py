"""What a pool does beyond its capacity: who is answered, turned away and given up, and the limit that keeps a TTFT promise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from planner.fleet.pool import Pool
from planner.methods.replayed import Answered, ReplayPool, weighted_quantiles
from planner.promise import Promise
from planner.question.compiled import Promises
from planner.shared.record import json_number
from planner.units import format_count, format_duration, format_percent
from planner.workload import pools as m
from planner.workload.sending import Clients

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


def overload_at(pool: Pool, clients: Clients, arrival_rate_per_s: float) -> dict[str, float] | None:
    """What becomes of the requests of a pool at a rate [1/s]."""
    model = _replayed(pool)
    if model is None:
        return None
    n = pool.size.replicas * pool.option.copies
    return _row(model.answered(arrival_rate_per_s, n, _rules(pool, clients)), arrival_rate_per_s)


def beyond_capacity(pool: Pool, clients: Clients, promises: Promises) -> dict[str, object]:
    """Table by load, the limit of the queue that keeps the tightest TTFT promise, and the time to recover from a surge."""
    model = _replayed(pool)
    if model is None:
        return {"loads": [], "limits": [], "surge": None}
    n, rules = pool.size.replicas * pool.option.copies, _rules(pool, clients)
    full = n * model.capacity_per_s
    limits = []
    for p in promises.parts:
        if p.metric == "ttft_s":
            waiting = _longest_queue(model, n, SURGE_LOAD * full, p)
            tokens = round(waiting * pool.law.mean(m.INPUT))
            limits.append({"promise": p.label, "limit_s": p.limit_s, "max_queue": waiting, "max_queued_tokens": tokens})
    recovery = model.surged(pool.arrival_rate_per_s, n, rules, SURGE_LOAD * full, SURGE_S)
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

    low, high = 0, 1
    while high < LONGEST_QUEUE and keeps(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def overload_lines(pool: Pool, clients: Clients, promises: Promises) -> Iterator[str]:
    """The same in words."""
    facts = beyond_capacity(pool, clients, promises)
    rows, limits, surge = facts["loads"], facts["limits"], facts["surge"]
    assert isinstance(rows, list) and isinstance(limits, list)
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
    assert isinstance(surge, dict)
    after = surge["recovery_s"]
    told = "never" if after is None or math.isinf(after) else f"{format_duration(after)} after it ends"
    yield f"{pool.name}: the queue of a surge to {SURGE_LOAD:g}x its capacity for {format_duration(SURGE_S)} is gone {told}."
