"""A question of sizing: what any pool of the grid costs, asked one question at a time, and the cheapest fleet of such pools."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from planner.catalog.load import full_w
from planner.errors import InputError
from planner.predict import traffic
from planner.predict.contract import PoolModel
from planner.predict.replayed import ROOTS
from planner.predict.replica import EngineOption
from planner.promise import MEAN, Promise
from planner.question.compiled import CompiledQuestion, Promises
from planner.size.grid import SearchGrid
from planner.size.pool import (
    Pool,
    Shortfall,
    evaluate_pool,
    excess_of,
    fits,
    pool_for,
    smallest_pool,
    unsure,
    when_idle,
)
from planner.size.search import Edge, FloatArray, Labelled, PoolSearch, edges_of

UNITS = 10
"""Parts into which the late requests that a promise of the whole fleet allows are shared out between its pools."""

STEP, MANY = 1.25, 8
"""Replicas over those that an engine is known to need about which it is asked next; replicas of its bound from which that pays, and
times its bound up to which it is asked about so before it is sized [1]."""

KEPT_BACK = 0.8
"""Late requests that pools of a fleet of several may have, over what their promise allows: a search of thousands of pools finds
those that one draw of the traffic happens to spare; decided at four fifths 39 of 40 fresh draws were kept, at all 26."""


TRIED = 12
"""Fresh draws of the traffic on which a fleet of several pools is held against one pool."""

LATE = "late"
"""What stands for a GPU type where parts of the late requests are shared out."""

POWER, POWER_UNITS = "power", 2000
"""What stands for a GPU type where power is bounded, and the parts in which it is counted."""


class FleetProblem(SearchGrid):
    """A workload, its promises and the engines that may serve it; answers what any pool costs.

    Choices of a pool are its engine and, where the promises are the fleet's, how many parts of the late requests are its own.

    Parameters
    ----------
    question
        What is asked.
    options
        Engine options of every pool; default all that the question leaves open.
    """

    def __init__(self, question: CompiledQuestion, options: Sequence[EngineOption] | None = None) -> None:
        super().__init__(question, options)
        self.stock, self.max_w = question.stock, question.max_w
        if self.stock and self.max_w < math.inf:
            raise InputError(
                "max_kw: stands beside inventory, and the search keeps to one of them", "Give the one that binds."
            )
        self.units = UNITS if self.fleet_promises else 1
        self.evaluations = 0
        # whether it is asked alone if a fleet may cost less than another
        self.roughly = False
        # promises that failed at any size, for the explanation of an infeasible answer
        self.shortfalls: list[Shortfall] = []
        # those of pools that were not set up, roughly; None = all are
        self.hopeless: dict[Edge, Shortfall] | None = {}
        self._built: dict[Edge, Pool | None] = {}
        self._pools: dict[Edge, Pool | None] = {}
        self._refused: dict[Edge, int] = {}
        self._idle: dict[Edge, Shortfall | None] = {}

    def open_grid(self) -> None:
        """From the one pool to all states; what is known about the one pool stays known."""
        states = self.all_states
        if len(states) == len(self.states):
            return
        top = len(states) - 1
        self.states = states
        self._built = {(0, top, k): value for (_, _, k), value in self._built.items()}
        self._pools = {(0, top, k): value for (_, _, k), value in self._pools.items()}
        self._refused = {(0, top, k): value for (_, _, k), value in self._refused.items()}
        self._idle = {(0, top, k): value for (_, _, k), value in self._idle.items()}
        self.hopeless = self.hopeless and {(0, top, k): value for (_, _, k), value in self.hopeless.items()}
        self.set_bounds()

    def begin(self) -> None:
        """Size the engine that is likely the cheapest: what others need that have a lower bound is often many times it."""
        likely = next((k for k, option in enumerate(self.options) if option.label == self.question.likely), None)
        if likely is not None:
            # of those that differ in their slots alone the likeliest
            self.candidate(0, len(self.states) - 1, self.whole(likely))

    def option(self, k: int) -> EngineOption:
        """The engine of a choice."""
        return self.options[k // self.units]

    def whole(self, k: int) -> int:
        """The choice of an engine with all late requests that are allowed."""
        return k * self.units + self.units - 1

    def known(self) -> tuple[FloatArray, NDArray[np.bool_]]:
        """What is known of the cost of every choice [USD/hour]: bounds, and which are the cost; shape (choices, states, states)."""
        bounds = np.repeat(self.option_bounds, self.units, axis=0)
        exact = ~np.isfinite(bounds) | (bounds == 0.0)
        for (i, j, k), refused in self._refused.items():
            bounds[k, i, j] = max(float(bounds[k, i, j]), self.option(k).price.cost_of_need(refused + 1))
        for (i, j, k), pool in self._pools.items():
            bounds[k, i, j], exact[k, i, j] = math.inf if pool is None else pool.cost_usd_per_hour, True
        return bounds, exact

    def promises_of(self, i: int, j: int, k: int, share: float) -> tuple[Promise, ...]:
        """What a pool with a share of the requests [1] keeps, of a choice."""
        several = not (i == 0 and j == len(self.states) - 1) and self.method.replays
        return kept_by(self.kept, several, (k % self.units + 1) / self.units, share)

    def build(self, i: int, j: int, k: int) -> Pool | None:
        """A pool of engine `k` between two states, of no size yet; ``None`` when no replica fits."""
        key = (i, j, k)
        if key not in self._built:
            law = self.moments.law(self.states[i], self.states[j])
            option, is_top = self.options[k], j == len(self.states) - 1
            high = option.max_model_len if is_top else self.states[j].boundary
            self._built[key] = None if law is None else pool_for(self.question, option, law, high)
        return self._built[key]

    def ask(self, i: int, j: int, k: int, room: float, limited: bool = False) -> tuple[float, bool]:
        """See :class:`planner.size.search.PoolSearch`: one question, and where it is answered with yes the pool's size; no more is
        asked about than there is, where it is `limited`."""
        if self.exact_bounds:
            return float(self.option_bounds[k, i, j]), True
        price, key = self.option(k).price, (i, j, k)
        stock = self._most_gpus(self.option(k)) if limited else None
        # what costs less than the bound is refused unasked
        below, asked = price.most_below(float(self.option_bounds[k // self.units, i, j])), self._refused.get(key, 0)
        if (known := self._least_known(key, limited)) > price.cost_of_need(max(asked, below) + 1):
            room = min(room, known)
        limits = [price.most_below(room)] if room < math.inf else self._step(key, below, asked)
        if limits or stock is not None:
            most = min(limits if stock is None else [*limits, price.most_within(stock)])
            if most <= max(asked, below) or not self.keeps(key, most, sure=self.roughly and self._is_short(key, most)):
                # one that is asked again may be beyond help
                hopeless = asked > 0 and self._is_hopeless(key)
                self._refused[key] = max(most, asked, below)
                return (math.inf, True) if hopeless else (price.cost_of_need(self._refused[key] + 1), False)
            if self.roughly:
                return price.cost_of_need(most), True
        pool = self.candidate(i, j, k, float(most) if limits or stock is not None else None)
        return (math.inf if pool is None else pool.cost_usd_per_hour), True

    def _is_short(self, key: Edge, replicas: int) -> bool:
        """Whether the requests of one pool for all are so few that all of them decide rows beside a plan too."""
        built = self.build(key[0], key[1], key[2] // self.units) if key[:2] == (0, len(self.states) - 1) else None
        return built is not None and built.model.is_short(self.rate, replicas)

    def _least_known(self, key: Edge, limited: bool) -> float:
        """What the cheapest known pool costs that stands for one of this choice wherever it may be [USD/hour]: between the same
        states, of as many late requests, and within a stock of the same GPUs at one price each."""
        i, j, k = key
        gpu, price, found = self.option(k).gpu.name, self.option(k).price, math.inf
        for other in range(k % self.units, len(self.options) * self.units, self.units):
            if (pool := self._pools.get((i, j, other))) is None:
                continue
            own = pool.option.price
            alike = (own.usd_per_gpu_hour, own.spot_usd_per_gpu_hour) == (price.usd_per_gpu_hour, None)
            if not limited or (pool.option.gpu.name == gpu and alike and price.spot_usd_per_gpu_hour is None):
                found = min(found, pool.cost_usd_per_hour)
        return found

    def _step(self, key: Edge, below: int, asked: int) -> list[int]:
        """How many replicas an engine is asked about before any fleet is known, one number or none: a step beyond those it is
        known to need, so that one which needs many times its bound is left for another before it is sized."""
        i, j, k = key
        allowed = self.inputs.max_evaluations
        if below < MANY or self.units > 1 or 0 < allowed <= 3 * (self.evaluations + 1):
            # what a search may ask is kept for its answer
            return []
        if (built := self.build(i, j, k // self.units)) is None:
            return []
        near = self.question.near_per_s * built.law.share / built.model.capacity_at(1)
        most = math.ceil(max(near if not asked else 0.0, STEP * max(below, asked)))
        return [most] if most < MANY * below else []

    def _most_gpus(self, option: EngineOption) -> int | None:
        """The most GPUs of an engine that there are or that the power suffices for; ``None`` = any number."""
        if self.max_w < math.inf:
            return int(self.max_w / full_w(option.gpu.name))
        return self.stock.get(option.gpu.name)

    def keeps(self, key: Edge, replicas: int, sure: bool = False, nearly: bool = False) -> bool:
        """Whether so many replicas of a choice keep its promises; all requests decide where it is to be `sure`, and so many more
        may be late as a sample errs by where it is to be `nearly` so."""
        i, j, k = key
        built = self.build(i, j, k // self.units)
        if built is None or replicas < int(self.least_replicas(self.option(k), built.law.moments)):
            return False
        law, model, rate = built.law, built.model, built.rate_per_s
        promises = self.promises_of(i, j, k, law.share)
        self.evaluations += 1
        if nearly:
            promises = tuple(p for q in promises if (p := held_to(q, 1.0 + error_of_sample(q))) is not None)
        slow = model.under(self.margin(self.option(k)).slow)
        whole = self.whole(k // self.units)
        if k != whole and not slow.keeps(rate, replicas, self.promises_of(i, j, whole, law.share)):
            # what all late requests do not suffice for, no part of them does; how many are late answers for every part
            return False
        if promises and not slow.keeps(rate, replicas, promises, sure):
            return False
        # the capacity takes longer to find than most promises to break
        return rate <= self.kept.utilization_cap * replicas * model.capacity_at(replicas) * (1.0 + 1e-12)

    def spared(self, cost: float) -> Iterator[tuple[Edge, Pool]]:
        """One pools for less than a cost [USD/hour] that a sample of the requests refused by so few of them that it may err, and
        that all requests do not refuse, the cheapest first."""
        top, asked = len(self.states) - 1, dict(self._refused)
        asked |= {key: pool.replicas - 1 for key, pool in self._pools.items() if pool is not None}
        costs = sorted((self.option(key[-1]).price.cost_of_need(n), key, n) for key, n in asked.items())
        for _, (i, j, k), n in costs:
            price = self.option(k).price
            if (i, j) != (0, top) or n > price.most_below(cost) or k != self.whole(k // self.units):
                continue
            if n <= price.most_below(float(self.option_bounds[k // self.units, i, j])):
                continue
            if self.keeps((i, j, k), n, nearly=True) and self.keeps((i, j, k), n, sure=True):
                built = self.build(i, j, k // self.units)
                assert built is not None
                yield (i, j, k), built.sized(n)

    def _is_hopeless(self, key: Edge) -> bool:
        """Whether no number of replicas would do: nothing fits, or what is idle breaks a promise."""
        i, j, k = key
        if self.build(i, j, k // self.units) is None:
            return True
        idle = self.idle(i, j, k // self.units)
        return idle is not None and idle.excess > 1.0 and not self.fleet_promises

    def candidate(self, i: int, j: int, k: int, start: float | None = None) -> Pool | None:
        """The smallest pool of a choice between two states; ``None`` when no size keeps the promises.

        `start` as :func:`planner.size.pool.smallest_pool` takes it.
        """
        key = (i, j, k)
        if key in self._pools:
            return self._pools[key]
        if self.hopeless is not None and (found := self._breaks_alone(key)) is not None:
            self.evaluations += 1
            self.hopeless[key] = found
            self.shortfalls.append(found)
            self._pools[key] = None
            return None
        built, result, option = self.build(i, j, k // self.units), None, self.option(k)
        if built is not None:
            law, model = built.law, built.model
            promises = self.kept.only(self.promises_of(i, j, k, law.share))
            self.evaluations += 1
            least = max(int(self.least_replicas(option, law.moments)), self._refused.get(key, 0) + 1)
            levels, margin = promises.levels(self.levels), self.margin(option)
            if start is None and self.question.near_per_s:
                start = math.ceil(self.question.near_per_s * law.share / model.capacity_at(1) * (1.0 - 1e-9))
            size = smallest_pool(model, built.rate_per_s, promises, least, levels, start, quick=True, margin=margin)
            if isinstance(size, Shortfall):
                self.shortfalls.append(size)
            else:
                result = built.sized(*size)
        self._pools[key] = result
        return result

    def _breaks_alone(self, key: Edge) -> Shortfall | None:
        """What an idle pool breaks beyond doubt: alone a request takes as long whatever a replica holds beside it."""
        i, j, k = key
        whole, law = (0, len(self.states) - 1, k // self.units), self.moments.law(self.states[i], self.states[j])
        one = self.build(*whole) if (i, j) == whole[:2] else self._built.get(whole)
        if one is None or law is None:
            return None
        slow = one.model.under(self.margin(self.option(k)).slow)
        found = slow.breaks_alone(law, self.kept.only(self.promises_of(i, j, k, law.share)).latency)
        return None if found is None else Shortfall(*found)

    def told_exactly(self) -> list[Shortfall]:
        """What pools break that were sized, and those that were not set up, which now are."""
        roughly, self.hopeless = self.hopeless or {}, None
        self.shortfalls = [s for s in self.shortfalls if all(s is not other for other in roughly.values())]
        for key in roughly:
            del self._pools[key]
            self.evaluations -= 1
            self.candidate(*key)
        return self.shortfalls

    def resize(self, edges: Sequence[Edge], pools: Sequence[Pool]) -> bool:
        """Pools of the search that turn out to take more than it had them take; whether there are any."""
        grown = False
        for edge, pool in zip(edges, pools, strict=True):
            known = self._pools[edge]
            if known is not None and pool.bought > known.bought:
                self._pools[edge], grown = known.sized(pool.replicas, pool.prediction, pool.binding), True
        return grown

    def alike(self, edge: Edge, pool: Pool) -> Pool:
        """Of the engines that differ from a pool's in settings alone, the one that keeps the promises best with as many replicas.

        They cost the same, and more room is worth having.
        """
        i, j, own = edge[0], edge[1], edge[2] // self.units
        alone = (i, j) == (0, len(self.states) - 1)
        shared = self.promises_of(i, j, self.whole(own) if alone else edge[2], pool.law.share)
        promises = shared if self.fleet_promises else self.kept.of_pools
        if not promises:
            return pool
        rate, n, levels = pool.rate_per_s, pool.replicas, self.kept.only(promises).levels(self.levels)

        def rank(option: EngineOption, model: PoolModel) -> tuple[float | bool, ...]:
            over = excess_of(evaluate_pool(model.under(self.margin(option).slow), rate, n, levels, True), promises)
            # of equals the smaller budget, whichever of them was asked first
            return over > 0.0, waits(option), over, option.token_budget

        def waits(option: EngineOption) -> bool:
            """Whether requests wait for one of few slots, which is done only where that is needed."""
            return option.max_num_seqs is not None and not self.inputs.max_num_seqs

        best, least = pool, rank(pool.option, pool.model)
        for k, option in enumerate(self.options):
            same = option.gpu.name == pool.option.gpu.name and option.parallel == pool.option.parallel
            same = same and option.price == pool.option.price and option.profile.name == pool.option.profile.name
            if k == own or not same or waits(option) > waits(pool.option) or (built := self.build(i, j, k)) is None:
                continue
            if n < int(self.least_replicas(option, built.law.moments)):
                continue
            if rate > self.kept.utilization_cap * n * built.model.capacity_at(n):
                continue
            if (own_rank := rank(option, built.model)) < least:
                least = own_rank
                best = replace(pool, law=built.law, option=option, setup=built.setup, model=built.model)
        return best

    def idle(self, i: int, j: int, k: int) -> Shortfall | None:
        """The promise that an idle pool of engine `k` keeps least well, kept or not; ``None`` when no replica fits."""
        key = (i, j, k)
        if key not in self._idle:
            built, margin, found = self.build(i, j, k), self.margin(self.options[k]), None
            if built is not None:
                slow = built.model.under(margin.slow)
                found = when_idle(slow, self.promises, self.levels)
                if found is not None and found.excess > 1.0:
                    found = unsure(found, built.model, slow, self.levels, margin)
            self._idle[key] = found
        return self._idle[key]

    def built(self) -> dict[Edge, Pool]:
        """Every pool that was set up, by lower state, upper state and engine."""
        return {key: pool for key, pool in self._built.items() if pool is not None}

    def sized(self) -> Mapping[Edge, Pool | None]:
        """Every pool that was sized, by lower state, upper state and choice; ``None`` where no size keeps the promises."""
        return self._pools

    def stops(self) -> bool:
        """Whether as many questions were asked as are allowed: the search then ends with a gap."""
        allowed = self.inputs.max_evaluations
        return bool(allowed) and self.evaluations >= allowed


def error_of_sample(promise: Promise) -> float:
    """By how much late requests of the smallest sample may differ from their share of all, over those that a promise allows [1]."""
    return ROOTS / math.sqrt((1.0 - promise.quantile) * min(traffic.SAMPLE, traffic.DRAWN // 2))


def kept_by(promises: Promises, several: bool, units: float, share: float) -> tuple[Promise, ...]:
    """What a pool keeps by itself that is one of `several`, or alone.

    Parameters
    ----------
    promises
        Of the fleet.
    units, share
        Its part of the late requests that promises of the fleet allow, and of all requests [1].
    """
    part = KEPT_BACK if several else 1.0
    own = [held_to(p, part) for p in promises.of_pools]
    own += [held_to(p, part * units / share) for p in promises.of_fleet]
    return tuple(p for p in own if p is not None)


def held_to(promise: Promise, part: float) -> Promise | None:
    """A promise that allows a part of its late requests [1]; ``None`` where all may be late.

    >>> held_to(Promise("ttft_s", 0.5, 0.99), 0.5).quantile
    0.995
    """
    if promise.quantile == MEAN:
        return promise
    late = part * (1.0 - promise.quantile)
    # all of them to rounding: 0.9 of 1 is no tenth to the last bit
    return None if late >= 1.0 - 1e-12 else replace(promise, quantile=round(1.0 - late, 12), scope="pool")


# --- the search -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a search.

    Parameters
    ----------
    pools
        Chosen pools with where they lie, shortest requests first; empty when no fleet is feasible.
    one_pool
        The best fleet of one pool without compression; ``None`` when infeasible.
    cost, bound
        What the search has the fleet cost, inf where there is none, and what no fleet of the grid costs less than [USD/hour].
    alone
        The same of one pool.
    candidates
        Fleets of the grid.
    beyond
        The cheapest fleet there would be without a limit, where none was found within it.
    """

    pools: tuple[tuple[Edge, Pool], ...]
    one_pool: tuple[Edge, Pool] | None
    cost: float
    bound: float
    alone: tuple[float, float]
    candidates: int
    beyond: tuple[Pool, ...] = ()

    @property
    def proven(self) -> bool:
        """Whether no fleet of the grid is cheaper."""
        return self.cost <= self.bound * (1.0 + 1e-9)


