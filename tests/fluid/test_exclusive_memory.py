"""Memory of exclusive batching: the promised overflow probability against simulation, known failures by name."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from planner.fluid import exclusive_memory as mem
from planner.shared.mathematics import tail_of_sum

Array = np.ndarray


def simulate(
    slots: int, k: int, C: float, L0: Array, O0: Array, iterations: int, rng: np.random.Generator, runs: int = 32
) -> tuple[float, float]:
    """Share of decode iterations with more than C tokens under EB(k) with a backlog, and the lower end of its 95% interval."""
    pick = rng.integers(L0.size, size=(runs, slots))
    L, O = L0[pick], O0[pick]
    age = np.floor(rng.random((runs, slots)) * O)
    active = np.ones((runs, slots), dtype=bool)
    above, warm = np.zeros(runs), iterations // 4
    for t in range(iterations):
        age += active
        if t >= warm:
            above += ((L + age) * active).sum(axis=1) > C
        active &= age < O
        refill = (slots - active.sum(axis=1) >= k)[:, None] & ~active
        new = rng.integers(L0.size, size=int(refill.sum()))
        L[refill], O[refill], age[refill] = L0[new], O0[new], 0.0
        active |= refill
    share = above / (iterations - warm)
    return float(share.mean()), float(share.mean() - 2.04 * share.std(ddof=1) / math.sqrt(runs))


R = 20_000
Draw = Callable[[np.random.Generator], Array]


def geometric(mean: float) -> Draw:
    return lambda rng: rng.geometric(1 / mean, R).astype(float)


def exponential(mean: float) -> Draw:
    return lambda rng: np.maximum(1.0, np.rint(rng.exponential(mean, R)))


def constant(value: float) -> Draw:
    return lambda rng: np.full(R, float(value))


def lognormal(mean: float, sigma: float) -> Draw:
    return lambda rng: np.maximum(1.0, np.rint(np.exp(rng.normal(math.log(mean) - sigma**2 / 2, sigma, R))))


def gamma(mean: float, shape: float) -> Draw:
    return lambda rng: np.maximum(1.0, np.rint(rng.gamma(shape, mean / shape, R)))


def uniform(mean: int) -> Draw:
    return lambda rng: rng.integers(mean // 2, 3 * mean // 2 + 1, R).astype(float)


SETTINGS = [
    # prompts, outputs, theta, C; short prompts with long outputs first
    (constant(2), geometric(128), 0.9, 20_000),
    (constant(16), geometric(128), 0.8, 20_000),
    (constant(2), geometric(128), 0.3, 20_000),
    (constant(2), geometric(400), 0.1, 60_000),
    (constant(16), geometric(400), 0.5, 30_000),
    (constant(8), gamma(256, 2), 0.5, 20_000),
    (constant(8), lognormal(200, 1.0), 0.4, 30_000),
    (constant(4), uniform(256), 0.9, 20_000),
    (constant(4), uniform(256), 0.1, 20_000),
    (exponential(128), geometric(300), 0.1, 40_000),
    (exponential(512), geometric(256), 0.3, 60_000),
    (exponential(1000), geometric(64), 0.4, 60_000),
    (constant(16), geometric(64), 0.7, 3_000),
    (exponential(300), gamma(256, 2), 0.6, 40_000),
    (exponential(100), lognormal(200, 1.0), 0.2, 30_000),
    (exponential(64), uniform(256), 0.7, 20_000),
    (exponential(100), gamma(256, 8), 0.8, 20_000),
    (constant(10), gamma(128, 30), 0.5, 10_000),
]
EPS = 0.01
SOON = {0, 3, 5, 7, 9, 11, 12, 14, 16, 17}
"""Each law of lengths at least once, few free slots and many, memory of dozens of requests and of hundreds."""
NUMBERS = [
    n if n in SOON else pytest.param(n, marks=pytest.mark.long("neighbours of ten settings in CI"))
    for n in range(len(SETTINGS))
]


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
def test_promised_share_of_iterations_is_kept(number: int) -> None:
    prompts, outputs, theta, C = SETTINGS[number]
    rng = np.random.default_rng(100 + number)
    L, O = prompts(rng), outputs(rng)
    found = mem.exclusive_slots(C, EPS, L, O, theta)
    assert found.share <= EPS
    share, low = simulate(found.N, max(1, int(theta * found.N)), C, L, O, 2000, rng)
    assert low <= 1.2 * EPS, (found, share)
    # not by reserving too much: C/mean slots would overflow half of the time
    assert (0.6 if not found.guards else 0.4) * C / found.mean <= found.N


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [NUMBERS[n] for n, s in enumerate(SETTINGS) if s[1].__qualname__.startswith("geometric")]
)
def test_closed_form_keeps_the_promise_for_constant_hazard(number: int) -> None:
    prompts, outputs, theta, C = SETTINGS[number]
    rng = np.random.default_rng(200 + number)
    L, O = prompts(rng), outputs(rng)
    N = mem.N_corr(C, EPS, L.mean(), L.var(), 1 / O.mean(), theta).N
    assert simulate(N, max(1, int(theta * N)), C, L, O, 2000, rng)[1] <= 1.2 * EPS
    # and it is of the right size
    assert N >= 0.85 * mem.exclusive_slots(C, EPS, L, O, theta).N


@pytest.mark.slow
def test_promise_over_a_horizon() -> None:
    """eps/H per phase: the chance that any of H phases exceeds C, from independent runs of H phases."""
    rng = np.random.default_rng(77)
    L, O = np.full(R, 16.0), geometric(100)(rng)
    C, eps, theta, H, runs = 12_000, 0.1, 0.5, 20, 400

    def share_of_runs(N: int, runs: int = runs) -> float:
        k, broken = int(theta * N), 0
        for _ in range(runs // 100):
            # 100 runs side by side, 6 phases to forget the start
            o = rng.choice(O, (100, N))
            age = np.floor(rng.random((100, N)) * o)
            active, phase = np.ones((100, N), dtype=bool), np.zeros(100, dtype=int)
            over = np.zeros(100, dtype=bool)
            while phase.min() < 6 + H:
                age += active
                held = ((16.0 + age) * active).sum(axis=1)
                over |= (held > C) & (phase >= 6) & (phase < 6 + H)
                active &= age < o
                due = N - active.sum(axis=1) >= k
                refill = due[:, None] & ~active
                o[refill], age[refill] = rng.choice(O, int(refill.sum())), 0.0
                active |= refill
                phase += due
            broken += int(over.sum())
        return broken / runs

    margin = 1.96 * math.sqrt(0.12 * 0.88 / runs)
    closed = mem.N_corr(C, eps, 16, 0, 1 / O.mean(), theta, phases=H)
    assert closed.reliable
    # named in its docstring: a normal sum at the peak of the mean only. A quarter of the runs: beyond them by their own error
    assert share_of_runs(closed.N, runs // 4) <= 3 * eps
    law = mem.exclusive_slots(C, eps, L, O, theta, phases=H)
    assert share_of_runs(law.N) <= 1.2 * eps + margin
    assert mem.exclusive_slots(C, eps, L, O, theta).N > law.N


def test_few_slots_are_named_as_unreliable() -> None:
    """Known failure: a normal sum of few skewed slots. The law's own convolution keeps the promise there."""
    assert not mem.N_corr(3_000, EPS, 16, 0, 1 / 256, 0.3).reliable
    assert mem.N_corr([3_000.0, 60_000.0], EPS, 16, 0, 1 / 256, 0.3).reliable.tolist() == [False, True]
    rng = np.random.default_rng(8)
    L, O = np.full(R, 16.0), geometric(256)(rng)
    few = mem.exclusive_slots(3_000, EPS, L, O, 0.3)
    assert few.N >= 1
    assert simulate(few.N, max(1, int(0.3 * few.N)), 3_000, L, O, 2000, rng)[1] <= 1.2 * EPS


