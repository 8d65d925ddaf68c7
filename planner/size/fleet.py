"""A fleet of any shape: pools that serve one stream of requests, asked about any rate and any numbers of replicas."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Self

from planner.errors import InputError
from planner.plans import SavedPool, SearchReport
from planner.predict.contract import Prediction
from planner.promise import GOODPUT, PROMISE_METRICS, Promise
from planner.question.compiled import REPORTED_LEVELS, CompiledQuestion, Promises
from planner.question.options import GROWTH
from planner.shared.remarks import Remark
from planner.size.alone import beyond_capacity, cache_curve, cache_lines, overload_at, overload_lines, sessions_of
from planner.size.grid import TAIL_LEVELS
from planner.size.pool import Margin, Pool, Shortfall, smallest_pool
from planner.workload import pools as m

GROWN = 1.05
"""Rate over the trace's own from which it matters who sends the rest [1]."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One pool under one load.

    Parameters
    ----------
    pool
        Name.
    rate_per_s
        Rate of the pool [1/s].
    prediction
        Latency and occupancy.
    broken
        Promises that do not hold.
    overload
        Goodput, rejections and attempts under the limits stated, where there are any.
    shares
        Of every promise about several latencies, the share of the requests that keeps them [1].
    """

    pool: str
    rate_per_s: float
    prediction: Prediction
    broken: tuple[Promise, ...]
    overload: Mapping[str, float] | None = None
    shares: tuple[tuple[Promise, float], ...] = ()


class Fleet:
    """Pools that serve one stream of requests; what a shape adds is how their latencies come about.

    Parameters
    ----------
    question
        What was asked.
    pools
        The pools, in the order of the plan.
    levels
        Quantile levels of predictions.
    """

    linked = False
    """Whether the latency of one pool depends on the size of another."""

    headroom_step = 1.08
    """Factor between rates at which the search for the headroom stops."""

    def __init__(self, question: CompiledQuestion, pools: Sequence[Pool], levels: tuple[float, ...]) -> None:
        self.question, self.pools, self.levels = question, list(pools), levels

    # --- what a shape says ----------------------------------------------------------------------------------------

    def predict(self, rate_per_s: float, counts: Sequence[int], quick: bool = False) -> list[Prediction]:
        """Every pool at a rate of the fleet [1/s] with these numbers of replicas serving; of a sample where it is to be `quick`."""
        raise NotImplementedError

    def sizes_for(
        self, rate_per_s: float, margins: Sequence[Margin], near: Sequence[int] | None = None, quick: bool = False
    ) -> list[Pool] | Shortfall:
        """The pools of the cheapest sizes that keep the promises at a rate of the fleet, at the middle draw of its traffic.

        Parameters
        ----------
        rate_per_s
            The rate [1/s].
        margins
            Of every pool, the iteration times it keeps them with.
        near
            Numbers thought to be close.
        quick
            The answer of a sample of the requests, without predictions.
        """
        raise NotImplementedError

    def keeps(self, rate_per_s: float) -> bool:
        """Whether the fleet as it stands keeps its latency promises at a rate [1/s]; replays end as soon as one is broken."""
        raise NotImplementedError

    def work_tokens(self, k: int) -> tuple[float, float]:
        """Mean input and output tokens of a request that pool `k` works on."""
        law = self.pools[k].law
        return law.mean(m.INPUT), law.mean(m.OUTPUT)

    def metrics(self, k: int) -> tuple[str, ...]:
        """Latencies that pool `k` answers for."""
        return (*PROMISE_METRICS,)

    def size_of(
        self, k: int, rate_per_s: float, promises: Promises, start: int, quick: bool = False
    ) -> Pool | Shortfall:
        """Pool `k` of the fewest replicas that keep other promises at a rate of its own [1/s]; `start` are thought to be near."""
        pool, margin = self.pools[k], self.margins(promises.confidence)[k]
        found = smallest_pool(pool.model, rate_per_s, promises, 1, promises.levels(), start, quick, margin)
        return found if isinstance(found, Shortfall) else pool.sized(*found)

    def as_engines_see(self) -> Fleet:
        """The same fleet without what no engine measures."""
        return self

    def seen_in(self, k: int) -> tuple[str, ...]:
        """Latencies of whole requests that the engines of pool `k` measure themselves."""
        return (*PROMISE_METRICS,)

    def promises_on(self, k: int) -> tuple[Promise, ...]:
        """Promises that the size of pool `k` helps to keep."""
        return self.promises.latency

    def pool_at(self, k: int, rate_per_s: float, replicas: int, levels: tuple[float, ...]) -> Prediction:
        """Pool `k` at a rate of its own [1/s]; where others add to its latencies they keep the plan's proportions."""
        return self.pools[k].model.predict(rate_per_s, replicas, levels)

    def tightness(self, k: int) -> list[str]:
        """Further lines on what fixes pool `k`."""
        return []

    def notes(self) -> Iterator[Remark]:
        """Findings worth knowing, of this shape."""
        yield from ()

    def assumptions(self) -> Iterator[Remark]:
        """What was assumed, beyond engines, prices and arrivals."""
        yield from ()

    def in_closed_form(self) -> Remark | None:
        """How many replicas a formula would buy; ``None`` where there is none for this shape."""
        return None

    def summary(self) -> Iterator[str]:
        """Lines of the explanation: what prefix caches find, with other replicas and routings too, and what is beyond capacity."""
        for pool in self.pools:
            if sessions := sessions_of(pool):
                yield from cache_lines(pool, sessions)
            if self.question.clients.stated and any(pool is door for door in self.doors):
                yield from overload_lines(pool, self.question.clients, self.promises)

    def caches(self) -> dict[str, object] | None:
        """What prefix caches find in its pools, and by replicas and routing; ``None`` where nothing comes back."""
        return {p.name: cache_curve(p, model) for p in self.pools if (model := sessions_of(p))} or None

    @property
    def doors(self) -> Sequence[Pool]:
        """The pools whose replicas turn requests away and whose clients lose patience."""
        return self.pools

    def overload_at(self, pool: Pool, rate_per_s: float) -> Mapping[str, float] | None:
        """What becomes of a pool's requests at a rate [1/s]; ``None`` where no limit is stated."""
        clients = self.question.clients
        if not clients.stated or not any(pool is p for p in self.doors):
            return None
        return overload_at(pool, clients, rate_per_s)

    def overload(self) -> dict[str, object] | None:
        """What happens in its pools beyond their capacity; ``None`` where no limit is stated."""
        clients = self.question.clients
        if not clients.stated:
            return None
        return {pool.name: beyond_capacity(pool, clients, self.promises) for pool in self.doors}

    def routed(self, question: CompiledQuestion) -> Fleet:
        """The same pools behind the gateway of another question."""
        raise NotImplementedError

    # --- sizes ---

    def size(self, rate_per_s: float, near: Sequence[int] | None = None) -> list[Pool] | Shortfall:
        """The pools of the cheapest sizes that keep the promises at a rate of the fleet [1/s] with the confidence asked for.

        All draws of its traffic are considered; `near` are numbers thought to be close.
        """
        margins = self.margins(self.promises.confidence)
        found = self.sizes_for(rate_per_s, margins, near, quick=True)
        if isinstance(found, Shortfall) or not self.promises.latency:
            return found if isinstance(found, Shortfall) else self.sizes_for(rate_per_s, margins, near)
        about = self.sized(found)
        return self.sizes_for(rate_per_s, about.margins_at(rate_per_s), about.counts)

    def margins_at(self, rate_per_s: float) -> list[Margin]:
        """Iteration times with which pools about as large as these keep their promises with the confidence asked for.

        All draws of the traffic at a rate of the fleet [1/s] are considered.
        """
        # a plan whose traffic has one draw does not pay for the others
        from planner.size.sure import Errors

        margins, errors = self.margins(self.promises.confidence), Errors(self, rate_per_s)
        if self.promises.latency and len(errors.draws) > 1 and errors.sd > 0.0:
            errors.spread(margins[0].deviations)
            deviations = errors.deviations_for(self.promises.confidence)
            margins = [replace(margin, deviations=deviations) for margin in margins]
        return margins

    def stands(self, rate_per_s: float, margins: Sequence[Margin]) -> bool:
        """Whether the pools as they stand keep promises and cap at a rate [1/s] with these iteration times; all requests decide."""
        sizes = self.sizes_for(rate_per_s, margins, self.counts)
        return not isinstance(sizes, Shortfall) and all(
            size.replicas <= n for size, n in zip(sizes, self.counts, strict=True)
        )

    def sized(self, pools: Sequence[Pool]) -> Self:
        """The same fleet with its pools of other sizes or models."""
        other = copy(self)
        other.pools = [*pools]
        return other

    def slowed(self, deviations: float, draw: int | None = None) -> Self:
        """The same fleet with iteration times longer by so many standard deviations of their error, at a draw of its traffic."""
        slow = [math.exp(deviations * margin.sd) for margin in self.margins(0.5)]
        return self.sized([replace(p, model=p.model.under(s, draw)) for p, s in zip(self.pools, slow, strict=True)])

    def grown(self, growth: str) -> Self | None:
        """The same engines where traffic beyond the trace's own is more ``users`` or more ``use``; ``None`` where alike."""
        pools = [replace(pool, model=model) for pool in self.pools if (model := pool.model.grown(growth)) is not None]
        return self.sized(pools) if len(pools) == len(self.pools) else None

    def resized(self, counts: Sequence[int]) -> Self:
        """The same fleet with other numbers of replicas that serve."""
        return self.sized([p.sized(n) for p, n in zip(self.pools, counts, strict=True)])

    # --- what holds for all ---------------------------------------------------------------------------------------

    @property
    def promises(self) -> Promises:
        """What is promised."""
        return self.question.promises

    @property
    def rate(self) -> float:
        """Rate asked about [1/s]."""
        return self.question.traffic.rate_per_s

    @property
    def counts(self) -> list[int]:
        """Replicas that serve, by pool."""
        return [p.replicas for p in self.pools]

    @property
    def errors(self) -> int:
        """Independent errors of iteration times: one of every GPU type, model and engine."""
        return len({(p.option.gpu.name, p.option.model.name, p.option.profile.engine) for p in self.pools})

    def margins(self, confidence: float) -> list[Margin]:
        """Iteration times with which every pool keeps its promises so that all hold with a chance of `confidence`."""
        return [Margin.of(confidence, p.option.profile, self.promises.latency, self.errors) for p in self.pools]

    @property
    def own_promises(self) -> tuple[Promise, ...]:
        """Promises held against the prediction of single pools."""
        return self.promises.of_pools

    @property
    def shared_promises(self) -> tuple[Promise, ...]:
        """Promises held against all requests together."""
        return self.promises.of_fleet

    @property
    def told_levels(self) -> tuple[float, ...]:
        """Quantile levels a result tells of; predictions may have more."""
        return self.promises.told_levels(TAIL_LEVELS if self.shared_promises else REPORTED_LEVELS)

    @property
    def cost_usd_per_hour(self) -> float:
        """Cost of all pools [USD/hour]."""
        return math.fsum(p.cost_usd_per_hour for p in self.pools)

    @property
    def capacity_per_s(self) -> float:
        """Largest stable rate of the fleet at this mix of requests [1/s]."""
        return min(p.replicas * p.capacity_per_s / p.law.share for p in self.pools)

    def at(self, rate_per_s: float) -> list[Verdict]:
        """Every pool as it stands at a rate of the fleet [1/s], each held against the promises."""
        verdicts = []
        for pool, found in zip(self.pools, self.predict(rate_per_s, self.counts), strict=True):
            missed = tuple(
                p for p in self.promises.latency if found.load >= 1.0 or found.value(p.metric, p.quantile) > p.limit_s
            )
            rate = rate_per_s * pool.law.share
            shares = tuple((p, share) for p in self.promises.joint if not math.isnan(share := found.share(p)))
            verdicts.append(Verdict(pool.name, rate, found, missed, self.overload_at(pool, rate), shares))
        return verdicts

    def with_one_fewer(self, k: int) -> list[Prediction]:
        """Predictions of the pools that feel it when pool `k` has one replica fewer, that of pool `k` first.

        They are with the iteration times that the fleet was sized for.
        """
        counts = [n - (j == k) for j, n in enumerate(self.counts)]
        slow = self.slowed(self.margins(self.promises.confidence)[k].deviations)
        found = slow.look(self.rate, [max(n, 1) for n in counts])
        return [found[k], *(p for j, p in enumerate(found) if self.linked and j != k)]

    def other_growth(self) -> Remark | None:
        """The promise this fleet breaks where growth means the other thing, if it breaks one."""
        traffic = self.question.traffic
        own = None if traffic.arrivals is None else traffic.arrivals.rate_per_s
        if not own or self.rate <= GROWN * own:
            return None
        other = next(g for g in GROWTH if g != traffic.growth)
        fleet = self.grown(other)
        if fleet is None or not self.promises.latency:
            return None
        rows = [
            (p, x, x.value(p.metric, p.quantile) / p.limit_s)
            for x in fleet.look(self.rate)
            for p in self.promises.latency
        ]
        # a pool that does not decode has no TPOT
        held = [row for row in rows if not math.isnan(row[2])]
        worst, prediction, excess = max(held, key=lambda row: row[2], default=(None, None, 0.0))
        if worst is None or prediction is None or excess <= 1.0:
            return None
        value = prediction.value(worst.metric, worst.quantile)
        return Remark("other_growth", {"growth": other, "promise": worst.label, "value_s": value})

    def tails(self, predictions: Sequence[Prediction]) -> list[float]:
        """Share of all requests beyond the limit of each shared promise."""
        return [
            math.fsum(pool.law.share * tail_at(found, p) for pool, found in zip(self.pools, predictions, strict=True))
            for p in self.shared_promises
        ]

    def excess(self, rate_per_s: float, quick: bool = True) -> float:
        """Logarithm of the worst latency over its limit at a rate of the fleet [1/s]: positive = a promise is broken [1].

        Where it is to be `quick` a broken promise is told as infinite.
        """
        if quick and not self.keeps(rate_per_s):
            return math.inf
        found = self.look(rate_per_s)
        if any(prediction.load >= 1.0 for prediction in found):
            return math.inf
        over = [p.value(q.metric, q.quantile) / q.limit_s for p in found for q in self.own_promises]
        over += [tail / (1.0 - q.quantile) for tail, q in zip(self.tails(found), self.shared_promises, strict=True)]
        # a pool that does not decode has no TPOT
        worst = max((x for x in over if not math.isnan(x)), default=0.0)
        return math.log(worst) if 0.0 < worst < math.inf else math.copysign(math.inf, worst - 1.0)

    def holds(self, rate_per_s: float) -> bool:
        """Whether the fleet as it stands keeps promises, with the question's confidence, and utilization cap at a rate [1/s]."""
        cap = self.promises.utilization_cap * (1.0 + 1e-9)
        for pool in self.pools:
            if rate_per_s * pool.law.share > cap * pool.replicas * pool.capacity_per_s:
                return False
        deviations = self.margins(self.promises.confidence)[0].deviations
        return self.slowed(deviations).keeps(rate_per_s)

    def look(self, rate_per_s: float, counts: Sequence[int] | None = None) -> list[Prediction]:
        """The same as :meth:`predict` from a sample of the requests; `counts` default to the pools as they stand."""
        return self.predict(rate_per_s, self.counts if counts is None else counts, quick=True)

    def headroom(self, at_most: float = math.inf) -> float:
        """Largest factor on the traffic the fleet as it stands serves within all promises, to a step, rounded down."""
        low, high = 1.0, min(self.promises.utilization_cap * self.capacity_per_s / self.rate, at_most)
        if high <= self.headroom_step:
            return low
        if self.holds(high * self.rate):
            return high
        while high / low > self.headroom_step:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.holds(middle * self.rate) else (low, middle)
        return low