def solve(problem: FleetProblem) -> Found:
    """The cheapest fleet of at most ``inputs.pools`` pools, within the inventory or the power."""
    bounded = problem.stock or problem.max_w < math.inf
    # a promise of the fleet has no search within an inventory
    found = _solve(problem, limited=True) if bounded and not problem.fleet_promises else None
    if found is not None and (found.pools or not problem.question.explained):
        return found
    free = _solve(problem, limited=False)
    beyond = tuple(pool for _, pool in free.pools)
    if fits(problem.question, beyond):
        return free
    # what there would be without a limit is told where there is nothing within it
    cost, bound = (free.cost, free.bound) if found is None else (found.cost, found.bound)
    return replace(free, pools=(), one_pool=None, cost=cost, bound=bound, beyond=beyond)


def _solve(problem: FleetProblem, limited: bool) -> Found:
    """The same, within the inventory where it is `limited`."""
    ask = partial(problem.ask, limited=limited)
    problem.begin()
    first = PoolSearch(*problem.known(), ask, _stock(problem, limited), problem.stops)
    cost, path, bound = first.run(1)
    alone, one = (cost, bound), _pools(problem, path)
    if problem.inputs.pools == 1 or (one and _is_unbeatable(problem, one[0][1])):
        return Found(one, one[0] if one else None, cost, bound, alone, problem.fleets())
    problem.open_grid()
    top = len(problem.states) - 1
    search = PoolSearch(*problem.known(), ask, _stock(problem, limited), problem.stops)
    path = None if path is None else ((top, path[0][1]),)
    one = _pools(problem, path)
    # what is asked for fewer pools is known for more
    for count in sorted({2, problem.inputs.pools}):
        cost, path, bound = search.run(count, (cost, path))
    return Found(_pools(problem, path), one[0] if one else None, cost, bound, alone, problem.fleets())


