"""The question a plan answers; it lives in :mod:`planner.question.options`."""

from planner.question.options import PlanInputs

__all__ = ["PlanInputs"]
