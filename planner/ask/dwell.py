"""The cheapest replica counts that cover a need by hour, hold each count for a minimum time and pay for starts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def cheapest_holding(needed: Sequence[int], dwell_hours: int, startup_hours: float) -> tuple[int, ...]:
    r"""Replicas by hour, at least `needed`, constant for at least `dwell_hours` at a time; the hours repeat for ever.

    Minimizes :math:`\sum_h n_h + s \sum_h (n_h - n_{h-1})^+`: replica-hours, and `s` hours paid by every replica that
    starts. Dynamic programming over the stretches of one count: a stretch that needs less than its maximum is never
    better than its maximum, and the one that holds the busiest hour has its value given, so the circle is cut there.

    Parameters
    ----------
    needed
        Replicas needed in every hour, shape (hours,).
    dwell_hours
        Least length of a stretch [h]; beyond the period nothing changes at all.
    startup_hours
        Time a replica is paid for before it serves [h].

    Returns
    -------
    tuple of int
        Shape (hours,).

    Examples
    --------
    >>> cheapest_holding([1, 3, 1, 1, 2, 1], 2, 0.1)
    (1, 3, 3, 2, 2, 1)
    """
    hours = len(needed)
    peak_at = int(np.argmax(needed))
    need = np.roll(np.asarray(needed, dtype=np.int64), -peak_at)
    peak = int(need[0])
    # longer than all hours is for ever, however much longer
    dwell = min(max(1, dwell_hours), hours + 1)
    values = np.unique(need)
    index = np.searchsorted(values, need)
    # what it takes to step from one count (row) to another (column)
    step = startup_hours * np.maximum(values[None, :] - values[:, None], 0).astype(np.float64)
    best = float(hours * peak)
    found = np.full(hours, peak, dtype=np.int64)
    for before in range(min(dwell, hours)):
        # `before` hours of the busiest stretch lie before its busiest hour; the last round stands for all longer ones
        first = max(1, dwell - before)
        cost = np.full((hours + 1, len(values)), np.inf)
        came_from = np.zeros((hours + 1, len(values), 2), dtype=np.int64)
        ends = np.arange(first, hours + 1)
        cost[ends, -1] = ends * float(peak)
        for start in range(first, hours):
            if not np.isfinite(cost[start]).any():
                continue
            arrived = cost[start][:, None] + step
            source = np.argmin(arrived, axis=0)
            least = arrived[source, np.arange(len(values))]
            stops = np.arange(start + dwell, hours + 1)
            if not stops.size:
                continue
            level = np.maximum.accumulate(index[start:])[dwell - 1 :]
            total = least[level] + (stops - start) * values[level]
            better = total < cost[stops, level]
            cost[stops[better], level[better]] = total[better]
            came_from[stops[better], level[better], 0] = start
            came_from[stops[better], level[better], 1] = source[level[better]]
        tails = range(before, hours) if before == dwell - 1 else (before,)
        for tail in tails:
            end = hours - tail
            if end < first:
                continue
            closing = cost[end] + startup_hours * (peak - values)
            level_at = int(np.argmin(closing))
            total_cost = float(closing[level_at]) + tail * peak
            if total_cost < best - 1e-9:
                best = total_cost
                found = _trace(came_from, values, end, level_at, peak, hours)
    return tuple(int(n) for n in np.roll(found, peak_at))


def _trace(came_from: np.ndarray, values: np.ndarray, end: int, level: int, peak: int, hours: int) -> np.ndarray:
    result = np.full(hours, peak, dtype=np.int64)
    while end > 0:
        start, source = (int(x) for x in came_from[end, level])
        result[start:end] = values[level]
        end, level = start, source
    return result


def paid_replicas(replicas: Sequence[int], startup_hours: float) -> list[tuple[float, int, int]]:
    """For every hour: the share of it with the later count, the count before, the count from then on.

    A replica that serves from hour h on runs from ``h - startup_hours``, so at time t the most that serve between t and
    ``t + startup_hours`` run.

    >>> paid_replicas([1, 2], 0.25)
    [(0.25, 1, 2), (0.25, 2, 2)]
    """
    hours = len(replicas)
    whole = min(math.floor(startup_hours + 1e-9), hours)
    rest = max(startup_hours - whole, 0.0) if whole < hours else 0.0
    twice = [*replicas, *replicas, *replicas]
    return [
        (rest, max(twice[h : h + whole + 1]), max(twice[h : h + whole + 2] if rest > 0.0 else twice[h : h + whole + 1]))
        for h in range(hours)
    ]
