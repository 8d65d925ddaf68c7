"""WAIT: exact near the limit, least thresholds by brute force, and an event simulation of the policy."""

from __future__ import annotations

import math
from collections import deque
from fractions import Fraction as F

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.fluid import wait as w


def run(
    types: list[tuple[float, int, int]], n: tuple[int, ...], d0: float, d1: float, iterations: int, seed: int
) -> tuple[float, list[float], float, float]:
    """Simulate WAIT request by request: (peak memory, time-averaged queues, tokens per second, mean wait of type 0).

    A type joins when n_j of its requests wait; it then advances every stage, at most n_j requests each.
    """
    rng = np.random.default_rng(seed)
    waiting: list[deque[float]] = [deque() for _ in types]
    stages = [[0] * (out + 1) for _, _, out in types]  # stages[j][s]: requests that have had s + 1 iterations
    coming = [rng.exponential(1 / lam) for lam, *_ in types]
    now, peak, tokens = 0.0, 0.0, 0
    area, waits = [0.0] * len(types), []

    def arrive(until: float, since: float) -> None:
        for j, (lam, *_) in enumerate(types):
            at = since
            while coming[j] <= until:
                area[j] += len(waiting[j]) * (coming[j] - at)
                at = coming[j]
                waiting[j].append(coming[j])
                coming[j] += rng.exponential(1 / lam)
            area[j] += len(waiting[j]) * (until - at)

    done = 0
    while done < iterations:
        joins = [j for j in range(len(types)) if len(waiting[j]) >= n[j]]
        if not joins:
            then = min(coming)
            arrive(then, now)
            now = then
            continue
        work = 0.0
        for j in joins:
            _, prompt, out = types[j]
            for s in range(out, 0, -1):  # stage s: l + s tokens, from those that had s iterations
                moved = min(n[j], stages[j][s - 1])
                work += moved * (prompt + s)
                stages[j][s - 1] -= moved
                stages[j][s] += moved
                tokens += moved
            work += n[j] * prompt
            for _ in range(n[j]):
                begun = waiting[j].popleft()
                if j == 0:
                    waits.append(now - begun)
            stages[j][0] += n[j]
        held = sum(stages[j][s] * (prompt + s) for j, (_, prompt, out) in enumerate(types) for s in range(out + 1))
        peak = max(peak, held)
        for j in joins:
            stages[j][-1] = 0  # finished at the end of the iteration
        then = now + d0 + d1 * work
        arrive(then, now)
        now = then
        done += 1
    return peak, [a / now for a in area], tokens / now, float(np.mean(waits))


INSTANCES = [
    ([(4.0, 1, 1)], 0.25, 0.05),
    ([(20.0, 10, 5), (10.0, 30, 8)], 0.05, 1.5e-5),
    ([(50.0, 20, 10), (30.0, 5, 20), (5.0, 100, 3)], 0.02, 6e-6),
    ([(2.0, 100, 30)], 0.1, 1.2e-4),
]


@pytest.mark.slow
def checked(n, types, d0, d1) -> tuple[bool, bool]:
    """Whether every threshold is above, and not below, the arrivals of an iteration with all of them full."""
    exact = [tuple(F(repr(v)) if isinstance(v, float) else F(v) for v in row) for row in types]
    dT = F(d0) + F(d1) * sum(k * (o + 1) * (l + o / 2) for k, (_, l, o) in zip(n, exact, strict=True))
    slack = [k - rate * dT for k, (rate, _, _) in zip(n, exact, strict=True)]
    return min(slack) > 0, min(slack) >= 0


