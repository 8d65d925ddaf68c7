"""What a question leaves open that its fleet hangs on: GPU types worth sizing, and how often a fixed number of users ask.

Users ask less often the slower the fleet is that is bought for them.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from planner.catalog.load import gpus
from planner.errors import InfeasibleError, InputError
from planner.question.compiled import CompiledQuestion
from planner.shared.remarks import Remark
from planner.size.fleet import Fleet
from planner.size.grid import engine_choices
from planner.size.problem import FleetProblem
from planner.units import HOUR_S

ANY = "any"
"""Stands for a GPU type that the search chooses."""

MOST_TYPES = 8
"""Types that ``--gpu any`` searches."""

FEW_TYPES = 3
"""Types that say what binds where none keeps the promises."""

ENDS = (512, 8192)
"""Token budgets at which engines are compared."""


def least_costs(question: CompiledQuestion) -> Iterator[tuple[float, bool]]:
    """Costs that no pool of an engine stays below, ascending [USD/hour], and when asked for the next whether that engine keeps the
    promises idle; none where no engine holds the model or has a price."""
    # the ends of what a search tries tell engines apart; all of it would take as long as a plan
    inputs = replace(question.inputs, token_budget=question.inputs.token_budget or ENDS, pools=1)
    with suppress(InputError):
        problem = FleetProblem(replace(question, inputs=inputs))
        for k in np.argsort(problem.option_bounds[:, 0, -1], kind="stable").tolist():
            bound = float(problem.option_bounds[k, 0, -1])
            if math.isfinite(bound):
                yield bound, False
                yield bound, (idle := problem.idle(0, 1, k)) is None or idle.excess <= 1.0


def least_cost(question: CompiledQuestion) -> float:
    """A cost that no pool of an engine which keeps the promises idle stays below [USD/hour].

    Infinite where no engine holds the model, has a price, or keeps the promises for one request alone.
    """
    return next((bound for bound, keeps in least_costs(question) if keeps), math.inf)


def cheapest_types(question: CompiledQuestion, most: int = MOST_TYPES) -> tuple[str, ...]:
    """The GPU types on which one pool could be cheapest: least bound of the cost first.

    Parameters
    ----------
    question
        What is asked; the GPU types it names do not matter.
    most
        How many.

    Returns
    -------
    tuple of str
        Canonical names. A type needs a price, room for the model, and to keep the promises for one request alone.
    """
    waiting = []
    for name in gpus():
        bounds = least_costs(replace(question, inputs=replace(question.inputs, gpu=(name,), profile=None)))
        waiting += [(bound, name, keeps, bounds) for bound, keeps in itertools.islice(bounds, 1)]
    found: list[str] = []
    heapq.heapify(waiting)
    # whether dearer types keep them is not asked once there are enough
    while waiting and len(found) < most:
        _, name, keeps, bounds = heapq.heappop(waiting)
        if keeps:
            found.append(name)
        elif (after := next(bounds, None)) is not None:
            heapq.heappush(waiting, (after[0], name, after[1], bounds))
    return tuple(found)


def _quickest_types(question: CompiledQuestion) -> tuple[str, ...]:
    """The types with a price that hold the model, by their peak."""
    fit = []
    for name, gpu in gpus().items():
        try:
            engine_choices(replace(question, inputs=replace(question.inputs, gpu=(name,), profile=None)))
        except InputError:
            continue
        fit.append((-max(gpu.flops_per_s.values()), name))
    return tuple(name for _, name in sorted(fit)[:FEW_TYPES])


def with_types(question: CompiledQuestion) -> CompiledQuestion:
    """The question with the types that :data:`ANY` stands for.

    Raises
    ------
    InputError
        The model fits on no type with a price.
    """
    inputs = question.inputs
    if ANY not in inputs.gpu:
        return question
    # where none keeps the promises, the quickest say what binds
    found = cheapest_types(question) or _quickest_types(question)
    if not found:
        raise InputError(
            f"gpu: no GPU type with a price holds {inputs.model}", "Name one (--gpu) to see what it lacks."
        )
    named = [name for name in inputs.gpu if name != ANY]
    return replace(question, inputs=replace(inputs, gpu=tuple(dict.fromkeys([*named, *found]))))


ROUNDS = 8
"""Fleets tried until the rate of the users is that of their fleet."""

NEAR = 0.005
"""Relative error of that rate [1]."""

SLOW_TOKEN_S = 0.1
"""Time of a token with which the rate of users is looked for upwards [s]: more replicas are asked more often, and may keep promises
less well that fewer keep, which are always awake; so the fleet that is asked least comes first."""


def rate_of_users(fleet: Fleet, replicas: int) -> float:
    """How often the users of the fleet's question ask so many of its replicas [1/s]."""
    model = fleet.pools[0].model
    return model.look(fleet.question.traffic.rate_per_s, replicas, (0.5,)).load * replicas * model.capacity_per_s


