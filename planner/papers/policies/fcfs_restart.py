"""First come first served with restart: the benchmark of the WAIT paper, greedy in everything."""

from __future__ import annotations

from planner.papers.policy import PolicyEntry
from planner.predict.mixed import Mixed


def fcfs_restart() -> Mixed:
    """Mixed batching without budget or slot limit; an evicted request loses its output and starts again with its prompt."""
    return Mixed(restart=True)


POLICY = PolicyEntry("greedy first come first served with restart", fcfs_restart)
