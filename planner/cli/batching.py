"""``fleetopt batching``: exclusive or mixed batching, with the settings of each."""

from __future__ import annotations

from planner.cli import options as opt
from planner.cli import scheduler_options as shared

__all__ = ["batching"]


def batching(
    cdf: opt.Cdf = None,
    rate: opt.Rate = None,
    gpu: opt.Gpu = None,
    model: opt.Model = None,
    tp: opt.Tp = None,
    profile: opt.ProfileName = None,
    token_budget: shared.TokenBudget = None,
    max_num_seqs: shared.MaxNumSeqs = None,
    output_format: shared.Format = "table",
    output: opt.OutputFile = None,
) -> None:
    """Exclusive or mixed batching? The refill threshold, sequences and throughput of each, and how certain that is.

    Example: fleetopt batching --cdf azure --gpu h100 --model llama-3.1-8b
    """
    from planner.advice.batching import batching as compute
    from planner.report.advice_text import batching_text

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
        return compute(replica)

    shared.answer(compute_it, batching_text, output_format, output)
