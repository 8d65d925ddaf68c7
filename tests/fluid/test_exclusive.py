"""Exclusive batching against the exact death chain, simulation and high-precision arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction as F

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.fluid import exclusive as eb


def death_chain(slots: int, p: float) -> tuple[np.ndarray, np.ndarray]:
    """Exact E[M] and E[K] of a decode phase for k = 1..slots: geometric lives, all of an iteration's ends counted."""
    visits = np.zeros(slots + 1)
    visits[slots] = 1.0
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, slots + 1)))])
    for n in range(slots, 0, -1):
        ends = np.arange(n + 1)
        pmf = np.exp(logs[n] - logs[ends] - logs[n - ends] + ends * math.log(p) + (n - ends) * math.log1p(-p))
        visits[n] /= 1.0 - pmf[0]
        visits[n - ends[1:]] += visits[n] * pmf[1:]
    n = np.arange(slots, 0, -1)  # k = 1 leaves after `slots`, k = 2 after `slots` and `slots` - 1, ...
    return np.cumsum(visits[n]), np.cumsum(visits[n] * n * p)


@pytest.mark.parametrize("mu_O", [64, 256])
@pytest.mark.parametrize("ratio", [1, 5, 20, 100])
@pytest.mark.parametrize("slots", [32, 128, 512])
def test_theta0_is_the_optimum_of_the_exact_chain(mu_O: int, ratio: int, slots: int) -> None:
    phase, ended = death_chain(slots, 1 / mu_O)
    cost = (ratio + phase) / ended
    best = int(np.argmin(cost)) + 1
    theta = eb.theta0_of_costs(ratio, 1, mu_O=mu_O, geometric=True).theta0
    chosen = eb.slots_to_refill(theta, slots)
    extra = cost[chosen - 1] / cost[best - 1] - 1
    if slots >= 128:
        assert abs(best / slots - theta) < 0.012
        assert extra < 4e-4
    else:
        assert extra < 9e-3
    # fluid throughput against the chain's, by the identity 1/TP = (alpha_p + alpha_d E[M])/E[K] + ...
    fluid = eb.TP_EB(chosen, slots, ratio, 1, 0, 0, 1, mu_O)
    exact = ended[chosen - 1] / (ratio + phase[chosen - 1])
    assert fluid == pytest.approx(exact, rel=0.025 if slots == 32 else 0.012)
    assert fluid <= exact


@pytest.mark.parametrize("ratio", [5, 20, 100])
def test_age_aware_agrees_with_the_exact_chain_for_geometric_lives(ratio: int) -> None:
    slots, mu_O = 512, 64
    phase, ended = death_chain(slots, 1 / mu_O)
    cost = (ratio + phase) / ended
    found = eb.theta_age_aware((1 - 1 / mu_O) ** np.arange(3000), ratio)
    assert cost[found.k(slots) - 1] / cost.min() - 1 < 3e-4
    assert found.cost / slots == pytest.approx(cost.min(), rel=0.01)
    assert found.theta == pytest.approx(eb.theta0_of_costs(ratio, 1, p0=F(1, mu_O), geometric=True).theta0, abs=0.01)


def single_slot_chain(survival: np.ndarray, T: int) -> float:
    """Share of slots that end in a phase of T iterations, from the stationary law of ages at a refill (exact)."""
    s = np.concatenate([survival, np.zeros(T)])
    ages = s[: survival.size : T]
    ages = ages[ages > 0]
    size = ages.size
    move = np.zeros((size, size))
    for j in range(size):
        on = s[(j + 1) * T] / s[j * T]
        move[j, 0] += 1 - on
        if j + 1 < size:
            move[j, j + 1] += on
    system = np.vstack([(move.T - np.eye(size)), np.ones(size)])
    law = np.linalg.lstsq(system, np.concatenate([np.zeros(size), [1.0]]), rcond=None)[0]
    return float(law @ move[:, 0])


