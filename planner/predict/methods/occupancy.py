"""Method ``occupancy``: slots that prefill in chunks of their own, the chain of busy slots in product form."""

from __future__ import annotations

from copy import copy

import numpy as np

from planner.machine.iteration import IterationModel
from planner.predict.contract import Method, PoolModel, Prediction, same_band, unstable
from planner.predict.joint import Together
from planner.predict.replica import EngineOption, ReplicaSetup
from planner.predict.traffic import PoolTraffic
from planner.queueing.slots.chain import ROUTINGS
from planner.queueing.slots.latency import ReplicaLatency
from planner.routing import Routing
from planner.workload import pools as m
from planner.workload.pools import PoolLaw


def iteration_times(law: PoolLaw, iteration: IterationModel, slots: int, chunk: int) -> np.ndarray:
    """t(0..slots) of a replica whose active slots decode at the mean context and prefill a chunk each in their share of
    iterations [s], shape (slots + 1,)."""
    total = law.mean(m.ITERATIONS)
    decode = law.mean(m.DECODE)
    decoding = decode / total
    # what prefill adds per active slot: its tokens and pairs, spread over the request's iterations
    tokens = law.mean(m.NEW_INPUT) / total
    pairs = law.mean(m.PAIRS) / total
    context = law.mean(m.KV) / decode if decode > 0.0 else 0.0
    n = np.arange(slots + 1, dtype=np.float64)
    if iteration.b == 0.0 and iteration.c == 0.0 and iteration.a == 0.0:
        # W + H n: prefill costs iterations and nothing else, and a prefilling slot counts like any other
        return iteration.time(n, n * context)
    batch = n * decoding, n * decoding * context, n * tokens, n * pairs
    apart = iteration.additive.time(*batch)
    if iteration.m == 0.0:
        return apart
    # one kernel takes decodes and prompts together in the iterations in which any slot prefills
    return apart + (1.0 - decoding**n) * (iteration.time(*batch) - apart)


class OccupancyPool(PoolModel):
    """See :class:`planner.predict.contract.PoolModel` and :mod:`planner.queueing.slots.latency`."""

    def __init__(
        self,
        iteration: IterationModel,
        slots: int,
        chunk: int,
        routing: Routing,
        arrivals: PoolTraffic,
        api_overhead_s: float = 0.0,
    ) -> None:
        self.slots, self.routing, self.arrivals, self.api_overhead_s = slots, routing, arrivals, api_overhead_s
        law = arrivals.law
        times = iteration_times(law, iteration, slots, chunk)
        self._replica = ReplicaLatency(
            (1.0 - law.cached_share) * law.input_tokens,
            law.output_tokens,
            law.weight,
            iteration_time=times,
            chunk=chunk,
        )
        self._capacity = self._replica.max_throughput()
        self._residence_s = law.mean(m.ITERATIONS) * float(times[-1])

    @property
    def capacity_per_s(self) -> float:
        """Largest stable rate of one replica [1/s]."""
        return self._capacity

    def without_bursts(self) -> OccupancyPool:
        """See :class:`planner.predict.contract.PoolModel`."""
        return self._arriving(self.arrivals.poisson())

    def grown(self, growth: str) -> OccupancyPool:
        """See :class:`planner.predict.contract.PoolModel`."""
        return self._arriving(self.arrivals.grown(growth))

    def _arriving(self, arrivals: PoolTraffic) -> OccupancyPool:
        """The same pool with other arrivals."""
        other = copy(self)
        other.arrivals = arrivals
        return other

    def predict(self, rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`planner.predict.contract.PoolModel`."""
        load = rate_per_s / (replicas * self._capacity)
        if load >= 1.0:
            return unstable(quantiles, load)
        at = self._replica.predict(
            rate_per_s,
            replicas,
            # what the chain has no law for is at least as good as a choice at random
            routing=self.routing.law if self.routing.law in ROUTINGS else "random",
            quantiles=np.array(quantiles),
            dispersion=self.arrivals.dispersion(rate_per_s, self._residence_s / (1.0 - load)),
            together=self.joint,
        )
        if not at.stable:
            return unstable(quantiles, load)
        overhead = self.api_overhead_s
        return Prediction(
            quantiles=quantiles,
            latencies={
                "ttft_s": tuple((at.ttft_s + overhead).tolist()),
                "tpot_s": tuple(at.tpot_s.tolist()),
                "e2e_s": tuple((at.e2e_s + overhead).tolist()),
            },
            load=load,
            slot_occupancy=at.slot_occupancy,
            mean_running=at.mean_active,
            wait_probability=at.wait_probability,
            # docs/accuracy.md, load <= 0.85: p90 of the absolute error of each quantile
            bands={
                "ttft_s": same_band(quantiles, *self._ttft_band(at.wait_probability)),
                "tpot_s": same_band(quantiles, -0.05, 0.08),
                "e2e_s": same_band(quantiles, -0.05, 0.08),
            },
            together=Together.of(dict(zip(("ttft_s", "tpot_s", "e2e_s"), at.requests, strict=True)))
            if self.joint
            else None,
        )

    def _ttft_band(self, wait_probability: float) -> tuple[float, float]:
        """Truth over prediction - 1: wider where about one request in a hundred waits, and under JSQ with few slots."""
        if self.routing.pooled and self.slots <= 8:
            return -0.30, 0.25
        if 0.005 < wait_probability < 0.03:
            return -0.10, 0.25
        return -0.05, 0.10


class Occupancy(Method):
    """See :class:`OccupancyPool`."""

    name, summary = "occupancy", "slots that prefill in chunks of their own (exclusive engines)"

    def pool(
        self, engine: EngineOption, setup: ReplicaSetup, chunk: int, routing: Routing, arrivals: PoolTraffic
    ) -> OccupancyPool:
        """See :meth:`planner.predict.contract.Method.pool`."""
        profile = engine.profile
        return OccupancyPool(profile.iteration, setup.slots, chunk, routing, arrivals, profile.api_overhead_s)


METHOD = Occupancy()
