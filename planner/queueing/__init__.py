"""Waiting and occupancy of a pool: pure functions of floats and arrays that know nothing of language models."""
