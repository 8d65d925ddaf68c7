"""Analytical capacity planning for LLM inference fleets.

``import planner as fo``: every public name is loaded when it is first used, so that the command line starts fast. Which there are
and where they lie says ``__init__.pyi``, for type checkers too.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

with open(__file__.removesuffix("c") + "i", encoding="utf-8") as _stub:
    # from MODULE import NAME as NAME
    HOME = {words[3]: words[1] for line in _stub if (words := line.split())[:1] == ["from"]}

__all__ = sorted(HOME)


def __getattr__(name: str) -> Any:
    if name in HOME:
        return getattr(import_module(HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """Keeps the verbs: importing the subpackage ``planner.calibrate`` would set ``planner.calibrate`` to it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
