"""Method ``mgc``: the FleetOpt paper's pool, every slot a server of an M/G/c queue at full-occupancy iteration time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.machine.iteration import IterationModel
from planner.predict.contract import Method, PoolModel, Prediction, same_band, unstable
from planner.predict.replica import EngineOption, ReplicaSetup, full_iteration_time
from planner.predict.traffic import PoolTraffic
from planner.promise import Promise
from planner.queueing.erlang import log_erlang_c
from planner.queueing.mgc import min_replicas, wait_quantile
from planner.routing import Routing
from planner.workload import pools as m
from planner.workload.pools import PoolLaw

FloatArray = NDArray[np.float64]


class MgcPool(PoolModel):
    """Pool of replicas x slots servers (FleetOpt eq. 3-8, arXiv:2603.16514), with exact sums over the law.

    ``E[S] = (ceil(L/chunk) + O) t_iter``, Erlang C for the probability of waiting, tail
    ``ln(C/(1-q)) (1 + C_s^2) / (2 (c mu - lambda))``, TTFT = W_q + P_q[prefill] + t_iter: a sum of quantiles, as
    printed. Prefill costs iterations and no compute; see the errata in docs for what that hides.
    """

    def __init__(self, law: PoolLaw, iteration: IterationModel, slots: int, chunk: int) -> None:
        self.slots = slots
        decode = law.mean(m.DECODE)
        context = law.mean(m.KV) / decode if decode > 0.0 else law.mean(m.INPUT)
        self.iteration_s = full_iteration_time(iteration, slots, context)
        mean = law.mean(m.ITERATIONS)
        self.service_s = mean * self.iteration_s
        self.scv = max(law.mean(m.ITERATIONS2) / (mean * mean) - 1.0, 0.0)
        chunks = _chunks(law, chunk)
        self._chunks, self._iterations = _Law(chunks, law.weight), _Law(chunks + law.output_tokens, law.weight)

    @property
    def capacity_per_s(self) -> float:
        """slots / E[S] [1/s]."""
        return self.slots / self.service_s

    def prefill_s(self, quantile: float) -> float:
        """Quantile of ceil(L/chunk) t_iter [s]."""
        return self._chunks.quantile(quantile) * self.iteration_s

    def predict(self, rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`planner.predict.contract.PoolModel`."""
        servers = float(replicas * self.slots)
        offered = rate_per_s * self.service_s
        load = offered / servers
        if load >= 1.0:
            return unstable(quantiles, load)
        log_wait = float(log_erlang_c(servers, offered)) if offered > 0.0 else -math.inf
        waits = wait_quantile(rate_per_s, self.service_s, servers, self.scv, quantiles).tolist()
        ttft = tuple(w + self.prefill_s(q) + self.iteration_s for w, q in zip(waits, quantiles, strict=True))
        e2e = tuple(w + self._iterations.quantile(q) * self.iteration_s for w, q in zip(waits, quantiles, strict=True))
        return Prediction(
            quantiles=quantiles,
            latencies={"ttft_s": ttft, "tpot_s": (self.iteration_s,) * len(quantiles), "e2e_s": e2e},
            load=load,
            slot_occupancy=load,
            mean_running=load * self.slots,
            wait_probability=math.exp(log_wait),
            # measured on the 48 hold-out cases of docs/accuracy.md: the printed model errs by 50-70% in the middle
            bands={
                "ttft_s": same_band(quantiles, -0.9, 8.0),
                "tpot_s": same_band(quantiles, -0.7, 0.5),
                "e2e_s": same_band(quantiles, -0.7, 1.0),
            },
        )


class _Law:
    """Values in order with their weights."""

    def __init__(self, values: FloatArray, weight: FloatArray) -> None:
        order = np.argsort(values, kind="stable")
        self.values, self.below = values[order], np.cumsum(weight[order])

    def quantile(self, level: float) -> float:
        """The smallest value up to which a share `level` of the weight lies."""
        # half a part in 1e12 absorbs the rounding of the cumulative sum
        place = int(np.searchsorted(self.below, level * self.below[-1] - 5e-13))
        return float(self.values[min(place, self.values.size - 1)])


