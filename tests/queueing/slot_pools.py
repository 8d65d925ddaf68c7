"""Pools of slot replicas in one call, for tests: iteration times W + H n, the chain of busy slots, and latencies."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.queueing.slots.chain import Occupancy, OccupancyChain, pooled, replica_dispersion
from planner.queueing.slots.latency import PoolLatency, ReplicaLatency


def iteration_times(slots: int, fixed: float, per_slot: float) -> np.ndarray:
    """t(0..slots) = W + H n."""
    return fixed + per_slot * np.arange(slots + 1.0)


def occupancy(
    rate: float, iterations: float, times: Any, slots: int, replicas: int = 1, routing: str = "random",
    dispersion: float = 1.0,
) -> Occupancy:  # fmt: skip
    """Law of the busy slots of a pool at `rate` requests/s of `iterations` on average."""
    one_chain = pooled(routing)
    chain = OccupancyChain(np.asarray(times, dtype=float), slots, replicas if one_chain else 1)
    peakedness = max(1.0 + 0.5 * (replica_dispersion(dispersion, replicas, routing) - 1.0), 0.05)
    return chain.solve((rate if one_chain else rate / replicas) * iterations, peakedness)


def pool_latency(
    rate: float, replicas: int, slots: int, fixed: float = 0.0, per_slot: float = 0.0, *, input_tokens: Any,
    output_tokens: Any, chunk: float, iteration_time: Any = None, routing: str = "random",
) -> PoolLatency:  # fmt: skip
    """Latency of a pool of replicas with t(n) = W + H n, or the times given."""
    times = iteration_times(slots, fixed, per_slot) if iteration_time is None else iteration_time
    replica = ReplicaLatency(input_tokens, output_tokens, iteration_time=times, chunk=chunk)
    return replica.predict(rate, replicas, routing)
