r"""Waiting times of M/G/c: published approximations side by side, the exact cases, and their conservative maximum.

Every approximation takes the same leading arguments ``(arrival_rate, service_time, servers, service_scv)``, then the
quantile, and the keyword `law`. With a `law` (`planner.queueing.service.ServiceLaw`, any shape) its moments replace
`service_scv`; the methods that use the whole distribution assume one from the two moments when it is absent (gamma
below scv 1, balanced-mean H2 above): two moments do not determine the wait, so that assumption is part of the answer.
`wait_quantile` and `mean_wait` choose by name, the conservative maximum by default; `METHODS` holds what each method
claims, `wait_methods` lists those that claim to be valid at a point.

All return 0 without load, inf where ``arrival_rate * service_time >= servers``, and never NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.queueing.erlang import (
    as_result,
    decay_rate,
    erlang_c,
    log_erlang_c,
    smallest_integer,
    smallest_real_servers,
)
from planner.queueing.exact import LIMIT_PHASE_SERVERS, deterministic_wait, phase_type_wait
from planner.queueing.service import ServiceLaw, TwoPhases

__all__ = [
    "METHODS",
    "MethodRange",
    "mean_wait",
    "mean_wait_cosmetatos",
    "mean_wait_exact",
    "mean_wait_fleetopt",
    "mean_wait_kimura",
    "mean_wait_tijms",
    "mean_wait_whitt",
    "min_replicas",
    "wait_methods",
    "wait_probability",
    "wait_quantile",
    "wait_quantile_cosmetatos",
    "wait_quantile_exact",
    "wait_quantile_fleetopt",
    "wait_quantile_kimura",
    "wait_quantile_tijms",
    "wait_quantile_whitt",
]

type_array = npt.NDArray[np.float64]
# What a method with the full law computes for one queue, in mean service times: P(wait), mean wait, quantiles
type_solution = tuple[float, float, type_array]

# Servers up to which the conservative maximum also solves the two-phase queue with the law's first three moments:
# the approximations that take Erlang C for P(wait) are up to 1.8 % optimistic there and nowhere else.
_MATCHED_SERVERS = 16
# Largest number of servers at which M/D/c is solved itself; above, it is scaled at equal (1 - rho) sqrt(c).
_DETERMINISTIC_SERVERS = 2048
# Points of the lattice of the compound geometric law: 1e-4 of the quantile or better.
_LATTICE = 1 << 12


# Arguments ------------------------------------------------------------


def _leading(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike,
    quantile: npt.ArrayLike = 0.0,
    law: ServiceLaw | None = None,
) -> tuple[type_array, type_array, type_array, type_array, type_array]:
    """The leading arguments as float arrays of one shape; ValueError names the one outside its domain."""
    lam, s, c, scv, q = np.broadcast_arrays(
        *(
            np.asarray(x, dtype=np.float64)
            for x in (arrival_rate, service_time, servers, service_scv if law is None else law.scv, quantile)
        )
    )
    for name, value, good in (
        ("arrival_rate", arrival_rate, (lam >= 0.0) & np.isfinite(lam)),
        ("service_time", service_time, (s > 0.0) & np.isfinite(s)),
        ("servers", servers, (c >= 1.0) & np.isfinite(c)),
        ("service_scv", service_scv, (scv >= 0.0) & np.isfinite(scv)),
        ("quantile", quantile, (q >= 0.0) & (q < 1.0)),
    ):
        if not good.all():
            raise ValueError(f"{name} is outside its domain: {value!r}")
    return lam, s, c, scv, q


def _markovian(lam: type_array, s: type_array, c: type_array) -> tuple[type_array, type_array, type_array]:
    """Offered load, ln C and the mean wait of M/M/c; inf where unstable."""
    a = lam * s
    log_wait = np.asarray(log_erlang_c(c, np.minimum(a, 1e300)))
    slack = c - a
    with np.errstate(divide="ignore", under="ignore"):
        mean = np.where(slack > 0.0, np.exp(log_wait) * s / np.where(slack > 0.0, slack, 1.0), np.inf)
    return a, log_wait, mean


def _deterministic_excess(c: type_array, a: type_array) -> type_array:
    r"""xi of Cosmetatos: E[W](M/D/c) = (1 + xi)/2 E[W](M/M/c), xi = (1-rho)(c-1)(sqrt(4+5c)-2)/(16 rho c)."""
    rho = a / c
    with np.errstate(divide="ignore", invalid="ignore"):
        xi = (1.0 - rho) * (c - 1.0) * (np.sqrt(4.0 + 5.0 * c) - 2.0) / (16.0 * rho * c)
    # the polynomial was fitted for rho > 0.3 or so; an M/D/c queue never waits longer than M/M/c, so xi <= 1
    return np.where(rho > 0.0, np.clip(xi, 0.0, 1.0), 1.0)


def _exponential_tail(log_wait: type_array, conditional_mean: type_array, q: type_array) -> type_array:
    """Quantile of a wait that is 0 with probability 1 - C and exponential otherwise; inf where its mean is."""
    with np.errstate(invalid="ignore"):
        excess = np.maximum(log_wait - np.log1p(-q), 0.0)
        return np.where(np.isfinite(conditional_mean), excess * np.where(excess > 0.0, conditional_mean, 0.0), np.inf)


# Two moments ------------------------------------------------------------


def wait_probability(arrival_rate: npt.ArrayLike, service_time: npt.ArrayLike, servers: npt.ArrayLike) -> Any:
    r"""Probability of waiting that the approximations of M/G/c share: Erlang C.

    .. math:: P(W > 0) \approx C(c, \lambda E[S])

    Parameters
    ----------
    arrival_rate : float or array
        Poisson arrival rate lambda [1/s]; >= 0. All arguments broadcast.
    service_time : float or array
        Mean service time E[S] [s]; > 0.
    servers : float or array
        Number of servers c, real [servers]; >= 1.

    Returns
    -------
    float or array
        Probability [1]; 1 where unstable. Exact for M/M/c and for one server; with C_s^2 above 1 up to 20 % low (few
        busy servers, a light third moment), with C_s^2 below 1 up to 10 % high.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    References
    ----------
    H. C. Tijms, *A First Course in Stochastic Models* (Wiley 2003), section 9.6.

    Examples
    --------
    >>> round(wait_probability(1.0, 1.0, 2), 12)
    0.333333333333
    """
    lam, s, c, _, _ = _leading(arrival_rate, service_time, servers, 1.0)
    return erlang_c(c, np.minimum(lam * s, 1e300))


def mean_wait_fleetopt(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    *,
    law: ServiceLaw | None = None,
) -> Any:
    r"""Mean wait of Lee and Longton, the mean that belongs to FleetOpt's tail.

    .. math:: E[W] = \frac{1 + C_s^2}{2}\, E[W]_{M/M/c}

    Parameters
    ----------
    arrival_rate : float or array
        Poisson arrival rate lambda [1/s]; >= 0. All arguments broadcast.
    service_time : float or array
        Mean service time E[S] = 1/mu [s]; > 0.
    servers : float or array
        Number of servers c, real [servers]; >= 1.
    service_scv : float or array
        Squared coefficient of variation of the service time C_s^2 [1]; >= 0. Replaced by that of `law` when given.
    law : ServiceLaw, optional
        The whole service law; scaled to `service_time`.

    Returns
    -------
    float or array
        Mean wait in the queue [s]; inf where lambda E[S] >= c. Exact for c = 1
        (Pollaczek-Khinchine) and for M/M/c.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    References
    ----------
    A. M. Lee and P. A. Longton, Oper. Res. Quart. 10 (1959) 56.

    Examples
    --------
    >>> round(mean_wait_fleetopt(0.5, 1.0, 1, 0.0), 9)
    0.5
    """
    lam, s, c, scv, _ = _leading(arrival_rate, service_time, servers, service_scv, law=law)
    _, _, markovian = _markovian(lam, s, c)
    return as_result(0.5 * (1.0 + scv) * markovian)


def wait_quantile_fleetopt(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    quantile: npt.ArrayLike = 0.99,
    *,
    law: ServiceLaw | None = None,
) -> Any:
    r"""Wait quantile of FleetOpt: the Erlang-C tail with a two-moment decay rate (eq. 6).

    .. math:: W_q = \max\left\{0, \frac{\ln[C(c, a)/(1-q)]\,(1 + C_s^2)}{2 (c \mu - \lambda)}\right\}

    Parameters
    ----------
    arrival_rate : float or array
        Poisson arrival rate lambda [1/s]; >= 0. All arguments broadcast.
    service_time : float or array
        Mean service time E[S] = 1/mu [s]; > 0.
    servers : float or array
        Number of servers c, real [servers]; >= 1.
    service_scv : float or array
        Squared coefficient of variation of the service time C_s^2 [1]; >= 0. Replaced by that of `law` when given.
    quantile : float or array
        Quantile q [1]; 0 <= q < 1.
    law : ServiceLaw, optional
        The whole service law; scaled to `service_time`.

    Returns
    -------
    float or array
        Waiting time in the queue [s]; 0 where P(wait) <= 1 - q, inf where lambda E[S] >= c. Exact for M/M/c.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    References
    ----------
    FleetOpt, eq. 6. Up to 63 % optimistic with few servers and a heavy third moment, and with C_s^2 < 1 and eight
    servers or more; several times pessimistic where P(wait) is small.

    Examples
    --------
    >>> round(wait_quantile_fleetopt(90.0, 1.0, 100, 1.0), 6)
    0.307704
    """
    lam, s, c, scv, q = _leading(arrival_rate, service_time, servers, service_scv, quantile, law=law)
    a, log_wait, _ = _markovian(lam, s, c)
    slack = c - a
    conditional = np.where(slack > 0.0, 0.5 * (1.0 + scv) * s / np.where(slack > 0.0, slack, 1.0), np.inf)
    return as_result(_exponential_tail(log_wait, conditional, q))


def mean_wait_cosmetatos(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    *,
    law: ServiceLaw | None = None,
) -> Any:
    r"""Mean wait of Cosmetatos: between M/M/c and M/D/c.

    .. math:: E[W] = C_s^2 E[W]_{M/M/c} + (1 - C_s^2) E[W]_{M/D/c}, \qquad
        E[W]_{M/D/c} = \tfrac12 (1 + \xi) E[W]_{M/M/c}, \quad
        \xi = (1-\rho)(c-1)\frac{\sqrt{4+5c}-2}{16 \rho c}

    Parameters
    ----------
    arrival_rate : float or array
        Poisson arrival rate lambda [1/s]; >= 0. All arguments broadcast.
    service_time : float or array
        Mean service time E[S] = 1/mu [s]; > 0.
    servers : float or array
        Number of servers c, real [servers]; >= 1.
    service_scv : float or array
        Squared coefficient of variation of the service time C_s^2 [1]; >= 0. Replaced by that of `law` when given.
    law : ServiceLaw, optional
        The whole service law; scaled to `service_time`.

    Returns
    -------
    float or array
        Mean wait in the queue [s]; inf where lambda E[S] >= c. Exact for c = 1 and
        for M/M/c.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    References
    ----------
    G. P. Cosmetatos, Oper. Res. Quart. 27 (1976) 615 (doi:10.1057/jors.1976.124). xi is kept in [0, 1].

    Examples
    --------
    >>> round(mean_wait_cosmetatos(3.4, 1.0, 4, 0.0), 4)
    0.5882
    """
    lam, s, c, scv, _ = _leading(arrival_rate, service_time, servers, service_scv, law=law)
    a, _, markovian = _markovian(lam, s, c)
    deterministic = 0.5 * (1.0 + _deterministic_excess(c, a))
    with np.errstate(invalid="ignore"):
        # above C_s^2 = 1 the extrapolation falls below M/D/c and then below 0 where xi > 0: not below M/M/c
        return as_result(
            markovian
            * np.where(
                scv <= 1.0, scv + (1.0 - scv) * deterministic, np.maximum(scv - (scv - 1.0) * deterministic, 1.0)
            )
        )


def wait_quantile_cosmetatos(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    quantile: npt.ArrayLike = 0.99,
    *,
    law: ServiceLaw | None = None,
) -> Any:
    r"""Wait quantile from Cosmetatos' mean: an exponential wait of those who wait.

    .. math:: W_q = \frac{E[W]_{Cosmetatos}}{C} \ln\frac{C}{1-q}

    Parameters
    ----------
    arrival_rate : float or array
        Poisson arrival rate lambda [1/s]; >= 0. All arguments broadcast.
    service_time : float or array
        Mean service time E[S] = 1/mu [s]; > 0.
    servers : float or array
        Number of servers c, real [servers]; >= 1.
    service_scv : float or array
        Squared coefficient of variation of the service time C_s^2 [1]; >= 0. Replaced by that of `law` when given.
    quantile : float or array
        Quantile q [1]; 0 <= q < 1.
    law : ServiceLaw, optional
        The whole service law; scaled to `service_time`.

    Returns
    -------
    float or array
        Waiting time in the queue [s]; 0 where P(wait) <= 1 - q, inf where lambda E[S] >= c. Exact for M/M/c.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    References
    ----------
    As `mean_wait_cosmetatos`.

    Examples
    --------
    >>> round(wait_quantile_cosmetatos(3.4, 1.0, 4, 0.0), 4)
    3.6122
    """
    lam, s, c, scv, q = _leading(arrival_rate, service_time, servers, service_scv, quantile, law=law)
    mean = np.asarray(mean_wait_cosmetatos(lam, s, c, scv))
    return as_result(_exponential_from_mean(lam, s, c, mean, q))


def mean_wait_kimura(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    *,
    law: ServiceLaw | None = None,
) -> Any:
    r"""Mean wait of Kimura: the harmonic interpolation between M/M/c and M/D/c.

    .. math:: E[W] = (1 + C_s^2) \left[\frac{1 - C_s^2}{E[W]_{M/D/c}} + \frac{2 C_s^2}{E[W]_{M/M/c}}\right]^{-1}

    with Cosmetatos' :math:`E[W]_{M/D/c}` (`mean_wait_cosmetatos`).

    Parameters
    ----------
    arrival_rate : float or array
        Poisson arrival rate lambda [1/s]; >= 0. All arguments broadcast.
    service_time : float or array
        Mean service time E[S] = 1/mu [s]; > 0.
    servers : float or array
        Number of servers c, real [servers]; >= 1.
    service_scv : float or array
        Squared coefficient of variation of the service time C_s^2 [1]; >= 0. Replaced by that of `law` when given.
    law : ServiceLaw, optional
        The whole service law; scaled to `service_time`.

    Returns
    -------
    float or array
        Mean wait in the queue [s]; inf where lambda E[S] >= c. Exact for c = 1 and
        for M/M/c. Made for C_s^2 <= 1.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    References
    ----------
    T. Kimura, Oper. Res. 34 (1986) 72 (doi:10.1287/opre.34.1.72), with Poisson arrivals.

    Examples
    --------
    >>> round(mean_wait_kimura(3.4, 1.0, 4, 0.5), 4)
    0.8719
    """
    lam, s, c, scv, _ = _leading(arrival_rate, service_time, servers, service_scv, law=law)
    a, _, markovian = _markovian(lam, s, c)
    deterministic = 0.5 * (1.0 + _deterministic_excess(c, a))
    return as_result(markovian * (1.0 + scv) / ((1.0 - scv) / deterministic + 2.0 * scv))


def wait_quantile_kimura(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    quantile: npt.ArrayLike = 0.99,
    *,
    law: ServiceLaw | None = None,
) -> Any:
    r"""Wait quantile from Kimura's mean: an exponential wait of those who wait.

    .. math:: W_q = \frac{E[W]_{Kimura}}{C} \ln\frac{C}{1-q}

    Parameters
    ----------
    arrival_rate : float or array
        Poisson arrival rate lambda [1/s]; >= 0. All arguments broadcast.
    service_time : float or array
        Mean service time E[S] = 1/mu [s]; > 0.
    servers : float or array
        Number of servers c, real [servers]; >= 1.
    service_scv : float or array
        Squared coefficient of variation of the service time C_s^2 [1]; >= 0. Replaced by that of `law` when given.
    quantile : float or array
        Quantile q [1]; 0 <= q < 1.
    law : ServiceLaw, optional
        The whole service law; scaled to `service_time`.

    Returns
    -------
    float or array
        Waiting time in the queue [s]; 0 where P(wait) <= 1 - q, inf where lambda E[S] >= c. Exact for M/M/c.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    References
    ----------
    As `mean_wait_kimura`.

    Examples
    --------
    >>> round(wait_quantile_kimura(3.4, 1.0, 4, 0.5), 4)
    5.3541
    """
    lam, s, c, scv, q = _leading(arrival_rate, service_time, servers, service_scv, quantile, law=law)
    mean = np.asarray(mean_wait_kimura(lam, s, c, scv))
    return as_result(_exponential_from_mean(lam, s, c, mean, q))


def mean_wait_whitt(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    *,
    law: ServiceLaw | None = None,
) -> Any:
    r"""Mean wait of Whitt (1993) with Poisson arrivals.

    .. math:: E[W] = \phi(\rho, 1, C_s^2, c)\, \frac{1 + C_s^2}{2}\, E[W]_{M/M/c}

    with :math:`\phi` of eq. 2.16-2.25 (a light-traffic correction between M/M/c, M/D/c and D/M/c).

    Parameters
    ----------
    arrival_rate : float or array
        Poisson arrival rate lambda [1/s]; >= 0. All arguments broadcast.
    service_time : float or array
        Mean service time E[S] = 1/mu [s]; > 0.
    servers : float or array
        Number of servers c, real [servers]; >= 1.
    service_scv : float or array
        Squared coefficient of variation of the service time C_s^2 [1]; >= 0. Replaced by that of `law` when given.
    law : ServiceLaw, optional
        The whole service law; scaled to `service_time`.

    Returns
    -------
    float or array
        Mean wait in the queue [s]; inf where lambda E[S] >= c. Exact for c = 1 with
        C_s^2 <= 1 and for M/M/c.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    References
    ----------
    W. Whitt, Production and Operations Management 2 (1993) 114 (doi:10.1111/j.1937-5956.1993.tb00094.x).

    Examples
    --------
    >>> round(mean_wait_whitt(3.4, 1.0, 4, 0.0), 4)
    0.5882
    """
    lam, s, c, scv, _ = _leading(arrival_rate, service_time, servers, service_scv, law=law)
    a, _, markovian = _markovian(lam, s, c)
    rho = np.minimum(a / c, 1.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        gamma = (1.0 - rho) * (c - 1.0) * (np.sqrt(4.0 + 5.0 * c) - 2.0) / (16.0 * c * rho)
        gamma = np.where(rho > 0.0, np.minimum(0.24, gamma), 0.24)
        phi_1 = 1.0 + gamma
        phi_3 = np.where(rho > 0.0, (1.0 - 4.0 * gamma) * np.exp(-2.0 * (1.0 - rho) / (3.0 * rho)), 0.0)
        phi_4 = np.minimum(1.0, 0.5 * (phi_1 + phi_3))
        middle = 0.5 * (1.0 + scv)
        psi = np.where(middle >= 1.0, 1.0, phi_4 ** (2.0 * np.maximum(1.0 - middle, 0.0)))
        below = 4.0 * (1.0 - scv) / (4.0 - 3.0 * np.minimum(scv, 1.0)) * phi_1
        below = below + np.minimum(scv, 1.0) / (4.0 - 3.0 * np.minimum(scv, 1.0)) * psi
        above = (scv - 1.0) / (2.0 + 2.0 * scv) * phi_3 + (scv + 3.0) / (2.0 + 2.0 * scv) * psi
        return as_result(np.where(scv <= 1.0, below, above) * middle * markovian)


def wait_quantile_whitt(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    quantile: npt.ArrayLike = 0.99,
    *,
    law: ServiceLaw | None = None,
) -> Any:
    r"""Wait quantile of Whitt (1993) with Poisson arrivals: two moments of the wait of those who wait.

    .. math:: E[D] = \frac{E[W]}{C}, \qquad
        c_D^2 = 2\rho - 1 + \frac{4 (1-\rho)\, E[S^3]/E[S]^3}{3 (1 + C_s^2)^2}

    and D is H2 with balanced means, exponential, hypoexponential or E2 as :math:`c_D^2` asks. Without a law the third
    moment is :math:`3 C_s^2 (1 + C_s^2)` above 1 and :math:`(1 + C_s^2)(1 + 2 C_s^2)` below.

    Parameters
    ----------
    arrival_rate : float or array
        Poisson arrival rate lambda [1/s]; >= 0. All arguments broadcast.
    service_time : float or array
        Mean service time E[S] = 1/mu [s]; > 0.
    servers : float or array
        Number of servers c, real [servers]; >= 1.
    service_scv : float or array
        Squared coefficient of variation of the service time C_s^2 [1]; >= 0. Replaced by that of `law` when given.
    quantile : float or array
        Quantile q [1]; 0 <= q < 1.
    law : ServiceLaw, optional
        The whole service law; scaled to `service_time`.

    Returns
    -------
    float or array
        Waiting time in the queue [s]; 0 where P(wait) <= 1 - q, inf where lambda E[S] >= c. Exact for M/M/c.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    References
    ----------
    As `mean_wait_whitt`, section 4.

    Examples
    --------
    >>> round(wait_quantile_whitt(90.0, 1.0, 100, 1.0), 6)
    0.307704
    """
    lam, s, c, scv, q = _leading(arrival_rate, service_time, servers, service_scv, quantile, law=law)
    a, log_wait, _ = _markovian(lam, s, c)
    mean = np.asarray(mean_wait_whitt(lam, s, c, scv))
    rho = np.minimum(a / c, 1.0)
    third = np.where(scv >= 1.0, 3.0 * scv * (1.0 + scv), (1.0 + scv) * (1.0 + 2.0 * scv)) if law is None else law.third
    delay_scv = 2.0 * rho - 1.0 + 4.0 * (1.0 - rho) * third / (3.0 * (1.0 + scv) ** 2)
    with np.errstate(under="ignore", invalid="ignore"):
        excess = np.maximum(log_wait - np.log1p(-q), 0.0)
        unit = _two_moment_quantile(np.maximum(delay_scv, 0.0), excess)
        conditional = np.where(np.isfinite(mean), mean * np.exp(-np.maximum(log_wait, -700.0)), 0.0)
    return as_result(np.where(a < c, np.where(excess > 0.0, unit * conditional, 0.0), np.inf))


def _exponential_from_mean(
    lam: type_array, s: type_array, c: type_array, mean: type_array, q: type_array
) -> type_array:
    """Quantile when the wait of those who wait is exponential and the wait has this mean."""
    _, log_wait, markovian = _markovian(lam, s, c)
    # mean/C as a multiple of the M/M/c value, so that an underflowing C does no harm
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(np.isfinite(markovian) & (markovian > 0.0), mean / markovian, 1.0)
        slack = c - lam * s
        conditional = np.where(slack > 0.0, ratio * s / np.where(slack > 0.0, slack, 1.0), np.inf)
    return _exponential_tail(log_wait, conditional, q)


def _two_moment_quantile(scv: type_array, log_inverse_tail: type_array) -> type_array:
    """t with P(D > t) = exp(-log_inverse_tail) for the unit-mean law fitted to `scv` (Whitt's choice of families)."""
    with np.errstate(invalid="ignore", divide="ignore", under="ignore"):
        p = 0.5 * (1.0 + np.sqrt(np.maximum(scv - 1.0, 0.0) / (scv + 1.0)))
        # hypoexponential for 1/2 < scv < 1: rates g1 > g2; at 1/2 and below E2
        spread = np.sqrt(np.maximum(2.0 * np.maximum(scv, 0.501) - 1.0, 0.0))
        g1 = 2.0 / np.maximum(1.0 - np.minimum(spread, 0.999), 1e-3)
        g2 = 1.0 / (1.0 - 1.0 / g1)

        def log_survival(t: type_array) -> type_array:
            mixed = np.log(p * np.exp(-2.0 * p * t) + (1.0 - p) * np.exp(-2.0 * (1.0 - p) * t) + 1e-320)
            series = np.log(np.maximum(g1 * np.exp(-g2 * t) - g2 * np.exp(-g1 * t), 1e-320) / (g1 - g2))
            two = np.log1p(2.0 * t) - 2.0 * t
            out: type_array = np.where(scv > 1.01, mixed, np.where(scv >= 0.99, -t, np.where(scv > 0.501, series, two)))
            return out

        low = np.zeros(np.broadcast_shapes(scv.shape, log_inverse_tail.shape))
        # the slowest rate is 2(1 - p) > 1/(1 + scv)
        high = low + (log_inverse_tail + 2.0) * np.maximum(1.0, 1.0 + scv)
        for _ in range(60):
            middle = 0.5 * (low + high)
            above = log_survival(middle) > -log_inverse_tail
            low, high = np.where(above, middle, low), np.where(above, high, middle)
    return 0.5 * (low + high)


# The whole law ------------------------------------------------------------


@lru_cache(maxsize=256)
def _assumed_law(scv: float) -> ServiceLaw:
    return ServiceLaw.from_scv(scv)


def _tijms_conditional(law: ServiceLaw, c: float, rho: float, tails: type_array) -> type_array:
    r"""Quantiles of the wait of those who wait, in mean service times: W | W > 0 = M + R_1 + ... + R_N.

    M is the least of c residual service times, R a residual service time divided by c, N geometric with ratio rho: the
    transform of Tijms, van Hoorn and Federgruen read as a sum. M and R are put on a lattice (R so that its mean is
    kept, M at the midpoints) and the sum is taken by a Fourier transform, damped against wrap-around (Gruebel and
    Hermesmeier). The lattice is refined until it has a few hundred points below the quantile.
    """
    out = np.zeros(tails.shape)
    todo = tails < 1.0
    n = _LATTICE
    damping = np.exp(-20.0 / (2 * n) * np.arange(n))
    residual = 0.5 * (1.0 + law.scv)
    span = max(1.0 - float(np.log(tails.min(initial=1.0))), 1.5) * residual / (c * (1.0 - rho))
    steps = np.arange(n + 1.0)
    for _ in range(60):
        if not todo.any():
            break
        h = span / n
        excess = law.residual_excess(c * h * steps) / c
        mass = np.empty(n)
        mass[0] = 1.0 - (excess[0] - excess[1]) / h
        mass[1:] = np.maximum((excess[:-2] - 2.0 * excess[1:-1] + excess[2:]) / h, 0.0)
        with np.errstate(under="ignore", divide="ignore"):
            least = np.exp(c * np.log(law.residual_survival((steps[:-1] + 0.5) * h)))
            first = -np.diff(least, prepend=1.0)
            ratio = rho * np.fft.rfft(mass * damping, 2 * n)
            total = (1.0 - rho) * np.fft.rfft(first * damping, 2 * n) / (1.0 - ratio)
            law_of_wait = np.fft.irfft(total, 2 * n)[:n] / damping
        survival = np.minimum.accumulate(np.maximum(1.0 - np.cumsum(law_of_wait), 1e-300))
        reached = todo & (tails >= survival[-1])
        if reached.any():
            at = np.concatenate([[0.0], (steps[:-1] + 0.5) * h])
            line = np.log(np.concatenate([[1.0], survival]))
            found = np.interp(-np.log(tails), -line, at)
            fine = reached & (found > span / 16.0)
            out[fine] = found[fine]
            todo &= ~fine
            if not (todo & ~reached).any():
                span = float(found[todo].max(initial=0.0)) * 2.0 or span
                continue
        span *= 4.0
    return out


def _least_residual_mean(law: ServiceLaw, c: float) -> float:
    """E[min of c residual service times] = integral of P(residual > x)^c [mean service times]."""
    if c == 1.0:
        return 0.5 * (1.0 + law.scv)
    nodes, weights = np.polynomial.legendre.leggauss(16)
    edges = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 161)]) / c
    half = 0.5 * np.diff(edges)
    x = edges[:-1, None] + half[:, None] * (nodes + 1.0)
    with np.errstate(under="ignore", divide="ignore"):
        return float(half @ (np.exp(c * np.log(law.residual_survival(x))) @ weights))


