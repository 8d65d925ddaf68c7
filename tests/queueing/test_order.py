"""Quantiles, distinct values and orders against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from planner.queueing.order import by_size, distinct, quantiles_of, ranked


@pytest.mark.parametrize("shape", [(1,), (2,), (1001,), (40, 3)])
def test_as_numpys(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(7).exponential(size=shape)
    levels = (0.0, 0.05, 0.5, 0.99, 0.999, 1.0)
    # the same order statistics, added in another order
    assert quantiles_of(values, levels) == pytest.approx(np.quantile(values, levels, axis=0), rel=1e-14)


@pytest.mark.parametrize("size", [0, 1, 50])
@pytest.mark.parametrize("kind", [int, float, str])
def test_distinct_values_as_numpys(size: int, kind: type) -> None:
    values = np.random.default_rng(3).integers(0, 9, size).astype(kind)
    assert np.array_equal(distinct(values), np.unique(values))
    found, place = ranked(values)
    assert np.array_equal(found[place], values) and np.array_equal(found, np.unique(values))


@pytest.mark.parametrize("size", [0, 1, 5000])
def test_values_in_order_as_numpys(size: int) -> None:
    values = np.random.default_rng(5).lognormal(-2.0, 3.0, size)
    # ties keep their order, and what is no number is last
    values[::7], values[3::11], values[5::13], values[1::17] = 0.0, np.inf, np.nan, -np.nan
    found = values[by_size(values)]
    # single precision
    assert found == pytest.approx(np.sort(values), rel=2.0**-23, nan_ok=True)
    exact = np.array([2.0, 1.0, 2.0, np.inf, 1.0])
    assert by_size(exact).tolist() == np.argsort(exact, kind="stable").tolist()
