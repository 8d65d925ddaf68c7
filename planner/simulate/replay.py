"""A trace replayed: the time stamps and the lengths it came with, at its own rate or at another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError
from planner.growth import GROWTH
from planner.simulate.traffic import RequestBatch, cached_tokens, whole_tokens
from planner.workload.trace import LONG_S, SAME, SHIFT_S

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

BATCH = 50_000
"""Requests that are laid out at once."""
WINDOWS_S = (1.0, 10.0, 60.0, 300.0)
"""Windows in which the dispersion of a trace is looked for, as far as it holds ten of them."""


class ReplayedTraffic:
    """The requests of a trace, each with its own lengths.

    A higher rate than the trace's own stands for more users: the trace and copies of it, shifted in time by random amounts and
    wrapped around, are sent together; a fraction of a copy, and of the trace for a lower rate, is a random part of its
    requests. With growth ``"use"`` it stands for more use by the same users: the copies are not shifted, each request of them
    comes within half a second of its model.

    Draws of a pass: for each copy but the first, one shift; for a fraction of a copy one number per request; with ``"use"``
    then for each copy but the first one number per request.

    Parameters
    ----------
    times_s
        Time stamps, in order, from the start of the trace on [s], shape (requests,).
    input_tokens, output_tokens
        Lengths [tokens], shape (requests,).
    period_s
        How long the trace lasts [s].
    scale
        Rate asked for over the trace's own.
    cached_share
        Share of each prompt whose KV a prefix cache supplies, in [0, 1).
    growth
        ``"users"`` or ``"use"``.
    requests
        Requests after which a run may end; a trace of hours, and one copy or less, is replayed whole whatever it says.
    """

    saturated = False

    def __init__(
        self,
        times_s: ArrayLike,
        input_tokens: ArrayLike,
        output_tokens: ArrayLike,
        period_s: float,
        scale: float = 1.0,
        *,
        cached_share: ArrayLike = 0.0,
        growth: str = "users",
        requests: int = 0,
    ) -> None:
        times = np.asarray(times_s, dtype=np.float64)
        if not (times.size and np.all(np.diff(times) >= 0.0) and times[0] >= 0.0 and times[-1] <= period_s):
            raise InputError("replay: time stamps must be in order, from 0 to the length of the trace")
        if not (math.isfinite(scale) and scale > 0.0):
            raise InputError(f"replay: the rate must be positive, got {scale!r} times the trace's own")
        near = max(round(scale), 1)
        scale = near if abs(scale - near) < SAME * near else scale
        if growth not in GROWTH:
            raise InputError(f"growth must be one of {', '.join(GROWTH)}, got {growth!r}")
        self.copies, self.growth = scale, growth
        self.times, self.period_s = times, period_s
        self.inputs, self.outputs = (
            whole_tokens(input_tokens, "input_tokens"),
            whole_tokens(output_tokens, "output_tokens"),
        )
        self.cached = cached_tokens(self.inputs, cached_share)
        self.whole = self.copies <= 1.0 or self.period_s > LONG_S or growth == "use"
        self.requests = max(round(times.size * self.copies), 1) if self.whole else max(requests, 1)

    @property
    def smallest_tokens(self) -> int:
        """KV tokens that the smallest request holds at its end."""
        return int((self.inputs + self.outputs).min()) - 1

    def requests_for(self, error: float) -> int:
        """Requests after which the offered rate is known to within that relative standard error."""
        counted = [self._dispersion(w) for w in WINDOWS_S if 10.0 * w <= self.period_s]
        return math.ceil(max(counted, default=1.0) / error**2)

    def _dispersion(self, window_s: float) -> float:
        """Index of dispersion of the counts in windows of one length."""
        counts = np.bincount((self.times // window_s).astype(np.int64))[: int(self.period_s // window_s)]
        return float(counts.var() / counts.mean()) if counts.any() else 1.0

    def batches(self, rng: np.random.Generator) -> Iterator[RequestBatch]:
        """Pass after pass over the trace, in stretches of about :data:`BATCH` requests; one pass where it is sent whole."""
        start = 0.0
        while True:
            for batch in self._pass(rng):
                yield replace(batch, times_s=batch.times_s + start) if start else batch
            if self.whole:
                return
            start += self.period_s

    def _pass(self, rng: np.random.Generator) -> Iterator[RequestBatch]:
        """All copies once, laid over each other anew."""
        whole = math.floor(self.copies)
        reach = SHIFT_S if self.period_s > LONG_S else self.period_s
        more = max(math.ceil(self.copies) - 1, 0)
        shifts = [0.0] * (more + 1) if self.growth == "use" else [0.0, *(rng.random(more) * reach).tolist()]
        kept: NDArray[np.bool_] | None = (
            rng.random(self.times.size) < self.copies - whole if self.copies > whole else None
        )
        moved = [(self.times, np.arange(self.times.size))] * (more + 1)
        if self.growth == "use":
            moved[1:] = [self._near(rng) for _ in range(more)]
        stretches = math.ceil(self.times.size * self.copies / BATCH)
        edges = np.linspace(0.0, self.period_s, stretches + 1)
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            found = [
                _between(times, rows, low, high, self.period_s, shift, kept if copy == whole else None)
                for copy, (shift, (times, rows)) in enumerate(zip(shifts, moved, strict=True))
            ]
            times = np.concatenate([t for t, _ in found])
            rows = np.concatenate([r for _, r in found])
            order = np.argsort(times, kind="stable")
            rows = rows[order]
            yield RequestBatch(times[order], self.inputs[rows], self.outputs[rows], self.cached[rows])

    def _near(self, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Times in order and rows of a copy whose requests come within half a second of their models."""
        times = np.clip(self.times + rng.random(self.times.size) - 0.5, 0.0, np.nextafter(self.period_s, 0.0))
        order = np.argsort(times, kind="stable")
        return times[order], order


def _between(
    times: NDArray[np.float64],
    rows: NDArray[np.int64],
    low: float,
    high: float,
    period_s: float,
    shift: float,
    kept: NDArray[np.bool_] | None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Times in [low, high) and rows of the requests of one copy, which is `shift` later than its `times`."""
    found = []
    for wrap in (0.0, period_s):
        offset = shift - wrap
        first, last = np.searchsorted(times, (low - offset, high - offset))
        found.append((times[first:last] + offset, rows[first:last]))
    at, which = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return (at, which) if kept is None else (at[kept[which]], which[kept[which]])