def _solve_tijms(law: ServiceLaw, c: float, a: float, q: type_array) -> type_solution:
    rho = a / c
    p_wait = float(erlang_c(c, a))
    mean = p_wait * (_least_residual_mean(law, c) + rho / (1.0 - rho) * 0.5 * (1.0 + law.scv) / c)
    return p_wait, mean, _tijms_quantiles(law, c, rho, p_wait, q)


def _tijms_quantiles(law: ServiceLaw, c: float, rho: float, p_wait: float, q: type_array) -> type_array:
    out = np.zeros(q.shape)
    waits = 1.0 - q < p_wait
    if waits.any():
        out[waits] = _tijms_conditional(law, c, rho, (1.0 - q[waits]) / p_wait)
    return out


def _exact_method(law: ServiceLaw, c: float) -> str | None:
    """Name of the exact solution of M/law/c; None where there is none."""
    if c == 1.0:
        return "one server"
    if law.phases is not None and law.phases == TwoPhases(1.0, 1.0, 1.0):
        return "exponential"
    if c != int(c):
        return None
    if law.name == "deterministic":
        return "deterministic" if c <= _DETERMINISTIC_SERVERS else None
    return "phases" if law.phases is not None and c <= LIMIT_PHASE_SERVERS else None


def _solve_markovian(c: float, a: float, q: type_array) -> type_solution:
    log_wait = float(log_erlang_c(c, a))
    with np.errstate(under="ignore"):
        p_wait = float(np.exp(log_wait))
    return p_wait, p_wait / (c - a), np.maximum(log_wait - np.log1p(-q), 0.0) / (c - a)


