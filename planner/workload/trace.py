"""The requests of a trace one by one: when each came and how long it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError
from planner.growth import GROWTH

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

    def at_rate(self, rate_per_s: float, *, growth: str = "users", keep: float = 1.0, draw: int = 0) -> Trace:
        """The same traffic at another rate.

        Parameters
        ----------
        rate_per_s
            Rate wanted [1/s].
        growth
            ``"users"``: copies of the trace, shifted in time around its ends, lie over each other, so that bursts even out;
            ``"use"``: every burst grows with the rate. Below the trace's own rate both leave requests out at random.
        keep
            Share of the requests then kept at random [1]: the stream of some of the replicas of a pool.
        draw
            Which of the random shifts: few copies may or may not bring their bursts together.

        Returns
        -------
        Trace
            About `rate_per_s` x `keep` x span requests. At a higher rate it holds those of a lower one (and more).

        Raises
        ------
        InputError
            A rate that is not positive.

        >>> t = Trace(np.array([0.0, 1.0, 2.0, 3.0]), *np.ones((2, 4)), np.zeros(4, dtype=np.int64))
        >>> round(t.at_rate(8.0).requests / t.requests)  # four requests in three seconds, six copies of them
        6
        """
        if not (np.isfinite(rate_per_s) and rate_per_s > 0.0):
            raise InputError(f"rate must be positive and finite, got {rate_per_s!r}")
        if growth not in GROWTH:
            raise InputError(f"growth must be one of {', '.join(GROWTH)}, got {growth!r}")
        span = float(self.times_s[-1])
        copies = self.copies(rate_per_s)
        times, rows = [], []
        for k in range(max(int(np.ceil(copies - 1e-9)), 1)):
            share = keep * min(copies - k, 1.0)
            chosen = np.arange(self.requests)
            if share < 1.0 - 1e-9:
                chosen = np.flatnonzero(
                    np.random.Generator(np.random.PCG64([k, 2, draw])).random(self.requests) < share
                )
            moved = self.times_s[chosen]
            if growth == "users":
                moved = (
                    moved + (self.reach_s * np.random.Generator(np.random.PCG64([k, 3, draw])).random() if k else 0.0)
                ) % span
            elif k:
                # near its model: within the same second, not at the same moment
                moved = np.clip(
                    moved + np.random.Generator(np.random.PCG64([k, 1])).random(chosen.size) - 0.5, 0.0, span
                )
            times.append(moved)
            rows.append(chosen)
        moments, which = np.concatenate(times), np.concatenate(rows)
        order = np.argsort(moments, kind="stable")
        which = which[order]
        return Trace(
            moments[order], self.input_tokens[which], self.output_tokens[which], self.category[which], self.near_s
        )
