"""Arrival times and request lengths for the simulator, every random draw documented.

All draws come from one ``numpy.random.Generator(PCG64(seed))`` in a fixed order (lengths first, then gaps), so that a
seed gives the same requests everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_CHANGES = 2 * 10**7
"""Changes of a modulated rate that one batch of arrivals may hold: about a gigabyte."""

PROCESSES = ("poisson", "gamma", "modulated", "hourly", "paced", "saturated")
"""Arrival processes by name."""

HOUR_S = 3600.0

FELT = 0.05
"""Relative standard deviation of a window's count above which it is a swing that a run has to see several times [1]."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """How requests arrive.

    Parameters
    ----------
    rate_per_s
        Mean arrival rate [1/s]; not used by ``saturated``.
    process
        ``poisson``; ``gamma`` (renewal with gamma gaps, bursty for scv > 1); ``modulated`` (Poisson whose rate fluctuates on
        several time scales so that counts have the given `dispersion`); ``hourly`` (Poisson whose rate follows
        `hourly_profile`); ``paced`` (`workers` clients, each of which sends at constant gaps); ``saturated`` (everything
        waits at time 0).
    scv
        Squared coefficient of variation of the gaps (``gamma``; with ``hourly``, of the gaps in operational time).
    hourly_profile
        Relative rate per hour (24 or 168 numbers, any scale), repeated for ever.
    dispersion
        Pairs (window [s], index of dispersion of the counts of this stream in such windows) (``modulated``).
    workers
        Clients of ``paced`` arrivals, each with gaps of workers/rate and a phase of its own.
    """

    rate_per_s: float | None = None
    process: str = "poisson"
    scv: float = 1.0
    hourly_profile: tuple[float, ...] = ()
    dispersion: tuple[tuple[float, float], ...] = ()
    workers: int = 1

    def __post_init__(self) -> None:
        problems = []
        if self.process not in PROCESSES:
            problems.append(f"arrival process {self.process!r} is not known{did_you_mean(self.process, PROCESSES)}")
        needs_rate = self.process != "saturated"
        if self.rate_per_s is None:
            if needs_rate:
                problems.append(f"rate_per_s is needed for {self.process} arrivals")
        elif not (math.isfinite(self.rate_per_s) and self.rate_per_s > 0.0):
            problems.append(f"rate_per_s must be a positive rate, got {self.rate_per_s!r}")
        if not (math.isfinite(self.scv) and self.scv > 0.0):
            problems.append(f"scv must be positive, got {self.scv!r}")
        if self.process == "hourly" and (
            not self.hourly_profile or min(self.hourly_profile) < 0.0 or sum(self.hourly_profile) <= 0.0
        ):
            problems.append("hourly_profile needs relative rates, none negative and not all zero")
        if self.process == "modulated" and not all(w > 0.0 and i >= 0.0 for w, i in self.dispersion):
            problems.append("dispersion needs pairs of a window > 0 and an index >= 0")
        if not self.workers >= 1:
            problems.append(f"workers must be at least 1, got {self.workers!r}")
        if problems:
            raise InputError.from_problems(problems)

    def requests_for(self, error: float) -> int:
        """Requests after which the offered rate is known to within that relative standard error, and ten swings are seen.

        A count with index of dispersion I has the relative variance I/count; a window whose own count varies by more than
        :data:`FELT` counts as a swing.
        """
        if self.process != "modulated" or self.rate_per_s is None:
            return 0
        rate = self.rate_per_s
        swings = [10.0 * rate * w for w, i in self.dispersion if i > 1.0 + FELT**2 * rate * w]
        return math.ceil(max([max((i for _, i in self.dispersion), default=1.0) / error**2, *swings]))


def arrival_times(arrival: Arrival, requests: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """The first batch of :func:`arrival_batches`.

    >>> arrival_times(Arrival(2.0, "paced"), 3, np.random.default_rng(0)).round(3).tolist()
    [0.318, 0.818, 1.318]
    """
    return next(arrival_batches(arrival, requests, rng))


def arrival_batches(arrival: Arrival, requests: int, rng: np.random.Generator) -> Iterator[NDArray[np.float64]]:
    """Times of `requests` arrivals after `requests` arrivals, for ever [s], increasing; the first comes after one gap.

    Draws of a batch: ``requests`` of ``rng.standard_exponential()`` (``poisson``, ``hourly`` with scv 1) or of
    ``rng.standard_gamma(1/scv)`` (``gamma``, ``hourly`` otherwise); ``modulated``: exponentials as ``poisson``, then for each
    time scale, from the shortest, one ``rng.random()`` and its ``rng.standard_gamma`` factors. ``paced``: one
    ``rng.random(workers)`` for all batches. ``saturated``: none.
    """
    rate = arrival.rate_per_s
    if arrival.process == "paced":
        assert rate is not None
        phases, sent = np.sort(rng.random(arrival.workers)), np.arange(requests)
        while True:
            turn, worker = np.divmod(sent, arrival.workers)
            yield np.asarray((turn + phases[worker]) * arrival.workers / rate)
            sent = sent + requests
    start = 0.0
    while True:
        if rate is None:
            yield np.zeros(requests)
            continue
        if arrival.process == "gamma" or arrival.scv != 1.0:
            gaps = rng.standard_gamma(1.0 / arrival.scv, requests) * arrival.scv
        else:
            gaps = rng.standard_exponential(requests)
        operational = np.cumsum(gaps)  # unit rate
        if arrival.process == "hourly":
            times = _hourly(operational, np.asarray(arrival.hourly_profile, dtype=float), rate, start)
        else:
            times = start + (
                _modulated(operational, arrival, rng) if arrival.process == "modulated" else operational / rate
            )
        yield times
        start = float(times[-1])


def _hourly(
    operational: NDArray[np.float64], profile: NDArray[np.float64], rate: float, start_s: float
) -> NDArray[np.float64]:
    """Times at which a rate that follows `profile` from `start_s` on has let `operational` arrivals be expected."""
    profile = profile / profile.mean() * rate
    cycle = np.concatenate([[0.0], np.cumsum(profile) * HOUR_S])
    edges = np.arange(profile.size + 1) * HOUR_S
    cycles, phase = divmod(start_s, edges[-1])
    rounds, rest = np.divmod(operational + np.interp(phase, edges, cycle), cycle[-1])
    hour = np.searchsorted(cycle, rest, side="right") - 1  # hours without traffic are stepped over
    return np.asarray((cycles + rounds) * edges[-1] + hour * HOUR_S + (rest - cycle[hour]) / profile[hour])


def scale_variances(dispersion: tuple[tuple[float, float], ...], rate: float) -> list[tuple[float, float]]:
    """Pairs (time scale [s], variance of the relative rate on it) that reproduce an index of dispersion.

    A rate factor of variance v that is drawn anew every T seconds adds rate w v c(w/T) to the index of counts in windows of
    w, with c(x) = 1 - x/3 for x <= 1 and (1 - 1/(3x))/x beyond. The variances are a non-negative least-squares fit of the
    indices, relative to their size, with one scale per window.

    >>> [(w, round(v, 2)) for w, v in scale_variances(((10.0, 11.0),), 1.5)]
    [(10.0, 1.0)]
    """
    from scipy.optimize import nnls

    pairs = sorted((w, i) for w, i in dispersion if w > 0.0)
    if not pairs:
        return []
    windows = np.array([w for w, _ in pairs])
    excess = np.array([max(i - 1.0, 0.0) for _, i in pairs])
    x = windows[:, None] / windows[None, :]
    share = np.where(x <= 1.0, 1.0 - x / 3.0, (1.0 - 1.0 / (3.0 * np.maximum(x, 1.0))) / np.maximum(x, 1.0))
    size = 1.0 + excess
    found, _ = nnls(rate * windows[:, None] * share / size[:, None], excess / size)
    return [(float(w), float(v)) for w, v in zip(windows, found, strict=True) if v > 1e-9]


def _modulated(operational: NDArray[np.float64], arrival: Arrival, rng: np.random.Generator) -> NDArray[np.float64]:
    """Poisson arrivals under a rate that is a weighted mean of gamma factors, each constant over its own time scale."""
    rate = arrival.rate_per_s
    assert rate is not None
    scales = scale_variances(arrival.dispersion, rate)
    if not scales or not operational.size:
        return np.asarray(operational / rate)
    # weights such that all factors have the same variance: the mean of factors stays positive, variances add exactly
    total = sum(math.sqrt(v) for _, v in scales)
    span = 4.0 * float(operational[-1]) / rate
    if (many := sum(span / scale for scale, _ in scales)) > MOST_CHANGES:
        raise InputError(
            f"rate: at {rate:g} requests/s {operational.size:,} of them last {span / 4.0:.2g} s, in which the bursts of the "
            f"traffic come and go {many:.1g} times: too many to simulate",
            "Simulate a higher rate, or traffic without its indices of dispersion.",
        )
    changes: list[NDArray[np.float64]] = []
    factors: list[NDArray[np.float64]] = []
    for scale, variance in scales:
        edges = (np.arange(math.ceil(span / scale) + 2) - rng.random()) * scale
        changes.append(np.asarray(edges, dtype=np.float64))
        factors.append(math.sqrt(variance) / total * total**2 * rng.standard_gamma(total**-2, edges.size))
    grid = np.unique(np.concatenate([[0.0], *(c[(c > 0.0) & (c < span)] for c in changes)]))
    parts = [f[np.searchsorted(c, grid, side="right") - 1] for c, f in zip(changes, factors, strict=True)]
    level = rate * np.sum(parts, axis=0)
    expected = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(grid))])
    piece = np.searchsorted(expected, operational, side="right") - 1
    speed = np.where(piece == grid.size - 1, rate, level[piece])  # the mean rate beyond the last change
    return np.asarray(grid[piece] + (operational - expected[piece]) / speed)