def _solve_exact(law: ServiceLaw, c: float, a: float, q: type_array) -> type_solution | None:
    """P(wait), mean and quantiles where they are known exactly, else None."""
    kind = _exact_method(law, c)
    if kind == "one server":
        return _solve_tijms(law, 1.0, a, q)
    if kind == "exponential":
        return _solve_markovian(c, a, q)
    if kind == "deterministic":
        return deterministic_wait(a, int(c), q)
    if kind == "phases" and law.phases is not None:
        return phase_type_wait(a, int(c), law.phases, q)
    return None


def _matched_phases(law: ServiceLaw) -> TwoPhases | None:
    """The H2 law with the first three moments of `law`, or as light a third moment as H2 can have; None below scv 1."""
    if law.scv < 1.05:
        return None
    # for the means x > y of the phases: x + y = total, x y = product from the moments 1, u2 = E S^2/2, u3 = E S^3/6
    u2 = 0.5 * (1.0 + law.scv)
    u3 = max(law.third / 6.0, 1.02 * u2 * u2)
    total = (u3 - u2) / (u2 - 1.0)
    product = total - u2
    root = float(np.sqrt(max(total * total - 4.0 * product, 0.0)))
    x = 0.5 * (total + root)
    y = product / x
    p = (1.0 - y) / (x - y)
    return TwoPhases(p, 1.0 / x, 1.0 / y) if 0.0 < p < 1.0 and y > 0.0 else None


