"""How numbers enter and leave the closed forms: scalars exactly, arrays in double precision.

Near a stability limit the interesting quantity is a small difference of large ones, and forming it in double precision
loses what is asked for. So a *scalar* argument may be an ``int``, ``Fraction``, ``Decimal``, ``str`` (``"1e-20"``,
``"1/64"``), an mpmath number, or a ``float`` (read as the decimal number it prints as, so ``0.05`` means 1/20).
Formulas without transcendental functions are evaluated in exact rationals, the others with 60 significant digits, and
the result is rounded once to a ``float``. *Arrays* are evaluated in double precision by the same, stable expressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Array",
    "Scalar",
    "bracketed_root",
    "ceil_div",
    "exact",
    "exp",
    "expm1",
    "expm1_minus_linear",
    "fifty_digits",
    "is_array",
    "log",
    "log1p",
    "out",
    "reals",
    "sqrt",
    "whole",
]

Scalar: TypeAlias = int | float | str | Fraction | Decimal
"""A scalar argument (mpmath numbers are taken as well)."""
Array: TypeAlias = NDArray[np.float64]

_CONTEXT = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN)
_SERIES_BELOW = 0.5
"""Below this argument e^z - 1 - z and its kin are summed as series: subtraction loses eps/z."""


@contextmanager
def fifty_digits() -> Iterator[None]:
    """Work with 60 digits inside, so that 50 survive cancellation; usable as a decorator.

    >>> with fifty_digits():
    ...     str(Decimal(1) / 3)[:8]
    '0.333333'
    """
    with localcontext(_CONTEXT):
        yield


def is_array(value: object) -> bool:
    """Whether a value takes the array path (a list or tuple of numbers counts).

    >>> is_array([1, 2]), is_array("0.5"), is_array(np.float64(1.0))
    (True, False, False)
    """
    return isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def exact(value: Any, name: str = "value") -> Fraction:
    """Return the rational number a scalar stands for; a float is read as the decimal number it prints as.

    Parameters
    ----------
    value
        Scalar; must be finite.
    name
        What the number is called in the error message.

    Returns
    -------
    Fraction
        Exact value, in the unit of `value`.

    Raises
    ------
    ValueError
        Not a number, or not finite.

    Examples
    --------
    >>> exact(0.05), exact("1/64"), exact("1e-20") == Fraction(1, 10**20)
    (Fraction(1, 20), Fraction(1, 64), True)
    """
    try:
        if isinstance(value, Fraction):
            return value
        if isinstance(value, bool):
            raise ValueError
        if isinstance(value, (int, np.integer)):
            return Fraction(int(value))
        if isinstance(value, (float, np.floating)):
            return Fraction(repr(float(value)))
        if isinstance(value, (str, Decimal)):
            return Fraction(value)
        if isinstance(value, np.ndarray) and value.ndim == 0:
            return exact(value.item(), name)
        if hasattr(value, "_mpf_"):
            sign, mantissa, exponent, bits = value._mpf_
            if bits == 0 and exponent != 0:
                raise ValueError
            size = Fraction(int(mantissa)) * (Fraction(2) ** int(exponent))
            return -size if sign else size
    except (ValueError, ZeroDivisionError, OverflowError):
        pass
    raise ValueError(f"{name} must be a finite number, got {value!r}")


def whole(value: Any, name: str, minimum: int = 0) -> int:
    """Return an integer argument as ``int``.

    Parameters
    ----------
    value
        Scalar with an integer value.
    name
        What the number is called in the error message.
    minimum
        Smallest value accepted.

    Returns
    -------
    int
        The value.

    Raises
    ------
    ValueError
        Not an integer, or below `minimum`.

    Examples
    --------
    >>> whole("128", "t_col"), whole(3.0, "k")
    (128, 3)
    """
    number = exact(value, name)
    if number.denominator != 1 or number < minimum:
        raise ValueError(f"{name} must be a whole number >= {minimum}, got {value!r}")
    return int(number)


def _decimal(value: Any, name: str) -> Decimal:
    if isinstance(value, (float, np.floating)) and math.isinf(value):
        return Decimal(float(value))
    number = exact(value, name)
    return Decimal(number.numerator) / Decimal(number.denominator)


def reals(*, infinite: tuple[str, ...] = (), **named: Any) -> tuple[Any, ...]:
    """Read the arguments of one formula: 60-digit decimals if all are scalars, double-precision arrays otherwise.

    Parameters
    ----------
    infinite
        Names that may be infinite.
    **named
        Arguments by name; call inside :func:`fifty_digits`.

    Returns
    -------
    tuple
        In the order given: all ``Decimal``, or all ``float``/``ndarray`` of float64.

    Raises
    ------
    ValueError
        An argument is not a (finite) number; the message names it.

    Examples
    --------
    >>> with fifty_digits():
    ...     reals(a=1, b="0.5")
    (Decimal('1'), Decimal('0.5'))
    >>> reals(a=1, b=[0.5, 2.0])
    (1.0, array([0.5, 2. ]))
    """
    for name, value in named.items():
        if name not in infinite and isinstance(value, (float, np.floating)) and not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number, got {value!r}")
    if not any(is_array(v) for v in named.values()):
        return tuple(_decimal(v, n) for n, v in named.items())
    values: list[Any] = []
    for name, value in named.items():
        if is_array(value):
            array = np.asarray(value, dtype=np.float64)
            if not (np.all(np.isfinite(array)) or (name in infinite and not np.any(np.isnan(array)))):
                raise ValueError(f"{name} must be finite numbers")
            values.append(array)
        else:
            values.append(float(value) if isinstance(value, (int, float)) else float(_decimal(value, name)))
    return tuple(values)


def out(value: Any) -> Any:
    """Round a result once: ``Decimal`` and ``Fraction`` to ``float``, arrays as they are.

    >>> out(Fraction(1, 4)), out(Decimal("1e400"))
    (0.25, inf)
    """
    if isinstance(value, np.ndarray) and value.ndim > 0:
        return value
    if isinstance(value, Fraction):
        try:
            return value.numerator / value.denominator
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return float(value)


def ceil_div(a: Any, b: Any) -> Any:
    """Integer ceiling of a/b, without rounding error.

    >>> ceil_div(129, 128), ceil_div(0, 5)
    (2, 0)
    """
    return -(-a // b)


def log(x: Any) -> Any:
    """Natural logarithm of a positive number; -inf at 0.

    >>> float(log(Decimal(0)))
    -inf
    """
    if isinstance(x, Decimal):
        return x.ln()
    with np.errstate(divide="ignore"):
        return np.log(x)


def exp(x: Any) -> Any:
    """Exponential function.

    >>> float(exp(Decimal(0)))
    1.0
    """
    return x.exp() if isinstance(x, Decimal) else np.exp(x)


def sqrt(x: Any) -> Any:
    """Square root.

    >>> float(sqrt(Decimal(4)))
    2.0
    """
    return x.sqrt() if isinstance(x, Decimal) else np.sqrt(x)


def _decimal_series(x: Decimal, first: int) -> Decimal:
    # sum_{n >= first} x^n/n!
    term = Decimal(1)
    for n in range(1, first + 1):
        term = term * x / n
    total, n = term, first
    while term and abs(term) > abs(total) * Decimal("1e-62"):
        n += 1
        term = term * x / n
        total += term
    return total


def expm1(x: Any) -> Any:
    """e^x - 1 without cancellation.

    >>> float(expm1(Decimal("1e-40")))
    1e-40
    """
    if isinstance(x, Decimal):
        return _decimal_series(x, 1) if abs(x) < _SERIES_BELOW else x.exp() - 1
    with np.errstate(over="ignore"):
        return np.expm1(x)


def log1p(x: Any) -> Any:
    """ln(1 + x) without cancellation.

    >>> float(log1p(Decimal("1e-40"))), float(log1p(Decimal(-1)))
    (1e-40, -inf)
    """
    if isinstance(x, Decimal):
        if abs(x) > Decimal("1e-5"):
            return (1 + x).ln()
        total, power = Decimal(0), Decimal(1)
        for n in range(1, 14):
            power *= x
            total += (power if n % 2 else -power) / n
        return total
    with np.errstate(divide="ignore"):
        return np.log1p(x)


def expm1_minus_linear(x: Any) -> Any:
    """e^x - 1 - x, at least 0, without cancellation.

    >>> float(expm1_minus_linear(Decimal("1e-20"))), expm1_minus_linear(0.0).item()
    (5e-41, 0.0)
    """
    if isinstance(x, Decimal):
        return _decimal_series(x, 2) if abs(x) < _SERIES_BELOW else x.exp() - 1 - x
    x = np.asarray(x, dtype=np.float64)
    small = np.where(np.abs(x) < _SERIES_BELOW, x, 0.0)
    series = np.ones_like(small)
    for n in range(17, 2, -1):  # x^2/2 (1 + x/3 (1 + x/4 (...)))
        series = 1.0 + small / n * series
    with np.errstate(over="ignore"):
        return np.where(np.abs(x) < _SERIES_BELOW, 0.5 * small * small * series, np.expm1(x) - x)


def bracketed_root(f: Callable[[float], float], low: float, high: float, steps: int = 200) -> float:
    """Root of a function that changes sign on [low, high], to the last bit (Chandrupatla's method).

    Parameters
    ----------
    f
        Continuous function.
    low, high
        Ends with f(low) <= 0 <= f(high) or the reverse.
    steps
        Most evaluations.

    Returns
    -------
    float
        The root.

    Raises
    ------
    ValueError
        No change of sign.

    References
    ----------
    Chandrupatla, T. R. (1997). A new hybrid quadratic/bisection algorithm. Adv. Eng. Software 28(3), 145-149.

    Examples
    --------
    >>> round(bracketed_root(lambda x: x * x - 2.0, 0.0, 2.0), 15)
    1.414213562373095
    """
    a, b = low, high
    fa, fb = f(a), f(b)
    if fa == 0.0:
        return a
    if fb == 0.0:
        return b
    if (fa > 0.0) == (fb > 0.0):
        raise ValueError(f"no change of sign on [{low}, {high}]")
    t, c, fc = 0.5, a, fa
    for _ in range(steps):
        x = a + t * (b - a)
        fx = f(x)
        if (fx > 0.0) == (fa > 0.0):
            c, fc = a, fa
        else:
            c, fc, b, fb = b, fb, a, fa
        a, fa = x, fx
        best = a if abs(fa) < abs(fb) else b
        width = abs(b - a)
        tolerance = 1e-16 * abs(best) + 5e-324
        if width <= 4.0 * tolerance or fa == 0.0:
            return a if fa == 0.0 else best
        xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
        if phi * phi < xi and (1.0 - phi) ** 2 < 1.0 - xi and fc not in (fa, fb):
            t = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
        else:
            t = 0.5
        edge = tolerance / width
        t = min(1.0 - edge, max(edge, t))
    return a if abs(fa) < abs(fb) else b
