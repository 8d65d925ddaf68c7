"""What every policy checks about its parameters, and the orders of the waiting queue."""

from __future__ import annotations

import math
from collections.abc import Callable

from planner.errors import InputError, did_you_mean
from planner.predict.engine import Request, by_arrival, by_prompt


def _by_class_then_arrival(r: Request) -> tuple[float, ...]:
    return (r.category, r.arrival, r.index)


def _by_class_then_prompt(r: Request) -> tuple[float, ...]:
    return (r.category, r.input_tokens, r.arrival, r.index)


_ORDERS: dict[tuple[str, bool], Callable[[Request], tuple[float, ...]]] = {
    ("fcfs", False): by_arrival,
    ("spf", False): by_prompt,
    ("fcfs", True): _by_class_then_arrival,
    ("spf", True): _by_class_then_prompt,
}


def queue_order(order: str, class_priority: bool = False) -> Callable[[Request], tuple[float, ...]]:
    """Key of the waiting queue: ``"fcfs"`` or ``"spf"`` (shortest prompt first), smaller class first with `class_priority`."""
    if order not in ("fcfs", "spf"):
        raise InputError(
            f"order: {order!r} is not known{did_you_mean(str(order), ['fcfs', 'spf'])}", "Use fcfs or spf."
        )
    return _ORDERS[order, bool(class_priority)]


def at_least(name: str, value: float, low: float, whole: bool = True) -> float:
    """`value` if it is a number >= `low` (whole unless told; infinite allowed), otherwise an InputError naming it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value) or value < low:
        raise InputError(f"{name} must be a number >= {low:g}, got {value!r}")
    if whole and math.isfinite(value):
        if value != int(value):
            raise InputError(f"{name} must be a whole number, got {value!r}")
        return int(value)
    return float(value)


def fraction(name: str, value: float) -> float:
    """`value` if it lies in [0, 1], otherwise an InputError naming it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise InputError(f"{name} must lie in [0, 1], got {value!r}")
    return float(value)
