"""Stretches of many draws that stand for a trace at another rate: against all of it, and against laws written out."""

from __future__ import annotations

import numpy as np
import pytest

from planner.methods.burst import PoolPath
from planner.methods.stretches import MOST_DRAWS, Stretches, _shifts, stretches
from planner.queueing.common_draws import numbered
from planner.queueing.path import Followed, PathRequests
from planner.workload.sending import Surge
from planner.workload.trace import Trace


def _trace(size: int = 6000, seed: int = 3) -> Trace:
    """Requests whose rate and prompts swing together every 20 s."""
    rng = np.random.default_rng(seed)
    swing = np.repeat(rng.gamma(2.0, 0.5, 1000), 20)
    second = np.searchsorted(np.cumsum(swing) * 5.0, np.cumsum(rng.exponential(1.0, size)))
    times = np.sort(second + rng.random(size))
    inputs = np.ceil(rng.lognormal(np.where(swing[np.floor(times).astype(int)] > 1.3, 7.4, 6.6), 0.7))
    return Trace(times - times[0], inputs, np.ones(size), np.zeros(size, dtype=np.int64))


def _waits(found: Stretches, work: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Waits of one server that starts each run empty [s], and their weights (Lindley's recursion)."""
    # runs lie far apart, each behind a request of its own that brings its backlog
    start = np.flatnonzero(np.diff(found.run, prepend=-1) > 0)
    times = np.insert(found.times + 1e6 * found.run, start, (found.times + 1e6 * found.run)[start])
    service = np.insert(work[found.rows], start, found.backlog[found.run[start]])
    sums = np.cumsum(np.concatenate(([0.0], service[:-1])) - np.diff(times, prepend=times[0]))
    waits = sums - np.minimum.accumulate(sums)
    return np.delete(waits, start + np.arange(start.size)), found.weight


def _quantile(waits: np.ndarray, weight: np.ndarray, level: float) -> float:
    order = np.argsort(waits)
    return float(waits[order][np.searchsorted(np.cumsum(weight[order]), level * weight.sum())])


def test_all_of_one_copy_is_the_trace_itself() -> None:
    trace = _trace()
    found = stretches(trace, np.ones(trace.requests), 1.0, trace.rate_per_s, most=10**9)
    assert np.array_equal(found.rows, np.arange(trace.requests)) and np.all(found.weight == 1.0)
    assert found.times == pytest.approx(trace.times_s) and found.run.max() == 0


@pytest.mark.parametrize(("even", "growth"), [(False, "users"), (True, "users"), (False, "use")])
def test_a_share_of_copies_has_their_rate(even: bool, growth: str) -> None:
    trace = _trace()
    found = stretches(
        trace, np.ones(trace.requests), 10.0, 6.0 * trace.rate_per_s, growth=growth, keep=0.2, even=even, most=10**9
    )
    draws = found.counts.shape[0]
    assert draws == (1 if growth == "use" else MOST_DRAWS)
    # within four standard errors of a binomial
    assert found.rows.size / draws == pytest.approx(1.2 * trace.requests, abs=4.0 * np.sqrt(1.2 * trace.requests))
    assert np.all(np.diff(found.run) >= 0) and np.all(np.diff(found.times) >= -1e-6)
    gaps = np.bincount(found.rows, minlength=trace.requests)
    # every request is as likely as any other
    assert gaps.mean() == pytest.approx(1.2 * draws, rel=0.02) and gaps.max() < 4 * 1.2 * draws + 10


@pytest.mark.parametrize(("copies", "servers"), [(1.0, 1.0), (4.0, 5.0)])
def test_few_requests_stand_for_all_draws(copies: float, servers: float) -> None:
    """P50, P90 and P99 of the waits of one server in `servers`; the prompts take 0.7 of its time on average."""
    levels, off = (0.5, 0.9, 0.99), []
    for seed in (3, 4, 5):
        trace = _trace(12_000, seed)
        work = trace.input_tokens * 0.7 * servers / (copies * trace.rate_per_s * trace.input_tokens.mean())
        asked = {"keep": 1.0 / servers, "rate_per_s": copies * trace.rate_per_s}
        all_of = stretches(trace, work, servers, most=10**9, **asked)
        part = stretches(trace, work, servers, most=all_of.rows.size // 8 if copies > 1.0 else 5000, **asked)
        assert part.rows.size < 0.6 * all_of.rows.size
        # weights add up to what all draws hold
        assert part.weight.sum() == pytest.approx(all_of.rows.size, rel=0.05)
        waits = [_waits(x, work) for x in (all_of, part)]
        off.append([_quantile(*waits[1], level) / _quantile(*waits[0], level) - 1.0 for level in levels])
    # one sample strays by a fifth at the median, a tenth at the others: the mean of three
    assert np.all(np.abs(np.mean(off, axis=0)) < (0.2, 0.12, 0.1))


@pytest.mark.parametrize(("copies", "draws"), [(2, 31), (7, 31), (40, 31), (3, 5)])
def test_copies_meet_each_other_evenly(copies: int, draws: int) -> None:
    """Shifts of every copy, and differences of the shifts of any two as far as the lattice goes, are a whole grid."""
    shifts = _shifts(copies, draws)
    grid = (np.arange(draws) + 0.5) / draws

    def even(values: np.ndarray) -> bool:
        # one in every part, wherever the grid begins
        gaps = np.diff(np.sort(values), append=np.sort(values)[0] + 1.0)
        return np.allclose(gaps, 1.0 / draws) and grid.size == np.unique(np.floor(values * draws)).size

    assert shifts.shape == (draws, copies) and all(even(column) for column in shifts.T)
    inside = min(copies, draws - 1)
    assert all(even((shifts[:, j] - shifts[:, k]) % 1.0) for k in range(inside) for j in range(k))


def _followed(found: Stretches, values: np.ndarray) -> Followed:
    """A run in which the counted requests take these times."""
    keep = np.flatnonzero(found.weight > 0.0)
    columns = [values[keep]] * 3
    return Followed(keep, found.weight[keep], *columns, np.zeros(keep.size), 0.0)


def _path(found: Stretches) -> PoolPath:
    return PoolPath(PathRequests.of(*np.ones((3, 1))), 1, found)


@pytest.mark.parametrize("copies", [1.0, 2.0, 30.0])
def test_single_hours_lie_around_the_typical_one(copies: float) -> None:
    """Between draws where copies are shifted, between minutes of the one there is; many copies are more alike than few."""
    trace = _trace(12_000)
    work = trace.input_tokens * 0.7 / (trace.rate_per_s * trace.input_tokens.mean())
    found = stretches(trace, work, copies, copies * trace.rate_per_s, most=100_000 if copies > 2.0 else 5000)
    waits, _ = _waits(found, work / copies)
    calm, typical, busy = _path(found).hours(_followed(found, 1.0 + waits), "ttft_s", (0.5, 0.9, 0.99))
    assert np.all(calm <= typical) and np.all(typical <= busy)
    assert busy[2] / calm[2] > 1.1


def test_hours_differ_by_what_requests_meet_and_by_nothing_else() -> None:
    """Draws with their own shares of two classes: by hand where the class says all, alike where it says nothing."""
    kind = np.repeat([0, 1], [9000, 1000])
    shares = np.repeat([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2]], [4, 5, 1], axis=0)
    zeros = np.zeros(kind.size)
    found = Stretches(
        zeros, kind, numbered(kind.size), np.ones(kind.size), kind, zeros, zeros, kind, shares, shares, shares, 1
    )
    told = kind * 10.0 + np.linspace(0.0, 1.0, kind.size)
    calm, typical, busy = _path(found).hours(_followed(found, told), "ttft_s", (0.95,))[:, 0]
    places = [
        np.interp(told.size * x, np.arange(told.size), told) for x in (0.9 * 0.95, 0.9 + 0.1 * 0.5, 0.9 + 0.1 * 0.75)
    ]
    assert calm == pytest.approx(places[0], rel=0.01) and busy == pytest.approx(places[2], rel=0.01)
    assert typical == pytest.approx(np.mean(np.repeat(places, [4, 5, 1])), rel=0.01)
    same = np.random.default_rng(2).exponential(1.0, kind.size)
    levels = (0.5, 0.9, 0.99)
    for row in _path(found).hours(_followed(found, same), "ttft_s", levels):
        assert row == pytest.approx(-np.log1p(-np.array(levels)), rel=0.12)  # 1,000 of a class: three standard errors


def test_copies_of_stretches_of_a_long_trace_keep_their_hour() -> None:
    """A day kept as stretches: its copies are shifted by less than a stretch, or night and day would even out."""
    rng = np.random.default_rng(5)
    times = np.sort(np.concatenate((rng.random(2000) * 7200, 7200 + rng.random(18_000) * 7200)))
    columns = np.ones(20_000), np.ones(20_000), np.zeros(20_000, dtype=np.int64)
    shares = []
    for near in (None, 600.0):
        found = stretches(Trace(times, *columns, near), np.full(20_000, 0.1), 4.0, 4.0 * 20_000 / 14_400, most=10**9)
        half = found.counts.shape[1] // 2
        shares.append(found.counts[:, :half].sum() / found.counts.sum())
    assert shares[0] > 0.3 and shares[1] < 0.15


@pytest.mark.parametrize(("together", "level", "least"), [(1, 0.9, 0.82), (5, 0.8, 0.75)])
def test_the_share_beyond_a_quantile_strays_as_its_minutes_say(together: int, level: float, least: float) -> None:
    """Of 300 traces of 90 minutes, alike in runs of `together`, nine in ten should have the law's share in exp(1.645 deviations).

    Fewer than that by the skewness of few runs; where a handful of minutes holds the whole tail none of it is known.
    """
    rng = np.random.default_rng(11)
    hours, minutes = 300, 90
    swing = np.repeat(rng.gamma(3.0, 1.0 / 3.0, (hours, minutes // together)), together, axis=1)
    counts = rng.poisson(200.0 * swing).astype(float)
    met = swing + 0.05 * rng.random((hours, minutes))
    order = np.argsort(met, axis=None)
    below = np.cumsum(counts.ravel()[order])
    limit = met.ravel()[order][np.searchsorted(below, level * below[-1])]
    none, inside = np.zeros(0), 0
    for counted, what in zip(counts, met, strict=True):
        found = Stretches(
            none, none.astype(np.int64), numbered(0), none, none.astype(np.int64), none, none, none.astype(np.int64),
            np.ones((1, 1)),
            counted[None], what[None], 1,
        )  # fmt: skip
        share = counted[what > limit].sum() / counted.sum()
        factor = np.exp(1.645 * found.deviations(np.array([level]))[0])
        inside += 1.0 / factor <= share / (1.0 - level) <= factor
    assert least <= inside / hours <= 0.97


@pytest.mark.parametrize("surge", [Surge(4.0, 20.0), Surge(3.0, 15.0, 10.0)])
def test_stretches_around_crowds_stand_for_all_crowds(surge: Surge) -> None:
    """Waits of one server of the requests of crowds, against every crowd of a long run at the same rate (Lindley's recursion)."""
    rng = np.random.default_rng(9)
    times = np.cumsum(rng.exponential(0.2, 200_000))
    work = rng.exponential(0.05, times.size)  # a load of a quarter between crowds

    def all_waits() -> np.ndarray:
        at = surge.warp(times)
        steps = np.concatenate(([0.0], work[:-1])) - np.diff(at, prepend=at[0])
        sums = np.cumsum(steps)
        return (sums - np.minimum.accumulate(sums))[surge.counts(at)]

    trace = Trace(times - times[0], 1e3 * work, np.ones(times.size), np.zeros(times.size, dtype=np.int64))
    found = stretches(trace, work, 1.0, trace.rate_per_s, most=40_000, surge=surge)
    assert found.rows.size < 60_000
    waits, weight = _waits(found, work)
    keep = weight > 0.0
    levels = np.array([0.5, 0.9, 0.99])
    # a few hundred crowds stand for 400 or more, whose own P99 is known to some 10%
    assert [_quantile(waits[keep], weight[keep], x) for x in levels] == pytest.approx(
        np.quantile(all_waits(), levels), rel=0.15, abs=0.01
    )
