"""``fleetopt evaluate``: a fleet that stands, under another load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.cli import options as opt
from planner.cli.output import progress_bar, say
from planner.errors import InputError
from planner.units import parse_number

OWN: opt.Table = {
    "": {
        "rate": "Rates to try, requests/s: 500 or 500,1000,2000. Default: that of --cdf, else the plan's.",
        "workload --cdf --workload -w": "Other traffic than the plan's.",
        "change --set": (list[str], "Any option of plan, changed: cached_share=0.6. Repeat."),
    }
}


@opt.verb(table=OWN, plot=True)
def evaluate(plan: opt.PlanFile, rate: str | None, workload: str | None, change: list[str] | None) -> Iterator[Any]:
    """Latencies of a fixed fleet at other rates or with other options, and which promises still hold."""
    from planner import api
    from planner.studies.what_if import parse_settings

    settings = parse_settings(change or [])
    if several := next((name for name, values in settings.items() if len(values) > 1), None):
        raise InputError(f"--set {several}: one value here; `fleetopt what-if` plans for several")
    changes: dict[str, Any] = {name: values[0] for name, values in settings.items()}
    rates = [parse_number(v, "--rate") for v in rate.split(",")] if rate else None
    with progress_bar("evaluating"):
        found = api.evaluate(plan, rates, workload=workload, **changes)
    yield found
    if not found.holds:
        say(["warning: some promises do not hold at the rates above (column `broken`)"])
