r"""Exclusive batching EB(k): when to interrupt decoding for prefill, and what throughput follows.

N slots decode together; once k of them are idle, one prefill phase refills them. Iterations cost alpha_p + beta_p per
prefill token, or alpha_d + beta_d per decoding request. For **any** independent output lengths and any k

.. math:: 1/TP = (\alpha_p + \alpha_d E[M])/E[K] + \beta_d\mu_O + \beta_p\mu_L,

M iterations and K completions per decode phase: every request decodes exactly O tokens, so beta_d and beta_p never move
the best k. :func:`theta_age_aware` minimises this for any law (recommended); :func:`theta0` is the closed form for
constant hazard; eq. 5 (:func:`dtheta_first_order`) and its exact counterpart (:func:`theta_fluid_reset`) belong to a
model that forgets the ages of running requests and are here to be compared with.

Memory of the slots is in :mod:`planner.fluid.exclusive_memory`, the online controller in
:mod:`planner.fluid.exclusive_controller`, the comparison with mixed batching in :mod:`planner.fluid.crossover`.

References
----------
"Threshold-Based Exclusive Batching for LLM Inference", sections 3.2 to 3.4 and appendices B, C.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from planner.fluid.numeric import (
    Array,
    Scalar,
    exact,
    expm1,
    expm1_minus_linear,
    formula,
    log1p,
    out,
    over_arrays,
    whole,
)
from planner.shared.mathematics import need

_AGE_TIE = 1e-12
"""Costs so close are one: they differ by rounding alone [1]."""
_ZERO = Decimal(0)


@dataclass(frozen=True, slots=True)
class Theta0:
    """Solution of eq. 3.

    Parameters
    ----------
    theta0
        Share of idle slots at which to refill [1]; rounds to 1 for g > 1e16.
    one_minus_theta0
        1 - theta0 without cancellation [1].
    zeta
        -ln(1 - theta0) [1].
    """

    theta0: float
    one_minus_theta0: float
    zeta: float


def check_costs(**named: Decimal | Fraction | float) -> None:
    """Refuse negative costs and lengths, by name."""
    for name, value in named.items():
        need(value >= 0, f"{name} must be >= 0")


def zeta_of(g: Decimal) -> Decimal:
    """Root of e^z - 1 - z = g, for g >= 0, by Newton's method; infinite for infinite g."""
    if not g.is_finite() or g == 0:
        return g
    if g < 1:
        zeta = (2 * g).sqrt()
    else:
        start = (1 + g).ln()
        zeta = (1 + g + start).ln()
    while True:
        step = (expm1_minus_linear(zeta) - g) / expm1(zeta)
        zeta -= step
        if abs(step) < zeta * Decimal("1e-30"):
            return zeta


@formula(infinite=("g",), record=Theta0)
def theta0(g: Decimal) -> tuple[Decimal, ...]:
    r"""Best share of idle slots for a constant hazard, eq. 3.

    .. math:: \frac{\theta}{1-\theta} + \ln(1-\theta) = g, \quad g = p_0\alpha_p/\alpha_d

    solved as :math:`e^\zeta - 1 - \zeta = g`, :math:`\theta = 1 - e^{-\zeta}`, by Newton's method. Lambert's W gives
    the same in theory, but its argument tends to -1/e for small g (half the digits lost) and underflows for g > 744.
    For a geometric law in whole iterations, take p0 -> -ln(1 - p0): then it is exact.

    Parameters
    ----------
    g
        p0 alpha_p/alpha_d [1], >= 0, scalar or array; inf allowed (alpha_d = 0: refill only when all are idle).

    Returns
    -------
    Theta0
        theta0, 1 - theta0 and zeta [1], in the shape of `g`. g = 0 gives 0: refill at once (k = 1).

    Raises
    ------
    ValueError
        g < 0 (happens with a fitted p0 < 0: use p0 = 1/mu_O).

    Examples
    --------
    >>> theta0(1).theta0
    0.6821555671006273
    >>> theta0("1e-20").zeta
    1.4142135623397617e-10
    >>> theta0([0.0, 0.1, 30.0]).theta0.round(4)
    array([0.    , 0.3405, 0.971 ])
    """
    need(g >= 0, f"g = p0 alpha_p/alpha_d must be >= 0, got {g} (a fitted p0 <= 0? use p0 = 1/mu_O)")
    zeta = zeta_of(g)
    # 1/(1-theta) = 1 + g + zeta avoids the error of exp(-zeta)
    rest = 1 / (1 + g + zeta) if g.is_finite() else Decimal(0)
    return -expm1(-zeta), rest, zeta


