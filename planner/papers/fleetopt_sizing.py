"""FleetOpt's pool sizing in the readings that its text and its published program allow.

The paper (arXiv:2603.16514) prints a constant cost per slot (eq. 3) and a test of the waiting time against what prefill
leaves of the promise (eq. 8). Its tables were made by a program that does neither, and that splits every total 80/20 and
estimates moments from 3,000 draws of one seed. A :class:`Reading` says which of these is in force; nothing here is used
to plan.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.queueing.mgc import min_replicas
from planner.shared.documents import load_document
from planner.workload.pools import FleetMoments, State
from planner.workload.workload import Workload

FloatArray = NDArray[np.float64]

PRINTED = load_document(Path(__file__).with_name("fleetopt.yaml"))
W, H = float(PRINTED["iteration"]["w_s"]), float(PRINTED["iteration"]["h_s"])
CHUNK, CALIBRATION_TOKENS = PRINTED["iteration"]["chunk"], PRINTED["iteration"]["calibration_tokens"]
LONG_TOKENS, LONG_SLOTS = PRINTED["long"].values()
UTILIZATION_CAP, TTFT_S = float(PRINTED["utilization_cap"]), float(PRINTED["ttft_s"])
GAMMAS = tuple(round(1.0 + 0.1 * k, 1) for k in range(11))
SAMPLES, SEED, POINTS = PRINTED["samples"], PRINTED["seed"], np.array(PRINTED["tabulated"])


@dataclass(frozen=True, slots=True)
class Paper:
    """A workload's setting: shipped file, boundary [tokens], slots of a short replica, probability of compression."""

    workload: str
    boundary: int
    slots: int
    p_c: float


SETTINGS = {name: Paper(*of) for name, of in PRINTED["settings"].items()}


@dataclass(frozen=True, slots=True)
class Reading:
    """Which of the paper's unprinted choices are in force.

    Parameters
    ----------
    name
        As shown to people.
    scaled
        H scaled by the request's own length, H L/8192, instead of eq. 3's constant.
    sampled
        Moments from 3,000 draws of the program's seed and a search that starts at ceil(lambda/mu) + 1; otherwise exact
        sums and the smallest fleet.
    arriving
        Pools sized on what they really get: compressed prompts at total B with their output unchanged, and the part of
        the band that was not compressed in the long pool. Otherwise Algorithm 1, lines 7-8.
    pairs
        The trace's own (input, output) pairs instead of an 80/20 split of the total.
    """

    name: str
    scaled: bool = True
    sampled: bool = False
    arriving: bool = False
    pairs: bool = False


@dataclass(frozen=True, slots=True)
class Pool:
    """A sized pool: replicas, the rate it serves [1/s], E[S] [s], its scv, slots of a replica."""

    replicas: int
    rate_per_s: float
    service_s: float
    scv: float
    slots: int

    @property
    def utilization(self) -> float:
        """lambda/(n mu_gpu), eq. 4 and table 5 [1]."""
        return self.rate_per_s * self.service_s / (self.replicas * self.slots)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Short and long pool, either absent where nobody is served, at one compression bandwidth gamma."""

    short: Pool | None
    long: Pool | None
    gamma: float

    @property
    def replicas(self) -> int:
        """Of both pools."""
        return sum(p.replicas for p in (self.short, self.long) if p is not None)


@cache
def table(workload: str) -> FloatArray:
    """The distribution of totals at :data:`POINTS`, shape (18,)."""
    levels = Workload.from_file(workload).cdf(POINTS)
    return np.array([round(float(level), 9) for level in levels])


def at(workload: str, tokens: float) -> float:
    """P(total <= tokens) by straight lines between the points, as the paper's program does [1]."""
    return float(np.interp(tokens, np.append(0, POINTS), np.append(0.0, table(workload))))


def _split(totals: FloatArray) -> tuple[FloatArray, FloatArray]:
    inputs: FloatArray = np.maximum(np.floor(totals * 0.80), 1.0)
    outputs: FloatArray = np.maximum(totals - inputs, 1.0)
    return inputs, outputs


