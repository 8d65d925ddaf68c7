"""Latency methods: one file per method, one contract (:mod:`planner.methods.base`)."""
