"""GPU types worth sizing, of all the catalog knows a price of."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from planner.catalog.load import gpus
from planner.errors import InputError
from planner.fleet.grid import engine_choices
from planner.fleet.problem import FleetProblem
from planner.question.compiled import CompiledQuestion

ANY = "any"
"""Stands for a GPU type that the search chooses."""

MOST_TYPES = 8
"""Types that ``--gpu any`` searches."""

FEW_TYPES = 3
"""Types that say what binds where none keeps the promises."""

ENDS = (512, 8192)
"""Token budgets at which engines are compared."""


def least_cost(question: CompiledQuestion) -> float:
    """A cost that no pool of an engine which keeps the promises idle stays below [USD/hour].

    Infinite where no engine holds the model, has a price, or keeps the promises for one request alone.
    """
    # the ends of what a search tries tell engines apart; all of it would take as long as a plan
    engines = replace(question.engines, token_budget=question.engines.token_budget or ENDS)
    try:
        problem = FleetProblem(replace(question, engines=engines, search=replace(question.search, pools=1)))
    except InputError:
        return math.inf
    for k in np.argsort(problem.option_bounds[:, 0, -1], kind="stable").tolist():
        bound = float(problem.option_bounds[k, 0, -1])
        if math.isinf(bound):
            break
        if (idle := problem.idle(0, 1, k)) is None or idle.excess <= 1.0:
            return bound
    return math.inf


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
    found = []
    for name in gpus():
        cost = least_cost(replace(question, engines=replace(question.engines, gpu=(name,), profile=None)))
        if math.isfinite(cost):
            found.append((cost, name))
    return tuple(name for _, name in sorted(found)[:most])


def _quickest_types(question: CompiledQuestion) -> tuple[str, ...]:
    """The types with a price that hold the model, by their peak."""
    fit = []
    for name, gpu in gpus().items():
        try:
            engine_choices(replace(question, engines=replace(question.engines, gpu=(name,), profile=None)))
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
    engines = question.engines
    if ANY not in engines.gpu:
        return question
    # where none keeps the promises, the quickest say what binds
    found = cheapest_types(question) or _quickest_types(question)
    if not found:
        raise InputError(
            f"gpu: no GPU type with a price holds {engines.model}", "Name one (--gpu) to see what it lacks."
        )
    named = [name for name in engines.gpu if name != ANY]
    return replace(question, engines=replace(engines, gpu=tuple(dict.fromkeys([*named, *found]))))
