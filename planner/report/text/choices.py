"""What other choices would cost, below a plan or in its place."""

from __future__ import annotations

from collections.abc import Sequence

from planner.choices import Choice, Choices
from planner.plans import HOURS_PER_YEAR
from planner.promise import GOODPUT
from planner.report.blocks import Block, Table, Text
from planner.units import format_count, format_duration, format_percent, format_usd

HOURS_PER_MONTH = HOURS_PER_YEAR / 12.0

COLUMNS = ("otherwise", "GPUs", "$/month", "$/year", "change", "fleet", "write")
DROPPED = ("fleet", "$/year")

UNFOLDED = 44
"""Characters of a choice's name and of its flags that take precedence over these columns."""

WORTH_TELLING = 0.98
"""A choice that costs less than this share of the plan saves something."""

MOST_SAVINGS = 3
"""So many of them are named below the table."""

TOO_DEAR = 20.0
"""A choice that costs more than this many times the plan is told, not priced: nobody takes it."""


def blocks(choices: Choices) -> list[Block]:
    """The choices sized as a table, what has no fleet as lines."""
    priced = [c for c in choices.rows if c.cost_usd_per_hour is not None and not _too_dear(c, choices)]
    if choices.cost_usd_per_hour is None:
        # what keeps the promise as it is comes first, the cheapest before all
        same = sorted((c for c in priced if c.kind != "promise"), key=lambda c: c.cost_usd_per_hour or 0.0)
        priced = [*same, *(c for c in priced if c.kind == "promise")]
    rows = [_cells(c, choices.cost_usd_per_hour) for c in priced]
    found: list[Block] = []
    if rows and choices.cost_usd_per_hour is not None:
        rows.insert(0, _plan_cells(choices.cost_usd_per_hour, choices.gpus or 0))
        found.append(Text(["Each differs from the plan in one choice."], title="Other choices", only="document"))
    if rows:
        columns = list(COLUMNS)
        if choices.cost_usd_per_hour is None:
            columns[0], rows = "possible with", [[*row[:4], *row[5:]] for row in rows]
            columns.remove("change")
        found.append(Table(columns, rows, {columns[0], "fleet", "write"}, drop=DROPPED, words=UNFOLDED))
    lines = [*_savings(choices), *_curve(choices), *_without(choices), *interrupted(choices)]
    return [*found, Text(lines, near=True)]


def _plan_cells(cost: float, gpus: int) -> list[str]:
    return ["this plan", format_count(gpus), _month(cost), _year(cost), "", "", ""]


def _cells(choice: Choice, base: float | None) -> list[str]:
    cost = choice.cost_usd_per_hour or 0.0
    told = "" if base is None else change(cost / base - 1.0)
    return [choice.name, format_count(choice.gpus or 0), _month(cost), _year(cost), told, choice.fleet, choice.flags]


def _month(cost: float) -> str:
    return format_usd(round(HOURS_PER_MONTH * cost))


def _year(cost: float) -> str:
    return format_usd(round(HOURS_PER_YEAR * cost))


def change(share: float) -> str:
    """``-25%``; nothing where the price is the plan's."""
    return "same" if abs(share) < 5e-4 else f"{'+' if share > 0.0 else '-'}{format_percent(abs(share))}"


def _too_dear(choice: Choice, choices: Choices) -> bool:
    base = choices.cost_usd_per_hour
    return base is not None and (choice.cost_usd_per_hour or 0.0) > TOO_DEAR * base


def _savings(choices: Choices) -> Sequence[str]:
    """The choices that save most at the same promise and traffic, the cheapest first."""
    base = choices.cost_usd_per_hour
    if base is None:
        return []
    cheaper = [
        (c.cost_usd_per_hour, c.flags)
        for c in choices.rows
        if c.kind != "promise" and c.cost_usd_per_hour is not None and c.cost_usd_per_hour < WORTH_TELLING * base
    ]
    told = [f"{flags} ({change(cost / base - 1.0)})" for cost, flags in sorted(cheaper)[:MOST_SAVINGS]]
    return [f"saves most at the same promise: {', '.join(told)}"] if told else []


def _curve(choices: Choices) -> Sequence[str]:
    """Where the cost of the promise bends."""
    at, costs = choices.knee_s, dict(choices.curve)
    if choices.promise is None or len(costs) < 3:
        return []
    label = choices.promise.label
    if at is None:
        return [] if min(costs.values()) == max(costs.values()) else [f"{label}: no knee; every step costs about alike"]
    promise = choices.promise

    def written(limit_s: float) -> str:
        return promise.scaled(limit_s / promise.limit_s).told if promise.kind == GOODPUT else format_duration(limit_s)

    tightest, loosest = min(costs), max(costs)
    told = [f"{label}: the knee is at {written(at)}, {_month(costs[at])}/month"]
    if tightest < at:
        told.append(f"{written(tightest)} costs {costs[tightest] / costs[at]:.2g} times as much")
    saved = 1.0 - costs[loosest] / costs[at]
    told.append(f"{written(loosest)} saves {format_percent(saved) if saved > 5e-4 else 'nothing'}")
    return ["; ".join(told)]


def _without(choices: Choices) -> Sequence[str]:
    """Choices without a fleet, and those nobody would take."""
    told = []
    for choice in choices.rows:
        if choice.reason is not None:
            told.append(f"{choice.name}: {choice.reason}")
        elif choice.cost_usd_per_hour is not None and _too_dear(choice, choices):
            told.append(f"{choice.name}: more than {TOO_DEAR:g} times the plan ({format_count(choice.gpus or 0)} GPUs)")
    return told


def interrupted(choices: Choices) -> Sequence[str]:
    """That Ctrl-C ended the sizing."""
    if not choices.waiting:
        return []
    return [f"interrupted: {choices.waiting} of {choices.waiting + len(choices.rows)} other choices were not sized"]
