"""The best fleet of the GPUs there are: traffic cut by length and by share between their types, for the largest rate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from planner.ask.capacity import (
    MOST_ROUNDS,
    PRECISION,
    Capacity,
    as_sized,
    capacity_at,
    largest,
    largest_rate,
    with_its_users,
)
from planner.ask.fitting import Fitting, Refused
from planner.errors import InfeasibleError
from planner.predict.replica import EngineOption
from planner.question.compiled import compile_question, population_of, stated_rate
from planner.question.options import PlanInputs
from planner.shared.kept import keeping
from planner.size.assemble import fleet_of
from planner.size.fleet import Fleet
from planner.size.grid import engine_choices
from planner.size.pool import Margin, Pool, gpus_by_type, pool_for, pool_keeps, when_idle
from planner.size.problem import KEPT_BACK, FleetProblem, held_to
from planner.size.shapes import find_shape, shape_names
from planner.size.shapes.colocated import Colocated
from planner.size.unknowns import with_users
from planner.workload.pools import PoolLaw, State
from planner.workload.trace import Trace
from planner.workload.workload import Workload

SEARCHES = 6
"""Plans that are searched, at most, to know the rate; more where there is none at first."""

NEARLY = 1.0 / 64.0
"""Share to which it is known what an engine or a fleet bears that is only thought of [1]."""

LOAD = 0.6
"""Load at which what an engine bears is looked for first, where no neighbouring range says [1]."""

DOWN = 0.7
"""Factor between the rates at which the first plan is looked for where nothing is known of a fleet that bears one [1]."""

TRIALS = 11
"""Of those rates at most."""

Range = tuple[float, float]
"""Lengths above the first and up to the second [tokens]."""

Borne = tuple[Fleet, float, float]
"""A fleet, the largest rate it bears and the next one, which it does not keep [1/s]."""

GOLDEN = 0.6180339887498949
"""Steps by which requests in order of length are dealt out: every part of them has the lengths of all."""


@dataclass(frozen=True, slots=True)
class Cell:
    """An engine of one GPU type that serves a range of lengths.

    Parameters
    ----------
    option
        Its place among the engines there are.
    replicas
        As many as there are GPUs for.
    each_per_s, load
        What one of them bears within the promises [1/s], and over what its load alone allows [1].
    """

    option: int
    replicas: int
    each_per_s: float
    load: float


Cells = Sequence[Mapping[str, Cell]]
"""For each range the best engine by GPU type."""

Part = tuple[int, str, int]
"""A pool: its range, its GPU type, its replicas."""


def part_of(law: PoolLaw, begin: float, end: float) -> PoolLaw:
    """The requests that a gateway deals out between two shares of a pool's [1]: of every length alike."""

    def dealt() -> Trace | None:
        found = law.requests()
        if found is None:
            return None
        rank = np.empty(found.requests)
        rank[np.lexsort((found.output_tokens, found.input_tokens))] = np.arange(found.requests)
        place = rank * GOLDEN % 1.0
        keep = (place >= begin) & (place < end)
        return found.select(keep)

    share = end - begin
    return replace(law, share=share * law.share, moments=share * law.moments, requests=dealt)