@lru_cache(maxsize=64)
def _deterministic_ratio(c: float, a: float, q: float) -> float:
    """Quantile of M/D/c over that of M/M/c, both in service times; 0 where M/D/c does not wait."""
    rho = a / c
    servers = int(min(max(round(c), 1), _DETERMINISTIC_SERVERS))
    # above the limit the same (1 - rho) sqrt(c), which is what the many-server limit keeps
    slack = min((1.0 - rho) * float(np.sqrt(c / servers)), 0.999) if c > servers else 1.0 - rho
    load = servers * (1.0 - slack)
    tail = min((1.0 - q) * float(np.exp(min(log_erlang_c(servers, load) - log_erlang_c(c, a), 700.0))), 1.0)
    markovian = _solve_markovian(float(servers), load, np.array([1.0 - tail]))[2][0]
    solved = deterministic_wait(load, servers, [1.0 - tail]) if 0.0 < tail < 1.0 else None
    if solved is None or not markovian > 0.0:
        return 0.5 * (1.0 + float(_deterministic_excess(np.asarray(c), np.asarray(a))))
    return float(solved[2][0] / markovian)


def _solve_conservative(law: ServiceLaw, c: float, a: float, q: type_array) -> type_solution:
    """Exact where that is known, else the largest of the approximations, bounded by the exact wait of fewer servers."""
    exact = _solve_exact(law, c, a, q)
    if exact is not None:
        return exact
    p_wait, mean, waits = _solve_tijms(law, c, a, q)
    mean = max(mean, float(mean_wait_fleetopt(a, 1.0, c, law.scv)), float(mean_wait_cosmetatos(a, 1.0, c, law.scv)))
    waits = np.maximum(waits, wait_quantile_fleetopt(a, 1.0, c, law.scv, q))
    waits = np.maximum(waits, wait_quantile_cosmetatos(a, 1.0, c, law.scv, q))
    if law.scv < 1.0:
        # with many servers a short wait sees few departures, whose spacing is nearly Poisson whatever the law: Tijms'
        # interpolation between the exact quantiles of M/D/c and M/M/c, where the two-moment forms are 10 % optimistic
        markovian = _solve_markovian(c, a, q)[2]
        share = np.array(
            [_deterministic_ratio(c, a, float(x)) if w > 0.0 else 1.0 for x, w in zip(q, markovian, strict=True)]
        )
        waits = np.maximum(waits, markovian * (law.scv + (1.0 - law.scv) * share))
    matched = _matched_phases(law) if c <= _MATCHED_SERVERS and c == int(c) else None
    if matched is not None:
        # P(wait) exceeds Erlang C where few servers meet a heavy tail
        like = phase_type_wait(a, int(c), matched, q)
        p_wait, mean = max(p_wait, like[0]), max(mean, like[1])
        waits = np.maximum(waits, like[2])
        waits = np.maximum(waits, _tijms_quantiles(law, c, a / c, p_wait, q))
    if law.phases is not None and c > LIMIT_PHASE_SERVERS > a:
        fewer = phase_type_wait(a, LIMIT_PHASE_SERVERS, law.phases, q)
        p_wait, mean, waits = min(p_wait, fewer[0]), min(mean, fewer[1]), np.minimum(waits, fewer[2])
    return p_wait, mean, waits


