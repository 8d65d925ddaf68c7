"""Shape ``colocated``: every replica prefills and decodes; pools serve ranges of lengths and do not touch each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from planner.errors import InputError
from planner.plans import SavedPool, SearchReport
from planner.predict.contract import Prediction
from planner.predict.methods import find_method
from planner.question.compiled import CompiledQuestion, Promises
from planner.routing import find_routing
from planner.shared.remarks import Remark
from planner.size.alone import speculation_remark
from planner.size.explain import check_limit, infeasible, name_shortfalls, of_fleet_wide, unkept
from planner.size.fleet import Fleet, Shape, Solved, serving
from planner.size.grid import TAIL_LEVELS, engine_choices, least_by_hardware
from planner.size.pool import (
    Margin,
    Pool,
    Shortfall,
    evaluate_pool,
    fits,
    pool_for,
    pool_keeps,
    smallest_pool,
    without_luck,
)
from planner.size.problem import LATE, UNITS, FleetProblem, Found, kept_by, may_cost_less, solve, tried
from planner.size.search import Edge, cheapest_within
from planner.units import format_percent
from planner.workload.pools import State

MORE = 0.1
"""Share of traffic on top for which a plan says what it takes."""


def pool_names(count: int) -> tuple[str, ...]:
    """``all``; ``short``, ``long``; or numbered.

    >>> pool_names(2), pool_names(3)
    (('short', 'long'), ('pool 1', 'pool 2', 'pool 3'))
    """
    if count == 1:
        return ("all",)
    return ("short", "long") if count == 2 else tuple(f"pool {k + 1}" for k in range(count))


class Colocated(Fleet):
    """Pools by length.

    Parameters
    ----------
    question, pools
        As for :class:`planner.size.fleet.Fleet`.
    """

    def __init__(self, question: CompiledQuestion, pools: Sequence[Pool]) -> None:
        promises = question.promises
        levels = promises.levels(TAIL_LEVELS) if promises.of_fleet else promises.levels()
        super().__init__(question, pools, levels)
        self.method = find_method(question.method)

    def predict(self, rate_per_s: float, counts: Sequence[int], quick: bool = False) -> list[Prediction]:
        """See :meth:`planner.size.fleet.Fleet.predict`."""
        return [
            evaluate_pool(p.model, rate_per_s * p.law.share, n, self.levels, quick)
            for p, n in zip(self.pools, counts, strict=True)
        ]

    def sizes_for(
        self, rate_per_s: float, margins: Sequence[Margin], near: Sequence[int] | None = None, quick: bool = False
    ) -> list[Pool] | Shortfall:
        """See :meth:`planner.size.fleet.Fleet.sizes_for`."""
        sizes = []
        shared = self._shared_out(rate_per_s, margins, near)
        if isinstance(shared, Shortfall):
            return shared
        for k, (pool, margin) in enumerate(zip(self.pools, margins, strict=True)):
            units, start = (1.0, None if near is None else near[k]) if shared is None else shared[k]
            size = self._sized(pool, rate_per_s, units, start, quick, margin)
            if isinstance(size, Shortfall):
                return size
            if shared is not None:
                code = "fleet_promise" if len(self.pools) > 1 else "only_pool_promise"
                told = " and ".join(p.label for p in self.promises.of_fleet)
                size = replace(size, binding=Remark(code, {"promise": told}))
            sizes.append(size)
        return sizes

    def _sized(
        self, pool: Pool, rate_per_s: float, units: float, start: float | None, quick: bool, margin: Margin
    ) -> Pool | Shortfall:
        """One pool, sized, that has a part of the late requests of the fleet's promises, `units` [1]."""
        promises, rate = self._asked_of(pool, units), rate_per_s * pool.law.share
        least, levels = max(self.promises.min_replicas, self._least(pool, rate)), promises.levels(self.levels)
        found = smallest_pool(pool.model, rate, promises, least, levels, start, quick, margin)
        return found if isinstance(found, Shortfall) else pool.sized(*found)

    def _asked_of(self, pool: Pool, units: float = 1.0) -> Promises:
        """What one pool keeps that has a part of the late requests of the fleet's promises, `units` [1]."""
        several = len(self.pools) > 1 and self.method.replays
        return self.promises.only(kept_by(self.promises, several, units, pool.law.share))

    def stands(self, rate_per_s: float, margins: Sequence[Margin]) -> bool:
        """See :meth:`planner.size.fleet.Fleet.stands`."""
        if self.promises.of_fleet:
            return super().stands(rate_per_s, margins)
        for pool, margin in zip(self.pools, margins, strict=True):
            rate, promises = rate_per_s * pool.law.share, self._asked_of(pool)
            if pool.replicas < max(promises.min_replicas, self._least(pool, rate)):
                return False
            if not pool_keeps(pool, rate, promises, margin.slow, sure=True):
                return False
        return True

    def _shared_out(
        self, rate_per_s: float, margins: Sequence[Margin], near: Sequence[int] | None
    ) -> list[tuple[float, float]] | Shortfall | None:
        """Of every pool its part of the late requests and its size, at least cost; ``None`` where nothing is promised of all."""
        if not self.promises.of_fleet:
            return None
        states, worst = len(self.pools) + 1, None
        costs = np.full((UNITS, states, states), np.inf)
        counts = np.zeros((UNITS, states))
        for k, (pool, margin) in enumerate(zip(self.pools, margins, strict=True)):
            start = None if near is None else float(near[k])
            for u in range(UNITS - 1, -1, -1):
                size = self._sized(pool, rate_per_s, (u + 1) / UNITS, start, True, margin)
                if isinstance(size, Shortfall):
                    worst = worst or size
                    break
                costs[u, k, k + 1], counts[u, k] = size.cost_usd_per_hour, size.replicas
                start = float(size.replicas)
        taken = np.broadcast_to(np.arange(1.0, UNITS + 1.0)[:, None, None], costs.shape)
        found = cheapest_within(costs, taken, [LATE] * UNITS, {LATE: UNITS}, states - 1)
        if found is None:
            return worst or Shortfall(self.promises.of_fleet[0], math.inf)
        units = [u + 1 for _, u in found[1]]
        starts = [float(counts[u - 1, k]) for k, u in enumerate(units)]
        # late requests that no pool needs are the dearest one's: all requests may take more than their sample
        dearest = max(range(len(units)), key=lambda k: float(costs[units[k] - 1, k, k + 1]))
        units[dearest] += UNITS - sum(units)
        return [(u / UNITS, start) for u, start in zip(units, starts, strict=True)]

    def keeps(self, rate_per_s: float) -> bool:
        """See :meth:`planner.size.fleet.Fleet.keeps`."""
        own = self.promises.of_pools
        if own and not all(p.model.keeps(rate_per_s * p.law.share, p.replicas, own) for p in self.pools):
            return False
        if not self.shared_promises:
            return True
        found = self.look(rate_per_s)
        return all(
            tail <= 1.0 - p.quantile + 1e-12 for tail, p in zip(self.tails(found), self.shared_promises, strict=True)
        )

    def _least(self, pool: Pool, rate_per_s: float) -> int:
        """Replicas of a pool at a rate of its own [1/s] that the hardware takes whatever the method says."""
        sums = pool.law.moments / pool.law.share
        return int(least_by_hardware(self.method, pool.option, sums, rate_per_s))

    # --- what one step more or less would change ------------------------------------------------------------------

    def tightness(self, k: int) -> list[str]:
        """Promises nearly used up, and what more traffic or a slower promise would take."""
        pool, lines = self.pools[k], []
        prediction = pool.prediction
        for p in self.promises.of_pools:
            value = prediction.value(p.metric, p.quantile)
            if value > 0.9 * p.limit_s:
                lines.append(f"{pool.name}: {p.label} uses {format_percent(value / p.limit_s)} of its promise.")
        if not self.promises.of_fleet:
            rate, near = (1.0 + MORE) * pool.rate_per_s, math.ceil((1.0 + MORE) * pool.replicas)
            more = self.size_of(k, rate, self.promises, near, quick=True)
            if not isinstance(more, Shortfall):
                n = max(more.replicas, pool.replicas)
                noun = "replica" if n == 1 else "replicas"
                lines.append(f"{pool.name}: with these engine settings {n:,} {noun} for 10% more traffic.")
        return lines

    # --- what is said of it ---------------------------------------------------------------------------------------

    def summary(self) -> Iterator[str]:
        """How the fleet-wide promises are kept, behind what is told of every pool."""
        yield from super().summary()
        tails = self.tails([p.prediction for p in self.pools])
        for p, tail in zip(self.shared_promises, tails, strict=True):
            yield of_fleet_wide(p, tail)

    def notes(self) -> Iterator[Remark]:
        """Findings worth knowing."""
        for pool in self.pools:
            if told := speculation_remark(self.question, pool):
                yield told
        if smooth := self._without_bursts():
            yield smooth

    def _without_bursts(self) -> Remark | None:
        """What the bursts of the trace cost: the same pools under Poisson arrivals, when that is fewer replicas."""
        arrivals = self.question.traffic.arrivals
        if self.promises.of_fleet or arrivals is None or not arrivals.dispersion:
            return None
        total = 0
        for k, pool in enumerate(self.pools):
            calm = pool.model.without_bursts()
            if calm is None:
                return None
            rate, margin = pool.rate_per_s, self.margins(self.promises.confidence)[k]
            size = smallest_pool(calm, rate, self.promises, levels=self.levels, quick=True, margin=margin)
            if isinstance(size, Shortfall):
                return None
            total += size[0]
        needed = sum(self.counts)
        if total >= needed:
            return None
        # a gateway that compares replicas shares them already
        code = "cost_of_bursts" if self.question.routing.least else "cost_of_bursts_unshared"
        return Remark(code, {"extra": needed - total, "replicas": needed, "calm": total})

    def in_closed_form(self) -> Remark | None:
        """How many replicas the closed form would buy, which shares nothing with the replay.

        ``None`` where it knows no such pools, or is the method asked for.
        """
        question = self.question
        ordinary = question.traffic.sending.ordinary and question.traffic.sessions is None
        asked = self.promises.of_fleet or not self.promises.latency
        # a replay of engines that the formula knows, and not the formula itself
        replayed = self.method.shares_budget and self.method.feels_bursts
        if not replayed or asked or not ordinary or question.clients.stated:
            return None
        formula = replace(question, method="closed", routing=find_routing("random"))
        total = 0
        for k, pool in enumerate(self.pools):
            if pool.option.speculation is not None or pool.option.profile.iteration.apart:
                return None
            other = self._again(formula, k)
            if other is None:
                return None
            rate, start = pool.rate_per_s, pool.replicas
            margin = self.margins(self.promises.confidence)[k]
            size = smallest_pool(other.model, rate, self.promises, 1, self.levels, start, quick=True, margin=margin)
            if isinstance(size, Shortfall):
                return None
            total += size[0]
        return Remark("closed_form", {"closed": total, "replicas": sum(self.counts)})

    def routed(self, question: CompiledQuestion) -> Colocated:
        """See :meth:`planner.size.fleet.Fleet.routed`."""
        pools = []
        for k, pool in enumerate(self.pools):
            other = self._again(question, k)
            assert other is not None
            pools.append(replace(pool, model=other.model))
        return Colocated(question, pools)

    def _again(self, question: CompiledQuestion, k: int) -> Pool | None:
        """Pool `k` under another question, of no size; ``None`` where no replica fits."""
        option, law = self.pools[k].option, self.pools[k].law
        high = option.max_model_len if k == len(self.pools) - 1 else law.upper.boundary
        return pool_for(question, option, law, high)

    def assumptions(self) -> Iterator[Remark]:
        """What was assumed of lengths and the gateway."""
        traffic = self.question.traffic
        known = any(p for p in traffic.workload.compressible)
        if self.question.inputs.pools > 1 and traffic.p_c is None and not known:
            yield Remark("no_compression")
        if traffic.sees_output:
            yield Remark("oracle", {"because": ", as --compress has it" if self.question.asked.get("compress") else ""})
        routing = self.question.routing
        if sum(self.counts) > len(self.pools):
            yield Remark("gateway", {"routing": routing.name, "summary": routing.summary, "gateway": routing.gateway})
        if not traffic.sees_output:
            yield Remark("room", {"output": round(traffic.longest_output)})


