r"""Mixed or exclusive batching? Throughput of both, where they cross, and the rule by which EB+ switches.

A mixed iteration costs alpha_MB + beta_MB per token, an exclusive one alpha_p + beta_p per prompt token or alpha_d +
beta_d per decode. Mixed batching launches fewer iterations; exclusive batching may process a token more cheaply.

References
----------
"Threshold-Based Exclusive Batching for LLM Inference", section 3.5, Propositions 3.4, appendices A.4 and D.6.
"""

from __future__ import annotations

import math
from decimal import Decimal

from planner.fluid.exclusive import check_costs, fixed_time_at_best, throughput
from planner.fluid.numeric import formula
from planner.shared.mathematics import need


@formula()
def TP_MB(N: Decimal, alpha_MB: Decimal, beta_MB: Decimal, mu_L: Decimal, mu_O: Decimal) -> Decimal:
    r"""Throughput of mixed batching with N slots always full, section 3.5.

    .. math:: 1/TP = \alpha_{MB}(1+\mu_O)/N + \beta_{MB}(\mu_L+\mu_O)

    Within 0.25% of simulation.

    Parameters
    ----------
    N
        Slots [1], > 0; scalar or array.
    alpha_MB
        Fixed time of a mixed iteration [s/iteration].
    beta_MB
        Time per token of a mixed iteration [s/token].
    mu_L, mu_O
        Mean prompt and output length [tokens].

    Returns
    -------
    float or ndarray
        Throughput [requests/s].

    Examples
    --------
    >>> round(TP_MB(32, "0.012", "2.2e-5", 512, 256), 9)
    8.828385024
    """
    need(N > 0, "N must be > 0")
    check_costs(alpha_MB=alpha_MB, beta_MB=beta_MB, mu_L=mu_L, mu_O=mu_O)
    return throughput(alpha_MB * (1 + mu_O), N, beta_MB * (mu_L + mu_O))


@formula()
def beta_EB(beta_p: Decimal, beta_d: Decimal, mu_L: Decimal, mu_O: Decimal) -> Decimal:
    r"""Time per token of exclusive batching, :math:`(\beta_p\mu_L + \beta_d\mu_O)/(\mu_L + \mu_O)`.

    Parameters
    ----------
    beta_p
        Time per prefill token [s/token].
    beta_d
        Time per decoding request [s/(request iteration)].
    mu_L, mu_O
        Mean prompt and output length [tokens]; not both 0.

    Returns
    -------
    float or ndarray
        [s/token].

    Examples
    --------
    >>> beta_EB("2e-5", "4e-5", 256, 256)
    3e-05
    """
    need(mu_L + mu_O > 0, "mu_L + mu_O must be > 0")
    return (beta_p * mu_L + beta_d * mu_O) / (mu_L + mu_O)


def _advantage(alpha_p: Decimal, alpha_d: Decimal, alpha_MB: Decimal, mu_O: Decimal) -> Decimal:
    """N (mu_L + mu_O) times the right side of eq. 7 at k = theta0 N."""
    return fixed_time_at_best(alpha_p, alpha_d, mu_O) - alpha_MB * (1 + mu_O)


@formula()
def crossover_rhs_closed(
    N: Decimal, alpha_p: Decimal, alpha_d: Decimal, alpha_MB: Decimal, mu_L: Decimal, mu_O: Decimal
) -> Decimal:
    r"""Right side of eq. 7 at exactly k = theta0 N.

    .. math:: \frac{\alpha_d\mu_O/(1-\theta_0) - \alpha_{MB}(1+\mu_O)}{N(\mu_L+\mu_O)}

    Called the amortised fixed-cost advantage of mixed batching, it is negative whenever alpha_MB (1 + mu_O) exceeds
    alpha_d mu_O/(1 - theta0): then exclusive batching wins even at equal cost per token.

    Parameters
    ----------
    N
        Slots [1], > 0; scalar or array.
    alpha_p, alpha_d, alpha_MB
        Fixed time of a prefill, decode, mixed iteration [s/iteration].
    mu_L, mu_O
        Mean prompt and output length [tokens].

    Returns
    -------
    float or ndarray
        [s/token].

    Examples
    --------
    >>> crossover_rhs_closed(256, "0.02", "0.01", "0.012", 512, 256)
    -9.690860695618742e-07
    """
    need(N > 0, "N must be > 0")
    need(mu_L + mu_O > 0, "mu_L + mu_O must be > 0")
    check_costs(alpha_p=alpha_p, alpha_d=alpha_d, alpha_MB=alpha_MB, mu_L=mu_L, mu_O=mu_O)
    return _advantage(alpha_p, alpha_d, alpha_MB, mu_O) / (N * (mu_L + mu_O))


@formula()
def N_crossover(
    alpha_p: Decimal, alpha_d: Decimal, alpha_MB: Decimal, beta_MB: Decimal, beta_p: Decimal, beta_d: Decimal,
    mu_L: Decimal, mu_O: Decimal,
) -> Decimal:  # fmt: skip
    r"""Slots at which mixed and exclusive batching are equally fast.

    .. math:: N^\times = \frac{\alpha_d\mu_O/(1-\theta_0) - \alpha_{MB}(1+\mu_O)}
              {(\beta_{MB}-\beta_{EB})(\mu_L+\mu_O)}

    How to read it is in :func:`compare_batching`, which also handles the signs. Inside or within 5% of the bracket of an exact
    chain in 9 of 9 settings.

    Parameters
    ----------
    alpha_p, alpha_d, alpha_MB
        Fixed time of a prefill, decode, mixed iteration [s/iteration].
    beta_MB, beta_p
        Time per token of a mixed iteration, per prefill token [s/token].
    beta_d
        Time per decoding request [s/(request iteration)].
    mu_L, mu_O
        Mean prompt and output length [tokens].

    Returns
    -------
    float or ndarray
        Slots [1], any sign; +-inf at equal cost per token, 0 where neither term differs.

    Examples
    --------
    >>> round(N_crossover("0.02", "0.01", "0.012", "2.4e-5", "2e-5", "4e-5", 512, 256), 9)
    93.032262678
    """
    check_costs(alpha_p=alpha_p, alpha_d=alpha_d, alpha_MB=alpha_MB, mu_L=mu_L, mu_O=mu_O)
    above = _advantage(alpha_p, alpha_d, alpha_MB, mu_O)
    below = beta_MB * (mu_L + mu_O) - beta_p * mu_L - beta_d * mu_O
    if below == 0:
        return Decimal(math.inf).copy_sign(above) if above else Decimal(0)
    return above / below


@formula()
def kappa(c0: Decimal, c1: Decimal, c2: Decimal) -> Decimal:
    r"""Curvature of the time of a mixed iteration in the decode ratio, eq. 11.

    .. math:: \kappa = \frac{2c_2}{c_0+c_1+c_2}, \quad K(r) = c_0 + c_1 r + c_2 r^2

    kappa > 0 (convex): a mixed batch takes less than its parts in proportion, by kappa K(1) r(1-r)/2.

    Parameters
    ----------
    c0, c1, c2
        Coefficients of K [s/iteration].

    Returns
    -------
    float
        [1].

    Raises
    ------
    ValueError
        K(1) = c0 + c1 + c2 is 0.

    Examples
    --------
    >>> kappa("1", "6", "-5.9")
    -10.727272727272727
    """
    need(c0 + c1 + c2 != 0, "c0 + c1 + c2 (the time of a pure decode iteration) must not be 0")
    return 2 * c2 / (c0 + c1 + c2)
