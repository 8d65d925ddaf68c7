"""RAD and SLAI: the bound of theorem 1 against the paper's own tiles, and the percentages of section 7."""

from __future__ import annotations

from collections.abc import Iterator

from planner.fluid.rad import (
    T_D_SA,
    RadParameters,
    T_max,
    Tbar_R,
    Tbar_R_tight,
    rad_alpha,
    rad_lambda_max,
)
from planner.fluid.slai import slai_last_time
from planner.reproduce.result import Row, compare, numbers
from planner.workload.workload import Workload

__all__ = ["rows"]

# An A100-like machine: 108 SMs, 32 layers of width 4,096; rates only set the scale
MACHINE = {
    "inv_mu_lin": "0.002", "inv_mu_nlin": "1e-6", "N": 32, "d": 4096, "vrow": 64, "vcol": 64, "s": 108,
    "mu_gemv": "2e7", "mu": "3e6",
}  # fmt: skip
A100_TILE, EQUAL_TILE = (256, 128, 32), (128, 128, 64)


def _machine(tile: tuple[int, int, int]) -> RadParameters:
    return RadParameters.of({**MACHINE, "trow": tile[0], "tcol": tile[1], "tred": tile[2]})


def _attention(p: RadParameters, prompt: int, chunk: int | None) -> float:
    """Prefill attention alone [s]."""
    linear = float(p.inv_mu_lin * prompt / p.tcol + p.inv_mu_nlin * prompt)
    return float(Tbar_R([(prompt, 0, 1)], p, chunk)) - linear


def rows() -> Iterator[Row]:
    """The printed statements that the formulas suffice to check."""
    a100 = _machine(A100_TILE)
    for prompt in (256, 1024, 2048):
        saved = _attention(a100, prompt, a100.tcol) / _attention(a100, prompt, None) - 1.0
        total = Tbar_R_tight([(prompt, 0, 1)], a100) / Tbar_R([(prompt, 0, 1)], a100) - 1.0
        yield (
            f"theorem 1, tile 256 x 128 x 32, prompt {prompt:,}: prefill attention with chunks of t_col",
            "eq. 7 summed over the chunks",
            "0% (t_lcm is optimal)",
            f"{100 * saved:.1f}%",
            "false",
            f"same linear cost, less attention, {100 * total:.2f}% in all: a scheduler is stable slightly above r/T_R",
        )
    equal = _machine(EQUAL_TILE)
    saved = _attention(equal, 1024, equal.tcol) / _attention(equal, 1024, None) - 1.0
    yield (
        "theorem 1, tile 128 x 128 x 64, prompt 1,024: prefill attention with chunks of t_col",
        "eq. 7 summed over the chunks",
        "0% (t_lcm is optimal)",
        f"{100 * saved:.1f}%",
        "agrees",
        "t_lcm = t_col: the theorem holds as printed",
    )
    shared = (512, a100.d, a100.vrow, a100.vcol)
    faster = T_D_SA(*shared, 1, a100.mu_gemv) / T_D_SA(*shared, a100.s, a100.mu_gemv)
    yield (
        "eq. 5: time of a decode step's attention, 108 SMs, against eq. 3",
        "eq. 5 as printed",
        "1",
        f"{faster:.0f} times",
        "false",
        "eq. 5 lacks the 1/s of eq. 3",
    )
    lengths = [(1024, 128, 1)]
    work, longest = Tbar_R(lengths, a100), T_max(1024, 128, a100)
    rate = 1.1 * rad_lambda_max(1, lengths, a100)
    yield (
        "theorem 1: growth of the queue at 1.1 times the capacity, requests/s",
        "prompt 1,024, output 128, one node",
        f"{rad_alpha(rate, 1, work, 1):.3g} (no unit)",
        f"{rad_alpha(rate, 1, work, longest):.3g}",
        "false",
        "the end of the proof drops 1/T_max: lambda T_R/r - 1 is a pure number",
    )
    yield (
        "eq. 8 and 9: last time of a decode step, e = 10 s, TBT 0.5 s, offset 10, mean batch 20 ms",
        "printed",
        "10.3 s",
        f"{float(slai_last_time(10.0, 0.5, 10.0, 0.02)):.1f} s",
        compare(10.3, float(slai_last_time(10.0, 0.5, 10.0, 0.02)), 1),
        "the two equations are one",
    )
    for quantity, was, now, printed in (
        ("reduction of the median TTFT, 1.5 s to 0.7 s", 1.5, 0.7, 53.0),
        ("gain in capacity, 1.15 to 1.45 requests/s", 1.15, 1.45, 26.0),
    ):
        ours = 100.0 * abs(now / was - 1.0)
        yield numbers(
            f"section 7: {quantity}",
            "from the printed values",
            printed,
            ours,
            0,
            "a measurement on one GPU that no formula predicts",
            "%",
        )
    yield from _lengths()


def _lengths() -> Iterator[Row]:
    """Table 1 from the shipped lengths of the same data set."""
    shipped = Workload.from_file("sharegpt4")
    variance = float(shipped.weight @ (shipped.output_tokens - shipped.mean_output) ** 2)
    for kind, of, q, printed in (
        ("prompt", "input", 0.5, 1730),
        ("prompt", "input", 0.9, 5696),
        ("decode", "output", 0.5, 415),
        ("decode", "output", 0.9, 834),
    ):
        ours = shipped.quantile(q, of=of)
        quantity = f"table 1: {kind} length, {'median' if q == 0.5 else 'p90'}, tokens"
        reason = "the authors' published lengths, of which requests above 8,192 tokens are left out"
        yield numbers(quantity, "shipped sharegpt4 (30,731 requests)", printed, ours, 0, reason)
    yield (
        "table 1: decode length, standard deviation, tokens",
        "shipped sharegpt4 (30,731 requests)",
        "101",
        f"{variance**0.5:.0f}",
        "false",
        "no law with a median of 415 and a p90 of 834 has a standard deviation of 101 (Cantelli)",
    )
