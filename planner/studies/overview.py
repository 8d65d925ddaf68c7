"""A plan with what surrounds it: its fleet at other rates, what each uncertainty would cost, its day."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import InfeasibleError, InputError
from planner.plans import Plan
from planner.promise import GOODPUT
from planner.studies.costs import Costs
from planner.studies.evaluation import Evaluation
from planner.studies.schedule import Schedule

__all__ = ["Overview", "Sensitivity", "overview_of"]

RATES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0)
"""Rates at which the fleet is shown, relative to the plan's [1]."""

DOUBTS: tuple[tuple[str, Mapping[str, float], Mapping[str, float]], ...] = (
    ("traffic 20% less, 20% more", {"rate": 0.8}, {"rate": 1.2}),
    ("outputs 20% shorter, 20% longer", {"osl_scale": 0.8}, {"osl_scale": 1.2}),
    ("limits 30% looser, 30% tighter", {"limits": 1.3}, {"limits": 0.7}),
)
"""What might be otherwise: its name, and factors on both sides, the cheaper first."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What one doubt is worth.

    Parameters
    ----------
    name
        What might be otherwise, both ways.
    low_usd_per_hour, high_usd_per_hour
        Cost of the fleet on either side [USD/hour]; ``None`` where no fleet keeps the promises there.
    """

    name: str
    low_usd_per_hour: float | None
    high_usd_per_hour: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """What a report shows.

    Parameters
    ----------
    plan
        The plan, with its choices where they were asked for.
    rates
        Its fleet at other rates.
    doubts
        The cost with one thing otherwise, the largest difference first.
    schedule
        Its day or week; ``None`` where the traffic has none.
    costs
        How to pay for it, tokens, energy.
    command
        What repeats it.
    """

    plan: Plan
    rates: Evaluation
    doubts: tuple[Sensitivity, ...]
    schedule: Schedule | None
    costs: Costs
    command: str


def overview_of(
    plan: Plan,
    evaluate: Callable[[Sequence[float]], Evaluation],
    replan: Callable[[Mapping[str, Any]], Plan],
    schedule: Callable[[], Schedule],
    costs: Callable[[], Costs],
    command: str,
) -> Overview:
    """Gather an overview.

    Parameters
    ----------
    plan
        The plan.
    evaluate
        Its fleet at rates [1/s].
    replan
        The plan with options changed; InfeasibleError where there is none.
    schedule
        Its day; InputError where the traffic has none.
    costs
        What it costs.
    command
        What repeats it.
    """
    base = plan.arrival_rate_per_s
    doubts = [Sensitivity(name, _cost(plan, replan, low), _cost(plan, replan, high)) for name, low, high in DOUBTS]
    doubts.append(Sensitivity("no bursts (Poisson)", _cost(plan, replan, {"burst": "poisson"}), plan.cost_usd_per_hour))

    def reach(doubt: Sensitivity) -> float:
        known = [c for c in (doubt.low_usd_per_hour, doubt.high_usd_per_hour) if c is not None]
        return max((abs(c - plan.cost_usd_per_hour) for c in known), default=float("inf"))

    try:
        day: Schedule | None = schedule()
    except (InputError, InfeasibleError):
        # traffic without times, or shorter than a day, has none to show
        day = None
    rates = evaluate([factor * base for factor in RATES])
    return Overview(plan, rates, tuple(sorted(doubts, key=reach, reverse=True)), day, costs(), command)


def _cost(plan: Plan, replan: Callable[[Mapping[str, Any]], Plan], change: Mapping[str, Any]) -> float | None:
    """Cost with one thing otherwise [USD/hour]."""
    changes = dict(change)
    if "rate" in changes:
        changes["rate"] = changes["rate"] * plan.arrival_rate_per_s
    if "osl_scale" in changes:
        scale = plan.inputs.get("osl_scale", 1.0)
        changes["osl_scale"] = changes["osl_scale"] * (scale if isinstance(scale, (int, float)) else 1.0)
    if (factor := changes.pop("limits", None)) is not None:
        for promise in plan.slo.promises:
            if promise.kind == GOODPUT:
                changes.setdefault(GOODPUT, []).append(promise.scaled(factor).spelled)
            elif promise.scope == "pool" and promise.quantile == 0.99:
                changes[promise.metric.removesuffix("_s")] = promise.limit_s * factor
        if not changes:
            return None
    try:
        return replan(changes).cost_usd_per_hour
    except InfeasibleError:
        return None
