"""The arrival process of a workload: rate, burstiness on every time scale, daily profile."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import refuse
from planner.shared.record import Record
from planner.units import DAY_S, HOUR_S, HOURS_PER_DAY, HOURS_PER_WEEK, LEAST, MOST, MOST_RATE, MOST_SECONDS, WEEK_S
from planner.workload.trace import Floats, Ints

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

DISPERSION_WINDOWS_S = (1.0, 5.0, 10.0, 60.0, 300.0, 600.0, 1800.0)
"""Windows over which counts are taken [s]: two at least in an hour, whose mean they vary about."""

SCV_WINDOW_S = 60.0
"""Window inside which interarrival times are compared, so that slow swings of the rate do not count as burstiness; the busiest
one is the peak [s]."""

_MIN_WINDOWS = 8  # fewer windows say little about a variance
UNSEEN_S = 0.01 * DAY_S
"""What a trace may lack of a day or a week at its ends and still hold it [s]: its first request comes after midnight."""

POISSON_ASSUMED = "Poisson assumed"


@dataclass(frozen=True, slots=True)
class Arrivals(Record):
    r"""When requests arrive.

    The index of dispersion of counts over windows of length w is :math:`I(w) = \mathrm{Var}\,N(w) / \mathrm E\,N(w)`; it is 1
    for a Poisson process at every w, and sees correlated bursts that the interarrival scv misses. Counts are compared with those
    of the same hour: the swing of a day is no burst.

    Parameters
    ----------
    rate_per_s
        Mean arrival rate [requests/s]; ``None`` = the source does not say.
    scv
        Squared coefficient of variation of interarrival times inside windows of `scv_window_s`, weighted by the number of
        gaps in the window [1]; ``None`` = not known.
    scv_window_s
        That window [s].
    dispersion
        Pairs (window [s], index of dispersion of counts [1]), by increasing window.
    hourly_profile
        24 rates by hour of day or 168 by hour of week (Monday 00:00 first), relative to their mean [1]; empty = not known.
    peak_over_mean
        Busiest minute over the mean minute [1]; ``None`` = not known.
    peak_hour_over_mean
        Busiest hour of all days over the mean hour [1]; ``None`` = not known, or one day, whose profile says it.
    assumed
        What was assumed because the source carries no times, e.g. ``"Poisson assumed"``; ``None`` = nothing.
    """

    rate_per_s: float | None = None
    scv: float | None = None
    scv_window_s: float | None = None
    dispersion: tuple[tuple[float, float], ...] = ()
    hourly_profile: tuple[float, ...] = ()
    peak_over_mean: float | None = None
    assumed: str | None = POISSON_ASSUMED
    peak_hour_over_mean: float | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.rate_per_s is not None and not 0.0 < self.rate_per_s <= MOST_RATE:
            problems.append(f"arrival_rate_per_s must be positive and at most {MOST_RATE:g}, got {self.rate_per_s!r}")
        if self.scv is not None and not 0.0 <= self.scv <= MOST:
            problems.append(f"arrival_scv must lie in [0, {MOST:g}], got {self.scv!r}")
        for window, index in self.dispersion:
            if not (LEAST <= window <= MOST_SECONDS and 0.0 <= index <= MOST):
                problems.append(
                    f"dispersion must be positive windows with finite values >= 0, got {window!r}={index!r}"
                )
        if len(self.hourly_profile) not in (0, HOURS_PER_DAY, HOURS_PER_WEEK):
            problems.append(
                f"hourly_profile needs {HOURS_PER_DAY} or {HOURS_PER_WEEK} values, got {len(self.hourly_profile)}"
            )
        if any(not 0.0 <= x <= MOST for x in self.hourly_profile):
            problems.append("hourly_profile must be finite and not negative")
        refuse(problems)

    def dispersion_at(self, window_s: float) -> float:
        """Index of dispersion of counts at any window [1], log-log interpolated between the measured ones.

        Shorter windows than measured go to 1 linearly in the window (a point process is Poisson at lag 0: variance equals
        mean); longer ones keep the last value. Without measurements it is 1.

        Parameters
        ----------
        window_s
            Window [s], > 0.

        Returns
        -------
        float
            Index of dispersion [1].

        >>> round(Arrivals(dispersion=((1.0, 2.0), (100.0, 8.0))).dispersion_at(10.0), 9)
        4.0
        >>> Arrivals().dispersion_at(60.0)
        1.0
        """
        if not self.dispersion:
            return 1.0
        windows, values = np.array(self.dispersion).T
        if window_s <= windows[0]:
            return float(1.0 + (values[0] - 1.0) * max(window_s, 0.0) / windows[0])
        return float(np.exp(np.interp(np.log(window_s), np.log(windows), np.log(np.maximum(values, 1e-12)))))

    @property
    def busiest_hour(self) -> float:
        """The busiest hour over the mean one [1]: of all days where there are several; 1 where no day is known."""
        return self.peak_hour_over_mean or max(self.hourly_profile, default=1.0)

    def thinned(self, share: float) -> Arrivals:
        r"""The process left when each request is kept independently with probability `share` [1].

        :math:`\lambda' = p\lambda`, :math:`C'^2 = 1 + p\,(C^2 - 1)` (exact for renewal processes), :math:`I' = 1 + p\,(I - 1)`.

        >>> half = Arrivals(10.0, scv=3.0).thinned(0.5)
        >>> half.rate_per_s, half.scv
        (5.0, 2.0)
        """
        return replace(
            self,
            rate_per_s=None if self.rate_per_s is None else self.rate_per_s * share if share > 0.0 else None,
            scv=None if self.scv is None else 1.0 + share * (self.scv - 1.0),
            dispersion=tuple((w, 1.0 + share * (v - 1.0)) for w, v in self.dispersion),
        )

    def busier(self, factor: float) -> Arrivals:
        r"""The process when the same users send `factor` times as much [1]: :math:`I' = 1 + f (I - 1)`, relative swings stay.

        What is more regular than Poisson arrivals (:math:`I < 1`) has no swings to keep, and stays as regular as it is.

        >>> Arrivals(10.0, dispersion=((1.0, 3.0), (5.0, 0.5))).busier(2.0).dispersion
        ((1.0, 5.0), (5.0, 0.5))
        """
        return replace(
            self,
            rate_per_s=None if self.rate_per_s is None else self.rate_per_s * factor,
            dispersion=tuple((w, 1.0 + factor * (v - 1.0) if v > 1.0 else v) for w, v in self.dispersion),
        )


def gap_spread(times: Floats, window_s: float) -> tuple[Floats, Ints] | None:
    """Spread of the gaps inside every full window about their own mean, and their numbers.

    Parameters
    ----------
    times
        Sorted arrival times [s].
    window_s
        Window [s]; inf = the whole trace.

    Returns
    -------
    tuple of ndarray or None
        Sums of squared deviations over the squared mean [1] and numbers of gaps, shape (windows,); ``None`` when no full
        window has two gaps. The sum of the first over that of the second is the usual estimate of the scv, which few gaps
        per window make too small.
    """
    if times.size < 3:
        return None
    starts, window = np.zeros(1, dtype=np.int64), np.full(1, -math.inf)
    if not math.isinf(window_s):
        starts, window = _windows(times, float(times[0]), window_s)
    last = np.append(starts[1:], times.size) - 1
    full = window < float(times[-1] - times[0]) // window_s
    starts, last = starts[full], last[full]
    count = last - starts
    spent = (times[last] - times[0]) - (times[starts] - times[0])
    use = (count >= 2) & (spent > 0.0)
    if not use.any():
        return None
    starts, last, count = starts[use], last[use], count[use]
    mean = spent[use] / count
    squares = np.zeros(times.size)
    for k in range(0, times.size - 1, _AT_ONCE):
        elapsed = times[k : k + _AT_ONCE + 1] - times[0]
        np.square(np.diff(elapsed), out=squares[k : k + elapsed.size - 1])
    # the gaps of each window, then those up to the next
    sums = np.add.reduceat(squares, np.stack([starts, last], axis=1).ravel())[::2]
    return np.maximum(sums / mean**2 - count, 0.0), count


def _windows(times: Floats, origin: float, width_s: float) -> tuple[Ints, Floats]:
    """Where the windows begin in which something came, and which ones from the origin on they are; times in order.

    A trace of a year with few requests has far more windows than requests; one of millions is passed a part at a time, which
    stays in the processor's cache.
    """
    starts, numbers, before = [], [], math.nan
    for k in range(0, times.size, _AT_ONCE):
        window = np.floor((times[k : k + _AT_ONCE] - origin) / width_s)
        new = np.flatnonzero(np.diff(window, prepend=before) != 0.0)
        starts.append(new + k)
        numbers.append(window[new])
        before = float(window[-1])
    return np.concatenate(starts), np.concatenate(numbers)


def interarrival_scv(times: Floats, window_s: float) -> float | None:
    """Squared coefficient of variation of the gaps inside full windows [1], without bias for few gaps per window.

    `times` and `window_s` as in :func:`gap_spread`; ``None`` when no full window has two gaps.
    """
    found = gap_spread(times, window_s)
    return None if found is None else _unbiased(float(found[0].sum()), found[1])


def _unbiased(spread: float, count: Ints) -> float:
    r"""Scv whose gaps would show this much spread about the means of their own windows [1].

    The mean of few gaps follows them. Of n gamma gaps with scv c the sum of squared relative deviations from their own
    mean has the expectation :math:`n (n-1) c / (n + c)`; the c at which the windows' sum is `spread` is found by bisection.
    """
    n = count.astype(np.float64)
    low, high = 0.0, 1e9
    if spread >= float(np.sum(n * (n - 1.0))):
        return high
    for _ in range(100):
        # by halves, or by factors while the ends are far apart
        middle = math.sqrt(low * high) if high > 4.0 * low > 0.0 else min(0.5 * (low + high), 1.0 + 2.0 * low)
        if float(np.sum(n * (n - 1.0) * middle / (n + middle))) < spread:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def spread_ticks(times: Floats) -> tuple[Floats, float | None]:
    """Times of a coarse clock spread over its ticks, and the tick [s]; ``None`` when the clock is fine enough.

    A clock is coarse when all times are whole multiples of a tick of half a second or more from the first one, and requests
    share ticks. Those of a tick are laid at random over it (always the same way): a clock that ticks every 3 s makes
    requests come in crowds that never were.

    Parameters
    ----------
    times
        Arrival times [s], any order.

    >>> spread_ticks(np.array([0.0, 0.0, 0.0, 3.0, 6.0, 6.0, 9.0]))[1]
    3.0
    """
    # two times nearer than half a second tell a fine clock: of millions of requests the first ones do
    few = np.diff(np.sort(times[:_AT_ONCE]))
    if float(few[few > 0.0].min(initial=np.inf)) < 0.5:
        return times, None
    moments = np.unique(times)
    if moments.size < 4 or times.size < 1.2 * moments.size:
        return times, None
    gaps = np.diff(moments)
    tick = float(gaps.min())
    if tick < 0.5 or np.any(np.abs(gaps / tick - np.rint(gaps / tick)) > 1e-3):
        return times, None
    return times + tick * np.random.Generator(np.random.PCG64(0)).random(times.size), tick


def count_dispersion(
    elapsed: Floats, counts: Floats, window_s: float, span_s: float
) -> tuple[float, float, int] | None:
    """Of requests by second: index of dispersion of counts about their hours' means [1], peak over mean [1], full windows.

    ``None`` with fewer than two windows. `elapsed` are the seconds in which something came, increasing, `counts` what came in
    each; windows are whole seconds, hours those since the first second.
    """
    windows = int(span_s // window_s)
    if windows < 2:
        return None
    position = np.floor_divide(elapsed, window_s)
    inside = int(np.searchsorted(position, windows))
    # only windows in which something came are listed: a trace of a year can have far more of them than requests
    begun = np.flatnonzero(np.diff(position[:inside], prepend=-1.0))
    sums = np.add.reduceat(counts[:inside], begun)
    hour = (position[begun] * window_s // HOUR_S).astype(np.int64)
    hours = int((windows - 1) * window_s // HOUR_S) + 1
    # windows of each hour, the last one perhaps cut short
    each = np.diff(np.minimum(np.ceil(np.arange(hours + 1) * HOUR_S / window_s), windows))
    mean = np.bincount(hour, sums, hours) / np.maximum(each, 1.0)
    spread = float(np.sum((sums - mean[hour]) ** 2) + (each - np.bincount(hour, minlength=hours)) @ mean**2)
    # each hour's mean follows its own windows
    variance = spread / max(windows - (int(np.count_nonzero(each)) - 1), 1)
    level = float(sums.sum()) / windows
    return variance / level, float(sums.max()) / level, windows


def _profile(times: Floats, absolute: bool) -> tuple[float, ...]:
    """Rates by hour of day or week over their mean; empty where the trace is too short for one."""
    span = float(times[-1] - times[0])
    if span < DAY_S - UNSEEN_S:
        return ()
    hours = HOURS_PER_WEEK if span >= WEEK_S - UNSEEN_S else HOURS_PER_DAY
    # 1970-01-01 was a Thursday; Monday 00:00 is the origin of the hour of week. Relative clocks start at hour 0.
    origin = float(times[0]) if not absolute else 0.0 if hours == HOURS_PER_DAY else -3 * DAY_S
    start = times[0] - origin
    begun, hour = _windows(times, origin, HOUR_S)
    counts = np.bincount(hour.astype(np.int64) % hours, np.diff(begun, append=times.size), minlength=hours)
    # seconds the trace spent in each hour, partial first and last hours included
    edges = np.arange(math.floor(start / HOUR_S), math.floor((start + span) / HOUR_S) + 2) * HOUR_S
    seconds = np.minimum(edges[1:], start + span) - np.maximum(edges[:-1], start)
    exposure = np.bincount((edges[:-1] / HOUR_S).astype(np.int64) % hours, np.maximum(seconds, 0.0), minlength=hours)
    rates = counts / np.maximum(exposure, 1e-9)
    return tuple(float(x) for x in np.round(rates / rates.mean(), 4))


def _peak_hour(times: Floats, absolute: bool) -> float | None:
    """The busiest whole hour of several days over the mean one [1]; ``None`` of a trace of less than two days."""
    span = float(times[-1] - times[0])
    if span < 2.0 * DAY_S - UNSEEN_S:
        return None
    begun, hour = _windows(times, 0.0 if absolute else float(times[0]), HOUR_S)
    counts = np.diff(begun, append=times.size)
    # the first and the last hour may be cut short
    return float(counts[1:-1].max(initial=0)) * span / (HOUR_S * times.size) if hour.size > 2 else None


def arrivals_from_times(times: ArrayLike, *, absolute: bool = False) -> Arrivals:
    """Everything timestamps say about the arrival process.

    Parameters
    ----------
    times
        Arrival times [s], any order; at least one.
    absolute
        Whether they are seconds since 1970-01-01 UTC (then the hourly profile is by hour of day); otherwise hours are counted
        from the first request.

    Returns
    -------
    Arrivals
        Rate n/span, interarrival scv in windows of 60 s (whole trace when shorter than two of them), dispersion of counts
        over every window of :data:`DISPERSION_WINDOWS_S` that fits at least 8 times, busiest minute and hour, profile by hour from
        one day on and by hour of week from seven days on.

    >>> round(arrivals_from_times([0.0, 1.0, 2.0, 3.0]).scv, 12)
    0.0
    """
    moments = np.asarray(times, dtype=np.float64)
    if np.any(moments[1:] < moments[:-1]):
        moments = np.sort(moments)
    span = float(moments[-1] - moments[0]) if moments.size else 0.0
    if span <= 0.0:
        return Arrivals(assumed="no time span: rate not known, Poisson assumed")
    window = SCV_WINDOW_S if span >= 2.0 * SCV_WINDOW_S else math.inf
    scv = interarrival_scv(moments, window)
    first, second = _windows(moments, float(moments[0]), 1.0)
    dispersion, peak = _by_windows(second, np.diff(first, append=moments.size).astype(np.float64), span)
    return Arrivals(
        rate_per_s=moments.size / span,
        scv=scv,
        scv_window_s=window if math.isfinite(window) else span,
        dispersion=dispersion,
        hourly_profile=_profile(moments, absolute),
        peak_over_mean=peak,
        assumed=None if scv is not None else POISSON_ASSUMED,
        peak_hour_over_mean=_peak_hour(moments, absolute),
    )


_AT_ONCE = 1 << 16
"""Requests of which columns are made at a time."""

_SPREAD = 1_000_000
"""Requests laid over their seconds to see the gaps between them."""


def arrivals_from_counts(seconds: ArrayLike, counts: ArrayLike) -> Arrivals:
    """Everything that counts by second say about the arrival process.

    Parameters
    ----------
    seconds
        Seconds since 1970-01-01 UTC in which something came, increasing, shape (n,).
    counts
        Requests in each, > 0, shape (n,).

    Returns
    -------
    Arrivals
        As :func:`arrivals_from_times`; requests lie at random within their second.

    >>> arrivals_from_counts([0.0, 1.0, 2.0, 3.0], [2.0, 2.0, 2.0, 2.0]).rate_per_s
    2.0
    """
    moments, many = np.asarray(seconds, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    total, span = float(many.sum()), float(moments[-1] - moments[0]) + 1.0
    # of more requests a whole share of every second: its gaps are longer by that factor, and as uneven
    each = np.maximum(np.rint(many * min(1.0, _SPREAD / total)), 1.0).astype(np.int64)
    within = np.random.Generator(np.random.PCG64(0)).random(int(each.sum()))
    laid = arrivals_from_times(np.repeat(moments, each) + within, absolute=bool(moments[0] >= 5e8))
    dispersion, peak = _by_windows(moments - moments[0], many, span)
    return replace(laid, rate_per_s=total / span, dispersion=dispersion, peak_over_mean=peak)


def _by_windows(elapsed: Floats, counts: Floats, span_s: float) -> tuple[tuple[tuple[float, float], ...], float | None]:
    """Dispersion over every window that fits often enough, and the busiest minute over the mean one [1]."""
    found = {width: count_dispersion(elapsed, counts, width, span_s) for width in DISPERSION_WINDOWS_S}
    dispersion = tuple((width, one[0]) for width, one in found.items() if one is not None and one[2] >= _MIN_WINDOWS)
    minute = found[SCV_WINDOW_S]
    return dispersion, None if minute is None else minute[1]
