"""Of a trace of several weeks: which hour a plan is sized for, and what the others would take."""

from __future__ import annotations

import numpy as np

from planner.fleet.fleet import Fleet
from planner.fleet.pool import Shortfall
from planner.shared.remarks import Remark
from planner.workload.trace import Intervals

HOUR_S = 3600.0

WEEKS = 2
"""Weeks from which on a trace has a busiest hour of each to compare."""

MOST_HOURS = 0.95
"""Share of the hours that a smaller fleet is told for."""


def hours_told(fleet: Fleet) -> Remark | None:
    """The hour and the fleets of the others; ``None`` of a shorter trace, or where another rate was asked for."""
    traffic = fleet.question.traffic
    workload, trace = traffic.workload, traffic.workload.recorded
    known = workload.intervals
    if known is None and trace is not None and trace.stretches is None:
        known = Intervals.of(trace.times_s)
    if known is None or not traffic.own_rate or known.width_s > HOUR_S or HOUR_S % known.width_s:
        return None
    each = round(HOUR_S / known.width_s)
    whole = known.counts.size // each
    counts = known.counts[: whole * each].reshape(whole, each).sum(axis=1)
    weeks = whole // (7 * 24)
    if weeks < WEEKS:
        return None
    # by the busiest hour of all, which the fleet's rate stands for
    rates = counts / counts.max() * fleet.rate
    by_week = rates[: weeks * 7 * 24].reshape(weeks, -1).max(axis=1)
    asked = {"week": float(np.median(by_week)), "hours": float(np.quantile(rates, MOST_HOURS))}
    gpus = {name: _gpus(fleet, rate) for name, rate in asked.items()}
    if None in gpus.values():
        return None
    at = int(np.argmax(counts))
    values = {"day": at // 24 + 1, "hour": at % 24 + 1, "of": whole, "rate": fleet.rate, "share": MOST_HOURS}
    told = {**{f"{k}_rate": v for k, v in asked.items()}, **{f"{k}_gpus": v for k, v in gpus.items()}}
    return Remark("hours", {**values, **told, "gpus": sum(p.gpus for p in fleet.pools)})


def _gpus(fleet: Fleet, rate_per_s: float) -> int | None:
    """GPUs that the same pools take at a rate [1/s]; ``None`` where no number of replicas does."""
    sizes = fleet.size(rate_per_s)
    if isinstance(sizes, Shortfall):
        return None
    prices = [p.option.price for p in fleet.pools]
    return sum(p.bought(s.replicas) * p.gpus_per_replica for p, s in zip(prices, sizes, strict=True))
