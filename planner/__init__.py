"""Analytical capacity planning for LLM inference fleets.

``import planner as fo``: every public name is loaded when it is first used, so that the command line starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from planner.api import evaluate, plan, plan_tiers, schedule, verify, what_if
    from planner.calibrate.run import calibrate_device, calibrate_files, calibrate_server
    from planner.errors import FleetOptError, InfeasibleError, InputError
    from planner.plans import Plan, PoolPlan
    from planner.promise import Promise, Slo
    from planner.workload.workload import Workload

__all__ = [
    "FleetOptError",
    "InfeasibleError",
    "InputError",
    "Plan",
    "PoolPlan",
    "Promise",
    "Slo",
    "Workload",
    "__version__",
    "calibrate_device",
    "calibrate_files",
    "calibrate_server",
    "evaluate",
    "plan",
    "plan_tiers",
    "schedule",
    "verify",
    "what_if",
]

_HOME = {
    "FleetOptError": "errors",
    "InfeasibleError": "errors",
    "InputError": "errors",
    "Plan": "plans",
    "PoolPlan": "plans",
    "Promise": "promise",
    "Slo": "promise",
    "Workload": "workload.workload",
    "calibrate_device": "calibrate.run",
    "calibrate_files": "calibrate.run",
    "calibrate_server": "calibrate.run",
    "evaluate": "api",
    "plan": "api",
    "plan_tiers": "api",
    "schedule": "api",
    "verify": "api",
    "what_if": "api",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"planner.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
