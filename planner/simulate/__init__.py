"""Iteration-level simulator: every scheduling policy of the papers on one engine, and fast presets that check a plan."""
