"""Scalers derived from a plan: from which load on a replica breaks a promise, a rule that stays below it, and its backtest."""
