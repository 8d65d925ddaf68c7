"""``fleetopt stability``: what a replica and a fleet can sustain, with a certificate."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli import options as opt
from planner.cli import scheduler_options as shared

__all__ = ["stability"]


def stability(
    cdf: opt.Cdf = None,
    rate: opt.Rate = None,
    gpu: opt.Gpu = None,
    model: opt.Model = None,
    tp: opt.Tp = None,
    profile: opt.ProfileName = None,
    replicas: Annotated[
        int | None,
        typer.Option(help="Replicas of the fleet. Default: enough for a load of 0.85.", rich_help_panel=opt.HARDWARE),
    ] = None,
    burst: Annotated[
        float, typer.Option(help="Burst asked about, as a factor on the rate.", rich_help_panel=opt.WORKLOAD)
    ] = 2.0,
    token_budget: shared.TokenBudget = None,
    max_num_seqs: shared.MaxNumSeqs = None,
    output_format: shared.Format = "table",
    output: opt.OutputFile = None,
) -> None:
    """What one replica and a fleet sustain for this workload: which bound says so, slack, time to overload.

    Example: fleetopt stability --cdf azure --rate 100 --gpu h100 --replicas 4
    """
    from planner.advice.stability import stability as compute
    from planner.report.advice_text import stability_text

    def compute_it() -> object:
        replica = shared.resolve(
            cdf,
            rate=rate,
            gpu=gpu,
            model=model,
            tp=tp,
            profile=profile,
            token_budget=token_budget,
            max_num_seqs=max_num_seqs,
        )
        return compute(replica, replicas, burst)

    shared.answer(compute_it, stability_text, output_format, output)
