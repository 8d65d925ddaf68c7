"""What prefix caches find in a pool of sessions: at its size, with fewer or more replicas, and under the other routings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.fleet.pool import Pool
from planner.methods.sessions import SessionPool
from planner.routing import find_routing
from planner.units import format_count, format_duration, format_percent

FACTORS = (0.5, 1.0, 2.0)
"""Replicas of the curve over those of the plan."""

ROUTINGS = ("random", "sticky", "prefix")
"""Routings of the curve; the others that do not look at prompts find what random finds."""


def sessions_of(pool: Pool) -> SessionPool | None:
    """The model of a pool of sessions, of single copies; None where no caches are followed."""
    model = pool.model.single
    return model if isinstance(model, SessionPool) else None


def cache_curve(pool: Pool, model: SessionPool) -> dict[str, object]:
    """The state of the caches as planned, and share found by routing and replicas."""
    replicas, copies = pool.size.replicas, pool.option.copies
    now = model.state(pool.arrival_rate_per_s, replicas * copies)
    curve = []
    for name in ROUTINGS:
        if name == "prefix" and not model.sessions.shared:
            continue
        other = model.routed(find_routing(name))
        for n in sorted({max(1, round(f * replicas)) for f in FACTORS}):
            # each copy has a cache of its own
            state = other.state(pool.arrival_rate_per_s, n * copies)
            curve.append({"routing": name, "replicas": n, "cached_share": state.share, "host_share": state.host_share})
    endless = float(
        np.maximum(model.sessions.cached_tokens, model.sessions.shared_tokens).sum() / model.sessions.input_tokens.sum()
    )
    return {**now.to_dict(), "repeated_share": endless, "routing": model.engine.routing, "curve": curve}


def cache_lines(pool: Pool, model: SessionPool) -> Iterator[str]:
    """The same in words, by routing."""
    facts = cache_curve(pool, model)
    share, host, again = (float(str(facts[k])) for k in ("cached_share", "host_share", "repeated_share"))
    beside = f", host memory {format_percent(host)}" if host > 0.0 else ""
    alive, runs, pinned = (float(str(facts[k])) for k in ("sessions", "busy_s", "pinned_tokens"))
    yield (
        f"{pool.name}: prefix caches supply {format_percent(share)} of the prompt tokens{beside}; {format_percent(again)} repeat."
        f" {format_count(round(alive))} sessions at a time, calls run {format_duration(runs)}, running requests hold "
        f"{format_percent(pinned / model.engine.kv_tokens)} of the KV memory."
    )
    curve = facts["curve"]
    assert isinstance(curve, list)
    for name in dict.fromkeys(point["routing"] for point in curve):
        points = [p for p in curve if p["routing"] == name]
        found = [f"{format_percent(p['cached_share'] + p['host_share'])} with {p['replicas']:,}" for p in points]
        yield f"{pool.name}: under routing {name} caches would supply {', '.join(found)} replicas."
