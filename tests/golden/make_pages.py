"""Approved pages of every kind of result: ``python -m tests.golden.make_pages`` writes tests/golden/pages anew; read what changes.

A file per case of tests/report/report_cases.py and case_studies.py: the page in a terminal of any width and of 80 columns, in
Markdown, as rows, and every chart with its numbers as they are written. Numbers of rows have six digits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planner.ask.overview import Overview
from planner.errors import InputError
from planner.plans import Plan
from planner.report.blocks import to_markdown, to_terminal
from planner.report.output import blocks_of, rows_to_csv
from planner.report.page import as_html, as_markdown
from planner.report.pictures import charts_of
from planner.report.svg import Chart, Lines
from planner.report.text.why import Explanation, why
from tests.golden.rounding import rounded
from tests.report import case_studies, report_cases

PAGES = Path(__file__).with_name("pages")

MADE = ("choices", "advice", "catalog", "calibrations")
STUDIED = [
    "costs",
    "evaluations",
    "capacities",
    "schedules",
    "growths",
    "differences",
    "sweeps",
    "services",
    "measured",
    "workloads",
    "plans",
    "overviews",
]

KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    name: getattr(module, name) for module, names in ((report_cases, MADE), (case_studies, STUDIED)) for name in names
}
"""Maker of cases by its name."""


def drawn(chart: Chart) -> str:
    """A chart in words: everything in its record, numbers as its labels have them."""
    if not isinstance(chart, Lines):
        rows = [f"  {name}: {low} .. {high}" for name, low, high in rounded(chart.rows)]
        return "\n".join(
            [
                f"bars {chart.title!r} from {rounded(chart.middle)} ({chart.text(0.5)}, {chart.text(chart.middle)})",
                *rows,
            ]
        )
    flags = f"log {chart.log_x} {chart.log_y} whole {chart.whole}"
    lines = [f"lines {chart.title!r}: {chart.x_name!r} {chart.y_name!r} {flags} marks {rounded(list(chart.marks))}"]
    for line in chart.drawn:
        points = list(line.points)
        shown = points if len(points) <= 12 else points[:: len(points) // 12]
        told = " ".join(f"({chart.x_text(x)}={x:.6g}, {chart.y_text(y)}={y:.6g})" for x, y in shown)
        lines.append(f"  {line.name!r} {line.style} steps {line.steps} dots {line.dots}, {len(points)} points: {told}")
    return "\n".join(lines)


def rendered(result: Any) -> str:
    """A result in every form."""
    parts: dict[str, str] = {}
    if isinstance(result, Overview):
        parts = {"page": as_markdown(result), "html": as_html(result).partition("</style>")[2]}
    elif hasattr(result, "to_dict") and type(result).__name__ != "CalibrationSet":
        found = blocks_of(result)
        parts = {"table": to_terminal(found), "80 columns": to_terminal(found, 80), "markdown": to_markdown(found)}
        if isinstance(result, Plan):
            parts["why"] = (
                to_terminal(why(result), 120) + "\n\n" + to_terminal(blocks_of(Explanation.of(result.to_dict())))
            )
        if type(result).__module__.startswith("planner.report"):
            parts["json"] = repr(rounded(result.to_dict()))
    elif type(result).__name__ == "CalibrationSet":
        parts = {"table": to_terminal(blocks_of(result)), "markdown": to_markdown(blocks_of(result))}
    if hasattr(result, "to_rows") and type(result).__name__ != "CalibrationSet":
        parts["csv"] = rows_to_csv(rounded(result.to_rows()))
    try:
        parts["charts"] = "\n".join(map(drawn, charts_of(result)))
    except InputError as error:
        parts["charts"] = str(error)
    return "".join(f"=== {name}\n{text.strip()}\n\n" for name, text in parts.items())


def main() -> None:
    PAGES.mkdir(exist_ok=True)
    for old in PAGES.glob("*.txt"):
        old.unlink()
    for make in KINDS.values():
        for name, result in make().items():
            (PAGES / f"{name}.txt").write_text(rendered(result), encoding="utf-8")


if __name__ == "__main__":
    os.environ["FLEETOPT_PRICES"] = os.path.join(os.devnull, "none")  # a list of one's own decides nothing
    main()