def _over_queues(
    solve: Callable[[ServiceLaw, float, float, type_array], type_solution | None],
    lam: type_array,
    s: type_array,
    c: type_array,
    scv: type_array,
    q: type_array,
    law: ServiceLaw | None,
) -> tuple[type_array, type_array]:
    """Mean wait and quantile [s] of every element: one solution per distinct queue, all its quantiles at once."""
    mean, waits = np.zeros(lam.size), np.zeros(lam.size)
    queues: dict[tuple[float, float, float], list[int]] = {}
    for i, key in enumerate(zip(c.flat, (lam * s).flat, scv.flat, strict=True)):
        queues.setdefault(key, []).append(i)
    levels = q.ravel()
    for (servers, load, variation), members in queues.items():
        if load >= servers:
            mean[members], waits[members] = np.inf, np.inf
        elif load > 0.0:
            # a load so small that nobody waits in double precision is no load
            solution = solve(
                law or _assumed_law(float(variation)), float(servers), max(float(load), 1e-12), levels[members]
            )
            if solution is None:
                raise ValueError("servers: no exact solution for this law and number of servers")
            mean[members], waits[members] = solution[1], solution[2]
    with np.errstate(over="ignore"):
        return (mean * s.ravel()).reshape(lam.shape), (waits * s.ravel()).reshape(lam.shape)


