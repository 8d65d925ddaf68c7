r"""Nested WAIT: thresholds per segment of the output when output lengths are not known in advance.

All requests have the prompt l; a share of them ends at l_1' < l_2' < ... < l_m' decode iterations, with rates lambda_1..m.
Segment k serves stages l_{k-1}'+1 .. l_k' (segment 1 the prefill too), n_k requests per stage. With
:math:`\Lambda_k=\sum_{j\ge k}\lambda_j`, a request entering segment k-1 reaches segment k with probability
:math:`p_k=\Lambda_k/\Lambda_{k-1}`.

References
----------
Ao, Luo, Simchi-Levi, Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling with Memory Constraints",
arXiv:2504.11320, section 5 and appendix E. Eq. 13 and the segment design are corrected as in the authors' later
revision (as printed, the bound covers 0% to 100% of runs instead of 90%); the bound on theta_k has n_{k-1} below it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from planner.fluid.numeric import exact, expm1_minus_linear, out, sign_checked, whole
from planner.fluid.wait import MOST_STEPS, floor_snapped, inexact, token_iterations
from planner.shared.mathematics import need


@dataclass(frozen=True, slots=True)
class ThetaK:
    """Decay rate of the queue in front of a segment.

    Parameters
    ----------
    theta
        Root of eq. 20 [1/request]: 0 where the segment cannot keep up (no positive root; its bound is infinite), inf
        where the queue never exceeds n_k.
    lower_bound
        8 (n_k - p n_{k-1})/n_{k-1}, eq. 22 [1/request].
    printed_bound
        8 (n_k - p n_{k-1})/n_k, Theorems 2 and 4, which is false [1/request].
    stable
        Whether n_k > p n_{k-1}.
    """

    theta: float
    lower_bound: float
    printed_bound: float
    stable: bool


def _log1p_excess(y: float) -> float:
    """ln(1 + y) - y without cancellation."""
    if abs(y) > 0.4:
        return math.log1p(y) - y
    total, power = 0.0, -y
    for n in range(2, 60):
        power *= -y
        term = power / n
        total -= term
        if abs(term) <= 1e-18 * abs(total):
            break
    return total


def _above_mean(theta: float, p: float, q: float) -> float:
    """ln(1 + p (e^theta - 1)) - p theta without cancellation, from the smaller of p and q = 1 - p."""
    if theta > 1.0:
        if theta > 30.0:
            return q * theta + math.log(p + q * math.exp(-theta))
        if p <= 0.5:
            return math.log1p(p * math.expm1(theta)) - p * theta
        return q * theta + math.log1p(q * math.expm1(-theta))
    if p <= 0.5:
        return _log1p_excess(p * math.expm1(theta)) + p * expm1_minus_linear(theta)
    return _log1p_excess(q * math.expm1(-theta)) + q * expm1_minus_linear(-theta)


def theta_k(n_k: Any, n_km1: Any, p: Any) -> ThetaK:
    r"""Decay rate of the queue in front of segment k, eq. 20.

    .. math:: -\theta n_k + n_{k-1}\ln(1 + p_k(e^\theta - 1)) = 0,\quad \theta > 0

    Theorems 2 and 4 print :math:`\theta_k \ge 8(n_k-n_{k-1}p_k)/n_k`; with n = (40, 26), p = .5 the root is 1.28 and that
    "bound" 1.85. The denominator is n_{k-1} (eq. 22). Near the limits the two small differences, n_k/n_{k-1} - p and
    1 - n_k/n_{k-1}, are formed exactly.

    Parameters
    ----------
    n_k, n_km1
        Thresholds of this and the previous segment [1], > 0.
    p
        Probability of reaching this segment [1], in [0, 1].

    Returns
    -------
    ThetaK
        theta = 0 for n_k <= p n_{k-1}; inf for n_k >= n_{k-1}, or p = 0.

    Examples
    --------
    >>> round(theta_k(5, 8, "0.5").theta, 12)
    1.044260719697
    >>> theta_k(4, 8, "0.5").theta, theta_k(8, 8, "0.5").theta
    (0.0, inf)
    """
    here, before = sign_checked(n_k, "n_k", True), sign_checked(n_km1, "n_km1", True)
    share = sign_checked(p, "p")
    need(share <= 1, f"p must lie in [0, 1], got {p!r}")
    drift = here - share * before
    if inexact(n_k, n_km1, p) and abs(drift) <= Fraction(1, 10**12) * here:
        drift = Fraction(0)
    lower, printed = out(8 * drift / before), out(8 * drift / here)
    if here >= before or (share == 0 and drift > 0):
        return ThetaK(math.inf, lower, printed, True)
    if drift <= 0:
        return ThetaK(0.0, lower, printed, False)
    delta, epsilon = out(drift / before), out((before - here) / before)
    pp, q = out(share), out(1 - share)
    if delta <= 0.5 * q:

        def f(theta: float) -> float:
            return _above_mean(theta, pp, q) / theta - delta

        guess = 2.0 * delta / (pp * q)
    else:

        def f(theta: float) -> float:
            # -ln(p + q e^-theta)/theta falls from q to 0
            if pp <= 0.5:
                return epsilon - (-math.log(pp + q * math.exp(-theta))) / theta
            return epsilon - (-math.log1p(q * math.expm1(-theta))) / theta

        guess = -math.log(pp) / epsilon if pp < 0.5 else -math.log1p(-q) / epsilon
    from scipy.optimize import brentq

    low = high = guess
    while f(low) > 0.0:
        low /= 2.0
    while f(high) < 0.0:
        high *= 2.0
    root = low if low == high else brentq(f, low, high, xtol=5e-324, rtol=8.9e-16)
    return ThetaK(root, lower, printed, True)


@dataclass(frozen=True, slots=True)
class NestedMemory:
    """Memory of the full nested batch.

    Parameters
    ----------
    corrected
        M^pi [tokens].
    printed_eq13
        As printed in version 2 [tokens]: too small for short lengths, too large for long ones.
    """

    corrected: float
    printed_eq13: float


def _ends(lps: Sequence[Any]) -> list[Fraction]:
    ends = [sign_checked(v, "lps") for v in lps]
    increase = ends and all(a < b for a, b in itertools.pairwise(ends))
    need(increase, "lps (decode iterations at the end of each segment) must be given and increase")
    return ends


def _counts(n: Sequence[Any], ends: Sequence[Fraction], least: int = 0) -> list[int]:
    need(len(n) == len(ends), f"n must have one threshold per segment, got {len(n)} for {len(ends)}")
    return [whole(v, "n", least) for v in n]


def _memory(n: Sequence[int], l: Fraction, ends: Sequence[Fraction]) -> Fraction:
    total = n[0] * token_iterations(l, ends[0])
    for k in range(1, len(ends)):
        stages = ends[k] - ends[k - 1]
        total += n[k] * stages * (l + (ends[k - 1] + 1 + ends[k]) / 2)
    return total


def nested_M_pi(n: Sequence[Any], l: Any, lps: Sequence[Any]) -> NestedMemory:
    r"""Memory of the full nested batch, eq. 13 corrected.

    .. math:: M^\pi = n_1(l_1'+1)(l+\tfrac{l_1'}2) +
              \sum_{k\ge2} n_k(l_k'-l_{k-1}')\Big(l+\frac{l_{k-1}'+1+l_k'}2\Big)

    Printed: :math:`\sum_k n_k(l_k'-l_{k-1}')(l+\frac{l_1'+\dots+l_k'}2)`, which forgets the prefill stage of segment 1
    (m = 1, l = l' = 1, n = 4: 6 instead of 12) and averages the wrong stages.

    Parameters
    ----------
    n
        Thresholds [1].
    l
        Prompt [tokens].
    lps
        Last decode iteration of each segment [1], increasing.

    Returns
    -------
    NestedMemory
        [tokens].

    Examples
    --------
    >>> nested_M_pi([40, 26, 14], 4, [2, 5, 9])
    NestedMemory(corrected=1868.0, printed_eq13=1657.0)
    """
    ends, prompt = _ends(lps), sign_checked(l, "l")
    counts = _counts(n, ends)
    printed, so_far, before = Fraction(0), Fraction(0), Fraction(0)
    for k, end in zip(counts, ends, strict=True):
        so_far += end
        printed += k * (prompt + so_far / 2) * (end - before)
        before = end
    return NestedMemory(out(_memory(counts, prompt, ends)), out(printed))


@dataclass(frozen=True, slots=True)
class NestedRequirement:
    """Memory that suffices with probability 1 - delta.

    Parameters
    ----------
    base
        M^pi [tokens].
    det
        What waits in front of the segments deterministically, sum of (l + l_{k-1}') n_k [tokens].
    sto
        Random part, sum of (l + l_{k-1}') ln((m-1)B/delta)/theta_k [tokens]; inf where a segment cannot keep up.
    total
        base + det + sto [tokens].
    stable
        Whether every segment keeps up.
    queue_mean
        Mean queue in front of segments 2..m, at most [requests].
    """

    base: float
    det: float
    sto: float
    total: float
    stable: bool
    queue_mean: tuple[float, ...]


def _tail_rates(lambdas: Sequence[Any], m: int) -> list[Fraction]:
    """Rate of the requests that reach segment k, for every k; in the unit given."""
    rates = [sign_checked(v, "lambdas") for v in lambdas]
    need(len(rates) == m, f"lambdas must have one rate per segment, got {len(rates)} for {m}")
    tails = [*itertools.accumulate(reversed(rates))][::-1]
    need(tails[0] > 0, "lambdas: at least one rate must be > 0")
    return tails


def nested_M_req(
    n: Sequence[Any], l: Any, lps: Sequence[Any], lambdas: Sequence[Any], B: Any, delta: Any
) -> NestedRequirement:
    r"""Memory that is not exceeded in B iterations with probability 1 - delta, eq. 14 (with M^pi corrected).

    .. math:: C \ge M^\pi + \sum_{k=2}^m(l+l_{k-1}')\Big(n_k+\theta_k^{-1}\ln\frac{(m-1)B}{\delta}\Big)

    Covered 100% of 200 runs in 5 of 5 simulated settings (mean peak 81% to 98% of the bound); with eq. 13 as printed 0%,
    14%, 0%, 100%, 100%.

    Parameters
    ----------
    n
        Thresholds [1].
    l
        Prompt [tokens].
    lps
        Last decode iteration of each segment [1], increasing.
    lambdas
        Rate of the requests that end in each segment [requests/s].
    B
        Iterations covered [1], >= 1; at most 1 + horizon/d0 (:func:`nested_iterations`).
    delta
        Probability of exceeding it [1], in (0, 1).

    Returns
    -------
    NestedRequirement
        ``total`` is inf and ``stable`` false where n_k <= p_k n_{k-1} for some k.

    Examples
    --------
    >>> nested_M_req([8, 5], 1, [1, 2], [1, 1], 1000, "0.1").total
    66.63992496940949
    >>> nested_M_req([15, 14, 12, 8], 10, [20, 40, 80, 160], [20, 40, 80, 160], 10**6, "1e-5").stable
    False
    """
    ends, prompt = _ends(lps), sign_checked(l, "l")
    counts = _counts(n, ends, 1)
    tails = _tail_rates(lambdas, len(ends))
    steps, risk = exact(B, "B"), exact(delta, "delta")
    need(steps >= 1, f"B must be >= 1, got {B!r}")
    need(0 < risk < 1, f"delta must lie in (0, 1), got {delta!r}")
    return _requirement(counts, prompt, ends, tails, steps, risk, inexact(*lambdas))


def _log_of(x: Fraction) -> float:
    return math.log(x.numerator) - math.log(x.denominator) if x > 10**300 else math.log(float(x))


def _requirement(
    counts: Sequence[int], l: Fraction, ends: Sequence[Fraction], tails: Sequence[Fraction], B: Fraction,
    delta: Fraction, inexact: bool,
) -> NestedRequirement:  # fmt: skip
    """Memory, excess and stability of thresholds, segment by segment."""
    base = _memory(counts, l, ends)
    det, sto, stable, means = Fraction(0), 0.0, True, []
    margin = _log_of((len(ends) - 1) * B / delta) if len(ends) > 1 else 0.0
    for k in range(1, len(ends)):
        held = l + ends[k - 1]
        det += held * counts[k]
        if tails[k] == 0:  # nobody gets this far
            means.append(0.0)
            continue
        p = tails[k] / tails[k - 1]
        root = theta_k(counts[k], counts[k - 1], float(p) if inexact else p)
        stable = stable and root.stable
        sto += float(held) * (margin / root.theta if root.theta > 0.0 else math.inf)
        drift = counts[k] - p * counts[k - 1]
        spread = counts[k - 1] * p * (1 - p)
        means.append(out(counts[k] + spread / (2 * drift)) if root.stable and drift > 0 else math.inf)
        if root.stable and drift <= 0:  # n_k = n_{k-1}, p = 1: exactly n_k arrive and leave
            means[-1] = float(counts[k])
    return NestedRequirement(out(base), out(det), sto, out(base + det) + sto, stable, tuple(means))


def nested_iterations(horizon: Any, d0: Any) -> int:
    """Most iterations in a horizon, 1 + floor(horizon/d0).

    Parameters
    ----------
    horizon
        [s], >= 0.
    d0
        Shortest iteration [s], > 0.

    Returns
    -------
    int
        B [1].

    Examples
    --------
    >>> nested_iterations(3600, "0.02")
    180001
    """
    return 1 + math.floor(sign_checked(horizon, "horizon") / sign_checked(d0, "d0", True))


@dataclass(frozen=True, slots=True)
class NestedThresholds:
    """Least whole thresholds of Nested WAIT.

    Parameters
    ----------
    n
        Thresholds per segment [1]; empty when overloaded.
    dT
        Duration of the full batch [s].
    M_pi
        Its memory [tokens].
    p
        Probability of reaching each segment from the one before, first entry 1 [1].
    stable
        Whether thresholds exist (d1 S < 1).
    least
        Whether n_1 is proven least.
    """

    n: tuple[int, ...]
    dT: float
    M_pi: float
    p: tuple[float, ...]
    stable: bool = True
    least: bool = True


def _chain(n1: int, shares: Sequence[Fraction], snap: bool) -> list[int]:
    counts = [n1]
    for p in shares[1:]:
        counts.append(floor_snapped(p * counts[-1], snap) + 1)
    return counts


def nested_thresholds(lambdas: Sequence[Any], l: Any, lps: Sequence[Any], d0: Any, d1: Any) -> NestedThresholds:
    r"""Least whole thresholds with :math:`d_0+d_1M^\pi < n_1/\Lambda_1` and :math:`n_k > p_kn_{k-1}`, eq. 12.

    p_k is the share that goes on from segment k-1 to k (eq. 12 of the paper indexes it one lower than Theorem 2).

    Parameters
    ----------
    lambdas
        Rate of the requests that end in each segment [requests/s].
    l
        Prompt [tokens].
    lps
        Last decode iteration of each segment [1], increasing.
    d0, d1
        Time of an iteration [s] and per KV token [s/token].

    Returns
    -------
    NestedThresholds
        ``stable`` is false and n empty when d1 S >= 1.

    Examples
    --------
    >>> t = nested_thresholds([5, 3, 2], 4, [2, 5, 9], "0.05", "0.001")
    >>> t.n, t.stable
    ((2, 2, 1), True)
    >>> nested_thresholds([5, 3, 2], 4, [2, 5, 9], "0.05", "0.005").stable
    False
    """
    ends, prompt = _ends(lps), sign_checked(l, "l")
    tails = _tail_rates(lambdas, len(ends))
    fixed, per_token = sign_checked(d0, "d0"), sign_checked(d1, "d1")
    snap = inexact(d0, d1, l, *lambdas, *lps)
    shares = [Fraction(1)] + [b / a if a else Fraction(0) for a, b in itertools.pairwise(tails)]
    arriving = zip(tails, [*tails[1:], Fraction(0)], ends, strict=True)
    S = sum(((here - beyond) * token_iterations(prompt, end) for here, beyond, end in arriving), Fraction(0))
    slack = 1 - per_token * S
    p = tuple(out(v) for v in shares)
    if slack <= 0:
        return NestedThresholds((), math.inf, math.inf, p, False)
    least = True
    # n_k > p_k n_{k-1} makes M^pi at least its fluid value: a lower bound to start from
    n1 = max(1, math.floor(tails[0] * fixed / slack))
    for _ in range(max(200, MOST_STEPS // len(ends))):
        dT = fixed + per_token * _memory(_chain(n1, shares, snap), prompt, ends)
        new = max(n1, floor_snapped(tails[0] * dT, snap) + 1)
        if new == n1:
            break
        n1 = new
    else:
        least = False
        # n_k <= p_k n_{k-1} + 1: memory is at most its fluid value plus a constant
        extra, carry = Fraction(0), Fraction(0)
        for k in range(1, len(ends)):
            carry = shares[k] * carry + 1
            extra += carry * (ends[k] - ends[k - 1]) * (prompt + (ends[k - 1] + 1 + ends[k]) / 2)
        n1 = math.floor(tails[0] * (fixed + per_token * extra) / slack) + 1
    counts = _chain(n1, shares, snap)
    memory = _memory(counts, prompt, ends)
    return NestedThresholds(tuple(counts), out(fixed + per_token * memory), out(memory), p, True, least)


@dataclass(frozen=True, slots=True)
class NestedDesign:
    """A number of segments and what it needs.

    Parameters
    ----------
    segments
        L [1].
    ends
        Last decode iteration of each segment [1].
    lambdas
        Rate of the requests that end in each [requests/s].
    thresholds
        Least thresholds for them.
    requirement
        Memory over the horizon [tokens].
    """

    segments: int
    ends: tuple[float, ...]
    lambdas: tuple[float, ...]
    thresholds: NestedThresholds
    requirement: NestedRequirement

    @property
    def memory(self) -> float:
        """Memory that suffices with the promised probability [tokens]."""
        return self.requirement.total


def nested_design(
    lambdas: Sequence[Any],
    l: Any,
    lps: Sequence[Any],
    d0: Any,
    d1: Any,
    horizon: Any,
    delta: Any,
    segments: Iterable[int] | None = None,
) -> tuple[NestedDesign, ...]:
    """Group output lengths into L segments, eq. 16 and 17, for every L asked for; least memory first.

    Consecutive lengths form a segment that ends at the longest of them; segment memory is that of eq. 13 corrected (the
    paper's sum n_k (l + k DL/2) DL is 8% to 43% too low). Few segments keep requests in longer than needed, many make
    more queues with a random part each.

    Parameters
    ----------
    lambdas
        Rate of the requests that end at each length [requests/s].
    l
        Prompt [tokens].
    lps
        Output lengths [decode iterations], increasing.
    d0, d1
        Time of an iteration [s] and per KV token [s/token]; d0 > 0.
    horizon
        Time covered [s].
    delta
        Probability of exceeding the memory in the horizon [1].
    segments
        Numbers of segments to try [1]; default all up to 50, then in steps of a tenth.

    Returns
    -------
    tuple of NestedDesign
        Stable designs by memory; empty at overload.

    Examples
    --------
    >>> designs = nested_design([2300, 800, 300, 100], 60, [50, 100, 150, 200], "0.02", "1e-8", 3600, "0.01")
    >>> designs[0].segments, designs[0].thresholds.n
    (4, (99, 34, 12, 4))
    """
    ends = _ends(lps)
    m = len(ends)
    rates = [sign_checked(v, "lambdas") for v in lambdas]
    _tail_rates(lambdas, m)
    B = nested_iterations(horizon, d0)
    risk = exact(delta, "delta")
    if segments is None:
        tried, size = list(range(1, min(m, 50) + 1)), 50
        while size < m:
            size = min(m, max(size + 1, round(size * 1.1)))
            tried.append(size)
    else:
        tried = sorted({whole(s, "segments", 1) for s in segments})
    given_inexactly = inexact(d0, d1, l, *lambdas, *lps)
    designs = []
    for L in tried:
        if m < L:
            continue
        cuts = [-(-k * m // L) for k in range(1, L + 1)]
        last = [ends[c - 1] for c in cuts]
        grouped = [sum(rates[a:c], Fraction(0)) for a, c in zip([0, *cuts], cuts, strict=False)]
        chosen = nested_thresholds(grouped, l, last, exact(d0, "d0"), exact(d1, "d1"))
        if not chosen.stable:
            continue
        need = _requirement(chosen.n, exact(l, "l"), last, _tail_rates(grouped, L), Fraction(B), risk, given_inexactly)
        if need.stable:
            designs.append(
                NestedDesign(L, tuple(float(v) for v in last), tuple(float(v) for v in grouped), chosen, need)
            )
    return tuple(sorted(designs, key=lambda d: (d.memory, d.segments)))
