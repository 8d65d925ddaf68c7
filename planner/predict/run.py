"""Which program replays."""

from planner.predict.kernel import replay

__all__ = ["replay"]
