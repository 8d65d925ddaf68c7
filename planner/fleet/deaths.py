"""What becomes of the promises when the spares of a pool are called on: replicas die in its busiest minutes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from planner.fleet.fleet import Fleet
from planner.fleet.pool import Pool
from planner.methods.replayed import ReplayPool, weighted_quantiles
from planner.predict.records import Outage, Requests, Run
from planner.predict.run import replay
from planner.predict.traffic import WHOLE
from planner.promise import MEAN, Promise
from planner.shared.remarks import Remark

BUSIEST_S = 300.0
"""Time whose prompt tokens say when a pool is busiest, and whose requests are told of by themselves [s]."""


def deaths_of(fleet: Fleet) -> Iterator[Remark]:
    """For every pool with spares what its promises are when as many replicas as it has spares die together, or a node's.

    They die where the busiest five minutes begin, and are back after the time of a repair; what they held is sent again to those
    that are left. Nothing is told of pools whose requests are no replay of single replicas: caches of sessions, prefill apart, and
    of more requests than are replayed whole.
    """
    for pool in fleet.pools:
        spares = pool.bought - pool.size.replicas
        if not spares or fleet.linked or fleet.shared_promises:
            continue
        option = pool.option
        on_a_node = min(max(option.gpu.gpus_per_node // option.price.gpus_per_replica, 1), pool.bought - 1)
        for dead in sorted({spares, on_a_node} if on_a_node > spares else {spares}):
            yield from _after(
                pool, fleet.own_promises, dead, 3600.0 * fleet.question.purchase.repair_hours, dead > spares
            )


def _after(pool: Pool, promises: tuple[Promise, ...], dead: int, repair_s: float, node: bool) -> Iterator[Remark]:
    """What so many deaths do to each promise."""
    copies, model = pool.model.copies, pool.model.single
    # pools with caches and speculation have requests of their own
    if type(model) is not ReplayPool or not 0 < dead < pool.bought:
        return
    count = pool.bought * copies
    laid = model.traffic.lay(pool.arrival_rate_per_s, count, model.engine.routing, most=WHOLE)
    if laid.replicas != count:
        return
    requests = model.traffic.requests(laid)
    begin = _busiest(requests)
    # the replicas of one node are neighbours: the first are as good as any
    down = [Outage(k, begin, begin + max(repair_s, 1.0)) for k in range(dead * copies)]
    run = replay(requests, replace(model.engine, count=count), outages=down)
    then = (requests.arrival_s >= begin) & (requests.arrival_s < begin + BUSIEST_S)
    for promise in promises:
        if promise.limits.keys() != {promise.metric}:
            continue
        whole = _quantile(promise, requests, run, model.overhead_s, np.ones(requests.size, dtype=bool))
        told = {
            "pool": pool.name, "dead": dead, "bought": pool.bought, "label": promise.label, "limit_s": promise.limit_s,
            "value_s": whole, "then_s": _quantile(promise, requests, run, model.overhead_s, then), "repair_s": repair_s,
            "who": "a node" if node else "as many as there are spares",
        }  # fmt: skip
        yield Remark("deaths_kept" if whole <= promise.limit_s else "deaths_broken", told)


def _busiest(requests: Requests) -> float:
    """When the busiest minutes begin, by prompt tokens [s]."""
    minute = (requests.arrival_s / 60.0).astype(np.int64)
    tokens = np.bincount(minute, requests.input_tokens)
    width = min(round(BUSIEST_S / 60.0), tokens.size)
    sums = np.convolve(tokens, np.ones(width), "valid")
    return 60.0 * float(np.argmax(sums))


def _quantile(promise: Promise, requests: Requests, run: Run, overhead_s: float, rows: np.ndarray) -> float:
    """A promise's quantile of some requests [s]; what is never answered is beyond every limit."""
    ttft, e2e = (np.nan_to_num(x, nan=math.inf) + overhead_s for x in (run.ttft_s, run.e2e_s))
    steps = requests.output_tokens - 1.0
    values = {"ttft_s": ttft, "e2e_s": e2e}.get(promise.metric)
    if values is None:
        rows = rows & (steps > 0.0) & np.isfinite(e2e)
        # what comes before the engine is in both; of what is never answered neither is known
        values = (run.e2e_s - run.ttft_s) / np.maximum(steps, 1.0)
    weight = np.ones(requests.size) if requests.weight is None else requests.weight
    rows = rows & (weight > 0.0)
    if not rows.any():
        return math.nan
    if promise.quantile == MEAN:
        return float(np.average(values[rows], weights=weight[rows]))
    return weighted_quantiles(values[rows], weight[rows], (promise.quantile,))[0]
