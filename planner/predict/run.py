"""Replays requests: by the compiled kernel, or by the same rules in Python where it cannot be had."""

from __future__ import annotations

from planner.predict.kernel import replay

__all__ = ["replay"]
