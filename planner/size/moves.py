"""From the fleet there is to the one planned: what stays, what is restarted for another pool, what is added and retired."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from planner.plans import PoolPlan, SavedPool
from planner.shared.remarks import Remark


def _kind(pool: SavedPool) -> tuple[object, ...]:
    """What GPUs a replica is, which no restart changes."""
    return (pool.gpu, pool.tp, pool.pp, pool.dp, pool.ep)


def _started(pool: SavedPool) -> tuple[object, ...]:
    """What a replica was started with and for which requests."""
    return (*_kind(pool), pool.slots, pool.token_budget, round(pool.low_tokens), round(pool.high_tokens))


def moves(current: Sequence[SavedPool], planned: Sequence[PoolPlan]) -> Iterator[Remark]:
    """What it takes to get from one fleet to the other, a remark per pool and per kind of replica that is left over.

    A replica stays where its pool is planned with the settings it has; others of its kind (GPU and parallelism) are
    restarted for pools that need more; what is still missing is added, what nobody needs retired.
    """
    left = [pool.replicas for pool in current]

    def taken(pool: PoolPlan, need: int, like: Callable[[SavedPool], object]) -> int:
        """Of so many replicas needed those that are left of its like, which now are not."""
        found = 0
        for k, old in enumerate(current):
            if like(old) == like(pool):
                here = min(need - found, left[k])
                left[k], found = left[k] - here, found + here
        return found

    kept = [taken(pool, pool.replicas, _started) for pool in planned]
    for pool, stay in zip(planned, kept, strict=True):
        moved = taken(pool, pool.replicas - stay, _kind)
        add, what = pool.replicas - stay - moved, f"{pool.parallel} of {pool.gpu}"
        yield Remark("moves", {"pool": pool.name, "what": what, "keep": stay, "move": moved, "add": add})
    for k, old in enumerate(current):
        if left[k]:
            yield Remark("retire", {"pool": old.name, "retire": left[k], "gpu": old.gpu, "tp": old.tp})
