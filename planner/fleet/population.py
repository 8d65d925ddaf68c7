"""How often a fixed number of users ask the fleet that is bought for them: less often, the slower it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.errors import InfeasibleError
from planner.fleet.fleet import Fleet
from planner.question.compiled import CompiledQuestion
from planner.shared.remarks import Remark

ROUNDS = 8
"""Fleets tried until the rate of the users is that of their fleet."""

NEAR = 0.005
"""Relative error of that rate [1]."""


def rate_of_users(fleet: Fleet, replicas: int) -> float:
    """How often the users of the fleet's question ask so many of its replicas [1/s]."""
    model = fleet.pools[0].model
    return model.look(fleet.question.traffic.rate_per_s, replicas, (0.5,)).load * replicas * model.capacity_per_s


def _at(question: CompiledQuestion, rate_per_s: float) -> CompiledQuestion:
    """The question whose users ask at a rate [1/s]."""
    traffic = question.traffic
    assert traffic.sending.population is not None
    population = replace(traffic.sending.population, asked_per_s=rate_per_s)
    return replace(
        question,
        traffic=replace(traffic, rate_per_s=rate_per_s, sending=replace(traffic.sending, population=population)),
    )


def with_users(question: CompiledQuestion, users: int) -> CompiledQuestion:
    """The same question of another number of users, whose rate is to be found."""
    assert question.traffic.sending.population is not None
    population = replace(question.traffic.sending.population, users=users, asked_per_s=0.0)
    sending = replace(question.traffic.sending, population=population)
    return replace(question, traffic=replace(question.traffic, sending=sending))


def at_rest(question: CompiledQuestion, solve: Callable[[CompiledQuestion], Fleet]) -> CompiledQuestion:
    """The question at the rate at which its users ask the cheapest fleet that keeps the promises.

    Parameters
    ----------
    question
        With users (:class:`planner.workload.sending.Population`) and any rate.
    solve
        The cheapest fleet of a question at a rate.

    Raises
    ------
    InfeasibleError
        No fleet keeps the promises for these users.
    """
    found, fleet = settled(question, solve)
    while (fewer := fleet.pools[0].size.replicas - 1) > 0:
        # a smaller fleet is asked less, which its own cap on the load may bear
        smaller = _at(found, rate_of_users(fleet, fewer))
        try:
            other, instead = settled(smaller, solve)
        except InfeasibleError:
            break
        if instead.cost_usd_per_hour >= fleet.cost_usd_per_hour * (1.0 - 1e-9):
            break
        found, fleet = other, instead
    population, rate = found.traffic.sending.population, found.traffic.rate_per_s
    assert population is not None
    told = Remark("users", {"population": population.told, "rate": rate, "per_hour": 3600.0 * rate / population.users})
    return replace(found, traffic=replace(found.traffic, changes=(told, *found.traffic.changes)))


def settled(question: CompiledQuestion, solve: Callable[[CompiledQuestion], Fleet]) -> tuple[CompiledQuestion, Fleet]:
    """The question and its fleet at the rate at which the users ask that fleet."""
    question = _at(question, question.traffic.rate_per_s)
    for _ in range(ROUNDS):
        fleet = solve(question)
        before = question.traffic.rate_per_s
        rate = rate_of_users(fleet, fleet.pools[0].size.replicas)
        if abs(rate / before - 1.0) < NEAR:
            break
        question = _at(question, rate)
    return question, fleet