class Stock:
    """The question of the best fleet of so many GPUs of each type.

    Parameters
    ----------
    inputs, workload
        The question; the GPU types it names do not matter.
    have
        GPU -> how many there are.
    every_s
        Time from one request of a user to the next, where the traffic is of users [s].
    """

    def __init__(self, inputs: PlanInputs, workload: Workload, have: Mapping[str, int], every_s: float = 0.0) -> None:
        self._made_of = inputs, workload, have, every_s
        inputs = replace(inputs, gpu=tuple(have), inventory=dict(have))
        self.question = compile_question(inputs, workload, 1.0)
        if (population := self.question.traffic.sending.population) is not None:
            self.question = with_users(self.question, None, population.users / every_s)
        self.have, self.options = have, engine_choices(self.question)
        self.moments = self.question.traffic.moments(self.question.inputs.chunk)
        self.promises = self.question.promises
        if len(have) > 1:
            # as every fleet of several pools is decided
            kept = (held_to(p, KEPT_BACK) for p in self.promises.of_pools)
            self.promises = self.promises.only(tuple(p for p in kept if p is not None))
        self._refused: dict[tuple[str, ...], Refused] = {}

    def __reduce__(self) -> tuple[type[Stock], tuple[Any, ...]]:
        """Another process makes it anew."""
        return Stock, self._made_of

    @property
    def by_share(self) -> bool:
        """Whether traffic may be cut by share: every pool keeps its own promises, and no request hangs on another."""
        shape = self.question.shape
        mixes = shape in shape_names() and not find_shape(shape).divides_roles
        return mixes and self.question.traffic.sessions is None and not self.question.promises.of_fleet

    def ways(self) -> list[tuple[Range, ...]]:
        """Ways to cut by length in two, where plans cut it."""
        top = self.moments.top
        if self.question.inputs.pools == 1 or len(self.have) == 1:
            return []
        return [((0.0, b), (b, top)) for b in FleetProblem(self.question).boundary_grid if 0.0 < b < top]

    def law(self, lengths: Range) -> PoolLaw | None:
        """The requests of a range."""
        return self.moments.law(State(lengths[0]), State(lengths[1]))

    def pool(self, option: EngineOption, law: PoolLaw, high: float, replicas: int, name: str = "all") -> Pool | None:
        """A pool of which so many replicas serve; ``None`` where none fits."""
        made = pool_for(self.question, option, law, option.max_model_len if high >= self.moments.top else high)
        return None if made is None else replace(made.sized(replicas), name=name)

    def _margin(self, option: EngineOption, types: int) -> Margin:
        """How sure an engine has to be in a fleet of so many types."""
        return Margin.of(self.promises.confidence, option.profile, self.promises.latency, types)

    def slow(self, option: EngineOption) -> float:
        """Iteration times of an engine with which its pools keep their promises, over those of its profile [1]."""
        return self._margin(option, len(self.have)).slow

    @keeping()
    def cells(self, lengths: Range, near: Mapping[str, Cell], alone: bool = False) -> dict[str, Cell]:
        """The engine of each type that bears most of a range with all GPUs there are; `near` are those of a range like it, which
        are looked at `alone` where they may be."""
        law = self.law(lengths)
        if law is None:
            return {}
        best = {gpu: self._best(law, lengths[1], gpu, near.get(gpu), alone) for gpu in self.have}
        return {gpu: cell for gpu, cell in best.items() if cell is not None}

    def _best(self, law: PoolLaw, high: float, gpu: str, near: Cell | None = None, alone: bool = False) -> Cell | None:
        """The likeliest first, each engine is asked whether it bears more than the best yet."""
        ranked: list[tuple[bool, float, int, Pool, float]] = []
        for k, option in enumerate(self.options):
            n = option.price.most_within(self.have[gpu]) if option.gpu.name == gpu else 0
            pool = self.pool(option, law, high, n) if n else None
            if pool is None:
                continue
            most = self.promises.utilization_cap * n * pool.model.capacity_at(n)
            idle = when_idle(pool.model.under(self.slow(option)), self.promises.latency, self.promises.levels())
            # the less an idle replica leaves of a promise the less load it bears
            if (left := 1.0 if idle is None else 1.0 - idle.excess) >= 0.0:
                ranked.append((near is None or k != near.option, -most * left, k, pool, most))
        best, rate = None, 0.0
        for other, _, k, pool, most in sorted(ranked, key=lambda row: row[:3]):
            more = rate * (1.0 + NEARLY)
            if most <= more:
                continue
            if alone and best and other:
                break
            keeps = partial(pool_keeps, pool, promises=self.promises, slow=self.slow(pool.option))
            if rate and not keeps(more):
                continue
            start = more or most * (LOAD if other or near is None else near.load)
            rate, _ = largest(keeps, start, precision=NEARLY)
            if rate > 0.0:
                best = Cell(k, pool.replicas, rate / pool.replicas, rate / most)
        return best

    def allocated(self, way: Sequence[Range], cells: Cells) -> tuple[float, list[Part]]:
        """About the largest rate [1/s], and the pools that bear it.

        Types go to the range of which they bear relatively most, one is shared by both: the optimum of the linear programme, and
        of whole replicas near it.
        """
        shares = [0.0 if (law := self.law(lengths)) is None else law.share for lengths in way]
        if len(way) == 1:
            own = cells[0]
            return math.fsum(c.replicas * c.each_per_s for c in own.values()), [
                (0, g, c.replicas) for g, c in own.items()
            ]
        borne = [{g: c.replicas * c.each_per_s for g, c in own.items()} for own in cells]

        def relative(gpu: str) -> float:
            low, high = (b.get(gpu, 0.0) for b in borne)
            return low / high if high else math.inf

        order = sorted({**borne[0], **borne[1]}, key=relative, reverse=True)
        best: tuple[float, list[Part]] = (0.0, [])
        for k, shared in enumerate(order):
            fixed = [(0, g, cells[0][g].replicas) for g in order[:k] if g in cells[0]]
            fixed += [(1, g, cells[1][g].replicas) for g in order[k + 1 :] if g in cells[1]]
            for n in range(cells[0][shared].replicas + 1 if shared in cells[0] else 1):
                parts = [p for p in (*fixed, (0, shared, n), (1, shared, self._rest(cells, shared, n))) if p[2]]
                sums = [math.fsum(cells[r][g].each_per_s * m for r, g, m in parts if r == at) for at in (0, 1)]
                rate = min(b / s if s > 0.0 else math.inf for b, s in zip(sums, shares, strict=True))
                if rate > best[0]:
                    best = rate, parts
        return best

    def _rest(self, cells: Cells, gpu: str, short: int) -> int:
        """Replicas for long requests that the GPUs of a type leave room for beside so many for short ones."""
        if gpu not in cells[1]:
            return 0
        used = 0
        if short:
            price = self.options[cells[0][gpu].option].price
            used = price.bought(short) * price.gpus_per_replica
        return self.options[cells[1][gpu].option].price.most_within(self.have[gpu] - used)

    def fleet(self, way: Sequence[Range], parts: Sequence[Part], cells: Cells, rate: float) -> Fleet | None:
        """The fleet of such pools, each with the share of its range that it bears, looked for about a rate [1/s]."""
        weights = [cells[r][g].each_per_s * n for r, g, n in parts]
        for _ in range(2):
            fleet = self._with_shares(way, parts, cells, weights)
            if fleet is None:
                return None
            kept = [partial(pool_keeps, p, promises=self.promises, slow=self.slow(p.option)) for p in fleet.pools]
            weights = [
                largest(keeps, rate * p.law.share, precision=NEARLY)[0]
                for keeps, p in zip(kept, fleet.pools, strict=True)
            ]
        return self._with_shares(way, parts, cells, weights)

    def _with_shares(
        self, way: Sequence[Range], parts: Sequence[Part], cells: Cells, weights: Sequence[float]
    ) -> Fleet | None:
        """The pools with shares of their ranges as their weights; ``None`` where a range has none."""
        pools = []
        for at, lengths in enumerate(way):
            law = self.law(lengths)
            own = [(gpu, n, w) for (r, gpu, n), w in zip(parts, weights, strict=True) if r == at and w > 0.0]
            total, begin = math.fsum(w for *_, w in own), 0.0
            if law is None or not own:
                return None
            for k, (gpu, n, w) in enumerate(own):
                end = 1.0 if k == len(own) - 1 else begin + w / total
                kind = "" if len(way) == 1 else ("short, ", "long, ")[at]
                dealt = law if len(own) == 1 else part_of(law, begin, end)
                pool = self.pool(self.options[cells[at][gpu].option], dealt, lengths[1], n, kind + gpu)
                if pool is None:
                    return None
                pools.append(pool)
                begin = end
        return Colocated(self.question, pools)

    def fitting(self, rate_per_s: float) -> Fleet | None:
        """A fleet of pools by length, each of one type, that bears a rate [1/s]; ``None`` where these GPUs hold none."""
        for count in range(len(self.have), 0, -1):
            for types in itertools.combinations(self.have, count):
                # engines of each are as sure as fleets of so many have to be
                own = [option for option in self.options if option.gpu.name in types]
                deviations = self._margin(own[0], count).deviations
                asked = replace(self.question.at(rate_per_s), explained=False, deviations=deviations)
                problem = FleetProblem(asked, own)
                problem.open_grid()
                known = self._refused.setdefault(types, {})
                fleet = Fitting(problem, {gpu: self.have[gpu] for gpu in types}, known).fleet()
                if fleet is not None:
                    return Colocated(self.question, fleet.pools)
        return None

    def most_per_s(self) -> float:
        """What the load alone allows at most, of all GPUs with their best engines [1/s]."""
        lengths = (0.0, self.moments.top)
        law, borne = self.law(lengths), dict.fromkeys(self.have, 0.0)
        for option in self.options if law is not None else ():
            n = option.price.most_within(self.have[option.gpu.name])
            pool = self.pool(option, law, lengths[1], n) if law is not None and n else None
            if pool is not None:
                borne[option.gpu.name] = max(borne[option.gpu.name], n * pool.model.capacity_at(n))
        return self.promises.utilization_cap * math.fsum(borne.values())

    def planned(self, rate_per_s: float) -> Fleet | None:
        """The fleet that a plan takes of these GPUs at a rate [1/s]; ``None`` where they are too few."""
        try:
            found = fleet_of(replace(self.question.at(rate_per_s), explained=False))
        except InfeasibleError:
            return None
        # a search ranks by a sample; all requests may ask for a replica more than there is
        held = all(n <= self.have[gpu] for gpu, n in gpus_by_type(found.pools).items())
        return found if held else None


