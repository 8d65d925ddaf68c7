"""Quantiles and distinct values against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from planner.queueing.order import distinct, quantiles_of, ranked


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
