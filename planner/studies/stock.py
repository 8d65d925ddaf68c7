"""The best fleet of the GPUs there are: traffic cut by length and by share between their types, for the largest rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.errors import InfeasibleError
from planner.fleet.assemble import fleet_of
from planner.fleet.fleet import Fleet
from planner.fleet.grid import engine_choices
from planner.fleet.margin import Margin
from planner.fleet.pool import Pool, PoolSize, gpus_by_type, replica_for, when_idle
from planner.fleet.shapes import find_shape, shape_names
from planner.fleet.shapes.colocated import Colocated
from planner.methods.base import Prediction
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs
from planner.replica.engine import EngineOption
from planner.shared.kept import keeping
from planner.shared.remarks import Remark
from planner.studies.capacity import PRECISION, Capacity, capacity_at, largest, largest_rate, pool_keeps
from planner.workload.pools import PoolLaw, PoolRequests, State
from planner.workload.workload import Workload

CUTS = (0.15, 0.35, 0.55, 0.75, 0.9)
"""Boundaries that are tried, by the share of the prompt tokens below them."""

SEARCHES = 6
"""Plans that are searched, at most, to know the rate; more where there is none at first."""

NEARLY = 1.0 / 64.0
"""Share to which it is known what an engine or a fleet bears that is only thought of [1]."""

DOWN = 0.7
"""Factor between the rates at which the first plan is looked for where nothing is known of a fleet that bears one [1]."""

Range = tuple[float, float]
"""Lengths above the first and up to the second [tokens]."""

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
    each_per_s
        What one of them bears within the promises [1/s].
    """

    option: int
    replicas: int
    each_per_s: float


Cells = Sequence[Mapping[str, Cell]]
"""For each range the best engine by GPU type."""

Part = tuple[int, str, int]
"""A pool: its range, its GPU type, its replicas."""


