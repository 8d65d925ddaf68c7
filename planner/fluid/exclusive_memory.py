r"""KV memory of exclusive batching: how many slots fit, as the paper prints it and as it holds.

Under constant hazard p0 and refilling at the share theta of idle slots, a slot holds its prompt plus its age. With
:math:`\zeta = -\ln(1-\theta)` everything depends on :math:`(1-\theta)\zeta/\theta = \zeta/(e^\zeta-1)`, the mean age of a
slot at the start of a phase in units of 1/p0.

References
----------
"Threshold-Based Exclusive Batching for LLM Inference", Proposition 3.3 and appendix D.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from statistics import NormalDist
from typing import Any

import numpy as np

from planner.fluid.exclusive import check_costs, zeta_of_theta
from planner.fluid.numeric import expm1, formula
from planner.shared.mathematics import EXACT_BELOW, FEW_LONGEST, FEW_SHARE, FIXED_CV, LATTICE, need, tail_of_sum

_ZERO, _ONE = Decimal(0), Decimal(1)


@dataclass(frozen=True, slots=True)
class Vbar:
    """Variance rate of the memory per unit of drift, appendix D.3 and D.4.

    Parameters
    ----------
    approx
        1/(p0^2 mu_L), as eq. 6 uses it [tokens].
    exact_vn
        With the exact one-step variance [tokens].
    """

    approx: float
    exact_vn: float


@formula(record=Vbar)
def vbar(p0: Decimal, mu_L: Decimal, var_L: Decimal = _ZERO) -> tuple[Decimal, ...]:
    r"""Variance rate in eq. 6.

    .. math:: \bar v = \frac1{p_0^2\mu_L}, \qquad
       \bar v_{ex} = \frac{\sigma_L^2 + (1-p_0)/p_0^2 + (1-p_0)(\mu_L+1/p_0)^2}{2\mu_L}

    The approximation needs p0 mu_L << 1: it is 2.5 times too small at p0 mu_L = 1 and 41 times at 8.

    Parameters
    ----------
    p0
        Hazard [1/iteration], in (0, 1].
    mu_L, var_L
        Mean [tokens] and variance [tokens^2] of the prompt; mu_L > 0.

    Returns
    -------
    Vbar
        [tokens].

    Examples
    --------
    >>> vbar("0.004", 100, 10000)
    Vbar(approx=625.0, exact_vn=971.3)
    """
    need(0 < p0 <= 1, "p0 must lie in (0, 1]")
    need(mu_L > 0, "mu_L must be > 0")
    check_costs(var_L=var_L)
    inverse = 1 / p0
    rest = 1 - p0
    variance = var_L + rest * inverse * inverse + rest * (mu_L + inverse) ** 2
    return inverse * inverse / mu_L, variance / (2 * mu_L)


def _age_share(zeta: Decimal) -> Decimal:
    """(1-theta) zeta/theta = zeta/(e^zeta - 1): 1 at theta = 0, 0 at theta = 1."""
    if zeta == 0:
        return Decimal(1)
    return zeta / expm1(zeta) if zeta.is_finite() else Decimal(0)


@dataclass(frozen=True, slots=True)
class NBounds:
    """The batch sizes of eq. 6 and appendix D.5, before any "C too small" is drawn from them.

    Parameters
    ----------
    N_static
        floor(C/D): mean occupancy at the start of a phase equals C [1].
    N_expected
        floor((C - vbar)/D) [1].
    N_star
        floor((C - vbar ln(1/eps))/D), printed as safe with probability 1 - eps, which it is not [1].
    N_star_real
        N_star before rounding down [1].
    infeasible
        Whether N_star < 1: C is too small for this formula. The values can then be 0 or negative.
    """

    N_static: int
    N_expected: int
    N_star: int
    N_star_real: float
    infeasible: bool


@formula(record=NBounds)
def N_bounds(C: Decimal, eps: Decimal, mu_L: Decimal, p0: Decimal, theta: Decimal) -> tuple[Any, ...]:
    r"""Batch sizes of eq. 6 (Proposition 3.3) and appendix D.5, as printed.

    .. math:: N^* = \Big\lfloor\frac{C - \bar v\ln(1/\epsilon)}{D}\Big\rfloor, \quad
              D = \mu_L + \frac{(1-\theta)\zeta}{\theta p_0}, \quad \bar v = \frac1{p_0^2\mu_L}

    **The promised Pr(peak > C) <= eps does not hold** (simulated 0.03 to 1.00 instead of 0.01): a completion inside a
    phase does not release what the drift assumes, the margin does not grow with N as the spread does, and the bound is
    per phase. Use :func:`exclusive_slots` for measured lengths, :func:`N_corr` for a closed form.

    Parameters
    ----------
    C
        KV capacity [tokens], > 0.
    eps
        Printed risk [1], in (0, 1].
    mu_L
        Mean prompt [tokens], > 0.
    p0
        Hazard [1/iteration], in (0, 1].
    theta
        Share of idle slots at refill [1], in [0, 1].

    Returns
    -------
    NBounds
        Sizes [1]; arrays where an argument is one.

    Examples
    --------
    >>> N_bounds(50000, "0.01", 128, "0.0009765625", "0.3")
    NBounds(N_static=51, N_expected=42, N_star=12, N_star_real=12.522193263754712, infeasible=False)
    >>> N_bounds(1000, "0.01", 512, "0.00390625", "0.3").infeasible
    True
    """
    need(C > 0, "C must be > 0")
    need(0 < eps <= 1, "eps must lie in (0, 1]")
    need(mu_L > 0, "mu_L must be > 0")
    need(0 < p0 <= 1, "p0 must lie in (0, 1] (a fitted p0 <= 0? use 1/mu_O)")
    per_slot = mu_L + _age_share(zeta_of_theta(theta)) / p0
    rate = 1 / (p0 * p0 * mu_L)
    star = (C + rate * eps.ln()) / per_slot
    floored = math.floor(star)
    return math.floor(C / per_slot), math.floor((C - rate) / per_slot), floored, star, floored < 1


def _peak(mu_L: Decimal, p0: Decimal, zeta: Decimal) -> tuple[Decimal, Decimal, Decimal, Decimal]:
    """Time of the mean peak, share still decoding then, mean prompt plus age then, mean peak per slot."""
    t_m = max((1 - _age_share(zeta) - p0 * mu_L) / p0, Decimal(0))  # (1 - y)/p0
    alive = (-p0 * t_m).exp()
    mean = mu_L + _age_share(zeta) / p0 + t_m
    return t_m, alive, mean, alive * mean


@formula()
def fluid_peak_per_slot(mu_L: Decimal, p0: Decimal, theta: Decimal) -> Decimal:
    r"""Largest mean memory per slot within a decode phase (corrects appendix D.2 to D.4).

    .. math:: m = \mu_L + \frac{(1-\theta)\zeta}{\theta p_0} = y/p_0 \ (y\ge1), \qquad e^{y-1}/p_0 \ (y<1)

    with :math:`y = p_0\mu_L + (1-\theta)\zeta/\theta`: for short prompts memory grows inside the phase, up to 1.78
    times its value at the start (mu_O = 128, mu_L = 2, theta = .9).

    Parameters
    ----------
    mu_L
        Mean prompt [tokens], >= 0.
    p0
        Hazard [1/iteration], in (0, 1].
    theta
        Share of idle slots at refill [1], in [0, 1].

    Returns
    -------
    float or ndarray
        Tokens per slot [tokens].

    Examples
    --------
    >>> round(fluid_peak_per_slot(128, "0.0009765625", "0.6"), 9)
    786.295199274
    """
    need(0 < p0 <= 1, "p0 must lie in (0, 1]")
    check_costs(mu_L=mu_L)
    return _peak(mu_L, p0, zeta_of_theta(theta))[3]


@dataclass(frozen=True, slots=True)
class NCorr:
    """Slots whose peak within one decode phase stays below C.

    Parameters
    ----------
    N
        floor(N_real) [1]; 0 where C is too small for a single slot.
    N_real
        Before rounding down [1].
    m, s
        Mean and standard deviation of one slot's memory at the time of the peak [tokens].
    t_m
        Iterations from the start of the phase to the peak of the mean [1].
    reliable
        False below 16 slots, where a normal sum is too optimistic (simulated up to 2.5% of iterations at eps = 1%): use
        :func:`exclusive_slots`.
    """

    N: int
    N_real: float
    m: float
    s: float
    t_m: float
    reliable: bool = True


@formula(record=NCorr)
def N_corr(
    C: Decimal, eps: Decimal, mu_L: Decimal, var_L: Decimal, p0: Decimal, theta: Decimal, phases: Decimal = _ONE
) -> tuple[Any, ...]:
    r"""Slots for which memory at the peak of a decode phase exceeds C with probability about eps (replaces eq. 6).

    .. math:: N = \Big\lfloor\Big(\frac{-zs+\sqrt{z^2s^2+4mC}}{2m}\Big)^2\Big\rfloor, \quad z = \Phi^{-1}(1-\epsilon)

    m and s of one slot at the time t_m at which the mean is largest; N slots are independent given the length of the
    phase, hence a normal sum. Simulated at eps = 0.01: memory exceeds C in 0.000 to 0.011 of the *iterations*, and in
    0.000 to 0.033 of the *phases* (the peak of the fluctuations is not at t_m, and phases are correlated). A horizon of H
    phases takes eps/H (argument `phases`) and can be a factor of two off likewise; :func:`exclusive_slots` with `phases`
    is the bound that holds. Only for (nearly) constant hazard: heavy tails of the output break it (lognormal, sigma = 1:
    10% to 18% of iterations instead of 1%); there, below 16 slots, and for any measured law, use :func:`exclusive_slots`.

    Parameters
    ----------
    C
        KV capacity [tokens], > 0.
    eps
        Risk per phase (or over all `phases`) [1], in (0, 1).
    mu_L, var_L
        Mean [tokens] and variance [tokens^2] of the prompt, >= 0.
    p0
        Hazard [1/iteration], in (0, 1].
    theta
        Share of idle slots at refill [1], in (0, 1).
    phases
        Decode phases the promise covers [1], >= 1.

    Returns
    -------
    NCorr
        N = 0 where not even one slot is safe.

    Examples
    --------
    >>> N_corr(115500, "0.01", 105, 0, "0.00357142857142857142857142857143", "0.3").N
    308
    """
    need(C > 0, "C must be > 0")
    need(0 < eps < 1, "eps must lie in (0, 1)")
    need(phases >= 1, "phases must be >= 1")
    need(0 < p0 <= 1, "p0 must lie in (0, 1] (a fitted p0 <= 0? use 1/mu_O)")
    need(0 < theta < 1, "theta must lie in (0, 1)")
    check_costs(mu_L=mu_L, var_L=var_L)
    zeta = zeta_of_theta(theta)
    t_m, alive, mean, m = _peak(mu_L, p0, zeta)
    age_variance = (zeta / p0 / theta) ** 2 * (1 - theta)
    s = (alive * (var_L + age_variance) + alive * (1 - alive) * mean * mean).sqrt()
    z = Decimal(-NormalDist().inv_cdf(float(eps / phases)))  # Phi^{-1}(1 - risk), for small risk too
    reach = (z * z * s * s + 4 * m * C).sqrt()
    # the root of m x^2 + z s x = C without cancellation on either side of z = 0
    root = 2 * C / (z * s + reach) if z > 0 else (reach - z * s) / (2 * m)
    real = root * root
    floored = math.floor(real)
    return floored, real, m, s, t_m, floored >= EXACT_BELOW


@dataclass(frozen=True, slots=True)
class ExclusiveSlots:
    """Slots whose memory exceeds C in at most a share eps of decode iterations.

    Parameters
    ----------
    N
        Slots [1]; 0 where not one fits.
    share
        Predicted share of decode iterations above C with N busy slots [1].
    T
        Decode iterations per phase [1].
    mean
        Mean memory of one slot, averaged over a phase [tokens].
    guards
        Why the prediction may be off, and what was done about it; empty in the ordinary case.
    """

    N: int
    share: float
    T: int
    mean: float
    guards: tuple[str, ...] = ()


_TIMES = 12
_CONCENTRATION = 0.18
"""Above this, outputs share too few lengths (two lengths, 80% and 20%: 2 to 13 times the promised share)."""
_ATOM = 0.05
"""Time-weighted share of a single output length above which it is felt (5% of requests at a limit: up to 2.5 times)."""
_WHOLE_BELOW = 64
"""Slots below which the phase is as long as whole slots make it."""


class _PhaseLaw:
    """Memory of one slot at some iterations of phases of T, on a lattice of `unit` tokens."""

    def __init__(self, L: Any, O: Any, w: Any, T: int) -> None:
        self.unit = max(1.0, float((L + O).max()) / LATTICE)
        count = min(_TIMES, T)
        times = np.unique(np.floor((np.arange(count) + 0.5) * T / count).astype(np.int64) + 1)
        per = w / float(w @ np.ceil(O / T))  # divided by sum_j S(jT) = 1/theta(T)
        size = math.ceil(float((L + O).max()) / self.unit) + 3
        self.x = np.arange(float(size))
        self.pmf = np.zeros((len(times), size))
        # in its (j+1)-th phase a request holds L + jT + t, if it still decodes: O >= jT + t. Taking the ages s = jT + t
        # downwards, the prompts of those alive only grow, so each request is added to their histogram once
        order = np.argsort(-O, kind="stable")
        place = L[order] / self.unit
        cell, weight = np.floor(place).astype(np.int64), per[order]
        part = place - cell  # split between neighbours: the mean is kept
        longest = int(O.max())
        ages = sorted(
            ((j * T + int(t), row) for row, t in enumerate(times) for j in range(longest // T + 1)), reverse=True
        )
        alive = np.searchsorted(-O[order], [-age for age, _ in ages], side="right")
        prompts, added, running = np.zeros(size), 0, np.zeros(len(times))
        for (age, row), count in zip(ages, alive, strict=True):
            if count > added:
                new = slice(added, int(count))
                prompts += np.bincount(cell[new], weight[new] * (1.0 - part[new]), size)
                prompts += np.bincount(cell[new] + 1, weight[new] * part[new], size)
                added = int(count)
            if added == 0:
                continue
            shift = int(age // self.unit)
            rest = age / self.unit - shift
            self.pmf[row, shift:] += (1.0 - rest) * prompts[: size - shift]
            self.pmf[row, shift + 1 :] += rest * prompts[: size - shift - 1]
            running[row] += float(prompts.sum())
        self.pmf[:, 0] += np.maximum(0.0, 1.0 - running)
        self.pmf /= self.pmf.sum(axis=1, keepdims=True)
        self.means = self.pmf @ self.x

    def share_above(self, N: int, C: float) -> float:
        """Share of iterations in which N independent slots hold more than C tokens."""
        limit = C / self.unit
        if N < EXACT_BELOW:
            length = 1 << math.ceil(math.log2(N * (self.x.size - 1) + 1))
            total = np.fft.irfft(np.fft.rfft(self.pmf, length) ** N, length)
            return float(np.mean(total[:, math.floor(limit) + 1 :].sum(axis=1).clip(0.0, 1.0)))
        level, held = math.floor(limit) + 0.5, [p > 0.0 for p in self.pmf]
        return float(np.mean([tail_of_sum(self.x[k], p[k], N, level) for p, k in zip(self.pmf, held, strict=True)]))


def exclusive_slots(
    C: float, eps: float, inputs: Any, outputs: Any, theta: float, weights: Any = None, phases: int | None = None
) -> ExclusiveSlots:
    r"""Largest N for which EB(theta N) exceeds C in at most a share eps of decode iterations, for any joint length law.

    In phases of T iterations a slot starts at age jT with probability S(jT)/sum_j S(jT), hence at iteration t of a phase
    holds L + jT + t, or nothing once it has finished. N slots add up independently (saddle point; convolution below 16
    slots); the tail is averaged over the phase. Exact as theta -> 0, where it is the stationary law of busy slots.
    With independent draws and N >= 16 the promise was kept in every setting simulated; what is known to break it is
    guarded and named in the result: outputs of few or (nearly) fixed lengths, which stay in step (every slot is given the
    longest request), one frequent length such as a limit (eps/4), and C below three longest requests (eps/4).

    Parameters
    ----------
    C
        KV capacity [tokens], > 0.
    eps
        Share of decode iterations above C [1], in (0, 1).
    inputs, outputs
        Sample of requests: prompt [tokens], >= 0, and output [tokens], >= 1; arrays of equal shape.
    theta
        Share of idle slots at refill [1], in (0, 1].
    weights
        Weight of each request [1]; default equal.
    phases
        Instead of the share of iterations, bound the probability that any of so many decode phases exceeds C, by the
        share times their iterations (union bound: on the safe side) [1].

    Returns
    -------
    ExclusiveSlots
        N = 0 where one slot alone breaks the promise.

    Examples
    --------
    >>> outputs = np.arange(1.0, 401.0)
    >>> s = exclusive_slots(20000, 0.01, 100.0 + 0.0 * outputs, outputs, theta=0.2)
    >>> s.N, s.share <= 0.01, s.guards
    (82, True, ())
    """
    need(C > 0.0, f"C must be > 0, got {C!r}")
    need(0.0 < eps < 1.0, f"eps must lie in (0, 1), got {eps!r}")
    need(0.0 < theta <= 1.0, f"theta must lie in (0, 1], got {theta!r}")
    need(phases is None or phases >= 1, f"phases must be >= 1, got {phases!r}")
    L, O, w = _requests(inputs, outputs, weights)
    T = _phase_length(O, w, theta)
    longest = float((L + O).max())
    laws = {T: _PhaseLaw(L, O, w, T)}
    mean = float(laws[T].means.mean()) * laws[T].unit
    if longest > C:
        return ExclusiveSlots(0, 1.0, T, mean, ("the longest request alone exceeds C",))
    atom, concentration = _lumps(O, w)
    if concentration > _CONCENTRATION:
        alike = "many outputs have (nearly) the same length and stay in step: every slot is given the longest request"
        return ExclusiveSlots(math.floor(C / longest), 0.0, T, mean, (alike,))
    often = "one output length is frequent (a limit?) and its requests end together: sized for a quarter of eps"
    tight = "C holds fewer than three of the longest requests: sized for a quarter of eps"
    found = {often: atom > _ATOM, tight: longest * FEW_LONGEST > C}
    guards = tuple(guard for guard, holds in found.items() if holds)
    risk = FEW_SHARE ** len(guards) * (eps if phases is None else eps / (phases * T))

    def share(N: int) -> float:
        length = T
        if N < _WHOLE_BELOW:  # of few slots, at most k - 1 are idle while k = floor(theta N) are waited for
            idle = (max(1, math.floor(theta * N)) - 1) / N
            length = _phase_length(O, w, idle) if idle > 0.0 else 1
            if length not in laws:
                laws[length] = _PhaseLaw(L, O, w, length)
        return laws[length].share_above(N, C)

    N = _largest(lambda slots: share(slots) <= risk)
    return ExclusiveSlots(N, share(max(N, 1)), T, mean, guards)


def _requests(inputs: Any, outputs: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Prompts, outputs in whole tokens and weights that sum to 1, of the requests that have any weight."""
    L, O = np.asarray(inputs, dtype=np.float64).ravel(), np.asarray(outputs, dtype=np.float64).ravel()
    w = np.ones(L.size) if weights is None else np.asarray(weights, dtype=np.float64).ravel()
    finite = L.size == O.size == w.size > 0 and np.isfinite(L).all() and np.isfinite(O).all()
    need(finite, "inputs, outputs and weights must be finite and of equal, positive size")
    signed = np.all(L >= 0.0) and np.all(O > 0.0) and np.all(w >= 0.0) and w.sum() > 0.0
    need(signed, "inputs must be >= 0, outputs > 0, weights >= 0 and not all 0")
    keep = w > 0.0
    return L[keep], np.ceil(O[keep]), w[keep] / w.sum()


