"""Shape ``colocated``: every replica prefills and decodes; pools serve ranges of lengths and do not touch each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from planner.errors import InputError
from planner.fleet.caches import cache_lines, sessions_of
from planner.fleet.chance import Chance, chance_of
from planner.fleet.explain import check_limit, infeasible, name_shortfalls, of_fleet_wide
from planner.fleet.fleet import Fleet, Shape, Solved, serving
from planner.fleet.found import Found
from planner.fleet.grid import engine_choices, least_by_hardware
from planner.fleet.pool import (
    Pool,
    PoolSize,
    Shortfall,
    evaluate_pool,
    replica_for,
    smallest_pool,
)
from planner.fleet.problem import FleetProblem
from planner.fleet.scope import TAIL_LEVELS, ScopedPool, cheapest_allocation
from planner.fleet.search import cheapest_path
from planner.fleet.speculation import speculation_remark
from planner.fleet.splits import solve, solve_splits
from planner.methods import find_method
from planner.methods.base import PoolModel, Prediction
from planner.plans import SearchReport
from planner.question.compiled import CompiledQuestion
from planner.question.files import SavedPool
from planner.remarks import Remark
from planner.routing import find_routing
from planner.units import format_percent
from planner.workload import pools as m
from planner.workload.pools import State

MORE = 0.1
"""Share of traffic on top for which a plan says what it takes."""

FEW_REPLICAS = 8
"""Up to this many replicas a pool is asked itself whether it bears more traffic: its trials are too far apart."""

MOST_ASKED = 24
"""Pools that the search for a gateway which knows outputs asks about: what it finds is told beside the plan."""

WORTH_IT = 0.01
"""Share of the cost that a guess must promise to save before another fleet is sized for it."""


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
        As for :class:`planner.fleet.fleet.Fleet`.
    """

    def __init__(self, question: CompiledQuestion, pools: Sequence[Pool]) -> None:
        promises = question.promises
        levels = promises.levels(TAIL_LEVELS) if promises.of_fleet else promises.levels()
        super().__init__(question, pools, levels)
        self.method = find_method(question.method)
        self._borne: dict[tuple[str, float], bool] = {}

    def predict(self, fleet_rate_per_s: float, counts: Sequence[int]) -> list[Prediction]:
        """See :meth:`planner.fleet.fleet.Fleet.predict`."""
        return [
            evaluate_pool(p.model, fleet_rate_per_s * p.law.share, n, self.levels)
            for p, n in zip(self.pools, counts, strict=True)
        ]

    def look(self, fleet_rate_per_s: float, counts: Sequence[int] | None = None) -> list[Prediction]:
        """See :meth:`planner.fleet.fleet.Fleet.look`."""
        return [
            evaluate_pool(p.model, fleet_rate_per_s * p.law.share, n, self.levels, quick=True)
            for p, n in zip(self.pools, self.counts if counts is None else counts, strict=True)
        ]

    def with_one_fewer(self, k: int) -> list[Prediction]:
        """See :meth:`planner.fleet.fleet.Fleet.with_one_fewer`; the other pools need not be asked."""
        pool = self.pools[k]
        return [evaluate_pool(pool.model, pool.arrival_rate_per_s, pool.size.replicas - 1, self.levels, quick=True)]

    def size(self, fleet_rate_per_s: float, near: Sequence[int] | None = None) -> list[PoolSize] | Shortfall:
        """See :meth:`planner.fleet.fleet.Fleet.size`."""
        own = self.promises.only(self.promises.of_pools)
        sizes = []
        for k, pool in enumerate(self.pools):
            rate = fleet_rate_per_s * pool.law.share
            least = max(self.promises.min_replicas, self._least(pool, rate))
            size = smallest_pool(pool.model, rate, own, least, self.levels, None if near is None else near[k])
            if isinstance(size, Shortfall):
                return size
            sizes.append(size)
        shared = self.promises.of_fleet
        if not shared:
            return sizes
        scoped = [
            ScopedPool(p.model, fleet_rate_per_s * p.law.share, p.law.share, s.replicas, p.option.price.cost_of_need)
            for p, s in zip(self.pools, sizes, strict=True)
        ]
        together = cheapest_allocation(scoped, shared, self.levels)
        return Shortfall(shared[0], math.inf) if together is None else together[1]

    def _least(self, pool: Pool, rate: float) -> int:
        """Replicas that the hardware takes whatever the method says."""
        sums = pool.law.moments / pool.law.share
        return int(least_by_hardware(self.method, pool.option, sums, rate))

    # --- what one step more or less would change ------------------------------------------------------------------

    def tightness(self, k: int) -> list[str]:
        """Promises nearly used up, and what more traffic or a slower promise would take."""
        pool, lines = self.pools[k], []
        prediction = pool.size.prediction
        for p in self.promises.of_pools:
            value = prediction.held(p.metric, p.quantile)
            if value > 0.9 * p.limit_s:
                margin = prediction.margin(p.metric, p.quantile)
                kept = f", with {format_percent(margin - 1.0)} margin for the method's error" if margin > 1.0005 else ""
                lines.append(f"{pool.name}: {p.label} uses {format_percent(value / p.limit_s)} of its promise{kept}.")
        if self._grows_alike:
            more = self.marginal_replicas(pool, traffic=1.0 + MORE)
            noun = "replica" if more == 1 else "replicas"
            line = f"{pool.name}: with these engine settings about {more:,} {noun} for 10% more traffic"
            if self.promises.limits("ttft_s"):
                line += f", {self.marginal_replicas(pool, ttft_slack_s=0.01):,} if TTFT may take 10 ms longer"
            lines.append(line + ".")
        return lines

    @property
    def _grows_alike(self) -> bool:
        """Whether n replicas at f times the rate do no worse than n/f at the rate itself.

        A gateway that compares replicas does better with more of them; caches of sessions that wander are found less often.
        """
        wander = self.question.traffic.sessions is not None and self.question.routing.affinity != "session"
        return not wander and not self.promises.of_fleet

    def marginal_replicas(self, pool: Pool, traffic: float = 1.0, ttft_slack_s: float = 0.0) -> int:
        """Replicas the pool needs at `traffic` (>= 1) times its rate with TTFT limits longer by `ttft_slack_s` [s].

        Read from the trials of its sizing: k replicas at f times the rate are k/f at the rate itself. Interpolated between
        the trials, so to about one replica, where a small pool is asked itself whether it bears the traffic; below the fewest
        tried, the need grows as the traffic does. Engine settings stay.
        """
        limits = [p.limit_s + (ttft_slack_s if p.metric == "ttft_s" else 0.0) for p in self.promises.latency]
        low = max(self.promises.min_replicas, self._least(pool, pool.arrival_rate_per_s * traffic))
        if traffic > 1.0:
            if low <= pool.size.replicas and self._bears(pool, traffic):
                return pool.size.replicas
            return max(low, pool.size.replicas, math.ceil(pool.size.needed * traffic - 1e-9))
        high = max(pool.size.replicas, low)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._within(pool, pool.size, middle, limits) else (middle + 1, high)
        return high

    def _bears(self, pool: Pool, traffic: float) -> bool:
        """Whether a small pool keeps its promises at `traffic` times its rate; ``False`` of a large one, whose trials say it."""
        n, at = pool.size.replicas, pool.arrival_rate_per_s * traffic
        # the utilization cap says no without a replay
        if n > FEW_REPLICAS or at > self.promises.utilization_cap * n * pool.capacity_per_s * (1.0 + 1e-9):
            return False
        key = (pool.name, traffic)
        if key not in self._borne:
            self._borne[key] = pool.model.keeps(at, n, self.promises.latency)
        return self._borne[key]

    def band(self, k: int) -> tuple[int, int | None]:
        """See :meth:`planner.fleet.fleet.Fleet.band`.

        The band is the profile's and twice the standard error of the mean work per request (the sampling error of the
        workload), added as independent errors. Scaling all times by s at rate lambda is the same as the unscaled pool at
        rate s lambda with limits divided by s.
        """
        pool = self.pools[k]
        band = math.hypot(pool.option.profile.band, 2.0 * self._sampling_error(pool))
        least, n, slow = self.promises.min_replicas, pool.size.replicas, 1.0 + band
        if self.promises.of_fleet:
            # what one pool needs depends on the others: the load alone scales with the iteration time
            return max(least, math.ceil(n * (1.0 - band))), math.ceil(n * slow)
        low = self._fewest(pool, pool.size, max(1.0 - band, 0.05), least, n)
        size = pool.size
        top = math.ceil(size.trials[-1][0] * slow) if size.trials else n
        if self._keeps(pool, size, top, slow):
            return low, max(self._fewest(pool, size, slow, n, top), n)
        tighter, rate = self.promises.tightened(slow), pool.arrival_rate_per_s * slow
        high = smallest_pool(pool.model, rate, tighter, max(least, n), self.levels, n * slow * slow, quick=True)
        return low, None if isinstance(high, Shortfall) else max(high.replicas, n)

    def _keeps(self, pool: Pool, size: PoolSize, n: int, scale: float) -> bool:
        """Whether n replicas would do if every time were `scale` times as long, judged from the trials of `size`."""
        return self._within(pool, size, n / scale, [p.limit_s / scale for p in self.promises.latency])

    def _within(self, pool: Pool, size: PoolSize, replicas: float, limits_s: Sequence[float]) -> bool:
        """Whether a fractional number of replicas keeps the utilization cap and these limits, judged from the trials."""
        load = pool.arrival_rate_per_s / (replicas * pool.capacity_per_s)
        values = size.held_at(replicas)
        if load > self.promises.utilization_cap * (1.0 + 1e-12) or values is None:
            return False
        return all(v <= limit for v, limit in zip(values, limits_s, strict=True))

    def _fewest(self, pool: Pool, size: PoolSize, scale: float, low: int, high: int) -> int:
        """Smallest number in low..high that :meth:`_keeps` accepts; `high` when none below does."""
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._keeps(pool, size, middle, scale) else (middle + 1, high)
        return high

    def _sampling_error(self, pool: Pool) -> float:
        """Relative standard error of the pool's work per request, from the number of requests behind the workload.

        Delta method: the coefficient of variation of prefill work over the root of the pool's share of the requests.
        """
        requests = self.question.traffic.workload.provenance.requests
        mean = pool.law.mean(m.NEW_INPUT)
        if not requests or mean <= 0.0:
            return 0.0
        scv = max(pool.law.mean(m.NEW_INPUT2) / (mean * mean) - 1.0, 0.0)
        return math.sqrt(scv / max(requests * pool.law.share, 1.0))

    def chance(self) -> Chance | None:
        """See :meth:`planner.fleet.fleet.Fleet.chance`: errors are common to all pools, the least sure one decides."""
        # where a pool's prediction is not reliable its errors are not known either
        if self.promises.of_fleet or not all(pool.size.prediction.reliable for pool in self.pools):
            return None
        found = [
            chance_of(pool, self.promises.of_pools, self._sampling_error(pool), self.levels) for pool in self.pools
        ]
        return min((c for c in found if c is not None), key=lambda c: c.share, default=None)

    def headroom(self, at_most: float = math.inf) -> float:
        """See :meth:`planner.fleet.fleet.Fleet.headroom`: from the trials of the sizing where they say it, pool by pool."""
        if not self._grows_alike:
            return super().headroom(at_most)
        known = [self._known_headroom(pool) for pool in self.pools]
        least = min((f for f in known if f is not None), default=at_most)
        unknown = []
        for pool, f in zip(self.pools, known, strict=True):
            # whether a small one bears a tenth more was asked already
            bears = self._bears(pool, 1.0 + MORE) if f is None else True
            if f is None and not (bears and least <= 1.0 + MORE):
                unknown.append(pool)
            if not bears and pool.size.replicas <= FEW_REPLICAS:
                least = min(least, math.sqrt(1.0 + MORE))
        return Fleet.headroom(Colocated(self.question, unknown), least) if unknown else least

    def _known_headroom(self, pool: Pool) -> float | None:
        """The factor on one pool's traffic that its trials allow; ``None`` when none with fewer replicas was tried.

        Of a standing fleet none was.
        """
        n = pool.size.replicas
        cap = self.promises.utilization_cap * n * pool.capacity_per_s / pool.arrival_rate_per_s
        if cap <= 1.02:
            return max(cap, 1.0)
        if not pool.size.trials or pool.size.trials[0][0] >= n:
            return None
        # replicas of a small pool are steps too wide to read between
        least = 1.0 + MORE if cap >= 1.0 + MORE and self._bears(pool, 1.0 + MORE) else 1.0
        low, high = 1.0, min(cap, n / pool.size.trials[0][0])
        limits = [p.limit_s for p in self.promises.latency]
        for _ in range(30):
            middle = 0.5 * (low + high)
            values = pool.size.held_at(n / middle)
            keeps = values is not None and all(v <= limit for v, limit in zip(values, limits, strict=True))
            low, high = (middle, high) if keeps else (low, middle)
        return max(low, least)

    # --- what is said of it ---------------------------------------------------------------------------------------

    def summary(self) -> Iterator[str]:
        """How the fleet-wide promises are kept; and what prefix caches find, with other replicas and routings too."""
        for pool in self.pools:
            if sessions := sessions_of(pool):
                yield from cache_lines(pool, sessions)
            if self.question.clients.stated:
                from planner.fleet.overload import overload_lines

                yield from overload_lines(pool, self.question.clients, self.promises)
        tails = self.tails([p.size.prediction for p in self.pools])
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
        for pool in self.pools:
            calm = pool.model.without_bursts()
            if calm is None:
                return None
            size = smallest_pool(calm, pool.arrival_rate_per_s, self.promises, levels=self.levels, quick=True)
            if isinstance(size, Shortfall):
                return None
            total += size.replicas
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
            top = pool.option.max_model_len if k == len(self.pools) - 1 else pool.law.upper.boundary
            replica = replica_for(formula, pool.option, pool.law, top)
            if replica is None:
                return None
            rate, start = pool.arrival_rate_per_s, pool.size.replicas
            size = smallest_pool(replica[1], rate, self.promises, levels=self.levels, start=start, quick=True)
            if isinstance(size, Shortfall):
                return None
            total += size.replicas
        return Remark("closed_form", {"closed": total, "replicas": sum(self.counts)})

    def routed(self, question: CompiledQuestion) -> Colocated:
        """See :meth:`planner.fleet.fleet.Fleet.routed`."""
        pools = []
        for k, pool in enumerate(self.pools):
            top = pool.option.max_model_len if k == len(self.pools) - 1 else pool.law.upper.boundary
            replica = replica_for(question, pool.option, pool.law, top)
            assert replica is not None
            pools.append(replace(pool, model=replica[1]))
        return Colocated(question, pools)

    def grown(self, growth: str) -> Colocated | None:
        """See :meth:`planner.fleet.fleet.Fleet.grown`."""
        return self._with(lambda model: model.grown(growth))

    def _with(self, change: Callable[[PoolModel], PoolModel | None]) -> Colocated | None:
        """The same pools with other models; ``None`` where one has none."""
        models = [change(pool.model) for pool in self.pools]
        pools = [
            replace(pool, model=model) for pool, model in zip(self.pools, models, strict=True) if model is not None
        ]
        return Colocated(self.question, pools) if len(pools) == len(self.pools) else None

    def assumptions(self) -> Iterator[Remark]:
        """What was assumed of lengths and the gateway."""
        traffic, search = self.question.traffic, self.question.search
        known = any(p for p in traffic.workload.compressible)
        if search.pools > 1 and traffic.p_c is None and not known:
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

    name = "colocated"
    mixes = True

    def solve(self, question: CompiledQuestion) -> Solved:
        """See :meth:`planner.fleet.fleet.Shape.solve`."""
        problem = FleetProblem(question)
        check_limit(problem)
        found = solve(problem)
        if problem.exact_bounds or found.one_pool is None:
            name_shortfalls(problem)
        if not found.pools:
            raise infeasible(problem, found)
        names, bare = pool_names(len(found.pools)), question.search.bare
        decided = [problem.decided(p, bare) for p in found.pools]
        fleet = Colocated(question, [replace(p, name=n) for p, n in zip(decided, names, strict=True)])
        one = found.one_pool
        baseline = None
        if len(found.pools) > 1 and one is not None:
            baseline = Colocated(question, [problem.decided(one, bare)])
        return Solved(
            fleet,
            _report(problem, found, fleet),
            baseline,
            tuple(_search_notes(problem)),
            _unproven(problem, found, fleet),
            _with_oracle(question, found, fleet.cost_usd_per_hour),
        )

    def stands(self, pools: Sequence[SavedPool]) -> bool:
        """Any pools by length."""
        return True

    def rebuild(self, question: CompiledQuestion, pools: Sequence[SavedPool]) -> Colocated:
        """See :meth:`planner.fleet.fleet.Shape.rebuild`."""
        moments = question.traffic.moments(question.engines.chunk)
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
            replica = replica_for(own, option, law, option.max_model_len if is_top else saved.high_tokens)
            if replica is None:
                raise InputError(
                    f"pool {saved.name}: one request of {upper.boundary:,.0f} tokens does not fit in memory"
                )
            rate = question.traffic.rate_per_s * law.share
            size = PoolSize(serving(saved), Prediction.unknown(), Remark("stands"))
            built.append(Pool(law, option, *replica, rate, size, saved.replicas, saved.name))
        return Colocated(question, built)