def mean_wait_tijms(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    *,
    law: ServiceLaw | None = None,
) -> Any:
    r"""Mean wait of Tijms, van Hoorn and Federgruen, from the whole service law.

    .. math:: E[W] = C \left[\int_0^\infty (1 - B_e(t))^c\, dt
        + \frac{\rho}{1-\rho} \frac{(1 + C_s^2) E[S]}{2 c}\right]

    with :math:`B_e` the residual (equilibrium) service law.

    Parameters
    ----------
    arrival_rate : float or array
        Poisson arrival rate lambda [1/s]; >= 0. All arguments broadcast.
    service_time : float or array
        Mean service time E[S] = 1/mu [s]; > 0.
    servers : float or array
        Number of servers c, real [servers]; >= 1.
    service_scv : float or array
        Squared coefficient of variation of the service time C_s^2 [1]; >= 0. Replaced by that of `law` when given.
    law : ServiceLaw, optional
        The whole service law; scaled to `service_time`.

    Returns
    -------
    float or array
        Mean wait in the queue [s]; inf where lambda E[S] >= c. Exact for c = 1 and
        for M/M/c.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    References
    ----------
    H. C. Tijms, M. H. van Hoorn and A. Federgruen, Adv. Appl. Prob. 13 (1981) 186 (doi:10.2307/1426474); Tijms,
    *A First Course in Stochastic Models* (2003), eq. 9.6.23.

    Examples
    --------
    >>> round(mean_wait_tijms(0.5, 1.0, 1, 4.0), 9)
    2.5
    """
    lam, s, c, scv, _ = _leading(arrival_rate, service_time, servers, service_scv, law=law)
    return as_result(_over_queues(_solve_tijms, lam, s, c, scv, np.zeros(lam.shape), law)[0])


def wait_quantile_tijms(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    quantile: npt.ArrayLike = 0.99,
    *,
    law: ServiceLaw | None = None,
) -> Any:
    r"""Wait quantile of Tijms, van Hoorn and Federgruen, from the whole service law.

    .. math:: E[e^{-sW} \mid W > 0] = \frac{(1-\rho)\, m(s)}{1 - \rho\, r(s)}, \quad
        m: \text{least of } c \text{ residuals}, \quad r: \text{a residual divided by } c

    (their generating function of the queue through the distributional form of Little's law), and P(wait) Erlang C.

    Parameters
    ----------
    arrival_rate : float or array
        Poisson arrival rate lambda [1/s]; >= 0. All arguments broadcast.
    service_time : float or array
        Mean service time E[S] = 1/mu [s]; > 0.
    servers : float or array
        Number of servers c, real [servers]; >= 1.
    service_scv : float or array
        Squared coefficient of variation of the service time C_s^2 [1]; >= 0. Replaced by that of `law` when given.
    quantile : float or array
        Quantile q [1]; 0 <= q < 1.
    law : ServiceLaw, optional
        The whole service law; scaled to `service_time`.

    Returns
    -------
    float or array
        Waiting time in the queue [s]; 0 where P(wait) <= 1 - q, inf where lambda E[S] >= c. Exact for c = 1 and
        for M/M/c; computed to about 1e-4 of its value.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    References
    ----------
    As `mean_wait_tijms`. R. Gruebel and R. Hermesmeier, ASTIN Bulletin 29 (1999) 197, for the inversion.

    Examples
    --------
    >>> round(wait_quantile_tijms(90.0, 1.0, 100, 1.0), 3)
    0.308
    """
    lam, s, c, scv, q = _leading(arrival_rate, service_time, servers, service_scv, quantile, law=law)
    return as_result(_over_queues(_solve_tijms, lam, s, c, scv, q, law)[1])


def mean_wait_exact(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    *,
    law: ServiceLaw | None = None,
) -> Any:
    r"""Mean wait where it is known exactly: one server, M/M/c, M/D/c, two exponential phases up to 64 servers.

    .. math:: E[W] = \int_0^\infty P(W > t)\, dt

    Parameters
    ----------
    arrival_rate : float or array
        Poisson arrival rate lambda [1/s]; >= 0. All arguments broadcast.
    service_time : float or array
        Mean service time E[S] = 1/mu [s]; > 0.
    servers : float or array
        Number of servers c, real [servers]; >= 1.
    service_scv : float or array
        Squared coefficient of variation of the service time C_s^2 [1]; >= 0. Replaced by that of `law` when given.
    law : ServiceLaw, optional
        The whole service law; scaled to `service_time`.

    Returns
    -------
    float or array
        Mean wait in the queue [s]; inf where lambda E[S] >= c.

    Raises
    ------
    ValueError
        If an argument is outside its domain, or there is no exact solution for this law and number of servers.

    References
    ----------
    `planner.queueing.exact`.

    Examples
    --------
    >>> round(mean_wait_exact(0.5, 1.0, 1, 4.0), 9)
    2.5
    """
    lam, s, c, scv, _ = _leading(arrival_rate, service_time, servers, service_scv, law=law)
    return as_result(_over_queues(_solve_exact, lam, s, c, scv, np.zeros(lam.shape), law)[0])


def wait_quantile_exact(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    quantile: npt.ArrayLike = 0.99,
    *,
    law: ServiceLaw | None = None,
) -> Any:
    r"""Wait quantile where it is known exactly: one server, M/M/c, M/D/c, two exponential phases up to 64 servers.

    .. math:: W_q = \inf\{t: P(W > t) \le 1 - q\}

    Parameters
    ----------
    arrival_rate : float or array
        Poisson arrival rate lambda [1/s]; >= 0. All arguments broadcast.
    service_time : float or array
        Mean service time E[S] = 1/mu [s]; > 0.
    servers : float or array
        Number of servers c, real [servers]; >= 1.
    service_scv : float or array
        Squared coefficient of variation of the service time C_s^2 [1]; >= 0. Replaced by that of `law` when given.
    quantile : float or array
        Quantile q [1]; 0 <= q < 1.
    law : ServiceLaw, optional
        The whole service law; scaled to `service_time`.

    Returns
    -------
    float or array
        Waiting time in the queue [s]; 0 where P(wait) <= 1 - q, inf where lambda E[S] >= c.

    Raises
    ------
    ValueError
        If an argument is outside its domain, or there is no exact solution for this law and number of servers.

    References
    ----------
    `planner.queueing.exact`; one server is Pollaczek-Khinchine, inverted to about 1e-4.

    Examples
    --------
    >>> h2 = ServiceLaw.hyperexponential([0.9, 0.1], [0.5, 5.5])
    >>> round(wait_quantile_exact(3.4, 1.0, 4, quantile=0.99, law=h2), 4)
    23.9856
    """
    lam, s, c, scv, q = _leading(arrival_rate, service_time, servers, service_scv, quantile, law=law)
    return as_result(_over_queues(_solve_exact, lam, s, c, scv, q, law)[1])


