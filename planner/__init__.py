"""Analytical capacity planning for LLM inference fleets.

``import planner as fo``: every public name is loaded when it is first used, so that the command line starts fast.
"""
# ruff: noqa: F403, F405  # what types see of the verbs is all that planner.api defines

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from planner.shared.version import __version__

if TYPE_CHECKING:
    from planner.advice.batching import Batching
    from planner.advice.stability import Stability
    from planner.advice.wait import WaitSettings
    from planner.api import *
    from planner.autoscale.derive import Autoscaling
    from planner.calibrate.result import Calibration, CalibrationSet
    from planner.deploy import Rendered
    from planner.deploy.acceptance import Acceptance
    from planner.errors import CalibrationError, CheckFailedError, FleetOptError, InfeasibleError, InputError
    from planner.monitor.check import FleetCheck
    from planner.plans import Plan, PoolPlan
    from planner.promise import Promise, Slo
    from planner.reproduce.papers import Reproduction
    from planner.simulate.compare import Comparison
    from planner.simulate.plan import Verification
    from planner.studies.batch import BatchRoom
    from planner.studies.capacity import Capacity
    from planner.studies.classes import TieredPlan
    from planner.studies.costs import Costs
    from planner.studies.evaluation import Evaluation
    from planner.studies.growth import Growth
    from planner.studies.schedule import Schedule
    from planner.studies.services import ServicesPlan
    from planner.studies.what_if import Sweep, SweepPoint
    from planner.workload.workload import Workload

# fmt: off
_VERBS = (
    "accept", "acceptance_job", "autoscale", "batch", "batching", "calibrate", "capacity", "check", "compare_policies", "cost",
    "deploy", "evaluate", "growth", "load_workload", "metrics", "monitoring_rules", "overview", "plan", "plan_services",
    "plan_tiers", "reproduce", "schedule", "simulate", "stability", "wait", "what_if",
)
_HOME = {
    **dict.fromkeys(_VERBS, "api"),
    **dict.fromkeys(("CalibrationError", "CheckFailedError", "FleetOptError", "InfeasibleError", "InputError"), "errors"),
    "Acceptance": "deploy.acceptance",
    "Autoscaling": "autoscale.derive",
    "BatchRoom": "studies.batch",
    "Batching": "advice.batching", "Calibration": "calibrate.result", "CalibrationSet": "calibrate.result",
    "Capacity": "studies.capacity",
    "Comparison": "simulate.compare", "Costs": "studies.costs", "Evaluation": "studies.evaluation", "FleetCheck": "monitor.check",
    "Growth": "studies.growth",
    "Plan": "plans", "PoolPlan": "plans",
    "Promise": "promise", "Rendered": "deploy", "Reproduction": "reproduce.papers", "Schedule": "studies.schedule",
    "ServicesPlan": "studies.services",
    "Slo": "promise", "Stability": "advice.stability", "Sweep": "studies.what_if", "SweepPoint": "studies.what_if",
    "TieredPlan": "studies.classes", "Verification": "simulate.plan", "WaitSettings": "advice.wait",
    "Workload": "workload.workload",
}

__all__ = [
    "Acceptance", "Autoscaling", "BatchRoom", "Batching", "Calibration", "CalibrationError", "CalibrationSet", "Capacity",
    "CheckFailedError", "Comparison", "Costs", "Evaluation", "FleetCheck", "FleetOptError", "Growth", "InfeasibleError",
    "InputError", "Plan", "PoolPlan", "Promise",
    "Rendered", "Reproduction", "Schedule", "ServicesPlan", "Slo", "Stability", "Sweep", "SweepPoint", "TieredPlan", "Verification",
    "WaitSettings", "Workload", "__version__", "accept", "acceptance_job", "autoscale", "batch", "batching", "calibrate",
    "capacity", "check", "compare_policies", "cost", "deploy", "evaluate", "growth", "load_workload", "metrics", "monitoring_rules",
    "overview", "plan",
    "plan_services", "plan_tiers", "reproduce", "schedule", "simulate", "stability", "wait", "what_if",
]
# fmt: on


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"planner.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps the verbs: importing the subpackage ``planner.calibrate`` would set ``planner.calibrate`` to it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _VERBS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
