"""The fleet search: pools between boundaries, every engine option per pool, bounds first, the reporting method last."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from planner.catalog.load import gpu as find_gpu
from planner.fleet.pool import (
    GUIDED,
    Pool,
    PoolSize,
    Shortfall,
    broken,
    clearly_broken,
    evaluate_pool,
    replica_for,
    smallest_pool,
    when_idle,
)
from planner.fleet.scope import TAIL_LEVELS, ScopedPool, cheapest_allocation
from planner.fleet.search import Labelled, PathSearch, SearchOutcome, cheapest_path, cheapest_within
from planner.fleet.surrogate import guess_rate
from planner.methods import find_method
from planner.methods.base import Method, PoolModel
from planner.promise import Promise
from planner.question.compiled import CompiledQuestion
from planner.replica.engine import EngineOption, ReplicaSetup, engine_options
from planner.replica.floor import hardware_floor
from planner.workload import pools as m
from planner.workload.pools import PoolLaw, State

__all__ = ["FleetProblem", "Found", "engine_choices", "gpus_by_type", "least_by_hardware"]

FloatArray = NDArray[np.float64]
Edge = tuple[int, int, int]

FEW_REPLICAS = 8
"""Up to this many replicas in one pool, splits are only sized when the guess favours them."""

TTFT_DOUBT, OTHER_DOUBT = 0.12, 0.5
"""Share by which the guess of an option's replicas may be low against another's: 20 engines on six questions were within 8%
of each other for a TTFT, within a half for a TPOT."""

MANY_REPLICAS = 40
"""From this many replicas in one pool on, a part of them matters: cuts that free an engine are looked for."""

WORTH_FREEING, MOST_FREED = 0.03, 2
"""Share of the cost that an engine must be able to save for that, and of how many engines."""

FEW_STEPS = 24
"""Up to this many replicas in a pool, sizes are ruled out one by one before the pool is sized."""

MOST_RIVALS = 4
"""Options of a pool sized or tried under bursts: the cheapest under Poisson arrivals."""

RIVAL = 0.15
"""Share by which an option may look dearer under Poisson arrivals and still be tried under bursts."""

PROMPT_BINS = 40
"""Log-spaced bins of prompt lengths for the surrogate's long prompt."""

MAX_BOUNDARIES = 60
"""Boundaries searched when the user names none: the workload's breakpoints, thinned evenly in probability."""


@dataclass(slots=True)
class _Known:
    """What a search has found out, by lower state, upper state and option: pools sized, and idle; sizes refused; least sizes."""

    pools: dict[Edge, Pool | None] = field(default_factory=dict)
    idle: dict[Edge, Shortfall | None] = field(default_factory=dict)
    refused: dict[Edge, int] = field(default_factory=dict)
    least: dict[Edge, float] = field(default_factory=dict)
    cheapest: dict[tuple[int, int], Pool | None] = field(default_factory=dict)
    calmed: set[tuple[int, int]] = field(default_factory=set)


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


def gpus_by_type(pools: Sequence[Pool]) -> dict[str, int]:
    """GPUs of each type that pools take."""
    used: dict[str, int] = {}
    for pool in pools:
        used[pool.option.gpu.name] = used.get(pool.option.gpu.name, 0) + pool.gpus
    return used


def engine_choices(question: CompiledQuestion) -> list[EngineOption]:
    """Every engine that the question leaves open."""
    method, traffic = find_method(question.method), question.traffic
    return engine_options(
        question.engines,
        question.purchase,
        traffic.workload.max_total,
        traffic.longest,
        method,
        traffic.shared_prefix,
    )


def least_by_hardware(method: Method, option: EngineOption, sums: FloatArray, rate_per_s: float) -> FloatArray:
    """Replicas that the arithmetic alone takes, for a method that takes prefill for free; 1 for the others.

    A profile that is only used by name (the paper's) is left as printed; the plan then warns.
    """
    if not (method.free_prefill and option.profile.automatic):
        return np.ones(sums.shape[:-1])
    floor = hardware_floor(
        option.gpu, option.model, rate_per_s, sums[..., m.NEW_INPUT], sums[..., m.OUTPUT], sums[..., m.KV]
    )
    found: FloatArray = np.ceil(floor.gpus / option.profile.gpus)
    return found


