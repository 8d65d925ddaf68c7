"""Closed forms of three schedulers' theories: pure functions of numbers and arrays.

``rad`` with SLAI's (Bari et al.), ``exclusive``, ``exclusive_memory``, ``exclusive_controller`` and ``crossover``
(threshold-based exclusive batching), ``wait`` and ``nested_wait`` (Ao et al.). Printed and corrected formulas stand side
by side; the corrected one is the default and its docstring says why. Every public name can be taken from here.

>>> from planner.fluid import theta0, N_corr
>>> theta0.__module__
'planner.fluid.exclusive'
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

_MODULES = (
    "rad", "exclusive", "exclusive_memory", "exclusive_controller", "crossover", "wait", "nested_wait",
)  # fmt: skip


def _names(module: str) -> dict[str, Any]:
    """Public functions and classes that a module defines."""
    loaded = importlib.import_module(f"{__name__}.{module}")
    found = {name: value for name, value in vars(loaded).items() if not name.startswith("_")}
    return {name: value for name, value in found.items() if getattr(value, "__module__", "") == loaded.__name__}


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        for module in _MODULES:
            if name in (names := _names(module)):
                return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    names = [name for module in _MODULES for name in _names(module)]
    return sorted([*names, *(m.name for m in pkgutil.iter_modules(__path__))])
