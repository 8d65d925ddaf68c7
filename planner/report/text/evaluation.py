"""A standing fleet under load: the verdict, what it rests on, a row per rate and pool."""

from __future__ import annotations

from planner.fleet.fleet import Verdict
from planner.promise import Promise
from planner.report.blocks import Block, Text, rows_table
from planner.report.text import served as of_served
from planner.report.text.plan import told_chance
from planner.studies.evaluation import Evaluation
from planner.units import format_count

FIRST = (
    "rate_per_s", "pool", "holds", "load", "ttft_p99_s", "tpot_p99_s", "broken", "e2e_p99_s", "running", "ttft_p50_s",
    "tpot_p50_s",
)  # fmt: skip

MOST_RATES = 8
"""Rates with a line of their own; of more, the table says."""


def blocks(evaluation: Evaluation) -> list[Block]:
    """The verdict in front."""
    served = evaluation.served
    verdicts = [verdict(evaluation, k) for k in range(len(evaluation.rates_per_s))]
    more = [f"at {len(verdicts) - MOST_RATES:,} more rates: below"] if len(verdicts) > MOST_RATES else []
    found: list[Block] = [
        Text([of_served.question(served)], "heading"),
        Text(
            [
                f"THIS FLEET  {of_served.fleet(served)}   stable up to {format_count(evaluation.capacity_per_s)} requests/s"
            ]
        ),
        Text([*verdicts[:MOST_RATES], *more], "bold", label="     ", near=True),
        rows_table(evaluation.to_rows(), FIRST),
    ]
    checks = of_served.before_signing(served)
    found.append(Text(["BEFORE YOU SIGN"] if checks else []))
    found.append(Text(checks, "bullets", label="  ! ", near=True))
    found.append(Text(["fleetopt capacity (how much it bears)   fleetopt plan (what would do)"], only="terminal"))
    return found


def _missed(promise: Promise, verdict: Verdict) -> str:
    """A broken promise with its value, or that the pool is full."""
    if verdict.prediction.load >= 1.0:
        return f"{promise.label} (load {verdict.prediction.load:.2f}: it cannot keep up)"
    return f"{promise.label} {promise.tell(verdict.prediction.value(promise.metric, promise.quantile))}"


def verdict(evaluation: Evaluation, k: int) -> str:
    """One rate: kept or broken, how sure that is, and what is broken."""
    rate, chance = evaluation.rates_per_s[k], evaluation.chances[k]
    missed = [
        f"{'' if len(evaluation.verdicts[k]) == 1 else f'{v.pool}: '}{'; '.join(_missed(b, v) for b in v.broken)}"
        for v in evaluation.verdicts[k]
        if v.broken
    ]
    if not evaluation.served.promises:
        return f"at {format_count(rate)} requests/s: nothing is promised"
    sure = "" if chance is None else f" with {told_chance(chance)} confidence"
    if not missed:
        return f"at {format_count(rate)} requests/s: keeps {of_served.promised(evaluation.served)}{sure}"
    kept = "" if chance is None else f" (kept with {told_chance(chance)} confidence)"
    return f"at {format_count(rate)} requests/s: BREAKS {', '.join(missed)}{kept}"
