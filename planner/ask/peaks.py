"""Own the trough, rent the peak: how many replicas to own where GPUs by the hour, or a model API, take what is above them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from planner.ask.asked import MORE
from planner.ask.capacity import COARSE, largest
from planner.ask.evaluation import latencies, refuse_linked, replayed
from planner.ask.hourly import Elasticity
from planner.ask.schedule import Schedule, ScheduledPool, scheduled_pool
from planner.catalog.price_files import ApiPrice
from planner.predict.contract import Prediction
from planner.predict.records import Floats
from planner.question.compiled import JOINT_LEVELS
from planner.shared.record import Record
from planner.size.fleet import Fleet
from planner.size.pool import Pool, pool_keeps
from planner.units import HOUR_S, format_duration, format_percent

ON_DEMAND = "GPUs on demand"

LEVELS = 12
"""Rates of a pool that are replayed where the hours have more; what leaves at those between lies on lines between them."""

TRIED = 24
"""Numbers of replicas to own that are all tried; of more, first as many a step apart."""

START = 64.0
"""Requests under way at a replica, about, where their number has not been looked for yet."""

STEP = 1.5
"""Factor of the first step to the largest number of requests under way [1]."""


@dataclass(frozen=True, slots=True)
class PeakPool(Record):
    """One pool that is owned in part.

    Parameters
    ----------
    pool, gpu
        Its name and type.
    replicas, gpus
        To own, spares among the GPUs.
    peak_replicas
        That the busiest hour takes, spares left out.
    rate_per_s
        Which the owned ones carry by themselves, every promise kept [1/s].
    in_flight
        Requests under way in the pool from which on the next is sent to the API; ``None`` = nothing is, or none owned.
    rented_share
        Share of its requests that the API answers, or of its GPU-hours that are on demand [1].
    usd_per_gpu_hour
        Of an owned one [USD/hour].
    latency
        Promise, as tables call it -> of the requests that stay in the busiest hour [s].
    """

    pool: str
    gpu: str
    replicas: int
    gpus: int
    peak_replicas: int
    rate_per_s: float
    in_flight: int | None
    rented_share: float
    usd_per_gpu_hour: float
    latency: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Peak(Record):
    """The cheapest part to own where one thing is rented.

    Parameters
    ----------
    rent
        :data:`ON_DEMAND` or ``provider/model``.
    cost_usd_per_hour, all_owned_usd_per_hour, all_rented_usd_per_hour
        Mean over the hours; with the busiest hour's replicas owned, and with none [USD/hour].
    more_usd_per_hour
        Mean cost where every hour has :data:`MORE` more requests and as many replicas are owned [USD/hour].
    pools
        What of each pool.
    """

    rent: str
    cost_usd_per_hour: float
    all_owned_usd_per_hour: float
    all_rented_usd_per_hour: float
    more_usd_per_hour: float
    pools: tuple[PeakPool, ...]

    written: ClassVar[tuple[str, ...]] = (
        "rent", "cost_usd_per_hour", "all_owned_usd_per_hour", "all_rented_usd_per_hour", "saving", "more_usd_per_hour", "pools",
    )  # fmt: skip

    @property
    def saving(self) -> float:
        """Against owning what the busiest hour takes [1]."""
        return 1.0 - self.cost_usd_per_hour / self.all_owned_usd_per_hour


class _Owned:
    """A pool of which some replicas are owned, asked about what leaves it.

    Parameters
    ----------
    fleet, pool, scheduled
        The fleet, its pool, and what the pool's hours take.
    slow
        Iteration times with which it keeps its promises as surely as was asked, over those of the profile [1].
    rates_per_s
        Of the pool, hour by hour [1/s].
    usd_per_gpu_hour
        Of an owned one [USD/hour].
    apis
        Where requests may go.
    """

    def __init__(
        self, fleet: Fleet, pool: Pool, scheduled: ScheduledPool, slow: float, rates_per_s: Floats, usd_per_gpu_hour: float,
        apis: Sequence[ApiPrice],
    ) -> None:  # fmt: skip
        self.pool, self.scheduled, self.slow, self.fleet = pool, scheduled, slow, fleet
        self.rates, self.usd, self.apis = rates_per_s, usd_per_gpu_hour, apis
        self.serving = np.array(scheduled.replicas) - np.array(scheduled.spares)
        self.peak = int(self.serving.max())
        self.model = pool.model.under(slow)
        self.quantiles = tuple(sorted({*JOINT_LEVELS, *(p.quantile for p in fleet.own_promises)}))
        own = np.unique(rates_per_s[rates_per_s > 0.0])
        self.levels = own if own.size <= LEVELS else np.linspace(own[0], own[-1], LEVELS)
        self._carried: dict[int, float] = {}
        self._limits: dict[int, int] = {}
        self._known: dict[tuple[float, int, int], tuple[Prediction, float, Floats]] = {}

    # --- by the hour ------------------------------------------------------------------------------------------------

    def gpus(self, replicas: int) -> int:
        """Of so many that serve, with their spares."""
        price = self.pool.option.price
        return price.gpus_per_replica * price.bought(replicas) if replicas else 0

    def owned_usd(self, replicas: int) -> float:
        """Cost of so many that serve, with their spares [USD/hour]."""
        return self.usd * self.gpus(replicas)

    def with_more(self, elasticity: Elasticity) -> ScheduledPool:
        """What its hours take with :data:`MORE` more traffic, by the rates that so many replicas carry."""
        serving = []
        for rate, n in zip(((1.0 + MORE) * self.rates).tolist(), self.serving.tolist(), strict=True):
            while self.carries(n) < rate:
                n = max(n + 1, math.floor(n * rate / self.carries(n)))
            serving.append(n)
        return scheduled_pool(self.pool, serving, serving, elasticity)

    def by_the_hour(self, replicas: int, hours: ScheduledPool) -> tuple[float, float]:
        """GPU-hours on demand above so many that are owned, mean over the hours, and what all cost [USD/hour]."""
        above = float(np.maximum(np.array(hours.gpu_hours) - self.gpus(replicas), 0.0).mean())
        return above, self.owned_usd(replicas) + above * self.pool.option.price.usd_per_gpu_hour

    def cheapest_by_the_hour(self) -> int:
        """How many to own beside GPUs on demand."""
        return min(range(self.peak + 1), key=lambda n: self.by_the_hour(n, self.scheduled)[1])

    def carries(self, replicas: int) -> float:
        """The largest rate at which so many keep the promises, between what the hours say [1/s]."""
        if replicas not in self._carried:
            within, above = self.rates[self.serving <= replicas], self.rates[self.serving > replicas]
            low, high = float(within.max(initial=0.0)), float(above.min(initial=math.inf))
            start = math.sqrt(low * high) if 0.0 < low <= high < math.inf else low or high / 2.0
            standing = replace(self.pool, replicas=replicas)
            keeps = partial(pool_keeps, standing, promises=self.fleet.promises, slow=self.slow)
            self._carried[replicas] = largest(keeps, start, low, high, precision=COARSE)[0] if replicas else 0.0
        return self._carried[replicas]

    # --- to an API --------------------------------------------------------------------------------------------------

    def sent(self, rate: float, replicas: int, in_flight: int) -> tuple[Prediction, float, Floats]:
        """At a rate [1/s]: what those that stay see, the share that leaves [1], its price at every API [USD per request]."""
        key = rate, replicas, in_flight
        if key not in self._known:
            found, left = replayed(self.model, "rent_peak").with_leaving(rate, replicas, in_flight, self.quantiles)
            assert left.weight is not None
            cached = left.cached_tokens / left.input_tokens
            price = self._price(left.input_tokens, left.output_tokens, cached, left.weight)
            self._known[key] = found, float(left.weight.sum()), price
        return self._known[key]

    def _price(self, inputs: Floats, outputs: Floats, cached_share: Floats, weight: Floats) -> Floats:
        """Of requests that weigh so much in all, at every API [USD]."""
        total = float(weight.sum())
        if not total:
            return np.zeros(len(self.apis))
        return total * np.array([api.usd_per_request(inputs, outputs, cached_share, weight) for api in self.apis])

    def _kept(self, rate: float, replicas: int, in_flight: float) -> bool:
        """Whether those that stay keep the promises; no more may be under way than the engines run at once."""
        if in_flight > replicas * self.pool.setup.slots * self.pool.option.copies:
            return False
        found = self.sent(rate, replicas, int(in_flight))[0]
        return all(found.value(p.metric, p.quantile) <= p.limit_s for p in self.fleet.own_promises)

    def limit(self, replicas: int) -> int:
        """The most requests under way with which those that stay keep the promises in every hour, with more traffic too."""
        if replicas not in self._limits:
            near = min(self._limits, key=lambda n: abs(n - replicas), default=None)
            at = replicas * (self._limits[near] / near if near else START)
            for k, rate in enumerate(((1.0 + MORE) * self.levels[-1], *self.levels[::-1])):
                if k == 0 or not self._kept(rate, replicas, at):
                    keeps = partial(self._kept, rate, replicas)
                    at, _ = largest(keeps, max(at, 1.0), step=STEP, precision=COARSE)
            self._limits[replicas] = int(at)
        return self._limits[replicas]

    def to_api(self, replicas: int, factor: float = 1.0) -> tuple[float, Floats]:
        """Share of the requests that leaves so many replicas [1], and what each API asks for it [USD/hour], means over the hours.

        The hours have `factor` times their requests [1].
        """
        rates = factor * self.rates
        if not replicas:
            own = replayed(self.model, "rent_peak").traffic.own
            weight = np.full(own.requests, 1.0 / own.requests)
            price = self._price(own.input_tokens, own.output_tokens, own.cached_share, weight)
            return 1.0, HOUR_S * float(rates.mean()) * price
        if replicas >= self.peak and factor == 1.0:
            return 0.0, np.zeros(len(self.apis))
        levels = factor * self.levels
        rows = [self.sent(rate, replicas, self.limit(replicas))[1:] for rate in levels.tolist()]
        gone = levels * np.array([share for share, _ in rows])
        usd = levels[:, None] * np.array([price for _, price in rows])
        by_hour = [np.interp(rates, [0.0, *levels], [0.0, *column]) for column in (gone, *usd.T)]
        return float(by_hour[0].mean() / rates.mean()), HOUR_S * np.array([column.mean() for column in by_hour[1:]])

    def cheapest(self, api: int) -> int:
        """How many to own beside an API: all numbers are tried but those that would cost more even if nobody ever waited.

        Of more than :data:`TRIED` those a step apart, and then those about the best.
        """
        each = float(self.to_api(0)[1][api]) / float(self.rates.mean())

        def least(n: int) -> float:
            above = np.maximum(self.rates - n * self.model.capacity_per_s, 0.0)
            return self.owned_usd(n) + each * float(above.mean())

        def cost(n: int) -> float:
            return self.owned_usd(n) + float(self.to_api(n)[1][api])

        best, step = 0, math.ceil(self.peak / TRIED)
        tried = [*range(0, self.peak, step), self.peak]
        while tried:
            for n in sorted(tried, key=least):
                if least(n) >= cost(best):
                    break
                if not 0 < n < self.peak or self.limit(n):
                    best = min(best, n, key=cost)
            around = range(max(best - step + 1, 0), min(best + step, self.peak + 1))
            tried, step = [n for n in around if n != best] if step > 1 else [], 1
        return best


def risks(schedule: Schedule, apis: Sequence[ApiPrice]) -> Iterator[str]:
    """What renting the peak hangs on, in words."""
    startup, grown = format_duration(schedule.elasticity.startup_s), format_percent(schedule.reactive_buffer)
    yield f"GPUs on demand serve {startup} after they are started, in which the traffic grows by up to {grown}"
    if apis:
        yield "what an API promises of its own latency, and how much it takes at once, is not known here"


def _owned(fleet: Fleet, schedule: Schedule, prices: Mapping[str, float], apis: Sequence[ApiPrice]) -> list[_Owned]:
    """Every pool with its hours."""
    refuse_linked(fleet, "rent_peak: each pool rents for itself and keeps its promises", limits=True)
    found, rates = [], np.array(schedule.rates_per_s)
    for pool, hours, margin in zip(fleet.pools, schedule.pools, fleet.margins_at(float(rates.max())), strict=True):
        usd = min(prices.get(pool.option.gpu.name, math.inf), pool.option.price.usd_per_gpu_hour)
        found.append(_Owned(fleet, pool, hours, margin.slow, pool.law.share * rates, usd, apis))
        if apis:
            replayed(found[-1].model, "rent_peak")
    return found


def peaks_of(
    fleet: Fleet, schedule: Schedule, prices: Mapping[str, float], apis: Sequence[ApiPrice]
) -> tuple[Peak, ...]:
    """The cheapest part to own beside GPUs on demand, and beside every API; the cheapest first.

    Parameters
    ----------
    fleet, schedule
        The pools and what they take hour by hour.
    prices
        GPU -> of an owned one, where it is less than on demand [USD/hour].
    apis
        Where requests may go.

    Raises
    ------
    InputError
        Pools that are not replayed by themselves.
    """
    pools = _owned(fleet, schedule, prices, apis)

    def row(owned: _Owned, n: int, share: float, api: bool) -> PeakPool:
        in_flight = owned.limit(n) if api and 0 < n < owned.peak else None
        seen = owned.sent(float(owned.levels[-1]), n, in_flight)[0] if in_flight else None
        latency = {} if seen is None else latencies(fleet.own_promises, seen)
        return PeakPool(
            owned.pool.name, owned.pool.option.gpu.name, n, owned.gpus(n), owned.peak, owned.carries(n), in_flight, share,
            owned.usd, latency,
        )  # fmt: skip

    def peak(rent: str, costs: Sequence[Sequence[float]], rows: list[PeakPool]) -> Peak:
        usd = [math.fsum(column) for column in zip(*costs, strict=True)]
        return Peak(rent, usd[0], usd[1], usd[2], usd[3], tuple(rows))

    found, costs, rows = [], [], []
    for owned in pools:
        hours, busier = owned.scheduled, owned.with_more(schedule.elasticity)
        n = owned.cheapest_by_the_hour()
        above, usd = owned.by_the_hour(n, hours)
        all_rented, with_more = owned.by_the_hour(0, hours)[1], owned.by_the_hour(n, busier)[1]
        costs.append((usd, owned.owned_usd(owned.peak), all_rented, with_more))
        rows.append(row(owned, n, above / float(np.mean(hours.gpu_hours)), api=False))
    found.append(peak(ON_DEMAND, costs, rows))
    for k, api in enumerate(apis):
        costs, rows = [], []
        for owned in pools:
            n = owned.cheapest(k)
            share, bills = owned.to_api(n)
            own, more, at_most = owned.owned_usd(n), owned.to_api(n, 1.0 + MORE)[1], owned.to_api(0)[1]
            costs.append((own + bills[k], owned.owned_usd(owned.peak), at_most[k], own + more[k]))
            rows.append(row(owned, n, share, api=True))
        found.append(peak(api.name, costs, rows))
    return tuple(sorted(found, key=lambda p: p.cost_usd_per_hour))
