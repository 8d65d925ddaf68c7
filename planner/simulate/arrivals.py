"""Arrival times and request lengths for the simulator, every random draw documented.

All draws come from one ``numpy.random.Generator(PCG64(seed))`` in a fixed order (lengths first, then gaps), so that a
seed gives the same requests everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PROCESSES", "Arrival", "arrival_times"]

PROCESSES = ("poisson", "gamma", "modulated", "hourly", "replay", "saturated")
"""Arrival processes by name."""

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """How requests arrive.

    Parameters
    ----------
    rate_per_s
        Mean arrival rate [1/s]; not used by ``saturated``, and by ``replay`` only to rescale the times.
    process
        ``poisson``; ``gamma`` (renewal with gamma gaps, bursty for scv > 1); ``modulated`` (Poisson whose rate fluctuates on
        several time scales so that counts have the given `dispersion`); ``hourly`` (Poisson whose rate follows
        `hourly_profile`); ``replay`` (the given time stamps); ``saturated`` (everything waits at time 0).
    scv
        Squared coefficient of variation of the gaps (``gamma``; with ``hourly``, of the gaps in operational time).
    hourly_profile
        Relative rate per hour (24 or 168 numbers, any scale), repeated for ever.
    times_s
        Time stamps of a trace [s], any origin (``replay``); a run longer than the trace repeats it.
    dispersion
        Pairs (window [s], index of dispersion of the counts of this stream in such windows) (``modulated``).
    """

    rate_per_s: float | None = None
    process: str = "poisson"
    scv: float = 1.0
    hourly_profile: tuple[float, ...] = ()
    times_s: tuple[float, ...] = ()
    dispersion: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        problems = []
        if self.process not in PROCESSES:
            problems.append(f"arrival process {self.process!r} is not known{did_you_mean(self.process, PROCESSES)}")
        needs_rate = self.process in ("poisson", "gamma", "modulated", "hourly")
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
        if self.process == "replay" and not self.times_s:
            problems.append("times_s is needed to replay a trace")
        if problems:
            raise InputError.from_problems(problems)


def arrival_times(
    arrival: Arrival, requests: int, rng: np.random.Generator, start_s: float = 0.0
) -> NDArray[np.float64]:
    """Times of the next `requests` arrivals after `start_s` [s], increasing; the first comes after one gap.

    Draws: ``requests`` of ``rng.standard_exponential()`` (``poisson``, ``hourly`` with scv 1) or of
    ``rng.standard_gamma(1/scv)`` (``gamma``, ``hourly`` otherwise); ``modulated``: exponentials as ``poisson``, then for each
    time scale, from the shortest, one ``rng.random()`` and its ``rng.standard_gamma`` factors; none for ``replay`` and
    ``saturated``.

    >>> arrival_times(Arrival(process="replay", times_s=(5.0, 3.0, 9.0)), 3, np.random.default_rng(0)).tolist()
    [0.0, 2.0, 6.0]
    """
    if arrival.process == "saturated":
        return np.zeros(requests)
    if arrival.process == "replay":
        return start_s + _replay(np.sort(np.asarray(arrival.times_s, dtype=float)), arrival.rate_per_s, requests)
    if arrival.process == "gamma" or arrival.scv != 1.0:
        gaps = rng.standard_gamma(1.0 / arrival.scv, requests) * arrival.scv
    else:
        gaps = rng.standard_exponential(requests)
    operational = np.cumsum(gaps)  # unit rate
    assert arrival.rate_per_s is not None
    if arrival.process == "modulated":
        return start_s + _modulated(operational, arrival, rng)
    if arrival.process == "hourly":
        return _hourly(operational, np.asarray(arrival.hourly_profile, dtype=float), arrival.rate_per_s, start_s)
    return np.asarray(start_s + operational / arrival.rate_per_s)


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


def _replay(times: NDArray[np.float64], rate: float | None, requests: int) -> NDArray[np.float64]:
    times = times - times[0]
    if times.size > 1 and times[-1] > 0.0:
        gap = times[-1] / (times.size - 1)
        period = times[-1] + gap
        if rate is not None:
            scale = 1.0 / (rate * gap)
            times, period = times * scale, period * scale
    else:
        period = 1.0 / rate if rate else 1.0
    rounds = -(-requests // times.size)
    return np.asarray(np.concatenate([times + i * period for i in range(rounds)])[:requests])
