"""A running fleet beside its plan: what its metrics say, what the plan predicts for that traffic, and what has moved."""
