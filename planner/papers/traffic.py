"""What a simulated pool is sent: the requests of one run, drawn from a law, at times that no trace tells.

Times are Poisson, or with bursts as measured. All draws come from one
``numpy.random.Generator(PCG64(seed))`` in a fixed order, so that a seed gives the same times everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError
from planner.predict.records import Floats, Requests, keys_of, supplied
from planner.workload.sending import Surge

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

MOST_CHANGES = 2 * 10**7
"""Changes of a modulated rate that one run may hold: about a gigabyte."""

Dispersion = tuple[tuple[float, float], ...]
"""Pairs (window [s], index of dispersion of the counts of a stream in such windows)."""

MOST_RUNS = 100
"""Beyond them a run narrows the interval of what is found by half a per cent and less."""

DRAWN = 41
"""Kind of draw that gateways' choices about drawn requests hang on."""


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """The requests of one run.

    Parameters
    ----------
    requests
        In whole tokens; a weight says how much each counts, 0 = not measured; without weights the run has a warm-up.
    span_s
        Time during which they come [s].
    replicas
        Replicas they are for, where those stand for more; 0 = for all.
    apart
        Whether they are stretches of time with nothing between them.
    whole
        Whether they are all there is: every one counts, and runs are other draws of the same traffic.
    """

    requests: Requests
    span_s: float
    replicas: int = 0
    apart: bool = False
    whole: bool = False


Traffic = Callable[[int], Sent]
"""The requests of the run of a seed."""


class SampledTraffic:
    """Lengths drawn with replacement from a joint law, times from an arrival process.

    Draws of a run: its rows (:func:`sample_rows`), then its times (:func:`planner.papers.traffic.arrival_times`).

    Parameters
    ----------
    input_tokens, output_tokens, weight
        Joint lengths by row and the weight of each row (``None`` = equal), shape (rows,). Fractional lengths are rounded to
        whole tokens >= 1 [tokens].
    rate_per_s
        Rate [1/s].
    requests
        Requests of a run, >= 1.
    cached_share
        Share of a prompt whose KV a prefix cache supplies, in [0, 1): one for all, or one per row, shape (rows,).
    dispersion
        Bursts, as in :func:`planner.papers.traffic.arrival_times`.
    surge
        Flash crowds, whose requests alone count.
    """

    def __init__(
        self,
        input_tokens: ArrayLike,
        output_tokens: ArrayLike,
        weight: ArrayLike | None,
        rate_per_s: float,
        requests: int = 50_000,
        cached_share: ArrayLike = 0.0,
        dispersion: Dispersion = (),
        surge: Surge | None = None,
    ) -> None:
        if not (isinstance(requests, int) and requests >= 1):
            raise InputError(f"requests must be a whole number >= 1, got {requests!r}")
        self.requests, self.rate_per_s, self.weight = requests, rate_per_s, weight
        self.dispersion, self.surge = dispersion, surge
        self.inputs = whole_tokens(input_tokens, "input_tokens")
        self.outputs = whole_tokens(output_tokens, "output_tokens")
        if self.inputs.shape != self.outputs.shape or self.inputs.ndim != 1:
            raise InputError("input_tokens and output_tokens must be two lists of the same length")
        self.cached = cached_tokens(self.inputs, cached_share)

    def __call__(self, seed: int) -> Sent:
        """The requests of the run of a seed."""
        rng = np.random.Generator(np.random.PCG64(seed))
        rows = sample_rows(self.weight, self.inputs.size, self.requests, rng)
        times = arrival_times(self.rate_per_s, self.requests, rng, self.dispersion)
        weight = None
        if self.surge is not None:
            times = self.surge.warp(times)
            weight = self.surge.counts(times).astype(np.float64)
        number = np.arange(self.requests)
        key = keys_of(number, np.full_like(number, seed), DRAWN)
        requests = requests_of(times, (self.inputs, self.outputs, self.cached), rows, key, weight)
        return Sent(requests, float(times[-1]))


def requests_of(
    times_s: Floats,
    lengths: Sequence[NDArray[np.int64]],
    row: NDArray[np.int64],
    key: NDArray[np.uint64],
    weight: Floats | None = None,
) -> Requests:
    """Requests at given times [s]: whole input, output and cached tokens by row, and each one's row, key and weight."""
    inputs, outputs, cached = (column[row].astype(np.float64) for column in lengths)
    return Requests(times_s, inputs, outputs, cached, key, weight=weight)


