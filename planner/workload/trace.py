"""The requests of a trace one by one: when each came and how long it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LONG_S = 6 * 3600.0
"""A trace longer than this has hours of its own [s]."""

SAME = 2e-3
"""Relative difference up to which a rate is a whole multiple of the trace's own."""

SHIFT_S = 1800.0
"""How far its copies are shifted at most [s]."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of arrival, each with its own lengths: what a replay sends.

    Parameters
    ----------
    times_s
        Arrival times from the first request on [s], shape (requests,), not decreasing.
    input_tokens, output_tokens
        Lengths of the same requests [tokens], shape (requests,).
    category
        Index into the workload's categories, shape (requests,).
    near_s
        How far its copies may be shifted [s], where its hours differ; ``None`` = :data:`SHIFT_S` for a trace of hours, else any.
    """

    times_s: Floats
    input_tokens: Floats
    output_tokens: Floats
    category: NDArray[np.int64]
    near_s: float | None = None

    @property
    def reach_s(self) -> float:
        """How far its copies are shifted at most [s]: more users live by the same clock."""
        span = float(self.times_s[-1])
        far = span if span <= LONG_S else SHIFT_S
        return far if self.near_s is None else min(self.near_s, far)

    @property
    def requests(self) -> int:
        """Number of requests."""
        return int(self.times_s.size)

    @property
    def rate_per_s(self) -> float:
        """Requests over the time from the first to the last [1/s]; NaN with fewer than two."""
        return self.requests / float(self.times_s[-1]) if self.requests > 1 else float("nan")

    def select(self, keep: NDArray[np.bool_]) -> Trace:
        """The requests marked in `keep`, shape (requests,), at their own times."""
        rows = self.times_s[keep], self.input_tokens[keep], self.output_tokens[keep], self.category[keep]
        return Trace(*rows, self.near_s)

    def rescaled(self, rate_per_s: float) -> Trace:
        """The same requests at another pace [1/s]."""
        times = self.times_s * (self.rate_per_s / rate_per_s)
        return Trace(times, self.input_tokens, self.output_tokens, self.category, self.near_s)

    def copies(self, rate_per_s: float) -> float:
        """How many times this trace a rate [1/s] is [1]; whole where it is to a fifth of a percent."""
        exact = rate_per_s / self.rate_per_s
        near = max(round(exact), 1)
        return float(near) if abs(exact - near) < SAME * near else exact