# What each method claims ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MethodRange:
    """Where a method claims to be valid, and what it needs.

    Parameters
    ----------
    name
        Name to give to `wait_quantile` and `mean_wait`.
    summary
        One line for people.
    needs_law
        Whether it uses more of the service law than two moments (one is assumed when it is not given).
    min_scv, max_scv
        Range of the squared coefficient of variation of the service time [1].
    min_servers, max_servers
        Range of the number of servers [servers].
    min_utilization
        Least lambda E[S]/c [1]; below, P(wait) is small and the relative error is not controlled.
    """

    name: str
    summary: str
    needs_law: bool
    min_scv: float = 0.0
    max_scv: float = float("inf")
    min_servers: float = 1.0
    max_servers: float = float("inf")
    min_utilization: float = 0.0

    def claims(self, servers: float, utilization: float, service_scv: float) -> bool:
        """Whether the point is inside the range: servers [servers], utilization [1], service_scv [1]."""
        return (
            self.min_scv <= service_scv <= self.max_scv
            and self.min_servers <= servers <= self.max_servers
            and self.min_utilization <= utilization < 1.0
        )


# The order is the order of preference. Ranges: where the error of the 0.99 quantile stays within about 10 % on the
# optimistic side (docs/accuracy/mgc.md), except for `exact` and `conservative`, which hold everywhere they claim.
METHODS: dict[str, MethodRange] = {
    m.name: m
    for m in (
        MethodRange("exact", "one server, M/M/c, M/D/c, two exponential phases up to 64 servers", True),
        MethodRange("conservative", "exact where known, else the largest of the approximations", True),
        MethodRange("tijms", "Tijms, van Hoorn, Federgruen 1981: the whole service law", True, max_servers=16.0,
                    min_utilization=0.5),
        MethodRange("whitt", "Whitt 1993: two or three moments", False, max_scv=10.0, min_utilization=0.5),
        MethodRange("cosmetatos", "Cosmetatos 1976: between M/M/c and M/D/c", False, max_scv=1.0, max_servers=64.0,
                    min_utilization=0.5),
        MethodRange("kimura", "Kimura 1986: harmonic between M/M/c and M/D/c", False, max_scv=1.0, max_servers=64.0,
                    min_utilization=0.5),
        MethodRange("fleetopt", "FleetOpt eq. 6: Erlang C and a two-moment decay rate", False, min_scv=1.0, max_scv=1.0),
    )
}  # fmt: skip

_QUANTILES: dict[str, Callable[..., Any]] = {
    "exact": wait_quantile_exact,
    "tijms": wait_quantile_tijms,
    "whitt": wait_quantile_whitt,
    "cosmetatos": wait_quantile_cosmetatos,
    "kimura": wait_quantile_kimura,
    "fleetopt": wait_quantile_fleetopt,
}
_MEANS: dict[str, Callable[..., Any]] = {
    "exact": mean_wait_exact,
    "tijms": mean_wait_tijms,
    "whitt": mean_wait_whitt,
    "cosmetatos": mean_wait_cosmetatos,
    "kimura": mean_wait_kimura,
    "fleetopt": mean_wait_fleetopt,
}


def wait_methods(
    servers: float,
    utilization: float,
    service_scv: float = 1.0,
    *,
    law: ServiceLaw | None = None,
    check_ranges: bool = True,
) -> list[str]:
    """Names of the methods that claim to be valid at a point, best first.

    Parameters
    ----------
    servers : float
        Number of servers c [servers]; >= 1.
    utilization : float
        lambda E[S]/c [1]; >= 0.
    service_scv : float
        Squared coefficient of variation of the service time [1]; >= 0. Replaced by that of `law` when given.
    law : ServiceLaw, optional
        The whole service law. Without it the methods that need one are not listed, save at `service_scv` 1 or 0 where
        the exponential or the constant is meant.
    check_ranges : bool
        False lists every method that can be evaluated.

    Returns
    -------
    list of str
        Keys of `METHODS`; empty where the queue is unstable.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    Examples
    --------
    >>> wait_methods(8, 0.9, 0.5)
    ['conservative', 'whitt', 'cosmetatos', 'kimura']
    >>> wait_methods(8, 0.9, law=ServiceLaw.lognormal(4.0))
    ['conservative', 'tijms', 'whitt']
    """
    _leading(utilization, 1.0, servers, service_scv, law=law)
    scv = service_scv if law is None else law.scv
    if utilization >= 1.0:
        return []
    known = law if law is not None else _assumed_law(float(scv)) if scv in (0.0, 1.0) else None
    names = []
    for name, method in METHODS.items():
        if name == "exact":
            able = servers == 1.0 and known is not None
            able = able or (known is not None and _exact_method(known, float(servers)) is not None)
        else:
            able = known is not None or not method.needs_law or name == "conservative"
        if able and (not check_ranges or method.claims(servers, utilization, scv)):
            names.append(name)
    return names


