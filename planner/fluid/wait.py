r"""WAIT: batches that start when enough requests of a type wait; what it sustains, and its thresholds.

An iteration takes d0 + d1 per KV token it works on. A request of type j (prompt l_j, l_j' decode iterations, rate
lambda_j) costs :math:`W_j = \sum_{s=0}^{l_j'}(l_j+s) = (l_j'+1)(l_j+l_j'/2)` token-iterations, so with
:math:`S = \sum_j\lambda_jW_j` a replica keeps up iff d1 S < 1, and with finite memory only if the fluid memory M* fits.
Everything is exact rational arithmetic: the slack 1 - d1 S is never formed in double precision.

``types`` is a list of (lambda_j [requests/s], l_j [tokens], l_j' [decode iterations]). The paper's l' is output - 1.

References
----------
Ao, Luo, Simchi-Levi, Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling with Memory Constraints",
arXiv:2504.11320, sections 3 and 4. Errata: Theorem 1 needs C >= M^pi, not C >= M*; the thresholds of its section 6 are
not of the equilibrium's shape (:func:`wait_shape`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from planner.fluid.numeric import out, sign_checked, whole
from planner.shared.mathematics import need

Types = Sequence[Sequence[Any]]
"""Rows (rate [requests/s], prompt [tokens], decode iterations [1])."""

_WORK_LIMIT = 2_000_000
"""Elementary steps spent on the search of least thresholds before settling for valid ones."""
_PERIOD_LIMIT = 20_000
"""Steps of one period that are looked at one by one; with more the least fixed point is climbed to instead."""
MOST_STEPS = 50_000
"""Steps in double precision towards the least fixed point, from where exact ones go on; and upwards over all segments of Nested
WAIT before a value that is surely enough is taken instead of the least."""
_SNAP = Fraction(1, 10**9)
"""Relative distance within which a product of inexact numbers counts as the whole number next to it."""


def _rows(types: Types) -> list[tuple[Fraction, Fraction, Fraction]]:
    """Checked rows of (rate, prompt, decode iterations), exactly."""
    rows = []
    for row in types:
        need(len(row) == 3, "types: every row is (rate, prompt tokens, decode iterations)")
        names = ("types: rate", "types: prompt", "types: decode iterations")
        rate, prompt, decodes = (sign_checked(v, n) for v, n in zip(row, names, strict=True))
        rows.append((rate, prompt, decodes))
    need(rows, "types must not be empty")
    return rows


def token_iterations(prompt: Fraction, decodes: Fraction) -> Fraction:
    """Token-iterations of a request: (l' + 1)(l + l'/2)."""
    return (decodes + 1) * (prompt + decodes / 2)


def _work(rows: Sequence[tuple[Fraction, Fraction, Fraction]]) -> Fraction:
    """S, token-iterations arriving per second."""
    return sum((lam * token_iterations(l, o) for lam, l, o in rows), Fraction(0))


def inexact(*values: Any) -> bool:
    """Whether any value carries the rounding of binary numbers."""
    return any(isinstance(v, float) or hasattr(v, "_mpf_") for v in values)


@dataclass(frozen=True, slots=True)
class FluidEquilibrium:
    """Steady state of the fluid model.

    Parameters
    ----------
    S
        Token-iterations arriving per second [tokens iterations/s].
    dT
        Iteration time [s]; inf when overloaded.
    M
        KV tokens held [tokens]; inf when overloaded.
    n
        Requests of each type in the batch [1].
    stage
        Requests of each type at each stage [1].
    thr
        Output tokens per second, sum of lambda_j l_j' [tokens/s].
    slack
        1 - d1 S [1], exact before rounding.
    stable
        Whether slack > 0.
    """

    S: float
    dT: float
    M: float
    n: tuple[float, ...]
    stage: tuple[float, ...]
    thr: float
    slack: float
    stable: bool


def fluid_equilibrium(types: Types, d0: Any, d1: Any) -> FluidEquilibrium:
    r"""Fluid equilibrium, eq. 4 to 10.

    .. math:: M^* = \frac{d_0S}{1-d_1S},\quad \Delta T^* = \frac{d_0}{1-d_1S},\quad
              n_j^* = \lambda_j(l_j'+1)\Delta T^*,\quad thr^* = \sum_j\lambda_jl_j'

    (Version 1 of the paper counts l_j'+1 tokens in thr*.)

    Parameters
    ----------
    types
        Rows (lambda [requests/s], l [tokens], l' [decode iterations]).
    d0
        Fixed time of an iteration [s], >= 0.
    d1
        Time per KV token [s/token], >= 0.

    Returns
    -------
    FluidEquilibrium
        At overload (d1 S >= 1) dT, M, and n of every type that arrives are inf and ``stable`` is false.

    Examples
    --------
    >>> fluid_equilibrium([(4, 1, 1)], "0.4", "0.05").M
    12.0
    >>> fluid_equilibrium([(4, 1, 1)], 1, "0.083333333333333333333").slack
    4e-21
    """
    rows = _rows(types)
    fixed, per_token = sign_checked(d0, "d0"), sign_checked(d1, "d1")
    S = _work(rows)
    slack = 1 - per_token * S
    thr = sum((lam * o for lam, _, o in rows), Fraction(0))
    if slack <= 0:
        grows = tuple(math.inf if lam > 0 else 0.0 for lam, *_ in rows)
        return FluidEquilibrium(out(S), math.inf, math.inf, grows, grows, out(thr), out(slack), False)
    dT = fixed / slack
    return FluidEquilibrium(
        out(S),
        out(dT),
        out(dT * S),
        tuple(out(lam * (o + 1) * dT) for lam, _, o in rows),
        tuple(out(lam * dT) for lam, *_ in rows),
        out(thr),
        out(slack),
        True,
    )


def load_scale_max(types: Types, d0: Any, d1: Any, C: Any) -> float:
    r"""Factor by which all rates may grow before the fluid memory exceeds C: stable iff it is > 1.

    .. math:: c = \frac{C}{S(d_0+d_1C)}

    Stricter than d1 S < 1 (Proposition 1), which lets memory grow without limit.

    Parameters
    ----------
    types
        Rows (lambda [requests/s], l [tokens], l' [decode iterations]).
    d0, d1
        Time of an iteration [s] and per KV token [s/token].
    C
        KV capacity [tokens], >= 0; inf allowed.

    Returns
    -------
    float
        Factor [1]; inf where nothing arrives or iterations take no time; 0 for C = 0.

    Examples
    --------
    >>> load_scale_max([(4, 1, 1)], "0.4", "0.05", 12)
    1.0
    """
    rows = _rows(types)
    fixed, per_token = sign_checked(d0, "d0"), sign_checked(d1, "d1")
    S = _work(rows)
    if isinstance(C, float) and math.isinf(C) and C > 0:
        return math.inf if S * per_token == 0 else out(1 / (S * per_token))
    capacity = sign_checked(C, "C")
    if capacity == 0 and S > 0:
        return 0.0
    below = S * (fixed + per_token * capacity)
    return math.inf if below == 0 else out(capacity / below)


@dataclass(frozen=True, slots=True)
class WaitIteration:
    """The full batch of given thresholds.

    Parameters
    ----------
    dT
        Its duration [s].
    M_pi
        Its KV tokens, which resident memory never exceeds [tokens].
    """

    dT: float
    M_pi: float


def _counts(n: Sequence[Any], rows: Sequence[Any]) -> list[int]:
    need(len(n) == len(rows), f"n must have one threshold per type, got {len(n)} for {len(rows)}")
    return [whole(v, "n") for v in n]


def wait_dT(n: Sequence[Any], types: Types, d0: Any, d1: Any) -> WaitIteration:
    r"""Duration and memory of WAIT's full batch, eq. 11 and 18: :math:`d_0+d_1M^\pi`, :math:`M^\pi=\sum_jn_jW_j`.

    Parameters
    ----------
    n
        Thresholds, per type and stage [1].
    types
        Rows (lambda [requests/s], l [tokens], l' [decode iterations]).
    d0, d1
        Time of an iteration [s] and per KV token [s/token].

    Returns
    -------
    WaitIteration
        Duration [s], memory [tokens].

    Examples
    --------
    >>> wait_dT([4], [(4, 1, 1)], "0.4", "0.05")
    WaitIteration(dT=1.0, M_pi=12.0)
    """
    rows = _rows(types)
    memory = sum((k * token_iterations(l, o) for k, (_, l, o) in zip(_counts(n, rows), rows, strict=True)), Fraction(0))
    return WaitIteration(out(sign_checked(d0, "d0") + sign_checked(d1, "d1") * memory), out(memory))


def wait_queue_bound(n: Any, lam: Any, dT: Any) -> float:
    r"""Mean requests of a type outside the batch under strict thresholds (Kingman, Theorem 1).

    .. math:: E[W_j] \le 2n_j + \frac{\lambda_j\Delta T}{2(n_j-\lambda_j\Delta T)}

    Parameters
    ----------
    n
        Threshold [1].
    lam
        Rate [requests/s].
    dT
        Duration of the full batch [s].

    Returns
    -------
    float
        Requests [1]; inf where n <= lam dT.

    Examples
    --------
    >>> wait_queue_bound(1, 1, "0.95")
    11.5
    """
    count, arrivals = sign_checked(n, "n"), sign_checked(lam, "lam") * sign_checked(dT, "dT")
    return out(2 * count + arrivals / (2 * (count - arrivals))) if count > arrivals else math.inf


def wait_queue_bound_critical(n: Any, iterations: Any) -> float:
    r"""Mean queue of a type at equality n = lambda dT over B iterations, Lemma 5.

    .. math:: E[W_j] \le n_j + \sqrt{n_j}\sum_{b\le B}b^{-1/2} \le n_j + 2\sqrt{n_jB}

    (The sum is about 2 sqrt(B), not sqrt(B).)

    Parameters
    ----------
    n
        Threshold [1].
    iterations
        B [1].

    Returns
    -------
    float
        Requests [1].

    Examples
    --------
    >>> wait_queue_bound_critical(4, 10000)
    404.0
    """
    count = float(sign_checked(n, "n"))
    return count + 2.0 * math.sqrt(count * float(sign_checked(iterations, "iterations")))


@dataclass(frozen=True, slots=True)
class WaitThresholds:
    """Thresholds of WAIT and what they promise.

    Parameters
    ----------
    n
        Thresholds per type [1]; empty when overloaded.
    dT
        Duration of the full batch [s]; inf when overloaded.
    M_pi
        Memory of the full batch [tokens]; inf when overloaded.
    queue_bound
        Mean queue of each type, at most [requests].
    stable
        Whether d1 S < 1.
    least
        Whether n is proven to be the least solution (else: valid, and close).
    fits
        Whether M_pi <= C; true when no C was given.
    """

    n: tuple[int, ...]
    dT: float
    M_pi: float
    queue_bound: tuple[float, ...]
    stable: bool = True
    least: bool = True
    fits: bool = True


def floor_snapped(value: Fraction, snap: bool) -> int:
    """Floor; a value that rounding left just below a whole number is that number."""
    return math.floor(value + min(_SNAP * value, Fraction(1, 10**6))) if snap else math.floor(value)


class _Staircase:
    """The map n -> least n' with n'_j > lambda_j DT(n), in integers over common denominators."""

    def __init__(
        self,
        rates: Sequence[Fraction],
        weights: Sequence[Fraction],
        d0: Fraction,
        d1: Fraction,
        strict: bool,
        snap: bool,
    ) -> None:
        self.rates, self.weights, self.d0, self.d1, self.strict, self.snap = rates, weights, d0, d1, strict, snap
        self.rate_unit = math.lcm(*(r.denominator for r in rates))
        self.rate = [r.numerator * (self.rate_unit // r.denominator) for r in rates]
        weight_unit = math.lcm(*(w.denominator for w in weights))
        self.weight = [w.numerator * (weight_unit // w.denominator) for w in weights]
        unit = math.lcm(d0.denominator, d1.denominator)
        self.fixed = d0.numerator * (unit // d0.denominator) * weight_unit
        self.per_weight = d1.numerator * (unit // d1.denominator)
        self.unit = unit * weight_unit

    def duration(self, n: Sequence[int]) -> Fraction:
        total = sum(k * w for k, w in zip(n, self.weight, strict=True))
        return Fraction(self.fixed + self.per_weight * total, self.unit)

    def thresholds(self, x: Fraction) -> list[int]:
        top, below = x.numerator, self.rate_unit * x.denominator
        result = []
        for r in self.rate:
            arrivals = r * top
            slip = min(arrivals // 10**9, below // 10**6) if self.snap else 0
            n = (arrivals + slip) // below + 1 if self.strict else -((slip - arrivals) // below)
            result.append(max(1, n))
        return result

    def climb(self, x: Fraction) -> Fraction:
        """Raise a lower bound of the least fixed point in double precision, staying a lower bound."""
        if x > 10**12 or x < Fraction(1, 10**12):
            return x
        rates, weights = np.array([float(r) for r in self.rates]), np.array([float(w) for w in self.weights])
        fixed, per_weight, now = float(self.d0), float(self.d1), float(x)
        below = 1.0 - 1e-11  # covers every rounding of this loop, snapping included
        for _ in range(MOST_STEPS):
            arrivals = rates * (now * below)
            n = np.maximum(1.0, np.floor(arrivals) + 1.0 if self.strict else np.ceil(arrivals))
            new = (fixed + per_weight * float(weights @ n)) * below
            if new <= now * (1.0 + 1e-10):
                break
            now = new
        return max(x, Fraction(now * below))


def _fraction_gcd(values: Sequence[Fraction]) -> Fraction:
    den = math.lcm(*(v.denominator for v in values))
    return Fraction(math.gcd(*(v.numerator * (den // v.denominator) for v in values)), den)


def _least_by_period(
    rates: Sequence[Fraction], weights: Sequence[Fraction], d0: Fraction, d1: Fraction, slack: Fraction, strict: bool
) -> Fraction | None:
    """Least fixed point of x -> d0 + d1 sum W_j n_j(x), from one period of its steps.

    n_j(x) grows by lambda_j P over a period P, so in period m the condition "value < end of the step" is linear in m;
    the least fixed point is the first step to meet it. ``None`` where a period has too many steps.
    """
    period = 1 / _fraction_gcd(rates)
    steps = [int(r * period) for r in rates]
    if sum(steps) > _PERIOD_LIMIT:
        return None
    jumps = sorted((Fraction(i, k), j) for j, k in enumerate(steps) for i in range(1, k + 1))
    value = d0 + d1 * sum(weights, Fraction(0))  # every n_j = 1 on the first step
    per_period = slack * period
    best: tuple[int, int, Fraction] | None = None
    i = index = 0
    while i < len(jumps):
        end = jumps[i][0] * period
        excess = value - end
        if strict:
            m = max(0, math.floor(excess / per_period) + 1)
        else:
            m = max(0, math.ceil(excess / per_period))
        if best is None or m < best[0]:
            best = (m, index, value + m * (1 - slack) * period)
        at = jumps[i][0]
        while i < len(jumps) and jumps[i][0] == at:
            value += d1 * weights[jumps[i][1]]
            i += 1
        index += 1
    return best[2] if best else None


def wait_min_thresholds(types: Types, d0: Any, d1: Any, strict: bool = True, C: Any = None) -> WaitThresholds:
    r"""Least whole thresholds that keep up, eq. 11/18/19: :math:`\Delta T(n) < n_j/\lambda_j` for all j.

    The least fixed point of n_j -> floor(lambda_j DT(n)) + 1. It exists iff d1 S < 1. Iterated from the fluid
    equilibrium (a lower bound); close to the limit, where that is slow, computed from one period of the staircase, or in
    closed form for one type. Numbers given as floats are snapped: lambda DT within 1e-9 of a whole number counts as it.

    Parameters
    ----------
    types
        Rows (lambda [requests/s], l [tokens], l' [decode iterations]). A rate of 0 gets the threshold 1.
    d0, d1
        Time of an iteration [s] and per KV token [s/token].
    strict
        Ask for n_j > lambda_j DT (queues bounded in the mean), else n_j >= lambda_j DT (critical).
    C
        KV capacity [tokens]; sets ``fits``. Needed is C >= M^pi, more than the M* that Theorem 1 prints.

    Returns
    -------
    WaitThresholds
        ``stable`` is false, n empty and dT, M_pi infinite at overload.

    Examples
    --------
    >>> wait_min_thresholds([(6000, 20, 100), (4000, 20, 200), (2000, 20, 300)], "0.01", "4e-9").n
    (1713, 1142, 571)
    >>> wait_min_thresholds([(4, 1, 1)], 0.4, 0.05).n  # equality at n = 4
    (5,)
    >>> wait_min_thresholds([(4, 1, 1)], 0.4, 0.1).stable
    False
    """
    rows = _rows(types)
    fixed, per_token = sign_checked(d0, "d0"), sign_checked(d1, "d1")
    snap = inexact(d0, d1, *(v for row in types for v in row))
    rates = [lam for lam, *_ in rows]
    weights = [token_iterations(l, o) for _, l, o in rows]
    slack = 1 - per_token * _work(rows)
    if slack <= 0:
        infinite = tuple(math.inf if r > 0 else 2.0 for r in rates)
        return WaitThresholds((), math.inf, math.inf, infinite, False, True, False)
    stairs = _Staircase(rates, weights, fixed, per_token, strict, snap)
    duration, thresholds = stairs.duration, stairs.thresholds
    least = True
    active = [j for j, r in enumerate(rates) if r > 0]
    idle = sum((w for r, w in zip(rates, weights, strict=True) if r == 0), Fraction(0))
    base = fixed + per_token * idle
    if len(active) == 1:
        n = thresholds(base / slack)
    else:
        n = thresholds(stairs.climb(max(fixed / slack, duration([1] * len(rows)))))
        settled = False
        for _ in range(max(50, _WORK_LIMIT // len(rows) // 4)):
            new = thresholds(duration(n))
            if new == n:
                settled = True
                break
            n = [max(a, b) for a, b in zip(n, new, strict=True)]
        if not settled:
            point = _least_by_period(
                [rates[j] for j in active], [weights[j] for j in active], base, per_token, slack, strict
            )
            if point is not None:
                n = thresholds(point)
            else:
                least = False
                n = _some_thresholds(thresholds, duration, base, per_token, slack, [weights[j] for j in active])
    dT = duration(n)
    memory = sum((k * w for k, w in zip(n, weights, strict=True)), Fraction(0))
    return WaitThresholds(
        tuple(n),
        out(dT),
        out(memory),
        tuple(wait_queue_bound(k, r, dT) for k, r in zip(n, rates, strict=True)),
        True,
        least,
        C is None or (isinstance(C, float) and math.isinf(C)) or memory <= sign_checked(C, "C"),
    )


def _some_thresholds(
    thresholds: Callable[[Fraction], list[int]],
    duration: Callable[[Sequence[int]], Fraction],
    base: Fraction,
    d1: Fraction,
    slack: Fraction,
    weights: Sequence[Fraction],
) -> list[int]:
    # valid though perhaps not least: the smallest of a ladder of durations that maps below itself
    top = sum(weights, Fraction(0)) * d1
    for step in range(8, 21):
        n = thresholds((base + top * Fraction(step, 20)) / slack)
        if thresholds(duration(n)) == n or all(a <= b for a, b in zip(thresholds(duration(n)), n, strict=True)):
            return n
    return thresholds((base + top) / slack)


@dataclass(frozen=True, slots=True)
class WaitBounds:
    """Means a type can count on under strict thresholds.

    Parameters
    ----------
    queue
        Requests waiting, at most [1].
    wait_s
        Time before the first iteration, at most [s].
    ttft_s
        Arrival to first token, at most [s].
    latency_s
        Arrival to last token, at most [s].
    """

    queue: float
    wait_s: float
    ttft_s: float
    latency_s: float


def wait_bounds(n: Sequence[Any], types: Types, d0: Any, d1: Any) -> tuple[WaitBounds, ...]:
    r"""Mean queue, time to first token and latency of every type, at most.

    Little's law turns the queue bound into a wait. A type's resident requests advance one stage whenever it joins, n_j
    at a time, so a request is resident :math:`n_j(l_j'+1)/\lambda_j` on average.

    Parameters
    ----------
    n
        Thresholds [1], strict.
    types
        Rows (lambda [requests/s], l [tokens], l' [decode iterations]).
    d0, d1
        Time of an iteration [s] and per KV token [s/token].

    Returns
    -------
    tuple of WaitBounds
        Per type; infinite where n_j <= lambda_j dT, and for a type that never arrives (its threshold is never reached).

    Examples
    --------
    >>> b = wait_bounds([5], [(4, 1, 1)], "0.25", "0.05")[0]
    >>> b.queue, b.ttft_s
    (12.0, 4.0)
    """
    rows = _rows(types)
    iteration = wait_dT(n, types, d0, d1)
    result = []
    for k, (lam, _, o) in zip(_counts(n, rows), rows, strict=True):
        if lam == 0:
            result.append(WaitBounds(float(k), math.inf, math.inf, math.inf))
            continue
        queue = wait_queue_bound(k, lam, iteration.dT)
        wait = queue / float(lam)
        result.append(WaitBounds(queue, wait, wait + iteration.dT, wait + out(k * (o + 1) / lam)))
    return tuple(result)
