"""Statistics of runs: what a run measured, intervals from batch means, and whether the run was long enough to say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from planner.shared.record import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from planner.simulate.run import Run

EXCEEDANCES = 100
"""Observations above a percentile below which a run is called too short for it."""


@dataclass(frozen=True, slots=True)
class Estimate(Record):
    """A simulated value with its 95% confidence interval.

    Parameters
    ----------
    value
        Point estimate.
    half_width
        Half of the 95% interval; inf when it cannot be estimated.
    enough
        Whether the run was long enough for this percentile.
    """

    value: float
    half_width: float
    enough: bool = True

    written: ClassVar[tuple[str, ...]] = ("value", "ci95=half_width", "enough")

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.value - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.value + self.half_width


def student_t(degrees: int) -> float:
    """Two-sided 95% quantile of Student's t.

    >>> round(student_t(19), 4)
    2.093
    """
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))


def enough_for(quantile: float, observations: int) -> bool:
    """Whether at least :data:`EXCEEDANCES` observations lie beyond the quantile."""
    return observations * min(quantile, 1.0 - quantile) >= EXCEEDANCES


def too_short(quantile: float, observations: int) -> str:
    """The sentence for a run that is too short."""
    needed = math.ceil(EXCEEDANCES / min(quantile, 1.0 - quantile))
    return (
        f"the run is too short for P{100 * quantile:.10g}: {observations:,} requests measured, "
        f"about {needed:,} are needed"
    )


def batch_means(runs: Sequence[NDArray[np.float64]], quantile: float | None = None, batches: int = 20) -> Estimate:
    """Mean or quantile of observations in order of arrival, with a 95% interval from the means of batches.

    Parameters
    ----------
    runs
        One array per independent run, in order of arrival.
    quantile
        Share in (0, 1), or ``None`` for the mean.
    batches
        Batches altogether; a run is never split into fewer than 4. With 30 runs or more each run is one batch.

    Notes
    -----
    The point estimate is that of all observations together. The interval is Student's t over the batch values: batches
    must be long against the correlation time, so it is too narrow close to saturation.
    """
    runs = [r for r in runs if r.size]
    total = sum(r.size for r in runs)
    if total == 0:
        return Estimate(math.nan, math.inf, False)

    def value(x: NDArray[np.float64]) -> float:
        return float(np.mean(x) if quantile is None else np.quantile(x, quantile))

    point = value(np.concatenate(runs))
    per_run = 1 if len(runs) >= 30 else max(4, batches // len(runs))
    parts = [p for r in runs for p in np.array_split(r, per_run) if p.size >= 2]
    spread = mean_of_batches(np.array([value(p) for p in parts]))
    return Estimate(point, spread.half_width, spread.enough and (quantile is None or enough_for(quantile, total)))


def range_of_runs(runs: Sequence[NDArray[np.float64]], quantile: float | None = None) -> Estimate:
    """Mean or quantile of all observations, with the largest deviation of a run from it as half-width.

    For runs that are draws of the same traffic: with six of them the median draw lies within their range in 97 of 100.
    """
    runs = [r for r in runs if r.size]
    if not runs:
        return Estimate(math.nan, math.inf, False)

    def value(x: NDArray[np.float64]) -> float:
        return float(np.mean(x) if quantile is None else np.quantile(x, quantile))

    point = value(np.concatenate(runs))
    enough = quantile is None or enough_for(quantile, sum(r.size for r in runs))
    return Estimate(point, max(abs(value(r) - point) for r in runs), enough)


def mean_of_batches(values: NDArray[np.float64]) -> Estimate:
    """Mean of independent values with its 95% interval (Student's t).

    >>> mean_of_batches(np.array([1.0, 3.0])).value
    2.0
    """
    if values.size < 2:
        return Estimate(float(values[0]) if values.size else math.nan, math.inf, False)
    half = student_t(values.size - 1) * float(values.std(ddof=1)) / math.sqrt(values.size)
    return Estimate(float(values.mean()), half)


def summarize(run: Run, measured: tuple[float, float] = (0.1, 0.9)) -> dict[str, float]:
    """The statistics of one run of R requests: window, percentiles and throughput by fixed rules.

    Measured are the positions floor(u R) .. floor(v R) - 1 in order of arrival; percentiles interpolate linearly; TBT
    pools all token gaps of the measured requests; throughput is (j - i)/(T_j - T_i) over the sorted completion times
    with i = floor(0.1 n), j = floor(0.9 n) - 1; unfinished counts measured requests. Times in seconds, memory in tokens.
    """
    ordered = sorted(run.requests, key=lambda r: (r.arrival, r.index))
    total = len(ordered)
    positions = ordered[math.floor(measured[0] * total) : math.floor(measured[1] * total)]
    window = [r for r in positions if r.done_s == r.done_s]
    ttft = np.array([r.first_token_s - r.arrival for r in window])
    e2e = np.array([r.done_s - r.arrival for r in window])
    tpot = np.array([(r.done_s - r.first_token_s) / (r.output_tokens - 1) for r in window if r.output_tokens > 1])
    gaps = np.array([g for r in window for g in r.gaps])
    done = np.sort(np.array([r.done_s for r in ordered if r.done_s == r.done_s]))
    i, j = math.floor(0.1 * done.size), math.floor(0.9 * done.size) - 1
    out = {"throughput_per_s": (j - i) / (done[j] - done[i]) if j > i and done[j] > done[i] else math.nan}
    for name, values in (("ttft", ttft), ("tpot", tpot), ("tbt", gaps), ("e2e", e2e)):
        if values.size:
            out[f"{name}_mean_s"] = float(values.mean())
            for percent in (50, 90, 95, 99):
                out[f"{name}_p{percent}_s"] = float(np.percentile(values, percent))
    out["evictions_per_1000"] = 1000.0 * run.evictions / total if total else 0.0
    out["peak_kv_tokens"] = float(run.peak_held)
    out["iterations"] = float(run.iterations)
    out["unfinished"] = float(len(positions) - len(window))
    return out
