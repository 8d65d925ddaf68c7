"""A pool whose prompts come back: its sessions replayed through the prefix caches of its replicas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from planner.predict.calls import session_calls
from planner.predict.records import PrefixCache, Replicas, Requests, Run
from planner.predict.replayed import Capacity, Played, ReplayPool
from planner.predict.run import replay
from planner.predict.traffic import WHOLE, PoolTraffic
from planner.promise import Promise
from planner.routing import Routing
from planner.shared.record import Record
from planner.workload.sessions import Sessions

FEW_CALLS, MOST_CALLS = 10_000, 40_000
"""Calls replayed to rank, and to decide."""

LONG = 1.5
"""Mean lengths of a session that a replay lasts at least, so that its caches are full."""


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

    written: ClassVar[tuple[str, ...]] = ("cached_share=share", "host_share", "busy_s", "sessions", "pinned_tokens")


class SessionPool(ReplayPool):
    """See the module and :class:`planner.predict.contract.PoolModel`.

    Parameters
    ----------
    traffic
        The pool's requests, each alone.
    engine
        One of its replicas and the gateway.
    overhead_s, told_capacity
        As for :class:`ReplayPool`.
    sessions
        The same requests, session by session.
    cache
        Where prompts are kept beside the KV memory.
    """

    sessions: Sessions

    def __init__(
        self,
        traffic: PoolTraffic,
        engine: Replicas,
        overhead_s: float,
        sessions: Sessions,
        cache: PrefixCache,
        told_capacity: Capacity | None = None,
    ) -> None:
        self.sessions, self.cache = sessions, cache
        super().__init__(traffic, engine, overhead_s, told_capacity)

    def _forget(self) -> None:
        """See :class:`ReplayPool`."""
        super()._forget()
        self._states: dict[tuple[float, int], CacheState] = {}
        self._routed: dict[str, SessionPool] = {}

    def routed(self, routing: Routing) -> SessionPool:
        """The same pool behind another gateway."""
        if routing.name == self.engine.routing:
            return self
        if routing.name not in self._routed:
            other = self._routed[routing.name] = self._under(self.traffic)
            other.engine = replace(self.engine, routing=routing.name)
        return self._routed[routing.name]

    def without_bursts(self) -> None:
        """See :class:`PoolModel`: sessions begin at random."""
        return None

    def grown(self, growth: str) -> None:
        """See :class:`PoolModel`: more sessions begin, whatever is said."""
        return None

    def state(self, rate_per_s: float, replicas: int) -> CacheState:
        """What the caches do at a rate of the pool [1/s]."""
        key = (rate_per_s, replicas)
        if key not in self._states:
            self._play(rate_per_s, replicas, FEW_CALLS, None, ())
        return self._states[key]

    def keeps(self, rate_per_s: float, replicas: int, promises: Sequence[Promise], sure: bool = False) -> bool:
        """See :class:`PoolModel`: with the capacity that caches leave at this rate."""
        self.state(rate_per_s, replicas)
        return super().keeps(rate_per_s, replicas, promises, sure)

    def capacity_at(self, replicas: int) -> float:
        """Largest stable rate of one of so many replicas [1/s], by what the caches found at the last rate they were asked for."""
        found = [state.share + state.host_share for (_, n), state in self._states.items() if n == replicas]
        return self.capacity_per_s if not found else self._capacity_with(found[-1])

    def _capacity_with(self, share: float) -> float:
        """Largest stable rate of a replica whose caches supply a share of the prompt tokens [1/s]."""
        law = self.traffic.law
        endless = float(law.weight @ (law.cached_share * law.input_tokens) / (law.weight @ law.input_tokens))
        if endless <= 0.0:
            return self.capacity_per_s
        part = min(share / endless, 1.0)
        return self.capacity_of(replace(law, cached_share=part * law.cached_share)) / self.slow

    def _play(
        self, rate_per_s: float, replicas: int, most: int, draw: int | None, promises: Sequence[Promise]
    ) -> Played:
        """Replay calls of sessions for as long as caches take to fill."""
        wanted = FEW_CALLS if most < WHOLE else MOST_CALLS
        requests, span = session_calls(self.sessions, rate_per_s, self._calls(rate_per_s, wanted), draw or 0)
        run = self._run(requests, replicas, promises)
        counted = requests.weight is None or requests.weight > 0.0
        inputs = float(requests.input_tokens[counted].sum())
        with np.errstate(invalid="ignore"):
            busy = float(np.nanmean((run.done_s - run.admitted_s)[counted])) if run.ended_early < 0 else math.nan
        held = float((requests.input_tokens + 0.5 * requests.output_tokens).mean())
        state = CacheState(
            float((run.found_tokens - run.host_tokens)[counted].sum()) / inputs,
            float(run.host_tokens[counted].sum()) / inputs,
            busy,
            rate_per_s
            / self.sessions.turns
            * (float(np.bincount(self.sessions.session, self.sessions.gaps_between_s).mean()))
            + rate_per_s * (busy if math.isfinite(busy) else 0.0),
            min(rate_per_s / replicas * busy * held, self.engine.kv_tokens)
            if math.isfinite(busy)
            else self.engine.kv_tokens,
        )
        # of one replay, whichever others were asked before it
        if run.ended_early < 0 and draw is None and wanted == FEW_CALLS:
            self._states[rate_per_s, replicas] = state
        return Played(requests, run, span, replicas, rate_per_s / replicas)

    def _capacity_of(self, played: Played) -> float:
        """See :class:`ReplayPool`: with what the caches found."""
        run, inputs = played.run, played.requests.input_tokens
        return self._capacity_with(float(run.found_tokens.sum() / inputs.sum()))

    def _calls(self, rate_per_s: float, wanted: int) -> int:
        """Calls of a replay: so many, and as many as come while caches fill."""
        length = float(np.mean(self.sessions.times_s[np.append(np.flatnonzero(self.sessions.first)[1:], 0) - 1]))
        return int(min(max(wanted, LONG * length * rate_per_s), 4 * MOST_CALLS))

    def _run(self, requests: Requests, replicas: int, promises: Sequence[Promise]) -> Run:
        """The replay of calls."""
        engine = replace(self.engine, count=replicas)
        return replay(requests, engine, cache=self.cache, limits=self._limits(promises, requests))