def standing_engines(question: CompiledQuestion, saved: SavedPool) -> CompiledQuestion:
    """The question with nothing of the engine left open: GPU, group, budget and slots are the plan's."""
    engines = question.engines
    # the engine's setting is that of one copy of the attention
    slots = engines.max_num_seqs if engines.kv == ("reserved",) else (max(1, saved.slots // saved.dp),)
    return replace(
        question,
        engines=replace(
            engines,
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


def _with_oracle(
    question: CompiledQuestion, found: Found, cost: float
) -> tuple[Fleet | None, float, float, float, float] | None:
    """The best fleet over boundaries of the total and compression bands, as :class:`planner.fleet.fleet.Solved` has it.

    It is sized only where the guess, scaled to the pools that are known, says that it saves anything.
    """
    one = found.one_pool
    if (
        not question.search.explained
        or question.traffic.sees_output
        or question.search.pools < 2
        or one is None
        or question.promises.of_fleet
    ):
        return None
    knowing = replace(question, traffic=replace(question.traffic, route_on="total"))
    options = list({id(p.option): p.option for p in (*found.pools, one)}.values())
    problem = FleetProblem(knowing, options)
    problem.open_grid()
    costs = problem.bounds.copy()
    costs[0, -1] = math.inf
    expected, path = cheapest_path(costs, problem.search.pools)
    if path is None:
        return None
    fleet: Fleet | None = None
    if expected < cost * (1.0 - WORTH_IT):
        best = solve_splits(problem, cost * (1.0 - WORTH_IT), MOST_ASKED)
        if len(best.pools) > 1 and best.outcome.path is not None:
            path, names = best.outcome.path, pool_names(len(best.pools))
            fleet = Colocated(
                knowing, [replace(problem.decided(p), name=n) for p, n in zip(best.pools, names, strict=True)]
            )
        expected = max(expected, cost) if fleet is None else fleet.cost_usd_per_hour
    upper = [problem.states[j] for j in path[1:-1]]
    compressed = math.fsum(float(np.sum(problem.moments.band_weights(s.boundary, s.gamma)[1])) for s in upper)
    return fleet, expected, upper[0].boundary, upper[0].gamma, compressed


def _report(problem: FleetProblem, found: Found, fleet: Colocated) -> SearchReport:
    """What was searched and the gap that is left."""
    search, cost = problem.search, fleet.cost_usd_per_hour
    boundaries = len(problem.boundary_grid)
    gammas = len(search.gammas) if problem.moments.compressible else 1
    kinds = f"{len(problem.options)} engine option{'s' if len(problem.options) != 1 else ''}"
    grid = f"{boundaries} boundar{'y' if boundaries == 1 else 'ies'} x {gammas} gamma{'s' if gammas != 1 else ''}"
    words = "1 pool" if search.pools == 1 else f"1 to {search.pools} pools, {grid}"
    proven = found.outcome.proven
    bound = cost if proven else min(found.outcome.lower_bound, cost)
    return SearchReport(found.candidates, problem.evaluations, bound, cost - bound, f"{words}, {kinds}")


def _search_notes(problem: FleetProblem) -> Iterator[Remark]:
    """What the search met on its way."""
    if problem.shortfalls:
        worst = min(problem.shortfalls, key=lambda s: s.excess)
        p = worst.promise
        values = {"promise": p.told, "best": p.tell(worst.best_s), "limit_s": p.limit_s, "best_s": worst.best_s}
        yield Remark("at_no_size", {"pools": len(problem.shortfalls), **values})
    if tight := _full_occupancy(problem):
        yield tight


def _unproven(problem: FleetProblem, found: Found, fleet: Colocated) -> Remark | None:
    """What a search that stopped early leaves open."""
    if found.outcome.proven:
        return None
    gap = fleet.cost_usd_per_hour - found.outcome.lower_bound
    return Remark("unproven", {"sized": problem.evaluations, "fleets": found.candidates, "gap_usd_per_hour": gap})


def _full_occupancy(problem: FleetProblem) -> Remark | None:
    """Why the paper's own pools break the promise: the method times every iteration with all slots busy."""
    if not problem.exact_bounds:
        return None
    from planner.methods.mgc import MgcPool

    broken_pools = [
        (built[0].upper.boundary, built[2])
        for key, built in problem.built().items()
        if isinstance(built[2], MgcPool) and problem.is_hopeless(*key)
    ]
    if not broken_pools:
        return None
    boundary, pool = min(broken_pools, key=lambda b: abs(b[0] - 4096.0))
    level = max((p.quantile for p in problem.parts if p.metric == "ttft_s"), default=0.99)
    first = pool.prefill_s(level) + pool.iteration_s
    values = {"slots": pool.slots, "iteration_s": pool.iteration_s, "first_token_s": first}
    return Remark("full_occupancy", {"boundary": boundary, **values})


SHAPE = _ColocatedShape()
