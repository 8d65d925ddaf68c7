"""A pool whose prompts come back: what its prefix caches find again, and the latency of what is left to compute.

The cache of a replica is the KV memory its running requests leave. How much of the prompts it supplies depends on the rate and,
unless sessions stay where they are, on the number of replicas; what is left to compute decides how long requests run, and so how
much memory they leave: :class:`SessionPool` asks the latency method again and again until both agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from planner.methods.base import PoolModel, Prediction, unstable
from planner.methods.burst import IDLE_LOAD
from planner.queueing.reuse import CacheLaw, SessionTable
from planner.record import Record
from planner.routing import Routing
from planner.workload.pools import PoolLaw, features
from planner.workload.sessions import Sessions

FloatArray = NDArray[np.float64]

REPRESENTATIVES = 600
"""Calls that stand for all when a latency is computed, evenly by their prompts."""

SETTLED = 0.02
"""Relative change of the time calls run at which cache and latency agree [1]."""

ROUNDS = 6
"""Times they are asked at most."""

CAPACITY_STEP = 0.02
"""Relative step to which a largest stable rate is found, from below [1]."""

MOST_STEPS = 12
"""Bisections of it at most."""

LEVELS = np.concatenate([np.linspace(0.02, 0.98, 49), [0.985, 0.99, 0.993, 0.996, 0.998, 0.999]])
"""Levels of the latency at which transfers from host memory are added."""


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """Where prompts are kept.

    Parameters
    ----------
    kv_tokens
        KV memory of a replica, running requests included [tokens].
    host_tokens
        Host memory of a replica for what the GPU drops [tokens].
    host_tokens_per_s
        Speed at which it comes back [tokens/s].
    ttl_s
        What was not used for so long is dropped [s].
    """

    kv_tokens: float
    host_tokens: float = 0.0
    host_tokens_per_s: float = math.inf
    ttl_s: float = math.inf


@dataclass(frozen=True, slots=True)
class CacheState(Record):
    """What the caches of a pool do at one rate and number of replicas.

    Parameters
    ----------
    share, host_share
        Share of all prompt tokens found on the GPU, and in host memory [1].
    busy_s
        Mean time a call runs [s].
    sessions
        Sessions alive in the pool: between their first and last call.
    pinned_tokens
        Memory that running requests hold, on one replica [tokens].
    """

    share: float
    host_share: float
    busy_s: float
    sessions: float
    pinned_tokens: float

    renamed: ClassVar[Mapping[str, str]] = {"share": "cached_share"}


class SessionPool(PoolModel):
    """See the module and :class:`planner.methods.base.PoolModel`.

    Parameters
    ----------
    law
        The pool's requests.
    sessions
        The same, session by session.
    build
        Makes the model of a pool of given requests whose replicas have that much KV memory [tokens].
    cache
        Where prompts are kept.
    routing
        Whether a session, or a prefix, stays on a replica.
    chunk
        Prefill chunk of the feature sums [tokens].
    slots
        Sequences of a replica.
    answers
        Outputs of the calls where replicas prefill alone and others decode: `sessions` then have none [tokens], shape (calls,).
    """

    def __init__(
        self,
        law: PoolLaw,
        sessions: Sessions,
        build: Callable[[PoolLaw, float], PoolModel],
        cache: PrefixCache,
        routing: Routing,
        chunk: int,
        slots: int,
        answers: FloatArray | None = None,
    ) -> None:
        self.law, self.sessions, self.cache, self.routing, self.chunk = law, sessions, cache, routing, chunk
        self._build, self._slots, self._answers = build, slots, answers
        self._calls = _Representatives(sessions, sessions.output_tokens if answers is None else answers)
        self._known: dict[tuple[float, int], tuple[PoolModel, CacheState, FloatArray]] = {}
        self._capacities: dict[int, float] = {}
        self._cold: float | None = None
        self._laws: dict[tuple[float, int, float], PoolLaw] = {}

    def routed(self, routing: Routing) -> SessionPool:
        """The same pool behind another gateway, for what its caches find."""
        return SessionPool(
            self.law, self.sessions, self._build, self.cache, routing, self.chunk, self._slots, self._answers
        )

    # --- what the cache does ---------------------------------------------------------------------------------------

    def spread(self, replicas: int) -> tuple[float, float]:
        """Replicas a session's calls are dealt to, and by how much shared prefixes keep to replicas of their own."""
        return (1.0 if self.routing.affinity else float(replicas)), (
            float(replicas) if self.routing.affinity == "prefix" else 1.0
        )

    def found(self, rate_per_replica: float, replicas: int, busy_s: float) -> tuple[PoolModel, CacheState, FloatArray]:
        """The pool as its caches leave it when calls run that long [s]; also the host tokens of each row, and what was found."""
        cache, table = self.cache, self.sessions.table
        spread, item_spread = self.spread(replicas)
        held: dict[str, Any] = {"busy_s": busy_s, "ttl_s": cache.ttl_s, "item_spread": item_spread}
        law = table.at(rate_per_replica, cache.kv_tokens, spread, **held)
        inputs = float(self.sessions.input_tokens.mean())
        own = table.found_by_sessions(law, spread)
        shared = table.found_of_items(rate_per_replica, cache.kv_tokens, spread, **held) if table.items else 0.0
        hits, rest, whole = self._calls.rows(law, table.weights(spread))
        later, more = 0.0, np.zeros_like(hits)
        if cache.host_tokens > 0.0:
            beyond = table.at(rate_per_replica, cache.kv_tokens + cache.host_tokens, spread, **held)
            later = table.found_by_sessions(beyond, spread) - own
            hits_beyond, rest_beyond, whole_beyond = self._calls.rows(beyond, table.weights(spread))
            # found whole in either: what is not on the GPU comes from the host
            average = whole * hits + (1.0 - whole) * rest
            hits, rest, whole, more = hits_beyond, rest_beyond, whole_beyond, average
        pool, host = self._law(hits, rest, whole, more, shared)
        self._laws[rate_per_replica, replicas, busy_s] = pool
        kv = self._memory(table, rate_per_replica, item_spread)
        running = rate_per_replica * busy_s
        state = CacheState(
            (own + shared) / inputs,
            later / inputs,
            busy_s,
            rate_per_replica * replicas * (self._span_s / self.sessions.turns + busy_s),
            min(running * float(table.running_tokens.mean()), cache.kv_tokens),
        )
        return self._build(pool, kv), state, host

    @property
    def _span_s(self) -> float:
        """Mean time from the first to the last call of a session [s]."""
        return float(np.bincount(self.sessions.session, self.sessions.gaps_between_s).mean())

    def _law(
        self, hits: FloatArray, rest: FloatArray, whole: FloatArray, gpu: FloatArray, shared: float
    ) -> tuple[PoolLaw, FloatArray]:
        """The pool's requests, each with its prefix found and not found; and the tokens of each that come from the host."""
        calls = self._calls
        common = calls.shared * (shared / max(float(self.sessions.shared_tokens.mean()), 1e-12))
        found = np.concatenate([hits, rest]) + np.tile(common, 2)
        inputs, outputs = np.tile(calls.input, 2), np.tile(calls.output, 2)
        weight = np.concatenate([whole, 1.0 - whole]) / hits.size
        cached = np.clip(found / np.maximum(inputs, 1.0), 0.0, 1.0 - 1.0 / np.maximum(inputs, 2.0))
        host = np.zeros(2 * hits.size)
        if self.cache.host_tokens > 0.0:
            host[: hits.size] = np.maximum(hits - gpu, 0.0)
        keep = weight > 1e-12
        inputs, outputs, cached, weight, host = (x[keep] for x in (inputs, outputs, cached, weight, host))
        weight = weight / weight.sum()
        moments = self.law.share * (weight @ features(inputs, outputs, cached, self.chunk))
        made = replace(
            self.law, input_tokens=inputs, output_tokens=outputs, cached_share=cached, weight=weight, moments=moments
        )
        return made, host

    def _memory(self, table: SessionTable, rate: float, item_spread: float) -> float:
        """KV memory as if nothing were shared: shared prefixes of running requests are stored once [tokens]."""
        shared = float(self.sessions.shared_tokens.mean())
        if not shared:
            return self.cache.kv_tokens
        outputs = float(self.sessions.output_tokens.mean())
        footprint = float(self.sessions.input_tokens.mean()) + 0.5 * outputs

        def held(running: float) -> float:
            once = sum(
                float(np.sum(count / keep * tokens * -np.expm1(-running * keep * per_call)))
                for count, per_call, tokens in table.items
                for keep in (np.clip(1.0 / np.maximum(per_call, 1e-12), 1.0, item_spread),)
            )
            return running * (footprint - shared) + once

        low, high = 0.0, 1e6
        while high - low > 1e-3 * max(low, 1.0):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if held(middle) <= self.cache.kv_tokens else (low, middle)
        return max(low * footprint, self.cache.kv_tokens)

    # --- what a pool model answers ---------------------------------------------------------------------------------

    @property
    def capacity_per_s(self) -> float:
        """Largest stable rate of a replica on its own [1/s]; see :meth:`capacity_at`."""
        return self.capacity_at(1)

    def capacity_at(self, replicas: int) -> float:
        """Largest stable rate of one of so many replicas [1/s]: where what the caches find at that rate just suffices."""
        key = 1 if self.routing.affinity == "session" else replicas
        if key not in self._capacities:
            self._capacities[key] = self._capacity(key)
        return self._capacities[key]

    def _capacity(self, replicas: int) -> float:
        """The fixed point rate = capacity(share(rate)), by bisection on the logarithm; more rate finds less."""

        def at(rate: float) -> float:
            # a replica at its limit runs as many as fit: by slots, or by memory
            size = float(self.sessions.input_tokens.mean() + 0.5 * self.sessions.output_tokens.mean())
            running = min(
                float(self._slots), 0.8 * self._memory(self.sessions.table, rate, self.spread(replicas)[1]) / size
            )
            return self.found(rate, replicas, running / rate)[0].capacity_per_s

        none = self._cold_capacity()
        low, high = none, at(none)
        # one rate's answer is another's guess: what is found changes slowly with the rate
        for _ in range(MOST_STEPS):
            if high <= low * (1.0 + CAPACITY_STEP):
                break
            middle = math.sqrt(low * high)
            reached = at(middle)
            low, high = (middle, min(high, reached)) if reached > middle else (max(low, reached), middle)
        return low

    def _cold_capacity(self) -> float:
        """Largest stable rate of a replica whose cache finds nothing [1/s]."""
        if self._cold is None:
            nothing = np.zeros_like(self._calls.input)
            law = self._law(nothing, nothing, nothing, nothing, 0.0)[0]
            self._cold = self._build(law, self.cache.kv_tokens).capacity_per_s
        return self._cold

    def left_at(self, arrival_rate_per_s: float, replicas: int) -> tuple[PoolLaw, PoolModel, FloatArray]:
        """The pool as its caches leave it at a rate of the pool [1/s]: its requests, its model, and how long what each request
        finds in host memory takes to come back [s], shape (rows,)."""
        inner, state, host = self._settled(arrival_rate_per_s, replicas, (0.5, 0.9, 0.99))
        law = self._laws[arrival_rate_per_s / replicas, replicas, state.busy_s]
        return law, inner, host / self.cache.host_tokens_per_s

    def state(self, arrival_rate_per_s: float, replicas: int) -> CacheState:
        """What the caches do at a rate of the pool [1/s]."""
        return self._settled(arrival_rate_per_s, replicas, (0.5, 0.9, 0.99))[1]

    def _settled(
        self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]
    ) -> tuple[PoolModel, CacheState, FloatArray]:
        """Cache and latency that agree."""
        key = (arrival_rate_per_s, replicas)
        if key in self._known:
            return self._known[key]
        rate = arrival_rate_per_s / replicas
        outputs = float(self.sessions.output_tokens.mean())
        busy = 0.02 * outputs
        found = self.found(rate, replicas, busy)
        for _ in range(ROUNDS):
            inner = found[0]
            if arrival_rate_per_s >= replicas * inner.capacity_per_s:
                longer = self._slots / rate
            else:
                near = inner.predict(arrival_rate_per_s, replicas, quantiles)
                middle = min(quantiles, key=lambda q: abs(q - 0.5))
                transfer = float(found[2].mean()) / self.cache.host_tokens_per_s if found[2].size else 0.0
                longer = near.value("ttft_s", middle) + transfer
                longer += outputs * near.value("tpot_s", middle) if outputs > 0.0 else 0.0
            if not math.isfinite(longer):
                longer = self._slots / rate
            longer = min(longer, self._slots / rate)
            moved = abs(longer - busy) * rate * float(self.sessions.table.running_tokens.mean())
            busy = longer
            if moved < SETTLED * self.cache.kv_tokens:
                break
            found = self.found(rate, replicas, busy)
        self._known[key] = found
        return found

    def predict(self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`planner.methods.base.PoolModel`."""
        load = arrival_rate_per_s / (replicas * self._cold_capacity())
        if load > IDLE_LOAD:
            load = arrival_rate_per_s / (replicas * self.capacity_at(replicas))
        if load >= 1.0:
            return unstable(quantiles, load)
        inner, _, host = self._settled(arrival_rate_per_s, replicas, quantiles)
        if arrival_rate_per_s >= replicas * inner.capacity_per_s:
            return unstable(quantiles, max(load, 1.0))
        found = inner.predict(arrival_rate_per_s, replicas, quantiles)
        if math.isfinite(found.ttft_s[-1]) and host.any():
            found = self._with_transfers(found, inner, arrival_rate_per_s, replicas, host)
        return replace(found, load=max(load, found.load) if math.isinf(found.ttft_s[-1]) else load)

    def _with_transfers(
        self, found: Prediction, inner: PoolModel, rate: float, replicas: int, host: FloatArray
    ) -> Prediction:
        """TTFT and E2E with the time prefixes take from host memory, independent of all else."""
        fine = inner.predict(rate, replicas, tuple(LEVELS.tolist()))
        delays = np.quantile(host / self.cache.host_tokens_per_s, (np.arange(40) + 0.5) / 40)
        mass = np.diff(np.concatenate([[0.0], 0.5 * (LEVELS[1:] + LEVELS[:-1]), [1.0]]))
        changed: dict[str, Any] = {}
        for metric in ("ttft_s", "e2e_s"):
            if math.isnan(getattr(found, metric)[0]):
                continue  # another pool's
            sums = np.add.outer(np.array(getattr(fine, metric)), delays).ravel()
            order = np.argsort(sums)
            level = np.cumsum(np.repeat(mass, delays.size)[order]) / delays.size
            added = np.interp(found.quantiles, level, sums[order])
            changed[metric] = tuple(max(a, b) for a, b in zip(added.tolist(), getattr(found, metric), strict=True))
        return replace(found, **changed)

    def without_bursts(self) -> PoolModel | None:
        """See :class:`planner.methods.base.PoolModel`: what bursts cost is not told apart here."""
        return None


class _Representatives:
    """Calls that stand for all, with the gaps and prefixes of the calls before them.

    Parameters
    ----------
    sessions
        All calls.
    outputs
        Their outputs [tokens], shape (calls,).
    """

    def __init__(self, sessions: Sessions, outputs: FloatArray) -> None:
        order = np.argsort(sessions.input_tokens, kind="stable")
        wanted = min(REPRESENTATIVES, order.size)
        picked = order[((np.arange(wanted) + 0.5) * order.size / wanted).astype(np.int64)]
        # the longest must fit whatever stands for the others
        picked[-1] = order[-1]
        place = np.full(sessions.calls, -1)
        place[picked] = np.arange(wanted)
        self.input, self.output = sessions.input_tokens[picked], outputs[picked]
        self.shared = sessions.shared_tokens[picked]
        reach = sessions.table.reach
        self.gap = np.full((len(reach), wanted), math.inf)
        self.cached = np.zeros((len(reach), wanted))
        for k, (rows, gap, cached) in enumerate(reach):
            own = place[rows]
            self.gap[k, own[own >= 0]] = gap[own >= 0]
            self.cached[k, own[own >= 0]] = cached[own >= 0]

    def rows(self, law: CacheLaw, weight: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Of each call: tokens found where all is found, mean tokens found else, probability that all is found."""
        used = np.flatnonzero(weight > 1e-9)
        if not used.size:
            # also where calls are dealt to so many replicas that none comes back to its own
            nothing = np.zeros(self.input.size)
            return nothing, nothing, nothing
        gap, cached, share = self.gap[used], self.cached[used], weight[used][:, None]
        known = np.isfinite(gap)
        gap = np.where(known, gap, law.gaps_s[-1])
        all_of_it = share * np.where(known & (cached > 0.0), law.whole(gap, cached), 0.0)
        mean = np.sum(share * np.where(known, law.found(gap, cached), 0.0), axis=0)
        whole = np.minimum(all_of_it.sum(axis=0), 1.0)
        hits = (all_of_it * cached).sum(axis=0) / np.maximum(whole, 1e-12)
        rest = np.clip((mean - whole * hits) / np.maximum(1.0 - whole, 1e-12), 0.0, np.max(cached, axis=0))
        return np.where(whole > 1e-9, hits, 0.0), rest, whole
