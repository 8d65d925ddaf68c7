"""How traffic grows beyond what a trace holds, by name."""

from __future__ import annotations

GROWTH = ("users", "use")
"""More users, each like those there are, or the same users asking more often."""
