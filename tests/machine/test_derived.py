"""Derived parameters against canonical models for which the papers' forms are exact, and their stated ranges."""

from __future__ import annotations

import pytest

from planner.errors import InputError
from planner.machine import derived
from planner.machine.iteration import IterationModel

M = IterationModel(t0=2e-3, w=5e-3, b=20e-6, c=5e-6, tau=1, g=50e-9, h=1e-6, e=50e-9, a=0.5e-9)


@pytest.mark.parametrize("context", [512.0, 8192.0])
def test_w_and_h(context: float) -> None:
    d = derived.fleetopt_parameters(M, context)
    assert d["W"] == pytest.approx(7e-3)
    assert d["H"] == pytest.approx(6e-6 + 50e-9 * context)
    assert d.form_error < 1e-12
    assert d.covers["decodes"] == (1.0, 250.0)  # the knee


def test_beyond_the_knee_the_secant_says_how_far_it_strays() -> None:
    d = derived.fleetopt_parameters(M, 1024, slots=1024)
    assert d["W"] < 7e-3 and d["H"] > 57e-6
    assert 0.01 < d.form_error < 0.3


def test_prefill_line() -> None:
    linear = IterationModel(t0=3e-3, b=20e-6, c=5e-6)
    d = derived.exclusive_parameters(linear, 1024, (64, 8192))
    assert (d["alpha_p"], d["beta_p"]) == pytest.approx((3e-3, 25e-6))
    steep = derived.exclusive_parameters(M, 1024, (256, 4096))
    # attention makes the slope grow: between b + c and b + c + a x longest
    assert 25e-6 < steep["beta_p"] < 25e-6 + 0.5e-9 * 4096
    assert steep["alpha_d"] == pytest.approx(7e-3)


def test_mixed_line_and_interference() -> None:
    linear = IterationModel(t0=3e-3, b=20e-6, c=5e-6, g=10e-9, h=1e-6, x=4e-6)
    d = derived.mixed_parameters(linear, 0.25, context=2000)
    assert d["alpha_MB"] == pytest.approx(3e-3)
    assert d["beta_MB"] == pytest.approx(25e-6 + 0.25 * (1e-6 + 2e-5) + 0.25 * 0.75 * 4e-6)
    k = derived.interference_parameters(linear, context=2000, tokens=1000)
    assert k["c2"] == pytest.approx(-4e-6 * 1000)
    assert k["kappa"] == pytest.approx(2 * -4e-3 / (3e-3 + 1000 * (25e-6 + 21e-6)))
    # K(r) lies above its chord by kappa K(1) r (1 - r)/2
    r = 0.3
    here = k["c0"] + k["c1"] * r + k["c2"] * r * r
    chord = k["c0"] + (k["c1"] + k["c2"]) * r
    assert here - chord == pytest.approx(-k["kappa"] * (k["c0"] + k["c1"] + k["c2"]) * r * (1 - r) / 2)


def test_kappa_is_flagged_without_a_mixed_measurement() -> None:
    plain = derived.interference_parameters(M, context=1000)
    assert plain["kappa"] == 0.0
    assert set(plain.not_identified) == {"c2", "kappa"}


def test_wait() -> None:
    pure = IterationModel(t0=5e-3, b=0.0, g=50e-9)
    d = derived.wait_parameters(pure, 100, 1, (1e3, 1e5))
    # one of two stages is prefill and reads no KV: slope g x (l + 1)/(2 l + 1)
    assert d["d0"] == pytest.approx(5e-3)
    assert d["d1"] == pytest.approx(50e-9 * 101 / 201)


def test_rad() -> None:
    tiled = IterationModel(t0=1e-9, b=20e-6, c=5e-6, tau=128, g=50e-9, h=1e-6, a=0.5e-9)
    d = derived.rad_parameters(tiled)
    assert d.form_error < 1e-5
    assert 1 / d["mu_Lin"] == pytest.approx(20e-6 * 128)
    assert derived.rad_parameters(M).form_error > 0.05  # no plateau in the form


@pytest.mark.parametrize(
    "call",
    [
        lambda: derived.fleetopt_parameters(M, 0.0),
        lambda: derived.exclusive_parameters(M, 100.0, (100.0, 100.0)),
        lambda: derived.mixed_parameters(M, 1.5, 100.0),
        lambda: derived.wait_parameters(M, -1.0, 10.0, (1.0, 2.0)),
        lambda: derived.rad_parameters(M, (0.0, 5.0)),
        lambda: derived.interference_parameters(M, 100.0, tokens=0.0),
    ],
)
def test_nonsense_is_refused(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError):
        call()
