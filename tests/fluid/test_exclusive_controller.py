"""The controller's step against the rules written out once more, with other numerics."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize

from planner.fluid import exclusive_controller as ctl


def settings_by_the_rules(completions: list[tuple[int, int]], c: ctl.ControllerConfig) -> list[tuple[int, int]]:
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
            if math.isfinite(c.capacity):
                z = -math.log(1 - theta)
                room = c.capacity - math.log(1 / c.eps) / (p0**2 * mu_L)
                N = math.floor(room / (mu_L + (1 - theta) * z / (theta * p0)))
                N = min(max(N, 1), c.slots)
            k = max(1, math.floor(theta * N))
        result.append((N, k))
    return result


@pytest.mark.parametrize("variant", ["paper", "mean"])
@pytest.mark.parametrize("law", ["geometric", "gamma", "uniform", "ones"])
@pytest.mark.parametrize("capacity", [math.inf, 30_000.0])
def test_step_follows_the_rules(variant: str, law: str, capacity: float) -> None:
    rng = np.random.default_rng(11)
    n = 700
    O = {
        "geometric": rng.geometric(1 / 60, n),
        "gamma": np.maximum(1, rng.gamma(2.0, 40.0, n).round()).astype(int),
        "uniform": rng.integers(40, 121, n),
        "ones": np.ones(n, dtype=int),
    }[law]
    pairs = [(int(l), int(o)) for l, o in zip(rng.integers(1, 900, n), O, strict=True)]
    c = ctl.ControllerConfig(
        0.04, 0.01, 3e-5, slots=96, capacity=capacity, theta_default=0.4, slots_default=64, window=150, window_min=40,
        update_every=30, theta_min=0.05, theta_max=0.95, variant=variant,
    )  # fmt: skip
    expected = settings_by_the_rules(pairs, c)
    state, at = ctl.controller_start(c), 0
    assert (state.slots, state.k) == (64, 25)
    while at < n:  # in batches of any size, as iterations bring them
        size = int(rng.integers(0, 9))
        state = ctl.exclusive_controller_step(state, pairs[at : at + size], c)
        at += size
        if at:
            assert (state.slots, state.k) == expected[min(at, n) - 1]
    assert state.updates == 1 + (n - 40) // 30  # the first waits for 40 completions, the count keeps growing
    assert len(state.outputs) == 150
    assert "outputs" not in state.to_dict()


def test_step_is_pure() -> None:
    c = ctl.ControllerConfig(0.04, 0.01, 3e-5, slots=8, update_every=1, window_min=1)
    start = ctl.controller_start(c)
    a = ctl.exclusive_controller_step(start, [(10, 5)], c)
    assert a == ctl.exclusive_controller_step(start, [(10, 5)], c)
    assert start.outputs == ()
    assert ctl.exclusive_controller_step(a, [], c) == a


def test_memory_too_small_still_runs_one_slot() -> None:
    c = ctl.ControllerConfig(0.04, 0.01, 3e-5, slots=8, capacity=50.0, update_every=1, window_min=1)
    state = ctl.exclusive_controller_step(ctl.controller_start(c), [(400, 5)], c)
    assert (state.slots, state.k) == (1, 1)


def test_free_decodes_wait_for_an_empty_machine() -> None:
    c = ctl.ControllerConfig(0.04, 0.0, 3e-5, slots=8, update_every=1, window_min=1, theta_max=1.0, capacity=1e6)
    state = ctl.exclusive_controller_step(ctl.controller_start(c), [(400, 5)], c)
    assert state.k == 8


def test_prefill_rule() -> None:
    # with a backlog: k idle; with few waiting: f/n against k/(N - k); k = N only when empty; lowered N starts nothing
    for N in (1, 4, 9):
        for k in range(1, N + 1):
            for n in range(N + 1):
                assert ctl.exclusive_prefill_starts(10**6, n, N, k) == (N - n >= k)
    assert ctl.exclusive_prefill_starts(1, 2, 8, 5) is False
    assert ctl.exclusive_prefill_starts(1, 1, 8, 4) is True
    assert ctl.exclusive_prefill_starts(1, 0, 8, 8) is True
    assert not ctl.exclusive_prefill_starts(0, 0, 8, 1)
    assert not ctl.exclusive_prefill_starts(5, 9, 8, 1)


def test_gate() -> None:
    assert ctl.exclusive_kv_gate(0, 100, 1000, 1000)
    assert not ctl.exclusive_kv_gate(41, 100, 1000, 1000)
    assert ctl.exclusive_kv_gate(40, 100, 1000, 1000)


@pytest.mark.parametrize(
    ("field", "value"),
    [("alpha_p", -1.0), ("slots", 0), ("eps", 1.0), ("theta_min", 0.999), ("capacity", 0.0), ("variant", "x")],
)
def test_nonsense_is_named(field: str, value: object) -> None:
    base: dict[str, object] = {"alpha_p": 1.0, "alpha_d": 1.0, "beta_d": 0.0, "slots": 4}
    with pytest.raises(ValueError, match=field):
        ctl.ControllerConfig(**{**base, field: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="alpha_p and alpha_d"):
        ctl.ControllerConfig(0.0, 0.0, 0.0, 4)
