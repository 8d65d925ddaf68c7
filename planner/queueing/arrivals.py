"""Arrivals that are not Poisson: how bursty they are at a window, and what that does to a queue.

Two time scales are kept apart. Swings faster than a pool's relaxation time enter its formulas as a dispersion (more
variance of the arrival counts); slower ones as a mixture of stationary results over rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.queueing.erlang import log_erlang_c
from planner.queueing.mixture import mixture_quantiles
from planner.queueing.slots.chain import Occupancy

__all__ = [
    "ProfileSizing",
    "RateMixture",
    "allen_cunneen_factor",
    "hayward",
    "index_of_dispersion",
    "mix_quantiles",
    "peak_rate",
    "peakedness",
    "peakedness_from_dispersion",
    "profile_rates",
    "rate_mixture",
    "relaxation_time",
    "renewal_wait_quantile",
    "size_for_profile",
]

FloatArray = NDArray[np.float64]


def _times(times: ArrayLike) -> FloatArray:
    t = np.asarray(times, dtype=float)
    if t.ndim != 1 or len(t) < 2:
        raise ValueError(f"times must be a list of at least two timestamps, not of shape {t.shape}")
    if not np.all(np.isfinite(t)):
        raise ValueError("times must be finite")
    t = np.sort(t)
    if t[-1] <= t[0]:
        raise ValueError("times must not all be equal")
    return np.asarray(t - t[0], dtype=np.float64)


def _work(work: ArrayLike | None, times: ArrayLike) -> FloatArray | None:
    if work is None:
        return None
    w = np.asarray(work, dtype=float)
    if w.shape != np.shape(times) or not np.all(np.isfinite(w)) or np.any(w < 0) or w.sum() <= 0:
        raise ValueError("work must be >= 0, finite, not all 0, one value per timestamp")
    return w[np.argsort(np.asarray(times, dtype=float), kind="stable")]


def index_of_dispersion(times: ArrayLike, window: ArrayLike, work: ArrayLike | None = None) -> Any:
    r"""Index of dispersion of counts (or of work) over windows of a length, from timestamps.

    .. math:: I(w) = \frac{\mathrm{Var}\, N(w)}{E\, N(w)}, \qquad
              I_{work}(w) = \frac{\mathrm{Var}\, S(w)}{E\, S(w)} \, \frac{E[k]}{E[k^2]}

    over the whole windows that fit. 1 for Poisson arrivals (with independent work) at every w. A bursty minority with
    little work shows in I and not in I_work.

    Parameters
    ----------
    times : array_like, shape (n,)
        Timestamps in any order [s].
    window : array_like
        w > 0, at most half of the span [s].
    work : array_like, shape (n,), optional
        Work k of each request, for instance its iterations [any].

    Returns
    -------
    float or ndarray
        One value per window [-].

    References
    ----------
    D. R. Cox, P. A. W. Lewis, "The Statistical Analysis of Series of Events", 1966, section 4.5.

    Examples
    --------
    A clock tick every second has no variance:

    >>> index_of_dispersion(np.arange(1000.0), 10.0)
    0.0
    """
    t = _times(times)
    k = _work(work, times)
    windows = np.asarray(window, dtype=float)
    if np.any(~(windows > 0)) or np.any(2.0 * windows > t[-1]):
        raise ValueError(f"window must be > 0 and fit the {t[-1]:g} s of the timestamps twice, not {window!r}")
    scale = 1.0 if k is None else float(np.mean(k) / np.mean(k**2))
    result = np.empty(windows.size)
    for i, w in enumerate(windows.ravel()):
        whole = int(t[-1] // w)
        cell = (t / w).astype(np.int64)
        inside = cell < whole
        sums = np.bincount(cell[inside], None if k is None else k[inside], minlength=whole).astype(float)
        result[i] = scale * float(sums.var()) / float(sums.mean()) if sums.mean() > 0 else 0.0
    return float(result[0]) if windows.ndim == 0 else result.reshape(windows.shape)


def peakedness(times: ArrayLike, mean_service: float) -> float:
    r"""Peakedness: variance over mean of the busy servers of an infinite group with exponential service.

    .. math:: z = \frac12 + \frac{\mathrm{Var}\, S}{E\, S}, \qquad S(t) = \sum_{t_i \le t} e^{-(t - t_i) / \tau}

    averaged over time exactly, from three service times after the first timestamp on.

    Parameters
    ----------
    times : array_like, shape (n,)
        Timestamps in any order [s].
    mean_service : float
        tau, mean service time [s].

    Returns
    -------
    float
        z [-]; 1 for Poisson.

    References
    ----------
    A. E. Eckberg, "Generalized peakedness of teletraffic processes", ITC 10, 1983.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> round(peakedness(np.cumsum(rng.exponential(1.0, 200_000)), 10.0), 1)
    1.0
    """
    t = _times(times)
    tau = float(mean_service)
    if not (math.isfinite(tau) and tau > 0):
        raise ValueError(f"mean_service must be > 0 and finite, not {mean_service!r}")
    if 6.0 * tau > t[-1]:
        raise ValueError(
            f"mean_service must be below a sixth of the {t[-1]:g} s of the timestamps, not {mean_service!r}"
        )
    x = t / tau
    level = np.empty(len(x))  # S just after each arrival
    carried, at, first = 0.0, 0.0, 0
    while first < len(x):
        # within 300 service times e^x neither overflows nor loses the earlier arrivals
        last = int(np.searchsorted(x, x[first] + 300.0, side="right"))
        growth = np.exp(x[first:last] - x[first])
        level[first:last] = (np.cumsum(growth) + carried * math.exp(-(x[first] - at))) / growth
        carried, at, first = float(level[last - 1]), float(x[last - 1]), last
    gap = np.diff(x)
    used = x[:-1] >= 3.0
    start, gap = level[:-1][used], gap[used]
    span = float(gap.sum())
    mean = float(np.sum(start * -np.expm1(-gap))) / span
    square = float(np.sum(start**2 * -np.expm1(-2.0 * gap))) / (2.0 * span)
    return 0.5 + (square - mean**2) / mean


def peakedness_from_dispersion(dispersion: ArrayLike, arrival_weight: ArrayLike = 0.5) -> Any:
    r"""Peakedness from the index of dispersion at the relaxation time, :math:`z = 1 + (I - 1) \zeta`.

    Parameters
    ----------
    dispersion : array_like
        I >= 0 [-].
    arrival_weight : array_like
        :math:`\zeta = \int P(K > x)^2 dx / E[K]` in (0, 1]: 1/2 for exponential, 1 for constant service [-].

    Returns
    -------
    float or ndarray
        z [-].

    Examples
    --------
    >>> peakedness_from_dispersion(3.0)
    2.0
    """
    i = np.asarray(dispersion, dtype=float)
    zeta = np.asarray(arrival_weight, dtype=float)
    if np.any(~(i >= 0)) or not np.all(np.isfinite(i)):
        raise ValueError(f"dispersion must be >= 0 and finite, not {dispersion!r}")
    if np.any(~((zeta > 0) & (zeta <= 1))):
        raise ValueError(f"arrival_weight must be in (0, 1], not {arrival_weight!r}")
    z = 1.0 + (i - 1.0) * zeta
    return float(z) if z.ndim == 0 else z


def relaxation_time(occupied: Occupancy, mean_iterations: float, iteration_time: float, iterations_scv: float) -> float:
    r"""Time over which the busy slots of a pool forget: the window to read the dispersion at.

    .. math:: \tau = E[K]\, t \, \frac{1 + C_K^2}{2} \, \frac{\mathrm{Var}\, n}{E\, n}

    Exact for the integral of the autocorrelation where t(n) = W + H n with slots to spare
    (Var / mean = 1 / (1 - p)); at least one residual life.

    Parameters
    ----------
    occupied : Occupancy
        Law of the busy slots [-].
    mean_iterations : float
        E[K] [iterations].
    iteration_time : float
        t at the mean occupancy [s].
    iterations_scv : float
        C_K^2 [-].

    Returns
    -------
    float
        tau [s]; inf when not stable.

    Examples
    --------
    >>> from planner.queueing.slots.chain import iteration_times, occupancy
    >>> pool = occupancy(2.0, 220.0, iteration_times(64, 0.008, 0.00065), 64)
    >>> round(relaxation_time(pool, 220.0, 0.012, 1.0), 2)
    3.7
    """
    for name, value in (("mean_iterations", mean_iterations), ("iteration_time", iteration_time)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be > 0 and finite, not {value!r}")
    if not (math.isfinite(iterations_scv) and iterations_scv >= 0):
        raise ValueError(f"iterations_scv must be >= 0 and finite, not {iterations_scv!r}")
    if not occupied.stable:
        return math.inf
    residual = mean_iterations * iteration_time * 0.5 * (1.0 + iterations_scv)
    n = np.arange(occupied.first, occupied.first + len(occupied.probability), dtype=float)
    mean = float(occupied.probability @ n)
    if mean <= 0:
        return residual
    return residual * max(float(occupied.probability @ n**2) / mean - mean, 1.0)


def allen_cunneen_factor(arrival_scv: ArrayLike, service_scv: ArrayLike) -> Any:
    r"""How much longer the delayed wait than under Poisson arrivals: :math:`(C_a^2 + C_s^2) / (1 + C_s^2)`.

    Parameters
    ----------
    arrival_scv : array_like
        C_a^2 of renewal arrivals, or their dispersion at the relaxation time [-].
    service_scv : array_like
        C_s^2 [-].

    Returns
    -------
    float or ndarray
        Factor on the wait of an M/G/c queue [-].

    References
    ----------
    A. O. Allen, "Probability, Statistics and Queueing Theory", 2nd ed., 1990, eq. 5.3.63.

    Examples
    --------
    >>> allen_cunneen_factor(3.0, 1.0)
    2.0
    """
    ca2 = np.asarray(arrival_scv, dtype=float)
    cs2 = np.asarray(service_scv, dtype=float)
    for name, array in (("arrival_scv", ca2), ("service_scv", cs2)):
        if np.any(~(array >= 0)) or not np.all(np.isfinite(array)):
            raise ValueError(f"{name} must be >= 0 and finite")
    factor = (ca2 + cs2) / (1.0 + cs2)
    return float(factor) if factor.ndim == 0 else factor


def hayward(servers: ArrayLike, offered_load: ArrayLike, z: ArrayLike) -> tuple[Any, Any]:
    r"""Hayward's approximation: peaked traffic z on c servers is Poisson traffic on c / z servers.

    .. math:: (c, a, z) \rightarrow (c / z, a / z)

    Parameters
    ----------
    servers, offered_load : array_like
        c and a [servers, Erlang].
    z : array_like
        Peakedness > 0; c / z is kept at 1 or more, where Erlang's formulas begin [-].

    Returns
    -------
    tuple
        Equivalent servers and offered load [servers, Erlang].

    References
    ----------
    A. A. Fredericks, "Congestion in blocking systems: a simple approximation technique", BSTJ 59 (1980),
    doi:10.1002/j.1538-7305.1980.tb03034.x.

    Examples
    --------
    >>> hayward(10, 8, 2.0)
    (5.0, 4.0)
    """
    c = np.asarray(servers, dtype=float)
    a = np.asarray(offered_load, dtype=float)
    peaked = np.asarray(z, dtype=float)
    if np.any(~(c >= 1)):
        raise ValueError(f"servers must be >= 1, not {servers!r}")
    if np.any(~(a >= 0)):
        raise ValueError(f"offered_load must be >= 0, not {offered_load!r}")
    if np.any(~(peaked > 0)):
        raise ValueError(f"z must be > 0, not {z!r}")
    peaked = np.minimum(peaked, c)
    fewer, less = c / peaked, a / peaked
    return (float(fewer), float(less)) if fewer.ndim == 0 else (fewer, less)


def renewal_wait_quantile(
    arrival_rate: float,
    service_time: float,
    servers: float,
    arrival_scv: float = 1.0,
    service_scv: float = 1.0,
    quantile: ArrayLike = 0.99,
) -> Any:
    r"""Wait quantile of a GI/G/c queue: Allen-Cunneen's rate, Hayward's probability of waiting.

    .. math:: P(W > x) = C(c/z, a/z)\, e^{-2 (c\mu - \lambda) x / (C_a^2 + C_s^2)}, \qquad z = (1 + C_a^2) / 2

    Parameters
    ----------
    arrival_rate : float
        lambda [1/s].
    service_time : float
        E[S] = 1 / mu [s].
    servers : float
        c >= 1 [servers].
    arrival_scv, service_scv : float
        C_a^2 and C_s^2 [-].
    quantile : array_like
        Levels in [0, 1) [-].

    Returns
    -------
    float or ndarray
        Wait [s]; 0 where P(wait) is below 1 - q, inf where lambda E[S] >= c.

    Examples
    --------
    Poisson and exponential is M/M/c:

    >>> round(renewal_wait_quantile(1.8, 1.0, 2, quantile=0.99), 4)
    22.2287
    """
    levels = np.asarray(quantile, dtype=float)
    if np.any(~((levels >= 0) & (levels < 1))):
        raise ValueError(f"quantile must be in [0, 1), not {quantile!r}")
    for name, value in (("arrival_rate", arrival_rate), ("arrival_scv", arrival_scv), ("service_scv", service_scv)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be >= 0 and finite, not {value!r}")
    if not (math.isfinite(service_time) and service_time > 0):
        raise ValueError(f"service_time must be > 0 and finite, not {service_time!r}")
    if not (math.isfinite(servers) and servers >= 1):
        raise ValueError(f"servers must be >= 1 and finite, not {servers!r}")
    offered = arrival_rate * service_time
    if offered >= servers:
        wait = np.full(levels.shape, np.inf)
    elif offered == 0 or arrival_scv + service_scv == 0:
        wait = np.zeros(levels.shape)
    else:
        log_c = float(log_erlang_c(*hayward(servers, offered, 0.5 * (1.0 + arrival_scv))))
        slowness = (arrival_scv + service_scv) * service_time / (2.0 * (servers - offered))
        wait = np.maximum((log_c - np.log1p(-levels)) * slowness, 0.0)
    return float(wait) if levels.ndim == 0 else wait


@dataclass(frozen=True, slots=True, eq=False)
class RateMixture:
    """Arrivals as a mixture of stationary stretches.

    Attributes
    ----------
    rates : ndarray, shape (stretches,)
        Rate of each stretch, its own noise taken out [1/s].
    weights : ndarray, shape (stretches,)
        Share of the requests in each; sums to 1 [-].
    dispersion : float
        Index of dispersion within a stretch, at the relaxation time [-].
    window : float
        Length of a stretch [s].
    """

    rates: FloatArray
    weights: FloatArray
    dispersion: float
    window: float


def rate_mixture(
    times: ArrayLike, relaxation: float, window: float | None = None, work: ArrayLike | None = None, stretches: int = 24
) -> RateMixture:
    r"""Split timestamps into slow swings (a mixture over rates) and the dispersion that is left within them.

    The variance of the rates over windows is that of the true rate plus I / (rate x window) of noise: rates are pulled
    to their mean by what the dispersion within windows explains.

    Parameters
    ----------
    times : array_like, shape (n,)
        Timestamps in any order [s].
    relaxation : float
        Relaxation time of the pool, see `relaxation_time` [s].
    window : float, optional
        Length of a stretch; ten relaxation times, at least a minute, by default [s].
    work : array_like, shape (n,), optional
        Work of each request: rates and dispersion are then those of the work (requests of mean work) [any].
    stretches : int
        At most so many different rates are kept: neighbours are merged [-].

    Returns
    -------
    RateMixture
        Rates, their shares of the requests, dispersion within.

    Examples
    --------
    >>> rng = np.random.default_rng(3)
    >>> slow = np.concatenate([np.sort(rng.uniform(0, 600, 600)), np.sort(rng.uniform(600, 1200, 1800))])
    >>> mixture = rate_mixture(slow, 2.0, window=60.0)
    >>> bool(0.8 < mixture.dispersion < 1.3), mixture.rates.round(0).min(), mixture.rates.round(0).max()
    (True, np.float64(1.0), np.float64(3.0))
    """
    t = _times(times)
    k = _work(work, times)
    if not (math.isfinite(relaxation) and relaxation > 0):
        raise ValueError(f"relaxation must be > 0 and finite, not {relaxation!r}")
    length = max(10.0 * relaxation, 60.0) if window is None else float(window)
    if not length > 0:
        raise ValueError(f"window must be > 0, not {window!r}")
    if int(stretches) != stretches or stretches < 1:
        raise ValueError(f"stretches must be a whole number >= 1, not {stretches!r}")
    length = min(length, 0.5 * float(t[-1]))
    whole = int(t[-1] // length)
    parts = max(round(length / relaxation), 2)
    cell = (t / (length / parts)).astype(np.int64)
    inside = cell < whole * parts
    mean_work = 1.0 if k is None else float(k.mean())
    scale = 1.0 if k is None else mean_work**2 / float(np.mean(k**2))
    sums = np.bincount(cell[inside], None if k is None else k[inside] / mean_work, minlength=whole * parts)
    table = sums.reshape(whole, parts).astype(float)
    within = scale * float(table.var(axis=1, ddof=1).sum()) / float(table.mean(axis=1).sum())
    rates = table.sum(axis=1) / length
    mean = float(rates.mean())
    spread = float(rates.var())
    noise = within / scale * mean / length
    shrink = math.sqrt(max(1.0 - noise / spread, 0.0)) if spread > 0 else 0.0
    rates = np.maximum(mean + (rates - mean) * shrink, 0.0)
    rates = np.sort(rates[rates > 1e-9 * mean])
    if len(rates) > stretches:
        # merge neighbours, the busiest tenth left alone where it fits: that is where the tail comes from
        alone = min(max(len(rates) // 10, 1), stretches // 2)
        groups = np.array_split(rates[: len(rates) - alone], max(stretches - alone, 1))
        counts = np.array([len(group) for group in groups] + [1] * alone, dtype=float)
        rates = np.concatenate(([float(group.mean()) for group in groups], rates[len(rates) - alone :]))
    else:
        counts = np.ones(len(rates))
    weights = rates * counts
    return RateMixture(rates, weights / weights.sum(), within, length)


def mix_quantiles(levels: ArrayLike, values: ArrayLike, weights: ArrayLike, quantiles: ArrayLike) -> FloatArray:
    r"""Quantiles of a mixture of laws each known by a table of its own quantiles.

    .. math:: F(x) = \sum_i w_i F_i(x)

    with F_i linear between its table's levels: an exact inversion of the mixture, not an average of percentiles.

    Parameters
    ----------
    levels : array_like, shape (m,)
        Increasing levels of the tables, from near 0 to beyond what is asked [-].
    values : array_like, shape (laws, m)
        Quantiles of each law; rows of inf are laws without a steady state [any unit].
    weights : array_like, shape (laws,)
        Share of each law; normalized here [-].
    quantiles : array_like
        Levels asked [-].

    Returns
    -------
    ndarray
        Quantiles of the mixture; inf where the unstable share reaches beyond the level [the same unit].

    Examples
    --------
    >>> mix_quantiles([0.0, 1.0], [[0.0, 1.0], [1.0, 2.0]], [1.0, 1.0], [0.25, 0.75]).tolist()
    [0.5, 1.5]
    """
    q = np.asarray(levels, dtype=float)
    table = np.atleast_2d(np.asarray(values, dtype=float))
    w = np.asarray(weights, dtype=float)
    asked = np.atleast_1d(np.asarray(quantiles, dtype=float))
    if q.ndim != 1 or len(q) < 2 or np.any(np.diff(q) <= 0) or q[0] < 0 or q[-1] > 1:
        raise ValueError("levels must increase within [0, 1]")
    if table.shape != (len(w), len(q)) or np.any(np.isnan(table)):
        raise ValueError(f"values must have one row per weight and one column per level, not shape {table.shape}")
    if np.any(~(w >= 0)) or not np.all(np.isfinite(w)) or w.sum() <= 0:
        raise ValueError("weights must be >= 0, finite and not all 0")
    if np.any(~((asked >= 0) & (asked <= 1))):
        raise ValueError(f"quantiles must be in [0, 1], not {quantiles!r}")
    w = w / w.sum()
    finite = np.all(np.isfinite(table), axis=1)
    share = float(w[finite].sum())
    result = np.full(asked.shape, np.inf)
    # what lies above a table's last level is put at its last value
    mass = np.diff(np.concatenate(([0.0], q[1:])))
    mass[-1] += 1.0 - q[-1]
    reached = asked < share if share < 1.0 else np.ones(asked.shape, dtype=bool)
    if share > 0 and np.any(reached):
        rows = table[finite]
        weight = np.outer(w[finite], mass)
        result[reached] = mixture_quantiles(
            rows[:, :-1], np.diff(rows, axis=1), weight, np.minimum(asked[reached] / share, 1.0)
        )
    return result


def profile_rates(mean_rate: float, profile: ArrayLike) -> FloatArray:
    """Rates of an hourly profile, scaled to a mean.

    Parameters
    ----------
    mean_rate : float
        Mean rate over the profile [1/s].
    profile : array_like
        Relative rates, one per hour; their mean need not be 1 [-].

    Returns
    -------
    ndarray
        One rate per hour [1/s].

    Examples
    --------
    >>> profile_rates(10.0, [1.0, 3.0]).tolist()
    [5.0, 15.0]
    """
    shape = np.asarray(profile, dtype=float)
    if (
        shape.ndim != 1
        or len(shape) == 0
        or np.any(~(shape >= 0))
        or not np.all(np.isfinite(shape))
        or shape.sum() <= 0
    ):
        raise ValueError("profile must be >= 0, finite and not all 0")
    if not (math.isfinite(mean_rate) and mean_rate >= 0):
        raise ValueError(f"mean_rate must be >= 0 and finite, not {mean_rate!r}")
    return np.asarray(mean_rate * shape / shape.mean(), dtype=np.float64)


def peak_rate(mean_rate: float, profile: ArrayLike, dispersion: float = 1.0, quantile: float = 0.5) -> float:
    r"""Rate to size the busiest hour for.

    .. math:: \lambda_{peak} = \lambda \max_h f_h + z_q \sqrt{I \lambda_{max} / 3600}

    the busiest hour's mean rate and, for quantile > 1/2, the day-to-day spread its hourly count shows.

    Parameters
    ----------
    mean_rate : float
        Mean rate over the profile [1/s].
    profile : array_like
        Relative rates per hour [-].
    dispersion : float
        Index of dispersion of the counts over an hour, within the same hour of different days [-].
    quantile : float
        Share of the busiest hours that stay below; in (0, 1) [-].

    Returns
    -------
    float
        Rate [1/s].

    Examples
    --------
    >>> peak_rate(10.0, [1.0, 3.0])
    15.0
    """
    if not 0 < quantile < 1:
        raise ValueError(f"quantile must be in (0, 1), not {quantile!r}")
    if not (math.isfinite(dispersion) and dispersion >= 0):
        raise ValueError(f"dispersion must be >= 0 and finite, not {dispersion!r}")
    busiest = float(profile_rates(mean_rate, profile).max())
    if quantile == 0.5:
        return busiest
    from statistics import NormalDist

    return max(busiest + NormalDist().inv_cdf(quantile) * math.sqrt(dispersion * busiest / 3600.0), 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class ProfileSizing:
    """Replicas hour by hour.

    Attributes
    ----------
    rates : ndarray
        Rate of each hour [1/s].
    replicas : ndarray of int
        Smallest pool of each hour [replicas].
    peak : int
        Pool that serves every hour [replicas].
    mean : float
        Mean of the hourly pools: what following the hours would cost [replicas].
    """

    rates: FloatArray
    replicas: NDArray[np.int64]
    peak: int
    mean: float


def size_for_profile(mean_rate: float, profile: ArrayLike, smallest: Callable[[float], int]) -> ProfileSizing:
    """Smallest pool for each hour of a profile, and for the busiest.

    Parameters
    ----------
    mean_rate : float
        Mean rate over the profile [1/s].
    profile : array_like
        Relative rates per hour [-].
    smallest : callable
        Smallest number of replicas that keeps the promises at a rate [1/s] -> [replicas].

    Returns
    -------
    ProfileSizing
        Hourly and peak pools.

    Examples
    --------
    >>> day = size_for_profile(10.0, [0.5, 1.0, 1.5], lambda rate: math.ceil(rate / 4.0))
    >>> day.replicas.tolist(), day.peak, round(day.mean, 2)
    ([2, 3, 4], 4, 3.0)
    """
    rates = profile_rates(mean_rate, profile)
    known = {rate: int(smallest(rate)) for rate in sorted({float(r) for r in rates})}
    replicas = np.array([known[float(rate)] for rate in rates], dtype=np.int64)
    return ProfileSizing(rates, replicas, int(replicas.max()), float(replicas.mean()))
