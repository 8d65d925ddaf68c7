"""The search where bursts are dear to predict: Poisson arrivals say where to look, bursts decide."""

from __future__ import annotations

import heapq
import itertools
import math

from planner.fleet.found import Found
from planner.fleet.pool import Pool, gpus_by_type
from planner.fleet.problem import FEW_REPLICAS, LEARNED_DOUBT, STEEP, TRIFLE, FleetProblem
from planner.fleet.search import SearchOutcome
from planner.fleet.splits import merged_pool, solve_splits
from planner.fleet.stock import BurstyStock

MOST_RIVALS = 4
"""Options of a pool sized or tried under bursts, the cheapest under Poisson arrivals; of a small pool twice as many, and one of
every GPU type."""

RIVAL = 0.15
"""Share by which an option may look dearer under Poisson arrivals and still be tried under bursts."""

NEAR_MOST = 1.25
"""Replicas that are known to do over those thought to: up to this the search goes down from the former."""


def bursts_are_dear(problem: FleetProblem) -> bool:
    """Whether Poisson arrivals, whose predictions are quick, say where to look before bursts decide."""
    arrivals = problem.question.traffic.arrivals
    dear = problem.method.dear_bursts and problem.limit() is not None
    return dear and arrivals is not None and bool(arrivals.dispersion)


