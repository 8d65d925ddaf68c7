"""Waiting times of M/G/c by published approximations, side by side, and the fewest servers by one of them.

Every approximation takes the same leading arguments ``(arrival_rate, service_time, servers, service_scv)``, then the quantile, and
the keyword `law`. With a `law` (`planner.queueing.service.ServiceLaw`, any shape) its moments replace `service_scv`.

All return 0 without load, inf where ``arrival_rate * service_time >= servers``, and never NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from planner.queueing.erlang import as_result, decay_rate, smallest_integer, smallest_real_servers
from planner.queueing.mgc_moments import (
    mean_wait_fleetopt,
    mean_wait_kimura,
    wait_quantile_fleetopt,
    wait_quantile_kimura,
)
from planner.queueing.service import ServiceLaw

__all__ = [
    "ServiceLaw",
    "mean_wait_fleetopt",
    "mean_wait_kimura",
    "min_replicas",
    "wait_quantile_fleetopt",
    "wait_quantile_kimura",
]


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
