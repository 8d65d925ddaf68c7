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
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.queueing.erlang import as_result, decay_rate, log_erlang_c, smallest_integer, smallest_real_servers
from planner.queueing.mgc_law import (
    assumed_law,
    exact_method,
    mean_wait_exact,
    mean_wait_tijms,
    over_queues,
    solve_conservative,
    solve_exact,
    wait_quantile_exact,
    wait_quantile_tijms,
)
from planner.queueing.mgc_moments import (
    leading_arguments,
    mean_wait_cosmetatos,
    mean_wait_fleetopt,
    mean_wait_kimura,
    mean_wait_whitt,
    wait_probability_erlang,
    wait_quantile_cosmetatos,
    wait_quantile_fleetopt,
    wait_quantile_kimura,
    wait_quantile_whitt,
)
from planner.queueing.service import ServiceLaw

__all__ = [
    "METHODS",
    "MethodRange",
    "ServiceLaw",
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
    "wait_probability_erlang",
    "wait_quantile",
    "wait_quantile_cosmetatos",
    "wait_quantile_exact",
    "wait_quantile_fleetopt",
    "wait_quantile_kimura",
    "wait_quantile_tijms",
    "wait_quantile_whitt",
]


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
        Least lambda E[S]/c [1].
    max_tail
        Largest (1 - q)/P(wait), the share of those who wait that may wait longer [1]: near 1 the wait is next to
        nothing and a relative error is not controlled.
    """

    name: str
    summary: str
    needs_law: bool
    min_scv: float = 0.0
    max_scv: float = float("inf")
    min_servers: float = 1.0
    max_servers: float = float("inf")
    min_utilization: float = 0.0
    max_tail: float = float("inf")

    def claims(self, servers: float, utilization: float, service_scv: float, quantile: float = 0.99) -> bool:
        """Whether the point is inside the range: servers [servers], utilization, service_scv and quantile [1]."""
        if not (
            self.min_scv <= service_scv <= self.max_scv
            and self.min_servers <= servers <= self.max_servers
            and self.min_utilization <= utilization < 1.0
        ):
            return False
        depth = float(log_erlang_c(servers, servers * utilization)) - float(np.log1p(-quantile))
        return self.max_tail >= float(np.exp(-min(max(depth, -700.0), 700.0)))


# The order is the order of preference. The ranges are where a quantile is at most 10 % optimistic in
# docs/accuracy/mgc.md, which measures each of them inside its own; `exact` and `conservative` hold wherever they apply.
METHODS: dict[str, MethodRange] = {
    m.name: m
    for m in (
        MethodRange("exact", "one server, M/M/c, M/D/c, two exponential phases up to 256 servers", True),
        MethodRange("conservative", "exact where known, else the largest of the approximations", True),
        MethodRange("tijms", "Tijms, van Hoorn, Federgruen 1981: the whole service law", True, min_utilization=0.5,
                    max_tail=0.136),
        MethodRange("whitt", "Whitt 1993: two or three moments", False, max_scv=1.0, min_utilization=0.5, max_tail=0.136),
        MethodRange("cosmetatos", "Cosmetatos 1976: between M/M/c and M/D/c", False, max_scv=1.0, min_utilization=0.5,
                    max_tail=0.368),
        MethodRange("kimura", "Kimura 1986: harmonic between M/M/c and M/D/c", False, max_scv=1.0, min_utilization=0.5,
                    max_tail=0.368),
        MethodRange("fleetopt", "FleetOpt eq. 6: Erlang C and a two-moment decay rate", False, max_scv=1.0,
                    min_utilization=0.85, max_tail=0.368),
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
    quantile: float = 0.99,
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
    quantile : float
        Quantile of the wait that is wanted [1]; 0 <= quantile < 1.
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
    ['conservative', 'whitt', 'cosmetatos', 'kimura', 'fleetopt']
    >>> wait_methods(8, 0.9, law=ServiceLaw.lognormal(4.0))
    ['conservative', 'tijms']
    """
    leading_arguments(utilization, 1.0, servers, service_scv, quantile, law=law)
    scv = service_scv if law is None else law.scv
    if utilization >= 1.0:
        return []
    known = law if law is not None else assumed_law(float(scv)) if scv in (0.0, 1.0) else None
    names = []
    for name, method in METHODS.items():
        if name == "exact":
            able = servers == 1.0 and known is not None
            able = able or (known is not None and exact_method(known, float(servers)) is not None)
        else:
            able = known is not None or not method.needs_law or name == "conservative"
        if able and (not check_ranges or method.claims(servers, utilization, scv, quantile)):
            names.append(name)
    return names


