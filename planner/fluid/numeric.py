"""How numbers enter and leave the closed forms: read exactly, worked with 60 digits, rounded once.

Near a stability limit the interesting quantity is a small difference of large ones, and forming it in double precision
loses what is asked for. So an argument may be an ``int``, ``Fraction``, ``Decimal``, ``str`` (``"1e-20"``, ``"1/64"``),
an mpmath number, or a ``float`` (read as the decimal number it prints as, so ``0.05`` means 1/20). Formulas without
transcendental functions are evaluated in exact rationals, the others (:func:`formula`) with 60 significant digits, and the
result is rounded once to a ``float``. An array is as many numbers, each on its own.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.shared.mathematics import need

Scalar: TypeAlias = int | float | str | Fraction | Decimal
"""A number as it is given (mpmath numbers are taken as well)."""
Array: TypeAlias = NDArray[np.float64]

Number = TypeVar("Number", Decimal, float)

_CONTEXT = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN)
_SERIES_BELOW = 0.5
"""Below this argument e^z - 1 - z and its kin are summed as series: subtraction loses digits."""


def is_array(value: object) -> bool:
    """Whether a value stands for several numbers (a list or tuple of numbers counts).

    >>> is_array([1, 2]), is_array("0.5"), is_array(np.float64(1.0))
    (True, False, False)
    """
    return isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def over_arrays(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Value of a scalar function; where arguments are arrays, an array of its values over their common shape.

    A tuple of results becomes a tuple of arrays.

    >>> over_arrays(lambda a, b: a + b, {"a": [1, 2], "b": 10}).tolist()
    [11, 12]
    """
    names = [name for name, value in arguments.items() if is_array(value)]
    if not names:
        return function(**arguments)
    grids = np.broadcast_arrays(*(np.asarray(arguments[name]) for name in names))
    shape = grids[0].shape
    results = [
        function(**{**arguments, **dict(zip(names, values, strict=True))})
        for values in zip(*(grid.ravel().tolist() for grid in grids), strict=True)
    ]
    if results and isinstance(results[0], tuple):
        return tuple(np.array(column).reshape(shape) for column in zip(*results, strict=True))
    return np.array(results).reshape(shape)


def formula(*, infinite: tuple[str, ...] = (), record: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Make a formula of Decimals a function of any numbers or arrays: reads exactly, works with 60 digits, rounds once.

    Parameters
    ----------
    infinite
        Names of arguments that may be infinite.
    record
        Class of the result, where the formula gives a tuple of its fields.

    Examples
    --------
    >>> @formula()
    ... def half(x: Decimal) -> Decimal:
    ...     return x / 2
    >>> half("1/3"), half([1.0, 3.0]).tolist()
    (0.16666666666666666, [0.5, 1.5])
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        """The function for numbers of any kind and for arrays of them."""
        signature = inspect.signature(function)

        def scalar(**given: Any) -> Any:
            with localcontext(_CONTEXT):
                result = function(**{name: _decimal(value, name, name in infinite) for name, value in given.items()})
                return tuple(map(_rounded, result)) if record else _rounded(result)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            result = over_arrays(scalar, bound.arguments)
            return record(*result) if record else result

        return wrapper

    return decorate


def _rounded(value: Any) -> Any:
    """A ``Decimal`` as the nearest float; anything else as it is."""
    return float(value) if isinstance(value, Decimal) else value


def _decimal(value: Any, name: str, infinite: bool) -> Decimal:
    """A number with 60 digits."""
    if infinite and isinstance(value, (float, np.floating)) and math.isinf(value):
        return Decimal(float(value))
    number = exact(value, name)
    return Decimal(number.numerator) / Decimal(number.denominator)


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
    known = number.denominator == 1 and number >= minimum
    need(known, f"{name} must be a whole number >= {minimum}, got {value!r}")
    return int(number)


def sign_checked(value: Any, name: str, positive: bool = False) -> Fraction:
    """A rational number that is not negative, or positive where asked."""
    number = exact(value, name)
    need(number > 0 or (number == 0 and not positive), f"{name} must be {'> 0' if positive else '>= 0'}, got {value!r}")
    return number


def out(value: Fraction) -> float:
    """Round a rational result once.

    >>> out(Fraction(1, 4)), out(Fraction(10) ** 400)
    (0.25, inf)
    """
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def ceil_div(a: Any, b: Any) -> Any:
    """Integer ceiling of a/b, without rounding error.

    >>> ceil_div(129, 128), ceil_div(0, 5)
    (2, 0)
    """
    return -(-a // b)


def _series(x: Number, first: int) -> Number:
    """Sum of x^n/n! from n = `first`, until nothing is added."""
    term = x * 0 + 1
    for n in range(1, first + 1):
        term = term * x / n
    total, n = term, first
    while True:
        n += 1
        term = term * x / n
        more = total + term
        if more == total:
            return total
        total = more


def expm1(x: Decimal) -> Decimal:
    """e^x - 1 without cancellation.

    >>> float(expm1(Decimal("1e-40")))
    1e-40
    """
    return _series(x, 1) if abs(x) < _SERIES_BELOW else x.exp() - 1


def log1p(x: Decimal) -> Decimal:
    """ln(1 + x) without cancellation.

    >>> float(log1p(Decimal("1e-40"))), float(log1p(Decimal(-1)))
    (1e-40, -inf)
    """
    if abs(x) > Decimal("1e-5"):
        return (1 + x).ln()
    total, power = Decimal(0), Decimal(1)
    for n in range(1, 14):
        power *= x
        total += (power if n % 2 else -power) / n
    return total


def expm1_minus_linear(x: Number) -> Number:
    """e^x - 1 - x, at least 0, without cancellation, for ``Decimal`` and ``float``.

    >>> float(expm1_minus_linear(Decimal("1e-20"))), expm1_minus_linear(0.0)
    (5e-41, 0.0)
    """
    if abs(x) < _SERIES_BELOW:
        return _series(x, 2)
    return x.exp() - 1 - x if isinstance(x, Decimal) else math.expm1(x) - x
