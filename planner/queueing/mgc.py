"""Waiting times of M/G/c by published approximations, side by side, and the fewest servers by one of them.

Every approximation takes the same leading arguments ``(arrival_rate, service_time, servers, service_scv)``, then the quantile.

All return 0 without load, inf where ``arrival_rate * service_time >= servers``, and never NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.queueing.erlang import as_result, log_erlang_c, smallest_multiple
from planner.shared.mathematics import need

type_array = npt.NDArray[np.float64]


def _arguments(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike,
    quantile: npt.ArrayLike = 0.0,
) -> tuple[type_array, type_array, type_array, type_array, type_array]:
    """The leading arguments as float arrays of one shape; ValueError names the one outside its domain."""
    lam, s, c, scv, q = np.broadcast_arrays(
        *(np.asarray(x, dtype=np.float64) for x in (arrival_rate, service_time, servers, service_scv, quantile))
    )
    for name, value, good in (
        ("arrival_rate", arrival_rate, (lam >= 0.0) & np.isfinite(lam)),
        ("service_time", service_time, (s > 0.0) & np.isfinite(s)),
        ("servers", servers, (c >= 1.0) & np.isfinite(c)),
        ("service_scv", service_scv, (scv >= 0.0) & np.isfinite(scv)),
        ("quantile", quantile, (q >= 0.0) & (q < 1.0)),
    ):
        need(good.all(), f"{name} is outside its domain: {value!r}")
    return lam, s, c, scv, q


def deterministic_excess(c: type_array, a: type_array) -> type_array:
    r"""xi of Cosmetatos: E[W](M/D/c) = (1 + xi)/2 E[W](M/M/c), xi = (1-rho)(c-1)(sqrt(4+5c)-2)/(16 rho c)."""
    rho = a / c
    with np.errstate(divide="ignore", invalid="ignore"):
        xi = (1.0 - rho) * (c - 1.0) * (np.sqrt(4.0 + 5.0 * c) - 2.0) / (16.0 * rho * c)
    # the polynomial was fitted for rho > 0.3 or so; an M/D/c queue never waits longer than M/M/c, so xi <= 1
    return np.where(rho > 0.0, np.clip(xi, 0.0, 1.0), 1.0)


def _kimura(c: type_array, a: type_array, scv: type_array) -> type_array:
    return (1.0 + scv) / ((1.0 - scv) / (0.5 * (1.0 + deterministic_excess(c, a))) + 2.0 * scv)


LAWS: Mapping[str, Callable[[type_array, type_array, type_array], type_array]] = {
    "fleetopt": lambda c, a, scv: 0.5 * (1.0 + scv),
    "kimura": _kimura,
}
r"""How much longer than in M/M/c the mean wait is [1], by c, a = lambda E[S] and C_s^2:

``fleetopt``
    (1 + C_s^2)/2 of Lee and Longton, Oper. Res. Quart. 10 (1959) 56, the mean that belongs to FleetOpt's tail. Exact for c = 1.
``kimura``
    T. Kimura, Oper. Res. 34 (1986) 72 (doi:10.1287/opre.34.1.72), with Poisson arrivals. Exact for c = 1; made for C_s^2 <= 1.
    (1 + C_s^2)/((1 - C_s^2) E[W]_{M/M/c}/E[W]_{M/D/c} + 2 C_s^2), with M/D/c of Cosmetatos.
"""


def mean_wait(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    law: str = "fleetopt",
) -> Any:
    r"""Mean wait in the queue: that of M/M/c times what a law says.

    Parameters
    ----------
    arrival_rate : float or array
        Poisson arrival rate lambda [1/s]; >= 0. All arguments broadcast.
    service_time : float or array
        Mean service time E[S] = 1/mu [s]; > 0.
    servers : float or array
        Number of servers c, real [servers]; >= 1.
    service_scv : float or array
        Squared coefficient of variation of the service time C_s^2 [1]; >= 0.
    law : str
        A name of :data:`LAWS`.

    Returns
    -------
    float or array
        Mean wait [s]; inf where lambda E[S] >= c. Exact for c = 1 (Pollaczek-Khinchine) and for M/M/c.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    Examples
    --------
    >>> round(mean_wait(0.5, 1.0, 1, 0.0), 9), round(mean_wait(3.4, 1.0, 4, 0.5, "kimura"), 4)
    (0.5, 0.8719)
    """
    lam, s, c, scv, _ = _arguments(arrival_rate, service_time, servers, service_scv)
    a = lam * s
    slack = c - a
    with np.errstate(divide="ignore", under="ignore"):
        waits = np.exp(log_erlang_c(c, np.minimum(a, 1e300)))
        markovian = np.where(slack > 0.0, waits * s / np.where(slack > 0.0, slack, 1.0), np.inf)
    return as_result(LAWS[law](c, a, scv) * markovian)


def wait_quantile(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    quantile: npt.ArrayLike = 0.99,
    law: str = "fleetopt",
) -> Any:
    r"""Wait quantile where those who wait do so exponentially, with the mean of :func:`mean_wait`; FleetOpt's eq. 6.

        .. math:: W_q = \max\left\{0, rac{E[W]}{C(c, a)} \lnrac{C(c, a)}{1-q}
    ight\}

        Parameters
        ----------
        arrival_rate, service_time, servers, service_scv, law
            As :func:`mean_wait`.
        quantile : float or array
            Quantile q [1]; 0 <= q < 1.

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
        >>> round(wait_quantile(90.0, 1.0, 100, 1.0), 6), round(wait_quantile(3.4, 1.0, 4, 0.5, law="kimura"), 4)
        (0.307704, 5.3541)
    """
    lam, s, c, scv, q = _arguments(arrival_rate, service_time, servers, service_scv, quantile)
    a = lam * s
    slack = c - a
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = np.maximum(np.asarray(log_erlang_c(c, np.minimum(a, 1e300))) - np.log1p(-q), 0.0)
        wait = excess * LAWS[law](c, a, scv) * s / np.where(slack > 0.0, slack, 1.0)
    return as_result(np.where(slack > 0.0, wait, np.inf))


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
        need(good.all(), f"{name} is outside its domain")
    feasible = (w >= 0.0).ravel()
    load, unit = a.ravel()[feasible], m.ravel()[feasible]
    # how fast ln P(W > w) falls per server; kept finite for an infinite limit
    with np.errstate(over="ignore"):
        decay = np.minimum(2.0 * np.maximum(w, 0.0) / (s * (1.0 + scv)), 1e200).ravel()[feasible]
    by_wait = smallest_multiple(unit, load, decay, np.log1p(-q).ravel()[feasible])
    # a quotient that is whole but for rounding is that whole number
    by_cap = np.ceil(load / (unit * cap.ravel()[feasible]) * (1.0 - 4e-16))
    out = np.full(a.size, np.inf)
    out[feasible] = np.maximum(by_wait, by_cap)
    return as_result(out.reshape(a.shape))
