"""What there is to plan with: GPUs, models and profiles (YAML, a source for every number); a replica's KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.catalog.load import gpu, gpus, model, models
    from planner.catalog.profiles import Profile, profile

__all__ = ["Profile", "gpu", "gpus", "model", "models", "profile"]

_HOME = {"gpu": "load", "gpus": "load", "model": "load", "models": "load", "Profile": "profiles", "profile": "profiles"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"planner.catalog.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
