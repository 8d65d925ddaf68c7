"""The normal distribution function and its inverse on arrays, without the 0.15 s that importing scipy.special costs."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

_ERFC, _INVERSE = np.frompyfunc(math.erfc, 1, 1), np.frompyfunc(NormalDist().inv_cdf, 1, 1)


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

    Examples
    --------
    >>> normal_cdf([-1.959963984540054, 0.0, 8.0]).round(12).tolist()
    [0.025, 0.5, 1.0]
    """
    return np.asarray(0.5 * _ERFC(-np.sqrt(0.5) * np.asarray(x, dtype=np.float64)), dtype=np.float64)


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
    inside = np.asarray(_INVERSE(np.clip(level, 5e-324, 1.0 - 2.0**-53)), dtype=np.float64)
    return np.where(level <= 0.0, -np.inf, np.where(level >= 1.0, np.inf, inside))