class _ColocatedShape(Shape):
    """See the module."""

    def solve(self, question: CompiledQuestion) -> Solved:
        """See :meth:`planner.size.fleet.Shape.solve`."""
        problem = FleetProblem(question)
        check_limit(problem)
        found, fleet = _within_stock(problem)
        one = found.one_pool
        baseline = decided(problem, (one,)) if len(found.pools) > 1 and one is not None else None
        if baseline is not None and not fits(problem.question, baseline.pools):
            baseline = None
        if baseline is not None and baseline.cost_usd_per_hour <= fleet.cost_usd_per_hour * (1.0 + 1e-9):
            # GPU types whose errors are independent have to be surer each
            fleet, baseline = baseline, None
        return Solved(
            fleet,
            _report(problem, found, fleet),
            baseline,
            tuple(_search_notes(problem)),
            _unproven(problem, found, fleet),
        )

    def may_cost_less(self, question: CompiledQuestion, usd_per_hour: float) -> bool:
        """See :meth:`planner.size.fleet.Shape.may_cost_less`."""
        return may_cost_less(FleetProblem(question), usd_per_hour)

    def stands(self, pools: Sequence[SavedPool]) -> bool:
        """Any pools by length."""
        return True

    def rebuild(self, question: CompiledQuestion, pools: Sequence[SavedPool]) -> Colocated:
        """See :meth:`planner.size.fleet.Shape.rebuild`."""
        moments = question.traffic.moments(question.inputs.chunk)
        ordered = sorted(pools, key=lambda p: p.low_tokens)
        top = max(moments.top, ordered[-1].high_tokens)
        built = []
        for k, saved in enumerate(ordered):
            below = ordered[k - 1] if k else None
            is_top = k == len(ordered) - 1
            upper = State(top if is_top else saved.high_tokens, 1.0 if is_top else saved.gamma)
            law = moments.law(State(saved.low_tokens, below.gamma if below else 1.0), upper)
            if law is None:
                continue
            own = standing_engines(question, saved)
            option = engine_choices(own)[0]
            pool = pool_for(own, option, law, option.max_model_len if is_top else saved.high_tokens)
            if pool is None:
                raise InputError(
                    f"pool {saved.name}: one request of {upper.boundary:,.0f} tokens does not fit in memory"
                )
            built.append(replace(pool, replicas=serving(saved), bought=saved.replicas, name=saved.name))
        return Colocated(question, built)