def _service(inputs: FloatArray, outputs: FloatArray, slots: int, scaled: bool) -> FloatArray:
    """Eq. 4, ``(ceil(L_in/chunk) + L_out) (W + H n)`` [s]."""
    scale = (inputs + outputs) / CALIBRATION_TOKENS if scaled else 1.0
    return np.asarray((np.ceil(inputs / CHUNK) + outputs) * (W + H * slots * scale))


def _draws(workload: str, low: int, high: int) -> FloatArray:
    """Totals in (low, high] as the published program draws them: inverse distribution, then uniform in the bin."""
    below, points = at(workload, low), [int(p) for p in POINTS if low < p <= high]
    levels = [min(1.0, (at(workload, p) - below) / (at(workload, high) - below)) for p in points]
    levels[-1] = 1.0
    starts = [max(low, 1), *(max(low, p + 1) for p in points[:-1])]
    generator = random.Random(SEED)
    totals = np.empty(SAMPLES)
    for i in range(SAMPLES):
        k = bisect_left(levels, generator.random())
        totals[i] = generator.randint(starts[k], points[k])
    return totals


@cache
def _exact(workload: str, low: int, high: int) -> tuple[FloatArray, FloatArray]:
    """Every whole total in (low, high] and its share of all requests."""
    edges = np.append(0, POINTS)
    density = np.repeat(np.diff(np.append(0.0, table(workload))) / np.diff(edges), np.diff(edges))
    totals = np.arange(1.0, POINTS[-1] + 1.0)
    inside = (totals > low) & (totals <= high)
    return totals[inside], density[inside]


@cache
def _moments(workload: str, low: int, high: int, slots: int, reading: Reading) -> tuple[float, float]:
    """E[S] [s] and its scv over the totals in (low, high]."""
    if reading.sampled:
        totals = _draws(workload, low, high)
        weight = np.full(totals.size, 1.0 / totals.size)
    else:
        totals, weight = _exact(workload, low, high)
        if not totals.size or weight.sum() <= 0.0:
            return 0.0, 0.0
        weight = weight / weight.sum()
    times = _service(*_split(totals), slots, reading.scaled)
    return _mean_scv(times, weight, 0.01 if reading.sampled else 0.0)


def _mean_scv(times: FloatArray, weight: FloatArray, least: float = 0.0) -> tuple[float, float]:
    mean = float(weight @ times)
    return mean, max(float(weight @ times**2) / mean**2 - 1.0, least)


def _size(rate_per_s: float, service_s: float, scv: float, slots: int, sampled: bool) -> Pool | None:
    """Eq. 11 with the test W99 <= 0.5 s that the program applies, and the utilization cap."""
    if rate_per_s <= 0.0 or service_s <= 0.0:
        return None
    n = int(min_replicas(rate_per_s, service_s, slots, TTFT_S, service_scv=scv, max_utilization=UTILIZATION_CAP))
    if sampled:
        n = max(n, math.ceil(rate_per_s * service_s / slots) + 1)
    return Pool(n, rate_per_s, service_s, scv, slots)


def homogeneous(workload: str, rate_per_s: float, reading: Reading) -> Pool:
    """One pool of 64K-token slots."""
    if reading.pairs:
        found = _from_pairs(workload, State(0.0), State(math.inf), LONG_SLOTS, reading, 1.0, rate_per_s)
    else:
        service_s, scv = _moments(workload, 0, LONG_TOKENS, LONG_SLOTS, reading)
        found = _size(rate_per_s, service_s, scv, LONG_SLOTS, reading.sampled)
    assert found is not None
    return found


def _from_pairs(
    workload: str, lower: State, upper: State, slots: int, reading: Reading, p_c: float, rate_per_s: float
) -> Pool | None:
    law = _pair_moments(workload, p_c).law(lower, upper)
    if law is None:
        return None
    times = _service(law.input_tokens, law.output_tokens, slots, reading.scaled)
    return _size(rate_per_s * law.share, *_mean_scv(times, law.weight), slots, False)


