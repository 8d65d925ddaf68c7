"""Distinct values against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from planner.queueing.order import distinct, ranked


@pytest.mark.parametrize("size", [0, 1, 50])
@pytest.mark.parametrize("kind", [int, float, str])
def test_distinct_values_as_numpys(size: int, kind: type) -> None:
    values = np.random.default_rng(3).integers(0, 9, size).astype(kind)
    assert np.array_equal(distinct(values), np.unique(values))
    found, place = ranked(values)
    assert np.array_equal(found[place], values) and np.array_equal(found, np.unique(values))