def test_closed_form_is_not_for_heavy_tails() -> None:
    """Known failure, named in its docstring: one number p0 cannot see the tail of the output lengths."""
    rng = np.random.default_rng(9)
    L, O = np.full(R, 8.0), lognormal(200, 1.0)(rng)
    N = mem.N_corr(20_000, EPS, 8, 0, 1 / O.mean(), 0.4).N
    assert simulate(N, int(0.4 * N), 20_000, L, O, 1500, rng, 16)[1] > 1.2 * EPS
    assert "heavy tails" in (mem.N_corr.__doc__ or "")


def test_printed_bound_fails_where_the_erratum_says() -> None:
    """Eq. 6 at mu_O = 128, mu_L = 16, theta = .8: memory grows inside the phase, the printed N overflows in most phases."""
    rng = np.random.default_rng(4)
    L, O = np.full(R, 16.0), geometric(128)(rng)
    printed = mem.N_bounds(60_000, EPS, 16, 1 / O.mean(), 0.8).N_star
    assert simulate(printed, int(0.8 * printed), 60_000, L, O, 1200, rng, 8)[1] > 5 * EPS
    assert mem.fluid_peak_per_slot(2, "1/128", "0.9") / (2 + 128 * 0.1 * math.log(10) / 0.9) == pytest.approx(
        1.778, abs=1e-3
    )