def _chunks(law: PoolLaw, chunk: int) -> FloatArray:
    """Iterations that prompts are processed in."""
    return np.ceil((1.0 - law.cached_share) * law.input_tokens / chunk)


class Mgc(Method):
    """See :class:`MgcPool`."""

    name, summary = "mgc", "every slot a server of an M/G/c queue at full-occupancy iteration time (the FleetOpt paper)"
    free_prefill = True
    feels_bursts = False
    caveat = (
        "method mgc is the paper's: all slots busy at all times, prefill without compute, TTFT as a sum of percentiles; "
        "its errors are in docs/accuracy.md"
    )

    def pool(
        self, engine: EngineOption, setup: ReplicaSetup, chunk: int, routing: Routing, arrivals: PoolTraffic
    ) -> MgcPool:
        """See :meth:`planner.predict.contract.Method.pool`."""
        return MgcPool(arrivals.law, engine.profile.iteration, setup.slots, chunk)

    def iteration_limits(self, law: PoolLaw, promises: Sequence[Promise], chunk: int) -> list[float]:
        """As usual, and nine tenths of a TTFT promise for prefill and first decode, which are timed at full occupancy too."""
        chunks = _Law(_chunks(law, chunk), law.weight)
        lone = [0.9 * p.limit_s / (chunks.quantile(p.quantile) + 1.0) for p in promises if p.metric == "ttft_s"]
        return super().iteration_limits(law, promises, chunk) + lone

    def capacity_bound(self, moments: FloatArray, engine: EngineOption, slots: FloatArray) -> FloatArray:
        """Its prefill costs no compute, so work done is no bound: its own capacity, which grows with the slots, is."""
        _, mean, context = _means(moments)
        step = np.asarray(engine.profile.iteration.at_batch(1.0).time(slots, slots * context))
        with np.errstate(divide="ignore"):
            capacity: FloatArray = slots / (np.maximum(mean[:, m.ITERATIONS], 1e-9) * step)
        return capacity

    def sizes_exactly(self, engines: Sequence[EngineOption], promises: Sequence[Promise]) -> bool:
        """With a slot for every longest request the method is a closed form of the moments."""
        return all(e.kv == "reserved" for e in engines) and all(p.metric in ("ttft_s", "tpot_s") for p in promises)

    def replicas(
        self,
        moments: FloatArray,
        chunks: FloatArray,
        engine: EngineOption,
        slots: FloatArray,
        rate_per_s: float,
        promises: Sequence[Promise],
        utilization_cap: float,
    ) -> FloatArray:
        """FleetOpt eq. 8 and 11 in closed form, the same answer as sizing each :class:`MgcPool`; inf where a promise breaks at any
        size. Constant time per pool, whatever the rate."""
        iteration, (share, mean, context) = engine.profile.iteration, _means(moments)
        slots = np.maximum(slots, 1.0)
        step = np.asarray(iteration.at_batch(float(np.max(slots))).time(slots, slots * context))
        if iteration.w_experts > 0.0:
            step = np.array([full_iteration_time(iteration, n, k) for n, k in zip(slots, context, strict=True)])
        iterations, rate = np.maximum(mean[:, m.ITERATIONS], 1e-9), rate_per_s * share
        service, scv = iterations * step, np.maximum(mean[:, m.ITERATIONS2] / iterations**2 - 1.0, 0.0)
        needed = np.ceil(rate * service / (slots * utilization_cap) * (1.0 - 1e-12)).clip(min=1.0)
        for p in promises:
            if p.metric == "tpot_s":
                needed = np.where(step > p.limit_s, np.inf, needed)
            elif p.metric == "ttft_s":
                left, moment = p.limit_s - (chunks + 1.0) * step, {"service_scv": scv, "quantile": p.quantile}
                sized = min_replicas(rate, service, slots, left, max_utilization=utilization_cap, **moment)
                needed = np.maximum(needed, sized)
        return needed


def _means(moments: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Share, feature means and context of a decode [tokens] of pools with these feature sums."""
    share = np.maximum(moments[:, m.SHARE], 1e-12)
    mean = moments / share[:, None]
    decode = mean[:, m.DECODE]
    return share, mean, np.where(decode > 0.0, mean[:, m.KV] / np.maximum(decode, 1e-9), mean[:, m.INPUT])


METHOD = Mgc()