@keeping()
def capacity_of_stock(
    inputs: PlanInputs, workload: Workload, have: Mapping[str, int], executor: Executor | None = None
) -> Capacity:
    """The largest rate that so many GPUs bear within all promises, and the fleet that does.

    Engines of every type and range are asked what they bear; the cut between ranges and types is the best by these rates, its
    shares by what each pool then bears. Then pools by length of one type each are looked for that bear more, until there are none:
    the answer is no less than any rate that a plan of these GPUs bears.

    Parameters
    ----------
    inputs, workload, have
        As of :class:`Stock`.
    executor
        Asks the ranges elsewhere.

    Raises
    ------
    InfeasibleError
        No fleet of these GPUs keeps the promises at any rate.
    """
    run = map if executor is None else executor.map
    population, best = population_of(inputs), None
    if population is None:
        return _capacity(Stock(inputs, workload, have), run)
    # how often users ask hangs on the fleet that they ask
    every_s = population.users / stated_rate(inputs, workload)
    for _ in range(MOST_ROUNDS):
        found = _capacity(Stock(inputs, workload, have, every_s), run)
        if best is not None and (found.users or 0) <= (best.users or 0):
            break
        best, before, every_s = found, every_s, found.served.users_per_rate or every_s
        if abs(every_s / before - 1.0) <= NEARLY:
            break
    assert best is not None
    return best


