"""The normal distribution function and its inverse on arrays, without the 0.15 s that importing scipy.special costs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

# Rational minimax approximations of erfc, W. J. Cody, Math. Comp. 23 (1969) 631-637: |x| <= 0.46875, <= 4, beyond.
_ERF_P = (
    3.16112374387056560e00,
    1.13864154151050156e02,
    3.77485237685302021e02,
    3.20937758913846947e03,
    1.85777706184603153e-1,
)
_ERF_Q = (2.36012909523441209e01, 2.44024637934444173e02, 1.28261652607737228e03, 2.84423683343917062e03)
_ERFC_P = (
    5.64188496988670089e-1, 8.88314979438837594e00, 6.61191906371416295e01, 2.98635138197400131e02, 8.81952221241769090e02,
    1.71204761263407058e03, 2.05107837782607147e03, 1.23033935479799725e03, 2.15311535474403846e-8,
)  # fmt: skip
_ERFC_Q = (
    1.57449261107098347e01, 1.17693950891312499e02, 5.37181101862009858e02, 1.62138957456669019e03, 3.29079923573345963e03,
    4.36261909014324716e03, 3.43936767414372164e03, 1.23033935480374942e03,
)  # fmt: skip
_TAIL_P = (
    3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1, 1.60837851487422766e-2, 6.58749161529837803e-4,
    1.63153871373020978e-2,
)  # fmt: skip
_TAIL_Q = (
    2.56852019228982242e00,
    1.87295284992346725e00,
    5.27905102951428412e-1,
    6.05183413124413191e-2,
    2.33520497626869185e-3,
)

# Rational approximations of the quantile, M. J. Wichura, Appl. Stat. 37 (1988) 477-484, algorithm AS 241 (PPND16).
_CENTRE = (
    (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3, 2.1213794301586595867e4,
     3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
)  # fmt: skip
_MIDDLE = (
    (1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
     1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1, 1.48103976427480074590e-1,
     1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
)  # fmt: skip
_FAR = (
    (6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
     2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2, 7.86869131145613259100e-4,
     1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15),
)  # fmt: skip


def _erfc_scaled(x: FloatArray) -> FloatArray:
    """erfc(x) for x >= 0."""
    result = np.empty_like(x)
    near = x <= 0.46875
    y = x[near] ** 2
    top = _ERF_P[4] * y
    bottom = y
    for p, q in zip(_ERF_P[:3], _ERF_Q[:3], strict=True):
        top, bottom = (top + p) * y, (bottom + q) * y
    result[near] = 1.0 - x[near] * (top + _ERF_P[3]) / (bottom + _ERF_Q[3])
    middle = ~near & (x <= 4.0)
    y = x[middle]
    top, bottom = _ERFC_P[8] * y, y
    for p, q in zip(_ERFC_P[:7], _ERFC_Q[:7], strict=True):
        top, bottom = (top + p) * y, (bottom + q) * y
    result[middle] = _exp_minus_square(y) * (top + _ERFC_P[7]) / (bottom + _ERFC_Q[7])
    far = ~near & ~middle
    y = np.minimum(x[far], 40.0)
    z = 1.0 / (y * y)
    top, bottom = _TAIL_P[5] * z, z
    for p, q in zip(_TAIL_P[:4], _TAIL_Q[:4], strict=True):
        top, bottom = (top + p) * z, (bottom + q) * z
    tail = z * (top + _TAIL_P[4]) / (bottom + _TAIL_Q[4])
    result[far] = _exp_minus_square(y) * (0.56418958354775628695 - tail) / y
    return result


def _exp_minus_square(y: FloatArray) -> FloatArray:
    # y^2 split so that the exponential keeps its relative accuracy far out
    coarse = np.trunc(y * 16.0) / 16.0
    product: FloatArray = np.exp(-coarse * coarse) * np.exp(-(y - coarse) * (y + coarse))
    return product


def normal_cdf(x: ArrayLike) -> FloatArray:
    r"""Distribution function of the standard normal law, :math:`\Phi(x) = \tfrac12 \mathrm{erfc}(-x/\sqrt2)`.

    Parameters
    ----------
    x : array_like
        Argument, finite or infinite [1].

    Returns
    -------
    ndarray
        Probability, relative error below 1e-13 down to 1e-280 [1].

    References
    ----------
    W. J. Cody, Rational Chebyshev approximations for the error function, Math. Comp. 23 (1969) 631-637.

    Examples
    --------
    >>> normal_cdf([-1.959963984540054, 0.0, 8.0]).round(12).tolist()
    [0.025, 0.5, 1.0]
    """
    z = np.asarray(x, dtype=np.float64)
    half = 0.5 * _erfc_scaled(np.abs(z).ravel() * np.sqrt(0.5)).reshape(z.shape)
    return np.where(z > 0.0, 1.0 - half, half)


def normal_quantile(p: ArrayLike) -> FloatArray:
    """Inverse of :func:`normal_cdf`.

    Parameters
    ----------
    p : array_like
        Probability in [0, 1] [1].

    Returns
    -------
    ndarray
        Quantile; -inf at 0, inf at 1 [1]. Relative error below 1e-14.

    References
    ----------
    M. J. Wichura, Algorithm AS 241: the percentage points of the normal distribution, Appl. Stat. 37 (1988) 477-484.

    Examples
    --------
    >>> normal_quantile([0.025, 0.5, 0.99]).round(10).tolist()
    [-1.9599639845, 0.0, 2.326347874]
    """
    level = np.asarray(p, dtype=np.float64)
    flat = level.ravel()
    q = flat - 0.5
    result = np.empty_like(flat)
    centre = np.abs(q) <= 0.425
    r = 0.180625 - q[centre] ** 2
    result[centre] = q[centre] * _ratio(_CENTRE, r)
    outer = ~centre
    with np.errstate(divide="ignore"):
        r = np.sqrt(-np.log(np.where(q[outer] < 0.0, flat[outer], 1.0 - flat[outer])))
    # beyond r = 27 the probability underflows; only 0 and 1 themselves lie there
    value = np.where(r <= 5.0, _ratio(_MIDDLE, np.minimum(r, 5.0) - 1.6), _ratio(_FAR, np.minimum(r, 27.0) - 5.0))
    value = np.where(np.isinf(r), np.inf, value)
    result[outer] = np.where(q[outer] < 0.0, -value, value)
    return result.reshape(level.shape)


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], r: FloatArray) -> FloatArray:
    top, bottom = np.zeros_like(r), np.zeros_like(r)
    for p, q in zip(reversed(coefficients[0]), reversed(coefficients[1]), strict=True):
        top, bottom = top * r + p, bottom * r + q
    quotient: FloatArray = top / bottom
    return quotient
