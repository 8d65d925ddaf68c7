"""Promises that cost far more than a little looser ones would."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace

from planner.fleet.fleet import Fleet
from planner.fleet.pool import Shortfall
from planner.shared.remarks import Remark

LOOSER, WORTH_TELLING = 1.5, 0.2
"""A promise this many times as loose that saves more than this share of the cost stands on a cliff [1]."""

NEAR_IDLE = 0.1
"""So does one that lies within this share of what an idle engine does [1]."""


def cliffs_of(fleet: Fleet) -> Iterator[Remark]:
    """What is said of latency promises that stand on a cliff; engines stay, and a sample of the requests says what is saved."""
    margins, own = fleet.margins(fleet.promises.confidence), fleet.cost_usd_per_hour
    for k, p in enumerate(fleet.promises.latency):
        idle = [pool.model.unloaded(fleet.levels).value(p.metric, p.quantile) for pool in fleet.pools]
        # a pool that does not decode has no TPOT
        if any(value <= p.limit_s < (1.0 + NEAR_IDLE) * value for value in idle):
            least = max(value for value in idle if value <= p.limit_s)
            yield Remark("near_idle", {"promise": p.told, "idle": p.tell(least)})
        looser = p.scaled(LOOSER)
        latency = tuple(looser if j == k else q for j, q in enumerate(fleet.promises.latency))
        other = copy(fleet)
        other.question = replace(fleet.question, promises=fleet.promises.only(latency))
        sizes = other.sizes_for(fleet.rate, margins, fleet.counts, quick=True)
        if isinstance(sizes, Shortfall):
            continue
        then = fleet.resized([size.replicas for size in sizes])
        saved = 1.0 - then.cost_usd_per_hour / own if own > 0.0 else 0.0
        if saved > WORTH_TELLING:
            gpus, now = (sum(pool.gpus for pool in one.pools) for one in (then, fleet))
            yield Remark("cliff", {"looser": looser.told, "gpus": gpus, "promise": p.told, "now": now, "saved": saved})
