"""How many cores there are to work on."""

from __future__ import annotations

import os

__all__ = ["cores"]


def cores() -> int:
    """Cores this process may use, at least one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
