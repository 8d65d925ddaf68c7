"""What other choices would cost, below a plan or in its place; two plans beside each other; plans along a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from planner.choices import WORTH_TELLING, Choice, Choices
from planner.plans import HOURS_PER_MONTH, HOURS_PER_YEAR
from planner.promise import GOODPUT
from planner.report.blocks import LONGEST_WORD, Block, Table, Text, rows_table
from planner.report.pages import month, pages, usd
from planner.units import format_count, format_duration, format_gpus, format_percent, format_usd

if TYPE_CHECKING:
    from planner.ask.difference import Difference
    from planner.ask.what_if import Sweep
    from planner.errors import InfeasibleError

_page = pages(__file__)

COLUMNS = ("otherwise", "GPUs", "$/month", "$/year", "change", "fleet", "write")
DROPPED = ("fleet", "$/year")

MOST_SAVINGS = 3
"""So many of them are named below the table."""

TOO_DEAR = 20.0
"""A choice that costs more than this many times the plan is told, not priced: nobody takes it."""


def of_choices(choices: Choices) -> list[Block]:
    """The choices sized as a table, what has no fleet as lines."""
    priced = [c for c in choices.rows if c.cost_usd_per_hour is not None and not _too_dear(c, choices)]
    if (base := choices.cost_usd_per_hour) is None:
        # what keeps the promise as it is comes first, the cheapest before all
        same = sorted((c for c in priced if c.kind != "promise"), key=lambda c: c.cost_usd_per_hour or 0.0)
        priced = [*same, *(c for c in priced if c.kind == "promise")]
    found: list[Block] = []
    if priced:
        columns = [*COLUMNS]
        if base is None:
            columns = ["possible with", *(c for c in COLUMNS[1:] if c != "change")]
            rows = [_cells(c.name, c.gpus, c.cost_usd_per_hour or 0.0, c.fleet, c.flags) for c in priced]
        else:
            found.append(Text(["Each differs from the plan in one choice."], title="Other choices", only="document"))
            rows = [_cells("this plan", choices.gpus, base, "", "", "")]
            for c in priced:
                cost = c.cost_usd_per_hour or 0.0
                rows.append(_cells(c.name, c.gpus, cost, change(cost / base - 1.0), c.fleet, c.flags))
        found.append(Table(columns, rows, {columns[0], "fleet", "write"}, drop=DROPPED, words=LONGEST_WORD))
    lines = [*_savings(choices), *_curve(choices), *_without(choices), *interrupted(choices)]
    return [*found, Text(lines, near=True)]


def _cells(name: str, gpus: int | None, cost: float, *more: str) -> list[str]:
    """Under the first columns, and what stands in the others."""
    money = (format_usd(round(hours * cost)) for hours in (HOURS_PER_MONTH, HOURS_PER_YEAR))
    return [name, format_count(gpus or 0), *money, *more]


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
    told = [f"{label}: the knee is at {written(at)}, {month(costs[at])}/month"]
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
            told.append(f"{choice.name}: more than {TOO_DEAR:g} times the plan ({format_gpus(choice.gpus or 0)})")
    return told


def interrupted(choices: Choices) -> Sequence[str]:
    """That Ctrl-C ended the sizing."""
    if not choices.waiting:
        return []
    return [f"interrupted: {choices.waiting} of {choices.waiting + len(choices.rows)} other choices were not sized"]


def of_infeasible_error(error: InfeasibleError) -> list[Block]:
    """That there is no answer and why, and what would make it possible; stderr tells the reason too, and what helps in words."""
    told = Text([f"NO FLEET  {error.message}"], "bold")
    return [told] if error.choices is None else [told, *of_choices(error.choices)]


def of_difference(found: Difference) -> list[Block]:
    """How two plans differ: ``4 GPUs -> 6``, and a row per option that differs with what it alone changes."""
    old, new, again = found.old, found.new, found.again

    def dearer(cost: float | None) -> str:
        return "" if cost is None else change(cost / again["cost_usd_per_hour"] - 1.0)

    return _page(
        "difference",
        found,
        old_usd=usd(HOURS_PER_YEAR * old["cost_usd_per_hour"]),
        new_usd=usd(HOURS_PER_YEAR * new["cost_usd_per_hour"]),
        change=change(new["cost_usd_per_hour"] / old["cost_usd_per_hour"] - 1.0),
        old_rate=old["arrival_rate_per_s"] if old["arrival_rate_per_s"] != new["arrival_rate_per_s"] else None,
        again_gpus=again["gpus"] if again["gpus"] != old["gpus"] else None,
        saved_by=found.versions[0],
        told="each difference applied alone to the old question" if found.changed else "the questions are the same",
        before=lambda c: _told(c.old),
        after=lambda c: _told(c.new),
        year=lambda c: None if c.cost_usd_per_hour is None else usd(HOURS_PER_YEAR * c.cost_usd_per_hour),
        alone=lambda c: dearer(c.cost_usd_per_hour),
        why=lambda c: c.reason or "",
    )


def _told(value: Any) -> str:
    """A value as people write it; promises in a few words."""
    if isinstance(value, list):
        return ", ".join(map(_told, value)) or "none"
    if isinstance(value, dict) and "metric" in value:
        return f"{value['metric'].removesuffix('_s')} {value.get('limit_s', value.get('limits_s'))} at {value.get('quantile')}"
    return "not given" if value in (None, {}) else str(value)


SWEPT = ("gpus", "cost_usd_per_hour", "fleet", "load")

LEFT_OUT = ("gamma", "$/million tokens", "pools", "replicas", "$/hour", "$/year", "saving")
"""Columns of a sweep that a narrow page leaves out first; the promises stay as long as they can."""


def of_sweep(sweep: Sweep) -> list[Block]:
    """A what-if, a row per point: what was changed, GPUs and the price of a month and a year; why there is no fleet below, each
    reason once."""
    from planner.ask.what_if import PINNED

    changed = list(dict.fromkeys(name for point in sweep.points for name in point.changes))
    rows = sweep.to_rows()
    whole = all(row["feasible"] for row in rows)
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if whole:
            del row["feasible"]
        if reason := row.pop("reason", None):
            told = " ".join(f"{name}={row[name]}" for name in changed if row.get(name) is not None)
            reasons.setdefault(str(reason), []).append(told)
    table = rows_table(rows, [*changed, "feasible", *SWEPT])
    costs = [row.get("cost_usd_per_hour") for row in rows]
    if any(cost is not None for cost in costs):
        at = table.columns.index("$/hour")
        columns = [*table.columns[:at], "$/month", "$/year", *table.columns[at:]]
        cells = [
            [*row[:at], *(_cells("", 0, cost)[2:] if isinstance(cost, float) else ("-", "-")), *row[at:]]
            for row, cost in zip(table.rows, costs, strict=True)
        ]
        table = Table(columns, cells, table.left, drop=LEFT_OUT)
    kept = dict.fromkeys(str(row["pinned"]) for row in rows if row.get("pinned"))
    lines = [f"pinned: {name} = {PINNED[name]}" for name in kept]
    if sweep.base_usd_per_hour is not None:
        lines.append(f"savings are against the base, {format_usd(sweep.base_usd_per_hour)}/hour")
    why = [f"{'; '.join(points)}: {reason}" for reason, points in reasons.items()]
    return [table, Text(why, "bullets", near=True), Text(lines, "bullets", near=True)]
