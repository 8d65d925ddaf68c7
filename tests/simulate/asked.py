"""Requests of a replay, column by column."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.predict.records import Requests, keys_of


def asked(times: Any, inputs: Any, outputs: Any, cached: Any = 0.0, seed: int = 0, **more: Any) -> Requests:
    """Requests at given times [s], in order, with these lengths, one for all or one each [tokens]."""
    at = np.asarray(times, dtype=np.float64)
    lengths = (np.broadcast_to(np.asarray(x, dtype=np.float64), at.shape).copy() for x in (inputs, outputs, cached))
    return Requests(at, *lengths, key=keys_of(np.arange(at.size), np.full(at.size, seed), 7), **more)  # type: ignore[misc]
