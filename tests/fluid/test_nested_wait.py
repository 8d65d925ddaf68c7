"""Nested WAIT: roots near both limits, least thresholds, and coverage of the memory bound by event simulation."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction as F

import mpmath
import numpy as np
import pytest

from planner.fluid import nested_wait as nw


def peak_memory(
    n: tuple[int, ...],
    l: int,
    ends: list[int],
    lambdas: list[float],
    d0: float,
    d1: float,
    iterations: int,
    seed: int,
    runs: int,
) -> np.ndarray:
    """Largest memory of each of several simulated runs, all requests of a stage counted together (they are exchangeable).

    Segment 1 is the prefill and stages 1..l_1', segment k stages l_{k-1}'+1..l_k'. Requests that reach the end of a
    segment go on with probability p_k, to wait in front of the next with l + l_{k-1}' tokens each.
    """
    rng = np.random.default_rng(seed)
    m = len(ends)
    tails = np.cumsum(lambdas[::-1])[::-1]
    go_on = [tails[k + 1] / tails[k] for k in range(m - 1)]
    entry = np.zeros((m, runs))  # requests in front of each segment
    sizes = [ends[0] + 1, *(b - a for a, b in itertools.pairwise(ends))]
    inside = [np.zeros((size - 1, runs)) for size in sizes]  # after the first stage of the segment, before its last
    first = [l, *(l + e + 1 for e in ends[:-1])]  # tokens held in the first stage
    peak = np.zeros(runs)
    for _ in range(iterations):
        # the first segment waits for so many
        entry[0] = np.maximum(entry[0], n[0])
        going = np.logical_and.accumulate(entry >= np.array(n)[:, None])
        work, held, leaving = np.zeros(runs), np.zeros(runs), []
        for k in range(m):
            entry[k] -= n[k] * going[k]
            moved = np.concatenate([np.full((1, runs), n[k]), inside[k]])
            work += going[k] * ((first[k] + np.arange(len(moved))) @ moved)
            # a segment that stands still holds what is in it, counted as the one before its first stage
            held += ~going[k] * ((first[k] + np.arange(len(inside[k]))) @ inside[k])
            held += (l + ends[k - 1]) * entry[k] if k else 0.0
            inside[k] = np.where(going[k], moved[:-1], inside[k])
            leaving.append(going[k] * moved[-1])
        peak = np.maximum(peak, work + held)
        for k, count in enumerate(leaving[:-1]):
            entry[k + 1] += rng.binomial(count.astype(int), go_on[k])
        entry[0] += rng.poisson(tails[0] * (d0 + d1 * work))
    return peak


SETTINGS = [
    # n, l, ends, rates, d0, d1
    ((40, 26, 14), 4, [2, 5, 9], [5.0, 3.0, 2.0], 1.0, 1e-3),
    ((8, 5), 1, [1, 2], [1.0, 1.0], 1.0, 1e-2),
    ((8, 8), 1, [1, 2], [1.0, 1.0], 1.0, 1e-2),
    ((30, 21, 14, 6), 20, [3, 6, 12, 20], [4.0, 3.0, 3.0, 2.0], 0.5, 1e-4),
    ((12, 10, 3), 50, [5, 10, 30], [2.0, 7.0, 2.0], 0.4, 1e-5),
]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_memory_bound_covers_what_it_promises(number: int) -> None:
    n, l, ends, lambdas, d0, d1 = SETTINGS[number]
    B, delta, runs = 800, 0.1, 60
    need = nw.nested_M_req(n, l, ends, lambdas, B, delta)
    assert need.stable
    peaks = peak_memory(n, l, ends, lambdas, d0, d1, B, number, runs)
    covered = np.mean(peaks <= need.total)
    assert covered >= 1 - delta
    assert np.mean(peaks) > 0.6 * need.total  # not by reserving at random
    printed = nw.nested_M_pi(n, l, ends).printed_eq13 + need.det + need.sto
    if printed < need.base:
        assert np.mean(peaks <= printed) < 1 - delta  # eq. 13 as printed does not


def test_mean_queue_bound() -> None:
    """E[W_k] <= n_k + n_{k-1} p (1-p)/(2D), from the queue's own recursion."""
    rng = np.random.default_rng(2)
    n1, n2, p = 40, 23, 0.5
    queue, total = 0, 0
    for x in rng.binomial(n1, p, 200_000):
        queue += int(x)
        if queue >= n2:
            queue -= n2
        total += queue
    bound = nw.nested_M_req([n1, n2], 1, [1, 2], [1, 1], 100, "0.1").queue_mean[0]
    assert total / 200_000 <= bound


