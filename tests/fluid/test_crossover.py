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
    assert mixed_wins
    assert exclusive_wins
    # the chain's optimum is a little better than the fluid's, so the true crossover is a little earlier
    assert max(mixed_wins) * 0.95 <= cross
    assert cross <= min(exclusive_wins) * 1.2


def test_equality_is_exact() -> None:
    """alpha_p = 0 makes theta0 = 0: the fixed cost of exclusive batching is alpha_d mu_O per slot, rational."""
    assert co.N_crossover(0, "0.0129", "0.0128", "3e-5", "3e-5", "3e-5", 512, 128) == 0.0
    assert co.N_crossover(0, "0.0129", "0.0127", "3e-5", "3e-5", "3e-5", 512, 128) == math.inf
    assert co.N_crossover(0, "0.0129", "0.0127", "3e-5", "3e-5", "3e-5", 512, 128) > 0
    assert co.N_crossover(0, "0.0129", "0.0129", "3e-5", "3e-5", "3e-5", 512, 128) == -math.inf
    near = co.N_crossover(0, "0.0129", "0.0127", "3.0000000000001e-5", "3e-5", "3e-5", 512, 128)
    assert near == pytest.approx((0.0129 * 128 - 0.0127 * 129) / (1e-18 * 640), rel=1e-9)


def test_free_decodes() -> None:
    assert co.crossover_rhs_closed(10, "0.5", 0, 0, 100, 100) == pytest.approx(0.5 / 2000, rel=1e-15)
    assert eb.TP_EB_opt(10, "0.5", 0, 0, 0, 100, 100) == 20.0
    assert eb.TP_EB_opt(np.array([10.0]), 0.5, 0, 0, 0, 100, 100)[0] == 20.0


def test_curvature() -> None:
    assert co.kappa("0.01", "0.02", "-0.012") == pytest.approx(-0.024 / 0.018, rel=1e-15)
    with pytest.raises(ValueError, match="c0"):
        co.kappa(1, 1, -2)
