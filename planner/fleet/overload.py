"""What a pool does beyond its capacity: who is answered, turned away and given up, and the limit that keeps a TTFT promise."""

from __future__ import annotations

import math
from collections.abc import Iterator

from planner.fleet.caches import sessions_of
from planner.fleet.pool import Pool
from planner.methods.disaggregated import PrefillPool
from planner.methods.overload import door_of, overload_row, overload_table, overloaded_prefill, overloaded_replica
from planner.question.compiled import Clients, Promises
from planner.queueing.overload import Door, OverloadedReplica
from planner.record import json_number
from planner.units import format_count, format_duration, format_percent
from planner.workload import pools as m

SURGE_LOAD, SURGE_S = 2.0, 60.0
"""The surge from which recovery is told: demand over capacity [1], and how long it lasts [s]."""


def _replica(pool: Pool, clients: Clients) -> tuple[OverloadedReplica, Door]:
    """A replica of a pool beyond its capacity, and the door in front of it."""
    law, model = pool.law, pool.model
    if sessions := sessions_of(pool):
        law, model, _ = sessions.left_at(pool.arrival_rate_per_s, pool.size.replicas * pool.option.copies)
    if isinstance(model, PrefillPool):
        made = overloaded_prefill(model.nodes.service_s, model.nodes.weight)
    else:
        made = overloaded_replica(
            law,
            pool.option.profile.iteration,
            pool.setup.slots,
            pool.option.token_budget,
            pool.setup.kv_tokens,
            pool.capacity_per_s / pool.option.copies,
            pool.option.shared_prefix,
        )
    mean = law.mean(m.INPUT)
    # what comes before the engine takes its time from the clients' patience
    patience = max(clients.timeout_s - pool.option.profile.api_overhead_s, 1e-3)
    return made, door_of(
        clients.max_queue, clients.max_queued_tokens, patience, clients.retries, mean, clients.retry_after_s
    )


def overload_at(pool: Pool, clients: Clients, arrival_rate_per_s: float) -> dict[str, float]:
    """What becomes of the requests of a pool at a rate [1/s]."""
    replica, door = _replica(pool, clients)
    n = pool.size.replicas * pool.option.copies
    return overload_row(replica.at(arrival_rate_per_s / n, door), n)


def beyond_capacity(pool: Pool, clients: Clients, promises: Promises) -> dict[str, object]:
    """Table by load, the limit of the queue that keeps the tightest TTFT promise, and the time to recover from a surge."""
    replica, door = _replica(pool, clients)
    n = pool.size.replicas * pool.option.copies
    limits = []
    for p in promises.parts:
        if p.metric == "ttft_s":
            waiting = replica.queue_for(p.limit_s - pool.option.profile.api_overhead_s, p.quantile)
            tokens = round(waiting * pool.law.mean(m.INPUT))
            limits.append({"promise": p.label, "limit_s": p.limit_s, "max_queue": waiting, "max_queued_tokens": tokens})
    usual = pool.arrival_rate_per_s / n
    surge = SURGE_LOAD * replica.capacity_per_s
    recovery = replica.recovery_s(usual, surge, SURGE_S, door)
    return {
        "loads": overload_table(replica, door, n),
        "limits": limits,
        "surge": {"load": SURGE_LOAD, "duration_s": SURGE_S, "recovery_s": json_number(recovery)},
    }


def overload_lines(pool: Pool, clients: Clients, promises: Promises) -> Iterator[str]:
    """The same in words."""
    facts = beyond_capacity(pool, clients, promises)
    rows = facts["loads"]
    assert isinstance(rows, list)
    told = "; ".join(
        f"{row['load']:g}x: {format_percent(row['answered_share'])} answered"
        + (f", {row['amplification']:.1f} attempts each" if row["amplification"] > 1.05 else "")
        for row in rows
    )
    yield f"{pool.name}: at these loads of its capacity, {told}."
    limits = facts["limits"]
    assert isinstance(limits, list)
    for limit in limits:
        if limit["max_queue"] < 1:
            yield f"{pool.name}: no queue keeps {limit['promise']} beyond capacity: a first token alone takes longer."
            continue
        yield (
            f"{pool.name}: beyond capacity {limit['promise']} holds for those admitted if at most "
            f"{limit['max_queue']:,} requests, {format_count(limit['max_queued_tokens'])} prompt tokens, wait at a replica "
            "(--max-queue, vLLM --max-num-queued-tokens)."
        )
    surge = facts["surge"]
    assert isinstance(surge, dict)
    after = surge["recovery_s"]
    told = "never" if after is None or math.isinf(after) else f"{format_duration(after)} after it ends"
    yield f"{pool.name}: the queue of a surge to {SURGE_LOAD:g}x its capacity for {format_duration(SURGE_S)} is gone {told}."
