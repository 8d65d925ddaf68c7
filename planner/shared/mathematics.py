"""What the rooms of mathematics share: what an argument has to be, and the tails of sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


EXACT_BELOW = 16
"""Terms of a sum below which its normal or saddle-point tail is up to 1.6 times off at 1%: the law itself is computed instead."""

LATTICE = 2048
"""Most lattice points of one term of such a sum."""

FIXED_CV = 0.1
"""Coefficient of variation of lengths below which requests are taken for alike: of outputs they stay in phase (5% to 39% overflow
instead of 1%), of inputs preemptions are 2-8 times the formula at small overflow."""

FEW_LONGEST = 3.0
"""With room for fewer than this many requests of the greatest length one at the head drains the machine ..."""

FEW_SHARE = 0.25
"""... and measured overflow is up to four times the formula: this share of what is promised is used there."""


def need(holds: object, message: str) -> None:
    """Refuse an argument.

    Raises
    ------
    ValueError
        It does not hold, in the words of `message`.

    Examples
    --------
    >>> need(1 > 0, "one must be > 0")
    """
    if not holds:
        raise ValueError(message)


def tail_of_sum(values: Floats, probability: Floats, number: float, level: float) -> float:
    """P(sum of `number` > level) by Lugannani and Rice's saddle point with the lattice correction.

    Parameters
    ----------
    values, probability
        Whole values, ascending, and their probabilities > 0, shape (values,).
    number
        How many are added.
    level
        Half-way between whole numbers.

    References
    ----------
    Lugannani and Rice, Adv. Appl. Prob. 12, 1980, doi:10.2307/1426607. Daniels, Int. Stat. Rev. 55, 1987, doi:10.2307/1403269.
    """
    if number * float(values[-1]) <= level:
        return 0.0
    if number * float(values[0]) > level:
        return 1.0
    t, k, k2 = saddle_point(values, probability, level / number)
    w = math.copysign(math.sqrt(max(0.0, 2.0 * number * (t * level / number - k))), t)
    density = math.exp(-0.5 * w * w) / math.sqrt(2.0 * math.pi)
    if abs(w) < 1e-4:  # both corrections diverge at the mean; their difference is the skewness
        mean = float(probability @ values)
        second, third = (float(probability @ (values - mean) ** p) for p in (2, 3))
        correction = -third / max(second, 1e-300) ** 1.5 / math.sqrt(number) / 6.0
    else:
        correction = 1.0 / (2.0 * math.sinh(0.5 * t) * math.sqrt(number * k2)) - 1.0 / w
    return float(min(1.0, max(0.0, 0.5 * math.erfc(w / math.sqrt(2.0)) + density * correction)))


def saddle_point(values: Floats, probability: Floats, target: float) -> tuple[float, float, float]:
    """t at which the law tilted by e^{t value} has the mean `target`, the cumulant generating function there, and its variance."""

    squares = values * values

    def cumulants(t: float) -> Any:
        exponent = t * values
        shift = float(exponent[-1] if t > 0.0 else exponent[0])
        tilted = probability * np.exp(exponent - shift)
        total = float(tilted.sum())
        first, second = float(tilted @ values) / total, float(tilted @ squares) / total
        return shift + math.log(total), first, max(second - first * first, 0.0)

    # log K' is nearly straight where K' is exponential: Newton on it, held inside the bracket seen so far
    mean = float(probability @ values)
    t = (target - mean) / max(float(probability @ (values - mean) ** 2), 1e-12)
    low, high = -math.inf, math.inf
    k, k1, k2 = cumulants(t)
    for _ in range(60):
        if abs(k1 - target) <= 1e-10 * target:
            break
        crossed = math.isfinite(low if k1 >= target else high)
        low, high = (t, high) if k1 < target else (low, t)
        straight = k1 > 0.0 and k2 > 1e-300
        step = math.log(target / k1) * k1 / k2 if straight else math.copysign(math.inf, target - k1)
        limit = 2.0 * abs(t) + 4.0 / float(values[-1])
        proposal = t + max(-limit, min(limit, step))
        # across the root and back without coming nearer: halve
        if not low < proposal < high or (crossed and high - low > 0.5 * max(abs(low), abs(high))):
            proposal = 0.5 * (low + high)
        if proposal == t:
            break
        t = proposal
        k, k1, k2 = cumulants(t)
    return t, k, k2
