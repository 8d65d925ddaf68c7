"""``fleetopt what-if``: a plan for every combination of changed options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.cli import options as opt
from planner.cli.output import draw, format_of, progress_bar, refuse_named_twice, writer
from planner.errors import InputError

OF_ROWS = ("table", "markdown", "csv")
"""Formats that tell of a point no more than its row."""


OWN: opt.Table = {
    "": {
        "change --set": (
            list[str],
            "Option and values: rate=500,1000. Repeat. A value that is a list: gpu=h100,h100+l40s.",
        ),
        "scenario": (list[str], "Scenario of the file; repeat. `all` takes every one."),
        "keep": (False, "Keep the plan's pools, engines and boundaries but for what is changed; rows say so."),
        "zipped --zip": (False, "One point per position instead of all combinations."),
        "jobs": (0, "Threads that plan the points; 0 = one for each core."),
        "resume": (Path, "File of finished points: an interrupted sweep goes on where it stopped. Made when missing."),
        "stream": (Path, "CSV or Parquet file that gets every row as its point is done, in that order."),
    }
}


@opt.has(OWN)
def what_if(
    base: opt.Base,
    change: list[str] | None,
    scenario: list[str] | None,
    jobs: int,
    stream: Path | None,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
    plot: opt.Plot = None,
    **given: Any,
) -> None:
    """Plan again with options changed, searching anew; an infeasible point is a row with its reason, savings are against the base.

    Example: fleetopt what-if plan.yaml --set rate=500,1000,2000 --set gpu=h100,h200 --resume points.jsonl --format csv
    """
    from planner import api
    from planner.question.files import load_question
    from planner.shared.cores import cores
    from planner.studies.what_if import parse_settings

    write = writer(output_format, output)
    settings: dict[str, Any] = {**parse_settings(change or [])}
    if not settings and not scenario:
        raise InputError("nothing to change", "Give --set OPTION=VALUE[,VALUE...] or --scenario NAME.")
    names = list(load_question(base).scenarios) if scenario == ["all"] else scenario
    if jobs < 0:
        raise InputError(f"--jobs: must be 0 (one for each core) or more, got {jobs}")
    if stream is not None:
        refuse_named_twice(stream)
    with progress_bar("planning") as progress:
        result = api.what_if(
            base,
            scenarios=names,
            progress=progress,
            jobs=jobs or cores(),
            stream=stream,
            plans=(output_format or format_of(output)) not in OF_ROWS,
            **given,
            **settings,
        )
    write(result)
    draw(result, plot)
