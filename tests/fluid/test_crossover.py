"""Crossover of mixed and exclusive batching against brute force on the exact death chain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.fluid import crossover as co
from planner.fluid import exclusive as eb


def chain_costs(slots: int, p: float) -> tuple[np.ndarray, np.ndarray]:
    """E[M], E[K] for k = 1..slots, exact (geometric lives)."""
    visits = np.zeros(slots + 1)
    visits[slots] = 1.0
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, slots + 1)))])
    for n in range(slots, 0, -1):
        j = np.arange(n + 1)
        pmf = np.exp(logs[n] - logs[j] - logs[n - j] + j * math.log(p) + (n - j) * math.log1p(-p))
        visits[n] /= 1.0 - pmf[0]
        visits[n - j[1:]] += visits[n] * pmf[1:]
    n = np.arange(slots, 0, -1)
    return np.cumsum(visits[n]), np.cumsum(visits[n] * n * p)


COSTS = [
    # alpha_p, alpha_d, alpha_MB, beta_MB, beta_p, beta_d, mu_L, mu_O
    (0.5, 0.01, 0.01, 3.3e-5, 2e-5, 4e-5, 512, 64),
    (0.2, 0.01, 0.01, 5e-5, 2e-5, 4e-5, 256, 64),
    (0.1, 0.02, 0.015, 6e-5, 1e-5, 6e-5, 128, 64),
    (1.0, 0.01, 0.01, 4.2e-5, 3e-5, 4e-5, 1024, 128),
    (0.02, 0.01, 0.0095, 4.5e-5, 2e-5, 4e-5, 512, 64),
]


@pytest.mark.parametrize("costs", COSTS)
def test_crossover_lies_where_brute_force_finds_it(costs: tuple[float, ...]) -> None:
    ap, ad, am, bm, bp, bd, L, O = costs
    cross = co.N_crossover(*costs)
    assert cross > 4
    grid = sorted(
        {max(2, round(cross * f)) for f in (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.2, 1.4, 1.8, 2.5)}
    )
    mixed_wins, exclusive_wins = [], []
    for N in grid:
        phase, ended = chain_costs(N, 1 / O)
        exclusive = float(np.max(1 / ((ap + ad * phase) / ended + bp * L + bd * O)))
        mixed = 1 / (am * (1 + O) / N + bm * (L + O))
        (mixed_wins if mixed > exclusive else exclusive_wins).append(N)
        assert co.TP_MB(N, am, bm, L, O) == pytest.approx(mixed, rel=1e-13)
        found = co.compare_batching(N, *costs)
        assert found.better == ("mixed" if found.exclusive_from > N else "exclusive")
        assert found.TP_exclusive == pytest.approx(exclusive, rel=0.2 if N < 32 else 0.03)  # fluid: few slots, coarse
    assert mixed_wins
    assert exclusive_wins
    # the chain's optimum is a little better than the fluid's, so the true crossover is a little earlier
    assert max(mixed_wins) * 0.95 <= cross
    assert cross <= min(exclusive_wins) * 1.2


def test_all_four_signs() -> None:
    """gap = beta_MB - beta_EB; a = fixed-cost advantage of mixed batching."""
    base = {"alpha_p": 0.02, "alpha_d": 0.01, "beta_p": 2e-5, "beta_d": 4e-5, "mu_L": 512, "mu_O": 256}
    for alpha_MB, beta_MB in [(0.012, 6e-5), (0.012, 1e-5), (0.005, 6e-5), (0.005, 1e-5)]:
        for N in (2, 50, 500, 5000):
            c = co.compare_batching(N, alpha_MB=alpha_MB, beta_MB=beta_MB, **base)
            assert (c.TP_mixed > c.TP_exclusive) == (c.better == "mixed")
            assert (c.gap < c.rhs) == (c.better == "mixed")
            assert (c.better == "exclusive") == (c.exclusive_from < N < c.exclusive_below)
    assert co.compare_batching(9, alpha_MB=0.012, beta_MB=6e-5, **base).exclusive_from == 0.0
    assert co.compare_batching(9, alpha_MB=0.005, beta_MB=1e-5, **base).exclusive_from == math.inf
    with pytest.raises(ValueError, match="N must"):
        co.compare_batching(0, alpha_MB=0.005, beta_MB=1e-5, **base)


def test_equality_is_exact() -> None:
    """alpha_p = 0 makes theta0 = 0: the fixed cost of exclusive batching is alpha_d mu_O per slot, rational."""
    even = co.compare_batching("7", 0, "0.0129", "0.0128", "3e-5", "3e-5", "3e-5", 512, 128)
    assert even.gap == 0.0
    assert even.N_crossover == 0.0
    assert even.better == "mixed"
    assert co.N_crossover(0, "0.0129", "0.0127", "3e-5", "3e-5", "3e-5", 512, 128) == math.inf
    assert co.N_crossover(0, "0.0129", "0.0127", "3e-5", "3e-5", "3e-5", 512, 128) > 0
    assert co.N_crossover(0, "0.0129", "0.0129", "3e-5", "3e-5", "3e-5", 512, 128) == -math.inf
    near = co.N_crossover(0, "0.0129", "0.0127", "3.0000000000001e-5", "3e-5", "3e-5", 512, 128)
    assert near == pytest.approx((0.0129 * 128 - 0.0127 * 129) / (1e-18 * 640), rel=1e-9)


def test_free_decodes() -> None:
    assert co.crossover_rhs_closed(10, "0.5", 0, 0, 100, 100) == pytest.approx(0.5 / 2000, rel=1e-15)
    assert eb.TP_EB_opt(10, "0.5", 0, 0, 0, 100, 100) == 20.0
    assert eb.TP_EB_opt(np.array([10.0]), 0.5, 0, 0, 0, 100, 100)[0] == 20.0


def test_switching_rule() -> None:
    base = {"alpha_p": 0.02, "alpha_d": 0.01, "alpha_MB": 0.008, "mu_L": 512.0, "mu_O": 256.0}
    z = eb.theta0_of_costs(0.02, 0.01, mu_O=256)
    rhs = co.crossover_rhs_closed(50, **base)
    assert rhs > 0
    for gap, delta, mode in [(1.01 * rhs, 0.0, "exclusive"), (0.99 * rhs, 0.0, "mixed"), (1.01 * rhs, rhs, "mixed")]:
        args = {**base, "theta0": z.theta0, "zeta": z.zeta, "N_obs": 50.0, "delta": delta}
        assert co.eb_plus_mode(beta_MB=3e-5 + gap, beta_EB=3e-5, **args) == mode
    with pytest.raises(ValueError, match="theta0"):
        co.eb_plus_mode(beta_MB=1, beta_EB=1, **base, theta0=0, zeta=0, N_obs=1)


def test_curvature() -> None:
    c = ("0.01", "0.02", "-0.012")
    for r in (0.0, 0.25, 0.5, 1.0):
        line = (1 - r) * co.kernel_time(0, *c) + r * co.kernel_time(1, *c)
        gap = co.kernel_time(r, *c) - line
        assert gap == pytest.approx(co.mixing_gap(r, c[2]), rel=1e-12, abs=1e-17)
        assert gap == pytest.approx(-co.kappa(*c) * co.kernel_time(1, *c) * r * (1 - r) / 2, rel=1e-12, abs=1e-17)
        assert co.beta_MB_from_kernel_time(r, *c, tokens=512) == pytest.approx(co.kernel_time(r, *c) / 512)
    with pytest.raises(ValueError, match="c0"):
        co.kappa(1, 1, -2)
    with pytest.raises(ValueError, match="r must"):
        co.kernel_time(2, 1, 1, 1)
