from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.ask.dwell import cheapest_holding, paid_replicas

needs = st.lists(st.integers(1, 5), min_size=2, max_size=7)


def cost(replicas: tuple[int, ...], startup: float) -> float:
    return sum(replicas) + startup * sum(max(n - replicas[k - 1], 0) for k, n in enumerate(replicas))


def shortest_stretch(replicas: tuple[int, ...]) -> int:
    """Length of the shortest run of one value on the circle."""
    changes = [k for k in range(len(replicas)) if replicas[k] != replicas[k - 1]]
    if not changes:
        return len(replicas)
    return min((b - a - 1) % len(replicas) + 1 for a, b in zip(changes, [*changes[1:], changes[0]], strict=True))


def all_holdings(needed: list[int], dwell: int) -> list[tuple[int, ...]]:
    """Every schedule that covers the need and holds each count long enough, by enumeration of all counts."""
    options = [range(n, max(needed) + 1) for n in needed]
    return [r for r in itertools.product(*options) if shortest_stretch(r) >= min(dwell, len(needed))]


@settings(max_examples=120, deadline=None)
@given(needs, st.integers(1, 8), st.sampled_from([0.0, 0.1, 0.5, 1.5, 3.0]))
def test_no_holding_is_cheaper(needed: list[int], dwell: int, startup: float) -> None:
    found = cheapest_holding(needed, dwell, startup)
    assert all(n >= m for n, m in zip(found, needed, strict=True))
    assert shortest_stretch(found) >= min(dwell, len(needed))
    best = min(cost(r, startup) for r in all_holdings(needed, dwell))
    assert cost(found, startup) == pytest.approx(best, abs=1e-9)


@given(needs)
def test_without_dwell_and_startup_the_need_itself(needed: list[int]) -> None:
    assert cheapest_holding(needed, 1, 0.0) == tuple(needed)


def test_longer_than_the_period_never_changes() -> None:
    assert cheapest_holding([1, 4, 2], 24, 0.0) == (4, 4, 4)
    assert cheapest_holding([1, 3, 1], int(1.7e308), 0.5) == (3, 3, 3)


@pytest.mark.parametrize("startup", [0.0, 0.25, 1.0, 1.5, 30.0])
def test_paid_replicas_by_sampling_the_clock(startup: float) -> None:
    replicas = [2, 5, 3, 3, 1, 4]
    steps = 400
    for hour, (late, before, after) in enumerate(paid_replicas(replicas, startup)):
        sampled = []
        for k in range(steps):
            now = hour + (k + 0.5) / steps
            last = int(min(now + startup, hour + len(replicas)))
            sampled.append(max(replicas[h % len(replicas)] for h in range(hour, last + 1)))
        assert (1.0 - late) * before + late * after == pytest.approx(sum(sampled) / steps, abs=0.02)
