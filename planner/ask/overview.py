"""A plan with what surrounds it: its fleet at other rates, what each uncertainty would cost, its day."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from planner.ask.asked import MORE, saved_of
from planner.ask.choices import answers, choices_after, cost_with
from planner.ask.compression import GAMMAS
from planner.ask.costs import Costs, cost
from planner.ask.evaluation import Evaluation, evaluation_of
from planner.ask.schedule import Schedule, schedule
from planner.ask.what_if import what_if
from planner.errors import InfeasibleError, InputError
from planner.plans import Plan
from planner.question.compiled import compile_question, rate_of_hours
from planner.question.files import engines_of, question_of, recorded_plan
from planner.question.options import PlanInputs
from planner.shared.arguments import told_types
from planner.shared.kept import keeping
from planner.size.shapes import standing_fleet

RATES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0)
"""Rates at which the fleet is shown, relative to the plan's [1]."""

NEARLY_FULL = 0.85
"""Between this share of the capacity and all of it a fleet is not looked at: such waits take long to follow [1]."""

CUTS = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
"""Boundaries that are priced, relative to the plan's [1]."""

Changes = Mapping[str, Any]

Doubt = tuple[str, Changes | None, Changes | None]
"""Its name, and options that take it one way and the other, the cheaper first; ``None`` = the plan as it is."""


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
class Cut:
    """What a fleet costs that cuts its requests elsewhere.

    Parameters
    ----------
    boundary_tokens, gamma
        Where, and up to how much longer prompts are compressed to fit below; 1 = none.
    cost_usd_per_hour
        The cheapest fleet of at most two pools with them [USD/hour]; ``None`` where there is none.
    """

    boundary_tokens: float
    gamma: float
    cost_usd_per_hour: float | None


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
    cuts
        The cost by boundary; empty where the plan has no two pools cut by length.
    """

    plan: Plan
    rates: Evaluation
    doubts: tuple[Sensitivity, ...]
    schedule: Schedule | None
    costs: Costs
    command: str
    cuts: tuple[Cut, ...] = ()


@told_types
@keeping()
def overview(
    fleet: Plan | str | Path, *, choices: bool = True, progress: Callable[[int, int], None] | None = None
) -> Overview:
    """A plan with what surrounds it: other choices, the fleet at other rates, what each doubt is worth, its day.

    Parameters
    ----------
    fleet
        A plan, or a plan or configuration file.
    choices
        Whether what other choices would cost is shown.
    progress
        Told (done, all) after every choice.

    Returns
    -------
    Overview
        What ``fleetopt report`` makes a page of.
    """
    saved = saved_of(fleet)
    inputs = saved.inputs()
    traffic = saved.traffic(inputs.cdf)
    kept = fleet if isinstance(fleet, Plan) else recorded_plan(fleet, inputs.promises)
    found = kept or _planned(fleet, inputs.method)
    standing = standing_fleet(compile_question(inputs, traffic), question_of(found).pools)
    rates = rates_of(found, standing.capacity_per_s)
    arrivals = standing.question.traffic.arrivals
    bursts = arrivals is not None and bool(arrivals.dispersion)
    doubts, cuts = doubts_of(found, inputs, bursts), cuts_of(found, inputs)
    otherwise = [changes for _, *ways in doubts for changes in ways]
    otherwise += [{"boundaries": [b], "gammas": [g]} for b, g in cuts]
    # the same engines, and boundaries where these are not the question
    alike, own = replace(inputs, tp=None), engines_of(question_of(found).pools)
    tasks: list[Callable[[], Any]] = [
        partial(evaluation_of, standing, rates),
        partial(cost, found),
        partial(_day_of, found, rate_of_hours(inputs, traffic)),
        *(partial(cost_with, {**own, **changes}, alike, traffic) for changes in otherwise if changes is not None),
    ]
    if choices and found.choices is None:
        known, table = choices_after(tasks, found, inputs, traffic, progress)
        found = replace(found, choices=table)
    else:
        known = answers(tasks, progress)
    other_rates, paid, day, *others = known
    costs = iter(others)
    priced = [None if changes is None else next(costs) for changes in otherwise]
    return Overview(
        found,
        other_rates,
        sensitivities(found, doubts, priced[: 2 * len(doubts)]),
        day,
        paid,
        f"fleetopt report {fleet if not isinstance(fleet, Plan) else 'plan.yaml'}",
        tuple(Cut(b, g, price) for (b, g), price in zip(cuts, priced[2 * len(doubts) :], strict=True)),
    )


def _day_of(fleet: Plan, rate_is: Literal["mean", "peak"]) -> Schedule | None:
    """Its day; ``None`` where the traffic has no times, or fewer than a day's."""
    try:
        return schedule(fleet, rate_is=rate_is)
    except (InputError, InfeasibleError):
        return None


