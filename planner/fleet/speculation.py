"""What speculative decoding gives a pool: against the same replica without it, at the pool's load and at others."""

from __future__ import annotations

from dataclasses import replace

from planner.fleet.pool import Pool, pool_model, traffic_of
from planner.methods.base import PoolModel
from planner.question.compiled import CompiledQuestion
from planner.shared.remarks import Remark

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
    rate = pool.arrival_rate_per_s / pool.size.replicas

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
