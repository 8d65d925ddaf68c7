"""The controller's updates against the rules written out once more, with other numerics; the policy that uses it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize

from planner.fluid.exclusive_controller import ControllerConfig, controller_update
from planner.papers.policies.eb_star import AdaptiveExclusiveBatching
from planner.predict.engine import Report, Request


def settings_by_the_rules(
    completions: list[tuple[int, int]], c: ControllerConfig, capacity: float
) -> list[tuple[int, int]]:
    """(N, k) after every completion, one at a time."""
    N = c.slots if c.slots_default is None else c.slots_default
    k = max(1, math.floor(c.theta_default * N))
    window: list[tuple[int, int]] = []
    count, result = 0, []
    for pair in completions:
        window = [*window, pair][-c.window :]
        count += 1
        if count >= c.update_every and len(window) >= c.window_min:
            count = 0
            O = np.array([o for _, o in window])
            mu_O, mu_L = O.mean(), np.mean([l for l, _ in window])
            p0, eta = 1 / mu_O, 0.0
            if c.variant == "paper":
                t95 = next(t for t in range(1, O.max() + 1) if np.mean(t >= O) >= 0.95)
                t = np.arange(1, t95 + 1)
                risk = np.array([(s <= O).sum() for s in t])
                h = np.array([(s == O).sum() for s in t]) / risk
                if t95 == 1:
                    p0, eta = h[0], 0.0
                else:
                    eta, p0 = np.polyfit(t, h, 1, w=np.sqrt(risk))
                if p0 <= 0:
                    p0, eta = 1 / mu_O, 0.0
            g = p0 * c.alpha_p / c.alpha_d
            zeta = optimize.brentq(lambda z, g=g: math.expm1(z) - z - g, 0.0, 50.0, xtol=1e-15) if g else 0.0
            th0 = 1 - math.exp(-zeta)
            theta = th0
            if th0 > 0:
                rho = c.beta_d * N / c.alpha_d
                theta += (
                    eta * (1 - th0) ** 2 / (p0**2 * th0) * (zeta * (th0 / (1 - th0) - zeta / 2) + rho * (zeta - th0))
                )
            theta = min(max(theta, c.theta_min), c.theta_max)
            N = c.slots
            if math.isfinite(capacity):
                z = -math.log(1 - theta)
                room = capacity - math.log(1 / c.eps) / (p0**2 * mu_L)
                N = math.floor(room / (mu_L + (1 - theta) * z / (theta * p0)))
                N = min(max(N, 1), c.slots)
            k = max(1, math.floor(theta * N))
        result.append((N, k))
    return result


@pytest.mark.parametrize("variant", ["paper", "mean"])
@pytest.mark.parametrize("law", ["geometric", "gamma", "uniform", "ones"])
@pytest.mark.parametrize("capacity", [math.inf, 30_000.0])
def test_the_policy_follows_the_rules(variant: str, law: str, capacity: float) -> None:
    rng = np.random.default_rng(11)
    n = 700
    O = {
        "geometric": rng.geometric(1 / 60, n),
        "gamma": np.maximum(1, rng.gamma(2.0, 40.0, n).round()).astype(int),
        "uniform": rng.integers(40, 121, n),
        "ones": np.ones(n, dtype=int),
    }[law]
    pairs = [(int(l), int(o)) for l, o in zip(rng.integers(1, 900, n), O, strict=True)]
    given = {
        "alpha_p": 0.04, "alpha_d": 0.01, "beta_d": 3e-5, "slots": 96, "theta_default": 0.4, "slots_default": 64,
        "window": 150, "window_min": 40, "update_every": 30, "theta_min": 0.05, "theta_max": 0.95, "variant": variant,
    }  # fmt: skip
    expected = settings_by_the_rules(pairs, ControllerConfig(**given), capacity)
    policy, at = AdaptiveExclusiveBatching(**given), 0
    assert (policy.slots, policy.k) == (64, 25)
    while at < n:  # in batches of any size, as iterations bring them
        size = int(rng.integers(0, 9))
        done = [Request(i, 0.0, *pairs[i]) for i in range(at, min(at + size, n))]
        policy.learn(Report(0.0, 1.0, 1, done, done), capacity)
        at += size
        if at:
            assert (policy.slots, policy.k) == expected[min(at, n) - 1]
    assert len(policy.updates) == 1 + (n - 40) // 30  # the first waits for 40 completions, the count keeps growing
    assert len(policy.outputs) == 150


def test_the_policy_has_the_controllers_defaults() -> None:
    policy = AdaptiveExclusiveBatching(8, 0.04, 0.01, 3e-5)
    assert policy.config == ControllerConfig(0.04, 0.01, 3e-5, 8)
    # the setting of the reference implementation's cases
    c = policy.config
    assert (c.theta_default, c.window, c.window_min, c.update_every, c.theta_min, c.theta_max, c.eps) == (
        0.2, 500, 100, 50, 0.05, 0.95, 0.01,
    )  # fmt: skip


def test_memory_too_small_still_runs_one_slot() -> None:
    new = controller_update([400], [5], 8, ControllerConfig(0.04, 0.01, 3e-5, slots=8), capacity=50.0)
    assert (new.slots, new.k) == (1, 1)


def test_free_decodes_wait_for_an_empty_machine() -> None:
    new = controller_update([400], [5], 8, ControllerConfig(0.04, 0.0, 3e-5, slots=8, theta_max=1.0), capacity=1e6)
    assert new.k == 8


@pytest.mark.parametrize(
    ("field", "value"),
    [("alpha_p", -1.0), ("slots", 0), ("window", 2.5), ("eps", 1.0), ("theta_min", 0.999), ("variant", "x")],
)
def test_nonsense_is_named(field: str, value: object) -> None:
    base: dict[str, object] = {"alpha_p": 1.0, "alpha_d": 1.0, "beta_d": 0.0, "slots": 4}
    with pytest.raises(ValueError, match=field):
        ControllerConfig(**{**base, field: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="alpha_p and alpha_d"):
        ControllerConfig(0.0, 0.0, 0.0, 4)