def with_users(question: CompiledQuestion, users: int | None, asked_per_s: float = 0.0) -> CompiledQuestion:
    """The same question of another number of users, or of as many, who ask so often [1/s]; 0 = to be found."""
    population = question.traffic.sending.population
    assert population is not None
    other = replace(population, users=users or population.users, asked_per_s=asked_per_s)
    sending = replace(question.traffic.sending, population=other)
    return replace(question, traffic=replace(question.traffic, sending=sending))


def at_rest(
    question: CompiledQuestion,
    solve: Callable[[CompiledQuestion], Fleet],
    about: Callable[[CompiledQuestion], Fleet] | None = None,
) -> CompiledQuestion:
    """The question at the rate at which its users ask the cheapest fleet that keeps the promises.

    Parameters
    ----------
    question
        With users (:class:`planner.workload.sending.Population`) and any rate.
    solve
        The cheapest fleet of a question at a rate.
    about
        The same, nearly and quicker: from what it finds on fleets are looked for.

    Raises
    ------
    InfeasibleError
        No fleet keeps the promises for these users.
    """
    traffic, population = question.traffic, question.traffic.sending.population
    assert population is not None
    slow = population.users / (population.think_s + SLOW_TOKEN_S * traffic.workload.mean_output)
    question = question.at(min(slow, traffic.rate_per_s))
    if about is not None:
        with suppress(InfeasibleError):
            question = _lowest(question, about)
    found = _lowest(question, solve)
    rate = found.traffic.rate_per_s
    told = Remark("users", {"population": population.told, "rate": rate, "per_hour": HOUR_S * rate / population.users})
    return replace(found, traffic=replace(found.traffic, changes=(told, *found.traffic.changes)))


def _lowest(question: CompiledQuestion, solve: Callable[[CompiledQuestion], Fleet]) -> CompiledQuestion:
    """The question at the lowest rate that is found at which its users ask the fleet of that rate."""
    found, fleet = settled(question, solve)
    while (fewer := fleet.pools[0].replicas - 1) > 0:
        # a smaller fleet is asked less, which its own cap on the load may bear
        rate_per_s = rate_of_users(fleet, fewer)
        smaller = with_users(found, None, rate_per_s).at(rate_per_s)
        try:
            other, instead = settled(smaller, solve)
        except InfeasibleError:
            break
        if instead.cost_usd_per_hour >= fleet.cost_usd_per_hour * (1.0 - 1e-9):
            break
        found, fleet = other, instead
    return found


def settled(question: CompiledQuestion, solve: Callable[[CompiledQuestion], Fleet]) -> tuple[CompiledQuestion, Fleet]:
    """The question and its fleet at the rate at which the users ask that fleet."""
    question = with_users(question, None, question.traffic.rate_per_s)
    for _ in range(ROUNDS):
        fleet = solve(question)
        before = question.traffic.rate_per_s
        rate = rate_of_users(fleet, fleet.pools[0].replicas)
        if abs(rate / before - 1.0) < NEAR:
            break
        question = with_users(question, None, rate).at(rate)
    return question, fleet