def _within_stock(problem: FleetProblem) -> tuple[Found, Colocated]:
    """What a search finds and the fleet that it becomes. Where that is beyond the inventory or the power, for all its requests or
    types whose errors are independent, its pools are known to take so much, and the search goes on.

    Raises
    ------
    InfeasibleError
        No fleet keeps the promises, or none of the inventory.
    """
    while True:
        found = solve(problem)
        if problem.exact_bounds or found.one_pool is None:
            name_shortfalls(problem)
        if not found.pools:
            raise infeasible(problem, found)
        edges = [edge for edge, _ in found.pools]
        about = _by_sample(problem, [pool for _, pool in found.pools])
        if about is not None and not fits(problem.question, about) and problem.resize(edges, about):
            continue
        found = tried(problem, found)
        edges = [edge for edge, _ in found.pools]
        fleet = decided(problem, found.pools)
        if fits(problem.question, fleet.pools):
            return _spared(problem, found, fleet)
        if not problem.resize(edges, fleet.pools):
            raise infeasible(problem, replace(found, beyond=tuple(fleet.pools)))


def _spared(problem: FleetProblem, found: Found, fleet: Colocated) -> tuple[Found, Colocated]:
    """A cheaper pool in place of the one that was found, where only the sample that was searched is against it: all requests
    decide between engines too."""
    if len(found.pools) > 1 or problem.question.quick or not problem.method.replays:
        return found, fleet
    for edge, pool in problem.spared(fleet.cost_usd_per_hour):
        other = decided(problem, ((edge, pool),))
        if (cost := other.cost_usd_per_hour) < fleet.cost_usd_per_hour and fits(problem.question, other.pools):
            return replace(found, pools=((edge, pool),), one_pool=(edge, pool), cost=cost, bound=cost), other
    return found, fleet