def may_cost_less(problem: FleetProblem, usd_per_hour: float) -> bool:
    """Whether a fleet may cost less than so much: one question an engine, which is not sized."""
    problem.roughly = True
    limited = not problem.fleet_promises
    ask, best = partial(problem.ask, limited=limited), (usd_per_hour, None)
    for pools in sorted({1, problem.inputs.pools}):
        if pools > 1:
            problem.open_grid()
        search = PoolSearch(*problem.known(), ask, _stock(problem, limited), problem.stops)
        if search.run(pools, best)[1] is not None:
            return True
    return problem.stops()


def tried(problem: FleetProblem, found: Found) -> Found:
    """The one pool where a fleet of several that was found keeps the promises less often: draws that were searched spared it."""
    pools, one = found.pools, found.one_pool
    if one is None or len(pools) == 1 or not problem.method.replays or problem.fleet_promises:
        return found
    if (held := _kept(problem, pools)) == TRIED or held >= _kept(problem, (one,)):
        return found
    return replace(found, pools=(one,), cost=found.alone[0], bound=found.alone[1])


def _pools(problem: FleetProblem, path: Labelled | None) -> tuple[tuple[Edge, Pool], ...]:
    """The pools of a path, those that serve nobody left out."""
    found = []
    for i, j, k in edges_of(path or ()):
        if not problem.is_empty(i, j) and (pool := problem.candidate(i, j, k)) is not None:
            found.append(((i, j, k), pool))
    return tuple(found)