def tail_at(prediction: Prediction, promise: Promise) -> float:
    """Share beyond the limit of a promise, read off a prediction's quantiles: log-survival linear in the latency between levels.

    >>> p = Prediction((0.5, 0.9, 0.99), {"ttft_s": (1.0, 2.0, 3.0)}, 0, 0, 0, 0)
    >>> [round(tail_at(p, Promise("ttft_s", limit)), 3) for limit in (2.0, 0.5, 9.0)]
    [0.1, 1.0, 0.01]
    """
    if promise.kind == GOODPUT:
        return 1.0 - prediction.share(promise)
    metric, limit_s = promise.metric, promise.limit_s
    values = [prediction.value(metric, q) for q in prediction.quantiles]
    if math.isinf(values[-1]):
        return 1.0
    survival = [1.0 - q for q in prediction.quantiles]
    if limit_s >= values[-1]:
        # nothing is claimed beyond the highest level predicted
        return survival[-1]
    if limit_s < values[0]:
        return 1.0
    k = bisect.bisect_right(values, limit_s)
    part = (limit_s - values[k - 1]) / (values[k] - values[k - 1])
    return float(math.exp((1.0 - part) * math.log(survival[k - 1]) + part * math.log(survival[k])))


@dataclass(frozen=True, slots=True)
class Solved:
    """The answer of a shape's search.

    Parameters
    ----------
    fleet
        The fleet.
    search
        What was searched.
    baseline
        The best one pool, where that is another fleet.
    notes
        What the search found beside the answer.
    unproven
        What is left unproven.
    beside
        What is said of other searches, behind everything else.
    others
        Shape -> what was found of it, or why there is nothing, where all shapes were asked about.
    """

    fleet: Fleet
    search: SearchReport
    baseline: Fleet | None = None
    notes: tuple[Remark, ...] = ()
    unproven: Remark | None = None
    beside: tuple[Remark, ...] = ()
    others: Mapping[str, Solved | str] = field(default_factory=dict)

    def noted(self, note: Remark) -> Solved:
        """The same with one note more."""
        return replace(self, beside=(*self.beside, note))


