"""What verbs share: how what they are given is taken, and the fleets that stand in plans."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.plans import Plan, plan_document
from planner.question.compiled import compile_question
from planner.question.files import Question, load_question, question_of
from planner.question.options import OPTIONS, canonical
from planner.size.fleet import Fleet
from planner.size.shapes import standing_fleet
from planner.units import parse_duration
from planner.workload.importing import load_workload

MORE = 0.2
"""Share by which traffic, and what else is not sure, is taken otherwise where it is asked what that costs [1]."""


def document_of(fleet: Plan | str | Path) -> Mapping[str, Any]:
    """A plan as its file has it; :func:`standing_of` checks the file."""
    return fleet.to_dict() if isinstance(fleet, Plan) else plan_document(fleet)


def saved_of(fleet: Plan | str | Path) -> Question:
    """The question of a plan, or of a file that holds one or a configuration."""
    return question_of(fleet) if isinstance(fleet, Plan) else load_question(fleet)


def standing_of(fleet: Plan | str | Path) -> Question:
    """The fleet of a plan, or of a file that holds one."""
    saved = saved_of(fleet)
    if not saved.pools:
        raise InputError(f"{fleet}: holds no fleet", "Write one first: fleetopt plan ... --format yaml -o plan.yaml")
    scheduler = saved.options.get("scheduler", "engine")
    if scheduler not in ("engine", "sarathi"):
        raise InputError(
            f"the fleet of this plan runs the scheduler {scheduler}: closed forms know the engine's own",
            f"Plan again for the other traffic: fleetopt plan --set scheduler={scheduler} ...",
        )
    return saved


def standing(fleet: Plan | str | Path, workload: Any = None, rate: float | None = None) -> Fleet:
    """The fleet of a plan or its file, under its own traffic and rate [1/s] or others."""
    saved = standing_of(fleet)
    inputs = saved.inputs()
    loaded = saved.traffic(inputs.cdf) if workload is None else load_workload(workload)
    return standing_fleet(compile_question(inputs, loaded, rate), saved.pools)


def within(given: float | str, option: str, low: float, high: float, told: str) -> float:
    """A time that has limits [s]."""
    seconds = parse_duration(given, option)
    if not low <= seconds <= high:
        raise InputError(f"{option}: must lie between {told}, got {seconds:g} s")
    return seconds


def refuse_bought(changes: Collection[str]) -> None:
    """Options of a fleet that stands: those that would make it another one are refused."""
    bought = [k for k in changes if canonical(k) in OPTIONS and OPTIONS[canonical(k)].bought]
    if bought:
        raise InputError(
            f"{', '.join(bought)}: fixed by the plan, whose fleet stands",
            "Plan again with it: fleetopt what-if, or plan --config.",
        )