class BurstySearch:
    """The search of a question, and of its twin under Poisson arrivals.

    Parameters
    ----------
    problem
        The question.
    """

    def __init__(self, problem: FleetProblem) -> None:
        self.problem = problem
        self.calm = problem.calm = problem.under_poisson()
        # what bursts make of a number of replicas
        self._factor, self._sized_small = 1.1, True
        # (whether of the longest requests, option, another one): replicas refused over those expected by that one
        self._beside: dict[tuple[bool, int, int], float] = {}

    def solve(self) -> Found:
        """Search under Poisson arrivals; size what was best there, and nearly so, as the bursts have it."""
        problem, calm = self.problem, self.calm
        first = solve_splits(calm, keep_rivals=True)
        problem.states, problem.bounds, problem.needs = calm.states, calm.bounds, calm.needs
        problem.option_bounds, problem.option_guides = calm.option_bounds, calm.option_guides
        problem.evaluations, problem.shortfalls = calm.evaluations, calm.shortfalls
        if not first.pools:
            return first
        # what is short of GPUs under Poisson arrivals is so under bursts
        fleet = self._sized_near(first) if problem.fits(first.pools) else None
        if fleet is not None and problem.fits(fleet.pools):
            return fleet
        calm.open_grid()
        problem.open_grid()
        found = BurstyStock(problem, calm, self._factor).solve()
        if found is None:
            fleet = fleet or self._sized_near(first)
            outcome = SearchOutcome(None, math.inf, first.outcome.lower_bound, problem.evaluations, False)
            return Found((), None, outcome, first.candidates, gpus_by_type(fleet.pools))
        path, pools = found
        cost = math.fsum(pool.cost_usd_per_hour for pool in pools)
        outcome = SearchOutcome(path, cost, min(first.outcome.lower_bound, cost), problem.evaluations, False)
        one = None if fleet is None else fleet.one_pool
        return Found(tuple(pools), one if one is not None and problem.fits((one,)) else None, outcome, first.candidates)

    def _sized_near(self, first: Found) -> Found:
        """The fleets that are best, or nearly so, under Poisson arrivals, as the bursts have them.

        Bursts cost every engine about the same factor: the first pool sized gives it. Bounds are those of the search.
        """
        problem = self.problem
        top = len(problem.states) - 1
        paths: list[tuple[int, ...]] = [(0, top)] if first.one_pool is not None else []
        for path in (first.outcome.path, *first.rival_splits):
            if path is not None and len(path) > 2 and path not in paths:
                paths.append(path)
        best: tuple[tuple[int, ...], list[Pool]] | None = None
        one: Pool | None = None
        cheapest, dearer = math.inf, 1.0
        for path in paths:
            guesses = self._calm_costs(path, cheapest * (1.0 - TRIFLE) / dearer)
            if guesses is None:
                continue
            guess = math.fsum(guesses.values())
            # the dearest first: where it leaves nothing to gain, the others need not be sized
            pools: dict[tuple[int, int], Pool] = {}
            for edge in sorted(guesses, key=lambda e: -guesses[e]):
                others = math.fsum(
                    pools[e].cost_usd_per_hour if e in pools else guesses[e] for e in guesses if e != edge
                )
                found = self._choose_near(*edge, cheapest - others)
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
            return solve_splits(problem)
        if len(best[1]) > 1 and (merged := merged_pool(problem, best[1], cheapest)) is not None:
            one, cheapest, best = merged, merged.cost_usd_per_hour, ((0, top), [merged])
        bound = min(first.outcome.lower_bound, cheapest)
        proven = bound >= cheapest * (1.0 - 1e-12)
        outcome = SearchOutcome(best[0], cheapest, bound, problem.evaluations, proven)
        return Found(tuple(best[1]), one, outcome, first.candidates)

    def _calm_costs(self, path: tuple[int, ...], most: float) -> dict[tuple[int, int], float] | None:
        """Cost of every pool of a path under Poisson arrivals [USD/hour]; ``None`` where they cost more than `most` together.

        The dearest by its bound is looked at first: what it leaves no room for is not sized.
        """
        calm = self.calm
        costs = {
            edge: float(calm.bounds[edge]) for edge in itertools.pairwise(path) if not self.problem.is_empty(*edge)
        }
        for edge in sorted(costs, key=lambda e: -costs[e]):
            left = most - math.fsum(cost for e, cost in costs.items() if e != edge)
            # a saving below the trifle is not looked for, and was taken off already
            pool = calm.best(*edge, left + calm.trifle)
            if pool is None:
                return None
            costs[edge] = pool.cost_usd_per_hour
        return costs if math.fsum(costs.values()) <= most else None

    def _choose_near(self, i: int, j: int, below: float) -> Pool | None:
        """The cheapest pool between two states below a cost, of the options nearly the cheapest under Poisson arrivals."""
        problem = self.problem
        best = problem.known.cheapest.get((i, j))
        if best is not None:
            return best if best.cost_usd_per_hour < below else None
        factor, tried, types, bounded = self._factor, 0, set[str](), set[int]()
        waiting = _ranked(self.calm, i, j)
        first = waiting[0][1] if waiting else -1
        while waiting:
            _, k, needed = heapq.heappop(waiting)
            gpu = problem.options[k].gpu.name
            most = math.inf if math.isinf(below) else problem.options[k].price.most_below(below)
            # one replica of the cheapest so far leaves no room for another of its type; steps of small pools say little,
            # also where bursts make large ones of them
            allowed = MOST_RIVALS if min(most, needed) > FEW_REPLICAS else 2 * MOST_RIVALS
            if most < 1 or (tried >= allowed and (gpu in types or most > FEW_REPLICAS)):
                continue
            if needed * factor > most * (1.0 + RIVAL):
                continue
            if k != first and self._least_of(i, j, k, first) > most * (1.0 + LEARNED_DOUBT):
                continue
            if k not in bounded and (i, j, k) not in self.calm.known.pools:
                # a guess scaled by an engine that the promises bind may lie below what the load alone takes
                bounded.add(k)
                least = self.calm.capacity_bound(i, j, k) / problem.options[k].price.least_usd_per_replica_hour
                if least > needed:
                    heapq.heappush(waiting, _place(self.calm, i, j, k, least))
                    continue
            tried += 1
            types.add(gpu)
            if below < math.inf and problem.capacity_bound(i, j, k) >= below:
                continue
            if below < math.inf and not problem.keeps_with(i, j, k, int(most), calmly=False):
                built = problem.build(i, j, k)
                if built is not None and problem.looks_broken(built[2], problem.rate * built[0].share, int(most)):
                    # bursts are as hard on other engines
                    factor = max(factor, (most + 1.0) / needed)
                expected = self._expected(i, j, k, first)
                if k != first and expected > 0.0 and (over := problem.known.over.get((i, j, k))) is not None:
                    least = most * math.exp(min(over, 1.0) / STEEP)
                    self._beside[j == len(problem.states) - 1, k, first] = least / expected
                continue
            if (found := self._sized_as(i, j, k, most)) is not None and found.cost_usd_per_hour < below:
                best, below = found, found.cost_usd_per_hour
                if found.size.replicas > FEW_REPLICAS:
                    # the guess may be too low for others by no more than it was for this one
                    factor = min(factor, max(found.size.needed / needed, 1.0))
        best = problem.of_other_groups(i, j, best, below, lambda k, most: self._sized_as(i, j, k, most))
        if best is not None:
            problem.known.cheapest[i, j] = best
        return best

    def _expected(self, i: int, j: int, k: int, first: int) -> float:
        """Replicas of an option by its guess and what is known of another one of the pool."""
        own, calm = self.problem.known.pools.get((i, j, first)), self.calm.known.pools.get((i, j, first))
        needed = own.size.needed if own is not None else 0.0 if calm is None else calm.size.needed * self._factor
        return needed * float(self.problem.needs[k, i, j]) / max(float(self.problem.needs[first, i, j]), 1e-12)

    def _least_of(self, i: int, j: int, k: int, first: int) -> float:
        """Replicas that an option takes at least, by how clearly it was refused in a pool alike; 0 where it was not."""
        beside = self._beside.get((j == len(self.problem.states) - 1, k, first), 0.0)
        return beside * self._expected(i, j, k, first) if beside else 0.0

    def _sized_as(self, i: int, j: int, k: int, most: float = math.inf) -> Pool | None:
        """A pool as the bursts size it, from its size under Poisson arrivals; `most` replicas are known to do."""
        known = self.calm.candidate(i, j, k)
        if known is None:
            return None
        start = max(1, min(most, math.ceil(known.size.needed * self._factor)))
        if not self.problem.known.pools and known.size.binding.code == "utilization_cap":
            # the load may go on deciding
            start = known.size.replicas
        if start < most <= NEAR_MOST * start:
            # what is known to do is asked again for nothing
            start = int(most)
        slope = known.size.steepness(self.problem.promises) if len(known.size.trials) > 1 else None
        found = self.problem.candidate(i, j, k, start, slope)
        if found is not None and (self._sized_small or found.size.replicas > FEW_REPLICAS):
            # steps of a small pool say less
            self._factor, self._sized_small = found.size.needed / known.size.needed, found.size.replicas <= FEW_REPLICAS
        return found


