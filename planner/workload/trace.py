"""The requests of a trace one by one, each with its time and lengths; or by interval of time, and stretches that stand for all; or
their lengths alone, a law of uniform stretches and atoms."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.errors import InputError
from planner.queueing.order import ranked
from planner.units import DAY_S, HOUR_S, WEEK_S

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LONG_S = 6 * HOUR_S
"""A trace longer than this has hours of its own [s]."""

SAME = 2e-3
"""Relative difference up to which a rate is a whole multiple of the trace's own."""

SHIFT_S = HOUR_S / 2
"""How far its copies are shifted at most [s]."""


MOST_REQUESTS = 250_000
"""Requests of a workload file; of a longer trace stretches are kept, unless it is told how many."""

MOST_WRITTEN = 20_000
"""Intervals in a file: 14 days by the minute."""

_MOST_COUNTED = 1_000_000
"""Intervals in which a trace is counted to choose its stretches."""

_WIDTHS_S = (1.0, 5.0, 10.0, 60.0, 300.0, 900.0, HOUR_S, LONG_S, DAY_S, WEEK_S)
"""Widths of intervals that people can read [s]."""

_LENGTHS_S = (HOUR_S, SHIFT_S, 900.0, 600.0, 300.0, 120.0, 60.0, 30.0, 10.0, 5.0, 2.0, 1.0)
"""Lengths of stretches [s]."""

