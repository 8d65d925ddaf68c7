"""One file per scheduling policy, found by its name: its class, and ``POLICY``, what :mod:`planner.simulate.policy` makes of it."""
