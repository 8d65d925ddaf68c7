"""Pools of replicas under their own requests, replayed: what every latency of a plan is read from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.iteration.model import IterationModel
from planner.methods.base import PoolModel, Prediction, unstable
from planner.methods.joint import Together
from planner.predict.batch import Lengths
from planner.predict.bounds import max_throughput
from planner.predict.records import Clients, Floats, Limit, Replicas, Requests, Run, keys_of
from planner.predict.run import replay
from planner.predict.traffic import SAMPLE, WHOLE, Laid, PoolTraffic
from planner.promise import GOODPUT, Promise, joint_limits
from planner.question.compiled import JOINT_LEVELS
from planner.units import format_duration
from planner.workload.pools import PoolLaw

FEWEST_BEYOND = 5
"""Requests beyond a quantile below which it is told as too few [1]: with five, one in fifty runs has none."""

IDLE_S = 1e3
"""Time between two requests of an idle replica [s]."""

ALONE = 4096
"""Requests asked of an idle replica."""

CALM, BUSY = 0.1, 0.9
"""Draws of the traffic between whose quantiles the printed band lies: eight hours in ten."""

OVERLOADED, OVERLOAD_WARM = 20_000, 256.0
"""Requests sent to a pool that may be overloaded, and those of each replica before it is measured, while its queue grows."""

BEFORE_SURGE, SURGE_STEP_S = 2.0, 2.0
"""Lengths of a surge before it, and how often is looked after it [s]."""

RUNNING = 64.0
"""Sequences of a replica that take part in warming up, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """A replay and what it was of.

    Parameters
    ----------
    requests, run
        What was sent, and what became of it.
    span_s
        How long requests came [s].
    replicas
        Replicas that served.
    rate_per_s
        Rate of one replica of those it stands for [1/s].
    decodes
        Tokens of each request after the first; ``None`` = as sent.
    """

    requests: Requests
    run: Run
    span_s: float
    replicas: int
    rate_per_s: float
    decodes: Floats | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """What becomes of requests where doors close and clients lose patience.

    Parameters
    ----------
    share
        Of the requests, those answered [1].
    rejected_share, given_up_share
        Of all attempts, those turned away and those given up [1].
    attempts
        Attempts per request.
    ttft_s
        Times to first token of those answered, ascending [s].
    """

    share: float
    rejected_share: float
    given_up_share: float
    attempts: float
    ttft_s: Floats