def test_known_failures_are_guarded_and_named() -> None:
    fixed = mem.exclusive_slots(10_000, EPS, np.full(50, 100.0), np.full(50, 400.0), 0.3)
    assert fixed.N == 20
    assert "stay in step" in fixed.guards[0]
    rng = np.random.default_rng(1)
    long = mem.exclusive_slots(
        3_000, EPS, np.r_[rng.exponential(100, 999), 1400.0], np.r_[rng.geometric(0.02, 999), 1.0], 0.2
    )
    assert any("three of the longest" in g for g in long.guards)
    assert long.share <= EPS / 4
    nothing = mem.exclusive_slots(100, EPS, [200.0], [5.0], 0.2)
    assert nothing.N == 0
    nothing = mem.exclusive_slots(100, EPS, [200.0, 10.0, 10.0], [5.0, 9.0, 90.0], 0.2)
    assert nothing.N == 0
    assert "exceeds C" in nothing.guards[-1]


def test_small_threshold_is_the_stationary_law() -> None:
    """theta -> 0: slots always busy, mean E[O(L + (O+1)/2)]/E[O]; below 16 slots the sum is convolved exactly."""
    O = np.arange(1.0, 41.0)
    L = 3.0 + O % 7
    found = mem.exclusive_slots(400, 0.05, L, O, 1e-6)
    held = [int(l) + age for l, o in zip(L, O, strict=True) for age in range(1, int(o) + 1)]  # each as likely as any
    assert found.mean == pytest.approx(np.mean(held), rel=1e-12)
    assert found.guards == ()
    pmf = np.bincount(held) / len(held)
    tail = _tails(pmf, 400)
    assert sum(t <= 0.05 for t in tail) == found.N
    assert found.N < 16 or found.share == pytest.approx(tail[found.N - 1], rel=0.05)
    few = mem.exclusive_slots(200, 0.05, L, O, 1e-6)
    assert few.N < 16
    tail200 = _tails(pmf, 200)
    assert sum(t <= 0.05 for t in tail200) == few.N
    assert few.share == pytest.approx(tail200[few.N - 1], rel=1e-9)


def _tails(pmf: Array, C: int) -> list[float]:
    total, result = np.array([1.0]), []
    for _ in range(30):
        total = np.convolve(total, pmf)
        result.append(float(total[C + 1 :].sum()))
    return result


def test_frequent_lengths_are_guarded() -> None:
    """Outputs at a limit, and two-point outputs: their requests end and are replaced together."""
    rng = np.random.default_rng(3)
    O = np.maximum(1, np.rint(np.exp(rng.normal(4.8, 0.8, R))))
    limited = np.minimum(O, np.quantile(O, 0.95))
    L = exponential(150)(rng)
    found = mem.exclusive_slots(30_000, EPS, L, limited, 0.8)
    assert "frequent" in found.guards[0]
    assert simulate(found.N, int(0.8 * found.N), 30_000, L, limited, 2000, rng)[1] <= 1.2 * EPS
    two = np.where(rng.random(R) < 0.8, 25.0, 320.0)
    found = mem.exclusive_slots(8_000, EPS, L, two, 0.8)
    assert "stay in step" in found.guards[0]
    assert found.N * (L + two).max() <= 8_000


def test_closed_form_against_high_precision() -> None:
    mpmath.mp.dps = 60
    for C, eps, mu_L, var, p0, theta in [
        ("1e5", "1e-12", "2", "0", "1e-3", "0.999999999"),
        ("1e9", "0.3", "1e-3", "4", "1e-6", "1e-9"),
        ("12345", "0.9", "700", "1e6", "0.5", "0.5"),
        ("1e6", "1e-300", "100", "1e4", "0.01", "0.2"),
    ]:
        th, p, L = mpmath.mpf(theta), mpmath.mpf(p0), mpmath.mpf(mu_L)
        zeta = -mpmath.log(1 - th)
        y = p * L + (1 - th) * zeta / th
        t_m, t_star = max(mpmath.mpf(0), (1 - y) / p), zeta / p
        a = mpmath.exp(-p * t_m)
        mu = L + t_star * (1 - th) / th + t_m
        m = a * mu
        s = mpmath.sqrt(a * (mpmath.mpf(var) + t_star**2 * (1 - th) / th**2 + mu**2) - m**2)
        risk = mpmath.mpf(eps)
        z = mpmath.findroot(
            lambda x, r=risk: mpmath.log(mpmath.erfc(x / mpmath.sqrt(2)) / 2 / r), -mpmath.log(risk) / 18
        )
        real = ((-z * s + mpmath.sqrt(z * z * s * s + 4 * m * mpmath.mpf(C))) / (2 * m)) ** 2
        found = mem.N_corr(C, eps, mu_L, var, p0, theta)
        for got, truth in ((found.N_real, real), (found.m, m), (found.s, s), (found.t_m, t_m)):
            assert abs(got - truth) <= 1e-12 * abs(truth), (C, eps, got, truth)
    assert mem.N_corr(1e6, 0.01, 100, 0, 0.01, 0.2, phases=100).N < mem.N_corr(1e6, 0.01, 100, 0, 0.01, 0.2).N


