r"""Waiting times of M/G/c from two moments: FleetOpt, Cosmetatos, Kimura, Whitt, side by side with the same arguments.

Read them through `planner.queueing.mgc`, which adds the methods that need the whole service law.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from planner.queueing.erlang import as_result, erlang_c, log_erlang_c
from planner.queueing.service import ServiceLaw

__all__ = [
    "deterministic_excess",
    "leading_arguments",
    "markovian_wait",
    "mean_wait_cosmetatos",
    "mean_wait_fleetopt",
    "mean_wait_kimura",
    "mean_wait_whitt",
    "wait_probability_erlang",
    "wait_quantile_cosmetatos",
    "wait_quantile_fleetopt",
    "wait_quantile_kimura",
    "wait_quantile_whitt",
]

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


def wait_probability_erlang(arrival_rate: npt.ArrayLike, service_time: npt.ArrayLike, servers: npt.ArrayLike) -> Any:
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
    >>> round(wait_probability_erlang(1.0, 1.0, 2), 12)
    0.333333333333
    """
    lam, s, c, _, _ = leading_arguments(arrival_rate, service_time, servers, 1.0)
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
    lam, s, c, scv, _ = leading_arguments(arrival_rate, service_time, servers, service_scv, law=law)
    a, _, markovian = markovian_wait(lam, s, c)
    deterministic = 0.5 * (1.0 + deterministic_excess(c, a))
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
    lam, s, c, scv, q = leading_arguments(arrival_rate, service_time, servers, service_scv, quantile, law=law)
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
        Mean wait in the queue [s]; inf where lambda E[S] >= c. Exact for M/M/c and, where phi is set to 1, for c = 1.

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
    lam, s, c, scv, _ = leading_arguments(arrival_rate, service_time, servers, service_scv, law=law)
    a, _, markovian = markovian_wait(lam, s, c)
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
        # one server with Poisson arrivals is Pollaczek-Khinchine, which the interpolation between D/M/c and M/D/c misses
        phi = np.where(c == 1.0, 1.0, np.where(scv <= 1.0, below, above))
        return as_result(phi * middle * markovian)


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
    lam, s, c, scv, q = leading_arguments(arrival_rate, service_time, servers, service_scv, quantile, law=law)
    a, log_wait, _ = markovian_wait(lam, s, c)
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
    _, log_wait, markovian = markovian_wait(lam, s, c)
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
