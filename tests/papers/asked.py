"""Requests of a replay, column by column, and pools simulated in one call."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.papers import pool
from planner.papers.measure import SimulationResult
from planner.papers.presets import PoolEngines
from planner.papers.traffic import SampledTraffic
from planner.predict.records import Requests, keys_of


def asked(times: Any, inputs: Any, outputs: Any, cached: Any = 0.0, seed: int = 0, **more: Any) -> Requests:
    """Requests at given times [s], in order, with these lengths, one for all or one each [tokens]."""
    at = np.asarray(times, dtype=np.float64)
    lengths = (np.broadcast_to(np.asarray(x, dtype=np.float64), at.shape).copy() for x in (inputs, outputs, cached))
    return Requests(at, *lengths, key=keys_of(np.arange(at.size), np.full(at.size, seed), 7), **more)  # type: ignore[misc]


def simulate(traffic: Any, engines: PoolEngines, **asked: Any) -> SimulationResult:
    """One pool: see :func:`planner.papers.pool.simulate`."""
    (found,) = pool.simulate(traffic, engines, **asked)
    return found


def simulate_pool(
    input_tokens: Any, output_tokens: Any, weight: Any, rate_per_s: float, *, requests: int = 50_000, cached_share: Any = 0.0,
    seeds: Any = 1, quantiles: Any = (0.5, 0.9, 0.99), **engines: Any,
) -> SimulationResult:  # fmt: skip
    """A pool under requests drawn from a law, with the fields of :class:`PoolEngines` as keywords."""
    traffic = SampledTraffic(input_tokens, output_tokens, weight, rate_per_s, requests, cached_share)
    return simulate(traffic, PoolEngines(**engines), seeds=seeds, quantiles=quantiles)
