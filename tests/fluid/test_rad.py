"""RAD: Theorem 1 against the explicit sum over batches, the proven bracket, and the edges."""

from __future__ import annotations

import math
from fractions import Fraction as F

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.fluid import rad

PAPER = {
    "inv_mu_lin": "0.002", "inv_mu_nlin": "1e-6", "N": 32, "d": 4096, "vrow": 64, "vcol": 64, "s": 108,
    "mu_gemv": "2e7", "trow": 256, "tcol": 128, "tred": 32, "mu": "3e6",
}  # fmt: skip


def machine(trow: int, tcol: int, tred: int) -> dict[str, object]:
    return {**PAPER, "trow": trow, "tcol": tcol, "tred": tred}


def cost(decodes: list[int], prefills: list[tuple[int, int]], p: dict[str, object]) -> F:
    """Eq. 7 written out once more, in fractions."""

    def up(a: int, b: int) -> int:
        return (a + b - 1) // b

    d, N, s = int(p["d"]), int(p["N"]), int(p["s"])
    tau = len(decodes) + sum(c for _, c in prefills)
    total = up(tau, p["tcol"]) * F(str(p["inv_mu_lin"])) + tau * F(str(p["inv_mu_nlin"]))
    for i in decodes:
        tiles = F(d, p["vcol"]) * up(i, p["vrow"]) + up(i, p["vcol"]) * F(d, p["vrow"])
        total += N * tiles / (s * F(str(p["mu_gemv"])))
    for i, c in prefills:
        e = i + c - 1
        tiles = up(e, p["trow"]) * up(c, p["tcol"]) * F(d, p["tred"]) + F(d, p["trow"]) * up(c, p["tcol"]) * up(
            e, p["tred"]
        )
        total += N * tiles / (s * F(str(p["mu"])))
    return total


def explicit(prompt: int, decodes: int, p: dict[str, object], chunk: int) -> float:
    """Work of t_col equal requests under RAD, batch by batch, per request."""
    size = int(p["tcol"])
    total, done = F(0), 0
    while done < prompt:
        c = min(chunk, prompt - done)
        total += size * cost([], [(done + 1, c)], p)
        done += c
    for i in range(1, decodes + 1):
        total += cost([prompt + i] * size, [], p)
    return float(total / size)


@pytest.mark.parametrize("tile", [(256, 128, 32), (128, 256, 32), (128, 128, 64), (64, 64, 32)])
@pytest.mark.parametrize("lengths", [(256, 3), (1024, 65), (2048, 0)])
def test_theorem_1_is_the_sum_over_batches(tile: tuple[int, int, int], lengths: tuple[int, int]) -> None:
    p = machine(*tile)
    dist = [(*lengths, 1)]
    lcm = math.lcm(*tile)
    assert rad.Tbar_R(dist, p) == pytest.approx(explicit(*lengths, p, lcm), rel=1e-14)
    assert rad.Tbar_R_tight(dist, p) == pytest.approx(explicit(*lengths, p, tile[1]), rel=1e-14)
    assert rad.Tbar_R_chunk_tcol_lower_bound_c1(dist, p) <= rad.Tbar_R_tight(dist, p) <= rad.Tbar_R(dist, p)


@given(
    prompt=st.integers(1, 900), decodes=st.integers(0, 20), chunk=st.sampled_from([64, 96, 128, 256]),
    tile=st.sampled_from([(256, 128, 32), (64, 64, 32), (96, 64, 32)]),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_any_prompt_and_chunk_is_summed_explicitly(
    prompt: int, decodes: int, chunk: int, tile: tuple[int, ...]
) -> None:
    p = machine(*tile)
    assert rad.Tbar_R([(prompt, decodes, 1)], p, chunk) == pytest.approx(explicit(prompt, decodes, p, chunk), rel=1e-13)


def test_printed_limit_can_be_exceeded() -> None:
    """Erratum: with the paper's A100 tile, chunks of t_col do better than the claimed upper bound."""
    work = [(256, 100, 1)]
    bound = 1 / rad.Tbar_R_chunk_tcol_lower_bound_c1(work, PAPER)
    assert rad.rad_lambda_max(1, work, PAPER) < 1 / rad.Tbar_R_tight(work, PAPER) < bound
    saved = 1 - rad.Tbar_R_tight([(256, 0, 1)], {**PAPER, "inv_mu_lin": 0, "inv_mu_nlin": 0}) / rad.Tbar_R(
        [(256, 0, 1)], {**PAPER, "inv_mu_lin": 0, "inv_mu_nlin": 0}
    )
    assert saved == pytest.approx(0.125, rel=1e-12)
    same = machine(128, 128, 64)
    assert rad.Tbar_R(work, same) == rad.Tbar_R_tight(work, same)


def test_mixture_is_the_mean_and_500_types_are_taken() -> None:
    parts = [(256 * (1 + i % 8), i, F(1, 500)) for i in range(500)]
    mean = sum(rad.Tbar_R([(a, b, 1)], PAPER) for a, b, _ in parts) / 500
    assert rad.Tbar_R(parts, PAPER) == pytest.approx(mean, rel=1e-13)


def test_near_the_limit() -> None:
    assert rad.rad_alpha("1.000000001", 1, 1, 1) == 1e-9
    assert rad.rad_alpha("0.999999999", 1, 1, 1) == 0.0


def test_edges_are_defined_or_named() -> None:
    free = {**PAPER, "inv_mu_lin": 0, "inv_mu_nlin": 0}
    assert rad.rad_lambda_max(1, [(0, 0, 1)], PAPER) == math.inf
    for call, what in [
        (lambda: rad.Tbar_R([(1, 1, "0.5")], free), "probabilities"),
        (lambda: rad.Tbar_R([(1.5, 1, 1)], free), "prompt"),
        (lambda: rad.Tbar_R([(1, 1)], free), "dist"),
        (lambda: rad.T_D_SA([-1], 1, 1, 1, 1, 1), "i must"),
        (lambda: rad.rad_lambda_max(0, [(1, 1, 1)], PAPER), "r must"),
        (lambda: rad.rad_alpha(float("nan"), 1, 1, 1), "lam"),
    ]:
        with pytest.raises(ValueError, match=what):
            call()
