"""Whether the table of choices is right and complete: ``python benchmarks/choices.py [QUESTIONS]``.

For each question, every single choice of routing, pools, compression, precision, engine, measured profile, shape and GPU type is
planned by itself; one that is cheaper than the plan by more than 2% must stand in the table, at the price that choosing it gives.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import planner as fo
from planner.choices import Choice
from planner.errors import InfeasibleError, InputError

QUESTIONS: tuple[dict[str, Any], ...] = tuple(
    {"model": model, "rate": rate, **promise}
    for model, rates in (("llama-3.1-8b", (5.0, 50.0, 500.0)), ("qwen3-32b", (2.0, 20.0)))
    for rate in rates
    for promise in ({"slo": 0.5}, {"slo": 2.0}, {"slo": 1.0, "tpot": "50ms"}, {"tpot": "30ms"})
)
"""Twenty: two models, several rates, TTFT alone, loose, with TPOT, and TPOT alone."""

SHAPES = ({"shape": "disaggregated"},)
ENOUGH = 1e6


def cost(question: dict[str, Any], changes: dict[str, Any]) -> float | None:
    """The price with a choice made; ``None`` where there is no fleet."""
    metrics = {"ttft": "slo", "tpot": "tpot", "e2e": "e2e"}
    kept = {k: v for k, v in question.items() if k not in {metrics[m] for m in changes if m in metrics}}
    try:
        return fo.plan("azure", **{**kept, **changes}).cost_usd_per_hour
    except (InfeasibleError, InputError):
        return None


def wrong(question: dict[str, Any]) -> Iterator[str]:
    """Rows that are not what choosing them gives, and cheaper choices that are missing."""
    try:
        plan = fo.plan("azure", choices=ENOUGH, **question)
        base, found = plan.cost_usd_per_hour, plan.choices
    except InfeasibleError as error:
        base, found = float("inf"), error.choices
    rows: tuple[Choice, ...] = () if found is None else found.rows
    for row in rows:
        chosen = cost(question, dict(row.changes))
        if row.cost_usd_per_hour != chosen:
            yield f"{row.flags}: {row.cost_usd_per_hour} in the table, {chosen} chosen"
    told = [dict(row.changes) for row in rows]
    for changes in SHAPES:
        chosen = cost(question, changes)
        if chosen is not None and chosen < 0.98 * base and changes not in told:
            yield f"{changes}: {chosen} against {base}, not in the table"


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else len(QUESTIONS)
    failed = 0
    for question in QUESTIONS[:most]:
        problems = [*wrong(question)]
        failed += bool(problems)
        print(question, problems if problems else "ok", flush=True)
    print(f"{failed} of {min(most, len(QUESTIONS))} questions fail")
    sys.exit(min(failed, 1))


if __name__ == "__main__":
    main()