def theta0_of_costs(alpha_p: Any, alpha_d: Any, p0: Any = None, mu_O: Any = None, geometric: bool = False) -> Theta0:
    """theta0 from the costs of an iteration and either p0 or the mean output length.

    Parameters
    ----------
    alpha_p, alpha_d
        Fixed time of a prefill and of a decode iteration [s], >= 0; not both 0.
    p0
        Hazard of completing [1/iteration]; p0 <= 0 (which the paper's own fit produces) falls back to 1/`mu_O`.
    mu_O
        Mean output length [tokens].
    geometric
        Use -ln(1 - p0), exact for geometric lengths counted in whole iterations.

    Returns
    -------
    Theta0
        As :func:`theta0`. alpha_p = 0 gives 0 (k = 1), alpha_d = 0 gives 1 (k = N).

    Raises
    ------
    ValueError
        Negative costs, both costs 0, or neither a positive `p0` nor `mu_O`.

    Examples
    --------
    >>> round(theta0_of_costs(0.1, 0.005, p0=1 / 256).theta0, 12)
    0.309866820571
    >>> theta0_of_costs(0.1, 0.005, p0=-0.0017, mu_O=256) == theta0_of_costs(0.1, 0.005, mu_O=256)
    True
    >>> theta0_of_costs(0, 0.005, mu_O=9).theta0, theta0_of_costs(0.1, 0, mu_O=9).theta0
    (0.0, 1.0)
    """
    prefill, decode = exact(alpha_p, "alpha_p"), exact(alpha_d, "alpha_d")
    some = min(prefill, decode) >= 0 and prefill + decode > 0
    need(some, f"alpha_p and alpha_d must be >= 0 and not both 0, got {alpha_p!r} and {alpha_d!r}")
    hazard = exact(p0, "p0") if p0 is not None else Fraction(0)
    if hazard <= 0:
        mean = Fraction(0) if mu_O is None else exact(mu_O, "mu_O")
        need(mean > 0, f"p0 = {p0!r} is not positive and no mean output length mu_O > 0 is given to replace it")
        hazard = 1 / mean
    g: Scalar
    if decode == 0:
        g = math.inf
    elif not geometric:
        g = hazard * prefill / decode
    elif hazard >= 1:
        g = math.inf if prefill else 0
    else:
        g = _geometric_rate(hazard) * (prefill / decode)
    best: Theta0 = theta0(g)
    return best


@formula()
def _geometric_rate(p: Decimal) -> Decimal:
    """Hazard of the exponential law that geometric lengths of hazard `p` are."""
    return -log1p(-p)


def slots_to_refill(theta: Any, N: Any) -> Any:
    """Idle slots at which to refill: k = floor(theta N), at least 1 and at most N.

    The paper's floor alone gives 0 when theta N < 1, by which eq. 4 then divides.

    Parameters
    ----------
    theta
        Share of idle slots [1], scalar or array.
    N
        Slots [1], >= 1.

    Returns
    -------
    int or ndarray of int
        k [1].

    Examples
    --------
    >>> slots_to_refill(0.01, 8), slots_to_refill(0.5, 8), slots_to_refill(2.0, 8)
    (1, 4, 8)
    """

    def scalar(theta: Scalar, N: Scalar) -> int:
        slots = whole(N, "N", 1)
        return max(1, min(slots, math.floor(exact(theta, "theta") * slots)))

    return over_arrays(scalar, {"theta": theta, "N": N})


