"""SLAI: the last schedulable time of a decode."""

from __future__ import annotations

import math

import pytest

from planner.fluid import rad as slai


def test_last_time_and_nonsense() -> None:
    assert slai.slai_last_time([1.0, 2.0], 0.5, 2, 0.1).tolist() == [1.3, 2.3]
    assert slai.slai_last_time(1, math.inf, 2, 0.1) == math.inf
    for call, what in [
        (lambda: slai.slai_last_time(1, 1, -1, 1), "delta"),
        (lambda: slai.slai_last_time(1, 1, 1, -1), "tb must"),
    ]:
        with pytest.raises(ValueError, match=what):
            call()
