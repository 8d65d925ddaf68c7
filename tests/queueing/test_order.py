"""Distinct values against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from planner.queueing.order import distinct, ranked, rising


@pytest.mark.parametrize("size", [0, 1, 50])
@pytest.mark.parametrize("kind", [int, float, str])
def test_distinct_values_as_numpys(size: int, kind: type) -> None:
    values = np.random.default_rng(3).integers(0, 9, size).astype(kind)
    assert np.array_equal(distinct(values), np.unique(values))
    found, place = ranked(values)
    assert np.array_equal(found[place], values) and np.array_equal(found, np.unique(values))


@pytest.mark.parametrize("size", [0, 1, 2, 5000])
@pytest.mark.parametrize("values", [1, 40, 10**6])
def test_rising_is_a_stable_sort(size: int, values: int) -> None:
    drawn = np.random.default_rng(5).integers(0, values, size).astype(np.float64)
    assert np.array_equal(rising(drawn), np.argsort(drawn, kind="stable"))
