"""Random choices that stay with the request: against the laws they follow, and as the pool or the share kept grows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.queueing.common_draws import numbered, replicas_drawn, spread, thinned, uniforms
from planner.queueing.path import PathRequests, follow_path

SIZE = 200_000


def test_draws_are_uniform_and_their_kinds_independent() -> None:
    first, second = uniforms(numbered(SIZE), 0), uniforms(numbered(SIZE), 1)
    counts, _, _ = np.histogram2d(first, second, bins=20, range=[[0.0, 1.0]] * 2)
    # chi-squared of 399 degrees of freedom: within four deviations
    assert np.sum((counts - SIZE / 400) ** 2) / (SIZE / 400) == pytest.approx(399, abs=4 * np.sqrt(2 * 399))
    assert first.min() > 0.0 and first.max() < 1.0


@given(st.integers(1, 60), st.integers(0, 2**40))
@settings(max_examples=40, deadline=None)
def test_one_more_replica_takes_its_share_and_moves_nothing_else(replicas: int, start: int) -> None:
    keys = numbered(20_000) + np.uint64(start)
    before, after = replicas_drawn(keys, replicas), replicas_drawn(keys, replicas + 1)
    moved = before != after
    assert np.all(after[moved] == replicas)
    assert moved.mean() == pytest.approx(1 / (replicas + 1), abs=5 * np.sqrt(0.25 / keys.size))
    share = np.bincount(after, minlength=replicas + 1) / keys.size
    assert share == pytest.approx(1 / (replicas + 1), abs=5 * np.sqrt(1 / (replicas + 1) / keys.size))


@pytest.mark.parametrize("chosen", [thinned, spread])
@given(share=st.floats(0.002, 0.9), less=st.floats(0.3, 1.0), start=st.integers(0, 5000))
@settings(max_examples=40, deadline=None)
def test_a_lower_share_keeps_some_of_those_of_a_higher_one(chosen, share, less, start) -> None:  # type: ignore[no-untyped-def]
    stream = (np.arange(1, 4) << 28).astype(np.uint64)
    begin = np.full(3, start)
    whose, number = chosen(stream, begin, begin + 20_000, np.full(3, share))
    assert number.min(initial=start) >= start and number.max(initial=start) < start + 20_000
    wanted = 60_000 * share
    # evenly: to a few; at random: five deviations of a binomial
    assert whose.size == pytest.approx(wanted, abs=60 if chosen is spread else 5 * np.sqrt(wanted) + 5)
    if (share >= 0.15) == (share * less >= 0.15):  # dense and sparse streams are drawn in two ways
        fewer = chosen(stream, begin, begin + 20_000, np.full(3, share * less))
        assert set(zip(*fewer, strict=True)) <= set(zip(whose, number, strict=True))


def test_kept_requests_are_independent_where_they_are_drawn_and_even_where_they_are_spread() -> None:
    """Variance over mean of the number kept of 400 consecutive requests: 1 - p of a binomial, next to none of an even stream."""
    stream = np.array([7 << 28], dtype=np.uint64)
    for share in (0.02, 0.1, 0.3):
        for chosen, expected in ((thinned, 1.0 - share), (spread, 0.0)):
            _, number = chosen(stream, np.zeros(1, dtype=int), np.array([SIZE]), np.array([share]))
            counts = np.bincount(number // 400, minlength=SIZE // 400)
            assert counts.var() / counts.mean() == pytest.approx(expected, abs=0.25), (share, chosen)


@given(st.integers(2, 12), st.floats(0.3, 0.8), st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_one_more_replica_never_makes_anybody_wait_longer(replicas: int, load: float, seed: int) -> None:
    """Where prompts are all the work each replica is Lindley's queue, which requests that leave can only shorten."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.gamma(0.3, 1.0 / 0.3, 3000))
    prompts = np.ceil(rng.lognormal(6.0, 1.0, 3000))
    pace = load * replicas / prompts.mean()
    requests = PathRequests.of(times, prompts, np.ones(3000))

    def waits(n: int) -> np.ndarray:
        found = follow_path(
            requests, lambda d, c, t, p=0.0: pace * np.asarray(t) + 1e-12 + 0.0 * np.asarray(d), replicas=n
        )
        by_request = np.empty(3000)
        by_request[found.rows] = found.ttft
        return by_request

    before, after = waits(replicas), waits(replicas + 1)
    moved = replicas_drawn(requests.keys, replicas) != replicas_drawn(requests.keys, replicas + 1)
    assert np.all(after[~moved] <= before[~moved] * (1.0 + 1e-6) + 1e-6)