def _by_sample(problem: FleetProblem, pools: Sequence[Pool]) -> list[Pool] | None:
    """Pools that a search has chosen, as large as the sample it ranked them by has them where several GPU types, whose errors are
    independent, have to be surer each; ``None`` where one is not kept or there is nothing to be surer of."""
    fleet = Colocated(problem.question, pools)
    if fleet.errors == 1 or problem.fleet_promises:
        return None
    sizes = fleet.sizes_for(problem.rate, fleet.margins(fleet.promises.confidence), fleet.counts, quick=True)
    return None if isinstance(sizes, Shortfall) else fleet.sized(sizes).pools


def decided(problem: FleetProblem, chosen: Sequence[tuple[Edge, Pool]]) -> Colocated:
    """The fleet of pools that a search has chosen: with the best settings of their engines, sized by all their requests.

    Raises
    ------
    InfeasibleError
        All requests show what their sample does not, that no number of replicas keeps the promises.
    """
    names = pool_names(len(chosen))
    found = [replace(pool, name=name) for (_, pool), name in zip(chosen, names, strict=True)]
    if problem.question.quick:
        own = problem.kept.only(problem.kept.of_pools)
        lucky = problem.fleet_promises
        return _sized(problem, found if lucky else [without_luck(p, own, problem.margin(p.option)) for p in found])
    best = [problem.alike(edge, pool) for (edge, _), pool in zip(chosen, found, strict=True)]
    fleet = _sized(problem, best)
    if fleet.cost_usd_per_hour > math.fsum(pool.cost_usd_per_hour for pool in found) and any(
        pool.option is not own.option for pool, own in zip(best, found, strict=True)
    ):
        # settings that a sample prefers, and all requests do not
        fleet = min(fleet, _sized(problem, found), key=lambda one: one.cost_usd_per_hour)
    return fleet


