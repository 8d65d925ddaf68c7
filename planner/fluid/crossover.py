r"""Mixed or exclusive batching? Throughput of both, where they cross, and the rule by which EB+ switches.

A mixed iteration costs alpha_MB + beta_MB per token, an exclusive one alpha_p + beta_p per prompt token or alpha_d +
beta_d per decode. Mixed batching launches fewer iterations; exclusive batching may process a token more cheaply.

References
----------
"Threshold-Based Exclusive Batching for LLM Inference", section 3.5, Propositions 3.4, appendices A.4 and D.6.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from planner.fluid.exclusive import _check_costs, _need, _throughput, fixed_time_at_best
from planner.fluid.numeric import exact, fifty_digits, out, reals

__all__ = [
    "TP_MB",
    "Crossover",
    "N_crossover",
    "beta_EB",
    "beta_MB_from_kernel_time",
    "compare_batching",
    "crossover_rhs",
    "crossover_rhs_closed",
    "eb_plus_mode",
    "kappa",
    "kernel_time",
    "mixing_gap",
    "occupancy_average",
]


@fifty_digits()
def TP_MB(N: Any, alpha_MB: Any, beta_MB: Any, mu_L: Any, mu_O: Any) -> Any:
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
    N, alpha_MB, beta_MB, mu_L, mu_O = reals(N=N, alpha_MB=alpha_MB, beta_MB=beta_MB, mu_L=mu_L, mu_O=mu_O)
    _need(N > 0, "N must be > 0")
    _check_costs(alpha_MB=alpha_MB, beta_MB=beta_MB, mu_L=mu_L, mu_O=mu_O)
    return _throughput(alpha_MB * (1 + mu_O), N, beta_MB * (mu_L + mu_O))


@fifty_digits()
def beta_EB(beta_p: Any, beta_d: Any, mu_L: Any, mu_O: Any) -> Any:
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
    beta_p, beta_d, mu_L, mu_O = reals(beta_p=beta_p, beta_d=beta_d, mu_L=mu_L, mu_O=mu_O)
    _need(mu_L + mu_O > 0, "mu_L + mu_O must be > 0")
    return out((beta_p * mu_L + beta_d * mu_O) / (mu_L + mu_O))


@fifty_digits()
def crossover_rhs(N: Any, k: Any, alpha_p: Any, alpha_d: Any, alpha_MB: Any, mu_L: Any, mu_O: Any, zeta: Any) -> Any:
    r"""Right side of eq. 7 at any k: mixed batching is better iff beta_MB - beta_EB is below it.

    .. math:: \frac1{\mu_L+\mu_O}\Big[\frac{\alpha_p+\alpha_d\zeta\mu_O}{k} - \frac{\alpha_{MB}(1+\mu_O)}{N}\Big]

    Parameters
    ----------
    N, k
        Slots and idle slots at refill [1], > 0.
    alpha_p, alpha_d, alpha_MB
        Fixed time of a prefill, decode, mixed iteration [s/iteration].
    mu_L, mu_O
        Mean prompt and output length [tokens].
    zeta
        -ln(1 - k/N) [1] (the paper: of theta0).

    Returns
    -------
    float or ndarray
        [s/token]; can be negative.

    Examples
    --------
    >>> crossover_rhs(32, 3, "0.02", "0.01", "0.012", 512, 256, "0.122449189857648058783543100936")
    1.924692970294229e-05
    """
    N, k, alpha_p, alpha_d, alpha_MB, mu_L, mu_O, zeta = reals(
        N=N, k=k, alpha_p=alpha_p, alpha_d=alpha_d, alpha_MB=alpha_MB, mu_L=mu_L, mu_O=mu_O, zeta=zeta
    )
    _need((N > 0) & (k > 0), "N and k must be > 0")
    _need(mu_L + mu_O > 0, "mu_L + mu_O must be > 0")
    return out(((alpha_p + alpha_d * zeta * mu_O) / k - alpha_MB * (1 + mu_O) / N) / (mu_L + mu_O))


def _advantage(alpha_p: Any, alpha_d: Any, alpha_MB: Any, mu_O: Any) -> Any:
    # N (mu_L + mu_O) times the right side of eq. 7 at k = theta0 N
    return fixed_time_at_best(alpha_p, alpha_d, mu_O) - alpha_MB * (1 + mu_O)


@fifty_digits()
def crossover_rhs_closed(N: Any, alpha_p: Any, alpha_d: Any, alpha_MB: Any, mu_L: Any, mu_O: Any) -> Any:
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
    N, alpha_p, alpha_d, alpha_MB, mu_L, mu_O = reals(
        N=N, alpha_p=alpha_p, alpha_d=alpha_d, alpha_MB=alpha_MB, mu_L=mu_L, mu_O=mu_O
    )
    _need(N > 0, "N must be > 0")
    _need(mu_L + mu_O > 0, "mu_L + mu_O must be > 0")
    _check_costs(alpha_p=alpha_p, alpha_d=alpha_d, alpha_MB=alpha_MB, mu_L=mu_L, mu_O=mu_O)
    return out(_advantage(alpha_p, alpha_d, alpha_MB, mu_O) / (N * (mu_L + mu_O)))


@fifty_digits()
def N_crossover(
    alpha_p: Any, alpha_d: Any, alpha_MB: Any, beta_MB: Any, beta_p: Any, beta_d: Any, mu_L: Any, mu_O: Any
) -> Any:
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
    alpha_p, alpha_d, alpha_MB, beta_MB, beta_p, beta_d, mu_L, mu_O = reals(
        alpha_p=alpha_p, alpha_d=alpha_d, alpha_MB=alpha_MB, beta_MB=beta_MB, beta_p=beta_p, beta_d=beta_d,
        mu_L=mu_L, mu_O=mu_O,
    )  # fmt: skip
    _check_costs(alpha_p=alpha_p, alpha_d=alpha_d, alpha_MB=alpha_MB, mu_L=mu_L, mu_O=mu_O)
    above = _advantage(alpha_p, alpha_d, alpha_MB, mu_O)
    below = beta_MB * (mu_L + mu_O) - beta_p * mu_L - beta_d * mu_O
    if isinstance(above, Decimal):
        if below == 0:
            return math.copysign(math.inf, above) if above else 0.0
        return out(above / below)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = above / below
    return np.where(np.isnan(ratio), 0.0, ratio)


@dataclass(frozen=True, slots=True)
class Crossover:
    """Which batching is faster, and for how many slots.

    Parameters
    ----------
    better
        ``"mixed"`` or ``"exclusive"`` at the given N.
    N_crossover
        Where they are equal [1]; any sign.
    exclusive_from, exclusive_below
        Exclusive batching is faster for exclusive_from < N < exclusive_below [1]; (inf, inf) = never.
    TP_mixed, TP_exclusive
        Throughput of each at N, exclusive at exactly k = theta0 N [requests/s].
    gap
        beta_MB - beta_EB [s/token].
    rhs
        Right side of eq. 7 [s/token].
    """

    better: str
    N_crossover: float
    exclusive_from: float
    exclusive_below: float
    TP_mixed: float
    TP_exclusive: float
    gap: float
    rhs: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@fifty_digits()
def compare_batching(
    N: Any, alpha_p: Any, alpha_d: Any, alpha_MB: Any, beta_MB: Any, beta_p: Any, beta_d: Any, mu_L: Any, mu_O: Any
) -> Crossover:
    """Compare mixed and exclusive batching at N slots, and say for which N which one wins.

    With a gap beta_MB - beta_EB > 0 exclusive batching wins for N > N_crossover (for all N if that is <= 0). With a gap
    <= 0 mixed batching wins for all N if its fixed cost is lower as well, else for N > N_crossover.

    Parameters
    ----------
    N
        Slots [1], > 0.
    alpha_p, alpha_d, alpha_MB
        Fixed time of a prefill, decode, mixed iteration [s/iteration].
    beta_MB, beta_p
        Time per token of a mixed iteration, per prefill token [s/token].
    beta_d
        Time per decoding request [s/(request iteration)].
    mu_L, mu_O
        Mean prompt and output length [tokens], > 0.

    Returns
    -------
    Crossover
        At equality ``better`` is ``"mixed"``, as in EB+.

    Examples
    --------
    >>> c = compare_batching(256, "0.02", "0.01", "0.012", "2.4e-5", "2e-5", "4e-5", 512, 256)
    >>> c.better, c.exclusive_from, round(c.exclusive_below, 1)
    ('mixed', 0.0, 93.0)
    """
    N, alpha_p, alpha_d, alpha_MB, beta_MB, beta_p, beta_d, mu_L, mu_O = reals(
        N=N, alpha_p=alpha_p, alpha_d=alpha_d, alpha_MB=alpha_MB, beta_MB=beta_MB, beta_p=beta_p, beta_d=beta_d,
        mu_L=mu_L, mu_O=mu_O,
    )  # fmt: skip
    _need(N > 0, "N must be > 0")
    _need((mu_L >= 0) & (mu_O > 0), "mu_O must be > 0 and mu_L >= 0")
    _check_costs(alpha_p=alpha_p, alpha_d=alpha_d, alpha_MB=alpha_MB)
    above = _advantage(alpha_p, alpha_d, alpha_MB, mu_O)
    below = beta_MB * (mu_L + mu_O) - beta_p * mu_L - beta_d * mu_O
    equal = above / below if below else Decimal(math.inf) * (1 if above > 0 else -1) if above else Decimal(0)
    # exclusive wins iff below > above/N
    if below > 0:
        first, last = max(equal, Decimal(0)), Decimal(math.inf)
    elif above < 0:
        first, last = Decimal(0), (equal if below else Decimal(math.inf))
    else:
        first = last = Decimal(math.inf)
    tokens = mu_L + mu_O
    exclusive = beta_p * mu_L + beta_d * mu_O
    return Crossover(
        "exclusive" if below > above / N else "mixed",
        out(equal),
        out(first),
        out(last),
        _throughput(alpha_MB * (1 + mu_O), N, beta_MB * tokens),
        _throughput(fixed_time_at_best(alpha_p, alpha_d, mu_O), N, exclusive),
        out(below / tokens),
        out(above / N / tokens),
    )


@fifty_digits()
def eb_plus_mode(
    beta_MB: Any, beta_EB: Any, alpha_p: Any, alpha_d: Any, alpha_MB: Any, mu_L: Any, mu_O: Any, theta0: Any, zeta: Any,
    N_obs: Any, delta: Any = 0,
) -> str:  # fmt: skip
    r"""EB+'s rule, eq. 8: exclusive iff the cost gap exceeds eq. 7's right side at the observed occupancy plus delta.

    .. math:: \beta_{MB}(r) - \beta_{EB} > \frac{(\alpha_p+\alpha_d\zeta\mu_O)/\theta_0 - \alpha_{MB}(1+\mu_O)}
              {N_{obs}(\mu_L+\mu_O)} + \delta, \quad r = \frac{\mu_O}{\mu_L+\mu_O}

    The paper's delta = 1e-5 s/token is as large as the differences it reports, so that exclusive mode is hardly ever
    chosen; hence the default 0.

    Parameters
    ----------
    beta_MB
        Time per token of mixed batches at decode ratio r [s/token].
    beta_EB
        :func:`beta_EB` [s/token].
    alpha_p, alpha_d, alpha_MB
        Fixed time of a prefill, decode, mixed iteration [s/iteration].
    mu_L, mu_O
        Mean prompt and output length [tokens].
    theta0, zeta
        Solution of eq. 3 [1].
    N_obs
        Smoothed number of residents (:func:`occupancy_average`) [1], > 0.
    delta
        Margin [s/token]; > 0 favours mixed.

    Returns
    -------
    str
        ``"exclusive"`` or ``"mixed"``.

    Examples
    --------
    >>> eb_plus_mode(6e-5, 2.7e-5, 0.02, 0.01, 0.012, 512, 256, 0.1153, 0.1224, N_obs=8)
    'exclusive'
    """
    gap, other, alpha_p, alpha_d, alpha_MB, mu_L, mu_O, theta0, zeta, N_obs, delta = reals(
        beta_MB=beta_MB, beta_EB=beta_EB, alpha_p=alpha_p, alpha_d=alpha_d, alpha_MB=alpha_MB, mu_L=mu_L, mu_O=mu_O,
        theta0=theta0, zeta=zeta, N_obs=N_obs, delta=delta,
    )  # fmt: skip
    _need(theta0 > 0, "theta0 must be > 0")
    _need(N_obs > 0, "N_obs must be > 0")
    rhs = ((alpha_p + alpha_d * zeta * mu_O) / theta0 - alpha_MB * (1 + mu_O)) / (N_obs * (mu_L + mu_O))
    return "exclusive" if gap - other > rhs + delta else "mixed"


def occupancy_average(previous: float | None, residents: float, weight: float) -> float:
    """Exponential average of the number of residents, one step per iteration.

    Parameters
    ----------
    previous
        Value before [1]; ``None`` before the first iteration.
    residents
        Requests holding a slot in this iteration [1].
    weight
        Weight of the new value [1], in (0, 1].

    Returns
    -------
    float
        New value [1].

    Examples
    --------
    >>> occupancy_average(None, 8, 0.1), occupancy_average(8.0, 18, 0.1)
    (8.0, 9.0)
    """
    return float(residents) if previous is None else (1.0 - weight) * previous + weight * residents


def kappa(c0: Any, c1: Any, c2: Any) -> float:
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
    a, b, c = exact(c0, "c0"), exact(c1, "c1"), exact(c2, "c2")
    if a + b + c == 0:
        raise ValueError("c0 + c1 + c2 (the time of a pure decode iteration) must not be 0")
    return float(out(2 * c / (a + b + c)))


@fifty_digits()
def kernel_time(r: Any, c0: Any, c1: Any, c2: Any) -> Any:
    """K(r) = c0 + c1 r + c2 r^2, time of an iteration with decode ratio r at a fixed number of tokens.

    Parameters
    ----------
    r
        Decode tokens as a share of all tokens [1], in [0, 1]; scalar or array.
    c0, c1, c2
        Coefficients [s/iteration].

    Returns
    -------
    float or ndarray
        [s/iteration].

    Examples
    --------
    >>> kernel_time(0.5, 1, 2, 4)
    3.0
    """
    r, c0, c1, c2 = reals(r=r, c0=c0, c1=c1, c2=c2)
    _need((r >= 0) & (r <= 1), "r must lie in [0, 1]")
    return out(c0 + r * (c1 + r * c2))


@fifty_digits()
def mixing_gap(r: Any, c2: Any) -> Any:
    """K(r) minus the straight line between pure prefill and pure decode, -c2 r (1 - r).

    Parameters
    ----------
    r
        Decode ratio [1], in [0, 1].
    c2
        Quadratic coefficient of K [s/iteration].

    Returns
    -------
    float or ndarray
        [s/iteration]; negative = mixing saves time.

    Examples
    --------
    >>> mixing_gap(0.5, 4)
    -1.0
    """
    r, c2 = reals(r=r, c2=c2)
    _need((r >= 0) & (r <= 1), "r must lie in [0, 1]")
    return out(-c2 * r * (1 - r))


@fifty_digits()
def beta_MB_from_kernel_time(r: Any, c0: Any, c1: Any, c2: Any, tokens: Any, alpha_MB: Any = 0) -> Any:
    """Time per token of mixed batches from K(r): (K(r) - alpha_MB)/tokens.

    Appendix A.4 identifies the coefficients of K [s/iteration] with those of beta [s/token] and omits the division.

    Parameters
    ----------
    r
        Decode ratio [1], in [0, 1].
    c0, c1, c2
        Coefficients of K [s/iteration].
    tokens
        Tokens per iteration at which K was measured [tokens], > 0.
    alpha_MB
        Fixed time contained in K [s/iteration].

    Returns
    -------
    float or ndarray
        [s/token].

    Examples
    --------
    >>> beta_MB_from_kernel_time(0.5, 1, 2, 4, tokens=100)
    0.03
    """
    r, c0, c1, c2, tokens, alpha_MB = reals(r=r, c0=c0, c1=c1, c2=c2, tokens=tokens, alpha_MB=alpha_MB)
    _need(tokens > 0, "tokens must be > 0")
    return out((c0 + r * (c1 + r * c2) - alpha_MB) / tokens)