def _capacity(stock: Stock, run: Callable[..., Iterable[dict[str, Cell]]]) -> Capacity:
    """See :func:`capacity_of_stock`; engines and cuts are those of users who ask every so often [s], their number is exact."""
    if stock.by_share:
        found = _fitted(stock, _by_share(stock, run))
    else:
        # no fleet is thought of: from what the load alone allows on down
        found = _planned(stock)
    if found is None:
        raise InfeasibleError(
            f"no fleet of {' and '.join(f'{n:,} {gpu}' for gpu, n in stock.have.items())} keeps the promises at any rate",
            "See what binds: fleetopt plan with these GPUs (--gpu); or relax the promise.",
        )
    return with_its_users(found[0], capacity_at(*found, stock.have))


def _by_share(stock: Stock, run: Callable[..., Iterable[dict[str, Cell]]]) -> Borne | None:
    """The fleet of traffic cut by length and by share that bears most, and what it bears; `run` asks cells elsewhere."""
    ways = stock.ways()
    whole: tuple[Range, ...] = ((0.0, stock.moments.top),)
    cells = [*run(stock.cells, whole, [{}])]
    way, best, step, found = whole, len(ways) // 2, max(len(ways) // 4, 1), dict[int, list[dict[str, Cell]]]()

    def rate(at: int) -> float:
        return stock.allocated(ways[at], found[at])[0]

    while ways:
        # steps that are halved; engines that bear most of ranges that are alike are nearly always the same
        for at in (best, best - step, best + step):
            if 0 <= at < len(ways) and at not in found:
                near = found[min(found, key=lambda k: abs(k - at))] if found else [{}, {}]
                found[at] = [*run(stock.cells, ways[at], near, [bool(found)] * 2)]
        best = max(found, key=rate)
        if step == 1:
            break
        step = (step + 1) // 2
    if ways and rate(best) > stock.allocated(whole, cells)[0]:
        way, cells = ways[best], [*run(stock.cells, ways[best], found[best])]
    about, parts = stock.allocated(way, cells)
    fleet = stock.fleet(way, parts, cells, about) if about > 0.0 else None
    return None if fleet is None else _decided(fleet, about)


