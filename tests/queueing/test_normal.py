"""The normal law against scipy.special, an independent implementation."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, ndtri

from planner.queueing.normal import normal_cdf, normal_quantile


def test_distribution_function_over_the_whole_range() -> None:
    x = np.concatenate([np.linspace(-36.0, 9.0, 40_001), [0.0, -np.inf, np.inf]])
    # far out the rounding of the argument alone moves the result by x^2 eps = 3e-13
    np.testing.assert_allclose(normal_cdf(x), ndtr(x), rtol=1e-13, atol=0.0)


def test_quantile_over_the_whole_range() -> None:
    p = np.concatenate([np.geomspace(1e-300, 0.5, 20_001), 1.0 - np.geomspace(1e-15, 0.5, 20_001), [0.0, 1.0]])
    np.testing.assert_allclose(normal_quantile(p), ndtri(p), rtol=1e-12, atol=1e-15)