@pytest.mark.parametrize("number", range(len(INSTANCES)))
def test_simulated_memory_never_exceeds_the_bound(number: int) -> None:
    types, d0, d1 = INSTANCES[number]
    fluid = w.fluid_equilibrium(types, d0, d1)
    found = w.wait_min_thresholds(types, d0, d1)
    assert found.stable
    assert found.M_pi >= fluid.M
    for n in (found.n, tuple(k + 2 for k in found.n)):
        if not checked(n, types, d0, d1)[0]:
            continue
        peak, queues, rate, wait = run(types, n, d0, d1, 6000, 17 + number)
        assert peak <= w.wait_dT(n, types, d0, d1).M_pi * (1 + 1e-12)
        assert peak >= 0.999 * w.wait_dT(n, types, d0, d1).M_pi  # and reaches it
        assert rate == pytest.approx(fluid.thr, rel=0.05)
        bounds = w.wait_bounds(n, types, d0, d1)
        for queue, bound in zip(queues, bounds, strict=True):
            assert queue <= bound.queue
        assert wait <= bounds[0].wait_s


def test_load_beyond_the_limits_grows() -> None:
    """Erratum: finite C is stricter than d1 S < 1. Thresholds within C exist at 0.9 of the scale, at 1.01 none."""
    types, d0, d1, C = [(4, 1, 1)], "0.4", "0.05", 60
    c = F(repr(w.load_scale_max(types, d0, d1, C)))
    under = w.wait_min_thresholds([(4 * c * F(9, 10), 1, 1)], d0, d1, C=C)
    over = w.wait_min_thresholds([(4 * c * F(101, 100), 1, 1)], d0, d1, C=C)
    assert under.fits
    assert over.stable
    assert not over.fits


def brute(types: list[tuple[F, int, int]], d0: F, d1: F, strict: bool) -> list[int]:
    n = [1] * len(types)
    while True:
        dT = d0 + d1 * sum(k * (o + 1) * (l + F(o, 2)) for k, (_, l, o) in zip(n, types, strict=True))
        new = [
            max(k, math.floor(r * dT) + 1 if strict else math.ceil(r * dT)) for k, (r, *_) in zip(n, types, strict=True)
        ]
        if new == n:
            return n
        n = new


rate = st.fractions(min_value=0, max_value=50, max_denominator=100)


