"""Erlang's formulas for any real number of servers, their logarithm, and their inverse, in O(1).

Everything rests on two factors of Erlang B. With ``c`` servers and offered load ``a``

    B(c, a) = pi(c; a) / Q(c + 1, a),      pi(c; a) = a^c e^-a / Gamma(c + 1)

the Poisson density ``pi`` in its saddle-point form ``exp(-c phi(1 - a/c) - s(c)) / sqrt(2 pi c)``, which loses nothing
at ``c = 1e7`` where a difference of log-gammas loses nine digits, and the regularized incomplete gamma function ``Q``,
which lies between 1/2 and 1 whenever ``a < c``. ``Q`` comes from `scipy.special.gammaincc` within four standard
deviations of ``a = c`` and from a continued fraction outside, where SciPy's power series stops after 2,000 terms (an
error of 1e-7 near ``c = 1e7``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from planner.shared.mathematics import need

type_array = npt.NDArray[np.float64]

# |a - c| / sqrt(c) below which gammaincc is used: SciPy's uniform asymptotic series, exact to rounding, ends at 4.5.
_NEAR = 4.0
# Levels of the continued fractions: at 4 standard deviations 12 leave 4e-9 of a correction that is itself < 3e-5.
_LEVELS_BELOW = 12
# Stirling's series s(c) = 1/(12 c) - 1/(360 c^3) + ...: six terms reach 1e-17 from c = 16; below, log Gamma is used.
_STIRLING_FROM = 16.0
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_HALF_LOG_TWO_PI = 0.918938533204672741780329736406


def _checked(servers: npt.ArrayLike, offered_load: npt.ArrayLike) -> tuple[type_array, type_array]:
    """Both arguments as float arrays of one shape; ValueError names the one that is not in its domain."""
    c = np.asarray(servers, dtype=np.float64)
    a = np.asarray(offered_load, dtype=np.float64)
    need(np.all((c >= 1.0) & np.isfinite(c)), f"servers must be finite and >= 1, got {servers!r}")
    need(np.all((a >= 0.0) & np.isfinite(a)), f"offered_load must be finite and >= 0, got {offered_load!r}")
    c, a = np.broadcast_arrays(c, a)
    return c, a


def as_result(values: type_array) -> Any:
    """A Python float for a zero-dimensional array, else the array."""
    return float(values) if values.ndim == 0 else values


def _phi(slack: type_array, load: type_array) -> type_array:
    """-log(1 - d) - d for 0 <= d < 1 (and d < 0), without the cancellation at small d, nor that of 1 - d, the `load`, near 1.

    With v = d / (2 - d): log(1 - d) = -2 artanh(v), so phi = d v + 2 v^3 (1/3 + v^2/5 + ...).
    """
    v = slack / (2.0 - slack)
    square = v * v
    series = np.full_like(v, 1 / 25)
    for odd in range(23, 1, -2):
        series = series * square + 1 / odd
    near = slack * v + 2.0 * v * square * series
    with np.errstate(divide="ignore"):
        far = -np.log(load) - slack
    return np.where(np.abs(slack) < 0.3, near, far)


def _log_poisson(c: type_array, a: type_array, slack: type_array) -> type_array:
    """log(a^c e^-a / Gamma(c + 1)) with slack = (c - a)/c; -inf at a = 0."""
    inverse = 1.0 / np.maximum(c, _STIRLING_FROM)
    square = inverse * inverse
    stirling = np.full_like(c, _STIRLING[-1])
    for coefficient in _STIRLING[-2::-1]:
        stirling = stirling * square + coefficient
    out: type_array = -c * _phi(slack, a / c) - stirling * inverse - 0.5 * np.log(c) - _HALF_LOG_TWO_PI
    small = c < _STIRLING_FROM
    if small.any():
        from scipy.special import gammaln, xlogy

        cs, at = c[small], a[small]
        out[small] = xlogy(cs, at) - at - gammaln(cs + 1.0)
    return out


def _log_poisson_and_tail(c: type_array, a: type_array, slack: type_array) -> tuple[type_array, type_array]:
    """log pi(c; a) and Q(c + 1, a) for a <= c (flat arrays)."""
    log_pi = _log_poisson(c, a, slack)
    near = slack * np.sqrt(c) < _NEAR
    tail = np.empty_like(c)
    if near.any():
        from scipy.special import gammaincc

        tail[near] = gammaincc(c[near] + 1.0, a[near])
    far = ~near
    if far.any():
        # P(s, a) = a^s e^-a / Gamma(s) / (s - s a/(s+1 + a/(s+2 - (s+1) a/(s+3 + 2a/(s+4 - ...))))), s = c + 1
        s, x = c[far] + 1.0, a[far]
        fraction = s + 2 * _LEVELS_BELOW
        for m in range(_LEVELS_BELOW, 0, -1):
            fraction = s + (2 * m - 1) + m * x / fraction
            fraction = s + (2 * m - 2) - (s + (m - 1)) * x / fraction
        tail[far] = 1.0 - np.exp(log_pi[far]) * x / fraction
    return log_pi, tail


def _log_c(c: type_array, a: type_array) -> type_array:
    """log of Erlang C for flat arrays with c >= 1; 0 where a >= c."""
    slack = np.maximum((c - a) / c, 0.0)
    log_pi, tail = _log_poisson_and_tail(c, np.minimum(a, c), slack)
    # C = B / (1 - rho (1 - B)) = pi / (slack Q + rho pi), 1 - C = slack (Q - pi) / (same): every term is positive, so
    # neither cancels; the second keeps ln C to full relative precision where C is near 1
    with np.errstate(under="ignore"):
        pi = np.exp(log_pi)
        below = slack * tail + (1.0 - slack) * pi
        log_wait = log_pi - np.log(below)
        log_wait = np.where(log_wait > -0.7, np.log1p(-np.minimum(slack * (tail - pi) / below, 0.6)), log_wait)
    out: type_array = np.where(a < c, log_wait, 0.0)
    return out


def erlang_c(servers: npt.ArrayLike, offered_load: npt.ArrayLike) -> Any:
    r"""Probability that an arrival has to wait in M/M/c (Erlang C).

    .. math:: C(c, a) = \frac{B}{1 - \rho (1 - B)}, \qquad \rho = a / c, \quad B = B(c, a)

    Parameters
    ----------
    servers : float or array
        Number of servers c, real [servers]; >= 1. Broadcasts with `offered_load`.
    offered_load : float or array
        Arrival rate times mean service time a [Erlang]; >= 0.

    Returns
    -------
    float or array
        Probability of waiting [1], of the broadcast shape; 1.0 where `offered_load` >= `servers` (unstable: everybody
        waits). Relative error < 1e-11 for c <= 1e7; below 1e-308 it underflows to 0, where `log_erlang_c` goes on.

    Raises
    ------
    ValueError
        If `servers` < 1 or `offered_load` < 0, or either is not finite.

    References
    ----------
    A. K. Erlang (1917). W. Whitt, Management Science 38 (1992) 708 (doi:10.1287/mnsc.38.5.708).

    Examples
    --------
    >>> round(erlang_c(2, 1.0), 15)
    0.333333333333333
    >>> erlang_c([1, 8], [0.5, 9.0])
    array([0.5, 1. ])
    """
    c, a = _checked(servers, offered_load)
    with np.errstate(under="ignore"):
        return as_result(np.exp(_log_c(c.ravel(), a.ravel())).reshape(c.shape))


def log_erlang_c(servers: npt.ArrayLike, offered_load: npt.ArrayLike) -> Any:
    r"""Natural logarithm of `erlang_c`, which stays finite where the probability underflows.

    .. math:: \ln C(c, a) = \ln\pi(c; a) - \ln\left[(1-\rho)\, Q(c+1, a) + \rho\, \pi(c; a)\right]

    Parameters
    ----------
    servers : float or array
        Number of servers c, real [servers]; >= 1. Broadcasts with `offered_load`.
    offered_load : float or array
        Arrival rate times mean service time a [Erlang]; >= 0.

    Returns
    -------
    float or array
        ln P(wait) [1], <= 0, of the broadcast shape; 0.0 where `offered_load` >= `servers`, -inf at `offered_load` = 0.

    Raises
    ------
    ValueError
        If `servers` < 1 or `offered_load` < 0, or either is not finite.

    References
    ----------
    As `erlang_c`; the saddle-point form of the Poisson density is C. Loader, *Fast and accurate computation of binomial
    probabilities* (2000).

    Examples
    --------
    >>> round(log_erlang_c(10_000, 5_000), 6)
    -1936.302775
    """
    c, a = _checked(servers, offered_load)
    return as_result(_log_c(c.ravel(), a.ravel()).reshape(c.shape))


# The inverse ------------------------------------------------------------


def smallest_multiple(
    unit: type_array, offered_load: type_array, decay: type_array, log_tail: type_array
) -> type_array:
    """Smallest whole n with ln C(n unit, a) - decay (n unit - a) <= log_tail and n unit > a.

    The left side falls beyond saturation: n is bracketed from there in steps that double, then halved. Flat; no checks.
    """

    def fails(n: type_array, at: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        a, c = offered_load[at], n * unit[at]
        # not unstable, nor waiting longer
        out: npt.NDArray[np.bool_] = ~((c > a) & (_log_c(c, a) - decay[at] * (c - a) <= log_tail[at]))
        return out

    low = np.floor(offered_load / unit)
    low -= low * unit > offered_load
    high, step = low + 1.0, 1.0
    walking = np.arange(low.size)
    while (walking := walking[fails(high[walking], walking)]).size:
        low[walking] = high[walking]
        high[walking] += step
        step *= 2.0
    while (open_ := np.flatnonzero(high - low > 1.0)).size:
        middle = np.floor(0.5 * (low[open_] + high[open_]))
        short = fails(middle, open_)
        low[open_[short]], high[open_[~short]] = middle[short], middle[~short]
    return high
