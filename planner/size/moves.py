"""From the fleet there is to the one planned: what stays, what is restarted for another pool, what is added and retired."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.plans import PoolPlan, SavedPool
from planner.shared.remarks import Remark

Kind = tuple[str, int, int, int, int]


def _kind(pool: SavedPool | PoolPlan) -> Kind:
    """What GPUs a replica is, which no restart changes."""
    return (pool.gpu, pool.tp, pool.pp, pool.dp, pool.ep)


def _started(pool: SavedPool | PoolPlan) -> tuple[object, ...]:
    """What a replica was started with and for which requests."""
    budget = pool.token_budget if isinstance(pool, SavedPool) else pool.settings.max_num_batched_tokens
    return (*_kind(pool), pool.slots, budget, round(pool.low_tokens), round(pool.high_tokens))


def moves(current: Sequence[SavedPool], planned: Sequence[PoolPlan]) -> Iterator[Remark]:
    """What it takes to get from one fleet to the other, a remark per pool and per kind of replica that is left over.

    A replica stays where its pool is planned with the settings it has; others of its kind (GPU and parallelism) are
    restarted for pools that need more; what is still missing is added, what nobody needs retired.
    """
    left = {k: pool.replicas for k, pool in enumerate(current)}
    kept = []
    for pool in planned:
        need = pool.replicas
        for k, old in enumerate(current):
            if _started(old) == _started(pool):
                stay = min(need, left[k])
                left[k] -= stay
                need -= stay
        kept.append(pool.replicas - need)
    for pool, stay in zip(planned, kept, strict=True):
        need = pool.replicas - stay
        for k, old in enumerate(current):
            if _kind(old) == _kind(pool):
                taken = min(need, left[k])
                left[k] -= taken
                need -= taken
        moved = pool.replicas - stay - need
        what = f"{pool.parallel} of {pool.gpu}"
        yield Remark("moves", {"pool": pool.name, "what": what, "keep": stay, "move": moved, "add": need})
    for k, old in enumerate(current):
        if left[k]:
            yield Remark("retire", {"pool": old.name, "retire": left[k], "gpu": old.gpu, "tp": old.tp})
