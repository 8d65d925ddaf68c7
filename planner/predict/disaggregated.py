"""Prefill and decode on nodes of their own: the decode pool as the pool sizer sees it, both pools replayed together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from planner.predict.calls import session_calls
from planner.predict.records import Decoders, Floats, PrefixCache, Replicas, Requests, Run
from planner.predict.replayed import Played, ReplayPool, slowed
from planner.predict.run import replay
from planner.predict.traffic import WHOLE, Laid, PoolTraffic
from planner.promise import Promise
from planner.workload.sessions import Sessions

BESIDE = 0.6
"""Load of the prefill replicas beside a decode pool that is asked about alone: a little more or less of it moves no decode."""


class DecodePool(ReplayPool):
    """The decode pool behind a prefill pool: rates are of requests with more than one output token, latencies of whole requests.

    Parameters
    ----------
    traffic
        The fleet's requests.
    first, second
        A prefill and a decode replica, and their gateways.
    capacities_per_s
        Largest stable rates of each [1/s].
    share
        Share of the requests that decode at all [1].
    transfer_s
        Time to move the KV cache of prompts [s] by their lengths [tokens].
    overhead_s
        What comes before the first engine [s].
    sessions, cache
        The requests session by session, and where prefill replicas keep prompts; ``None`` = nothing comes back.
    helps_at
        See :class:`planner.predict.records.Decoders`.
    """

    one_by_one = False

    def __init__(
        self,
        traffic: PoolTraffic,
        first: Replicas,
        second: Replicas,
        capacities_per_s: tuple[float, float],
        share: float,
        transfer_s: Callable[[Floats], Floats],
        overhead_s: float,
        sessions: Sessions | None = None,
        cache: PrefixCache | None = None,
        helps_at: float = math.inf,
    ) -> None:
        super().__init__(traffic, second, overhead_s, lambda law: capacities_per_s[1])
        self.first, self._first_capacity, self.share = first, capacities_per_s[0], share
        self._transfer_s, self.sessions, self.cache, self.helps_at = transfer_s, sessions, cache, helps_at
        self.prefills: int | None = None

    def beside(self, prefills: int) -> DecodePool:
        """The same behind so many prefill replicas (single copies)."""
        if prefills not in self._beside:
            other = self._under(self.traffic)
            other.prefills = prefills
            self._beside[prefills] = other
        return self._beside[prefills]

    def _forget(self) -> None:
        """See :class:`ReplayPool`."""
        super()._forget()
        self._beside: dict[int, DecodePool] = {}

    def _otherwise(self, slow: float, draw: int | None) -> Self:
        """See :meth:`planner.predict.contract.PoolModel.under`: both pools."""
        other = super()._otherwise(slow, draw)
        other.first, other._first_capacity = slowed(self.first, slow), self._first_capacity / slow
        return other

    def draws(self, rate_per_s: float) -> NDArray[np.int64]:
        """See :class:`ReplayPool`: of the whole fleet's traffic."""
        return super().draws(rate_per_s / self.share)

    def _lay(self, rate_per_s: float, replicas: int, most: int, draw: int | None) -> Laid:
        """See :class:`ReplayPool`: the requests of the whole fleet, of whose replicas none stands for another."""
        warm = min(self.engine.slots, 64.0) * replicas
        return self.traffic.lay(rate_per_s / self.share, 1, self.first.routing, warm=warm, most=most, draw=draw)

    def _alone(self, requests: Requests) -> Run:
        """See :class:`ReplayPool`."""
        return self._through(requests, 1, 1, ())

    def _play(
        self, rate_per_s: float, replicas: int, most: int, draw: int | None, promises: Sequence[Promise]
    ) -> Played:
        """See :class:`ReplayPool`: both pools."""
        whole = rate_per_s / self.share
        prefills = self.prefills or max(math.ceil(whole / (BESIDE * self._first_capacity)), 1)
        if self.sessions is None:
            laid = self._lay(rate_per_s, replicas, most, draw)
            requests, span = self.traffic.requests(laid), laid.span_s
        else:
            requests, span = session_calls(self.sessions, whole, 20_000 if most < WHOLE else 60_000, draw or 0)
        run = self._through(requests, prefills, replicas, promises)
        return Played(requests, run, span, replicas, rate_per_s / replicas)

    def _through(self, requests: Requests, prefills: int, decodes: int, promises: Sequence[Promise]) -> Run:
        """Requests through so many replicas of both pools; what was resident is the decode pool's."""
        second = replace(self.engine, count=decodes)
        run = replay(
            requests,
            replace(self.first, count=prefills),
            cache=self.cache if self.sessions is not None else None,
            decoders=Decoders(second, np.asarray(self._transfer_s(requests.input_tokens)), self.helps_at),
            limits=self._limits(promises, requests),
        )
        return replace(run, resident_s=run.resident_s[prefills:])
