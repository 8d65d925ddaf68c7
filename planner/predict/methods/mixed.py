"""Method ``mixed``: iterations under a token budget that prefill and decode share (vLLM V1, TensorRT-LLM) or not (SGLang).

A pool is asked by the requests of its traffic; or by a fixed number of users, each of whom waits for an answer and thinks before
asking again; or its engines speculate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.machine.iteration import IterationModel
from planner.machine.speculation import Speculation
from planner.predict.contract import Method, Prediction, replica_of
from planner.predict.records import Floats, Limit, Replicas, Requests, keys_of, supplied, uniforms
from planner.predict.replayed import Played, ReplayPool
from planner.predict.replica import EngineOption, ReplicaSetup
from planner.predict.run import replay
from planner.predict.traffic import LEAST_OTHERS, LEAST_REPLICAS, SAMPLE, WHOLE, Laid, PoolTraffic
from planner.promise import Promise
from planner.question.compiled import JOINT_LEVELS, REPORTED_LEVELS
from planner.routing import Routing
from planner.shared.kept import once
from planner.workload.pools import PoolLaw

LEAST_CALLS, MOST_CALLS = 40, 4000
"""Requests of each user that are replayed."""

WARM = 0.2
"""Part of the time until the first user has asked all of its requests, before which nothing counts."""

DRAWN_BY_USERS = 200
"""Kind of draw that lengths, think times and phases of users hang on."""


class PopulationPool(ReplayPool):
    """A pool of replicas asked by a fixed number of users, each of whom waits for an answer and thinks before asking again.

    Arrivals depend on answers here: a slower fleet is asked less. At the rate of its question the users are those of the question;
    at another rate, as many more or fewer.
    """

    def users(self, rate_per_s: float) -> float:
        """Users of the pool at a rate of its question [1/s]."""
        population = self.traffic.fleet.sending.population
        assert population is not None
        return population.users * rate_per_s / population.asked_per_s

    def draws(self, rate_per_s: float) -> NDArray[np.int64]:
        """Users are drawn, as long as one draw stands for all."""
        return np.zeros(1, dtype=np.int64)

    def is_short(self, rate_per_s: float, replicas: int) -> bool:
        """As many requests are drawn as it takes."""
        return False

    def without_bursts(self) -> None:
        """Users are their own law of arrivals."""

    def grown(self, growth: str) -> None:
        """More users are more users."""

    def keeps(self, rate_per_s: float, replicas: int, promises: Sequence[Promise], sure: bool = False) -> bool:
        """See :class:`planner.predict.contract.PoolModel`; nobody knows before the end who counts, so that none ends early."""
        levels = tuple(sorted({*JOINT_LEVELS, *(p.quantile for p in promises)}))
        found = self._at(rate_per_s, replicas, levels, WHOLE if sure else SAMPLE, self.draw)
        return all(found.value(p.metric, p.quantile) <= p.limit_s for p in promises)

    def excess(self, rate_per_s: float, replicas: int, promises: Sequence[Promise]) -> float:
        """See :class:`planner.predict.contract.PoolModel`."""
        found = self.look(rate_per_s, replicas, tuple(sorted({*JOINT_LEVELS, *(p.quantile for p in promises)})))
        return math.log(max(found.value(p.metric, p.quantile) / p.limit_s for p in promises))

    def _at(
        self, rate_per_s: float, replicas: int, quantiles: tuple[float, ...], most: int, draw: int | None
    ) -> Prediction:
        """Of calls of the users that come at that rate, at most so many, under one draw."""
        # what so many users see hangs on no rate that is thought of: told once for all, at all levels that are asked for
        law, population = self.traffic.law, self.traffic.fleet.sending.of_any_rate.population
        told: dict[object, Prediction] = once(("users", id(law), population), lambda: (law, {}))[1]
        of = self._asking(rate_per_s, replicas, most)
        alike = (self.engine, self.slow, self.overhead_s, self.windows_s, self.joint, *of, draw or 0)
        found = told.get(alike)
        if found is None or not {*quantiles} <= {*found.quantiles}:
            levels = tuple(sorted({*REPORTED_LEVELS, *JOINT_LEVELS, *quantiles}))
            found = told[alike] = self._told(self._play(rate_per_s, replicas, most, draw, ()), levels)
        places = [found.quantiles.index(q) for q in quantiles]
        own = {name: tuple(values[k] for k in places) for name, values in found.latencies.items()}
        return replace(found, quantiles=quantiles, latencies=own)

    def _told(self, played: Played, quantiles: tuple[float, ...]) -> Prediction:
        found = super()._told(played, quantiles)
        if played.requests.following is None:
            return found
        counted = played.requests.weight > 0.0  # type: ignore[operator]
        # Little's law: the time over which replicas were watched is not that of the requests that count
        running = played.rate_per_s * float(np.nanmean((played.run.done_s - played.run.admitted_s)[counted]))
        return replace(found, mean_running=running, slot_occupancy=min(running / self.engine.slots, 1.0))

    def _others(self, rate_per_s: float) -> list[int]:
        return [1, 2]

    def _asking(self, rate_per_s: float, replicas: int, most: int) -> tuple[int, int, int]:
        """Replicas that are looked at, a few where there are many, users who ask them, and how often each asks."""
        users, most = self.users(rate_per_s), min(most, 2 * SAMPLE)
        least = LEAST_REPLICAS.get(self.engine.routing, LEAST_OTHERS)
        fewer = max(min(math.ceil(users * LEAST_CALLS / most), replicas // least), 1)
        looked_at = max(round(replicas / fewer), 1)
        clients = max(round(users * looked_at / replicas), 1)
        return looked_at, clients, max(min(most // clients, MOST_CALLS), LEAST_CALLS)

    def _play(
        self, rate_per_s: float, replicas: int, most: int, draw: int | None, promises: Sequence[Promise]
    ) -> Played:
        """Let the users ask; what came while it was warm counts."""
        looked_at, clients, calls = self._asking(rate_per_s, replicas, most)
        requests = self._asked_by(clients, calls, draw or 0)
        run = replay(requests, replace(self.engine, count=looked_at))
        last = np.nan_to_num(run.sent_s[-clients:], nan=math.inf)
        end = float(last.min())
        start = WARM * end
        counted = (run.sent_s >= start) & (run.sent_s < end)
        per_s = float(np.count_nonzero(counted)) / (end - start)
        requests = replace(requests, weight=counted.astype(np.float64))
        return Played(requests, run, end, looked_at, per_s / looked_at, None)

    def _asked_by(self, clients: int, calls: int, draw: int) -> Requests:
        """The requests of so many users: their first in order of time, then their second ones, and so on."""
        population = self.traffic.fleet.sending.population
        assert population is not None
        own = self.traffic.own
        user = np.tile(np.arange(clients), calls)
        call = np.repeat(np.arange(calls), clients)
        key = keys_of(user, call, DRAWN_BY_USERS + draw)
        row = (uniforms(key, 0) * own.requests).astype(np.int64)
        gap = population.gaps(uniforms(key, 1), uniforms(key, 2))
        # who thinks for long is met thinking; who does not comes within the first second
        first = np.sort(uniforms(key[:clients], 3)) * max(population.think_s, 1.0)
        inputs = np.maximum(np.rint(own.input_tokens[row]), 1.0)
        return Requests(
            np.concatenate([first, np.full(clients * (calls - 1), math.inf)]),
            inputs,
            np.maximum(np.rint(own.output_tokens[row]), 1.0),
            supplied(inputs, own.cached_share[row]),
            key,
            following=np.where(call < calls - 1, np.arange(user.size) + clients, -1),
            gap_s=gap,
            images=None if own.images is None else own.images[row],
        )


STEPS_DRAWN = (101, 102)
"""Ordinals of the draws of a request's steps."""


