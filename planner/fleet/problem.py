"""A question of sizing: what any pool of the grid costs, each sized once, by its bound first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

import numpy as np

from planner.catalog.load import gpu as find_gpu
from planner.fleet.grid import FloatArray, SearchGrid
from planner.fleet.pool import (
    CLEAR,
    GUIDED,
    USUAL_SLOPE,
    Pool,
    PoolSize,
    Shortfall,
    broken,
    clearly_broken,
    evaluate_pool,
    excess_of,
    gpus_by_type,
    looked_at,
    never_kept,
    replica_for,
    smallest_pool,
    when_idle,
)
from planner.fleet.search import cheapest_path
from planner.methods.base import PoolModel
from planner.promise import Promise
from planner.question.compiled import CompiledQuestion
from planner.replica.engine import EngineOption, ReplicaSetup
from planner.workload.pools import PoolLaw, State

Edge = tuple[int, int, int]
"""Lower state, upper state and option of a pool."""

FEW_REPLICAS = 8
"""Up to this many replicas in one pool, splits are only sized when the guess favours them."""

TTFT_DOUBT, OTHER_DOUBT = 0.12, 0.5
"""Share by which the guess of an option's replicas may be low against another's: 20 engines on six questions were within 8%
of each other for a TTFT, within a half for a TPOT."""

MOST_BOUNDED = 3
"""Options of a pool whose capacity is worked out for a better bound: it takes their models."""

LEARNED_DOUBT = 0.04
"""The same once both were sized, or refused, in a pool of requests alike."""

STEEP = 4.0
"""Fall of the logarithm of a latency with that of the replicas that is seldom exceeded."""

TRIFLE = 0.002
"""Share of the cost that a search which knows numbers only roughly does not look for: large pools are sized to twice as much."""

LOW_LOAD = 0.35
"""Load of a pool below which a promise close to what an idle replica takes decides: guesses say little of other groups of GPUs,
for which it may be less close, and one engine of every group is tried."""

BOUND = 1.15
"""Replicas thought to be needed over those the load takes from which on the promises are thought to bind."""

NEARLY = 0.9
"""Share of a promise's limit that an idle replica takes from which on the most replicas are looked at first where another pool kept
its promises at no size: climbing to them takes six predictions."""

FEW_STEPS = 24
"""Up to this many replicas in a pool, sizes are ruled out one by one before the pool is sized."""


@dataclass(slots=True)
class Known:
    """What a search has found out, by lower state, upper state and option.

    Pools sized, and idle; sizes refused, and by how much, and sizes that keep the promises; least sizes.
    """

    pools: dict[Edge, Pool | None] = field(default_factory=dict)
    idle: dict[Edge, Shortfall | None] = field(default_factory=dict)
    refused: dict[Edge, int] = field(default_factory=dict)
    kept: dict[Edge, int] = field(default_factory=dict)
    over: dict[Edge, float] = field(default_factory=dict)
    least: dict[Edge, float] = field(default_factory=dict)
    cheapest: dict[tuple[int, int], Pool | None] = field(default_factory=dict)
    # of pools of the shortest, middle or longest requests: how fast latencies fell, and by how much guesses were too low by option
    slopes: dict[tuple[bool, bool], float] = field(default_factory=dict)
    off: dict[tuple[bool, bool, int], float] = field(default_factory=dict)
    calmed: set[tuple[int, int]] = field(default_factory=set)


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
        # the same question under Poisson arrivals, where those say where to look
        self.calm: FleetProblem | None = None
        # pools with the arrivals there are, which the twin under Poisson arrivals shares
        self._arriving = question
        self._models: dict[Edge, tuple[PoolLaw, ReplicaSetup, PoolModel] | None] = {}
        self.known = Known()
        # share to which numbers of replicas are wanted
        self.rough = 0.0
        # what guesses were multiplied by, so that they agree with what is known; 0 = nothing
        self.scaled = 0.0

    def open_grid(self) -> None:
        """From the one pool to all states; what is known about the one pool stays known."""
        states = self.all_states
        if len(states) == len(self.states):
            return
        top = len(states) - 1
        self.states = states
        known, models = self.known, [*self._models.items()]
        self._models.clear()
        self._models.update({(0, top, k): v for (_, _, k), v in models})
        known.pools = {(0, top, k): v for (_, _, k), v in known.pools.items()}
        known.idle = {(0, top, k): v for (_, _, k), v in known.idle.items()}
        known.refused = {(0, top, k): v for (_, _, k), v in known.refused.items()}
        known.over = {(0, top, k): v for (_, _, k), v in known.over.items()}
        known.kept = {(0, top, k): v for (_, _, k), v in known.kept.items()}
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

    def under_poisson(self) -> FleetProblem:
        """The same search under Poisson arrivals, of the same pools: quick, and rough in the numbers of replicas."""
        calm = copy(self)
        calm.question = replace(self.question, traffic=replace(self.question.traffic, bursts=False))
        calm.rough, calm.known = GUIDED, Known()
        if self.question.traffic.sessions is not None:
            # caches do not tell bursts apart
            calm._arriving, calm._models = calm.question, {}
        return calm

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
        if key in self.known.pools:
            return self.known.pools[key]
        built = self.build(i, j, k)
        result = None
        if built is not None:
            law, setup, model = built
            option = self.options[k]
            rate = self.rate * law.share
            self.evaluations += 1
            least = int(self.least_replicas(option, law.moments))
            # where one pool kept its promises at no size, the next may not either: idle, it says so at once
            idle = self.idle(i, j, k) if self.shortfalls and key not in self.known.kept else None
            never = idle
            if idle is not None and NEARLY < idle.excess <= 1.0:
                never = never_kept(model, rate, self.kept.only(self.promises), max(least, 1), self.levels)
            if never is not None and never.excess > 1.0:
                size: PoolSize | Shortfall = never
            else:
                if slope is None:
                    slope = self.known.slopes.get(self._ends(i, j))
                size = smallest_pool(
                    model, rate, self.kept.only(self.promises), least, self.levels, start, slope, self.rough
                )
                self._learn(i, j, k, size)
            if isinstance(size, Shortfall):
                self.shortfalls.append(size)
            else:
                result = Pool(law, option, setup, model, rate, size, option.price.bought(size.replicas))
        self.known.pools[key] = result
        return result

    def _ends(self, i: int, j: int) -> tuple[bool, bool]:
        """Whether a pool takes the shortest requests, and the longest."""
        return i == 0, j == len(self.states) - 1

    def slope(self, i: int, j: int) -> float:
        """How fast the logarithm of a latency fell with that of the replicas in pools alike."""
        return self.known.slopes.get(self._ends(i, j), USUAL_SLOPE)

    def _learn(self, i: int, j: int, k: int, size: PoolSize | Shortfall) -> None:
        """Remember how fast latencies fall with replicas, and how far a guess was off, for pools alike."""
        if isinstance(size, PoolSize) and len(size.trials) > 1:
            self.known.slopes[self._ends(i, j)] = size.steepness(self.promises)
        if isinstance(size, PoolSize) and size.replicas > 1:
            self.known.off[*self._ends(i, j), k] = size.needed / max(float(self.needs[k, i, j]), 1e-12)

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

    def _choose(self, i: int, j: int, below: float = math.inf) -> Pool | None:
        """Size the option of the least guess; of the others those that keep the promises at less than it costs.

        One prediction says so, as latency does not rise with the replicas. Where a guess orders the search, an option that
        is guessed to need clearly more is passed over; its bound then stays in what is unproven. A cost [USD/hour] to stay
        `below` is held against the first one too.
        """
        guided = self.method.guided and self.limit() is not None
        needs, ends = self.needs[:, i, j] if self.method.guided else self.option_bounds[:, i, j], self._ends(i, j)
        learned = {k: off for k in range(len(self.options)) if (off := self.known.off.get((*ends, k))) is not None}
        thought, costs = needs, needs
        if guided:
            of_one = [off for (first, last, _), off in self.known.off.items() if first and last]
            usual = float(np.median([*learned.values()] or of_one or [1.0]))
            thought = needs * [learned.get(k, usual) for k in range(len(self.options))]
            costs = thought * [o.price.least_usd_per_replica_hour for o in self.options]
        # a proof asks whether a pool costs so little, not how little: of most engines one prediction says no
        asked = below < math.inf and self.limit() is None
        best: Pool | None = None
        own = -1
        # a thought rules out none where nothing is known; replicas over the guess that an engine which was refused takes at least
        known, refused = bool(self.scaled or learned or (guided and of_one)), 0.0
        for k in np.argsort(np.where(np.isfinite(costs), costs, np.inf), kind="stable").tolist():
            least = below if best is None else best.cost_usd_per_hour
            if float(self.option_bounds[k, i, j]) >= least - self.trifle:
                continue
            most = math.inf if math.isinf(least) else self.options[k].price.most_below(least)
            if best is None and not asked and refused == 0.0 and float(thought[k]) * (1.0 + OTHER_DOUBT) < most:
                # far fewer are thought to do: the load often decides, whatever the guess is scaled by
                found = self.candidate(i, j, k, self._first_number(i, j, k, float(thought[k]) if learned else None))
                if found is not None and found.cost_usd_per_hour < least:
                    best, own = found, k
                elif found is not None:
                    refused = max(refused, found.size.needed / max(float(needs[k]), 1e-12))
                continue
            alike, doubt = needs, self.doubt
            if k in learned and own in learned:
                alike, doubt = thought, LEARNED_DOUBT
            scale = refused if best is None else best.size.needed / max(float(alike[own]), 1e-12)
            if guided and best is None and known and float(thought[k]) > most * (1.0 + OTHER_DOUBT):
                continue
            if guided and float(alike[k]) * scale > most * (1.0 + doubt):
                continue
            if most < 1 or self.capacity_bound(i, j, k) >= least:
                continue
            if not self.keeps_with(i, j, k, int(most), calmly=not self.scaled):
                # so many and more, by how clearly they do not do
                missing = most * math.exp(min(self.known.over.get((i, j, k), 0.0), 1.0) / STEEP)
                refused = max(refused, missing / max(float(needs[k]), 1e-12))
                if most > FEW_REPLICAS:
                    self.known.off[*ends, k] = max(
                        learned.get(k, 0.0), missing / max(float(self.needs[k, i, j]), 1e-12)
                    )
                continue
            found = self.candidate(i, j, k, most)
            if found is not None and found.cost_usd_per_hour < least:
                best, own = found, k
        if best is None or not guided or self.rough:
            return best
        return self.of_other_groups(i, j, best, best.cost_usd_per_hour, lambda k, most: self.candidate(i, j, k, most))

    def _first_number(self, i: int, j: int, k: int, thought: float | None) -> float | None:
        """A number of replicas to begin with: what is thought where promises bind; ``None`` where the load may decide.

        Without a thought, from what is known of one pool.
        """
        guess = float(self.needs[k, i, j])
        if self.scaled:
            return guess / self.scaled
        one = (True, True, k)
        if not self.method.guided or (thought is None and one not in self.known.off):
            return None
        thought = guess * self.known.off[one] if thought is None else thought
        by_load = float(self.option_bounds[k, i, j]) / self.options[k].price.least_usd_per_replica_hour
        return thought if thought > BOUND * by_load else None

    def of_other_groups(
        self, i: int, j: int, best: Pool | None, below: float, size: Callable[[int, int], Pool | None]
    ) -> Pool | None:
        """That pool, or a cheaper one of another GPU type or group whose guess another group's says little about.

        Where its replicas have little to do, of any group; else of those that would be cheaper by their own guess: it may be
        too low by a factor for one that only just keeps the promises, and right for another.
        `size` gives the pool of an option of which a number of replicas is known to do.
        """
        if best is None:
            return best
        idles = best.arrival_rate_per_s <= LOW_LOAD * best.size.replicas * best.capacity_per_s
        tried = {
            (self.options[k].gpu.name, str(self.options[k].parallel))
            for a, b, k in self.known.pools
            if (a, b) == (i, j)
        }
        guesses, own = self.needs[:, i, j] / (self.scaled or 1.0), None
        refused: dict[tuple[str, str], int] = {}
        for k in np.argsort(guesses, kind="stable").tolist():
            option = self.options[k]
            group, most = (option.gpu.name, str(option.parallel)), option.price.most_below(below)
            # of the group that is cheaper its other engines are looked at as well, of one refused those of shorter iterations
            open_again = group == own or (not self.only_ttft and option.token_budget < refused.get(group, 0))
            if most < 1 or (group in tried and not open_again) or not (idles or float(guesses[k]) <= most):
                continue
            # what is too slow for the promised prompts even alone, or needs too many by load, needs no model
            if float(self.option_bounds[k, i, j]) >= below or self.capacity_bound(i, j, k) >= below:
                continue
            tried.add(group)
            if not self.keeps_with(i, j, k, most, calmly=False):
                refused[group] = option.token_budget
                continue
            if (found := size(k, most)) is not None and found.cost_usd_per_hour < below:
                best, below, own = found, found.cost_usd_per_hour, group
        return best

    def keeps_with(self, i: int, j: int, k: int, replicas: int, calmly: bool = True) -> bool:
        """Whether so many replicas of an option keep the promises; Poisson arrivals, which are quicker, may say no first."""
        built = self.build(i, j, k)
        if built is None:
            return False
        law, _, model = built
        # latency does not rise with the replicas: what more of them break fewer do too
        if replicas < max(
            int(self.least_replicas(self.options[k], law.moments)), self.known.refused.get((i, j, k), 0) + 1
        ):
            return False
        self.evaluations += 1
        # what keeps the promises of all requests at no size may not those of some either: idle, it says so at once
        idle = self.idle(i, j, k) if self.is_hopeless(0, len(self.states) - 1, k) else None
        if idle is not None and idle.excess > 1.0:
            self.known.refused[i, j, k], self.known.over[i, j, k] = replicas, math.log(idle.excess)
            return False
        rate = self.rate * law.share
        calm = model.without_bursts() if calmly and self.question.traffic.bursts else None
        over = CLEAR if self.looks_broken(model, rate, replicas) else 0.0
        for m in (calm, model):
            if m is not None and over <= 0.0:
                over = self._excess(m, rate, replicas)
        if over > 0.0:
            self.known.refused[i, j, k] = replicas
            self.known.over[i, j, k] = over
        else:
            self.known.kept[i, j, k] = replicas
        return over <= 0.0

    def _excess(self, model: PoolModel, rate: float, replicas: int) -> float:
        """Logarithm of the worst promise's value over its limit; of a number predicted more quickly where that says it too."""
        for n in (model.near(replicas), replicas):
            over = excess_of(looked_at(model, rate, n, self.promises, self.levels), self.promises)
            if n == replicas or (n > replicas and over > 0.0) or (n < replicas and over <= 0.0):
                break
        return over

    def excess_at_cap(self, i: int, j: int, k: int) -> float:
        """Logarithm of the worst promise's value over its limit with as many replicas as the utilization cap takes."""
        built = self.build(i, j, k)
        if built is None or math.isinf(float(self.bounds[j, len(self.states) - 1])):
            return math.inf
        law, _, model = built
        rate = self.rate * law.share
        needed = math.ceil(rate / (self.kept.utilization_cap * model.capacity_per_s) * (1.0 + 1e-9))
        if needed < self.least_replicas(self.options[k], law.moments):
            return math.inf
        self.evaluations += 1
        return excess_of(looked_at(model, rate, max(1, needed), self.promises, self.levels), self.promises)

    def looks_broken(self, model: PoolModel, rate: float, replicas: int) -> bool:
        """Whether a rough look is enough to say no: worth it where that is far quicker, or a replica less a large step."""
        worth = replicas <= FEW_REPLICAS or not self.method.guided
        return worth and clearly_broken(model, rate, replicas, self.promises, self.levels)

    @property
    def trifle(self) -> float:
        """A saving [USD/hour] that is not looked for: where numbers are rough, a small part of what one pool costs."""
        one = self.known.cheapest.get((0, len(self.states) - 1)) if self.rough else None
        return 0.0 if one is None else TRIFLE * one.cost_usd_per_hour

    @property
    def doubt(self) -> float:
        """How far the guess of one option may be off against that of another [1]."""
        return TTFT_DOUBT if self.only_ttft else OTHER_DOUBT

    @property
    def only_ttft(self) -> bool:
        """Whether nothing but the time to the first token is promised: larger token budgets then seldom break it."""
        return all(p.metric == "ttft_s" for p in self.promises)

    def capacity_bound(self, i: int, j: int, k: int) -> float:
        """Lower bound of one option's cost from the method's own maximum throughput."""
        built = self.build(i, j, k)
        if built is None:
            return math.inf
        law, _, model = built
        needed = self.rate * law.share / (self.kept.utilization_cap * model.capacity_per_s)
        return self.options[k].price.least_cost_usd_per_hour(max(needed * (1.0 - 1e-9), self.kept.min_replicas))

    def least_capacity_bound(self, i: int, j: int) -> float:
        """The same of the cheapest option; those whose other bound is hardly lower than that need no model."""
        least = math.inf
        for tried, k in enumerate(np.argsort(self.option_bounds[:, i, j], kind="stable").tolist()):
            bound = float(self.option_bounds[k, i, j])
            if bound >= least or tried >= MOST_BOUNDED:
                return min(bound, least)
            least = min(least, max(bound, self.capacity_bound(i, j, k)))
        return least

    def closer_bound(self, i: int, j: int) -> float:
        """A better bound of a pool's cost where Poisson arrivals come in closed form and bursts do not, else 0.

        At first what Poisson arrivals take. Then one prediction with bursts at the size of the cheapest option: where it breaks
        a promise, the next size is a bound.
        """
        if not self.question.traffic.bursts or self.method.guided:
            return 0.0
        for k in range(len(self.options)):
            if (i, j, k) not in self.known.least and math.isfinite(self.option_bounds[k, i, j]):
                self.known.least[i, j, k] = self._calm_size(i, j, k)
        known = {k: self.known.least[i, j, k] for k in range(len(self.options)) if (i, j, k) in self.known.least}
        if not known or 0 in known.values():
            return 0.0
        price = {k: self.options[k].price for k in known}
        k = min(known, key=lambda k: price[k].least_cost_usd_per_hour(known[k]))
        if (i, j) in self.known.calmed and known[k] <= FEW_STEPS:
            built = self.build(i, j, k)
            assert built is not None
            self.evaluations += 1
            rate, n = self.rate * built[0].share, int(known[k])
            if (
                clearly_broken(built[2], rate, n, self.promises, self.levels)
                or broken(evaluate_pool(built[2], rate, n, self.levels), self.promises) is not None
            ):
                known[k] = self.known.least[i, j, k] = known[k] + 1
        self.known.calmed.add((i, j))
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

    def limit(self) -> int | None:
        """Pools sized before the search may stop with a gap; ``None`` = until proven."""
        allowed, effort = self.search.max_evaluations, self.method.effort
        return effort * allowed if effort and allowed else None

    def fits(self, pools: Sequence[Pool]) -> bool:
        """Whether the inventory holds the GPUs of these pools."""
        return all(n <= self.stock.get(name, n) for name, n in gpus_by_type(pools).items())

    def guess_split(self, one: Pool) -> tuple[float, tuple[int, ...], FloatArray] | None:
        """What the cheapest fleet of several pools is guessed to cost [USD/hour], its states and all guesses, from the one pool."""
        self.open_grid()
        top = len(self.states) - 1
        costs = self.bounds.copy()
        if self.method.guided:
            scale = max(one.cost_usd_per_hour / float(np.min(self.option_guides[:, 0, top])), 1e-3)
            self.needs, self.scaled = self.needs * scale, scale
            costs = np.maximum(np.min(self.option_guides, axis=0) * scale, costs)
        costs[0, top] = np.inf
        cost, path = cheapest_path(costs, self.search.pools)
        return None if path is None else (cost, path, costs)

    def pools_of(self, path: Sequence[int], guesses: FloatArray, below: float) -> list[Pool] | None:
        """The cheapest pool of every edge of a path that serves anybody; ``None`` where they cost no less than `below` [USD/hour].

        The dearest by `guesses` first: the others are then held against what it leaves.
        """
        edges = [(i, j) for i, j in itertools.pairwise(path) if not self.is_empty(i, j)]
        costs = {edge: float(self.bounds[edge]) for edge in edges}
        found: dict[tuple[int, int], Pool] = {}
        for edge in sorted(edges, key=lambda e: -float(guesses[e])):
            others = math.fsum(cost for e, cost in costs.items() if e != edge)
            left = below - others if found else math.inf
            pool = self._choose(*edge, left)
            if pool is None or pool.cost_usd_per_hour + others >= below:
                return None
            found[edge], costs[edge] = pool, pool.cost_usd_per_hour
        return [found[edge] for edge in edges]
