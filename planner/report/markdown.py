"""Markdown, for a design document."""

from __future__ import annotations

from typing import Any

from planner.plans import Plan
from planner.report import plan_text as text
from planner.report import schedule_text
from planner.report.advice_text import advice_text
from planner.report.plan_text import cell
from planner.studies.schedule import Schedule

__all__ = ["render", "rows_to_markdown"]


def rows_to_markdown(columns: list[str], rows: list[list[str]]) -> str:
    """A pipe table.

    >>> print(rows_to_markdown(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines.extend("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    return "\n".join(lines)


def render(result: Any) -> str:
    """A plan or a schedule in full; any other result by its rows."""
    if isinstance(result, Plan):
        return _plan(result)
    if isinstance(result, Schedule):
        return _schedule(result)
    if (advice := advice_text(result, markdown=True)) is not None:
        return advice
    rows = result.to_rows()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return rows_to_markdown(columns, [[cell(row.get(c)) for c in columns] for row in rows])


def _schedule(schedule: Schedule) -> str:
    question, answer, cost = schedule_text.headline(schedule)
    compared = rows_to_markdown([*schedule_text.COLUMNS], schedule_text.summary(schedule))
    lines = [f"## {question}", "", f"**{answer}**", "", cost, "", compared, ""]
    return "\n".join([*lines, rows_to_markdown(*schedule_text.by_hour(schedule))])


def _plan(plan: Plan) -> str:
    """Headline, pools, reasons, assumptions, warnings."""
    columns, rows = text.pool_table(plan)
    question, answer, cost = text.headline(plan)
    lines = [
        f"## {question}",
        "",
        f"**{answer}**",
        "",
        cost,
        "",
        rows_to_markdown(columns, rows),
        "",
        text.savings(plan),
    ]
    for title, items in (
        ("Why", plan.explanation),
        ("Assumed", plan.assumptions),
        ("Warnings", plan.warnings),
        ("Notes", plan.notes),
    ):
        if items:
            lines += ["", f"### {title}", "", *(f"- {item}" for item in items)]
    lines += ["", f"fleetopt {plan.version}, method `{plan.method}`"]
    return "\n".join(lines)