def reference_root(n_k: int, n_km1: int, p: F) -> mpmath.mpf:
    pm = mpmath.mpf(p.numerator) / p.denominator

    def f(t: mpmath.mpf) -> mpmath.mpf:
        return -n_k + n_km1 * mpmath.log1p(pm * mpmath.expm1(t)) / t

    low, high = mpmath.mpf(10) ** -25, mpmath.mpf(1)
    while f(high) < 0:
        high *= 2
    for _ in range(300):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < 0 else (low, middle)
    return (low + high) / 2


@pytest.mark.parametrize(
    ("n_k", "n_km1", "p"),
    [
        (5, 8, "0.5"), (26, 40, "0.5"), (50_001, 100_000, "0.5"), (99_999, 100_000, "0.5"), (999, 1000, "1e-6"),
        (9, 10, "0.899999999999"), (1, 1000, "0.000999999999"), (500, 1000, "0.4999999999"), (2, 3, "0.6666666"),
        (10**9 - 1, 10**9, "0.999999998"), (999, 1000, "0.9985"), (1, 10**6, "1e-9"), (7, 8, "0.1"),
    ],
)  # fmt: skip
def test_root_at_both_limits(n_k: int, n_km1: int, p: str) -> None:
    mpmath.mp.dps = 60
    found = nw.theta_k(n_k, n_km1, p)
    truth = reference_root(n_k, n_km1, F(p))
    assert abs(found.theta / truth - 1) < 1e-13
    assert found.theta >= found.lower_bound * (1 - 1e-15)
    again = nw.theta_k(float(n_k), n_km1, float(p))
    assert abs(again.theta / truth - 1) < 1e-12


def test_printed_lower_bound_is_false() -> None:
    root = nw.theta_k(26, 40, "0.5")
    assert root.lower_bound < root.theta < root.printed_bound


def test_root_where_there_is_none() -> None:
    assert (nw.theta_k(4, 8, "0.5").theta, nw.theta_k(4, 8, "0.5").stable) == (0.0, False)
    assert nw.theta_k(14, 15, 14 / 15).stable is False  # equality in doubles
    assert nw.theta_k(9, 8, "0.5").theta == math.inf
    assert nw.theta_k(1, 8, 0).theta == math.inf
    assert nw.theta_k(8, 8, 1).theta == math.inf
    for call, what in [
        (lambda: nw.theta_k(0, 8, "0.5"), "n_k"),
        (lambda: nw.theta_k(1, 8, "1.5"), "p must"),
        (lambda: nw.nested_M_pi([1], 1, [2, 1]), "lps"),
        (lambda: nw.nested_M_pi([1], 1, [1, 2]), "n must"),
        (lambda: nw.nested_M_req([1, 1], 1, [1, 2], [0, 0], 9, "0.1"), "lambdas"),
        (lambda: nw.nested_M_req([1, 1], 1, [1, 2], [1], 9, "0.1"), "lambdas"),
        (lambda: nw.nested_M_req([1, 1], 1, [1, 2], [1, 1], 0, "0.1"), "B must"),
        (lambda: nw.nested_M_req([1, 1], 1, [1, 2], [1, 1], 9, 1), "delta"),
        (lambda: nw.nested_iterations(1, 0), "d0"),
    ]:
        with pytest.raises(ValueError, match=what):
            call()


