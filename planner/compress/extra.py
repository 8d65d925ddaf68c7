"""Libraries of the extra ``compress``: one message when they are missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from planner.errors import InputError
from planner.shared.extras import installing


def require(module: str) -> ModuleType:
    """The module, or an :class:`InputError` that says which extra brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(
            f"prompt compression needs {error.name or module}, which is not installed",
            f"Install the extra: {installing('compress')}",
        ) from None