_FEWEST = 8
"""Stretches drawn beside the busiest one, where it need not be whole hours."""


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

    def holding(self, times_s: Floats) -> Ints:
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
    stretches
        Where these are stretches of a longer trace: they lie one after another on the clock of `times_s`.
    cached_share, images
        Of the requests of a pool: share of each prompt in the prefix cache [1], and its images; shape (requests,) or, where there
        are none, (1,).
    """

    times_s: Floats
    input_tokens: Floats
    output_tokens: Floats
    category: Ints
    stretches: Stretches | None = None
    cached_share: Floats = field(default_factory=lambda: np.zeros(1))
    images: Floats | None = None

    @property
    def reach_s(self) -> float:
        """How far its copies are shifted at most [s]: more users live by the same clock."""
        span = float(self.times_s[-1])
        return span if span <= LONG_S and self.stretches is None else min(span, SHIFT_S)

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

    def _stretch(self, parts: Stretches) -> Ints:
        """Stretch of each request, shape (requests,)."""
        return np.searchsorted(parts.begin_s, self.times_s, side="right") - 1

    def select(self, keep: Bools) -> Trace:
        """The requests marked in `keep`, shape (requests,), at their own times."""
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "stretches"}
        kept = {name: own[keep] for name, own in columns.items() if own is not None and own.size == keep.size}
        return replace(self, **kept)

    def within(self, parts: Stretches) -> Trace:
        """The requests of some stretches of this trace, laid one after another."""
        place = parts.holding(self.times_s)
        keep = place >= 0
        moved = (parts.begin_s - parts.start_s)[place]
        return replace(replace(self, times_s=self.times_s + moved).select(keep), stretches=parts)


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Requests by interval of time.

    Parameters
    ----------
    counts
        Requests in each, shape (intervals,).
    width_s
        Length of an interval [s].
    """

    counts: Floats
    width_s: float = 1.0

    @classmethod
    def of(cls, times_s: Floats, requests: Floats | None = None) -> Intervals:
        """Count times from 0 on [s], in any order, by the second or as finely as a million intervals allow.

        With `requests` each time stands for so many.

        >>> Intervals.of(np.array([0.0, 0.5, 2.0])).counts.tolist()
        [2.0, 0.0, 1.0]
        """
        width = _width(float(times_s.max()), 1.0, _MOST_COUNTED)
        return cls(np.bincount((times_s / width).astype(np.int64), requests).astype(np.float64), width)

    @property
    def requests(self) -> float:
        """Requests in all of them."""
        return float(self.counts.sum())

    @property
    def span_s(self) -> float:
        """Length of all of them [s]."""
        return self.counts.size * self.width_s

    def coarser(self, least_s: float = 1.0) -> Intervals:
        """The same in at most so many intervals of at least `least_s`; a last one that is cut short is as long as the others."""
        together = max(round(_width(self.span_s - 1e-9, max(least_s, self.width_s), MOST_WRITTEN) / self.width_s), 1)
        starts = np.arange(0, self.counts.size, together)
        return Intervals(np.add.reduceat(self.counts, starts), self.width_s * together)

    def times(self, share: float) -> Intervals:
        """Every interval with that share of its requests [1]."""
        return Intervals(share * self.counts, self.width_s)

    def _edges(self) -> Floats:
        edges: Floats = np.arange(self.counts.size + 1, dtype=np.float64) * self.width_s
        return edges

    def _until(self, times_s: Floats) -> Floats:
        """Requests that came before times [1], in an interval evenly."""
        before = np.concatenate(([0.0], np.cumsum(self.counts)))
        found: Floats = np.interp(times_s, self._edges(), before).astype(np.float64)
        return found

    def stretches(self, most: int) -> Stretches | None:
        """Whole stretches of at most so many requests together that stand for all; ``None`` where all are no more than that.

        The busiest hour is always one of them where it is half of `most` or less, else the busiest half of an hour, and so on.
        The rest of the time is cut into stretches as long as can be with eight of them; those at even places in their order by
        requests are kept, and stand for all of the rest.

        Raises
        ------
        InputError
            Not even the busiest second is as little.
        """
        if self.requests <= most:
            return None
        edges, span = self._edges(), self.span_s
        for length in _LENGTHS_S:
            starts = edges[edges <= span - length]
            if 2.0 * length > span or not starts.size:
                continue
            size = self._until(starts + length) - self._until(starts)
            busiest = float(starts[int(np.argmax(size))])
            if (peak := float(size.max())) <= 0.5 * most:
                break
        else:
            raise InputError(f"{most:,} requests are too few to hold a second of this trace", "Give more: --rows N.")
        left_s, room = span - length, most - peak
        mean_rate = (self.requests - peak) / left_s
        for part in _LENGTHS_S:
            if part <= length and _FEWEST * part * mean_rate <= room:
                break
        start = np.concatenate((np.arange(0.0, busiest, part), np.arange(busiest + length, span, part)))
        end = np.where(start < busiest, np.minimum(start + part, busiest), np.minimum(start + part, span))
        size = self._until(end) - self._until(start)
        order = np.argsort(size, kind="stable")
        number = min(max(int(room / max(part * mean_rate, 1e-9)), 1), order.size)
        while True:
            chosen = np.sort(order[((np.arange(number) + 0.5) * order.size / number).astype(np.int64)])
            if number == 1 or float(size[chosen].sum()) <= room:
                break
            number -= 1
        seconds = end[chosen] - start[chosen]
        place = int(np.searchsorted(start[chosen], busiest))
        weight = np.full(number, left_s / float(seconds.sum()))
        return Stretches(
            np.insert(start[chosen], place, busiest), np.insert(seconds, place, length), np.insert(weight, place, 1.0)
        )

    def drawn(
        self, input_tokens: Floats, output_tokens: Floats, weight: Floats, category: Ints, deal: int = 0
    ) -> Trace:
        """Requests of a law, as many in every interval as came, at times drawn evenly over it.

        Every row of the law comes as often as its weight says (its inverse distribution function at even levels), in an order
        drawn with a fixed seed: how lengths and times go together is not known.

        Parameters
        ----------
        input_tokens, output_tokens, weight, category
            The law's rows, shape (rows,).
        deal
            Which of the draws.

        Returns
        -------
        Trace
            All of them, or stretches of about :data:`MOST_REQUESTS` where there are more.
        """
        rng = np.random.Generator(np.random.PCG64(20231116 + deal))
        parts = self.stretches(MOST_REQUESTS)
        known = parts or Stretches(np.zeros(1), np.array([self.span_s]), np.ones(1))
        cuts = np.unique(np.concatenate((self._edges(), known.start_s, known.start_s + known.seconds)))
        stretch = known.holding(cuts[:-1])
        # rounding what came until then keeps sums whole, however few come in an interval
        came = np.diff(np.rint(self._until(cuts)))
        place = np.repeat(np.arange(came.size), np.where(stretch >= 0, came, 0).astype(np.int64))
        times = cuts[place] + np.diff(cuts)[place] * rng.random(place.size)
        times = np.sort(times + (known.begin_s - known.start_s)[stretch[place]])
        below = np.cumsum(weight)
        level = (rng.permutation(times.size) + 0.5) / max(times.size, 1)
        row = np.minimum(np.searchsorted(below, level * below[-1]), below.size - 1)
        if parts is None and times.size:
            times = times - times[0]
        return Trace(times, input_tokens[row], output_tokens[row], category[row], parts)


