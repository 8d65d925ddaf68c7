"""Two plans: what of the answer changed, and which difference of their questions changed it, each applied alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from planner.errors import InfeasibleError, InputError
from planner.plans import plan_document
from planner.question.files import Question, load_question
from planner.shared.record import Record
from planner.size.assemble import make_plan

ANSWERED = ("gpus", "replicas", "cost_usd_per_hour", "arrival_rate_per_s")
"""What of an answer is compared."""


@dataclass(frozen=True, slots=True)
class Changed(Record):
    """One option that differs.

    Parameters
    ----------
    option
        Its name.
    old, new
        Its values, JSON-ready.
    gpus, cost_usd_per_hour
        The old question's answer with this alone as in the new one; ``None`` where there is none.
    reason
        Why there is none.
    """

    option: str
    old: Any
    new: Any
    gpus: int | None = None
    cost_usd_per_hour: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Difference(Record):
    """How two plans differ.

    Parameters
    ----------
    old, new
        The answers: GPUs, replicas, cost [USD/hour] and rate [1/s].
    versions
        Versions of the tool that gave them.
    changed
        Options that differ, each applied alone to the old question.
    again
        The old question answered by this version, as `old`.
    """

    old: Mapping[str, float]
    new: Mapping[str, float]
    versions: tuple[str, str]
    changed: tuple[Changed, ...]
    again: Mapping[str, float]

    document: ClassVar[str] = "fleetopt-difference"

    def to_rows(self) -> list[dict[str, object]]:
        """One row per option that differs."""
        return [c.to_dict() for c in self.changed]


def difference_of(old: str | Path, new: str | Path) -> Difference:
    """How the plan of one file differs from that of another, and why.

    Raises
    ------
    InputError
        A file that holds no plan.
    """
    files = [plan_document(path) for path in (old, new)]
    before, after = load_question(old), load_question(new)
    values = [q.inputs().to_dict() for q in (before, after)]
    names = [name for name in values[0] if values[0][name] != values[1].get(name)]
    changed = tuple(_alone(before, after, name, values[0][name], values[1][name]) for name in names)
    again = make_plan(before.inputs(), before.traffic(before.inputs().cdf), words="brief")
    told = {name: float(getattr(again, name)) for name in ANSWERED}
    return Difference(
        _answer(files[0]),
        _answer(files[1]),
        (str(files[0].get("version", "")), str(files[1].get("version", ""))),
        changed,
        told,
    )


def _answer(data: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(data[name]) for name in ANSWERED}


def _alone(before: Question, after: Question, name: str, old: Any, new: Any) -> Changed:
    """The old question's answer with one option as in the new one."""
    try:
        inputs = before.inputs(changes={name: new})
        traffic = (after if name == "cdf" else before).traffic(inputs.cdf)
        plan = make_plan(inputs, traffic, words="none")
    except (InputError, InfeasibleError) as error:
        return Changed(name, old, new, reason=error.message)
    return Changed(name, old, new, plan.gpus, plan.cost_usd_per_hour)