def cached_tokens(inputs: NDArray[np.int64], cached_share: ArrayLike) -> NDArray[np.int64]:
    """Whole tokens of every prompt that the cache supplies; at least one of each is processed."""
    shares = np.asarray(cached_share, dtype=np.float64)
    if shares.shape not in ((), inputs.shape):
        raise InputError(f"cached_share must be one number or one per row ({inputs.size}), got {shares.size}")
    if not (np.all(shares >= 0.0) and np.all(shares < 1.0)):
        raise InputError("cached_share must lie in [0, 1)")
    return supplied(inputs, shares).astype(np.int64)


def sample_rows(weight: ArrayLike | None, rows: int, requests: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Row numbers of `requests` requests drawn with replacement.

    Draws: ``rng.integers(rows, size=requests)`` when all weights are equal, otherwise ``rng.random(requests)`` through
    the inverse of the cumulated weights.
    """
    if weight is None:
        return rng.integers(rows, size=requests)
    w = np.asarray(weight, dtype=float)
    if w.shape != (rows,) or not np.all(np.isfinite(w)) or np.any(w < 0.0) or not w.sum() > 0.0:
        raise InputError(f"weight: expected {rows} weights, none negative and not all zero")
    if np.all(w == w[0]):
        return rng.integers(rows, size=requests)
    cumulated = np.cumsum(w)
    return np.asarray(np.searchsorted(cumulated, rng.random(requests) * cumulated[-1], side="right").clip(0, rows - 1))


def whole_tokens(tokens: ArrayLike | Sequence[float], name: str) -> NDArray[np.int64]:
    """Lengths as whole tokens >= 1: rows of compact files may be fractional, engines are not."""
    values = np.asarray(tokens, dtype=float)
    if values.size == 0 or not np.all(np.isfinite(values)) or np.any(values < 0.0):
        raise InputError(f"{name}: lengths must be finite and not negative, at least one")
    return np.maximum(np.floor(values + 0.5), 1.0).astype(np.int64)


def seeds_of(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """The seed of each run.

    Parameters
    ----------
    seeds
        A number of runs, whose seeds are 1, 2, ..., or the seeds themselves; 1 to 100 runs, seeds of 0 and more.

    Returns
    -------
    tuple of int
        In the order given.

    Raises
    ------
    InputError
        For no run, too many, or a negative seed.
    """
    count = seeds if isinstance(seeds, int) else len(seeds)
    if not 1 <= count <= MOST_RUNS:
        raise InputError(
            f"seeds: 1 to {MOST_RUNS} runs, got {count:,}", "A run of more requests narrows the interval as well."
        )
    numbers = tuple(range(1, seeds + 1)) if isinstance(seeds, int) else tuple(int(s) for s in seeds)
    if min(numbers) < 0:
        raise InputError(f"seeds: must be 0 or more, got {min(numbers)}")
    return numbers


def arrival_times(
    rate_per_s: float,
    requests: int,
    rng: np.random.Generator,
    dispersion: Dispersion = (),
) -> NDArray[np.float64]:
    """Times of so many arrivals [s], increasing, shape (requests,).

    Draws: `requests` of ``rng.standard_exponential()``, then where there is a `dispersion`, for each time scale from the
    shortest, one ``rng.random()`` and its ``rng.standard_gamma`` factors.

    Parameters
    ----------
    rate_per_s
        Mean rate, > 0 [1/s].
    requests
        How many.
    rng
        Draws them.
    dispersion
        The rate fluctuates on several time scales so that counts have it; empty = Poisson arrivals.

    Raises
    ------
    InputError
        No rate; bursts that come and go too often to be simulated.

    Examples
    --------
    >>> times = arrival_times(2.0, 3, np.random.default_rng(0))
    >>> bool(np.all(np.diff(times) > 0.0))
    True
    """
    if not (math.isfinite(rate_per_s) and rate_per_s > 0.0):
        raise InputError(f"rate_per_s must be a positive rate, got {rate_per_s!r}")
    operational = np.cumsum(rng.standard_exponential(requests))
    return _modulated(operational, rate_per_s, dispersion, rng)


def scale_variances(dispersion: Dispersion, rate: float) -> list[tuple[float, float]]:
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


def _modulated(
    operational: NDArray[np.float64], rate: float, dispersion: Dispersion, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Poisson arrivals under a rate that is a weighted mean of gamma factors, each constant over its own time scale."""
    scales = scale_variances(dispersion, rate)
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
