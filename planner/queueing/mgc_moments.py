r"""Waiting times of M/G/c from two moments: FleetOpt and Kimura, side by side with the same arguments.

Read them through `planner.queueing.mgc`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from planner.queueing.erlang import as_result, log_erlang_c
from planner.queueing.service import ServiceLaw

type_array = npt.NDArray[np.float64]


def leading_arguments(
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


def markovian_wait(lam: type_array, s: type_array, c: type_array) -> tuple[type_array, type_array, type_array]:
    """Offered load, ln C and the mean wait of M/M/c; inf where unstable."""
    a = lam * s
    log_wait = np.asarray(log_erlang_c(c, np.minimum(a, 1e300)))
    slack = c - a
    with np.errstate(divide="ignore", under="ignore"):
        mean = np.where(slack > 0.0, np.exp(log_wait) * s / np.where(slack > 0.0, slack, 1.0), np.inf)
    return a, log_wait, mean


def deterministic_excess(c: type_array, a: type_array) -> type_array:
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
    lam, s, c, scv, _ = leading_arguments(arrival_rate, service_time, servers, service_scv, law=law)
    _, _, markovian = markovian_wait(lam, s, c)
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
    FleetOpt (arXiv:2603.16514), eq. 6. Up to 63 % optimistic with few servers and a heavy third moment, and with
    C_s^2 < 1 and eight servers or more; several times pessimistic where P(wait) is small.

    Examples
    --------
    >>> round(wait_quantile_fleetopt(90.0, 1.0, 100, 1.0), 6)
    0.307704
    """
    lam, s, c, scv, q = leading_arguments(arrival_rate, service_time, servers, service_scv, quantile, law=law)
    a, log_wait, _ = markovian_wait(lam, s, c)
    slack = c - a
    conditional = np.where(slack > 0.0, 0.5 * (1.0 + scv) * s / np.where(slack > 0.0, slack, 1.0), np.inf)
    return as_result(_exponential_tail(log_wait, conditional, q))


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

    with Cosmetatos' :math:`E[W]_{M/D/c}`.

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
    lam, s, c, scv, _ = leading_arguments(arrival_rate, service_time, servers, service_scv, law=law)
    a, _, markovian = markovian_wait(lam, s, c)
    deterministic = 0.5 * (1.0 + deterministic_excess(c, a))
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
    lam, s, c, scv, q = leading_arguments(arrival_rate, service_time, servers, service_scv, quantile, law=law)
    mean = np.asarray(mean_wait_kimura(lam, s, c, scv))
    return as_result(_exponential_from_mean(lam, s, c, mean, q))


def _exponential_from_mean(
    lam: type_array, s: type_array, c: type_array, mean: type_array, q: type_array
) -> type_array:
    """Quantile when the wait of those who wait is exponential and the wait has this mean."""
    _, log_wait, markovian = markovian_wait(lam, s, c)
    # mean/C as a multiple of the M/M/c value, so that an underflowing C does no harm
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(np.isfinite(markovian) & (markovian > 0.0), mean / markovian, 1.0)
        slack = c - lam * s
        conditional = np.where(slack > 0.0, ratio * s / np.where(slack > 0.0, slack, 1.0), np.inf)
    return _exponential_tail(log_wait, conditional, q)
