"""The cheapest fleet that an inventory holds where bursts decide: guesses, Poisson arrivals, then looks along the path."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from planner.fleet.pool import CLEAR, USUAL_SLOPE, Pool, evaluate_pool, excess_of, looked_at
from planner.fleet.search import Labelled, cheapest_within

if TYPE_CHECKING:
    from planner.fleet.problem import FleetProblem
    from planner.methods.base import PoolModel
    from planner.replica.engine import ReplicaSetup
    from planner.workload.pools import PoolLaw

FloatArray = NDArray[np.float64]

LOOKS, MORE_LOOKS = 12, 0.1
"""Pools asked under Poisson arrivals; others must then be guessed to cost that share less than they are."""

MOST_ASKED = 36
"""Pools asked before it is believed that none fits."""

ENOUGH_ASKED = 3
"""Pools alike asked before the guesses of the others are corrected by the least that these were too low."""

MOST_KNOWN = 72
"""Pools asked in all: the fleet is then of those."""

ONE_POOLS = 4
"""Engines tried for a single pool where nothing else was found."""

DEARER = 0.25
"""Share by which a single pool may look dearer than the fleet found and still be tried."""

STEPS = 20
"""Predictions along the path at most."""

FEW = 8
"""Replicas of a pool up to which a prediction along fewer requests comes first."""

IDLE = 2.0
"""Replicas over those the load takes up to which one prediction says how many are needed."""

BEYOND = 2.0
"""Replicas over those the load takes that a guess is believed to."""

FURTHEST = 0.4
"""Logarithm of the factor by which one prediction moves a number of replicas at most."""


class BurstyStock:
    """Numbers of replicas of every pool and engine as far as they are known, and the cheapest fleet that follows from them.

    A prediction at the number thought to be enough says whether it is, and how far it is off: pools are not sized one by one,
    the cheapest fleet decides which number is looked at next.

    Parameters
    ----------
    problem, calm
        The question, and the same under Poisson arrivals, on one grid.
    factor
        What bursts make of a number of replicas, as far as is known.
    """

    def __init__(self, problem: FleetProblem, calm: FleetProblem, factor: float) -> None:
        self.problem, self.calm = problem, calm
        options = problem.options
        self.kinds = [o.gpu.name for o in options]
        self._same = np.array([[a == b for b in self.kinds] for a in self.kinds])
        self._price = np.array([o.price.least_usd_per_replica_hour for o in options])[:, None, None]
        self._gpus = np.array([o.price.gpus_per_replica for o in options], dtype=np.float64)[:, None, None]
        self._spares = np.array([o.price.redundancy for o in options], dtype=np.float64)[:, None, None]
        shape = problem.option_bounds.shape
        self._empty = problem.option_bounds == 0.0
        self._needed = np.where(np.isfinite(problem.option_bounds), problem.needs, math.inf)
        self._factor = np.full(shape, factor)
        self._asked, self._done = np.zeros(shape, dtype=bool), self._empty.copy()
        # numbers known to break a promise, and to keep them all
        self._low, self._high = np.zeros(shape), np.full(shape, math.inf)
        self._floor = np.zeros(shape)
        self._by_load = np.ceil(problem.option_bounds / self._price * (1.0 - 1e-9)) - self._spares
        # a guess far above the load is of a promise nearly out of reach, and says little
        self._needed = np.where(
            np.isfinite(self._needed), np.minimum(self._needed, BEYOND * np.maximum(self._by_load, 1.0)), math.inf
        )
        self._guessed = self._needed.copy()
        # (whether of the shortest requests, of the longest, GPU): by how much guesses were too low
        self._too_low: dict[tuple[bool, bool, str], list[float]] = {}
        self.steps = 0
        for key in [*calm.sized()]:
            self._ask(*key)
        for (i, j, k), pool in problem.sized().items():
            self._asked[k, i, j] = self._done[k, i, j] = True
            if pool is None:
                self._needed[k, i, j] = math.inf
            else:
                self._low[k, i, j], self._high[k, i, j] = pool.size.replicas - 1.0, pool.size.replicas

    def _replicas(self) -> FloatArray:
        """Replicas thought to be enough, shape (options, states, states)."""
        with np.errstate(invalid="ignore"):
            number: FloatArray = np.clip(
                np.ceil(self._needed * self._factor * (1.0 - 1e-9)), self._low + 1.0, self._high
            )
        number = np.maximum(number, float(self.problem.kept.min_replicas))
        return number

    def solve(self) -> tuple[tuple[int, ...], list[Pool]] | None:
        """States and pools of the cheapest fleet found; ``None`` where none fits."""
        while True:
            most = int(self._asked.sum()) >= MOST_KNOWN
            found = self._cheapest(
                np.where(self._asked | self._empty, self._replicas(), math.inf) if most else self._replicas()
            )
            if found is None and int(self._asked.sum()) < MOST_ASKED:
                # guesses may be too high: as few as the load takes
                found = self._cheapest(np.where(self._asked, self._replicas(), self._by_load))
            if found is None:
                break
            edges = self._edges(found)
            still = [edge for edge in edges if not self._done[edge[2], edge[0], edge[1]]]
            if not still or self.steps >= STEPS:
                break
            for i, j, k in still:
                if self._asked[k, i, j]:
                    self._step(i, j, k)
                else:
                    self._ask(i, j, k)
        found = self._cheapest(np.where(self._done, self._replicas(), math.inf))
        if found is None:
            one = self._one_pool()
            return None if one is None else ((0, len(self.problem.states) - 1), [one])
        pools = []
        for i, j, k in self._edges(found):
            pool = self.problem.candidate(i, j, k, float(self._high[k, i, j]))
            assert pool is not None
            pools.append(pool)
        one = self._cheaper_one(pools)
        return (
            ((0, *(state for state, _ in found)), pools) if one is None else ((0, len(self.problem.states) - 1), [one])
        )

    def _cheaper_one(self, pools: Sequence[Pool]) -> Pool | None:
        """A single pool that the stock holds and that costs less than these; ``None`` where none is.

        What one pool takes is guessed apart from what its parts take: of every GPU type the engine thought to be cheapest is
        looked at, where it is not thought to be far dearer.
        """
        problem, top = self.problem, len(self.problem.states) - 1
        cost, best = math.fsum(pool.cost_usd_per_hour for pool in pools), None
        thought = ((self._replicas() + self._spares) * self._price)[:, 0, top]
        seen = set[str]()
        for k in np.argsort(thought, kind="stable").tolist():
            if self.kinds[k] in seen or thought[k] > (1.0 + DEARER) * cost:
                continue
            seen.add(self.kinds[k])
            price = problem.options[k].price
            room = problem.stock.get(self.kinds[k], math.inf) / price.gpus_per_replica - price.redundancy
            most = int(min(price.most_below(cost), room))
            if self._done[k, 0, top] or most < 1 or problem.capacity_bound(0, top, k) >= cost:
                continue
            found = problem.candidate(0, top, k, most) if problem.keeps_with(0, top, k, most, calmly=False) else None
            if found is not None and found.cost_usd_per_hour < cost and problem.fits((found,)):
                cost, best = found.cost_usd_per_hour, found
        return best

    def _one_pool(self) -> Pool | None:
        """A single pool that the stock holds, of the engines thought to be cheapest; ``None`` where those tried do not fit."""
        top, stock = len(self.problem.states) - 1, self.problem.stock
        number = (self._replicas() + self._spares)[:, 0, top]
        room = np.array([stock.get(kind, math.inf) for kind in self.kinds])
        costs = np.where(number * self._gpus[:, 0, 0] <= room, number * self._price[:, 0, 0], math.inf)
        for k in np.argsort(costs, kind="stable")[:ONE_POOLS].tolist():
            pool = self.problem.candidate(0, top, k, float(number[k])) if costs[k] < math.inf else None
            if pool is not None and self.problem.fits((pool,)):
                return pool
        return None

    def _edges(self, path: Labelled) -> list[tuple[int, int, int]]:
        """Lower state, upper state and option of every pool of a path that serves anybody."""
        edges = [(i, j, k) for i, (j, k) in zip((0, *(s for s, _ in path)), path, strict=False)]
        return [(i, j, k) for i, j, k in edges if not self._empty[k, i, j]]

    def _cheapest(self, replicas: FloatArray) -> Labelled | None:
        """The cheapest fleet within the stock with these numbers."""
        bought = np.where(self._empty, 0.0, replicas + self._spares)
        doubt = 1.0 if int(self._asked.sum()) < LOOKS else 1.0 + MORE_LOOKS
        costs = bought * self._price * np.where(self._asked, 1.0, doubt)
        stock: Mapping[str, float] = self.problem.stock
        found = cheapest_within(costs, bought * self._gpus, self.kinds, stock, self.problem.search.pools)
        return None if found is None else found[1]

    def _alike(self, i: int, j: int) -> NDArray[np.bool_]:
        """Pools of the shortest requests if this is one, of the longest if this is one, else the others, shape (states, states)."""
        ends = np.arange(len(self.problem.states))
        where: NDArray[np.bool_] = ((ends == 0) == (i == 0))[:, None] & ((ends == ends[-1]) == (j == ends[-1]))[None, :]
        return where

    def _ask(self, i: int, j: int, k: int) -> None:
        """Take what Poisson arrivals need of a pool; other engines on the same GPU, and other bands, are guessed wrong alike."""
        guess = float(self._needed[k, i, j])
        self._asked[k, i, j] = True
        built = self.calm.build(i, j, k)
        found = None if built is None else self._at_once(i, j, k, *built)
        if built is None or found is None:
            self._needed[k, i, j] = math.inf
            return
        law, _, model = built
        at: Sequence[float] = [s.boundary for s in self.problem.states]
        bands = np.equal(at, at[i])[:, None] & np.equal(at, at[j])[None, :]
        self._needed[self._same[k][:, None, None] & bands & ~self._asked] *= found / guess
        self._needed[k, i, j] = found
        self._learn(i, j, k, found)
        # neither the load nor what the hardware takes depends on bursts
        by_load = self.problem.rate * law.share / (self.problem.kept.utilization_cap * model.capacity_per_s)
        least = max(by_load * (1.0 - 1e-9), float(self.problem.least_replicas(self.problem.options[k], law.moments)))
        self._low[k, i, j] = self._floor[k, i, j] = math.ceil(least) - 1.0

    def _learn(self, i: int, j: int, k: int, found: float) -> None:
        """Raise the guesses of pools alike on the same GPU by the least they were too low, once enough are known."""
        ratios = self._too_low.setdefault((i == 0, j == len(self.problem.states) - 1, self.kinds[k]), [])
        ratios.append(found / float(self._guessed[k, i, j]))
        if len(ratios) >= ENOUGH_ASKED and min(ratios) > 1.0:
            alike = self._same[k][:, None, None] & self._alike(i, j) & ~self._asked & np.isfinite(self._needed)
            self._needed[alike] = np.maximum(self._needed[alike], min(ratios) * self._guessed[alike])

    def _at_once(self, i: int, j: int, k: int, law: PoolLaw, setup: ReplicaSetup, model: PoolModel) -> float | None:
        """Replicas under Poisson arrivals: from one prediction where that is near, ``None`` where no number does."""
        calm, guess = self.calm, float(self._needed[k, i, j])
        known = calm.sized().get((i, j, k))
        if known is not None:
            return known.size.needed
        rate = calm.rate * law.share
        by_load = rate / (calm.kept.utilization_cap * model.capacity_per_s)
        n = math.ceil(max(by_load * (1.0 - 1e-9), float(calm.least_replicas(calm.options[k], law.moments)), 1.0))
        # where a pool is nearly idle its latency says little about numbers
        likely = min(guess, IDLE * by_load)
        if n < likely:
            n = math.ceil(likely)
        calm.evaluations += 1
        over = excess_of(evaluate_pool(model, rate, n, calm.levels), calm.promises)
        slope = calm.slope(i, j)
        if over <= FURTHEST * slope:
            return max(n * math.exp(max(over / slope, -FURTHEST)), by_load)
        pool = calm.candidate(i, j, k, n)
        return None if pool is None else pool.size.needed

    def _off(self, model: PoolModel, rate: float, n: int) -> float:
        """Logarithm of the factor by which a number of replicas is thought to be too small."""
        prediction = looked_at(model, rate, n, self.problem.promises, self.problem.levels)
        return excess_of(prediction, self.problem.promises) / USUAL_SLOPE

    def _step(self, i: int, j: int, k: int) -> None:
        """Predict a pool along the path with the number thought to be enough."""
        problem, n = self.problem, int(self._replicas()[k, i, j])
        built = problem.build(i, j, k)
        assert built is not None
        law, _, model = built
        self.steps += 1
        rate = problem.rate * law.share
        # a replica of few is a large step: a rough look often says enough
        rough = model.guide() if n <= FEW else None
        off = -math.inf if rough is None else self._off(rough, rate, n)
        if off * USUAL_SLOPE <= CLEAR:
            off = self._off(model, rate, n)
        if off > 0.0:
            self._low[k, i, j] = n
        else:
            self._high[k, i, j] = n
        # bursts cost an engine about the same factor in all pools of the shortest requests, and in those of the longest
        untouched = (self._low[k] == self._floor[k]) & np.isinf(self._high[k])
        thought = n * math.exp(min(max(off, -FURTHEST), FURTHEST))
        # of a small pool every number is looked at: one that is passed over is not found again
        thought = min(thought, n + 1.0) if n <= FEW else thought
        factor = thought / float(self._needed[k, i, j])
        self._factor[k, untouched & self._alike(i, j)] = self._factor[k, i, j] = factor
        least = int(self._replicas()[k, i, j])
        self._done[k, i, j] = least >= self._high[k, i, j]