def part_of(law: PoolLaw, begin: float, end: float) -> PoolLaw:
    """The requests that a gateway deals out between two shares of a pool's [1]: of every length alike."""

    def dealt() -> PoolRequests | None:
        found = law.requests()
        if found is None:
            return None
        rank = np.empty(found.trace.requests)
        rank[np.lexsort((found.trace.output_tokens, found.trace.input_tokens))] = np.arange(found.trace.requests)
        place = rank * GOLDEN % 1.0
        keep = (place >= begin) & (place < end)
        return replace(found, trace=found.trace.select(keep), cached_share=found.cached_share[keep])

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
    """

    def __init__(self, inputs: PlanInputs, workload: Workload, have: Mapping[str, int]) -> None:
        inputs = replace(inputs, gpu=tuple(have), inventory=dict(have))
        self.question = compile_question(inputs, workload, 1.0)
        self.have, self.options = have, engine_choices(self.question)
        self.moments = self.question.traffic.moments(self.question.engines.chunk)
        self.promises = self.question.promises

    @property
    def by_share(self) -> bool:
        """Whether traffic may be cut by share: every pool keeps its own promises, and no request hangs on another."""
        shape = self.question.search.shape
        mixes = shape in shape_names() and find_shape(shape).mixes
        return mixes and self.question.traffic.sessions is None and not self.promises.of_fleet

    def ways(self) -> Iterator[tuple[Range, ...]]:
        """Ways to cut by length: not at all, and in two."""
        top, search = self.moments.top, self.question.search
        yield ((0.0, top),)
        if search.pools > 1 and len(self.have) > 1:
            tokens = np.cumsum(self.moments.weight * (1.0 - self.moments.cached) * self.moments.input)
            places = np.searchsorted(tokens, np.array(CUTS) * tokens[-1])
            cuts = search.boundaries or tuple(dict.fromkeys(self.moments.total[places].tolist()))
            yield from (((0.0, b), (b, top)) for b in cuts if 0.0 < b < top)

    def law(self, lengths: Range) -> PoolLaw | None:
        """The requests of a range."""
        return self.moments.law(State(lengths[0]), State(lengths[1]))

    def pool(self, option: EngineOption, law: PoolLaw, high: float, replicas: int, name: str = "all") -> Pool | None:
        """A pool of which so many replicas serve; ``None`` where none fits."""
        made = replica_for(self.question, option, law, option.max_model_len if high >= self.moments.top else high)
        size = PoolSize(replicas, Prediction.unknown(), Remark("stands"))
        return None if made is None else Pool(law, option, *made, 1.0, size, option.price.bought(replicas), name)

    def slow(self, option: EngineOption) -> float:
        """Iteration times of an engine with which its pools keep their promises, over those of its profile [1]."""
        return Margin.of(self.promises.confidence, option.profile, self.promises.latency, len(self.have)).slow

    def cells(self, lengths: Range) -> dict[str, Cell]:
        """The engine of each type that bears most of a range with all GPUs there are."""
        law = self.law(lengths)
        found = {gpu: None if law is None else self._best(law, lengths[1], gpu) for gpu in self.have}
        return {gpu: cell for gpu, cell in found.items() if cell is not None}

    def _best(self, law: PoolLaw, high: float, gpu: str) -> Cell | None:
        """By what its load alone allows, each engine is asked whether it bears more than the best so far."""
        ranked: list[tuple[float, int, Pool]] = []
        for k, option in enumerate(self.options):
            n = option.price.most_within(self.have[gpu]) if option.gpu.name == gpu else 0
            pool = self.pool(option, law, high, n) if n else None
            if pool is not None:
                ranked.append((self.promises.utilization_cap * n * pool.model.capacity_at(n), k, pool))
        best, rate = None, 0.0
        for most, k, pool in sorted(ranked, key=lambda row: (-row[0], row[1])):
            if most <= rate * (1.0 + PRECISION):
                break
            slow = self.slow(pool.option)
            idle = when_idle(pool.model.under(slow), self.promises.latency, self.promises.levels())
            keeps = partial(pool_keeps, pool, promises=self.promises, slow=slow)
            if (idle is not None and idle.excess > 1.0) or (rate and not keeps(rate * (1.0 + PRECISION))):
                continue
            rate, _ = largest(keeps, rate * (1.0 + PRECISION) or 0.6 * most, precision=NEARLY)
            if rate > 0.0:
                best = Cell(k, pool.size.replicas, rate / pool.size.replicas)
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
            weights = [largest(keeps, rate * p.law.share)[0] for keeps, p in zip(kept, fleet.pools, strict=True)]
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
        search = replace(self.question.search, explained=False)
        try:
            found = fleet_of(replace(self.question, search=search).at(rate_per_s))
        except InfeasibleError:
            return None
        # a search ranks by a sample; all requests may ask for a replica more than there is
        held = all(n <= self.have[gpu] for gpu, n in gpus_by_type(found.pools).items())
        return found if held else None


@keeping()
def _cells(inputs: PlanInputs, workload: Workload, have: Mapping[str, int], lengths: Range) -> dict[str, Cell]:
    """:meth:`Stock.cells`, in another thread or process."""
    return Stock(inputs, workload, have).cells(lengths)


@keeping()
def capacity_of_stock(
    inputs: PlanInputs, workload: Workload, have: Mapping[str, int], executor: Executor | None = None
) -> Capacity:
    """The largest rate that so many GPUs bear within all promises, and the fleet that does.

    Engines of every type and range are asked what they bear; the cut between ranges and types is the best by these rates, its
    shares by what each pool then bears. Plans with this inventory are looked for from there on, halving between the rates that one
    bears and that none does: the answer is no less than any rate they find.

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
    stock = Stock(inputs, workload, have)
    best: Fleet | None = None
    rate, refused, about = 0.0, math.inf, 0.0
    if stock.by_share:
        ways = [*stock.ways()]
        ranges = list(dict.fromkeys(lengths for way in ways for lengths in way))
        run = map if executor is None else executor.map
        each = dict(zip(ranges, run(partial(_cells, inputs, workload, have), ranges), strict=True))
        found = [(way, [each[lengths] for lengths in way]) for way in ways]
        way, cells = max(found, key=lambda row: stock.allocated(*row)[0])
        about, parts = stock.allocated(way, cells)
        if about <= 0.0:
            raise _hopeless(have)
        fleet = stock.fleet(way, parts, cells, about)
        if fleet is not None:
            rate, refused = largest_rate(fleet, about)
            best = fleet if rate > 0.0 else None
    trials = [max(about, rate * (1.0 + PRECISION))]
    if best is None:
        # where no fleet is thought of, from what the load alone allows on down
        trials = [stock.most_per_s() * DOWN**k for k in range(1, 12)]
    planned = _planned(stock, rate, trials)
    if planned is not None:
        best, rate, refused = planned
    if best is None:
        raise _hopeless(have)
    return capacity_at(best, rate, refused, have)


def _planned(stock: Stock, low: float, trials: Sequence[float]) -> tuple[Fleet, float, float] | None:
    """The plan of these GPUs that bears most, its largest rate and the next one, which it does not keep [1/s]; ``None`` where none
    bears more than `low`.

    Rates of `trials` are tried until one is borne; then the next above it, and where that is borne too those half way to what is
    not.
    """
    best: tuple[Fleet, float, float] | None = None
    high, waiting, first = math.inf, list(trials), False
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


def _hopeless(have: Mapping[str, int]) -> InfeasibleError:
    """The error where nothing keeps the promises."""
    return InfeasibleError(
        f"no fleet of {' and '.join(f'{n:,} {gpu}' for gpu, n in have.items())} keeps the promises at any rate",
        "See what binds: fleetopt plan with these GPUs (--gpu); or relax the promise.",
    )