def _width(last_s: float, least_s: float, most: int) -> float:
    """The least readable width of at most so many intervals up to `last_s` [s]."""
    for width in (least_s, *_WIDTHS_S):
        if width >= least_s and last_s // width + 1 <= most:
            return width
    return float(np.ceil(last_s / most))


_TABLE = 1 << 22
"""Lengths up to this are looked up in a table instead of sorted [tokens]."""


def summed(values: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Distinct values, increasing, and the weight of each; in linear time for counts.

    >>> [part.tolist() for part in summed(np.array([5.0, 2.0, 5.0]), np.array([1.0, 2.0, 3.0]))]
    [[2.0, 5.0], [2.0, 4.0]]
    """
    if (whole := _counts(values)) is not None:
        there = np.zeros(int(whole.max()) + 1, dtype=bool)
        there[whole] = True
        found = np.flatnonzero(there)
        return found.astype(np.float64), np.bincount(whole, weight)[found].astype(np.float64)
    places, inverse = ranked(values)
    return places, np.bincount(inverse, weight, places.size).astype(np.float64)


def _counts(values: Floats) -> Ints | None:
    """Values as whole numbers; ``None`` where a table of them would not do."""
    if not (values.size and values.min() >= 0 and values.max() < min(_TABLE, 16 * values.size)):
        return None
    whole: Ints = values.astype(np.int64)
    return whole if np.array_equal(whole, values) else None


@dataclass(frozen=True, slots=True)
class PiecewiseLaw:
    """A mixture of uniform stretches (continuous, piecewise linear F) and atoms.

    Parameters
    ----------
    at, below
        Ends of the stretches and places of the atoms, each twice, and F left and right of each [1].
    """

    at: Floats
    below: Floats

    @classmethod
    def of(cls, low: Floats, high: Floats, weight: Floats) -> PiecewiseLaw:
        """The law of rows uniform on (low, high], an atom where both are equal; weights sum to 1.

        >>> law = PiecewiseLaw.of(np.array([0.0, 4.0]), np.array([4.0, 4.0]), np.array([0.5, 0.5]))
        >>> law.cdf([2.0, 4.0]).tolist(), law.quantile(0.25), law.quantile(0.9)
        ([0.25, 1.0], 2.0, 4.0)
        """
        if low is high:
            places, mass = summed(high, weight)
            low = high = weight = high[:0]
        else:
            # a stretch that is next to nothing wide would have a density next to infinite: rounding would spoil all others
            wide = high - low > 1e-6 * (1.0 + np.abs(high))
            places, mass = summed(high[~wide], weight[~wide])
            low, high, weight = low[wide], high[wide], weight[wide]
        knots = np.unique(np.concatenate([low, high]))
        at = np.union1d(knots, places) if knots.size or places.size else np.zeros(1)
        smooth = np.zeros(at.size)
        if knots.size:
            change = np.zeros(knots.size)
            density = weight / (high - low)
            np.add.at(change, np.searchsorted(knots, low), density)
            np.add.at(change, np.searchsorted(knots, high), -density)
            # rounding must not make F fall where the density is zero
            risen = np.concatenate([[0.0], np.cumsum(np.maximum(np.cumsum(change)[:-1], 0.0) * np.diff(knots))])
            smooth = np.interp(at, knots, risen * (weight.sum() / risen[-1]))
        jumps = np.concatenate([[0.0], np.cumsum(mass)])
        sides = [smooth + jumps[np.searchsorted(places, at, side=side)] for side in ("left", "right")]
        return cls(np.repeat(at, 2), np.stack(sides, axis=1).ravel())

    def cdf(self, at: ArrayLike) -> Any:
        """P(X <= at) [1], shape of `at`."""
        # of two equal places the right one counts
        found = np.minimum(np.interp(np.asarray(at, dtype=np.float64), self.at, self.below), 1.0)
        return float(found) if np.ndim(at) == 0 else found

    def quantile(self, q: float) -> float:
        """Smallest x with P(X <= x) >= q."""
        index = min(int(np.searchsorted(self.below, q - 1e-12)), self.at.size - 1)
        (left, start), (right, end) = ((self.at[k], self.below[k]) for k in (max(index - 1, 0), index))
        part = max(q - start, 0.0) / (end - start) if end > start else 1.0
        return float(left + part * (right - left)) if part < 1.0 else float(right)
