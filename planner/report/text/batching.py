"""Exclusive or mixed batching: a verdict, the settings of both, where they cross."""

from __future__ import annotations

from planner.advice.batching import Batching
from planner.report.blocks import Block, Table, Text
from planner.report.text.stability import about, number
from planner.units import format_percent


def blocks(result: Batching) -> list[Block]:
    """Verdict, settings of both, crossover."""
    e, m, c = result.exclusive, result.mixed, result.crossover
    columns = ["batching", "sequences N", "refill at k", "theta", "requests/s at saturation"]
    rows = [
        ["exclusive", number(e["N"]), number(e["k"]), f"{e['theta']:.3f}", number(e["throughput_per_s"])],
        [
            "mixed",
            number(m["N"]),
            "-",
            "-",
            "not measured" if m["throughput_per_s"] is None else number(m["throughput_per_s"]),
        ],
    ]
    head = [
        about(result.about),
        f"{result.verdict.upper()} ({result.certainty}): {result.reason}"
        if result.to_run is None
        else f"exclusive or mixed: NOT MEASURED: {result.reason}",
    ]
    if result.to_run is not None:
        head.append(f"run: {result.to_run}")
    lines = [
        f"exclusive: refill when {e['k']} of {e['N']} sequences are idle (a phase of {e['phase_iterations']} decode "
        f"iterations); memory exceeded in {format_percent(e['overflow_share'])} of them; constant hazard would say "
        f"theta {e['theta0_constant_hazard']:.3f}"
    ]
    mixed_cost = "not measured" if m["beta_MB_s_per_token"] is None else f"{1e6 * m['beta_MB_s_per_token']:.3g} us"
    kappa = "not measured" if m["kappa"] is None else f"{m['kappa']:.3g}"
    lines.append(
        f"cost per token: exclusive {1e6 * c['beta_EB_s_per_token']:.3g} us, mixed {mixed_cost}, break-even "
        f"{1e6 * c['break_even_beta_MB_s_per_token']:.3g} us; kappa {kappa}"
    )
    if c["N_crossover"] is not None:
        lines.append(f"crossover at N = {c['N_crossover']:.4g} sequences")
    return [Text(head), Table(columns, rows, columns[:1]), Text(lines)]