@formula()
def TP_EB(
    k: Decimal, N: Decimal, alpha_p: Decimal, alpha_d: Decimal, beta_p: Decimal, beta_d: Decimal, mu_L: Decimal,
    mu_O: Decimal,
) -> Decimal:  # fmt: skip
    r"""Throughput of exclusive batching with constant hazard, section 3.2.1.

    .. math:: 1/TP = \frac{\alpha_p - \alpha_d\mu_O\ln(1-k/N)}{k} + \beta_p\mu_L + \beta_d\mu_O

    Within 0.3% of simulation at N = 256. The fluid needs infinitely long to empty all slots, so k = N gives 0 there;
    with whole slots it is finite.

    Parameters
    ----------
    k
        Idle slots at which to refill [1], 0 < k <= N; scalar or array, need not be whole.
    N
        Slots [1].
    alpha_p, alpha_d
        Fixed time of a prefill, of a decode iteration [s/iteration].
    beta_p
        Time per prefill token [s/token].
    beta_d
        Time per decoding request [s/(request iteration)].
    mu_L, mu_O
        Mean prompt and output length [tokens].

    Returns
    -------
    float or ndarray
        Throughput [requests/s].

    Examples
    --------
    >>> round(TP_EB(16, 64, 0.5, 0.005, 2e-5, 4e-5, 512, 256), 9)
    13.378899046
    >>> TP_EB([32, 64], 64, 0.5, 0.005, 2e-5, 4e-5, 512, 256).round(3)
    array([15.666,  0.   ])
    """
    need(0 < k <= N, "k must lie in (0, N]")
    check_costs(alpha_p=alpha_p, alpha_d=alpha_d, beta_p=beta_p, beta_d=beta_d, mu_L=mu_L, mu_O=mu_O)
    weight = alpha_d * mu_O
    if k == N and weight:
        return Decimal(0)
    drained = weight * ((N - k) / N).ln() if weight else Decimal(0)
    return throughput(alpha_p - drained, k, beta_p * mu_L + beta_d * mu_O)


def throughput(per_phase: Decimal, completions: Decimal, per_request: Decimal) -> Decimal:
    """Requests per second; infinite where nothing takes time."""
    time = per_phase / completions + per_request
    return 1 / time if time else Decimal(math.inf)


@formula()
def TP_EB_opt(
    N: Decimal, alpha_p: Decimal, alpha_d: Decimal, beta_p: Decimal, beta_d: Decimal, mu_L: Decimal, mu_O: Decimal
) -> Decimal:
    r"""Throughput at exactly k = theta0 N with p0 = 1/mu_O, eq. 4 simplified.

    .. math:: 1/TP = \frac{\alpha_d\mu_O}{N(1-\theta_0)} + \beta_p\mu_L + \beta_d\mu_O,
              \quad \frac{\alpha_d\mu_O}{1-\theta_0} = \alpha_p + \alpha_d\mu_O(1+\zeta)

    Parameters
    ----------
    N
        Slots [1], > 0; scalar or array.
    alpha_p, alpha_d
        Fixed time of a prefill, of a decode iteration [s/iteration].
    beta_p, beta_d
        Time per prefill token [s/token], per decoding request [s/(request iteration)].
    mu_L, mu_O
        Mean prompt and output length [tokens]; mu_O > 0.

    Returns
    -------
    float or ndarray
        Throughput [requests/s].

    Examples
    --------
    >>> round(TP_EB_opt(64, 0.5, 0.005, 2e-5, 4e-5, 512, 256), 9)
    15.696788587
    """
    need(N > 0, "N must be > 0")
    need(mu_O > 0, "mu_O must be > 0")
    check_costs(alpha_p=alpha_p, alpha_d=alpha_d, beta_p=beta_p, beta_d=beta_d, mu_L=mu_L)
    return throughput(fixed_time_at_best(alpha_p, alpha_d, mu_O), N, beta_p * mu_L + beta_d * mu_O)


