"""First come first served with restart: the benchmark of the WAIT paper, greedy in everything."""

from __future__ import annotations

from planner.simulate.policies.mixed import Mixed
from planner.simulate.policy import PolicyEntry


class FcfsRestart(Mixed):
    """Mixed batching without budget or slot limit; an evicted request loses its output and starts again with its prompt."""

    def __init__(self) -> None:
        super().__init__(restart=True)


POLICY = PolicyEntry("greedy first come first served with restart", FcfsRestart)
