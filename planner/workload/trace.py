"""The requests of a trace one by one: when each came and how long it was."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
class Stretches:
    """Whole stretches of a longer trace, which together stand for all of it.

    Parameters
    ----------
    start_s
        When each began in the whole trace [s], ascending, shape (stretches,).
    seconds
        Their lengths [s], shape (stretches,).
    weight
        How many seconds of the whole trace each of their seconds stands for [1], shape (stretches,).
    """

    start_s: Floats
    seconds: Floats
    weight: Floats

    @property
    def begin_s(self) -> Floats:
        """Where each begins when they lie one after another [s], shape (stretches,)."""
        begin: Floats = np.cumsum(self.seconds) - self.seconds
        return begin

    def holding(self, times_s: Floats) -> NDArray[np.int64]:
        """Stretch that holds each time of the whole trace, -1 = none does; shape of `times_s`."""
        place = np.searchsorted(self.start_s, times_s, side="right") - 1
        inside = (place >= 0) & (times_s < (self.start_s + self.seconds)[place])
        return np.where(inside, place, -1).astype(np.int64)


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
    stretches
        Where these are stretches of a longer trace: they lie one after another on the clock of `times_s`.
    """

    times_s: Floats
    input_tokens: Floats
    output_tokens: Floats
    category: NDArray[np.int64]
    near_s: float | None = None
    stretches: Stretches | None = None

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
        """Requests over the time from first to last, of stretches those of the whole trace [1/s]; NaN with fewer than two."""
        if self.requests < 2:
            return float("nan")
        if (parts := self.stretches) is not None:
            return float(self.weight.sum() / (parts.weight @ parts.seconds))
        return self.requests / float(self.times_s[-1])

    @property
    def weight(self) -> Floats:
        """How many requests of the whole trace each stands for [1], shape (requests,)."""
        if (parts := self.stretches) is None:
            return np.ones(self.requests)
        return np.asarray(parts.weight[self._stretch(parts)])

    @property
    def whole_times_s(self) -> Floats:
        """When each came in the whole trace [s], shape (requests,)."""
        if (parts := self.stretches) is None:
            return self.times_s
        return np.asarray(self.times_s + (parts.start_s - parts.begin_s)[self._stretch(parts)])

    def _stretch(self, parts: Stretches) -> NDArray[np.int64]:
        """Stretch of each request, shape (requests,)."""
        return np.searchsorted(parts.begin_s, self.times_s, side="right") - 1

    def select(self, keep: NDArray[np.bool_]) -> Trace:
        """The requests marked in `keep`, shape (requests,), at their own times."""
        rows = self.times_s[keep], self.input_tokens[keep], self.output_tokens[keep], self.category[keep]
        return Trace(*rows, self.near_s, self.stretches)

    def within(self, parts: Stretches) -> Trace:
        """The requests of some stretches of this trace, laid one after another."""
        place = parts.holding(self.times_s)
        keep = place >= 0
        moved = (parts.begin_s - parts.start_s)[place]
        return replace(replace(self, times_s=self.times_s + moved).select(keep), near_s=SHIFT_S, stretches=parts)

    def copies(self, rate_per_s: float) -> float:
        """How many times this trace a rate [1/s] is [1]; whole where it is to a fifth of a percent."""
        exact = rate_per_s / self.rate_per_s
        near = max(round(exact), 1)
        return float(near) if abs(exact - near) < SAME * near else exact
