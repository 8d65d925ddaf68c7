"""``import fleetopt`` is ``import planner``: an alias of one file, for those who look for the package by the command's name.

Everything is in :mod:`planner`; modules below it are imported from there (``from planner.queueing import erlang``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import planner

if TYPE_CHECKING:
    from planner import *  # noqa: F403

__all__ = planner.__all__


def __getattr__(name: str) -> Any:
    if name in planner.__all__:
        return getattr(planner, name)
    raise AttributeError(f"module 'fleetopt' is an alias of 'planner', which has no attribute {name!r}")


def __dir__() -> list[str]:
    return dir(planner)