class SpeculatingPool(ReplayPool):
    """A pool whose engines speculate: everything is counted in what a step yields on average.

    With a mean of u tokens per step a prompt of L tokens is one of L/u units, and a decode brings (1 + drafts)/u units into the
    batch. How many steps a request takes for its tokens is drawn, on its own key: one whose drafts happen to be refused stays
    longer, and waits longer for each of its tokens, above all where its answer is short and the steps it gets are full of others'
    prompts.

    Parameters
    ----------
    traffic
        The pool's requests, in tokens.
    engine
        One of its replicas and the gateway, in tokens.
    overhead_s
        As for :class:`ReplayPool`.
    speculation
        How they speculate.
    """

    def __init__(self, traffic: PoolTraffic, engine: Replicas, overhead_s: float, speculation: Speculation) -> None:
        u = speculation.tokens_per_step
        assert isinstance(engine.iteration, IterationModel)
        engine = replace(
            engine,
            iteration=engine.iteration.in_units(u),
            token_budget=max(1, int(engine.token_budget / u)),
            kv_tokens=engine.kv_tokens / u,
            shared_prefix=engine.shared_prefix / u,
        )
        super().__init__(traffic, engine, overhead_s)
        self.speculation, self.tokens_per_unit = speculation, u

    def capacity_of(self, law: PoolLaw) -> float:
        """See :class:`ReplayPool`: with as many steps as requests take on average."""
        steps = self.speculation.steps(law.output_tokens - 1.0) + 1.0
        return super().capacity_of(
            replace(law, input_tokens=law.input_tokens / self.tokens_per_unit, output_tokens=steps)
        )

    def _sent(self, traffic: PoolTraffic, laid: Laid) -> tuple[Requests, Floats]:
        """See :class:`ReplayPool`: prompts in units, outputs in steps, which are drawn."""
        requests, decodes = super()._sent(traffic, laid)
        # two uniform draws make a normal one (Box and Muller 1958)
        size, angle = (uniforms(requests.key, k) for k in STEPS_DRAWN)
        normal = np.sqrt(-2.0 * np.log1p(-size)) * np.cos(2.0 * np.pi * angle)
        u = self.tokens_per_unit
        return (
            replace(
                requests,
                input_tokens=np.maximum(requests.input_tokens / u, 1.0),
                output_tokens=1.0 + self.speculation.steps_at(decodes, normal),
                cached_tokens=requests.cached_tokens / u,
            ),
            decodes,
        )

    def _limits(self, promises: Sequence[Promise], requests: Requests) -> list[Limit]:
        """See :class:`ReplayPool`: a replay knows times per step, which end nothing early."""
        return [limit for limit in super()._limits(promises, requests) if limit.metric != "tpot_s"]

    def _limits_say_all(self, promises: Sequence[Promise]) -> bool:
        """See :class:`ReplayPool`."""
        return False


class Mixed(Method):
    """A replay of the pool's own requests: see :class:`planner.predict.replayed.ReplayPool`."""

    name, summary = (
        "mixed",
        "prefill and decode under a token budget, as their engine runs them (vLLM, SGLang, TensorRT-LLM)",
    )
    shares_budget = replays = True

    def pool(
        self, engine: EngineOption, setup: ReplicaSetup, chunk: int, routing: Routing, arrivals: PoolTraffic
    ) -> ReplayPool:
        """See :meth:`planner.predict.contract.Method.pool`."""
        replica = replica_of(engine, setup, routing=routing.name, image_s=engine.image_s)
        overhead_s = engine.profile.api_overhead_s
        if engine.speculation is not None:
            return SpeculatingPool(arrivals, replica, overhead_s, engine.speculation)
        kind = ReplayPool if arrivals.fleet.sending.population is None else PopulationPool
        return kind(arrivals, replica, overhead_s)


METHOD = Mixed()
