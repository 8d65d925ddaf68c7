"""A scaler's own rule over a path of rates: which windows keep their promises, and what it costs beside others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.autoscale.signals import Signals
from planner.autoscale.thresholds import Capacity
from planner.autoscale.windows import STEP_S, WINDOW_S, Floats, Ints
from planner.monitor.policy import Policy, Scaler

LAG_S = 15.0
"""Age of what a scaler sees: half a scrape and the query [s]."""


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
    late = round(LAG_S / STEP_S)
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
        end = k - late
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
    first, late = max(1, round(policy.rate_window_s / STEP_S)), round(LAG_S / STEP_S)
    total = np.concatenate(([0.0], np.cumsum(rates)))
    end = np.arange(rates.size) - late
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
    held = np.repeat(np.asarray(by_hour, dtype=np.int64), round(3600.0 / STEP_S))
    return np.resize(_around(held, after=math.ceil(startup_s / STEP_S), mode="wrap").max(axis=1), steps)


def outcome(
    name: str, rates: Floats, paid: Ints, capacity: Capacity, startup_s: float, drain_s: float = 0.0
) -> Outcome:
    """What a course of paid replicas attains and costs; one that leaves is paid until what it has is done, `drain_s` [s]."""
    came, held = by_window(rates, serving_of(paid, startup_s), capacity)
    steps = np.diff(paid)
    hours = (float(paid.sum()) * STEP_S + drain_s * float(-steps[steps < 0].sum())) / 3600.0
    return Outcome(name, capacity.attained(came, held), hours, int(paid.max()), int(steps[steps > 0].sum()))