def _sized(problem: FleetProblem, pools: Sequence[Pool]) -> Colocated:
    """The fleet of pools of these engines, as all requests have it; beside a plan, as a sample has it."""
    fleet, quick = Colocated(problem.question, pools), problem.question.quick
    if quick and fleet.errors == 1:
        return fleet
    # each GPU type has to be surer than a search of single pools has them
    margins = fleet.margins(fleet.promises.confidence)
    sizes = (
        fleet.sizes_for(problem.rate, margins, fleet.counts, quick=True)
        if quick
        else fleet.size(problem.rate, fleet.counts)
    )
    if isinstance(sizes, Shortfall):
        raise unkept(sizes, "", "even idle, the best fleet needs", [])
    return fleet.sized(sizes)


def standing_engines(question: CompiledQuestion, saved: SavedPool) -> CompiledQuestion:
    """The question with nothing of the engine left open: GPU, group, budget and slots are the plan's."""
    inputs = question.inputs
    # the engine's setting is that of one copy of the attention
    slots = inputs.max_num_seqs if inputs.kv == "reserved" else (max(1, saved.slots // saved.dp),)
    return replace(
        question,
        inputs=replace(
            inputs,
            gpu=(saved.gpu,),
            tp=saved.tp,
            pp=saved.pp,
            dp=saved.dp,
            ep=saved.ep,
            tp_options=(),
            token_budget=(saved.token_budget,),
            max_num_seqs=slots,
        ),
    )


def _report(problem: FleetProblem, found: Found, fleet: Colocated) -> SearchReport:
    """What was searched and the gap that is left."""
    inputs, cost = problem.inputs, fleet.cost_usd_per_hour
    kinds, words = f"{len(problem.options)} engine option{'s' if len(problem.options) != 1 else ''}", "1 pool"
    if inputs.pools > 1:
        boundaries = len(problem.boundary_grid)
        gammas = len(inputs.gammas) if problem.moments.compressible else 1
        grid = f"{boundaries} boundar{'y' if boundaries == 1 else 'ies'} x {gammas} gamma{'s' if gammas != 1 else ''}"
        words = f"1 to {inputs.pools} pools, {grid}"
    bound = cost if _proven(found, fleet) else min(found.bound, cost)
    return SearchReport(found.candidates, problem.evaluations, bound, cost - bound, f"{words}, {kinds}")


def _proven(found: Found, fleet: Colocated) -> bool:
    """Whether no fleet of the grid is cheaper: bounds are those of one error of iteration times for all pools, and hold for the
    fleet that was found, not for the one pool that stands in for types which have to be surer each, nor where all requests take
    more than the sample that was searched."""
    same = fleet.errors == 1 and len(fleet.pools) == len(found.pools)
    return found.proven and same and fleet.cost_usd_per_hour <= found.cost * (1.0 + 1e-9)


def _search_notes(problem: FleetProblem) -> Iterator[Remark]:
    """What the search met on its way."""
    if shortfalls := problem.told_exactly():
        worst = min(shortfalls, key=lambda s: s.excess)
        p = worst.promise
        values = {"promise": p.told, "best": p.tell(worst.best_s), "limit_s": p.limit_s, "best_s": worst.best_s}
        yield Remark("at_no_size", {"pools": len(shortfalls), **values})
    if tight := _full_occupancy(problem):
        yield tight


def _unproven(problem: FleetProblem, found: Found, fleet: Colocated) -> Remark | None:
    """What a search that stopped early leaves open."""
    if _proven(found, fleet):
        return None
    gap = fleet.cost_usd_per_hour - found.bound
    return Remark("unproven", {"sized": problem.evaluations, "fleets": found.candidates, "gap_usd_per_hour": gap})


def _full_occupancy(problem: FleetProblem) -> Remark | None:
    """Why the paper's own pools break the promise: the method times every iteration with all slots busy."""
    if not problem.exact_bounds:
        return None
    from planner.predict.methods.mgc import MgcPool

    broken_pools = [
        (built.law.upper.boundary, built.model)
        for key, built in problem.built().items()
        if isinstance(built.model, MgcPool) and problem.sized().get(key, True) is None
    ]
    if not broken_pools:
        return None
    boundary, pool = min(broken_pools, key=lambda b: abs(b[0] - 4096.0))
    level = max((p.quantile for p in problem.parts if p.metric == "ttft_s"), default=0.99)
    first = pool.prefill_s(level) + pool.iteration_s
    values = {"slots": pool.slots, "iteration_s": pool.iteration_s, "first_token_s": first}
    return Remark("full_occupancy", {"boundary": boundary, **values})


SHAPE = _ColocatedShape()
