"""One file per scheduling policy, found by its name: its class, and ``POLICY``, what :mod:`planner.papers.policy` makes of it."""