@given(
    rows=st.lists(st.tuples(rate, st.integers(0, 200), st.integers(0, 80)), min_size=1, max_size=5),
    slack=st.sampled_from([F(1, 2), F(1, 10), F(1, 200)]), d0=st.fractions(0, 1, max_denominator=50), strict=st.booleans(),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_least_thresholds_by_brute_force(rows: list[tuple[F, int, int]], slack: F, d0: F, strict: bool) -> None:
    S = sum(r * (o + 1) * (l + F(o, 2)) for r, l, o in rows)
    assume(S > 0)
    d1 = (1 - slack) / S
    found = w.wait_min_thresholds(rows, d0, d1, strict)
    assert found.least
    assert list(found.n) == brute(rows, d0, d1, strict)
    assert checked(found.n, rows, d0, d1)[0 if strict else 1]


@pytest.mark.parametrize("slack", ["1e-3", "1e-6", "1e-9", "1e-12"])
def test_within_a_billionth_of_the_limit(slack: str) -> None:
    mpmath.mp.dps = 50
    types = [(6000, 20, 100), (4000, 20, 200), (2000, 20, 300)]
    S = sum(r * (o + 1) * (l + F(o, 2)) for r, l, o in types)
    d1 = (1 - F(slack)) / S
    fluid = w.fluid_equilibrium(types, "0.01", d1)
    assert fluid.slack == float(slack)
    assert pytest.approx(float(F("0.01") * S / F(slack)), rel=1e-15) == fluid.M
    text = w.fluid_equilibrium(types, "0.01", mpmath.mpf(d1.numerator) / d1.denominator)
    assert pytest.approx(fluid.M, rel=1e-12) == text.M
    found = w.wait_min_thresholds(types, "0.01", d1)
    assert found.least
    assert checked(found.n, types, "0.01", d1)[0]
    smaller = [k - 1 for k in found.n]
    assert not checked(smaller, types, "0.01", d1)[0]
    single = w.wait_min_thresholds([(4, 1, 1)], "0.4", (1 - F(slack)) / 12)
    assert single.n == (math.floor(F("1.6") / F(slack)) + 1,)
    assert w.load_scale_max(types, "0.01", d1, math.inf) == pytest.approx(1 / (1 - float(slack)), rel=1e-15)


def test_many_types_near_the_limit_stay_valid() -> None:
    rng = np.random.default_rng(1)
    types = [
        (float(r), int(l), int(o))
        for r, l, o in zip(rng.random(250), rng.integers(1, 4000, 250), rng.integers(1, 2000, 250), strict=True)
    ]
    S = sum(F(repr(r)) * (o + 1) * (l + F(o, 2)) for r, l, o in types)
    for slack, least in (("0.1", True), ("1e-3", True), ("1e-9", False)):
        d1 = (1 - F(slack)) / S
        found = w.wait_min_thresholds(types, "0.02", d1)
        assert found.stable
        assert found.least is least
        assert checked(found.n, types, "0.02", d1)[0]
        assert w.fluid_equilibrium(types, "0.02", d1).dT == pytest.approx(0.02 / float(slack), rel=1e-14)


def test_equality_and_snapping() -> None:
    # example 2 of the paper: 4 x (0.4 + 0.05 x 12) is 4 exactly, whatever doubles make of it
    for four, fixed, token in ((4, "0.4", "0.05"), (4.0, 0.4, 0.05), (4, mpmath.mpf(0.4), mpmath.mpf(0.05))):
        assert w.wait_min_thresholds([(four, 1, 1)], fixed, token).n == (5,)
        assert w.wait_min_thresholds([(four, 1, 1)], fixed, token, strict=False).n == (4,)
    assert w.wait_min_thresholds([(1 / 3, 1, 1)], 3 * 0.75, 0.25).n == (2,)
    assert checked([4], [(4, 1, 1)], "0.4", "0.05") == (False, True)


def test_overload_zero_rates_and_nonsense() -> None:
    over = w.fluid_equilibrium([(4, 1, 1), (0, 5, 5)], 1, F(1, 12))
    assert (over.stable, over.M, over.n, over.slack) == (False, math.inf, (math.inf, 0.0), 0.0)
    assert w.fluid_equilibrium([(0, 1, 1)], 1, 1).M == 0.0
    assert w.wait_min_thresholds([(0, 1, 1)], 1, "0.1").n == (1,)
    assert w.wait_min_thresholds([(0, 1, 1), (4, 1, 1)], "0.25", "0.05").n[0] == 1
    stopped = w.wait_min_thresholds([(4, 1, 1)], 1, 1)
    assert (stopped.stable, stopped.n, stopped.dT) == (False, (), math.inf)
    assert w.load_scale_max([(0, 1, 1)], 1, 1, 5) == math.inf
    assert w.load_scale_max([(1, 1, 1)], 1, 1, 0) == 0.0
    assert w.load_scale_max([(1, 1, 1)], 0, 0, 5) == math.inf
    assert w.wait_queue_bound(4, 4, 1) == math.inf
    assert w.wait_bounds([1], [(0, 1, 1)], 1, 0)[0].ttft_s == math.inf
    assert not w.wait_min_thresholds([(4, 1, 1)], "0.25", "0.05", C=5).fits
    for call, what in [
        (lambda: w.fluid_equilibrium([], 1, 1), "types"),
        (lambda: w.fluid_equilibrium([(-1, 1, 1)], 1, 1), "rate"),
        (lambda: w.fluid_equilibrium([(1, 1)], 1, 1), "types"),
        (lambda: w.fluid_equilibrium([(1, 1, 1)], -1, 1), "d0"),
        (lambda: w.fluid_equilibrium([(1, 1, 1)], 1, "x"), "d1"),
        (lambda: w.load_scale_max([(1, 1, 1)], 1, 1, -1), "C must"),
        (lambda: w.wait_dT([1, 2], [(1, 1, 1)], 1, 1), "n must"),
        (lambda: w.wait_dT([1.5], [(1, 1, 1)], 1, 1), "n must"),
    ]:
        with pytest.raises(ValueError, match=what):
            call()