def _fitted(stock: Stock, best: Borne | None) -> Borne | None:
    """The fleet by length that bears most where that is more than the best so far, or that; as the sizer has it."""
    fleets: dict[float, Fleet | None] = {}

    def fits(rate_per_s: float) -> bool:
        fleets[rate_per_s] = stock.fitting(rate_per_s)
        return fleets[rate_per_s] is not None

    low, start = (0.0, LOAD * stock.most_per_s()) if best is None else (best[1], best[1] * (1.0 + PRECISION))
    at, _ = largest(fits, start, low, step=1.0 + 1.5 * PRECISION if best else DOWN**-0.5)
    fleet = fleets.get(at)
    found = None if fleet is None else _decided(fleet, at)
    if found is not None and (best is None or found[1] > best[1]):
        best = found
    return best and (best[0], *as_sized(*best))


def _decided(fleet: Fleet, about_per_s: float) -> Borne | None:
    """A fleet with what it bears of all requests, looked for about a rate [1/s]; ``None`` where that is nothing."""
    margins = fleet.margins_at(about_per_s)
    rates = largest(lambda rate: fleet.stands(rate, margins), about_per_s, step=1.0 + 1.5 * PRECISION)
    return (fleet, *rates) if rates[0] > 0.0 else None


def _planned(stock: Stock) -> Borne | None:
    """The plan of these GPUs that bears most; ``None`` where none bears any rate.

    Lower and lower ones are tried until one is borne; then the next above it, and where that is borne too those half way to what is
    not.
    """
    best: Borne | None = None
    low, high, most, first = 0.0, math.inf, stock.most_per_s(), False
    waiting = [most * DOWN**k for k in range(1, TRIALS + 1)]
    for _ in range(max(SEARCHES, len(waiting))):
        at = low * (1.0 + PRECISION) if first or high == math.inf else math.sqrt(low * high)
        at = waiting.pop(0) if waiting else at
        fleet = stock.planned(at)
        if fleet is None:
            high = at
        else:
            first, waiting = best is None, []
            best = fleet, *largest_rate(fleet, fleet.rate)
            low = max(low, best[1])
        if not waiting and (low <= 0.0 or high <= low * (1.0 + PRECISION)):
            break
    return best
