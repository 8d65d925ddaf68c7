"""GPU types worth sizing, of all the catalog knows a price of."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from planner.catalog.load import gpus
from planner.errors import InputError
from planner.fleet.problem import FleetProblem, engine_choices
from planner.question.compiled import CompiledQuestion

__all__ = ["ANY", "MOST_TYPES", "cheapest_types", "with_types"]

ANY = "any"
"""Stands for a GPU type that the search chooses."""

MOST_TYPES = 8
"""Types that ``--gpu any`` searches."""

FEW_TYPES = 3
"""Types that say what binds where none keeps the promises."""

ENDS = (512, 8192)
"""Token budgets at which types are compared."""


def cheapest_types(question: CompiledQuestion, most: int = MOST_TYPES) -> tuple[str, ...]:
    """The GPU types on which one pool could be cheapest: least estimated cost first.

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
    one_pool = replace(question, search=replace(question.search, pools=1))
    # the ends of what a search tries tell the types apart; all of it would take as long as a plan
    budgets = question.engines.token_budget or ENDS
    found = []
    for name in gpus():
        engines = replace(question.engines, gpu=(name,), profile=None, token_budget=budgets)
        try:
            problem = FleetProblem(replace(one_pool, engines=engines))
        except InputError:
            continue
        # what the pool is guessed to cost, where the method guesses; it is no less than the bound
        cost = float(np.min((problem.option_guides if problem.method.guided else problem.option_bounds)[:, 0, -1]))
        if math.isfinite(max(cost, float(problem.bounds[0, -1]))):
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
