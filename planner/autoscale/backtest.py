"""A scaler's own rule over a path of rates: which windows keep their promises, and what it costs beside others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.autoscale.path import STEP_S, WINDOW_S
from planner.autoscale.policy import Policy, Scaler
from planner.autoscale.thresholds import Capacity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

LAG_S = 15.0
"""Age of what a scaler sees: half a scrape and the query [s]."""

Running = Callable[[float, float], float]
"""Mean requests running in all replicas at a rate [1/s] with so many serving."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a scaler did.

    Parameters
    ----------
    name
        Which.
    attained
        Share of the windows expected within the promise [1].
    replica_hours
        Paid replicas [h].
    most
        Most replicas at once.
    changes
        Times the number changed.
    """

    name: str
    attained: float
    replica_hours: float
    most: int
    changes: int


def serving_of(paid: Ints, startup_s: float) -> Ints:
    """Replicas that serve when each takes `startup_s` from being paid, shape (steps,); those of the first step serve already."""
    late = round(startup_s / STEP_S)
    if late == 0:
        return paid
    padded = np.concatenate((np.full(late, paid[0]), paid))
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, late + 1).min(axis=1))


def within(rates: Floats, serving: Ints, capacity: Capacity) -> Floats:
    """Chance of every whole window to keep the promise, by what came and what its replicas are sized for, shape (windows,)."""
    size = round(WINDOW_S / STEP_S)
    windows = rates.size // size
    room = np.array([capacity.rate_per_s(max(n, 1)) for n in range(int(serving.max()) + 1)])[serving]
    came = rates[: windows * size].reshape(windows, size).mean(axis=1)
    held = room[: windows * size].reshape(windows, size).mean(axis=1)
    return capacity.windows.kept(came, held)


def run_policy(
    policy: Policy, rates: Floats, startup_s: float, running: Running | None = None, tokens: float = 0.0
) -> Ints:
    """Paid replicas of every step, shape (steps,).

    Parameters
    ----------
    policy
        The rule.
    rates
        The path [1/s].
    startup_s
        From being paid until serving [s].
    running
        For policies on running requests.
    tokens
        Tokens of a request, for policies on tokens [tokens].
    """
    first = max(1, round(policy.rate_window_s / STEP_S))
    late = round(LAG_S / STEP_S)
    total = np.concatenate(([0.0], np.cumsum(rates)))
    start = total[first] / first
    scaler = Scaler(policy, policy.most)
    for _ in range(3):
        scaler = Scaler(policy, scaler.decide(0.0, _seen(policy, start, scaler.replicas, running, tokens)))
    paid = np.empty(rates.size, dtype=np.int64)
    delay = max(1, round(startup_s / STEP_S))
    for k in range(rates.size):
        end = k - late
        begin = max(0, end - first)
        seen = (total[end] - total[begin]) / (end - begin) if end > 0 else start
        serving = int(paid[max(0, k - delay) : k].min()) if k else scaler.replicas
        paid[k] = scaler.decide(k * STEP_S, _seen(policy, seen, serving, running, tokens))
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
    back = max(1, round(policy.down_window_s / STEP_S))
    padded = np.concatenate((np.full(back - 1, wanted[0]), wanted))
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, back).max(axis=1))


def _seen(policy: Policy, rate: float, serving: int, running: Running | None, tokens: float) -> dict[str, float]:
    """What the scaler's metrics add up to."""
    found = {"requests": max(0.0, rate + policy.offset_per_s), "tokens": rate * tokens}
    if running is not None and "running" in policy.targets:
        found["running"] = running(rate, serving)
    return found


def window_needs(rates: Floats, capacity: Capacity) -> Ints:
    """Replicas that every window needs, shape (windows,)."""
    size = round(WINDOW_S / STEP_S)
    windows = rates.size // size
    means = rates[: windows * size].reshape(windows, size).mean(axis=1)
    return np.array([capacity.needed(float(r)) for r in means])


def perfect_counts(rates: Floats, capacity: Capacity, startup_s: float) -> Ints:
    """Paid replicas of a scaler that knows the path: every window's need, started ahead, shape (steps,)."""
    size = round(WINDOW_S / STEP_S)
    needs = np.repeat(window_needs(rates, capacity), size)
    needs = np.concatenate((needs, np.full(rates.size - needs.size, needs[-1])))
    ahead = round(startup_s / STEP_S)
    padded = np.concatenate((needs, np.full(ahead, needs[-1])))
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, ahead + 1).max(axis=1))


def clock_counts(by_hour: Sequence[int], steps: int, startup_s: float) -> Ints:
    """Paid replicas that the clock alone holds: those of every hour, started ahead, shape (steps,)."""
    held, ahead = np.repeat(np.asarray(by_hour, dtype=np.int64), round(3600.0 / STEP_S)), math.ceil(startup_s / STEP_S)
    padded = np.concatenate((held, held[:ahead]))
    return np.resize(np.lib.stride_tricks.sliding_window_view(padded, ahead + 1).max(axis=1), steps)


def static_counts(rates: Floats, capacity: Capacity) -> Ints:
    """The busiest window's need, always."""
    return np.full(rates.size, int(window_needs(rates, capacity).max()))


def outcome(name: str, rates: Floats, paid: Ints, capacity: Capacity, startup_s: float) -> Outcome:
    """Attainment and cost of a course of paid replicas."""
    kept = within(rates, serving_of(paid, startup_s), capacity)
    changes = int((np.diff(paid) != 0).sum())
    return Outcome(name, float(kept.mean()), float(paid.sum()) * STEP_S / 3600.0, int(paid.max()), changes)