def fixed_time_at_best(alpha_p: Decimal, alpha_d: Decimal, mu_O: Decimal) -> Decimal:
    """alpha_d mu_O/(1 - theta0) [s] for numbers already read: N times the fixed time per request at k = theta0 N.

    >>> float(fixed_time_at_best(Decimal(1), Decimal(0), Decimal(9)))
    1.0
    """
    weight = alpha_d * mu_O
    return alpha_p + (weight * (1 + zeta_of(alpha_p / weight)) if weight else 0)


def zeta_of_theta(theta: Decimal) -> Decimal:
    """-ln(1 - theta), infinite at 1."""
    need(0 <= theta <= 1, "theta must lie in [0, 1]")
    return -log1p(-theta)


@formula()
def dtheta_first_order(p0: Decimal, eta: Decimal, theta0: Decimal, rho: Decimal = _ZERO) -> Decimal:
    r"""First-order change of the threshold for a hazard p0 + eta t, eq. 5, as printed.

    .. math:: \Delta\theta = \frac{\eta(1-\theta)^2}{p_0^2\theta}
              \Big[\zeta\Big(\frac{\theta}{1-\theta}-\frac\zeta2\Big) + \rho(\zeta-\theta)\Big]

    **Not recommended.** It is correct algebra for a model in which every refill makes all running requests young
    again. With true ages beta_d cancels, so the term in rho is an artefact; and the expansion leaves [0, 1] unless
    (eta/p0^2)(1 + rho) is below about 0.2. Use :func:`theta_age_aware`.

    Parameters
    ----------
    p0
        Hazard at the start [1/iteration], > 0.
    eta
        Slope of the hazard [1/iteration^2], >= 0.
    theta0
        Threshold for eta = 0 [1], in [0, 1].
    rho
        beta_d N/alpha_d [1], >= 0.

    Returns
    -------
    float or ndarray
        Change of theta [1]; 0 at eta = 0 and at both ends of theta0.

    Examples
    --------
    >>> round(dtheta_first_order(0.01, "0.0001", "0.435745466980525208943107704025", 10), 12)
    1.200646615908
    """
    need(p0 > 0, "p0 must be > 0 for eq. 5 (a fitted p0 <= 0? use p0 = 1/mu_O and eta = 0)")
    check_costs(eta=eta, rho=rho)
    zeta = zeta_of_theta(theta0)
    if not 0 < theta0 < 1:
        return Decimal(0)
    bracket = zeta * (expm1(zeta) - zeta / 2) + rho * expm1_minus_linear(-zeta)
    return eta * (1 - theta0) ** 2 / (p0 * p0 * theta0) * bracket


