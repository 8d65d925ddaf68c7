"""Iteration-level simulator: every scheduling policy of the papers on one engine, and fast presets that check a plan."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.simulate.arrivals import Arrival
    from planner.simulate.compare import compare_policies
    from planner.simulate.engine import Node, Policy
    from planner.simulate.plan import verify_fleet
    from planner.simulate.pool import simulate_pool
    from planner.simulate.request import Request
    from planner.simulate.result import SimulationResult
    from planner.simulate.run import run_policy

__all__ = [
    "Arrival",
    "Node",
    "Policy",
    "Request",
    "SimulationResult",
    "compare_policies",
    "run_policy",
    "simulate_pool",
    "verify_fleet",
]

_HOME = {
    "Arrival": "arrivals",
    "Node": "engine",
    "Policy": "engine",
    "Request": "request",
    "SimulationResult": "result",
    "compare_policies": "compare",
    "run_policy": "run",
    "simulate_pool": "pool",
    "verify_fleet": "plan",
}


def __getattr__(name: str) -> object:
    """Public names, loaded when first asked for."""
    if name in _HOME:
        return getattr(import_module(f"planner.simulate.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
