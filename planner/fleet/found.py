"""What a search of the fleets found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.fleet.pool import Pool
from planner.fleet.search import SearchOutcome


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a search.

    Parameters
    ----------
    pools
        Chosen pools, shortest requests first; empty when no fleet is feasible.
    one_pool
        The best fleet of one pool without compression; ``None`` when infeasible.
    outcome
        What is proven.
    candidates
        Fleets of the grid.
    beyond_stock
        GPUs by type of the cheapest fleet there would be without an inventory, where none was found within it.
    """

    pools: tuple[Pool, ...]
    one_pool: Pool | None
    outcome: SearchOutcome
    candidates: int
    beyond_stock: Mapping[str, int] | None = None