def _planned(fleet: Plan | str | Path, method: str) -> Plan:
    """The plan of a file."""
    point = what_if(fleet, method=method).points[0]
    if point.plan is None:
        raise InfeasibleError(point.error or "no fleet")
    return point.plan


def rates_of(plan: Plan, capacity_per_s: float) -> list[float]:
    """Rates at which the fleet is shown [1/s], ascending; those just below its capacity give way to a lower one."""
    rate, full = plan.arrival_rate_per_s, NEARLY_FULL * capacity_per_s
    shown = [rate * f for f in RATES]
    return sorted({full if full < r < capacity_per_s and r != rate else r for r in shown})


def doubts_of(plan: Plan, inputs: PlanInputs, bursts: bool) -> list[Doubt]:
    """What might be otherwise, as changes of the question; `bursts` says whether the traffic has any."""
    rate = plan.arrival_rate_per_s / (1.0 + inputs.headroom)
    # the busiest hour's, where the rate so far is a mean
    peak = {} if inputs.rate_is is None else {"rate_is": "peak"}
    less, more = 1.0 - MORE, 1.0 + MORE
    scale, share = inputs.osl_scale, inputs.cached_share
    found: list[Doubt] = [
        ("traffic 20% less, 20% more", {"rate": less * rate, **peak}, {"rate": more * rate, **peak}),
        ("outputs 20% shorter, 20% longer", {"osl_scale": less * scale}, {"osl_scale": more * scale}),
        ("limits 20% looser, 20% tighter", _limits(inputs, more), _limits(inputs, less)),
    ]
    if bursts:
        found.append(("no bursts (Poisson)", {"burst": "poisson"}, None))
    if isinstance(share, float) and share > 0.0:
        shares = {"cached_share": min(1.5 * share, 0.95)}, {"cached_share": 0.5 * share}
        found.append(("cached share half as much again, half", *shares))
    return found


def _limits(inputs: PlanInputs, factor: float) -> dict[str, Any]:
    """Every promise with another limit."""
    found: dict[str, Any] = {}
    for promise in inputs.promises:
        found.setdefault(promise.kind.removesuffix("_s"), []).append(promise.scaled(factor).spelled)
        if promise.scope == "fleet":
            found["scope"] = "fleet"
    return found


def cuts_of(plan: Plan, inputs: PlanInputs) -> list[tuple[float, float]]:
    """Boundaries and gammas about those of a plan of two pools that are cut by length."""
    if len(plan.pools) != 2 or not plan.pools[0].high_tokens < plan.pools[1].high_tokens:
        return []
    gammas = sorted({*GAMMAS, plan.pools[0].gamma}) if inputs.compress else [1.0]
    at = plan.pools[0].high_tokens
    places = [at if factor == 1.0 else float(round(at * factor)) for factor in CUTS]
    return [(b, g) for b in places for g in gammas if b < plan.pools[1].high_tokens]


def sensitivities(plan: Plan, doubts: list[Doubt], costs: list[float | None]) -> tuple[Sensitivity, ...]:
    """What each doubt is worth, the largest difference first; `costs` of both ways of every doubt [USD/hour]."""
    own, found = plan.cost_usd_per_hour, []
    for (name, *ways), *both in zip(doubts, costs[::2], costs[1::2], strict=True):
        found.append(Sensitivity(name, *(own if way is None else cost for way, cost in zip(ways, both, strict=True))))
    if all(p.replicas_low > 0 for p in plan.pools):
        low, high = ([getattr(p, f"replicas_{end}") for p in plan.pools] for end in ("low", "high"))
        found.append(Sensitivity("iteration times, their band", _with_replicas(plan, low), _with_replicas(plan, high)))

    def reach(doubt: Sensitivity) -> float:
        known = [c for c in (doubt.low_usd_per_hour, doubt.high_usd_per_hour) if c is not None]
        return max((abs(c - own) for c in known), default=float("inf"))

    return tuple(sorted(found, key=reach, reverse=True))


def _with_replicas(plan: Plan, counts: list[int | None]) -> float | None:
    """Cost with other numbers of the same replicas [USD/hour]."""
    pairs = [(pool, count) for pool, count in zip(plan.pools, counts, strict=True) if count is not None]
    if len(pairs) < len(counts):
        return None
    return sum(pool.cost_usd_per_hour * count / pool.replicas for pool, count in pairs)