def _largest(holds: Callable[[int], bool]) -> int:
    """Largest N that holds [1]; 0 where one does not. What holds is not monotone where slots are few: the end is looked at."""
    if not holds(1):
        return 0
    low, high = 1, 2
    while holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    while not holds(low):
        low -= 1
    return low


def _lumps(O: Any, w: Any) -> tuple[float, float]:
    """How much requests of equal output finish, and are replaced, together.

    The largest time-weighted share of one output length, and the sum of squared shares of lengths within 5% of each
    other (0.02 to 0.1 for smooth laws; 1 where the coefficient of variation is below 0.1).
    """
    weight = w * O / (w @ O)
    _, value = np.unique(O, return_inverse=True)
    _, near = np.unique(np.floor(np.log(O) / math.log(1.05)), return_inverse=True)
    shares = np.bincount(near, weight)
    mean = float(w @ O)
    varies = math.sqrt(max(0.0, float(w @ O**2) - mean * mean)) >= FIXED_CV * mean
    return float(np.bincount(value, weight).max()), float(shares @ shares) if varies else 1.0


def _phase_length(O: Any, w: Any, theta: float) -> int:
    # longest phase in which no more than theta of the slots fall idle (at least one iteration)
    longer = range(2, int(O.max()) + 1)
    return 1 + bisect_left(longer, True, key=lambda T: not 1.0 / float(w @ np.ceil(O / T)) <= theta)
