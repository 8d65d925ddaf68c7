"""Method ``closed``: the closed form of one replica with mixed batching, Poisson arrivals and random routing."""

from __future__ import annotations

from planner.catalog.kv import BLOCK_TOKENS
from planner.errors import InputError
from planner.predict.closed import ClosedReplica
from planner.predict.contract import Method, PoolModel, Prediction, replica_of, unstable
from planner.predict.joint import Together
from planner.predict.records import Replicas
from planner.predict.replica import EngineOption, ReplicaSetup
from planner.predict.traffic import PoolTraffic
from planner.routing import Routing
from planner.workload.pools import Lengths

WAITING = 0.002
"""Share of requests that wait for a slot or for memory from which their waits are in P99 TTFT, which is rough then."""

ATTENTION = 0.12
"""Share of attention in the time of prefill from which a long prompt delays those behind it by more than its length says."""


class ClosedPool(PoolModel):
    """See :class:`~planner.predict.contract.PoolModel` and :mod:`planner.predict.closed`: R replicas are R times one at
    rate / R.
    """

    def __init__(self, lengths: Lengths, replica: Replicas, overhead_s: float) -> None:
        self.slots, self._replica = replica.slots, ClosedReplica(lengths, replica, overhead_s)
        engine = self._replica.engine
        self._attention = engine.alpha / max(engine.b + engine.c + engine.alpha, 1e-300)

    @property
    def capacity_per_s(self) -> float:
        """Largest stable rate of one replica [1/s]."""
        return self._replica.limit.per_s

    def predict(self, rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`planner.predict.contract.PoolModel`."""
        at = self._replica.at(rate_per_s / replicas)
        if at.load >= 1.0:
            return unstable(quantiles, at.load)
        warnings = []
        if at.wait_probability > WAITING:
            warnings.append("requests wait for slots or KV memory: their TTFT is rough in closed form")
        if self._attention > ATTENTION:
            warnings.append(
                "attention takes much of prefill: a long prompt stretches all iterations, which is not followed"
            )
        times = {"ttft_s": at.ttft_s, "tpot_s": at.tpot_s, "e2e_s": at.e2e_s}
        return Prediction(
            quantiles=quantiles,
            latencies={name: at.quantiles(name, quantiles) for name in times},
            load=at.load,
            slot_occupancy=min(at.running_mean / self.slots, 1.0),
            mean_running=at.running_mean,
            wait_probability=at.wait_probability,
            warnings=tuple(warnings),
            reliable=not warnings,
            together=Together.of(times) if self.joint else None,
        )


class Closed(Method):
    """See :class:`ClosedPool`."""

    name = "closed"
    summary = "closed form of mixed engines under Poisson arrivals and random routing"
    shares_budget = True
    feels_bursts = False
    caveat = (
        "method closed is a formula: Poisson arrivals and every replica chosen at random, whatever the trace and the gateway do; "
        "other routings wait less, bursts more"
    )

    def pool(
        self, engine: EngineOption, setup: ReplicaSetup, chunk: int, routing: Routing, arrivals: PoolTraffic
    ) -> ClosedPool:
        """See :meth:`planner.predict.contract.Method.pool`."""
        if not routing.by_rate_per_replica:
            raise InputError(f"routing {routing.name}: method {self.name} knows random alone", "Give --routing random.")
        replica = replica_of(engine, setup, block=BLOCK_TOKENS, reserve=False)
        return ClosedPool(arrivals.law, replica, engine.profile.api_overhead_s)


METHOD = Closed()