class FleetProblem:
    """A workload, its promises and the engines that may serve it; answers what any pool costs.

    Parameters
    ----------
    question
        What is asked.
    options
        Engine options of every pool; default all that the question leaves open.
    """

    def __init__(
        self,
        question: CompiledQuestion,
        options: Sequence[EngineOption] | None = None,
    ) -> None:
        self.question = question
        self.search, self.engines, self.kept = question.search, question.engines, question.promises
        self.workload, self.rate = question.traffic.workload, question.traffic.rate_per_s
        self.method = find_method(question.method)
        self.options = list(engine_choices(question) if options is None else options)
        self.moments = question.traffic.moments(self.engines.chunk)
        self.all_promises = self.kept.latency
        self.stock = {find_gpu(name).name: count for name, count in question.purchase.inventory.items()}
        self.fleet_promises = self.kept.of_fleet
        # what every pool keeps by itself; in the first pass of a fleet-wide question, everything
        self.promises = self.all_promises
        self.levels = self.kept.levels(TAIL_LEVELS) if self.fleet_promises else self.kept.levels()
        self.states = [State(0.0), State(self.moments.top)]
        self.evaluations = 0
        # promises that failed at any size, for the explanation of an infeasible answer
        self.shortfalls: list[Shortfall] = []
        # the same question under Poisson arrivals, where those say where to look
        self.calm: FleetProblem | None = None
        # pools with the arrivals there are, which the twin under Poisson arrivals shares
        self._arriving = question
        self._models: dict[Edge, tuple[PoolLaw, ReplicaSetup, PoolModel] | None] = {}
        self._known = _Known()
        self._preferred: dict[tuple[int, int], int] = {}
        # what bursts make of a number of replicas
        self._factor, self._sized_small = 1.1, True
        # share to which numbers of replicas are wanted
        self.rough = 0.0
        # the cheapest fleet of several pools beside the answer, where that is wanted
        self.keep_rivals = False
        self.rival_split: tuple[int, ...] | None = None
        self._edge_bounds()

    # --- the grid -------------------------------------------------------------------------------------------------

    def open_grid(self) -> None:
        """From the one pool to all states; what is known about the one pool stays known."""
        states = self._states()
        if len(states) == len(self.states):
            return
        top = len(states) - 1
        self.states = states
        known, models = self._known, [*self._models.items()]
        self._models.clear()
        self._models.update({(0, top, k): v for (_, _, k), v in models})
        known.pools = {(0, top, k): v for (_, _, k), v in known.pools.items()}
        known.idle = {(0, top, k): v for (_, _, k), v in known.idle.items()}
        known.cheapest = {(0, top): known.cheapest[0, 1]} if known.cheapest else {}
        self._edge_bounds()

    def _unbeatable(self, one: Pool) -> bool:
        """Whether the one pool costs no more than the least any pool of any option can cost."""
        least = min(o.price.cost_usd_per_hour(o.price.bought(self.kept.min_replicas)) for o in self.options)
        return one.cost_usd_per_hour <= least

    def _states(self) -> list[State]:
        top = self.moments.top
        boundaries = [b for b in self.boundary_grid() if b < top] if self.search.pools > 1 else []
        gammas = self.search.gammas if self.moments.compressible else (1.0,)
        inner = []
        for gamma in sorted({1.0, *gammas}) if 1.0 in gammas or not self.moments.compressible else sorted(gammas):
            for b in boundaries:
                # a band without anything to compress is the same pool as no band
                if gamma > 1.0 and not np.any(self.moments.band_weights(b, gamma)[1] > 0.0):
                    continue
                inner.append(State(b, gamma))
        return [State(0.0), *inner, State(top)]

    def boundary_grid(self) -> tuple[float, ...]:
        """Boundaries searched [tokens]."""
        if self.search.boundaries is not None:
            return self.search.boundaries
        points = np.unique(self.moments.total)
        if len(points) <= MAX_BOUNDARIES:
            return tuple(points.tolist())
        # even steps in probability and in log length: bulk and tail both get boundaries
        share = np.array([self.moments.cumulative(b)[m.SHARE] for b in points])
        place = share / share[-1] + np.log(points / points[0]) / math.log(points[-1] / points[0])
        wanted = np.linspace(place[0], place[-1], MAX_BOUNDARIES)
        return tuple(np.unique(points[np.searchsorted(place, wanted).clip(0, len(points) - 1)]).tolist())

    # --- bounds ---------------------------------------------------------------------------------------------------

    def _edge_bounds(self) -> None:
        """Lower bounds of the cost of every pool, by option: shape (options, states, states)."""
        upper, lower = self.moments.states(self.states)
        boundary = np.array([s.boundary for s in self.states])
        reach = np.array([s.boundary * s.gamma for s in self.states])
        top = len(self.states) - 1
        # a band must end below the next boundary, so that every request has one neighbour to be compressed into
        allowed = reach[:, None] <= np.where(np.arange(top + 1) == top, np.inf, boundary)[None, :]
        allowed &= boundary[:, None] < boundary[None, :]
        if self.search.pools <= 2:
            # every pool of such a fleet touches the bottom or the top
            inner = np.ones_like(allowed)
            inner[0, :] = inner[:, top] = False
            allowed &= ~inner
        i, j = np.nonzero(allowed)
        pools = upper[j] - lower[i]
        share = np.maximum(pools[:, m.SHARE], 0.0)
        pools[:, m.SHARE] = share
        self.option_bounds = np.full((len(self.options), top + 1, top + 1), np.inf)
        if self.method.guided:
            self.option_guides = self.option_bounds.copy()
            self.needs = self.option_bounds.copy()
            edges = np.geomspace(1.0, self.moments.longest_prompt, PROMPT_BINS)
            long_prompt = self._prompt_quantile(i, j, share, edges)
            # the lower end of the bin: nothing shorter is the promised quantile
            shortest = np.where(long_prompt > edges[0], long_prompt * edges[0] / edges[1], 0.0)
        # the paper's method is a closed form of the moments: its exact sizes take the place of bounds
        self.exact_bounds = self.method.sizes_exactly(self.options, self.promises)
        if self.exact_bounds:
            chunk = float(self.engines.chunk)
            edges = chunk * np.arange(1.0, math.ceil(self.moments.longest_prompt / chunk) + 1.0)
            chunks = self._prompt_quantile(i, j, share, edges) / chunk
        cap = self.kept.utilization_cap
        for k, option in enumerate(self.options):
            room = 0.0 if self.question.traffic.sees_output else self.question.traffic.longest_output
            high = np.where(np.arange(top + 1) == top, option.max_model_len, boundary + room)
            high = np.minimum(np.where(boundary > 0.0, high, 0.0), option.max_model_len)
            if option.kv == "paged":
                slots = np.full(high.shape, max(option.slots_upper_bound(option.max_model_len), 1e-9))
            else:
                slots = np.array([max(option.slots_upper_bound(float(h)), 1e-9) if h > 0 else 1.0 for h in high])
            if self.exact_bounds:
                needed = self.method.replicas(pools, chunks, option, slots[j], self.rate, self.promises, cap)
                needed = np.maximum(np.ceil(needed / option.copies), self.least_replicas(option, pools))
                self.option_bounds[k, i, j] = [
                    option.price.cost_usd_per_hour(option.price.bought(int(n))) if 0 < n < math.inf else n
                    for n in np.where(share <= 1e-12, 0.0, np.where(slots[j] < 1.0, math.inf, needed)).tolist()
                ]
                continue
            x = option.copies * self.method.capacity_bound(pools, option, slots[j])
            self.option_bounds[k, i, j] = self._cost_at(option, share, cap * x)
            if self.method.free_prefill:
                floor = np.where(share <= 1e-12, 0.0, self.least_replicas(option, pools))
                by_floor = floor * option.price.least_usd_per_replica_hour
                self.option_bounds[k, i, j] = np.maximum(self.option_bounds[k, i, j], by_floor)
            if self.method.guided:
                hopeless = (share > 1e-12) & self._too_slow(option, shortest)
                self.option_bounds[k, i[hopeless], j[hopeless]] = np.inf
                guess = option.copies * guess_rate(
                    pools, long_prompt, option.profile.iteration, option.token_budget, x / option.copies, self.parts
                )
                guess = np.minimum(guess, cap * x)
                self.option_guides[k, i, j] = self._cost_at(option, share, guess)
                with np.errstate(divide="ignore"):
                    self.needs[k, i, j] = np.where(hopeless, math.inf, self.rate * share / guess)
        if not self.method.guided:
            # no better guess than the bounds
            least = np.array([option.price.least_usd_per_replica_hour for option in self.options])
            self.option_guides, self.needs = self.option_bounds.copy(), self.option_bounds / least[:, None, None]
        self.bounds = np.min(self.option_bounds, axis=0)

    def least_replicas(self, option: EngineOption, sums: FloatArray, traffic: float = 1.0) -> FloatArray:
        """Replicas below which no pool goes at `traffic` times the rate: the user's minimum, and what the hardware takes."""
        return np.maximum(
            least_by_hardware(self.method, option, sums, self.rate * traffic), float(self.kept.min_replicas)
        )

    def _too_slow(self, option: EngineOption, prompt: FloatArray) -> NDArray[np.bool_]:
        """Pools whose promised quantile of prompts cannot be prefilled in time even alone on a replica."""
        limits = [p.limit_s for p in self.parts if p.metric == "ttft_s"]
        if not limits:
            return np.zeros(prompt.shape, dtype=bool)
        it = option.profile.iteration.at_batch(1.0)
        steps = np.ceil(prompt / option.token_budget)
        alone = it.t0 * steps + np.maximum(it.w * steps, it.b * prompt) + it.c * prompt + 0.5 * it.a * prompt * prompt
        slow: NDArray[np.bool_] = alone + option.profile.api_overhead_s > min(limits)
        return slow

    def _prompt_quantile(
        self, i: NDArray[np.intp], j: NDArray[np.intp], share: FloatArray, bins: FloatArray
    ) -> FloatArray:
        """Upper edge of the bin that holds the promised quantile of a pool's prompts [tokens], shape (edges,)."""
        upper, lower = self.moments.prompt_counts(self.states, bins)
        level = max((p.quantile for p in self.parts if p.metric == "ttft_s"), default=0.99)
        counts = upper[j] - lower[i]
        place = np.sum(counts < (level * np.maximum(share, 1e-300) - 5e-13)[:, None], axis=1)
        found: FloatArray = bins[np.minimum(place, len(bins) - 1)]
        return found

    def _cost_at(self, option: EngineOption, share: FloatArray, rate_per_replica: FloatArray) -> FloatArray:
        """Least cost of pools with these shares when a replica takes that rate [USD/hour]; 0 for empty pools."""
        needed = np.maximum(np.ceil(self.rate * share / rate_per_replica * (1.0 - 1e-9)), self.kept.min_replicas)
        needed = np.where(share <= 1e-12, 0.0, needed + option.price.redundancy)
        return needed * option.price.least_usd_per_replica_hour

    # --- exact pools ----------------------------------------------------------------------------------------------

    def build(self, i: int, j: int, k: int) -> tuple[PoolLaw, ReplicaSetup, PoolModel] | None:
        """The requests, replica and model of a pool of option `k` between two states; ``None`` when none fits."""
        key = (i, j, k)
        if key not in self._models:
            self._models[key] = self._build_pool(i, j, k)
        found = self._models[key]
        if found is None or self._arriving is self.question:
            return found
        law, setup, model = found
        return law, setup, model.without_bursts() or model

    def _build_pool(self, i: int, j: int, k: int) -> tuple[PoolLaw, ReplicaSetup, PoolModel] | None:
        law = self.moments.law(self.states[i], self.states[j])
        if law is None:
            return None
        option = self.options[k]
        is_top = j == len(self.states) - 1
        high = option.max_model_len if is_top else self.states[j].boundary
        replica = replica_for(self._arriving, option, law, high)
        return None if replica is None else (law, *replica)

    def candidate(self, i: int, j: int, k: int, start: float | None = None, slope: float | None = None) -> Pool | None:
        """The cheapest pool of option `k` between two states; ``None`` when no size keeps the promises.

        `start` and `slope` as :func:`planner.fleet.pool.smallest_pool` takes them.
        """
        key = (i, j, k)
        if key in self._known.pools:
            return self._known.pools[key]
        built = self.build(i, j, k)
        result = None
        if built is not None:
            law, setup, model = built
            option = self.options[k]
            rate = self.rate * law.share
            self.evaluations += 1
            least = int(self.least_replicas(option, law.moments))
            # where one pool kept its promises at no size, the next may not either: idle, it says so at once
            idle = self.idle(i, j, k) if self.shortfalls else None
            if idle is not None and idle.excess > 1.0:
                size: PoolSize | Shortfall = idle
            else:
                size = smallest_pool(
                    model, rate, self.kept.only(self.promises), least, self.levels, start, slope, self.rough
                )
            if isinstance(size, Shortfall):
                self.shortfalls.append(size)
            else:
                result = Pool(law, option, setup, model, rate, size, option.price.bought(size.replicas))
        self._known.pools[key] = result
        return result

    def idle(self, i: int, j: int, k: int) -> Shortfall | None:
        """The promise that an idle pool of option `k` keeps least well, kept or not; ``None`` when no replica fits."""
        key = (i, j, k)
        if key not in self._known.idle:
            built = self.build(i, j, k)
            self._known.idle[key] = None if built is None else when_idle(built[2], self.promises, self.levels)
        return self._known.idle[key]

    def built(self) -> dict[Edge, tuple[PoolLaw, ReplicaSetup, PoolModel]]:
        """Every pool that was set up: (lower state, upper state, option) -> its parts."""
        return {key: parts for key, parts in self._models.items() if parts is not None}

    def sized(self) -> Mapping[Edge, Pool | None]:
        """Every pool that was sized, by lower state, upper state and option; ``None`` where no size keeps the promises."""
        return self._known.pools

    def is_hopeless(self, i: int, j: int, k: int) -> bool:
        """Whether a pool was sized and keeps its promises at no number of replicas."""
        return (i, j, k) in self._known.pools and self._known.pools[i, j, k] is None

    def best(self, i: int, j: int) -> Pool | None:
        """The cheapest pool between two states over all options."""
        if (i, j) not in self._known.cheapest:
            self._known.cheapest[i, j] = self._choose(i, j)
        return self._known.cheapest[i, j]

    def _choose(self, i: int, j: int) -> Pool | None:
        """Size the option of the least guess; of the others those that keep the promises at less than it costs.

        One prediction says so, as latency does not rise with the replicas. Where a guess orders the search, an option that
        is guessed to need clearly more is passed over; its bound then stays in what is unproven.
        """
        guided = self.method.guided and self._limit() is not None
        needs = self.needs if self.method.guided else self.option_bounds
        costs = (
            needs[:, i, j] * [o.price.least_usd_per_replica_hour for o in self.options] if guided else needs[:, i, j]
        )
        best: Pool | None = None
        scale = 1.0
        for k in np.argsort(np.where(np.isfinite(costs), costs, np.inf), kind="stable").tolist():
            bound = float(self.option_bounds[k, i, j])
            if math.isinf(bound) or (best is not None and bound >= best.cost_usd_per_hour):
                continue
            if best is None:
                best = self.candidate(i, j, k)
                if best is not None and guided:
                    scale = best.size.needed / max(float(needs[k, i, j]), 1e-12)
                continue
            most = self.options[k].price.most_below(best.cost_usd_per_hour)
            if guided and float(needs[k, i, j]) * scale > most * (1.0 + self.doubt):
                continue
            if most >= 1 and self._capacity_bound(i, j, k) < best.cost_usd_per_hour and self._keeps_with(i, j, k, most):
                found = self.candidate(i, j, k, most)
                if found is not None and found.cost_usd_per_hour < best.cost_usd_per_hour:
                    best = found
                    if guided:
                        scale = best.size.needed / max(float(needs[k, i, j]), 1e-12)
        return best

    def _keeps_with(self, i: int, j: int, k: int, replicas: int, calmly: bool = True) -> bool:
        """Whether so many replicas of an option keep the promises; Poisson arrivals, which are quicker, may say no first."""
        built = self.build(i, j, k)
        if built is None:
            return False
        law, _, model = built
        if replicas < self.least_replicas(self.options[k], law.moments):
            return False
        self.evaluations += 1
        rate = self.rate * law.share
        calm = model.without_bursts() if calmly and self.question.traffic.bursts else None
        keeps = not self._clearly_broken(model, rate, replicas) and all(
            broken(evaluate_pool(m, rate, replicas, self.levels), self.promises) is None
            for m in (calm, model)
            if m is not None
        )
        if not keeps:
            self._known.refused[i, j, k] = replicas
        return keeps

    def _clearly_broken(self, model: PoolModel, rate: float, replicas: int) -> bool:
        """Whether a rough look is enough to say no: worth it where that is far quicker, or a replica less a large step."""
        worth = replicas <= FEW_REPLICAS or not self.method.guided
        return worth and clearly_broken(model, rate, replicas, self.promises, self.levels)

    @property
    def parts(self) -> tuple[Promise, ...]:
        """The promises about one latency each that every pool has to keep."""
        return self.kept.only(self.promises).parts

    @property
    def doubt(self) -> float:
        """How far the guess of one option may be off against that of another [1]."""
        return TTFT_DOUBT if all(p.metric == "ttft_s" for p in self.promises) else OTHER_DOUBT

    def _capacity_bound(self, i: int, j: int, k: int) -> float:
        """Lower bound of one option's cost from the method's own maximum throughput."""
        built = self.build(i, j, k)
        if built is None:
            return math.inf
        law, _, model = built
        needed = self.rate * law.share / (self.kept.utilization_cap * model.capacity_per_s)
        return self.options[k].price.least_cost_usd_per_hour(max(needed * (1.0 - 1e-9), self.kept.min_replicas))

    def _closer_bound(self, i: int, j: int) -> float:
        """A better bound of a pool's cost where Poisson arrivals come in closed form and bursts do not, else 0.

        At first what Poisson arrivals take. Then one prediction with bursts at the size of the cheapest option: where it breaks
        a promise, the next size is a bound.
        """
        if not self.question.traffic.bursts or self.method.guided:
            return 0.0
        for k in range(len(self.options)):
            if (i, j, k) not in self._known.least and math.isfinite(self.option_bounds[k, i, j]):
                self._known.least[i, j, k] = self._calm_size(i, j, k)
        known = {k: self._known.least[i, j, k] for k in range(len(self.options)) if (i, j, k) in self._known.least}
        if not known or 0 in known.values():
            return 0.0
        price = {k: self.options[k].price for k in known}
        k = min(known, key=lambda k: price[k].least_cost_usd_per_hour(known[k]))
        if (i, j) in self._known.calmed and known[k] <= FEW_STEPS:
            built = self.build(i, j, k)
            assert built is not None
            self.evaluations += 1
            rate, n = self.rate * built[0].share, int(known[k])
            if (
                clearly_broken(built[2], rate, n, self.promises, self.levels)
                or broken(evaluate_pool(built[2], rate, n, self.levels), self.promises) is not None
            ):
                known[k] = self._known.least[i, j, k] = known[k] + 1
        self._known.calmed.add((i, j))
        return min(price[k].least_cost_usd_per_hour(n) for k, n in known.items())

    def _calm_size(self, i: int, j: int, k: int) -> float:
        """Replicas of an option under Poisson arrivals; 0 where they are no quicker to predict."""
        built = self.build(i, j, k)
        if built is None:
            return math.inf
        if (guide := built[2].guide()) is None:
            return 0
        while (rougher := guide.guide()) is not None:
            guide = rougher
        least = int(self.least_replicas(self.options[k], built[0].moments))
        size = smallest_pool(guide, self.rate * built[0].share, self.kept.only(self.promises), least, self.levels)
        return math.inf if isinstance(size, Shortfall) else size.replicas

    def _empty(self, i: int, j: int) -> bool:
        return float(self.bounds[i, j]) == 0.0

    # --- search ---------------------------------------------------------------------------------------------------

    def solve(self) -> Found:
        """Search all fleets of at most ``search.pools`` pools."""
        if self.fleet_promises:
            return self._solve_fleet_scope()
        if self._shadowed:
            return self._solve_bursty()
        fleet = self._solve_pool_scope()
        return fleet if self._fits(fleet.pools) else self._solve_within_stock(fleet)

    def _fits(self, pools: Sequence[Pool]) -> bool:
        """Whether the inventory holds the GPUs of these pools."""
        return all(n <= self.stock.get(name, n) for name, n in gpus_by_type(pools).items())

    def _limit(self) -> int | None:
        """Pools sized before the search may stop with a gap; ``None`` = until proven."""
        allowed, effort = self.search.max_evaluations, self.method.effort
        return effort * allowed if effort and allowed else None

    def _solve_fleet_scope(self) -> Found:
        """Fleet-wide promises: every path by its bound, replicas shared out exactly, up to the limit of evaluations.

        A fleet whose every pool keeps the promise alone keeps it as a whole: that search gives the first incumbent.
        """
        first = self._solve_pool_scope()
        self._preferred = {
            edge: self.options.index(pool.option) for edge, pool in self._known.cheapest.items() if pool is not None
        }
        self._known = _Known()
        self.promises = tuple(p for p in self.all_promises if p.scope == "pool")
        self.states = [State(0.0), State(self.moments.top)]
        self._models.clear()
        self._edge_bounds()
        self.open_grid()
        top = len(self.states) - 1
        kept = first.pools if self._fits(first.pools) else ()
        incumbent = math.fsum(p.cost_usd_per_hour for p in kept) if kept else math.inf
        best, best_path = kept, first.outcome.path if kept else None
        one = first.one_pool
        limit = self.search.max_evaluations or None
        paths: list[tuple[int, ...]] = [(0, top)]
        if self.search.pools > 1:
            paths += [(0, s, top) for s in range(1, top)]
        if self.search.pools > 2 and first.outcome.path is not None and len(first.outcome.path) > 3:
            paths.append(first.outcome.path)
        cost_of = {p: math.fsum(float(self.bounds[i, j]) for i, j in itertools.pairwise(p)) for p in paths}
        bound, examined = math.inf, 0
        for path in sorted(paths, key=lambda p: cost_of[p]):
            if math.isinf(cost_of[path]):
                break
            if cost_of[path] >= incumbent or (limit is not None and examined >= limit and path != (0, top)):
                bound = cost_of[path]
                break
            examined += 1
            found = self._allocate(path, math.inf if path == (0, top) else incumbent)
            if found is None:
                continue
            cost, pools = found
            if not self._fits(pools):
                continue
            if path == (0, top):
                one = pools[0]
            if cost < incumbent:
                incumbent, best, best_path = cost, pools, path
        self.promises = self.all_promises
        if best:
            # what no pool keeps alone does not matter then
            self.shortfalls = []
        else:
            # bounds are again those of every promise
            self._edge_bounds()
        proven = incumbent <= bound and self.search.pools <= 2 and len(self.options) == 1
        outcome = SearchOutcome(best_path, incumbent, min(bound, incumbent), examined, proven)
        beyond = gpus_by_type(first.pools) if first.pools and not best else None
        return Found(tuple(best), one, outcome, len(paths), beyond)

    def _allocate(self, path: tuple[int, ...], incumbent: float) -> tuple[float, tuple[Pool, ...]] | None:
        """Cheapest replicas of one path under the fleet-wide promises, each pool with the option best alone."""
        scoped, parts = [], []
        for i, j in itertools.pairwise(path):
            if self._empty(i, j):
                continue
            k = self._preferred.get((i, j), self._preferred.get((0, len(self.states) - 1), -1))
            if k < 0 or math.isinf(self.option_bounds[k, i, j]):
                k = int(np.argmin(self.option_bounds[:, i, j]))
            built = self.build(i, j, k)
            if built is None:
                return None
            law, setup, model = built
            option = self.options[k]
            rate = self.rate * law.share
            self.evaluations += 1
            size = smallest_pool(
                model,
                rate,
                self.kept.only(self.promises),
                int(self.least_replicas(option, law.moments)),
                self.levels,
            )
            if isinstance(size, Shortfall):
                return None
            scoped.append(ScopedPool(model, rate, law.share, size.replicas, option.price.cost_of_need))
            parts.append((law, option, setup, model, rate))
        found = cheapest_allocation(scoped, self.fleet_promises, self.levels, incumbent)
        if found is None:
            return None
        cost, sizes = found
        pools = []
        for (law, option, setup, model, rate), size in zip(parts, sizes, strict=True):
            pools.append(Pool(law, option, setup, model, rate, size, option.price.bought(size.replicas)))
        return cost, tuple(pools)

    @property
    def _shadowed(self) -> bool:
        """Whether Poisson arrivals, whose predictions are quick, say where to look before bursts decide."""
        arrivals = self.question.traffic.arrivals
        dear = self.method.dear_bursts and self._limit() is not None
        return dear and arrivals is not None and bool(arrivals.dispersion)

    def _under_poisson(self) -> FleetProblem:
        """The same search under Poisson arrivals, of the same pools: quick, and rough in the numbers of replicas."""
        calm = copy(self)
        calm.question = replace(self.question, traffic=replace(self.question.traffic, bursts=False))
        calm.rough, calm.keep_rivals, calm._known = GUIDED, True, _Known()
        if self.question.traffic.sessions is not None:
            # caches do not tell bursts apart
            calm._arriving, calm._models = calm.question, {}
        return calm

    def _solve_bursty(self) -> Found:
        """Search under Poisson arrivals; size what was best there, and nearly so, as the bursts have it."""
        calm = self.calm = self._under_poisson()
        first = calm._solve_pool_scope()
        self.states, self.bounds, self.needs = calm.states, calm.bounds, calm.needs
        self.option_bounds, self.option_guides = calm.option_bounds, calm.option_guides
        self.evaluations, self.shortfalls = calm.evaluations, calm.shortfalls
        if not first.pools:
            return first
        # what is short of GPUs under Poisson arrivals is so under bursts
        fleet = self._sized_near(calm, first) if self._fits(first.pools) else None
        if fleet is not None and self._fits(fleet.pools):
            return fleet
        from planner.fleet.stock import BurstyStock

        calm.open_grid()
        self.open_grid()
        found = BurstyStock(self, calm, self._factor).solve()
        if found is None:
            fleet = fleet or self._sized_near(calm, first)
            outcome = SearchOutcome(None, math.inf, first.outcome.lower_bound, self.evaluations, False)
            return Found((), None, outcome, first.candidates, gpus_by_type(fleet.pools))
        path, pools = found
        cost = math.fsum(pool.cost_usd_per_hour for pool in pools)
        outcome = SearchOutcome(path, cost, min(first.outcome.lower_bound, cost), self.evaluations, False)
        one = None if fleet is None else fleet.one_pool
        return Found(tuple(pools), one if one is not None and self._fits((one,)) else None, outcome, first.candidates)

    def _sized_near(self, calm: FleetProblem, first: Found) -> Found:
        """The fleets that are best, or nearly so, under Poisson arrivals, as the bursts have them.

        Bursts cost every engine about the same factor: the first pool sized gives it. Bounds are those of the search.
        """
        top = len(self.states) - 1
        paths: list[tuple[int, ...]] = [(0, top)] if first.one_pool is not None else []
        for path in (first.outcome.path, calm.rival_split):
            if path is not None and len(path) > 2 and path not in paths:
                paths.append(path)
        best: tuple[tuple[int, ...], list[Pool]] | None = None
        one: Pool | None = None
        cheapest, dearer = math.inf, 1.0
        for path in paths:
            guesses = {
                (i, j): math.inf if (pool := calm.best(i, j)) is None else pool.cost_usd_per_hour
                for i, j in itertools.pairwise(path)
                if not self._empty(i, j)
            }
            guess = math.fsum(guesses.values())
            if guess * dearer > cheapest:
                continue
            # the dearest first: where it leaves nothing to gain, the others need not be sized
            pools: dict[tuple[int, int], Pool] = {}
            for edge in sorted(guesses, key=lambda e: -guesses[e]):
                others = math.fsum(
                    pools[e].cost_usd_per_hour if e in pools else guesses[e] for e in guesses if e != edge
                )
                found = self._choose_near(*edge, calm, cheapest - others)
                if found is None:
                    break
                pools[edge] = found
            else:
                cost = math.fsum(p.cost_usd_per_hour for p in pools.values())
                if path == (0, top):
                    one = pools[path]
                if cost < cheapest * (1.0 - 1e-9):
                    cheapest, dearer, best = cost, cost / guess, (path, [pools[edge] for edge in sorted(pools)])
        if best is None:
            # what keeps the promises under Poisson arrivals does not under bursts: look everywhere
            return self._solve_pool_scope()
        if len(best[1]) > 1 and (merged := self._merged(best[1], cheapest)) is not None:
            one, cheapest, best = merged, merged.cost_usd_per_hour, ((0, top), [merged])
        bound = min(first.outcome.lower_bound, cheapest)
        proven = bound >= cheapest * (1.0 - 1e-12)
        outcome = SearchOutcome(best[0], cheapest, bound, self.evaluations, proven)
        return Found(tuple(best[1]), one, outcome, first.candidates)

    def _choose_near(self, i: int, j: int, calm: FleetProblem, below: float) -> Pool | None:
        """The cheapest pool between two states below a cost, of the options nearly the cheapest under Poisson arrivals."""
        best = self._known.cheapest.get((i, j))
        if best is not None:
            return best if best.cost_usd_per_hour < below else None
        factor = self._factor
        for _, k, needed in calm.ranked(i, j)[:MOST_RIVALS]:
            most = math.inf
            if below < math.inf:
                most = self.options[k].price.most_below(below)
                if most < 1 or needed * factor > most * (1.0 + RIVAL):
                    continue
                if not self._keeps_with(i, j, k, int(most), calmly=False):
                    built = self.build(i, j, k)
                    if built is not None and self._clearly_broken(built[2], self.rate * built[0].share, int(most)):
                        # bursts are as hard on other engines
                        factor = max(factor, (most + 1.0) / needed)
                    continue
            if (found := self._sized_as(calm, i, j, k, most)) is not None and found.cost_usd_per_hour < below:
                best, below = found, found.cost_usd_per_hour
        if best is not None:
            self._known.cheapest[i, j] = best
        return best

    def _sized_as(self, calm: FleetProblem, i: int, j: int, k: int, most: float = math.inf) -> Pool | None:
        """A pool as the bursts size it, from its size under Poisson arrivals; `most` replicas are known to do."""
        known = calm.candidate(i, j, k)
        if known is None:
            return None
        start = max(1, min(most, math.ceil(known.size.needed * self._factor)))
        found = self.candidate(i, j, k, start, known.size.steepness(self.promises))
        if found is not None and (self._sized_small or found.size.replicas > FEW_REPLICAS):
            # steps of a small pool say less
            self._factor, self._sized_small = found.size.needed / known.size.needed, found.size.replicas <= FEW_REPLICAS
        return found

    def ranked(self, i: int, j: int) -> list[tuple[float, int, float]]:
        """Options of a pool by their cost before rounding: (cost [USD/hour], option, replicas), the guess where none is known.

        Guesses are scaled by what is known of the pool's cheapest option.
        """
        best = self.best(i, j)
        if best is None:
            return []
        own = self.options.index(best.option)
        scale = best.size.needed / max(float(self.needs[own, i, j]), 1e-12)
        found = []
        for k, option in enumerate(self.options):
            pool = self._known.pools.get((i, j, k))
            guess = float(self.needs[k, i, j]) * scale
            if pool is None and ((i, j, k) in self._known.pools or not math.isfinite(guess)):
                continue
            needed = guess if pool is None else pool.size.needed
            refused = self._known.refused.get((i, j, k), 0)
            found.append((max(needed, refused) * option.price.least_usd_per_replica_hour, k, max(needed, refused)))
        return sorted(found)

    def guess_split(self, one: Pool) -> tuple[float, tuple[int, ...]] | None:
        """What the cheapest fleet of several pools is guessed to cost [USD/hour], and its states, from the one pool known."""
        self.open_grid()
        top = len(self.states) - 1
        costs = self.bounds.copy()
        if self.method.guided:
            guides = self.option_guides * max(
                one.cost_usd_per_hour / float(np.min(self.option_guides[:, 0, top])), 1e-3
            )
            costs = np.maximum(np.min(guides, axis=0), costs)
        costs[0, top] = np.inf
        cost, path = cheapest_path(costs, self.search.pools)
        return None if path is None else (cost, path)

    def pools_of(self, path: Sequence[int]) -> list[Pool]:
        """The cheapest pool of every edge of a path that serves anybody."""
        found = (self.best(i, j) for i, j in itertools.pairwise(path) if not self._empty(i, j))
        return [pool for pool in found if pool is not None]

    def _solve_pool_scope(self) -> Found:
        top = len(self.states) - 1
        one = self.best(0, top)
        if one is not None and self._unbeatable(one):
            proof = SearchOutcome((0, top), one.cost_usd_per_hour, one.cost_usd_per_hour, 1, True)
            return Found((one,), one, proof, len(self.options))
        self.open_grid()
        top = len(self.states) - 1
        limit = self._limit()
        refined: set[tuple[int, int]] = set()

        def refine(i: int, j: int) -> tuple[float, bool]:
            if self._empty(i, j):
                return 0.0, True
            if self.exact_bounds:
                return float(self.bounds[i, j]), True
            # first the method's own capacity, which is cheap, then the promises
            if (i, j) not in refined and (i, j) != (0, top):
                refined.add((i, j))
                bound = min(
                    (
                        max(self._capacity_bound(i, j, k), float(self.option_bounds[k, i, j]))
                        for k in range(len(self.options))
                    ),
                    default=math.inf,
                )
                if bound > self.bounds[i, j] * (1.0 + 1e-12):
                    return bound, math.isinf(bound)
            if (i, j) != (0, top) and (bound := self._closer_bound(i, j)) > bounds[i, j] * (1.0 + 1e-12):
                return bound, math.isinf(bound)
            found = self.best(i, j)
            return (math.inf if found is None else found.cost_usd_per_hour), True

        bounds = self.bounds.copy()
        guide = None
        if self.method.guided and limit is not None:
            if one is not None:
                # the guess is off by a common factor more than by a pool's own: learn it from the one pool known exactly
                self.option_guides *= max(one.cost_usd_per_hour / float(np.min(self.option_guides[:, 0, top])), 1e-3)
            guide = np.min(self.option_guides, axis=0)
        search = PathSearch(
            bounds,
            refine,
            self.search.pools,
            should_stop=lambda: limit is not None and self.evaluations >= limit,
            guide=guide,
        )
        search.consider((0, top))
        if search.guide is not None and one is not None and one.bought > FEW_REPLICAS:
            # the guess must not be alone in saying that one pool is best: size its favourite split
            others = search.guide.copy()
            others[0, top] = np.inf
            _, path = cheapest_path(others, self.search.pools)
            if path is not None:
                search.consider(path)
            if one.bought >= MANY_REPLICAS and one.size.binding.code == "utilization_cap":
                for path in self._freed_splits(one):
                    search.consider(path)
        outcome = search.run()
        if self.keep_rivals:
            # the cheapest fleet of several pools, for what decides beside what was searched for
            others = (search.bounds if search.guide is None else search.guide).copy()
            others[0, top] = np.inf
            self.rival_split = cheapest_path(others, self.search.pools)[1]
        pools: list[Pool] = []
        if outcome.path is not None:
            for i, j in zip(outcome.path, outcome.path[1:], strict=False):
                found = None if self._empty(i, j) else self.best(i, j)
                if found is not None:
                    pools.append(found)
        if len(pools) > 1 and limit is not None and (merged := self._merged(pools, outcome.cost)) is not None:
            one, pools = merged, [merged]
            cost = merged.cost_usd_per_hour
            outcome = replace(outcome, path=(0, top), cost=cost, lower_bound=min(outcome.lower_bound, cost))
        return Found(tuple(pools), one, outcome, self._count())

    def _merged(self, pools: Sequence[Pool], cost_usd_per_hour: float) -> Pool | None:
        """One pool with an engine of a split, where that is cheaper than the split; ``None`` where none is.

        Which engines of the one pool are sized rests on guesses, and what a split found may have been passed over there.
        """
        top, best = len(self.states) - 1, None
        for k in dict.fromkeys(self.options.index(pool.option) for pool in pools):
            least = cost_usd_per_hour if best is None else best.cost_usd_per_hour
            most = self.options[k].price.most_below(least)
            if most < 1 or self._capacity_bound(0, top, k) >= least or not self._keeps_with(0, top, k, most):
                continue
            found = self.candidate(0, top, k, most)
            if found is not None and found.cost_usd_per_hour < least:
                best = self._known.cheapest[0, top] = found
        return best

    def _freed_splits(self, one: Pool) -> list[tuple[int, ...]]:
        """Cuts below which shorter requests may run with an engine of more throughput, whose iterations long ones make too long.

        Where the load alone fixes the one pool, the promises decide which engines it may have. Of each that would take more, the
        highest cut is found below which it still keeps them at the utilization cap: latencies rise with the requests admitted.
        """
        top = len(self.states) - 1
        costs = {k: self._capacity_bound(0, top, k) for k in range(len(self.options))}
        least = (1.0 - WORTH_FREEING) * one.cost_usd_per_hour
        # the dearest first: what breaks the promises by the least
        better = sorted((k for k, cost in costs.items() if cost < least), key=lambda k: -costs[k])[:MOST_FREED]
        inner = [s for s in range(1, top) if self.states[s].gamma == 1.0 and not self._empty(0, s)]

        def keeps(s: int, k: int) -> bool:
            built = self.build(0, s, k)
            if built is None or not math.isfinite(self.bounds[s, top]):
                return False
            needed = self.rate * built[0].share / (self.kept.utilization_cap * built[2].capacity_per_s)
            return self._keeps_with(0, s, k, max(1, math.ceil(needed * (1.0 + 1e-9))))

        found = []
        for k in better:
            # low keeps, high breaks
            low, high = -1, len(inner)
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if keeps(inner[middle], k) else (low, middle)
            if low >= 0:
                found.append((0, inner[low], top))
        return list(dict.fromkeys(found))

    def _solve_within_stock(self, unlimited: Found) -> Found:
        """The cheapest fleet that the inventory holds, where the cheapest of all is not.

        The cheapest labelled path by estimates is sized until it holds no estimate; with bounds in place of estimates the
        answer is then proven, or found to be none, as far as the limit of evaluations allows.
        """
        self.open_grid()
        top = len(self.states) - 1
        limit = self._limit()
        costs = self.option_bounds.copy()
        sizes = np.array([o.price.gpus_per_replica for o in self.options], dtype=np.float64)[:, None, None]
        per_replica = sizes * np.array([o.price.usd_per_gpu_hour for o in self.options])[:, None, None]
        kinds = [o.gpu.name for o in self.options]
        known = ~np.isfinite(costs) | (costs == 0.0)
        taken = np.zeros_like(costs)
        guides = np.maximum(self.option_guides, costs) if limit is not None and self.method.guided else costs
        guided = guides is not costs
        stop_at = math.inf if limit is None else self.evaluations + limit // 4
        best: tuple[float, Labelled] | None = None
        bound, finished = math.inf, False

        def size(i: int, j: int, k: int) -> None:
            guess = float(guides[k, i, j]) / self.options[k].price.least_usd_per_replica_hour
            pool = self.candidate(i, j, k, guess if guided and 1.0 <= guess < math.inf else None)
            known[k, i, j] = True
            taken[k, i, j] = 0.0 if pool is None else pool.gpus
            if pool is not None and guided:
                # other bands at the same boundaries are guessed wrong alike
                alike = (boundary[:, None] == boundary[i]) & (boundary[None, :] == boundary[j])
                guides[k, alike] *= pool.cost_usd_per_hour / guides[k, i, j]
            costs[k, i, j] = math.inf if pool is None else pool.cost_usd_per_hour

        boundary = np.array([s.boundary for s in self.states])
        # one pool of every type, by the option guessed to cost least; guesses are off by a common factor more than by their own
        ones: dict[object, int] = {}
        for k in np.argsort(guides[:, 0, top], kind="stable").tolist():
            ones.setdefault(kinds[k] if guided else k, k)
        guessed = guides[:, 0, top].copy()
        for edge in [*self._known.pools, *((0, top, k) for k in ones.values())]:
            size(*edge)
        off = [
            float(costs[k, 0, top] / guessed[k])
            for k in ones.values()
            if guessed[k] > 0.0 and costs[k, 0, top] < math.inf
        ]
        if guided and off:
            guides *= np.where(known, 1.0, max(min(off), 1.0))
        for hopes in (guides, costs) if guided else (costs,):
            while True:
                now = np.where(known, costs, np.maximum(hopes, costs))
                # no replica costs more than its price on demand: so many it takes at least
                gpus = np.where(known, taken, np.ceil(now / per_replica * (1.0 - 1e-9)) * sizes)
                found = cheapest_within(now, gpus, kinds, self.stock, self.search.pools)
                if found is None or (best is not None and found[0] >= best[0] * (1.0 - 1e-12)):
                    finished, bound = hopes is costs, math.inf if found is None else found[0]
                    break
                edges = zip((0, *(s for s, _ in found[1])), found[1], strict=False)
                open_edges = [(i, j, k) for i, (j, k) in edges if not known[k, i, j]]
                if not open_edges:
                    best = found
                    continue
                if self.evaluations >= stop_at:
                    bound = found[0]
                    break
                for edge in open_edges:
                    size(*edge)
        if best is None or not finished:
            # out of evaluations: the cheapest of what is sized
            best = cheapest_within(np.where(known, costs, np.inf), taken, kinds, self.stock, self.search.pools)
        pools = []
        cost, path = best or (math.inf, ())
        for i, (j, k) in zip((0, *(s for s, _ in path)), path, strict=False):
            if not self._empty(i, j):
                pool = self.candidate(i, j, k)
                assert pool is not None
                pools.append(pool)
        bound = max(min(bound, cost), unlimited.outcome.lower_bound)
        outcome = SearchOutcome((0, *(s for s, _ in path)) if path else None, cost, bound, self.evaluations, finished)
        one = unlimited.one_pool
        return Found(
            tuple(pools),
            one if one is not None and self._fits((one,)) else None,
            outcome,
            self._count(),
            None if pools else gpus_by_type(unlimited.pools),
        )

    def _count(self) -> int:
        """Fleets in the grid: paths of at most K edges, times the options of every pool."""
        top = len(self.states) - 1
        edges = np.isfinite(self.bounds).astype(np.float64) * len(self.options)
        paths = edges[:, top].copy()
        total = paths[0]
        for _ in range(1, self.search.pools):
            paths = edges @ np.where(np.arange(top + 1) == top, 0.0, paths)
            total += paths[0]
        return int(total)
