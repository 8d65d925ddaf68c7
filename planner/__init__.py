"""Analytical capacity planning for LLM inference fleets."""

__version__ = "0.1.0"
