"""``fleetopt explain`` and ``options``: why a plan is what it is, and what every other choice would cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import planner as fo
from planner.cli import options as opt
from planner.cli.output import progress_bar
from planner.errors import InputError, did_you_mean

ORDERS = ("cost", "kind", "name")

PLAN = "Plan file. Default: plan first, with the options of `fleetopt plan`."


@opt.verb(about=PLAN)
def explain(plan: Path | None, **given: Any) -> Any:
    """Why a plan is what it is: pools, what binds, assumptions with their sources, errors, the search, engine settings.

    Every option of `fleetopt plan` holds here too.

    Example: fleetopt explain plan.yaml
    """
    from planner.plans import plan_document
    from planner.report.text.why import Explanation

    if plan is not None:
        return Explanation.of(plan_document(plan))
    found = _planned(given, False)
    return Explanation.of(found.to_dict(), found)


ROWS: opt.Table = {
    "": {
        "sort": "Order of the rows: cost, kind or name. Default: as sized.",
        "why": "Rows by a part of their name or flags.",
    },
}


@opt.verb(table=ROWS, about=PLAN)
def options(plan: Path | None, sort: str | None, why: str | None, **given: Any) -> Any:
    """What every other choice would cost beside a plan: routing, precision, GPU, engine, traffic, promises.

    A saved plan carries its rows.

    Every option of `fleetopt plan` holds here too.

    Example: fleetopt options plan.yaml --sort cost
    """
    from planner.choices import Choices
    from planner.plans import plan_document

    if sort is not None and sort not in ORDERS:
        raise InputError(f"--sort: {sort!r} is none of {', '.join(ORDERS)}{did_you_mean(sort, ORDERS)}")
    found = _planned(given, True).choices if plan is None else Choices.of_file(plan_document(plan), str(plan))
    return found.ordered(sort) if why is None else found.only(why)


def _planned(given: dict[str, Any], choices: bool) -> Any:
    """The plan of the options given."""
    with progress_bar("planning") as progress:
        return fo.plan(choices=choices, progress=progress, **given)
