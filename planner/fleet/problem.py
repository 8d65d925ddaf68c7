"""A question of sizing: what any pool of the grid costs, each sized once, by its bound first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.catalog.load import gpu as find_gpu
from planner.fleet.grid import SearchGrid
from planner.fleet.pool import (
    Pool,
    PoolSize,
    Shortfall,
    evaluate_pool,
    excess_of,
    gpus_by_type,
    replica_for,
    smallest_pool,
    when_idle,
    with_trials,
)
from planner.methods.base import PoolModel
from planner.promise import Promise
from planner.question.compiled import CompiledQuestion
from planner.replica.engine import EngineOption, ReplicaSetup
from planner.workload.pools import PoolLaw, State

Edge = tuple[int, int, int]
"""Lower state, upper state and option of a pool."""


@dataclass(slots=True)
class Known:
    """What a search has found out, by lower state, upper state and option.

    Pools sized, and idle; most replicas that were refused; cheapest pools.
    """

    pools: dict[Edge, Pool | None] = field(default_factory=dict)
    idle: dict[Edge, Shortfall | None] = field(default_factory=dict)
    refused: dict[Edge, int] = field(default_factory=dict)
    cheapest: dict[tuple[int, int], Pool | None] = field(default_factory=dict)


class FleetProblem(SearchGrid):
    """A workload, its promises and the engines that may serve it; answers what any pool costs.

    Parameters
    ----------
    question
        What is asked.
    options
        Engine options of every pool; default all that the question leaves open.
    """

    def __init__(self, question: CompiledQuestion, options: Sequence[EngineOption] | None = None) -> None:
        super().__init__(question, options)
        self.stock = {find_gpu(name).name: count for name, count in question.purchase.inventory.items()}
        self.evaluations = 0
        # promises that failed at any size, for the explanation of an infeasible answer
        self.shortfalls: list[Shortfall] = []
        self._models: dict[Edge, tuple[PoolLaw, ReplicaSetup, PoolModel] | None] = {}
        self.known = Known()

    def open_grid(self) -> None:
        """From the one pool to all states; what is known about the one pool stays known."""
        states = self.all_states
        if len(states) == len(self.states):
            return
        top = len(states) - 1
        self.states = states
        known = self.known
        self._models = {(0, top, k): v for (_, _, k), v in self._models.items()}
        known.pools = {(0, top, k): v for (_, _, k), v in known.pools.items()}
        known.idle = {(0, top, k): v for (_, _, k), v in known.idle.items()}
        known.refused = {(0, top, k): v for (_, _, k), v in known.refused.items()}
        known.cheapest = {(0, top): known.cheapest[0, 1]} if known.cheapest else {}
        self.set_bounds()

    def start_over(self, promises: tuple[Promise, ...]) -> None:
        """Forget what is known, and ask for pools of the whole grid that keep these promises alone."""
        self.known = Known()
        self.promises = promises
        self.states = [State(0.0), State(self.moments.top)]
        self._models.clear()
        self.set_bounds()
        self.open_grid()

    def build(self, i: int, j: int, k: int) -> tuple[PoolLaw, ReplicaSetup, PoolModel] | None:
        """The requests, replica and model of a pool of option `k` between two states; ``None`` when none fits."""
        key = (i, j, k)
        if key not in self._models:
            self._models[key] = self._build_pool(i, j, k)
        return self._models[key]

    def _build_pool(self, i: int, j: int, k: int) -> tuple[PoolLaw, ReplicaSetup, PoolModel] | None:
        law = self.moments.law(self.states[i], self.states[j])
        if law is None:
            return None
        option = self.options[k]
        is_top = j == len(self.states) - 1
        high = option.max_model_len if is_top else self.states[j].boundary
        replica = replica_for(self.question, option, law, high)
        return None if replica is None else (law, *replica)

    def candidate(self, i: int, j: int, k: int, start: float | None = None) -> Pool | None:
        """The cheapest pool of option `k` between two states; ``None`` when no size keeps the promises.

        `start` as :func:`planner.fleet.pool.smallest_pool` takes it.
        """
        key = (i, j, k)
        if key in self.known.pools:
            return self.known.pools[key]
        built = self.build(i, j, k)
        result = None
        if built is not None:
            law, setup, model = built
            option = self.options[k]
            rate = self.rate * law.share
            self.evaluations += 1
            least = max(int(self.least_replicas(option, law.moments)), self.known.refused.get(key, 0) + 1)
            size = smallest_pool(model, rate, self.kept.only(self.promises), least, self.levels, start, quick=True)
            if isinstance(size, Shortfall):
                self.shortfalls.append(size)
            else:
                result = Pool(law, option, setup, model, rate, size, option.price.bought(size.replicas))
        self.known.pools[key] = result
        return result

    def alike(self, pool: Pool) -> Pool:
        """Of the engines that differ from a pool's in settings alone, the one that keeps the promises best with as many replicas.

        They cost the same, and more room is worth having.
        """
        if self.fleet_promises or not self.promises:
            return pool
        (i, j), own = next(
            ((a, b), k)
            for (a, b, k), found in self.known.pools.items()
            if found is not None and found.law is pool.law and found.option is pool.option
        )
        rate, n, best = pool.arrival_rate_per_s, pool.size.replicas, pool
        least = excess_of(evaluate_pool(pool.model, rate, n, self.levels, quick=True), self.promises)
        for k, option in enumerate(self.options):
            same = option.gpu.name == pool.option.gpu.name and option.parallel == pool.option.parallel
            if (
                k == own
                or not same
                or option.price != pool.option.price
                or option.profile.name != pool.option.profile.name
            ):
                continue
            built = self.build(i, j, k)
            if built is None or n < int(self.least_replicas(option, built[0].moments)):
                continue
            law, setup, model = built
            if rate > self.kept.utilization_cap * n * model.capacity_at(n):
                continue
            excess = excess_of(evaluate_pool(model, rate, n, self.levels, quick=True), self.promises)
            if excess < least:
                least, best = excess, replace(pool, law=law, option=option, setup=setup, model=model)
        return best

    def decided(self, pool: Pool, bare: bool = False) -> Pool:
        """A pool that a search has chosen, with the best settings of its engine, sized by all its requests, with its prediction."""
        pool = self.alike(pool)
        least = int(self.least_replicas(pool.option, pool.law.moments))
        promises, rate = self.kept.only(self.promises), pool.arrival_rate_per_s
        if self.fleet_promises:
            # what one pool takes hangs on the others
            told = pool.model.predict(rate, pool.size.replicas, self.levels)
            return replace(pool, size=replace(pool.size, prediction=told))
        size = smallest_pool(pool.model, rate, promises, least, self.levels, pool.size.replicas)
        assert isinstance(size, PoolSize)
        if not bare:
            size = with_trials(pool.model, rate, size, promises, self.levels)
        return replace(pool, size=size, bought=pool.option.price.bought(size.replicas))

    def idle(self, i: int, j: int, k: int) -> Shortfall | None:
        """The promise that an idle pool of option `k` keeps least well, kept or not; ``None`` when no replica fits."""
        key = (i, j, k)
        if key not in self.known.idle:
            built = self.build(i, j, k)
            self.known.idle[key] = None if built is None else when_idle(built[2], self.promises, self.levels)
        return self.known.idle[key]

    def built(self) -> dict[Edge, tuple[PoolLaw, ReplicaSetup, PoolModel]]:
        """Every pool that was set up: (lower state, upper state, option) -> its parts."""
        return {key: parts for key, parts in self._models.items() if parts is not None}

    def sized(self) -> Mapping[Edge, Pool | None]:
        """Every pool that was sized, by lower state, upper state and option; ``None`` where no size keeps the promises."""
        return self.known.pools

    def is_hopeless(self, i: int, j: int, k: int) -> bool:
        """Whether a pool was sized and keeps its promises at no number of replicas."""
        return (i, j, k) in self.known.pools and self.known.pools[i, j, k] is None

    def best(self, i: int, j: int, below: float = math.inf) -> Pool | None:
        """The cheapest pool between two states over all options; ``None`` where none costs less than `below` [USD/hour]."""
        if (i, j) not in self.known.cheapest:
            found = self._choose(i, j, below)
            if found is None and below < math.inf:
                # what it costs beyond is not known
                return None
            self.known.cheapest[i, j] = found
        return self.known.cheapest[i, j]

    def _choose(self, i: int, j: int, below: float) -> Pool | None:
        """Size the option of the lowest bound; ask every other whether it keeps the promises with fewer dollars."""
        best: Pool | None = None
        for k in np.argsort(self.option_bounds[:, i, j], kind="stable").tolist():
            least = below if best is None else best.cost_usd_per_hour
            if float(self.option_bounds[k, i, j]) >= least:
                break
            most = math.inf if math.isinf(least) else self.options[k].price.most_below(least)
            if most < 1 or (most < math.inf and not self.keeps_with(i, j, k, int(most))):
                continue
            found = self.candidate(i, j, k, None if math.isinf(most) else most)
            if found is not None and found.cost_usd_per_hour < least:
                best = found
        return best

    def keeps_with(self, i: int, j: int, k: int, replicas: int) -> bool:
        """Whether so many replicas of an option keep the promises."""
        built = self.build(i, j, k)
        if built is None:
            return False
        law, _, model = built
        # latency does not rise with the replicas: what more of them break fewer do too
        refused = self.known.refused.get((i, j, k), 0)
        if replicas < max(int(self.least_replicas(self.options[k], law.moments)), refused + 1):
            return False
        rate = self.rate * law.share
        self.evaluations += 1
        kept = not self.promises or model.keeps(rate, replicas, self.promises)
        kept = kept and rate <= self.kept.utilization_cap * replicas * model.capacity_at(replicas) * (1.0 + 1e-12)
        if not kept:
            self.known.refused[i, j, k] = replicas
        return kept

    def capacity_bound(self, i: int, j: int, k: int) -> float:
        """Lower bound of one option's cost from the method's own maximum throughput."""
        built = self.build(i, j, k)
        if built is None:
            return math.inf
        law, _, model = built
        needed = self.rate * law.share / (self.kept.utilization_cap * model.capacity_per_s)
        return self.options[k].price.least_cost_usd_per_hour(max(needed * (1.0 - 1e-9), self.kept.min_replicas))

    def limit(self) -> int | None:
        """Pools asked about before the search may stop with a gap; ``None`` = until proven."""
        allowed, effort = self.search.max_evaluations, self.method.effort
        return effort * allowed if effort and allowed else None

    def fits(self, pools: Sequence[Pool]) -> bool:
        """Whether the inventory holds the GPUs of these pools."""
        return all(n <= self.stock.get(name, n) for name, n in gpus_by_type(pools).items())