def _chosen(method: str, table: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    if method not in table:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    return table[method]


def wait_probability(
    arrival_rate: npt.ArrayLike,
    service_time: npt.ArrayLike,
    servers: npt.ArrayLike,
    service_scv: npt.ArrayLike = 1.0,
    *,
    law: ServiceLaw | None = None,
    method: str = "conservative",
) -> Any:
    r"""Probability of waiting in M/G/c by any method; by default exact where that is known, else the larger estimate.

    .. math:: P(W > 0) \approx \max\{C(c, \lambda E[S]),\; P(W > 0)_{M/H_2/c}\}

    the second, with :math:`C_s^2 > 1`, the exact queue with the same three moments of service (extrapolated above 32
    servers). Every
    method but `exact` and `conservative` takes Erlang C (`wait_probability_erlang`).

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
        Probability [1]; 1 where lambda E[S] >= c.

    Raises
    ------
    ValueError
        If an argument is outside its domain or `method` is not known.

    References
    ----------
    Those of the methods.

    Examples
    --------
    >>> round(wait_probability(3.4, 1.0, 4), 4), round(wait_probability(3.4, 1.0, 4, 0.0), 4)
    (0.6893, 0.6733)
    """
    lam, s, c, scv, _ = leading_arguments(arrival_rate, service_time, servers, service_scv, law=law)
    if method in ("conservative", "exact"):
        solve = solve_conservative if method == "conservative" else solve_exact
        return as_result(over_queues(solve, lam, s, c, scv, np.zeros(lam.shape), law)[2])
    _chosen(method, _QUANTILES)
    return wait_probability_erlang(lam, s, c)


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

    .. math:: E[W] = \max\begin{cases}
        \text{Tijms-van Hoorn-Federgruen, Cosmetatos, FleetOpt, } M/H_2/c & C_s^2 \ge 1 \\
        \text{Tijms-van Hoorn-Federgruen, } C_s^2\, W_{M/M/c} + (1 - C_s^2)\, W_{M/D/c} & C_s^2 < 1 \end{cases}

    M/H2/c, up to 32 servers, is the exact queue whose service has two phases and the same three moments; the last line
    is Tijms' interpolation between exact values. One server, M/M/c, M/D/c and laws that are two exponential phases (up
    to 256 servers, beyond which those bound the wait) are exact instead.

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
    lam, s, c, scv, _ = leading_arguments(arrival_rate, service_time, servers, service_scv, law=law)
    return as_result(over_queues(solve_conservative, lam, s, c, scv, np.zeros(lam.shape), law)[0])


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

    .. math:: W_q = \max\begin{cases}
        \text{Tijms-van Hoorn-Federgruen, Cosmetatos, FleetOpt, } M/H_2/c & C_s^2 \ge 1 \\
        \text{Tijms-van Hoorn-Federgruen, } C_s^2\, W_{M/M/c} + (1 - C_s^2)\, W_{M/D/c} & C_s^2 < 1 \end{cases}

    M/H2/c, up to 32 servers, is the exact queue whose service has two phases and the same three moments; the last line
    is Tijms' interpolation between exact values. One server, M/M/c, M/D/c and laws that are two exponential phases (up
    to 256 servers, beyond which those bound the wait) are exact instead.

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