_PANELS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Ends of the panels of a Gauss-Legendre rule, doubling as the integrand decays."""
_GAUSS = np.polynomial.legendre.leggauss(32)


def _phase_nodes(zeta: float, p0: float, eta: float) -> tuple[Array, Array]:
    # Gauss-Legendre nodes and weights in time over one phase, panels of at most doubling exponent
    ends = np.array([0.0, *(z for z in _PANELS if z < zeta), min(zeta, 128.0)])
    times = 2.0 * ends / (p0 + np.sqrt(p0 * p0 + 2.0 * eta * ends) + 5e-324)
    half = 0.5 * np.diff(times)
    nodes = (times[:-1] + half)[:, None] + half[:, None] * _GAUSS[0]
    return nodes.ravel(), (half[:, None] * _GAUSS[1]).ravel()


def theta_fluid_reset(p0: Any, eta: Any, alpha_ratio: Any, rho: Any = 0) -> float:
    r"""Exact optimum of the model behind eq. 5 (hazard p0 + eta t measured from the start of the phase).

    Root of :math:`F(\zeta) = \frac{e^\zeta-1}{h} - T + \rho\big(\frac{1-e^{-\zeta}}{h} - \frac IN\big) =
    \alpha_p/\alpha_d`, :math:`h = \sqrt{p_0^2+2\eta\zeta}`. F falls, then rises, so the root is unique although F is
    not monotone (the paper's Lemma C.2 argues otherwise). **Not recommended**: see :func:`dtheta_first_order`.

    Parameters
    ----------
    p0
        Hazard at the start of the phase [1/iteration], >= 0.
    eta
        Slope [1/iteration^2], >= 0; not both 0.
    alpha_ratio
        alpha_p/alpha_d [iterations], >= 0.
    rho
        beta_d N/alpha_d [1], >= 0.

    Returns
    -------
    float
        theta [1]. For alpha_ratio = 0: 0 if p0^2 >= eta (1 + rho), else the positive root.

    Examples
    --------
    >>> round(theta_fluid_reset("0.00390625", "0.0000152587890625", 20, 1), 12)
    0.578942549738
    """
    if isinstance(alpha_ratio, float) and math.isinf(alpha_ratio) and alpha_ratio > 0:
        return 1.0
    named = {"p0": p0, "eta": eta, "alpha_ratio": alpha_ratio, "rho": rho}
    rational = {n: exact(v, n) for n, v in named.items()}
    check_costs(**rational)
    p, e, ratio, r = (float(v) for v in rational.values())
    need(p + e > 0, "p0 and eta must not both be 0")
    if e == 0.0:
        return float(theta0(rational["p0"] * rational["alpha_ratio"]).theta0)
    if ratio == 0.0 and rational["p0"] ** 2 >= rational["eta"] * (1 + rational["rho"]):
        return 0.0

    def excess(zeta: float) -> float:
        # every difference of nearly equal terms is taken analytically
        h = math.sqrt(p * p + 2.0 * e * zeta)
        length = 2.0 * zeta / (p + h)
        value = expm1_minus_linear(zeta) / h - 2.0 * e * zeta * zeta / (h * (p + h) ** 2)
        if r:
            s, w = _phase_nodes(zeta, p, e)
            left = (length - s) * (p + 0.5 * e * (length + s))
            value -= r * 2.0 * e / h * float(w @ (np.exp(-s * (p + 0.5 * e * s)) * left / (p + e * s + h)))
        return value - ratio

    from scipy.optimize import brentq

    high = 1.0
    while high < 700.0 and excess(high) < 0.0:
        high = min(2.0 * high, 700.0)
    low = min(high, 1.0) / 2.0
    while low > 1e-300 and excess(low) >= 0.0:
        high, low = low, low / 4.0
    return -math.expm1(-brentq(excess, low, high, xtol=5e-324, rtol=8.9e-16))


@dataclass(frozen=True, slots=True)
class AgeAware:
    """Best length of a decode phase and what follows from it.

    Parameters
    ----------
    T
        Decode iterations per phase [1].
    theta
        Share of slots that fall idle in it [1]: refill at k = round(theta N).
    cost
        (alpha_p/alpha_d + T)/theta [iterations]: N times the fixed time per request, in decode iterations.
    mu_O
        Mean output length of the law [tokens].
    """

    T: int
    theta: float
    cost: float
    mu_O: float

    def k(self, N: int) -> int:
        """Idle slots of `N` at which to refill [1].

        >>> AgeAware(45, 0.5077, 128.0, 64.0).k(64)
        32
        """
        return max(1, min(N, round(self.theta * N)))


def survival_sample(outputs: Any, weights: Any = None) -> Array:
    """P(O > t), t = 0..max(O)-1, of a sample of output lengths.

    Parameters
    ----------
    outputs
        Output lengths [tokens], >= 1; fractions are rounded up to whole iterations.
    weights
        Weights [1]; default equal.

    Returns
    -------
    ndarray, shape (ceil(max(outputs)),)
        Survival [1].

    Examples
    --------
    >>> survival_sample([1, 2, 4, 4])
    array([1.  , 0.75, 0.5 , 0.5 ])
    """
    lengths, share = _sample(outputs, weights)
    ended = np.bincount(lengths, weights=share)
    return np.asarray(1.0 - np.concatenate([[0.0], np.cumsum(ended)[1:-1]]), dtype=np.float64).clip(0.0, 1.0)


def _sample(outputs: Any, weights: Any) -> tuple[NDArrayInt, Array]:
    """Whole lengths and their shares."""
    if not isinstance(outputs, np.ndarray):
        outputs = [float(exact(o, "outputs")) for o in outputs]
    values = np.asarray(outputs, dtype=np.float64)
    lengths = values.ndim == 1 and values.size and np.all(np.isfinite(values) & (values > 0.0))
    need(lengths, "outputs must be a non-empty list of lengths > 0")
    share = np.ones(values.size) if weights is None else np.asarray(weights, dtype=np.float64)
    weighs = share.shape == values.shape and np.all(share >= 0.0) and share.sum() > 0.0
    need(weighs, "weights must be as many as outputs, >= 0 and not all 0")
    return np.ceil(values).astype(np.int64), share / share.sum()


NDArrayInt = np.ndarray[Any, np.dtype[np.int64]]


def theta_age_aware(survival: Any = None, alpha_ratio: Any = 0, outputs: Any = None, weights: Any = None) -> AgeAware:
    r"""Best refill threshold for any output-length law, with the true ages of running requests (recommended).

    .. math:: \theta(T) = 1\Big/\sum_{j\ge0} S(jT), \qquad
              \min_T\ (\alpha_p/\alpha_d + T)\sum_{j\ge0} S(jT)

    In phases of T iterations the stationary ages at a refill are multiples of T with weights S(jT). Replaces
    Theorem 3.2 (whose ages start afresh in every phase); geometric S gives eq. 3 with p0 -> -ln(1 - p0) up to whole T.

    Parameters
    ----------
    survival
        S(t) = P(O > t) at t = 0, 1, ... [1], S(0) = 1, not increasing; 0 beyond the last.
    alpha_ratio
        alpha_p/alpha_d [iterations], >= 0; inf (alpha_d = 0) gives theta = 1.
    outputs, weights
        Instead of `survival`: a sample of output lengths [tokens] and its weights [1].

    Returns
    -------
    AgeAware
        T, theta, cost, mu_O; of equal costs the smallest T.

    Raises
    ------
    ValueError
        `survival` is no survival function, or both or neither of `survival` and `outputs` given.

    Examples
    --------
    >>> theta_age_aware(outputs=range(32, 97), alpha_ratio=5)
    AgeAware(T=24, theta=0.3217821782178218, cost=90.12307692307692, mu_O=64.0)
    """
    need((survival is None) != (outputs is None), "give either survival or outputs")
    law: Any
    if outputs is None:
        law = s = np.asarray(survival, dtype=np.float64)
        falls = s.ndim == 1 and s.size and abs(s[0] - 1.0) < 1e-9 and np.all(np.diff(s) <= 1e-12) and np.all(s >= 0.0)
        need(falls, "survival must start at S(0) = 1, not increase and not fall below 0")
    elif weights is not None:
        law = survival_sample(outputs, weights)
    else:
        lengths, _ = _sample(outputs, None)
        # whole numbers: #{O > t}, so that sums are exact
        law = (lengths.size - np.concatenate([[0], np.cumsum(np.bincount(lengths))[1:-1]])).astype(np.int64)
    infinite = isinstance(alpha_ratio, float) and math.isinf(alpha_ratio)
    ratio = Fraction(0) if infinite else exact(alpha_ratio, "alpha_ratio")
    need(ratio >= 0, f"alpha_ratio must be >= 0, got {alpha_ratio!r}")
    last = int(np.flatnonzero(law > 0)[-1]) + 1  # a phase this long empties every slot
    mean = float(law.sum() / law[0])
    if infinite:
        return AgeAware(last, 1.0, math.inf, mean)

    def generations(T: int) -> Fraction:
        return Fraction(law[::T].sum().item()) / Fraction(law[0].item())

    a = float(ratio)
    best, candidates = math.inf, []
    for T in range(1, last + 1):
        if (a + T) > best * (1.0 + _AGE_TIE):
            break  # sum >= 1: no longer phase can be cheaper
        cost = (a + T) * float(law[::T].sum() / law[0])
        if cost <= best * (1.0 + _AGE_TIE):
            best = min(best, cost)
            candidates.append((cost, T))
    close = [T for cost, T in candidates if cost <= best * (1.0 + _AGE_TIE)]
    T = min(close, key=lambda t: ((ratio + t) * generations(t), t))
    total = generations(T)
    return AgeAware(T, out(1 / total), out((ratio + T) * total), mean)


@dataclass(frozen=True, slots=True)
class HazardFit:
    """Straight line through an empirical hazard.

    Parameters
    ----------
    p0
        Intercept [1/iteration]; can be <= 0.
    eta
        Slope [1/iteration^2].
    """

    p0: float
    eta: float


def hazard_fit(outputs: Sequence[Any], weights: str = "number at risk", t_max: Any = None) -> HazardFit:
    """Weighted least-squares line p0 + eta t through h(t) = #{O = t}/#{O >= t}, t = 1..t95 (section 3.4).

    The paper does not say its weights; with the number at risk the fit agrees with its appendix E.5. All sums are whole
    numbers, so the fit is exact. The intercept is **negative** for the paper's own synthetic workload (uniform on
    0.5..1.5 times the mean): then eq. 3, 5 and 6 are undefined; use p0 = 1/mu_O there.

    Parameters
    ----------
    outputs
        Output lengths [tokens], whole, >= 1.
    weights
        ``"number at risk"``, the only weighting.
    t_max
        Last t [iterations]; default (or any text) the 95th percentile, the ceil(0.95 n)-th smallest.

    Returns
    -------
    HazardFit
        p0 [1/iteration], eta [1/iteration^2]; eta = 0 when there is one t only.

    Examples
    --------
    >>> hazard_fit([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    HazardFit(p0=0.0, eta=0.045454545454545456)
    """
    need(weights == "number at risk", f"weights must be 'number at risk', got {weights!r}")
    lengths = sorted(o if type(o) is int and o >= 1 else whole(o, "outputs", 1) for o in outputs)
    n = len(lengths)
    need(n, "outputs must not be empty")
    last = lengths[-(-95 * n // 100) - 1] if t_max is None or isinstance(t_max, str) else whole(t_max, "t_max", 1)
    ended = np.bincount(lengths, minlength=last + 2)
    at_risk = n - np.concatenate([[0, 0], np.cumsum(ended[1:])])[: last + 1]  # index t: #{O >= t}
    ends, risk = [int(v) for v in ended[1 : last + 1]], [int(v) for v in at_risk[1:]]
    w, wt, wtt = (sum(r * t**power for t, r in enumerate(risk, 1)) for power in range(3))
    wh, wth = (sum(e * t**power for t, e in enumerate(ends, 1)) for power in range(2))
    spread = w * wtt - wt * wt
    if spread == 0:
        return HazardFit(float(Fraction(wh, w)), 0.0)
    return HazardFit(float(Fraction(wtt * wh - wt * wth, spread)), float(Fraction(w * wth - wt * wh, spread)))
