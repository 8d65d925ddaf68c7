r"""Waiting times of M/G/c: published approximations side by side, the exact cases, the nearest mixture, the maximum.

Every approximation takes the same leading arguments ``(arrival_rate, service_time, servers, service_scv)``, then the
quantile, and the keyword `law`. With a `law` (`planner.queueing.service.ServiceLaw`, any shape) its moments replace
`service_scv`; `wait_quantile` uses the whole distribution and assumes one from the two moments when it is absent (gamma
below scv 1, balanced-mean H2 above): two moments do not determine the wait, so that assumption is part of the answer.

All return 0 without load, inf where ``arrival_rate * service_time >= servers``, and never NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from planner.queueing.erlang import as_result, decay_rate, smallest_integer, smallest_real_servers
from planner.queueing.mgc_law import (
    over_queues,
    solve_conservative,
)
from planner.queueing.mgc_moments import (
    leading_arguments,
    mean_wait_cosmetatos,
    mean_wait_fleetopt,
    mean_wait_kimura,
    wait_quantile_cosmetatos,
    wait_quantile_fleetopt,
    wait_quantile_kimura,
)
from planner.queueing.service import ServiceLaw

__all__ = [
    "ServiceLaw",
    "mean_wait_cosmetatos",
    "mean_wait_fleetopt",
    "mean_wait_kimura",
    "min_replicas",
    "wait_probability",
    "wait_quantile",
    "wait_quantile_cosmetatos",
    "wait_quantile_fleetopt",
    "wait_quantile_kimura",
]


def wait_probability(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    *,
    law: ServiceLaw | None = None,
) -> Any:
    r"""Probability of waiting in M/G/c: exact where that is known, else the larger estimate.

    .. math:: P(W > 0) \approx \begin{cases} \max\{C(c, \lambda E[S]),\; P(W > 0)_{M/H_2/c}\} & C_s^2 \ge 1 \\
        P(W > 0)_{M/D/c} + C_s^{2/3}\, [C(c, \lambda E[S]) - P(W > 0)_{M/D/c}] & C_s^2 < 1 \end{cases}

    M/H2/c the exact queue with the same three moments of service (extrapolated above 32 servers); with a `law` no more than
    that of the nearest mixture of Erlang laws.

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
        Probability [1]; 1 where lambda E[S] >= c.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    References
    ----------
    Those of the methods.

    Examples
    --------
    >>> round(wait_probability(3.4, 1.0, 4), 4), round(wait_probability(3.4, 1.0, 4, 0.0), 4)
    (0.6893, 0.6733)
    """
    lam, s, c, scv, _ = leading_arguments(arrival_rate, service_time, servers, service_scv, law=law)
    return as_result(over_queues(solve_conservative, lam, s, c, scv, np.zeros(lam.shape), law)[2])


def wait_quantile(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    quantile: npt.ArrayLike = 0.99,
    *,
    law: ServiceLaw | None = None,
) -> Any:
    r"""Wait quantile of M/G/c: exact where that is known, else the conservative maximum.

    .. math:: W_q = \max\begin{cases}
        \text{Tijms-van Hoorn-Federgruen, Cosmetatos, FleetOpt, } M/H_2/c & C_s^2 \ge 1 \\
        \text{Tijms-van Hoorn-Federgruen, } C_s^2\, W_{M/M/c} + (1 - C_s^2)\, W_{M/D/c} & C_s^2 < 1 \end{cases}

    M/H2/c, up to 32 servers, is the exact queue whose service has two phases and the same three moments; the last line
    is Tijms' interpolation between exact values. With a `law` the wait is no longer than that of the exact queue of the nearest
    mixture of Erlang laws and what its distance may hide (`planner.queueing.mgc_mixture`), which is the answer where it is near.
    Where lengths part into two classes the wait is that of the exact queue in which each is Erlang of as many stages as its spread
    and the states allow (up to 16 servers), or the long ones of one and of two (up to 64), extrapolated to the law's second
    moment. One server, M/M/c, M/D/c and laws that are two exponential phases (up to 256 servers, beyond which those bound the wait)
    or three (up to 16) are exact instead.

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
        Waiting time in the queue [s]; 0 where P(wait) <= 1 - q, inf where lambda E[S] >= c. Of two moments the
        maximum is pessimistic, up to several times, where P(wait) is small and the wait a small part of E[S].

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    References
    ----------
    Those of the methods.

    Examples
    --------
    >>> round(wait_quantile(3.4, 1.0, 4, quantile=0.99, law=ServiceLaw.gamma(4.0)), 1)
    18.0
    >>> wait_quantile([90.0, 110.0], 1.0, 100, quantile=[0.5, 0.99])
    array([ 0., inf])
    """
    lam, s, c, scv, q = leading_arguments(arrival_rate, service_time, servers, service_scv, quantile, law=law)
    return as_result(over_queues(solve_conservative, lam, s, c, scv, q, law)[1])


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
    FleetOpt (arXiv:2603.16514), eq. 6 and 8.

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