class Shape:
    """How a fleet is laid out, ``SHAPE`` of its file: finds the cheapest fleet, and rebuilds one that stands.

    Attributes
    ----------
    divides_roles
        Whether a pool is named for the part of every request that it does; without, a replica prefills and decodes, so that its
        scheduler chooses between the two.
    """

    divides_roles = False

    def solve(self, question: CompiledQuestion) -> Solved:
        """The cheapest fleet.

        Raises
        ------
        InputError
            Something in the question cannot be.
        InfeasibleError
            No fleet of this shape keeps the promises.
        """
        raise NotImplementedError

    def may_cost_less(self, question: CompiledQuestion, usd_per_hour: float) -> bool:
        """Whether :meth:`solve` may find a fleet for less than so much, where that is told sooner."""
        return True

    def stands(self, pools: Sequence[SavedPool]) -> bool:
        """Whether the pools of a plan file are of this shape."""
        raise NotImplementedError

    def rebuild(self, question: CompiledQuestion, pools: Sequence[SavedPool]) -> Fleet:
        """The pools of a plan file under another question.

        Raises
        ------
        InputError
            An engine that cannot be rebuilt.
        """
        raise NotImplementedError


def serving(saved: SavedPool) -> int:
    """Replicas of a plan file's pool that serve.

    Raises
    ------
    InputError
        There are none.
    """
    if saved.replicas <= saved.spares:
        raise InputError(
            f"pool {saved.name}: has no replicas that serve ({saved.spares} of {saved.replicas} are spares)"
        )
    return saved.replicas - saved.spares