def _ranked(problem: FleetProblem, i: int, j: int) -> list[tuple[float, int, float]]:
    """A heap of the options of a pool by their cost before rounding, the guess where none is known; see :func:`_place`.

    Guesses are scaled by what is known of the pool's cheapest option.
    """
    best = problem.best(i, j)
    if best is None:
        return []
    own = problem.options.index(best.option)
    scale = best.size.needed / max(float(problem.needs[own, i, j]), 1e-12)
    found = []
    for k in range(len(problem.options)):
        pool = problem.known.pools.get((i, j, k))
        guess = float(problem.needs[k, i, j]) * scale
        if pool is None and ((i, j, k) in problem.known.pools or not math.isfinite(guess)):
            continue
        found.append(_place(problem, i, j, k, guess if pool is None else pool.size.needed))
    heapq.heapify(found)
    return found


def _place(problem: FleetProblem, i: int, j: int, k: int, needed: float) -> tuple[float, int, float]:
    """(cost before rounding [USD/hour], option, replicas needed): more than are known not to do."""
    refused, over = problem.known.refused.get((i, j, k), 0), problem.known.over.get((i, j, k), 0.0)
    needed = max(needed, refused * math.exp(min(over, 1.0) / STEEP))
    return needed * problem.options[k].price.least_usd_per_replica_hour, k, needed