def test_papers_thresholds_sit_on_the_boundary() -> None:
    """Section 6: 15:14:12:8 and the tail sums of its second experiment are equalities: no bound."""
    need = nw.nested_M_req([15, 14, 12, 8], 10, [20, 40, 80, 160], [20, 40, 80, 160], 10**6, "1e-5")
    assert (need.stable, need.total) == (False, math.inf)
    need = nw.nested_M_req([15, 14, 12, 8], 10, [20, 40, 80, 160], [20.0, 40.0, 80.0, 160.0], 10**6, 1e-5)
    assert need.total == math.inf


def test_single_segment_is_wait() -> None:
    need = nw.nested_M_req([4], 1, [1], [4], 1000, "0.1")
    assert (need.base, need.det, need.sto) == (12.0, 0.0, 0.0)


def test_least_thresholds_by_search() -> None:
    for lambdas, l, ends, d0, d1 in [
        ([5, 3, 2], 4, [2, 5, 9], F(1, 2), F(1, 400)),
        ([F(1, 3), F(1, 7)], 10, [3, 20], F(1), F(1, 300)),
        ([0, 4, 0, 1], 7, [1, 3, 8, 20], F(1, 4), F(1, 2000)),
    ]:
        found = nw.nested_thresholds(lambdas, l, ends, d0, d1)
        assert found.stable
        tails = [sum(lambdas[k:]) for k in range(len(ends))]

        def chain(n1: int, tails: list[F] = tails) -> list[int]:
            n = [n1]
            for a, b in itertools.pairwise(tails):
                n.append(math.floor(F(b) / a * n[-1]) + 1)
            return n

        def holds(n: list[int], args: tuple[F, F, int, list[int], list[F]] = (d0, d1, l, ends, tails)) -> bool:
            d0, d1, l, ends, tails = args
            memory = F(nw.nested_M_pi(n, l, ends).corrected)
            return (d0 + d1 * memory) * tails[0] < n[0]

        least = next(n1 for n1 in range(1, 10_000) if holds(chain(n1)))
        assert list(found.n) == chain(least)
        assert found.M_pi == nw.nested_M_pi(found.n, l, ends).corrected
    assert not nw.nested_thresholds([5, 3, 2], 4, [2, 5, 9], 1, 1).stable
    near = nw.nested_thresholds([1], 1, [1], "0.4", (1 - F("1e-9")) / 3)
    assert near.n == (math.floor(F("0.4") / F("1e-9")) + 1,)
    multi = nw.nested_thresholds([5, 3, 2], 4, [2, 5, 9], "0.05", (1 - F("1e-9")) / (5 * 15 + 3 * 39 + 2 * 85))
    assert multi.stable
    assert (F("0.05") + (1 - F("1e-9")) / 362 * F(multi.M_pi)) * 10 < multi.n[0]


def test_design_finds_the_least_memory() -> None:
    lambdas = [23.0 * 0.97**k for k in range(60)]
    ends = list(range(5, 305, 5))
    designs = nw.nested_design(lambdas, 62, ends, "0.02", "5e-8", 3600, "0.01", segments=range(1, 61, 2))
    assert designs
    assert designs[0].memory == min(d.memory for d in designs)
    for d in designs[:3]:
        assert sum(d.lambdas) == pytest.approx(sum(lambdas))
        assert d.ends[-1] == 300
        again = nw.nested_M_req(d.thresholds.n, 62, d.ends, d.lambdas, nw.nested_iterations(3600, "0.02"), "0.01")
        assert again.total == pytest.approx(d.memory, rel=1e-12)
    assert nw.nested_design([23], 62, [50], 1, 1, 3600, "0.01") == ()
    coarse = nw.nested_design([1.0] * 120, 10, range(1, 121), "0.02", "1e-7", 60, "0.1")
    assert max(d.segments for d in coarse) <= 120