@pytest.mark.parametrize("ratio", [0, 1, 5, 20, 100])
def test_age_aware_is_the_optimum_of_the_age_chain(ratio: int) -> None:
    laws = [
        eb.survival_sample([3, 3, 4, 5, 5, 5, 6, 9, 12, 20, 21, 40]),
        np.concatenate([[1.0], np.cumprod(1 - np.minimum(0.02 + 0.003 * np.arange(1, 60), 1))]),
        eb.survival_sample(list(range(20, 41))),
    ]
    for law in laws:
        costs = [(ratio + T) / single_slot_chain(law, T) for T in range(1, law.size + 1)]
        found = eb.theta_age_aware(law, ratio)
        assert found.cost == pytest.approx(min(costs), rel=1e-9)
        assert costs[found.T - 1] == pytest.approx(min(costs), rel=1e-9)
        assert found.theta == pytest.approx(single_slot_chain(law, found.T), rel=1e-9)


def simulate_phases(
    outputs: np.ndarray, slots: int, k: int, phases: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Mean iterations and completions per decode phase of EB(k) with a backlog, whole iterations, real ages."""
    left = rng.choice(outputs, slots).astype(np.int64)
    left = rng.integers(1, left + 1)
    iterations = ended = 0
    for phase in range(phases):
        order = np.sort(left)
        length = order[k - 1]  # the k-th end closes the phase, with everyone who ends in the same iteration
        left = left - length
        gone = left <= 0
        if phase >= phases // 5:
            iterations += int(length)
            ended += int(gone.sum())
        left[gone] = rng.choice(outputs, int(gone.sum()))
    n = phases - phases // 5
    return iterations / n, ended / n


@pytest.mark.parametrize("law", ["uniform", "gamma", "lognormal"])
def test_age_aware_against_simulation_of_real_ages(law: str) -> None:
    rng = np.random.default_rng(20)
    draws = {
        "uniform": rng.integers(32, 97, 4000),
        "gamma": np.maximum(1, rng.gamma(2.0, 32.0, 4000).round()).astype(int),
        "lognormal": np.maximum(1, np.exp(rng.normal(3.5, 1.0, 4000)).round()).astype(int),
    }[law]
    slots, ratio = 256, 20.0
    found = eb.theta_age_aware(outputs=[int(v) for v in draws], alpha_ratio=ratio)

    def cost(k: int) -> float:
        phase, ended = simulate_phases(draws, slots, k, 1500, rng)
        return (ratio + phase) / ended

    grid = {k: cost(k) for k in (8, 24, 48, 80, 112, 144, 176, 208, 232, 248, 256)}
    assert cost(found.k(slots)) < 1.02 * min(grid.values())
    if found.theta < 1:
        assert cost(found.k(slots)) == pytest.approx(found.cost / slots, rel=0.02)


def test_beta_does_not_move_the_optimum() -> None:
    """Identity of the docstring: a completed request has decoded exactly O tokens whatever k is."""
    rng = np.random.default_rng(3)
    outputs = rng.integers(10, 60, 500)
    for k in (1, 20, 50):
        left, tokens, ended = rng.choice(outputs, 64), 0, 0
        for _ in range(3000):
            length = np.sort(left)[k - 1]
            tokens += int(np.minimum(left, length).sum())
            left = left - length
            gone = left <= 0
            ended += int(gone.sum())
            left[gone] = rng.choice(outputs, int(gone.sum()))
        assert tokens / ended == pytest.approx(outputs.mean(), rel=0.02)


def test_theta0_over_sixty_decades() -> None:
    mpmath.mp.dps = 60
    exponents = [*range(-30, 31, 3), -300, 300]
    for e in exponents:
        for lead in (1, 3.7):
            g = mpmath.mpf(lead) * mpmath.mpf(10) ** e
            zeta = mpmath.sqrt(2 * g) if g < 1 else mpmath.log(1 + g + mpmath.log(1 + g))
            with mpmath.workdps(700):
                for _ in range(12):
                    zeta -= (mpmath.expm1(zeta) - zeta - g) / mpmath.expm1(zeta)
            found = eb.theta0(g)
            double = eb.theta0(np.array([float(g)]))
            for value, array, truth in [
                (found.zeta, double.zeta, zeta),
                (found.theta0, double.theta0, -mpmath.expm1(-zeta)),
                (found.one_minus_theta0, double.one_minus_theta0, mpmath.exp(-zeta)),
            ]:
                assert abs(value / truth - 1) < 3e-16, g
                assert abs(float(array[0]) / truth - 1) < 2e-15, g


@given(st.floats(-29, 29))
@settings(max_examples=60, deadline=None)
def test_theta0_solves_its_equation(exponent: float) -> None:
    g = 10.0**exponent
    found = eb.theta0(g)
    mpmath.mp.dps = 80
    zeta = mpmath.mpf(found.zeta)
    slope = mpmath.expm1(zeta)
    assert abs((mpmath.expm1(zeta) - zeta - mpmath.mpf(repr(g))) / slope) <= 2e-16 * found.zeta


def test_edges_of_the_threshold() -> None:
    assert eb.theta0(0).zeta == 0.0
    assert eb.theta0(math.inf).one_minus_theta0 == 0.0
    assert eb.theta0([0.0, math.inf]).theta0.tolist() == [0.0, 1.0]
    assert eb.slots_to_refill(eb.theta0_of_costs(0, 1, mu_O=10).theta0, 50) == 1
    assert eb.slots_to_refill(eb.theta0_of_costs(1, 0, mu_O=10).theta0, 50) == 50
    assert eb.theta0_of_costs(1, 1, p0=1, geometric=True).theta0 == 1.0
    assert eb.slots_to_refill([0.0, 0.5, 1.0], 1).tolist() == [1, 1, 1]
    for call, what in [
        (lambda: eb.theta0(-1e-9), "g = p0"),
        (lambda: eb.theta0([0.1, -1.0]), "g = p0"),
        (lambda: eb.theta0(math.nan), "g must"),
        (lambda: eb.theta0_of_costs(0, 0, mu_O=9), "alpha_p and alpha_d"),
        (lambda: eb.theta0_of_costs(1, 1, p0="-0.0017"), "p0"),
        (lambda: eb.theta0_of_costs(1, 1), "mu_O"),
        (lambda: eb.TP_EB(0, 8, 1, 1, 0, 0, 1, 1), "k must"),
        (lambda: eb.TP_EB(9, 8, 1, 1, 0, 0, 1, 1), "k must"),
        (lambda: eb.TP_EB(1, 8, -1, 1, 0, 0, 1, 1), "alpha_p"),
        (lambda: eb.TP_EB_opt(0, 1, 1, 0, 0, 1, 1), "N must"),
        (lambda: eb.dtheta_first_order(0, 1, "0.5"), "p0"),
        (lambda: eb.dtheta_first_order("0.1", 1, "1.5"), "theta"),
        (lambda: eb.theta_fluid_reset(0, 0, 1), "p0 and eta"),
        (lambda: eb.theta_age_aware([0.5], 1), "survival"),
        (lambda: eb.theta_age_aware([1.0, 0.5], 1, outputs=[1]), "either"),
        (lambda: eb.theta_age_aware(outputs=[1], alpha_ratio=-1), "alpha_ratio"),
        (lambda: eb.theta_age_aware(outputs=[], alpha_ratio=1), "outputs"),
        (lambda: eb.hazard_fit([]), "outputs"),
        (lambda: eb.hazard_fit([0]), "outputs"),
        (lambda: eb.hazard_fit([1], weights="none"), "weights"),
    ]:
        with pytest.raises(ValueError, match=what):
            call()


def test_one_slot_and_full_drain() -> None:
    assert eb.TP_EB(8, 8, 1, 1, 0, 0, 1, 10) == 0.0
    assert eb.TP_EB(8, 8, 1, 0, 0, 0, 1, 10) == 8.0
    assert eb.TP_EB(1, 1, 0, 0, 0, 0, 1, 1) == math.inf
    found = eb.theta_age_aware(outputs=[7], alpha_ratio=3)
    assert (found.T, found.theta, found.cost) == (7, 1.0, 10.0)
    assert eb.theta_age_aware(outputs=[3, 9], alpha_ratio=math.inf).T == 9


def test_throughput_close_to_a_full_drain_keeps_its_digits() -> None:
    mpmath.mp.dps = 50
    N = 10**9
    truth = 1 / ((mpmath.mpf("0.5") - mpmath.mpf("0.005") * 256 * mpmath.log(mpmath.mpf(1) / N)) / (N - 1))
    assert abs(eb.TP_EB(N - 1, N, "0.5", "0.005", 0, 0, 0, 256) / truth - 1) < 1e-15
    assert abs(eb.TP_EB(np.array([N - 1]), N, 0.5, 0.005, 0, 0, 0, 256)[0] / truth - 1) < 1e-14


@pytest.mark.parametrize(
    ("eta", "rho", "ratio"), [(0.0, 3, 20), (1e-5, 0, 20), (1e-5, 5, 1), (1e-3, 10, 100), (0.1, 1, 5)]
)
def test_reset_optimum_against_minimisation(eta: float, rho: float, ratio: float) -> None:
    """Cost per completion of the reset-age fluid, (ratio + T + rho I/N)/theta, minimised by brute force."""
    p0 = 1 / 256
    zeta = np.linspace(1e-3, 12.0, 40_001)
    if eta:
        T = 2 * zeta / (p0 + np.sqrt(p0 * p0 + 2 * eta * zeta))
        mass = np.exp(-zeta) / np.sqrt(p0 * p0 + 2 * eta * zeta)
        root = 1 / np.sqrt(p0 * p0 + 2 * eta * zeta)
        # int e^-z/h dz from 0, with the first cell by its limit
        inner = np.concatenate([[T[0]], T[0] + np.cumsum(0.5 * (mass[1:] + mass[:-1]) * np.diff(zeta))])
        assert root[0] > 0
    else:
        T, inner = zeta / p0, -np.expm1(-zeta) / p0
    cost = (ratio + T + rho * inner) / -np.expm1(-zeta)
    best = -math.expm1(-zeta[int(np.argmin(cost))])
    assert eb.theta_fluid_reset(p0, eta, ratio, rho) == pytest.approx(best, abs=2e-3)


def test_reset_optimum_and_first_order_agree_for_small_slopes() -> None:
    p0 = F(1, 256)
    base = eb.theta0(p0 * 20).theta0
    for rho in (0, 1, 10):
        eta = p0**2 / 10**6
        moved = eb.theta_fluid_reset(p0, eta, 20, rho) - base
        assert moved == pytest.approx(eb.dtheta_first_order(p0, eta, base, rho), rel=1e-4)
    assert eb.dtheta_first_order("0.1", "0.1", 0) == eb.dtheta_first_order("0.1", "0.1", 1) == 0.0
    tiny = eb.dtheta_first_order("0.1", "0.01", "1e-12", 3)
    assert tiny == pytest.approx(0.01 * 1e-12 * 4 / (2 * 0.01), rel=1e-11)  # limit eta theta (1 + rho)/(2 p0^2)


def test_reset_optimum_at_zero_prefill_cost() -> None:
    assert eb.theta_fluid_reset("0.1", "0.01", 0) == 0.0
    assert eb.theta_fluid_reset("0.1", "0.0101", 0) > 0.0
    assert 0.0 < eb.theta_fluid_reset(0, "0.01", 0) < 1.0
    assert eb.theta_fluid_reset("0.1", "0.01", math.inf) == 1.0
    assert eb.theta_fluid_reset("1e-3", "1e-12", "1e-25") == pytest.approx(eb.theta0("1e-28").theta0, rel=1e-5)


def test_hazard_fit_of_the_papers_workloads() -> None:
    """Uniform on 0.5..1.5 times the mean has a negative intercept (-1.7e-3 at 512)."""
    uniform = list(range(256, 769))
    fit = eb.hazard_fit(uniform)
    assert fit.p0 == pytest.approx(-1.7e-3, rel=0.05)
    rng = np.random.default_rng(5)
    gamma = np.maximum(1, rng.gamma(2.0, 128.0, 200_000).round()).astype(int)
    assert eb.hazard_fit([int(v) for v in gamma]).p0 == pytest.approx(1.9e-3, rel=0.06)
    assert eb.hazard_fit([3, 3, 3]).eta == pytest.approx(0.5)
    assert eb.hazard_fit([1]).p0 == 1.0


def test_samples_with_weights_and_fractions() -> None:
    plain = eb.theta_age_aware(outputs=[4, 4, 4, 9], alpha_ratio=3)
    weighted = eb.theta_age_aware(outputs=[4, 9], weights=[3, 1], alpha_ratio=3)
    assert (plain.T, plain.theta) == (weighted.T, pytest.approx(weighted.theta, rel=1e-12))
    assert eb.survival_sample([0.5, 2.5]).tolist() == [1.0, 0.5, 0.5]
