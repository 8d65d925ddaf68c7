"""Method ``mixed``: prefill and decode share iterations under a token budget, as vLLM V1 and SGLang run by default."""

from __future__ import annotations

from planner.iteration.model import IterationModel
from planner.queueing.mixed import MixedReplica, Routing
from planner.sizing import moments as m
from planner.sizing.burst import Burst
from planner.sizing.moments import PoolLaw
from planner.sizing.predict import Prediction, unstable

__all__ = ["MixedPool"]


ROUTING_NAMES: dict[str, Routing] = {"random": "random", "jsq": "jsq", "rr": "rr"}


class MixedPool:
    """See :class:`planner.sizing.predict.PoolModel` and :mod:`planner.queueing.mixed`."""

    def __init__(
        self,
        law: PoolLaw,
        iteration: IterationModel,
        slots: int,
        kv_tokens: float,
        token_budget: int,
        routing: str,
        burst: Burst,
        api_overhead_s: float = 0.0,
    ) -> None:
        self.slots = slots
        self.routing: Routing = ROUTING_NAMES[routing]
        self.burst = burst
        # experts: the batch that decides the floor is a full one
        frozen = iteration.at_batch(token_budget)
        self._replica = MixedReplica(
            t0=frozen.t0,
            w=frozen.w,
            b=frozen.b,
            c=frozen.c,
            h=frozen.h,
            g=frozen.g,
            a=frozen.a,
            tau=frozen.tau,
            x=frozen.x,
            e=frozen.e,
            input_tokens=law.input_tokens,
            output_tokens=law.output_tokens,
            weight=law.weight,
            token_budget=token_budget,
            max_num_seqs=slots,
            kv_tokens=kv_tokens,
            cached_share=law.cached_share,
            api_overhead_s=api_overhead_s,
        )
        limit = self._replica.max_throughput()
        self._capacity = limit.per_s
        self.bound_by = limit.binding
        full = iteration.time(limit.decodes, limit.decodes * law.mean(m.KV) / max(law.mean(m.DECODE), 1e-9))
        self._residence_s = law.mean(m.DECODE) * float(full)

    @property
    def capacity_per_s(self) -> float:
        """Largest stable rate of one replica [1/s]."""
        return self._capacity

    def predict(self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`planner.sizing.predict.PoolModel`."""
        load = arrival_rate_per_s / (replicas * self._capacity)
        if load >= 1.0:
            return unstable(quantiles, load)
        # the dispersion is wanted at the time the replica takes to forget a burst, which a fluid estimate gives well enough
        window = self._residence_s / (1.0 - load)
        pool_dispersion = self.burst.pool_dispersion(window)
        dispersion = 1.0 + (pool_dispersion - 1.0) / replicas
        at = self._replica.predict(
            arrival_rate_per_s, replicas, routing=self.routing, quantiles=quantiles, dispersion=dispersion
        )
        if not at.stable:
            return unstable(quantiles, load)
        return Prediction(
            quantiles=quantiles,
            ttft_s=tuple(at.ttft_s.tolist()),
            tpot_s=tuple(at.tpot_s.tolist()),
            e2e_s=tuple(at.e2e_s.tolist()),
            load=load,
            slot_occupancy=min(at.running_mean / self.slots, 1.0),
            mean_running=at.running_mean,
            wait_probability=at.wait_probability,
        )
