"""``fleetopt explain``: why a plan is what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli import options as opt
from planner.cli.plan import Config, Scenario


@opt.asks(hidden=True)
def explain(
    plan: Annotated[
        Path | None,
        typer.Argument(metavar="PLAN", help="Plan file. Default: plan first, with the options of `fleetopt plan`."),
    ] = None,
    config: Config = None,
    scenario: Scenario = None,
    change: opt.Set = None,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
    **given: Any,
) -> None:
    """Why a plan is what it is: pools, what binds, assumptions with their sources, errors, the search, engine settings.

    Every option of `fleetopt plan` holds here too.

    Example: fleetopt explain plan.yaml
    """
    from planner.cli.output import writer
    from planner.report.text.why import Explanation

    write = writer(output_format, output)
    if plan is not None:
        return write(Explanation.of(saved_plan(plan)))
    found = planned(config, scenario, opt.settings(given, change), False)
    write(Explanation.of(found.to_dict(), found))


def planned(config: Path | None, scenario: str | None, given: dict[str, Any], choices: bool) -> Any:
    """The plan of the options given."""
    from planner import api
    from planner.cli.output import progress_bar

    with progress_bar("planning") as progress:
        return api.plan(given.pop("cdf"), config=config, scenario=scenario, choices=choices, progress=progress, **given)


def saved_plan(path: Path) -> dict[str, Any]:
    """What a plan file holds.

    Raises
    ------
    InputError
        It is none.
    """
    from planner.errors import InputError
    from planner.shared.documents import load_document

    data = load_document(path, f"A plan: fleetopt plan --cdf azure --slo 0.5 -o {path.name}")
    if not isinstance(data, dict) or data.get("kind") != "fleetopt-plan":
        raise InputError(f"{path}: holds no plan", "Make one: fleetopt plan --cdf azure --slo 0.5 -o plan.yaml")
    return data