def _stock(
    problem: FleetProblem, limited: bool
) -> tuple[Callable[[FloatArray], FloatArray], Sequence[str], Mapping[str, int]] | None:
    """What a search has in stock: GPUs, or the late requests that a promise of the fleet allows."""
    if problem.fleet_promises:
        units = np.tile(np.arange(1.0, UNITS + 1.0), len(problem.options))[:, None, None]
        return (lambda costs: np.broadcast_to(units, costs.shape)), [LATE] * units.size, {LATE: UNITS}
    if not limited or not (problem.stock or problem.max_w < math.inf):
        return None
    sizes = np.array([o.price.gpus_per_replica for o in problem.options], dtype=np.float64)[:, None, None]
    price = np.array([o.price.least_usd_per_replica_hour for o in problem.options])[:, None, None]

    def gpus(costs: FloatArray) -> FloatArray:
        """No replica costs less than that: so many a pool takes at least."""
        found = np.ceil(np.where(np.isfinite(costs), costs, 0.0) / price * (1.0 - 1e-6)) * sizes
        for (i, j, k), pool in problem.sized().items():
            if pool is not None:
                found[k, i, j] = pool.gpus
        return np.asarray(found)

    def power(costs: FloatArray) -> FloatArray:
        """Of the bound, in :data:`POWER_UNITS` of it."""
        watts = np.array([full_w(o.gpu.name) for o in problem.options])[:, None, None]
        return np.asarray(np.ceil(gpus(costs) * watts / problem.max_w * POWER_UNITS * (1.0 - 1e-9)))

    if problem.max_w < math.inf:
        return power, [POWER] * len(problem.options), {POWER: POWER_UNITS}
    return gpus, [o.gpu.name for o in problem.options], problem.stock


def _is_unbeatable(problem: FleetProblem, one: Pool) -> bool:
    """Whether the one pool costs no more than the least any pool of any option can cost."""
    least = min(o.price.cost_usd_per_hour(o.price.bought(problem.kept.min_replicas)) for o in problem.options)
    return one.cost_usd_per_hour <= least


def _kept(problem: FleetProblem, pools: Sequence[tuple[Edge, Pool]]) -> int:
    """On how many fresh draws of the traffic and its gateway all pools keep their promises."""
    held = 0
    for draw in range(traffic.DRAWS, traffic.DRAWS + TRIED):
        held += all(
            pool.model.under(problem.margin(pool.option).slow, draw).keeps(
                pool.rate_per_s, pool.replicas, problem.kept.of_pools
            )
            for _, pool in pools
        )
    return held
