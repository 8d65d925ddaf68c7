"""``fleetopt evaluate``: a fleet that stands, under another load."""

from __future__ import annotations

from typing import Annotated, Any

from planner.cli import options as opt


def evaluate(
    plan: opt.PlanFile,
    rate: Annotated[
        str | None, opt.told("Rates to try, requests/s: 500 or 500,1000,2000. Default: that of --cdf, else the plan's.")
    ] = None,
    workload: Annotated[str | None, opt.told("Other traffic than the plan's.", "--cdf", "--workload", "-w")] = None,
    change: Annotated[
        list[str] | None, opt.told("Any option of plan, changed: cached_share=0.6. Repeat.", "--set")
    ] = None,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
    plot: opt.Plot = None,
) -> None:
    """Latencies of a fixed fleet at other rates or with other options, and which promises still hold."""
    from planner import api
    from planner.cli.output import draw, progress_bar, say, writer
    from planner.errors import InputError
    from planner.studies.what_if import parse_settings
    from planner.units import parse_number

    write = writer(output_format, output)
    changes: dict[str, Any] = {}
    for name, values in parse_settings(change or []).items():
        if len(values) > 1:
            raise InputError(f"--set {name}: one value here; `fleetopt what-if` plans for several")
        changes[name] = values[0]
    rates = [parse_number(v, "--rate") for v in rate.split(",")] if rate else None
    with progress_bar("evaluating"):
        result = api.evaluate(plan, rates, workload=workload, **changes)
    write(result)
    draw(result, plot)
    if not result.holds:
        say(["warning: some promises do not hold at the rates above (column `broken`)"])
