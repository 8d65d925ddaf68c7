"""``fleetopt wait``: thresholds, memory and segments of WAIT and Nested WAIT."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli import options as opt
from planner.cli import scheduler_options as shared

__all__ = ["wait"]

_WAIT = "WAIT"


def wait(
    cdf: opt.Cdf = None,
    rate: opt.Rate = None,
    gpu: opt.Gpu = None,
    model: opt.Model = None,
    tp: opt.Tp = None,
    profile: opt.ProfileName = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            help="Replicas that share the rate. Default: enough for 0.85 of capacity.", rich_help_panel=opt.HARDWARE
        ),
    ] = None,
    types: Annotated[
        int | None,
        typer.Option(help="Output classes of WAIT. Default: up to four, as memory allows.", rich_help_panel=_WAIT),
    ] = None,
    segments: Annotated[
        int | None,
        typer.Option(help="Segments of Nested WAIT. Default: those with the least memory.", rich_help_panel=_WAIT),
    ] = None,
    horizon: Annotated[
        str, typer.Option(help="Time the memory promise covers, e.g. 1h.", rich_help_panel=_WAIT)
    ] = "1h",
    delta: Annotated[
        str, typer.Option(help="Probability that memory is exceeded in that time, e.g. 1%.", rich_help_panel=_WAIT)
    ] = "1%",
    token_budget: shared.TokenBudget = None,
    max_num_seqs: shared.MaxNumSeqs = None,
    output_format: shared.Format = "table",
    output: opt.OutputFile = None,
) -> None:
    """Thresholds of WAIT and Nested WAIT: how many requests to wait for, the memory they need, what they promise.

    Example: fleetopt wait --cdf azure --rate 50 --gpu h100
    """
    from planner.advice.wait import wait_settings as compute
    from planner.report.advice_text import wait_text
    from planner.units import parse_duration, parse_fraction

    covered, risk = parse_duration(horizon, "--horizon"), parse_fraction(delta, "--delta")

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
        return compute(replica, replicas, types, segments, covered, risk)

    shared.answer(compute_it, wait_text, output_format, output)