def _chosen(method: str, table: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    if method not in table:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    return table[method]


def mean_wait(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    *,
    law: ServiceLaw | None = None,
    method: str = "conservative",
) -> Any:
    r"""Mean wait of M/G/c by any method; by default the conservative maximum, exact where that is known.

    .. math:: E[W] = \max\{\text{Tijms-van Hoorn-Federgruen, Cosmetatos, FleetOpt}\}

    and, where these are optimistic, a fourth: up to 16 servers with :math:`C_s^2 > 1` the exact queue whose service has
    two phases and the same three moments; with :math:`C_s^2 < 1` Tijms' interpolation
    :math:`C_s^2 W_{M/M/c} + (1 - C_s^2) W_{M/D/c}` of exact quantiles. One server, M/M/c, M/D/c and two-phase laws up to
    64 servers are exact instead; two-phase laws beyond are bounded by 64 servers.

    Parameters
    ----------
    arrival_rate : float or array
        Poisson arrival rate lambda [1/s]; >= 0. All arguments broadcast.
    service_time : float or array
        Mean service time E[S] = 1/mu [s]; > 0.
    servers : float or array
        Number of servers c, real [servers]; >= 1.
    service_scv : float or array
        Squared coefficient of variation of the service time C_s^2 [1]; >= 0. Replaced by that of `law` when given.
    law : ServiceLaw, optional
        The whole service law; scaled to `service_time`.
    method : str
        A key of `METHODS`.

    Returns
    -------
    float or array
        Mean wait in the queue [s]; inf where lambda E[S] >= c. The conservative
        maximum is pessimistic, up to several times, where P(wait) is small and the wait a small part of E[S].

    Raises
    ------
    ValueError
        If an argument is outside its domain or `method` is not known.

    References
    ----------
    Those of the methods.

    Examples
    --------
    >>> round(mean_wait(3.4, 1.0, 4, 1.0), 4)
    1.1489
    """
    if method != "conservative":
        return _chosen(method, _MEANS)(arrival_rate, service_time, servers, service_scv, law=law)
    lam, s, c, scv, _ = _leading(arrival_rate, service_time, servers, service_scv, law=law)
    return as_result(_over_queues(_solve_conservative, lam, s, c, scv, np.zeros(lam.shape), law)[0])


def wait_quantile(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    quantile: npt.ArrayLike = 0.99,
    *,
    law: ServiceLaw | None = None,
    method: str = "conservative",
) -> Any:
    r"""Wait quantile of M/G/c by any method; by default the conservative maximum, exact where that is known.

    .. math:: W_q = \max\{\text{Tijms-van Hoorn-Federgruen, Cosmetatos, FleetOpt}\}

    and, where these are optimistic, a fourth: up to 16 servers with :math:`C_s^2 > 1` the exact queue whose service has
    two phases and the same three moments; with :math:`C_s^2 < 1` Tijms' interpolation
    :math:`C_s^2 W_{M/M/c} + (1 - C_s^2) W_{M/D/c}` of exact quantiles. One server, M/M/c, M/D/c and two-phase laws up to
    64 servers are exact instead; two-phase laws beyond are bounded by 64 servers.

    Parameters
    ----------
    arrival_rate : float or array
        Poisson arrival rate lambda [1/s]; >= 0. All arguments broadcast.
    service_time : float or array
        Mean service time E[S] = 1/mu [s]; > 0.
    servers : float or array
        Number of servers c, real [servers]; >= 1.
    service_scv : float or array
        Squared coefficient of variation of the service time C_s^2 [1]; >= 0. Replaced by that of `law` when given.
    quantile : float or array
        Quantile q [1]; 0 <= q < 1.
    law : ServiceLaw, optional
        The whole service law; scaled to `service_time`.
    method : str
        A key of `METHODS`.

    Returns
    -------
    float or array
        Waiting time in the queue [s]; 0 where P(wait) <= 1 - q, inf where lambda E[S] >= c. The conservative
        maximum is pessimistic, up to several times, where P(wait) is small and the wait a small part of E[S].

    Raises
    ------
    ValueError
        If an argument is outside its domain or `method` is not known.

    References
    ----------
    Those of the methods.

    Examples
    --------
    >>> round(wait_quantile(3.4, 1.0, 4, quantile=0.99, law=ServiceLaw.lognormal(4.0)), 1)
    21.6
    >>> wait_quantile([90.0, 110.0], 1.0, 100, quantile=[0.5, 0.99])
    array([ 0., inf])
    """
    if method != "conservative":
        return _chosen(method, _QUANTILES)(arrival_rate, service_time, servers, service_scv, quantile, law=law)
    lam, s, c, scv, q = _leading(arrival_rate, service_time, servers, service_scv, quantile, law=law)
    return as_result(_over_queues(_solve_conservative, lam, s, c, scv, q, law)[1])


# The smallest pool ------------------------------------------------------------


def min_replicas(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    slots: npt.ArrayLike,
    wait_limit: npt.ArrayLike,
    *,
    service_scv: npt.ArrayLike = 1.0,
    quantile: npt.ArrayLike = 0.99,
    max_utilization: npt.ArrayLike = 0.85,
) -> Any:
    r"""Smallest number of replicas whose pooled slots keep the FleetOpt wait quantile and the utilization cap.

    .. math:: n = \min\left\{n \ge \left\lceil \frac{\lambda}{\rho_{max}\,\mu_{rep}} \right\rceil :
        \frac{\ln[C(n m, \lambda E[S])/(1-q)]\,(1+C_s^2)}{2 (n m/E[S] - \lambda)} \le w\right\},
        \quad \mu_{rep} = m / E[S]

    Parameters
    ----------
    arrival_rate : float or array
        Arrival rate of the pool lambda [1/s]; >= 0. All arguments broadcast.
    service_time : float or array
        Mean time a request holds a slot E[S] [s]; > 0.
    slots : float or array
        Slots of one replica m [slots]; >= 1.
    wait_limit : float or array
        What remains of the latency promise for the wait in the queue [s]. Negative: nothing remains, the answer is inf.
    service_scv : float or array
        Squared coefficient of variation of the slot time C_s^2 [1]; >= 0.
    quantile : float or array
        Quantile q of the wait that must be within the limit [1]; 0 < q < 1.
    max_utilization : float or array
        Cap rho_max of lambda/(n mu_rep) [1]; 0 < rho_max <= 1 (at 1, stability alone: lambda < n mu_rep).

    Returns
    -------
    float or array
        Replicas, a whole number >= 1 [replicas]; inf where `wait_limit` is negative. Constant time per element.

    Raises
    ------
    ValueError
        If an argument is outside its domain or not a number.

    References
    ----------
    FleetOpt, eq. 6 and 8.

    Examples
    --------
    >>> min_replicas(1000.0, 2.0, 64, 0.1)
    37.0
    >>> min_replicas(1000.0, 2.0, [16, 256], [0.1, -0.1])
    array([148.,  inf])
    """
    lam, s, m, w, scv, q, cap = np.broadcast_arrays(
        *(
            np.asarray(x, dtype=np.float64)
            for x in (arrival_rate, service_time, slots, wait_limit, service_scv, quantile, max_utilization)
        )
    )
    a = lam * s
    for name, good in (
        ("arrival_rate", (lam >= 0.0) & np.isfinite(lam)),
        ("service_time", (s > 0.0) & (s <= 2.0**50) & (a <= 2.0**50)),
        ("slots", (m >= 1.0) & np.isfinite(m)),
        ("wait_limit", ~np.isnan(w)),
        ("service_scv", (scv >= 0.0) & np.isfinite(scv)),
        ("quantile", (q > 0.0) & (q < 1.0)),
        ("max_utilization", (cap > 0.0) & (cap <= 1.0)),
    ):
        if not good.all():
            raise ValueError(f"{name} is outside its domain")
    feasible = (w >= 0.0).ravel()
    load, unit = a.ravel()[feasible], m.ravel()[feasible]
    decay = decay_rate(np.maximum(w, 0.0), s, scv)[feasible]
    log_tail = np.log1p(-q).ravel()[feasible]
    real = smallest_real_servers(load, decay, log_tail)
    by_wait = smallest_integer(real / unit, unit, load, decay, log_tail)
    # a quotient that is whole but for rounding is that whole number
    by_cap = np.ceil(load / (unit * cap.ravel()[feasible]) * (1.0 - 4e-16))
    out = np.full(a.size, np.inf)
    out[feasible] = np.maximum(by_wait, by_cap)
    return as_result(out.reshape(a.shape))
