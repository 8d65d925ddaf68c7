"""Method ``mixed``: iterations under a token budget that prefill and decode share (vLLM V1, TensorRT-LLM) or not (SGLang)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from planner.iteration.model import IterationModel
from planner.methods.base import Method, PoolModel, Prediction, between, unstable
from planner.methods.burst import (
    FEW_REQUESTS,
    IDLE_LOAD,
    MOST_REQUESTS,
    Burst,
    PoolArrivals,
    PoolPath,
    followed_sizes,
    held_back,
    path_band,
    replica_rates,
)
from planner.methods.joint import Together
from planner.queueing.bursts import BurstSequence, rising
from planner.queueing.held_back import with_limit
from planner.queueing.mixed.accuracy import WAITING
from planner.queueing.mixed.replica import MixedPrediction, MixedReplica
from planner.queueing.path import PathRequests, follow_path, prefill_work
from planner.replica.engine import EngineOption, ReplicaSetup
from planner.routing import Routing
from planner.workload import pools as m
from planner.workload.pools import PoolLaw

FloatArray = NDArray[np.float64]

BURST_BAND = (-0.35, 0.7)
"""Truth over prediction - 1 of a TTFT that is all burst. The real Azure time stamps on 1 to 6 replicas under three token
budgets and two routings gave -33% to +67% on P99 (benchmarks/bursts.py, docs/accuracy/bursts.md)."""

BURST_TPOT_BAND = (-0.58, 0.45)
"""The same of what bursts add to TPOT."""

PATH_BANDS = {"ttft_s": (-0.17, 0.14), "tpot_s": (-0.08, 0.08), "e2e_s": (-0.06, 0.06)}
"""Truth over prediction - 1 of a pool run along a path, before what one hour is off another: the truth was inside the whole band in
92% of the single replays of docs/accuracy/bursts.md."""

PATH_TTFT_MARGIN = 1.05
"""Factor on a TTFT along the path when it is held against a promise: less than a standard deviation of what a prediction for given
traffic is off (8%; the 95% end would be 1.13), as counts of replicas are closest to those that replays need. That hours of the
same traffic differ by far more (docs/accuracy/bursts.md) is in the band, not here: the promise is held against the mean hour."""

PATH_WAITING_MARGIN = 1.4
"""The same where requests wait for slots or memory: the 95% end."""

LONG = 2.5
"""Requests of a path over those usually followed from which on it takes long."""

BURST_LOADS = np.array([0.04, 0.1, 0.18, 0.3, 0.45, 0.62, 0.78, 0.92])
"""Loads of a replica at which its waits behind bursts are tabulated."""

WAIT_LEVELS = 1.0 - np.geomspace(0.9, 2e-4, 28)
"""Levels at which they are, even in the logarithm of the tail."""


class MixedPool(PoolModel):
    """See :class:`planner.methods.base.PoolModel`, :mod:`planner.queueing.mixed.replica` and :mod:`planner.queueing.bursts`."""

    def __init__(
        self,
        law: PoolLaw,
        iteration: IterationModel,
        slots: int,
        kv_tokens: float,
        token_budget: float,
        routing: Routing,
        arrivals: PoolArrivals,
        api_overhead_s: float = 0.0,
        request_s: float = 0.0,
        shared_prefix: float = 0.0,
        wake_s: float = 0.0,
    ) -> None:
        # a first token waits for the host's work on its own request whole
        api_overhead_s += request_s
        self.slots, self.api_overhead_s = slots, api_overhead_s
        # what requests have between them
        self.kv_tokens = kv_tokens - shared_prefix
        self.routing = routing
        self.arrivals = arrivals
        self.law = law
        self.token_budget = token_budget
        self._iteration = iteration = iteration.with_requests(request_s, law.mean(m.DECODE), law.mean(m.NEW_INPUT))
        self._replica = MixedReplica(
            **iteration.to_dict(),
            input_tokens=law.input_tokens,
            output_tokens=law.output_tokens,
            weight=law.weight,
            token_budget=token_budget,
            max_num_seqs=slots,
            kv_tokens=kv_tokens,
            cached_share=law.cached_share,
            shared_prefix=shared_prefix,
            api_overhead_s=api_overhead_s,
            wake_s=wake_s,
        )
        limit = self._replica.max_throughput()
        self._capacity = limit.per_s
        self.bound_by = limit.binding
        self._guide: MixedPool | None = None
        self._tables: dict[float, FloatArray] = {}
        self._followed: dict[tuple[float, int, tuple[float, ...]], Prediction | None] = {}
        self._drawn: dict[tuple[float, int], PoolPath | None] = {}
        self._known: dict[tuple[float, int, tuple[float, ...]], tuple[Prediction, MixedPrediction | None]] = {}
        self._sequences: dict[tuple[tuple[float, float], ...], BurstSequence] = {}

    @property
    def capacity_per_s(self) -> float:
        """Largest stable rate of one replica [1/s]."""
        return self._capacity

    def predict(self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`planner.methods.base.PoolModel`."""
        key = (arrival_rate_per_s, replicas, quantiles)
        if key not in self._followed:
            self._followed[key] = self._between_paths(*key)
        if (along := self._followed[key]) is not None:
            return along
        calm, at = self._calm(arrival_rate_per_s, replicas, quantiles)
        burst = self.arrivals.at(arrival_rate_per_s)
        if at is None or not burst.present or calm.load < IDLE_LOAD:
            return calm
        return self._with_bursts(calm, at, arrival_rate_per_s, replicas, burst)

    def _between_paths(
        self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]
    ) -> Prediction | None:
        """The prediction between those of two paths; ``None`` where there is none."""
        found, sizes = [], followed_sizes(replicas)
        if self.arrivals.most == FEW_REQUESTS:
            # a rough look
            return self._along_path(arrival_rate_per_s, replicas, quantiles)
        for n in sizes:
            key = (arrival_rate_per_s, n, quantiles)
            if key not in self._followed:
                self._followed[key] = self._along_path(*key)
            found.append(self._followed[key])
        low, high = found
        if low is None or high is None or low is high:
            # a smaller pool may be beyond its capacity
            return high if low is high else self._along_path(arrival_rate_per_s, replicas, quantiles)
        part = math.log(replicas / sizes[0]) / math.log(sizes[1] / sizes[0])
        return between(low, high, part, arrival_rate_per_s / (replicas * self._capacity))

    def _along_path(self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction | None:
        """Run the pool along the path of its own requests; ``None`` where there is none."""
        path = self._path(arrival_rate_per_s, replicas)
        del self._drawn[arrival_rate_per_s, replicas]
        if path is None:
            return None
        load = arrival_rate_per_s / (replicas * self._capacity)
        follow = partial(
            follow_path,
            cost=self._cost,
            replicas=path.followed,
            candidates=self.routing.candidates,
            in_turn=self.routing.in_turn,
            budget=self.token_budget / self._iteration.rows,
            slots=self.slots,
            kv_tokens=self.kv_tokens,
        )
        run = with_limit(self._counted(path.requests), path.in_flight, follow)
        ttft = path.typical(run, quantiles) + self.api_overhead_s
        e2e = path.hours(run, "e2e_s", quantiles)[1] + self.api_overhead_s
        tpot = path.hours(run, "tpot_s", quantiles)[1]
        settled = run.wait_probability <= WAITING
        bands = {metric: path_band(run, path, metric, quantiles, own) for metric, own in PATH_BANDS.items()}
        return Prediction(
            quantiles=quantiles,
            ttft_s=tuple(ttft.tolist()),
            tpot_s=tuple(tpot.tolist()),
            e2e_s=tuple(e2e.tolist()),
            load=load,
            slot_occupancy=min(run.running_mean / self.slots, 1.0),
            mean_running=run.running_mean,
            wait_probability=run.wait_probability,
            bands=bands,
            margins={"ttft_s": (PATH_TTFT_MARGIN if settled else PATH_WAITING_MARGIN,) * len(quantiles)},
            warnings=(
                *(() if settled else ("requests wait for slots or KV memory in bursts: leave room or simulate",)),
                *held_back(run),
            ),
            reliable=settled,
            together=Together.of(run.ttft, run.tpot, run.e2e, run.weight) if self.joint else None,
        )

    def _path(self, arrival_rate_per_s: float, replicas: int) -> PoolPath | None:
        """The requests that stand for the pool's, kept until they are followed; ``None`` where there are none."""
        key = (arrival_rate_per_s, replicas)
        if key not in self._drawn:
            load, rate = arrival_rate_per_s / (replicas * self._capacity), arrival_rate_per_s / replicas
            self._drawn[key] = (
                None
                if load >= 1.0 or load < IDLE_LOAD
                else self.arrivals.path(
                    arrival_rate_per_s,
                    replicas,
                    self.routing.by_rate_per_replica,
                    lambda own: prefill_work(
                        self._counted(own), rate, self._cost, self.token_budget / self._iteration.rows
                    ),
                    lambda own: self._whole_work(self._counted(own)),
                    self.law.mean(m.DECODE) * self._usual_iteration(rate),
                )
            )
        return self._drawn[key]

    def takes_long(self, arrival_rate_per_s: float, replicas: int) -> bool:
        """See :class:`planner.methods.base.PoolModel`: the path is then begun long before each of its stretches."""
        known = {n for rate, n, _ in self._followed if rate == arrival_rate_per_s}
        for n in {*followed_sizes(replicas)} - known:
            path = self._path(arrival_rate_per_s, n)
            if path is not None and path.requests.size > LONG * self.arrivals.most:
                self._drawn.clear()
                guide = self.guide()
                quick = None if guide is None else guide._path(arrival_rate_per_s, n)
                # of large crowds the guide follows as many as the prediction itself
                return quick is None or quick.requests.size < 0.5 * path.requests.size
        return False

    def _counted(self, own: PathRequests) -> PathRequests:
        """Requests whose tokens are in units of what a decode brings into a batch."""
        return replace(own, tokens=own.tokens / self._iteration.rows)

    def _cost(self, n: FloatArray, kv: FloatArray, new: FloatArray, pairs: FloatArray) -> FloatArray:
        """Duration of iterations [s], prefill in the same units."""
        return np.asarray(self._iteration.time(n, kv, self._iteration.rows * new, pairs))

    def _whole_work(self, own: PathRequests) -> FloatArray:
        """How long each request keeps a saturated replica busy [s], shape (requests,): iterations are full of prompts and decodes.

        Its share of the tokens of full iterations, its pairs and the contexts of its decodes; at the maximum throughput on
        average.
        """
        rows, time, budget = self._iteration.rows, self._iteration.time, self.token_budget
        full = float(time(0.0, 0.0, budget, 0.0))
        held = float(time(1.0, 1e5, budget, 0.0)) - float(time(1.0, 0.0, budget, 0.0))
        pairs = float(time(0.0, 0.0, budget, 1e6)) - full
        # tokens are in units of what a decode brings into a batch
        work = (
            (own.tokens + own.steps) * rows / budget * full
            + own.steps * own.context * held * 1e-5
            + own.pairs * pairs * 1e-6
        )
        return np.asarray(work * (work.size / (self._capacity * float(work.sum()))))

    def without_bursts(self) -> PoolModel:
        """The same pool under Poisson arrivals; what has been predicted already is not predicted again."""
        return _Calm(self)

    def guide(self) -> MixedPool | None:
        """See :class:`planner.methods.base.PoolModel`: along fewer requests, where there is a path at all."""
        fewer = self.arrivals.sampled()
        if self._guide is None and fewer is not None and fewer.arrivals is not None:
            self._guide = self._arriving(fewer)
        return self._guide

    def guide_suffices(self, arrival_rate_per_s: float, replicas: int) -> bool:
        """See :class:`planner.methods.base.PoolModel`."""
        guide = self.guide()
        path = None if guide is None else guide._path(arrival_rate_per_s, replicas)
        return path is not None and path.requests.size >= MOST_REQUESTS

    def near(self, replicas: int) -> int:
        """See :class:`planner.methods.base.PoolModel`: one of which the path is followed."""
        followed = self.arrivals.most != FEW_REQUESTS and self.arrivals.known
        sizes = followed_sizes(replicas) if followed else (replicas,)
        return min(sizes, key=lambda n: abs(n - replicas))

    def grown(self, growth: str) -> MixedPool:
        """See :class:`planner.methods.base.PoolModel`; what is known of Poisson arrivals stays known."""
        return self._arriving(self.arrivals.grown(growth))

    def _arriving(self, arrivals: PoolArrivals) -> MixedPool:
        """The same replicas under other arrivals."""
        other = copy(self)
        other.arrivals, other._guide, other._tables, other._followed, other._drawn = arrivals, None, {}, {}, {}
        return other

    def _calm(
        self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]
    ) -> tuple[Prediction, MixedPrediction | None]:
        key = (arrival_rate_per_s, replicas, quantiles)
        if key not in self._known:
            self._known[key] = self._poisson(arrival_rate_per_s, replicas, quantiles)
        return self._known[key]

    def _poisson(
        self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]
    ) -> tuple[Prediction, MixedPrediction | None]:
        load = arrival_rate_per_s / (replicas * self._capacity)
        if load >= 1.0:
            return unstable(quantiles, load), None
        at = self._replica.predict(
            arrival_rate_per_s, replicas, routing=self.routing.law or "random", quantiles=quantiles
        )
        if not at.stable:
            return unstable(quantiles, load), None
        calm = Prediction(
            quantiles=quantiles,
            ttft_s=tuple(at.ttft_s.tolist()),
            tpot_s=tuple(at.tpot_s.tolist()),
            e2e_s=tuple(at.e2e_s.tolist()),
            load=load,
            slot_occupancy=min(at.running_mean / self.slots, 1.0),
            mean_running=at.running_mean,
            wait_probability=at.wait_probability,
            bands=_truth_bands(at.error_band),
            margins=at.margin if at.reliable else _cautious(at.error_band),
            warnings=at.warnings,
            reliable=at.reliable,
            together=Together.of(*at.requests) if self.joint else None,
        )
        return calm, replace(at, requests=())

    def _with_bursts(
        self, calm: Prediction, at: MixedPrediction, arrival_rate_per_s: float, replicas: int, burst: Burst
    ) -> Prediction:
        """Add what bursts do to a replica: prompts wait behind backlogs, and decodes run beside full prefill batches.

        A short backlog drains at the speed of prefill beside the usual decodes, a long one at the maximum throughput, as
        its own decodes join: the two are blended over half a decode's life.
        """
        levels = np.array(calm.quantiles)
        decode = self.law.mean(m.DECODE)
        context = self.law.mean(m.KV) / decode if decode > 0.0 else 0.0
        new = max(self.law.mean(m.NEW_INPUT), 1e-9)
        pairs = self.law.mean(m.PAIRS) / new
        running = min(at.running_mean, 0.9 * self.token_budget / self._iteration.rows)
        room = self.token_budget - self._iteration.rows * running
        if self.routing.pooled:
            short, long, usual = self._burst_waits(arrival_rate_per_s, replicas, running, levels, burst)
        else:
            short, long, usual = self._tabulated(calm.load, levels, burst)
        life = max(0.5 * decode * float(at.tpot_mean_s), 1e-9)
        blended = short + (long - short) * -np.expm1(-long / life)
        extra = np.maximum(blended - usual, 0.0)
        ttft = np.array(calm.ttft_s) + extra
        before = np.array(calm.tpot_s)
        # decodes beside a backlog share their iterations with as much of it as the budget admits
        chunk = np.minimum(room, long * self._capacity * new)
        busy_s = np.asarray(self._iteration.time(running, running * context, chunk, chunk * pairs))
        tpot = before + np.maximum(busy_s - before, 0.0) * -np.expm1(-np.maximum(long - usual, 0.0) / life)
        e2e = np.array(calm.e2e_s) + extra + decode * (tpot - before)
        parts = {
            "ttft_s": (extra / np.maximum(ttft, 1e-300), BURST_BAND),
            "e2e_s": ((e2e - np.array(calm.e2e_s)) / np.maximum(e2e, 1e-300), BURST_BAND),
            "tpot_s": ((tpot - before) / np.maximum(tpot, 1e-300), BURST_TPOT_BAND),
        }
        bands = dict(calm.bands)
        for metric, (part, (least, most)) in parts.items():
            bands[metric] = tuple(
                ((1.0 - p) * low + p * least, (1.0 - p) * high + p * most)
                for (low, high), p in zip(calm.bands[metric], part.tolist(), strict=True)
            )
        return replace(
            calm,
            ttft_s=tuple(np.maximum.accumulate(ttft).tolist()),
            tpot_s=tuple(np.maximum.accumulate(tpot).tolist()),
            e2e_s=tuple(np.maximum.accumulate(e2e).tolist()),
            bands=bands,
        )

    def _tabulated(self, load: float, levels: FloatArray, burst: Burst) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Waits of a replica by its load, which says all under random routing: one table a fleet rate, rising in the load."""
        table = self._tables.get(burst.fleet_rate)
        if table is None:
            rows = [
                self._burst_waits(x * self._capacity, 1, self._usual_running(x * self._capacity), WAIT_LEVELS, burst)
                for x in BURST_LOADS.tolist()
            ]
            stacked = np.array(rows)  # (loads, kinds, levels)
            table = self._tables[burst.fleet_rate] = np.array(
                [[rising(column) for column in kind.T] for kind in stacked.transpose(1, 0, 2)]
            )
        place = float(np.interp(-math.log1p(-load), -np.log1p(-BURST_LOADS), np.arange(len(BURST_LOADS))))
        low = min(int(place), len(BURST_LOADS) - 2)
        rows_at = table[:, :, low] + (place - low) * (table[:, :, low + 1] - table[:, :, low])
        # hardly any load, hardly any wait
        rows_at = rows_at * min(1.0, load / float(BURST_LOADS[0]))
        depth = -np.log1p(-levels)
        short, long, usual = (np.interp(depth, -np.log1p(-WAIT_LEVELS), row) for row in rows_at)
        return short, long, usual

    def _usual_running(self, rate: float) -> float:
        """Decodes of a replica at a rate, by Little's law with the mean iteration."""
        running = rate * self.law.mean(m.DECODE) * self._usual_iteration(rate)
        return min(running, 0.9 * self.token_budget / self._iteration.rows, float(self.slots))

    def _usual_iteration(self, rate: float) -> float:
        """Mean iteration of a replica at a rate [s]."""
        decode, new = self.law.mean(m.DECODE), max(self.law.mean(m.NEW_INPUT), 1e-9)
        context = self.law.mean(m.KV) / decode if decode > 0.0 else 0.0
        pairs = self.law.mean(m.PAIRS) / new
        step = self._iteration.t0 + self._iteration.w
        for _ in range(30):
            n, prefill = rate * decode * step, min(rate * new * step, self.token_budget)
            step = float(self._iteration.time(n, n * context, prefill, prefill * pairs)) or step
        return step

    def _burst_waits(
        self, arrival_rate_per_s: float, replicas: int, running: float, levels: FloatArray, burst: Burst
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Waits at the speed of prefill beside the usual decodes, at the maximum throughput, and of Poisson arrivals [s]."""
        decode, new = self.law.mean(m.DECODE), max(self.law.mean(m.NEW_INPUT), 1e-9)
        context = self.law.mean(m.KV) / decode if decode > 0.0 else 0.0
        pairs = self.law.mean(m.PAIRS) / new
        room = self.token_budget - self._iteration.rows * running
        full_s = float(self._iteration.time(running, running * context, room, room * pairs))
        slow_service = 1.0 / self._capacity
        fast_service = min(full_s * new / room, slow_service)
        rate, fast = replica_rates(arrival_rate_per_s, fast_service, replicas, self.routing.pooled)
        _, slow = replica_rates(arrival_rate_per_s, slow_service, replicas, self.routing.pooled)
        bursty = self._sequence(burst.scales(rate), context, pairs)
        poisson = self._sequence((), context, pairs)
        return bursty.waits(rate, fast, levels), bursty.waits(rate, slow, levels), poisson.waits(rate, fast, levels)

    def _sequence(self, scales: tuple[tuple[float, float], ...], context: float, pairs: float) -> BurstSequence:
        if scales not in self._sequences:
            # a decode step weighs what a token of it costs against one of prefill
            prefill = float(self._iteration.time(0.0, 0.0, self.token_budget, self.token_budget * pairs))
            decode = float(self._iteration.time(1.0, context) - self._iteration.t0) - float(
                self._iteration.weight_time(1.0)
            )
            weight = max(decode, 0.0) * self.token_budget / prefill
            self._sequences[scales] = Burst.sequence(self.law, weight, scales)
        return self._sequences[scales]


class _Calm(PoolModel):
    """A mixed pool under Poisson arrivals."""

    def __init__(self, pool: MixedPool) -> None:
        self._pool = pool

    @property
    def capacity_per_s(self) -> float:
        """Largest stable rate of one replica [1/s]."""
        return self._pool.capacity_per_s

    def predict(self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`planner.methods.base.PoolModel`."""
        return self._pool._calm(arrival_rate_per_s, replicas, quantiles)[0]


def _cautious(errors: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, tuple[float, ...]]:
    """Margins at the 95% end of predicted/true - 1."""
    return {m: tuple(max(1.0 / max(1.0 + low, 0.1), 1.0) for low, _ in bands) for m, bands in errors.items()}


def _truth_bands(
    errors: Mapping[str, Sequence[tuple[float, float]]],
) -> dict[str, tuple[tuple[float, float], ...]]:
    """From predicted/true - 1 to true/predicted - 1."""
    return {
        metric: tuple(
            (1.0 / (1.0 + high) - 1.0, 1.0 / (1.0 + low) - 1.0 if low > -1.0 else math.inf) for low, high in per_level
        )
        for metric, per_level in errors.items()
    }


class Mixed(Method):
    """See :class:`MixedPool`."""

    name, summary = (
        "mixed",
        "prefill and decode under a token budget, as their engine runs them (vLLM, SGLang, TensorRT-LLM)",
    )
    shares_budget = guided = dear_bursts = True

    def pool(
        self,
        law: PoolLaw,
        engine: EngineOption,
        setup: ReplicaSetup,
        chunk: int,
        routing: Routing,
        arrivals: PoolArrivals,
    ) -> MixedPool:
        """See :meth:`planner.methods.base.Method.pool`."""
        profile = engine.profile
        return MixedPool(
            law,
            profile.iteration,
            setup.slots,
            setup.kv_tokens,
            engine.token_budget,
            routing,
            arrivals,
            profile.api_overhead_s,
            profile.request_s,
            engine.shared_prefix,
            profile.wake_s,
        )


METHOD = Mixed()