def test_edges_are_defined_or_named() -> None:
    assert mem.N_corr(1, 0.01, 100, 0, 0.01, 0.2).N == 0
    assert mem.N_bounds(1, 0.01, 100, 0.01, 0.2).infeasible
    assert mem.N_bounds(1000, 1, 100, "0.01", 0).N_star == 5
    assert mem.N_bounds(1000, 1, 100, "0.01", 1).N_star == 10
    assert mem.fluid_peak_per_slot(0, "0.01", 1) == pytest.approx(100 / math.e)
    assert mem.fluid_peak_per_slot([100.0, 100.0], 0.01, [0.0, 1.0]).tolist() == [200.0, 100.0]
    for call, what in [
        (lambda: mem.N_bounds(0, 0.01, 1, 0.1, 0.5), "C must"),
        (lambda: mem.N_bounds(1, 0, 1, 0.1, 0.5), "eps"),
        (lambda: mem.N_bounds(1, 0.01, 0, 0.1, 0.5), "mu_L"),
        (lambda: mem.N_bounds(1, 0.01, 1, -0.0017, 0.5), "p0"),
        (lambda: mem.N_corr(1, 0.01, 1, 0, 0.1, 1), "theta"),
        (lambda: mem.N_corr(1, 0.01, 1, -1, 0.1, 0.5), "var_L"),
        (lambda: mem.N_corr(1, 0.01, 1, 0, 0.1, 0.5, phases=0), "phases"),
        (lambda: mem.vbar(0.1, 0), "mu_L"),
        (lambda: mem.exclusive_slots(0, 0.01, [1], [1], 0.5), "C must"),
        (lambda: mem.exclusive_slots(9, 1, [1], [1], 0.5), "eps"),
        (lambda: mem.exclusive_slots(9, 0.1, [1], [1], 0), "theta"),
        (lambda: mem.exclusive_slots(9, 0.1, [1, 2], [1], 0.5), "inputs"),
        (lambda: mem.exclusive_slots(9, 0.1, [1], [0], 0.5), "outputs"),
        (lambda: mem.exclusive_slots(9, 0.1, [1, 2], [1, 9], 0.5, phases=0), "phases"),
    ]:
        with pytest.raises(ValueError, match=what):
            call()


def test_sum_of_slots_against_convolution() -> None:
    """The saddle-point tail on the lattice against the exact convolution, far into both tails and with gaps."""
    rng = np.random.default_rng(12)
    for pmf in (
        rng.dirichlet(np.ones(40)),
        np.r_[np.zeros(30), rng.dirichlet(np.ones(10)), np.zeros(200)],
        np.r_[0.9, np.zeros(50), 0.1],
        np.r_[0.999, np.zeros(5), 0.001],
    ):
        x, N = np.arange(float(pmf.size)), 24
        length = 1 << math.ceil(math.log2(N * pmf.size))
        exact = np.fft.irfft(np.fft.rfft(pmf, length) ** N, length).clip(0)
        tails = exact[::-1].cumsum()[::-1]  # P(sum >= i)
        for level in np.unique(np.quantile(np.arange(N * pmf.size), [0.01, 0.1, 0.3, 0.5, 0.7, 0.9]).astype(int)):
            got = tail_of_sum(x[pmf > 0.0], pmf[pmf > 0.0], N, level + 0.5)
            truth = tails[level + 1]
            assert math.isfinite(got)
            if 1e-9 < truth < 1 - 1e-9 and pmf[0] < 0.5:
                assert got == pytest.approx(truth, rel=0.05, abs=1e-12), (level, truth)
            assert abs(got - truth) < 0.35
    assert tail_of_sum(np.arange(2.0), np.array([0.5, 0.5]), 20, 20.5) == 0.0
    assert tail_of_sum(np.ones(1), np.ones(1), 20, 10.5) == 1.0


def test_heavy_tails_stay_finite() -> None:
    rng = np.random.default_rng(0)
    L = np.maximum(1, rng.lognormal(6.5, 1, 20_000).round())
    O = np.maximum(1, rng.lognormal(4.7, 1, 20_000).round().clip(1, 3000))
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        sizes = [mem.exclusive_slots(4e5, EPS, L, O, theta).N for theta in (1e-3, 0.1, 0.9, 1.0)]
    assert sizes == sorted(sizes)
