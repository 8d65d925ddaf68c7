"""The seeds of independent runs."""

from __future__ import annotations

from collections.abc import Sequence

from planner.errors import InputError

MOST_RUNS = 100
"""Beyond them a run narrows the interval of what is found by half a per cent and less."""


def seeds_of(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """The seed of each run.

    Parameters
    ----------
    seeds
        A number of runs, whose seeds are 1, 2, ..., or the seeds themselves; 1 to 100 runs, seeds of 0 and more.

    Returns
    -------
    tuple of int
        In the order given.

    Raises
    ------
    InputError
        For no run, too many, or a negative seed.
    """
    count = seeds if isinstance(seeds, int) else len(seeds)
    if not 1 <= count <= MOST_RUNS:
        raise InputError(
            f"seeds: 1 to {MOST_RUNS} runs, got {count:,}", "A run of more requests narrows the interval as well."
        )
    numbers = tuple(range(1, seeds + 1)) if isinstance(seeds, int) else tuple(int(s) for s in seeds)
    if min(numbers) < 0:
        raise InputError(f"seeds: must be 0 or more, got {min(numbers)}")
    return numbers
