"""Analytical capacity planning for LLM inference fleets.

``import planner as fo``: every public name is loaded when it is first used, so that the command line starts fast.
"""
# ruff: noqa: F403  # what types see is all that planner.api names in its own __all__

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from planner.shared.version import __version__ as __version__

if TYPE_CHECKING:
    from planner.api import *

# fmt: off
_VERBS = (
    "accept", "acceptance_job", "autoscale", "batch", "batching", "calibrate", "capacity", "check", "compare_policies", "cost",
    "deploy", "evaluate", "growth", "load_workload", "metrics", "monitoring_rules", "overview", "plan", "plan_services",
    "plan_tiers", "reproduce", "schedule", "simulate", "stability", "wait", "what_if",
)
_HOME = {
    **dict.fromkeys(_VERBS, "api"),
    **dict.fromkeys(("CalibrationError", "CheckFailedError", "FleetOptError", "InfeasibleError", "InputError"), "errors"),
    "Acceptance": "operate.deploy.acceptance",
    "Autoscaling": "operate.autoscale.derive",
    "BatchRoom": "ask.batch",
    "Batching": "ask.batching", "Calibration": "calibrate.result", "CalibrationSet": "calibrate.result",
    "Capacity": "ask.capacity",
    "Comparison": "papers.compare", "Costs": "ask.costs", "Evaluation": "ask.evaluation", "FleetCheck": "operate.monitor.check",
    "Growth": "ask.growth",
    "Plan": "plans", "PoolPlan": "plans",
    "Promise": "promise", "Rendered": "operate.deploy", "Reproduction": "papers.printed", "Schedule": "ask.schedule",
    "ServicesPlan": "ask.services",
    "Slo": "promise", "Stability": "ask.stability", "Sweep": "ask.what_if", "SweepPoint": "ask.what_if",
    "TieredPlan": "ask.classes", "Verification": "ask.simulate", "WaitSettings": "ask.wait",
    "Workload": "workload.workload",
}
# fmt: on

__all__ = sorted((*_HOME, "__version__"))


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"planner.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """Keeps the verbs: importing the subpackage ``planner.calibrate`` would set ``planner.calibrate`` to it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _VERBS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
