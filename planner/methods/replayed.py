"""A pool of replicas under its own requests, replayed: what every latency of a plan is read from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.iteration.model import IterationModel
from planner.methods.base import PoolModel, Prediction, unstable
from planner.methods.joint import Together
from planner.predict.records import Clients, Floats, Limit, Replicas, Requests, Run, keys_of
from planner.predict.run import replay
from planner.predict.traffic import SAMPLE, WHOLE, Laid, PoolTraffic
from planner.promise import Promise, joint_limits
from planner.workload.pools import PoolRequests

FEWEST_BEYOND = 5
"""Requests beyond a quantile below which it is told as too few [1]: with five, one in fifty runs has none."""

IDLE_S = 1e3
"""Time between two requests of an idle replica [s]."""

ALONE = 4096
"""Requests asked of an idle replica."""

CALM, BUSY = 0.1, 0.9
"""Draws of the traffic between whose quantiles the printed band lies: eight hours in ten."""


class ReplayPool(PoolModel):
    """See the module and :class:`planner.methods.base.PoolModel`.

    Parameters
    ----------
    traffic
        The pool's requests at any rate.
    engine
        One of its replicas and the gateway.
    capacity_per_s
        Largest stable rate of a replica in the fluid limit [1/s].
    overhead_s
        What is added to TTFT and E2E of every request before it reaches an engine [s].
    bound_by
        What binds that rate.
    """

    def __init__(
        self,
        traffic: PoolTraffic,
        engine: Replicas,
        capacity_per_s: float,
        overhead_s: float = 0.0,
        bound_by: str = "",
    ) -> None:
        self.traffic, self.engine, self.overhead_s, self.bound_by = traffic, engine, overhead_s, bound_by
        self._capacity = capacity_per_s
        self._columns: dict[int, tuple[PoolRequests, Requests]] = {}
        self._known: dict[tuple[object, ...], Prediction] = {}
        self._idle: dict[tuple[float, ...], Prediction] = {}
        # counted in what a step of an engine that speculates yields, tokens are fractions
        self._in_units = isinstance(engine.iteration, IterationModel) and engine.iteration.rows != 1.0
        self.replayed = 0

    @property
    def capacity_per_s(self) -> float:
        """See :class:`PoolModel`."""
        return self._capacity

    def grown(self, growth: str) -> PoolModel | None:
        """See :class:`PoolModel`."""
        return self._under(self.traffic.grown(growth))

    def without_bursts(self) -> PoolModel | None:
        """See :class:`PoolModel`."""
        return self._under(self.traffic.poisson()) if self.traffic.recorded else None

    def _under(self, traffic: PoolTraffic) -> ReplayPool:
        """The same replicas under other traffic."""
        return ReplayPool(traffic, self.engine, self._capacity, self.overhead_s, self.bound_by)

    # --- what is asked ----------------------------------------------------------------------------------------------

    def keeps(self, arrival_rate_per_s: float, replicas: int, promises: Sequence[Promise], sure: bool = False) -> bool:
        """See :class:`PoolModel`: a replay that ends as soon as a promise is broken; of a sample unless it is to be `sure`."""
        if arrival_rate_per_s >= replicas * self._capacity:
            return False
        laid = self._lay(arrival_rate_per_s, replicas, WHOLE if sure else SAMPLE)
        requests = self._requests(laid)
        run = self._run(laid, replicas, requests, self._limits(promises, requests))
        if run.ended_early >= 0:
            return False
        if not any(p.kind == "goodput" for p in promises):
            return True
        found = self._told(laid, requests, run, tuple(sorted({p.quantile for p in promises})), 0.0)
        return all(found.held(p.metric, p.quantile) <= p.limit_s for p in promises)

    def look(self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`PoolModel`: of a sample, without a band."""
        return self._at(arrival_rate_per_s, replicas, quantiles, SAMPLE, None)

    def predict(self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`PoolModel`: of all requests, with the band of other draws of the same traffic."""
        key = ("banded", arrival_rate_per_s, replicas, quantiles)
        if key not in self._known:
            found = self._at(arrival_rate_per_s, replicas, quantiles, WHOLE, None)
            if math.isfinite(found.ttft_s[-1]):
                others = [
                    self._at(arrival_rate_per_s, replicas, quantiles, SAMPLE, draw)
                    for draw in self._others(arrival_rate_per_s)
                ]
                found = replace(found, bands=bands_of(found, others))
            self._known[key] = found
        return self._known[key]

    def idle(self, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`PoolModel`: every request alone on a replica that is awake."""
        if quantiles not in self._idle:
            own = self.traffic.own.trace
            row = np.arange(own.requests) if own.requests <= ALONE else _spread(own.input_tokens, ALONE)
            count = row.size
            laid = Laid(
                IDLE_S * np.arange(count), row, keys_of(row, np.zeros_like(row), 7), None, IDLE_S * count, 1, False
            )
            requests = self._requests(laid)
            run = replay(requests, replace(self.engine, count=1, wake_s=0.0))
            self._idle[quantiles] = self._told(laid, requests, run, quantiles, 0.0)
        return self._idle[quantiles]

    # --- how it is answered -----------------------------------------------------------------------------------------

    def _others(self, rate: float) -> list[int]:
        """A calm and a busy draw of the traffic at a rate [1/s], by number; of one draw, other draws of the gateway."""
        ranked = self.traffic.draws(rate)
        if ranked.size == 1:
            return [1, 2]
        return [int(ranked[int(share * (ranked.size - 1))]) for share in (CALM, BUSY)]

    def _lay(self, rate: float, replicas: int, most: int, draw: int | None = None) -> Laid:
        """The requests of so many replicas."""
        warm = min(self.engine.slots, 64.0)
        return self.traffic.lay(rate, replicas, self.engine.routing, warm=warm, most=most, draw=draw)

    def _at(self, rate: float, replicas: int, quantiles: tuple[float, ...], most: int, draw: int | None) -> Prediction:
        """The prediction from `most` requests of one draw."""
        key = (rate, replicas, quantiles, most, draw)
        if key not in self._known:
            load = rate / (replicas * self._capacity)
            if load >= 1.0:
                self._known[key] = unstable(quantiles, load)
            else:
                laid = self._lay(rate, replicas, most, draw)
                requests = self._requests(laid)
                self._known[key] = self._told(laid, requests, self._run(laid, replicas, requests), quantiles, load)
        return self._known[key]

    def _requests(self, laid: Laid) -> Requests:
        """The columns of requests that were laid out."""
        own = self.traffic.own
        row, trace = laid.row, own.trace
        whole = float(np.max(np.abs(trace.input_tokens - np.rint(trace.input_tokens)), initial=0.0)) == 0.0
        inputs = trace.input_tokens if whole or self._in_units else np.rint(trace.input_tokens)
        inputs = np.maximum(inputs, 1.0)
        cached = np.minimum(own.cached_share * inputs, inputs - 1.0)
        cached = np.floor(cached) if whole else cached
        outputs = np.maximum(np.rint(trace.output_tokens), 1.0)
        return Requests(laid.times_s, inputs[row], outputs[row], cached[row], laid.key, weight=laid.weight)

    def _clients(self, laid: Laid, replicas: int) -> Clients | None:
        """What clients have under way at most: the share of the replicas that are replayed."""
        limit = self.traffic.fleet.sending.in_flight * self.traffic.law.share * laid.replicas / replicas
        return None if math.isinf(limit) else Clients(in_flight=max(math.floor(limit), 1))

    def _run(self, laid: Laid, replicas: int, requests: Requests, limits: Sequence[Limit] = ()) -> Run:
        """The replay."""
        self.replayed += requests.size
        engine = replace(self.engine, count=laid.replicas)
        return replay(requests, engine, self._clients(laid, replicas), limits=limits)

    def _limits(self, promises: Sequence[Promise], requests: Requests) -> list[Limit]:
        """What may be late of each promise."""
        weight = np.ones(requests.size) if requests.weight is None else requests.weight
        total, several = float(weight.sum()), float(weight[requests.output_tokens > 1.0].sum())
        found = []
        for promise in promises:
            for metric, limit in (joint_limits(promise.metric) or {promise.metric: promise.limit_s}).items():
                counted = several if metric == "tpot_s" and joint_limits(promise.metric) is None else total
                before = 0.0 if metric == "tpot_s" else self.overhead_s
                late = (1.0 - promise.quantile) * counted * (1.0 + 1e-12)
                found.append(Limit(metric, max(limit - before, 0.0), late))
        return found

    def _told(self, laid: Laid, requests: Requests, run: Run, quantiles: tuple[float, ...], load: float) -> Prediction:
        """The prediction read off a replay."""
        counted = slice(None) if laid.weight is None else np.flatnonzero(laid.weight > 0.0)
        weight = np.ones(requests.size) if laid.weight is None else laid.weight[counted]
        steps = requests.output_tokens[counted] - 1.0
        # what is never answered is beyond every limit
        ttft = np.nan_to_num(run.ttft_s[counted], nan=math.inf) + self.overhead_s
        e2e = np.nan_to_num(run.e2e_s[counted], nan=math.inf) + self.overhead_s
        tpot = np.full(ttft.size, math.nan)
        several = steps > 0.0
        tpot[several] = (e2e - ttft)[several] / steps[several]
        tpot[several & ~np.isfinite(e2e)] = math.inf
        waited = run.admitted_s[counted] - run.sent_s[counted]
        running = float(run.resident_s.sum()) / (laid.span_s * laid.replicas)
        return Prediction(
            quantiles=quantiles,
            ttft_s=weighted_quantiles(ttft, weight, quantiles),
            tpot_s=weighted_quantiles(tpot[several], weight[several], quantiles),
            e2e_s=weighted_quantiles(e2e, weight, quantiles),
            load=load,
            slot_occupancy=min(running / self.engine.slots, 1.0),
            mean_running=running,
            wait_probability=float(weight[waited > self.full_iteration_s].sum() / max(float(weight.sum()), 1e-300)),
            warnings=(*self._too_few(weight, quantiles), *self._held_back(laid, run)),
            together=Together.of(ttft, tpot, e2e, weight) if self.joint else None,
        )

    @property
    def full_iteration_s(self) -> float:
        """A long iteration: a request that is admitted later waited for more than its end [s]."""
        it = self.engine.iteration
        assert isinstance(it, IterationModel)
        tokens = min(self.engine.token_budget, float(np.max(self.traffic.own.trace.input_tokens)))
        slots = min(self.engine.slots, 1024.0)
        context = slots * float(np.mean(self.traffic.own.trace.input_tokens))
        return float(it.time(slots, min(context, self.engine.kv_tokens), tokens, 0.5 * tokens * tokens))

    def _too_few(self, weight: Floats, quantiles: Sequence[float]) -> tuple[str, ...]:
        """What is said where hardly any request lies beyond a quantile that was asked for."""
        if self.traffic.recorded and weight.size * (1.0 - max(quantiles)) < FEWEST_BEYOND:
            return (f"{weight.size:,} requests are few for P{100.0 * max(quantiles):g}: a longer trace would say more",)
        return ()

    def _held_back(self, laid: Laid, run: Run) -> tuple[str, ...]:
        """What is said where clients hold requests back."""
        if math.isinf(self.traffic.fleet.sending.in_flight):
            return ()
        waited = float(np.mean(run.sent_s - laid.times_s))
        if waited < 1e-3:
            return ()
        return (f"requests wait {waited:.3g} s with their clients on average, which no latency here counts",)


def _spread(values: Floats, count: int) -> NDArray[np.int64]:
    """Rows evenly spread over the order of `values`, the largest among them."""
    order = np.argsort(values, kind="stable")
    picked = ((np.arange(count) + 0.5) * order.size / count).astype(np.int64)
    picked[-1] = order.size - 1
    return np.asarray(order[picked])


def weighted_quantiles(values: Floats, weight: Floats, levels: Sequence[float]) -> tuple[float, ...]:
    """The smallest values up to which shares `levels` of the weight lie; NaN of nothing."""
    if not values.size:
        return (math.nan,) * len(levels)
    if weight.size and float(weight.min()) == float(weight.max()):
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