class ReplayPool(PoolModel):
    """See the module and :class:`planner.methods.base.PoolModel`.

    Parameters
    ----------
    traffic
        The pool's requests at any rate.
    engine
        One of its replicas and the gateway.
    overhead_s
        What is added to TTFT and E2E of every request before it reaches an engine [s].
    capacity_per_s
        Largest stable rate of a replica in the fluid limit [1/s]; ``None`` = that of mixed batching.

    Attributes
    ----------
    tokens_per_unit
        Tokens in what the engine counts lengths in.
    """

    tokens_per_unit = 1.0

    def __init__(
        self, traffic: PoolTraffic, engine: Replicas, overhead_s: float = 0.0, capacity_per_s: float | None = None
    ) -> None:
        self.traffic, self.engine, self.overhead_s = traffic, engine, overhead_s
        self._capacity = capacity_per_s
        self._forget()

    def _forget(self) -> None:
        """Nothing has been replayed."""
        self._known: dict[tuple[object, ...], Prediction] = {}
        self._kept: dict[tuple[object, ...], bool] = {}
        self._mark = object()

    @property
    def capacity_per_s(self) -> float:
        """See :class:`PoolModel`."""
        if self._capacity is None:
            self._capacity = self.capacity_of(self.traffic.law)
        return self._capacity

    def capacity_of(self, law: PoolLaw) -> float:
        """Largest stable rate of a replica that gets given requests, in the fluid limit [1/s]."""
        lengths = Lengths(law.input_tokens, law.output_tokens, law.weight, law.cached_share)
        return max_throughput(lengths, self.engine).per_s

    def grown(self, growth: str) -> PoolModel | None:
        """See :class:`PoolModel`."""
        return self._under(self.traffic.grown(growth))

    def without_bursts(self) -> PoolModel | None:
        """See :class:`PoolModel`."""
        return self._under(self.traffic.poisson()) if self.traffic.recorded else None

    def _under(self, traffic: PoolTraffic) -> ReplayPool:
        """The same replicas under other traffic."""
        other = copy(self)
        other.traffic = traffic
        other._forget()
        return other

    # --- what is asked ----------------------------------------------------------------------------------------------

    def keeps(self, arrival_rate_per_s: float, replicas: int, promises: Sequence[Promise], sure: bool = False) -> bool:
        """See :class:`PoolModel`: a replay that ends as soon as a promise is broken; of a sample unless it is to be `sure`."""
        most = WHOLE if sure or self._is_whole(arrival_rate_per_s, replicas) else SAMPLE
        key = (arrival_rate_per_s, replicas, tuple(promises), most)
        if key not in self._kept:
            played = self._play(arrival_rate_per_s, replicas, most, None, promises)
            kept = played.run.ended_early < 0 and self._holds(played, promises)
            if kept:
                # it went to its end: what is asked next is often what it tells
                self.traffic.fleet.played = (self._mark, arrival_rate_per_s, replicas, most, played)
            # what is kept for as long as the trace lasts is not beyond the capacity
            self._kept[key] = kept and arrival_rate_per_s < replicas * self.capacity_at(replicas)
        return self._kept[key]

    def look(self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`PoolModel`: of a sample, without a band."""
        return self._at(arrival_rate_per_s, replicas, quantiles, SAMPLE, None)

    def predict(self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`PoolModel`: of all requests, with the band of other draws of the same traffic."""
        key = ("banded", arrival_rate_per_s, replicas, quantiles)
        if key not in self._known:
            found = self._at(arrival_rate_per_s, replicas, quantiles, WHOLE, None)
            if found.load < 1.0:
                others = [
                    self._at(arrival_rate_per_s, replicas, quantiles, SAMPLE, draw)
                    for draw in self._others(arrival_rate_per_s)
                ]
                found = replace(found, bands=bands_of(found, others))
            self._known[key] = found
        return self._known[key]

    def unloaded(self, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`PoolModel`: every request alone on a replica that is awake."""
        key = ("idle", quantiles)
        if key not in self._known:
            own = self.traffic.own.trace
            row = np.arange(own.requests) if own.requests <= ALONE else _spread(own.input_tokens, ALONE)
            apart, key_of = IDLE_S * np.arange(float(row.size)), keys_of(row, np.zeros_like(row), 7)
            span = IDLE_S * row.size
            requests, decodes = self._sent(self.traffic, Laid(apart, row, key_of, None, span, 1, False))
            self._known[key] = self._told(Played(requests, self._alone(requests), span, 1, 0.0, decodes), quantiles)
        return self._known[key]

    def answered(self, arrival_rate_per_s: float, replicas: int, clients: Clients) -> Answered:
        """What becomes of requests that come at random times at a rate of the pool [1/s], beyond its capacity too."""
        calm = self.traffic.poisson()
        laid = calm.lay(arrival_rate_per_s, replicas, self.engine.routing, warm=OVERLOAD_WARM, most=OVERLOADED)
        return self._answered(self._sent(calm, laid)[0], laid.replicas, clients)

    def surged(
        self, arrival_rate_per_s: float, replicas: int, clients: Clients, surge_per_s: float, length_s: float
    ) -> float:
        """How long after the end of a surge, at a rate of its own [1/s], requests wait longer than before it [s]; inf = for ever.

        Told from the median TTFT of the requests of every two seconds.
        """
        calm = self.traffic.poisson()
        laid = calm.lay(arrival_rate_per_s, replicas, self.engine.routing, warm=0.0, most=OVERLOADED)
        # the same sequence, faster during the surge
        before, factor = BEFORE_SURGE * length_s, surge_per_s / arrival_rate_per_s
        steps = laid.times_s
        during = (steps - before) / factor
        times = np.where(
            steps < before, steps, np.where(during < length_s, before + during, steps + length_s * (1.0 - factor))
        )
        requests, _ = self._sent(calm, replace(laid, times_s=times, weight=None))
        run = replay(requests, replace(self.engine, count=laid.replicas), clients)
        ttft = np.nan_to_num(run.ttft_s, nan=math.inf)
        usually = float(np.quantile(ttft[times < before], 0.9)) if np.any(times < before) else 0.0
        after = times - (before + length_s)
        for start in np.arange(0.0, float(after[-1]), SURGE_STEP_S).tolist():
            here = ttft[(after >= start) & (after < start + SURGE_STEP_S)]
            if here.size and float(np.median(here)) <= usually:
                return float(start)
        return math.inf

    def _answered(self, requests: Requests, replicas: int, clients: Clients) -> Answered:
        """What becomes of given requests."""
        run = replay(requests, replace(self.engine, count=replicas), clients)
        counted = slice(None) if requests.weight is None else requests.weight > 0.0
        attempts = max(float(run.attempts[counted].sum()), 1.0)
        first = run.ttft_s[counted]
        given = np.isfinite(first)
        return Answered(
            float(given.mean()),
            float(run.rejected[counted].sum()) / attempts,
            float(run.given_up[counted].sum()) / attempts,
            attempts / given.size,
            np.sort(first[given]) + self.overhead_s,
        )

    # --- how it is answered -----------------------------------------------------------------------------------------

    def _alone(self, requests: Requests) -> Run:
        """Requests that come one at a time."""
        return replay(requests, replace(self.engine, count=1, wake_s=0.0))

    def _others(self, rate: float) -> list[int]:
        """A calm and a busy draw of the traffic at a rate [1/s], by number; of one draw, other draws of the gateway."""
        ranked = self.traffic.draws(rate)
        if ranked.size == 1:
            return [1, 2]
        return [int(ranked[int(share * (ranked.size - 1))]) for share in (CALM, BUSY)]

    def _is_whole(self, rate: float, replicas: int) -> bool:
        """Whether a sample is all requests there are."""
        return self._lay(rate, replicas, SAMPLE, None).whole

    def _lay(self, rate: float, replicas: int, most: int, draw: int | None) -> Laid:
        """The requests of so many replicas."""
        warm = min(self.engine.slots, RUNNING)
        return self.traffic.lay(rate, replicas, self.engine.routing, warm=warm, most=most, draw=draw)

    def _at(self, rate: float, replicas: int, quantiles: tuple[float, ...], most: int, draw: int | None) -> Prediction:
        """The prediction from `most` requests of one draw."""
        load = rate / (replicas * self.capacity_per_s)
        if load >= 1.0:
            return unstable(quantiles, load)
        if draw is None and self._is_whole(rate, replicas):
            most = WHOLE
        key = (rate, replicas, quantiles, most, draw)
        if key not in self._known:
            *last, played = self.traffic.fleet.played or (None,)
            if draw is not None or last[:1] != [self._mark] or last[1:] != [rate, replicas, most]:
                played = self._play(rate, replicas, most, draw, ())
            assert isinstance(played, Played)
            self._known[key] = self._told(played, quantiles)
        return self._known[key]

    def _play(self, rate: float, replicas: int, most: int, draw: int | None, promises: Sequence[Promise]) -> Played:
        """Replay `most` requests of a draw, until a promise is broken where there are any."""
        laid = self._lay(rate, replicas, most, draw)
        requests, decodes = self._sent(self.traffic, laid)
        limit = self.traffic.fleet.sending.in_flight * self.traffic.law.share * laid.replicas / replicas
        run = replay(
            requests,
            replace(self.engine, count=laid.replicas),
            None if math.isinf(limit) else Clients(in_flight=max(math.floor(limit), 1)),
            limits=self._limits(promises, requests),
        )
        return Played(requests, run, laid.span_s, laid.replicas, rate / replicas, decodes)

    def _sent(self, traffic: PoolTraffic, laid: Laid) -> tuple[Requests, Floats]:
        """Requests that were laid out, as the engine counts them, and the tokens of each after the first."""
        requests = traffic.requests(laid)
        return requests, requests.output_tokens - 1.0

    def _limits(self, promises: Sequence[Promise], requests: Requests) -> list[Limit]:
        """What may be late of the first promise about each latency; :meth:`_holds` sees to all others."""
        weight = np.ones(requests.size) if requests.weight is None else requests.weight
        total, several = float(weight.sum()), float(weight[requests.output_tokens > 1.0].sum())
        found: dict[str, Limit] = {}
        for promise in promises:
            joint = joint_limits(promise.metric) is not None
            for metric, limit in promise.limits.items():
                counted = several if metric == "tpot_s" and not joint else total
                late = (1.0 - promise.quantile) * counted * (1.0 + 1e-12)
                known = limit if metric == "tpot_s" else max(limit - self.overhead_s, 0.0)
                found.setdefault(metric, Limit(metric, known, late))  # type: ignore[arg-type]
        return [*found.values()]

    def _holds(self, played: Played, promises: Sequence[Promise]) -> bool:
        """Whether a replay that went to its end keeps the promises that its limits do not say all of."""
        return len({p.kind for p in promises} - {GOODPUT}) == len(promises) or self._keeps_all(played, promises)

    def _keeps_all(self, played: Played, promises: Sequence[Promise]) -> bool:
        """Whether what a replay that went to its end tells keeps all promises."""
        found = self._told(played, tuple(sorted({*JOINT_LEVELS, *(p.quantile for p in promises)})))
        return all(found.held(p.metric, p.quantile) <= p.limit_s for p in promises)

    def _told(self, played: Played, quantiles: tuple[float, ...]) -> Prediction:
        """The prediction read off a replay."""
        requests, run = played.requests, played.run
        counted = slice(None) if requests.weight is None else np.flatnonzero(requests.weight > 0.0)
        weight = np.ones(requests.size) if requests.weight is None else requests.weight[counted]
        steps = (requests.output_tokens - 1.0 if played.decodes is None else played.decodes)[counted]
        # what is never answered is beyond every limit
        ttft = np.nan_to_num(run.ttft_s[counted], nan=math.inf) + self.overhead_s
        e2e = np.nan_to_num(run.e2e_s[counted], nan=math.inf) + self.overhead_s
        several = steps > 0.0
        tpot = np.full(ttft.size, math.nan)
        with np.errstate(invalid="ignore"):
            decoded = (e2e - ttft)[several] / steps[several]
        tpot[several] = np.where(np.isfinite(e2e[several]), decoded, math.inf)
        with np.errstate(invalid="ignore"):
            waited = run.admitted_s[counted] - run.sent_s[counted]
        running = float(run.resident_s.sum()) / (played.span_s * played.replicas)
        return Prediction(
            quantiles=quantiles,
            ttft_s=weighted_quantiles(ttft, weight, quantiles),
            tpot_s=weighted_quantiles(tpot[several], weight[several], quantiles),
            e2e_s=weighted_quantiles(e2e, weight, quantiles),
            load=played.rate_per_s / self._capacity_of(played),
            slot_occupancy=min(running / self.engine.slots, 1.0),
            mean_running=running,
            wait_probability=float(weight[waited > self.full_iteration_s].sum() / max(float(weight.sum()), 1e-300)),
            warnings=(*self._too_few(weight, quantiles), *self._held_back(played)),
            together=Together.of(ttft, tpot, e2e, weight) if self.joint else None,
        )

    def _capacity_of(self, played: Played) -> float:
        """Largest stable rate of a replica that gets such requests [1/s]."""
        return self.capacity_per_s

    @property
    def full_iteration_s(self) -> float:
        """A long iteration: a request that is admitted later waited for more than its end [s]."""
        it = self.engine.iteration
        assert isinstance(it, IterationModel)
        prompts = self.traffic.own.trace.input_tokens / self.tokens_per_unit
        tokens = min(self.engine.token_budget, float(np.max(prompts)))
        slots = min(self.engine.slots, 1024.0)
        context = min(slots * float(np.mean(prompts)), self.engine.kv_tokens)
        return float(it.time(slots, context, tokens, 0.5 * tokens * tokens))

    def _too_few(self, weight: Floats, quantiles: Sequence[float]) -> tuple[str, ...]:
        """What is said where hardly any request lies beyond a quantile that was asked for."""
        if self.traffic.recorded and weight.size * (1.0 - 0.99) < FEWEST_BEYOND and max(quantiles) >= 0.99:
            return (f"{weight.size:,} requests are few for P99: a longer trace would say more",)
        return ()

    def _held_back(self, played: Played) -> tuple[str, ...]:
        """What is said where clients hold requests back."""
        if math.isinf(self.traffic.fleet.sending.in_flight):
            return ()
        waited = float(np.mean(played.run.sent_s - played.requests.arrival_s))
        if waited < 1e-3:
            return ()
        return (f"requests wait {format_duration(waited)} with their clients on average, which no latency here counts",)


def _spread(values: Floats, count: int) -> NDArray[np.int64]:
    """Rows evenly spread over the order of `values`, the largest among them."""
    order = np.argsort(values, kind="stable")
    picked = ((np.arange(count) + 0.5) * order.size / count).astype(np.int64)
    picked[-1] = order.size - 1
    return np.asarray(order[picked])


def weighted_quantiles(values: Floats, weight: Floats, levels: Sequence[float]) -> tuple[float, ...]:
    """The smallest values up to which shares `levels` of the weight lie; NaN of nothing.

    >>> weighted_quantiles(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), (0.25, 0.5, 0.76))
    (1.0, 2.0, 3.0)
    """
    if not values.size:
        return (math.nan,) * len(levels)
    if float(weight.min()) == float(weight.max()):
        places = [min(max(math.ceil(q * values.size * (1.0 - 1e-12)) - 1, 0), values.size - 1) for q in levels]
        parted = np.partition(values, sorted(set(places)))
        return tuple(float(parted[k]) for k in places)
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weight[order])
    places = np.searchsorted(below, np.asarray(levels) * below[-1] * (1.0 - 1e-12)).clip(0, values.size - 1).tolist()
    return tuple(float(values[order[k]]) for k in places)


def bands_of(found: Prediction, others: Sequence[Prediction]) -> dict[str, tuple[tuple[float, float], ...]]:
    """Of other draws over this one - 1, by latency and level."""
    bands = {}
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        told = []
        for k, value in enumerate(getattr(found, metric)):
            ratios = [getattr(other, metric)[k] / value - 1.0 for other in others] if 0.0 < value < math.inf else []
            known = [r for r in ratios if not math.isnan(r)]
            told.append((min([0.0, *known]), max([0.0, *known])))
        bands[metric] = tuple(told)
    return bands