@cache
def _pair_moments(workload: str, p_c: float) -> FleetMoments:
    return FleetMoments(Workload.from_file(workload), p_c=p_c, chunk=CHUNK)


def fleet(
    workload: str, boundary: int, slots: int, p_c: float, gamma: float, rate_per_s: float, reading: Reading
) -> Fleet:
    """Two pools at one boundary [tokens] and compression bandwidth.

    `p_c` is the probability that a prompt of the band is compressed; ``None`` = by category (needs the pairs).
    """
    if reading.pairs:
        state = State(float(boundary), gamma)
        short = _from_pairs(workload, State(0.0), state, slots, reading, p_c, rate_per_s)
        long = _from_pairs(workload, state, State(math.inf), LONG_SLOTS, reading, p_c, rate_per_s)
        return Fleet(short, long, gamma)
    edge = int(gamma * boundary)
    alpha, beta = at(workload, boundary), at(workload, edge) - at(workload, boundary)
    served = min(1.0, alpha + beta * p_c)
    if reading.arriving and gamma > 1.0:
        short_law, long_law = _arriving(workload, boundary, edge, p_c, slots, reading)
    else:
        short_law = _moments(workload, 0, boundary, slots, reading)
        long_law = _moments(workload, edge, LONG_TOKENS, LONG_SLOTS, reading) if served < 1.0 else (0.0, 0.0)
    return Fleet(
        _size(served * rate_per_s, *short_law, slots, reading.sampled),
        _size((1.0 - served) * rate_per_s, *long_law, LONG_SLOTS, reading.sampled),
        gamma,
    )


@cache
def _arriving(
    workload: str, boundary: int, edge: int, p_c: float, slots: int, reading: Reading
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Moments of both pools on what they really get."""
    band, band_weight = _exact(workload, boundary, edge)
    band_in, band_out = _split(band)

    def moments(low: int, high: int, share: float, prompts: FloatArray, n: int) -> tuple[float, float]:
        """Of the totals in (low, high], and a share of the band at these prompts with its own outputs."""
        totals, weight = _exact(workload, low, high)
        inputs, outputs = _split(totals)
        weight = np.concatenate([weight, share * band_weight])
        if not weight.sum() > 0.0:
            return 0.0, 0.0
        lengths = np.concatenate([inputs, prompts]), np.concatenate([outputs, band_out])
        return _mean_scv(_service(*lengths, n, reading.scaled), weight / weight.sum())

    # a compressed request has total B and its own output
    short = moments(0, boundary, p_c, boundary - band_out, slots)
    return short, moments(edge, LONG_TOKENS, 1.0 - p_c, band_in, LONG_SLOTS)


def prefill_s(workload: str, low: int, high: int, slots: int, quantile: float) -> float:
    """Quantile of ``ceil(L_in/chunk)`` iterations with that many slots busy, exact [s]."""
    totals, weight = _exact(workload, low, high)
    chunks = np.ceil(_split(totals)[0] / CHUNK)
    cumulative = np.cumsum(weight) / weight.sum()
    return float(chunks[np.searchsorted(cumulative, quantile - 1e-12)] * (W + H * slots))


def lone_prefill_s(workload: str, low: int, high: int) -> float:
    """Mean of ``ceil(L_in/chunk)`` iterations with one slot busy over the program's draws [s]."""
    return float(np.mean(np.ceil(_split(_draws(workload, low, high))[0] / CHUNK)) * (W + H))


def mean_busy_from_empty(workload: str, low: int, high: int, rate_per_s: float, requests: int, slots: int) -> float:
    r"""Mean busy slots while that many requests arrive at an empty pool that nobody waits at.

    .. math:: \frac{\lambda}{T}\int_0^T E[\min(S, t)]\,dt, \quad T = \text{requests}/\lambda
    """
    totals, weight = _exact(workload, low, high)
    times = _service(*_split(totals), slots, True)
    horizon = requests / rate_per_s
    whole = np.minimum(times, horizon)
    filled = whole * horizon - 0.5 * whole**2
    return rate_per_s / horizon * float(filled @ weight) / float(weight.sum())
