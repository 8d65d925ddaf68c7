"""A fleet that stands: what it bears, how it holds under load, what batch it does beside its requests."""

from __future__ import annotations

from planner.ask.batch import BatchRoom
from planner.ask.capacity import PRECISION, Capacity
from planner.ask.evaluation import Evaluation, Served
from planner.plans import HOURS_PER_YEAR
from planner.promise import Promise
from planner.report.blocks import Block, Text
from planner.report.pages import pages, usd
from planner.report.text.plan import checked, lengths, unmeasured
from planner.size.fleet import Verdict
from planner.units import format_chance, format_count, format_percent, format_usd

_page = pages(__file__)

MOST_RATES = 8
"""Rates with a line of their own; of more, the table says."""


def _framed(served: Served, *page: Block) -> list[Block]:
    """Model, traffic and promises, the page, and what the answer rests on that a person can check."""
    means = (served.mean_input_tokens, served.mean_output_tokens)
    question = f"{served.model}   {served.workload}: {lengths(means)}   {', '.join(served.promises)}"
    checks = [unmeasured(gpu, trust) for gpu, trust in served.trust.items() if "measured" not in trust]
    return [Text([question], "heading"), *page, *checked(checks)]


def _fleet(served: Served) -> str:
    """What it is and costs."""
    gpus = " + ".join(f"{n:,} x {gpu}" for gpu, n in served.gpus.items())
    return f"{gpus}   {usd(HOURS_PER_YEAR * served.cost_usd_per_hour)} a year"


def _promised(served: Served) -> str:
    """What is kept or broken."""
    return "the promise" if len(served.promises) == 1 else "every promise"


def of_capacity(capacity: Capacity) -> list[Block]:
    """The largest rate with all promises: the rate, what breaks beyond it, GPUs left over, a row per pool."""
    served = capacity.served
    confidence = capacity.inputs.get("confidence")
    sure = f" with {format_percent(confidence)} confidence" if isinstance(confidence, float) else ""
    users = "" if capacity.users is None else f" ({capacity.users:,} users)"
    idle = " and ".join(f"{n:,} {gpu}" for gpu, n in capacity.unused.items())
    lines = [
        f"{_fleet(served)}; {idle} would not raise it" if idle else _fleet(served),
        f"at {format_count(capacity.refused_per_s)}/s: {capacity.binding} breaks (the rate is known to "
        f"{format_percent(PRECISION)})",
    ]
    if len(capacity.pools) > 1:
        cut = (
            f"{format_percent(p.share)} to {p.name} ({p.low_tokens:,.0f} to {p.high_tokens:,.0f} tokens)"
            for p in capacity.pools
        )
        lines.append("the gateway sends " + ", ".join(cut))
    bears = f"BEARS  {format_count(capacity.rate_per_s)} requests/s{users}   keeps {_promised(served)}{sure}"
    return _framed(served, Text([bears], "bold"), Text(lines, label="     ", near=True), *_page("capacity", capacity))


def of_evaluation(evaluation: Evaluation) -> list[Block]:
    """A standing fleet under load: the verdict in front, what it rests on, a row per rate and pool."""
    verdicts = [_verdict(evaluation, k) for k in range(len(evaluation.rates_per_s))]
    more = [f"at {len(verdicts) - MOST_RATES:,} more rates: below"] if len(verdicts) > MOST_RATES else []
    bears = f"stable up to {format_count(evaluation.capacity_per_s)} requests/s"
    return [
        *_framed(
            evaluation.served,
            Text([f"THIS FLEET  {_fleet(evaluation.served)}   {bears}"]),
            Text([*verdicts[:MOST_RATES], *more], "bold", label="     ", near=True),
            *_page("evaluation", evaluation),
        ),
        Text(["fleetopt capacity (how much it bears)   fleetopt plan (what would do)"], only="terminal"),
    ]


def _missed(promise: Promise, verdict: Verdict) -> str:
    """A broken promise with its value, or that the pool is full."""
    if verdict.prediction.load >= 1.0:
        return f"{promise.label} (load {verdict.prediction.load:.2f}: it cannot keep up)"
    return f"{promise.label} {promise.tell(verdict.prediction.value(promise.metric, promise.quantile))}"


def _verdict(evaluation: Evaluation, k: int) -> str:
    """One rate: kept or broken, how sure that is, and what is broken."""
    chance, verdicts = evaluation.chances[k], evaluation.verdicts[k]
    missed = [
        f"{'' if len(verdicts) == 1 else f'{v.pool}: '}{'; '.join(_missed(b, v) for b in v.broken)}"
        for v in verdicts
        if v.broken
    ]
    at = f"at {format_count(evaluation.rates_per_s[k])} requests/s:"
    sure = "" if chance is None else f"with {format_chance(chance)} confidence"
    if not evaluation.served.promises:
        return f"{at} nothing is promised"
    if not missed:
        return f"{at} keeps {_promised(evaluation.served)} {sure}".rstrip()
    return f"{at} BREAKS {', '.join(missed)}" + (f" (kept {sure})" if sure else "")


def of_batch_room(room: BatchRoom) -> list[Block]:
    """Batch beside requests: how much is done by the deadline, what the rest takes, how jobs are sent, and the hours."""
    served = room.served
    takes = f"TAKES  {_many(room.room_tokens)} batch tokens by {room.deadline}"
    if room.asked_jobs is None or room.asked_tokens is None:
        takes += f" ({room.room_jobs:,} jobs)"
    else:
        more = " and ".join(f"{n:,} {gpu}" for gpu, n in room.more.items())
        does = f"need {more} more ({format_usd(room.more_usd_per_hour)}/hour)" if more else "fit"
        takes += f"; the {_many(room.asked_tokens)} asked for ({room.asked_jobs:,} jobs) {does}"
    flags = f"start the engines with {' '.join(room.flags)}"
    if not room.flags:
        flags = "their engine has no order of priorities: send them from a gateway that has"
    lines = [
        f"{_fleet(served)}, {_promised(served)} kept",
        f"jobs of {room.mean_tokens:,.0f} tokens, from {room.start} to {room.deadline}",
        f'send no more than jobs_per_s, each with "priority": {room.priority}; {flags}',
    ]
    alone = ("pool",) if len({r.pool for r in room.rows}) < 2 else ()
    rows = [{k: v for k, v in row.items() if k not in alone} for row in room.to_rows()]
    return _framed(
        served,
        Text([takes], "bold"),
        Text(lines, label="     ", near=True),
        *_page("batch_room", room, rows_by_hour=rows),
    )


def _many(tokens: float) -> str:
    """Tokens by the million or thousand, three digits of them: ``"41.2M"``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if tokens >= size:
            return f"{tokens / size:.3g}{letter}"
    return f"{tokens:,.0f}"
