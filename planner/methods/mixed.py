"""Method ``mixed``: iterations under a token budget that prefill and decode share (vLLM V1, TensorRT-LLM) or not (SGLang)."""

from __future__ import annotations

from planner.methods.base import Method
from planner.methods.population import PopulationPool
from planner.methods.replayed import ReplayPool
from planner.methods.speculation import SpeculatingPool, engine_in_steps
from planner.predict.records import Replicas
from planner.predict.traffic import PoolTraffic
from planner.replica.engine import EngineOption, ReplicaSetup
from planner.routing import Routing


class Mixed(Method):
    """A replay of the pool's own requests: see :class:`planner.methods.replayed.ReplayPool`."""

    name, summary = (
        "mixed",
        "prefill and decode under a token budget, as their engine runs them (vLLM, SGLang, TensorRT-LLM)",
    )
    shares_budget = replays = True
    effort = 2

    def pool(
        self, engine: EngineOption, setup: ReplicaSetup, chunk: int, routing: Routing, arrivals: PoolTraffic
    ) -> ReplayPool:
        """See :meth:`planner.methods.base.Method.pool`."""
        speculation = engine.speculation
        if speculation is not None:
            engine, setup = engine_in_steps(engine, setup, speculation)
        profile = engine.profile
        replica = Replicas(
            1,
            profile.iteration,
            setup.slots,
            engine.token_budget,
            setup.kv_tokens,
            routing.name,
            request_s=profile.request_s,
            wake_s=profile.wake_s,
            shared_prefix=engine.shared_prefix,
            image_s=engine.image_s,
        )
        if speculation is not None:
            return SpeculatingPool(arrivals, replica, profile.api_overhead_s, speculation)
        kind = ReplayPool if arrivals.fleet.sending.population is None else PopulationPool
        return kind(arrivals, replica, profile.api_overhead_s)


METHOD = Mixed()
