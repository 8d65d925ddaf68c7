"""Shapes of fleets: one file per shape, found by its name; the contract is :mod:`planner.size.fleet`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from planner.plans import SavedPool
from planner.question.compiled import CompiledQuestion
from planner.shared.paths import modules_in
from planner.size.fleet import Fleet, Shape

__all__ = ["find_shape", "shape_names", "standing_fleet"]


def shape_names() -> tuple[str, ...]:
    """Names of the shapes there are."""
    return modules_in(Path(__file__).parent)


def find_shape(name: str) -> Shape:
    """The shape of that name."""
    found: Shape = import_module(f"{__name__}.{name}").SHAPE
    return found


def standing_fleet(question: CompiledQuestion, pools: Sequence[SavedPool]) -> Fleet:
    """The fleet of a plan file, ready to be asked about any rate.

    Raises
    ------
    InputError
        A pool whose engine cannot be rebuilt: unknown GPU or profile, a request longer than the top pool admits.
    """
    shape = next(shape for shape in map(find_shape, reversed(shape_names())) if shape.stands(pools))
    population = question.traffic.sending.population
    if population is None or population.asked_per_s > 0.0:
        return shape.rebuild(question, pools)
    from planner.size.unknowns import settled

    return settled(question, lambda at: shape.rebuild(at, pools))[1]
