"""A prefill and a decode pool in a row: prompts are computed here, their KV cache travels, and tokens are decoded there.

Prefill replicas take one whole prompt an iteration, first come first served, and emit the first token; decode replicas follow
the rules of :mod:`planner.simulate.policies.distserve`, run by :class:`planner.simulate.fast.MixedReplica`. Clients wait, give
up and try again at the prefill replicas, which have the doors and send the first token; what is given up never travels.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError
from planner.iteration.model import IterationModel
from planner.methods.sessions import PrefixCache
from planner.replica.engine import UNLIMITED_BUDGET
from planner.routing import find_routing
from planner.simulate.answered import account
from planner.simulate.clients import Calls, ClientRules, ClientRun, run_clients, session_calls, soonest
from planner.simulate.drive import drive
from planner.simulate.fast import MixedReplica
from planner.simulate.measure import Run, result_of
from planner.simulate.pool import LOOKS, STAYS
from planner.simulate.presets import PoolEngines
from planner.simulate.result import SimulationResult
from planner.simulate.routing import Router
from planner.simulate.seeds import seeds_of
from planner.simulate.tables import RequestTable
from planner.simulate.traffic import RequestBatch, Traffic
from planner.workload.sessions import Sessions

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUPPLIED = 1 << 60
"""Tokens of a prompt that came with its KV cache: all, whatever was evicted since [tokens]."""


@dataclass(frozen=True, slots=True)
class ComingBack:
    """Sessions of a disaggregated fleet.

    Parameters
    ----------
    sessions
        The requests session by session.
    rate_per_s
        Their calls [1/s].
    cache
        Where prefill replicas keep prompts beside their KV memory, and for how long.
    """

    sessions: Sessions
    rate_per_s: float
    cache: PrefixCache

    def fitting(self, kv_tokens: float) -> Sessions:
        """The calls that a decode replica of so much memory [tokens] can hold."""
        fits = self.sessions.input_tokens + self.sessions.output_tokens - 1 <= kv_tokens
        kept = self.sessions if fits.all() else self.sessions.select(fits)
        if kept is None:
            raise InputError("sessions: no call fits into a decode replica's memory")
        return kept


Transfer = Callable[["NDArray[np.float64]"], "NDArray[np.float64]"]
"""Time to move the KV cache of prompts [s] by their lengths [tokens]."""


def simulate_pair(
    traffic: Traffic,
    prefill: PoolEngines,
    decode: PoolEngines,
    transfer_s: Transfer,
    *,
    seeds: int | Sequence[int] = 1,
    quantiles: Sequence[float] = (0.5, 0.9, 0.99),
    max_requests: int = 0,
    rules: ClientRules | None = None,
    coming_back: ComingBack | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[SimulationResult, SimulationResult]:
    """Simulate a prefill and a decode pool, iteration by iteration.

    Parameters
    ----------
    traffic
        Its requests.
    prefill, decode
        Replicas and gateways of the two pools; of the first, slots and token budget play no part, and memory only as a cache.
    transfer_s
        Time to move the KV cache of prompts [s] by their lengths [tokens]; transfers do not delay each other.
    seeds, quantiles, progress
        As for :func:`planner.simulate.pool.simulate`.
    max_requests
        Requests a run may grow to until it lasts :data:`planner.simulate.pool.STAYS` mean residence times.
    rules
        What clients and the doors of the prefill replicas do; ``None`` = everybody waits. The results then hold the attempts that
        were answered, and `clients` of the first what became of all.
    coming_back
        The requests session by session, for prefix caches at the prefill replicas; ``None`` = none.

    Returns
    -------
    tuple
        The same requests twice, with busy time and stability of the prefill and of the decode pool. TTFT ends with the first
        token, which the prefill pool emits; TPOT contains the transfer and the wait for a decode slot.
    """
    for engines in (prefill, decode):
        if not isinstance(engines.iteration, IterationModel):
            raise InputError("iteration: a table of durations is for the slots preset only")
    numbers = seeds_of(seeds)
    firsts, seconds, accounts = [], [], []
    for position, seed in enumerate(numbers):

        def tell(share: float, position: int = position) -> None:
            if progress is not None:
                progress((position + share) / len(numbers))

        requests = traffic.requests
        while True:
            if rules is None and coming_back is None:
                first, second = _run(traffic, prefill, decode, transfer_s, seed, requests, tell)
                counted: Mapping[str, float] = {}
            else:
                given = rules or ClientRules()
                first, second, counted = _together(
                    traffic, prefill, decode, transfer_s, seed, requests, given, coming_back, tell
                )
            wanted = STAYS * first.mean_stay_s
            if traffic.whole or requests >= max_requests or first.span_s >= wanted:
                break
            requests = min(max_requests, math.ceil(1.1 * requests * wanted / max(first.span_s, 1e-9)))
        firsts.append(first)
        seconds.append(second)
        accounts.append(counted)
    means = {key: float(np.mean([c[key] for c in accounts])) for key in accounts[0]} or None
    return (
        replace(result_of(firsts, prefill, numbers, traffic, quantiles), clients=means),
        result_of(seconds, decode, numbers, traffic, quantiles),
    )


def _sent(
    traffic: Traffic, decode: PoolEngines, seed: int, requests: int
) -> tuple[Run, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The requests of a run that a decode replica can hold: their prompts, outputs and cached tokens."""
    run = Run()
    batches: list[RequestBatch] = []
    for batch in traffic.batches(np.random.Generator(np.random.PCG64(seed))):
        held = batch.input_tokens + batch.output_tokens - 1
        fits = (batch.output_tokens == 1) | (held <= decode.kv_tokens)
        run.rejected += int(held.size - fits.sum())
        batches.append(batch.select(fits))
        run.extend(batches[-1])
        if run.sent + run.rejected >= requests:
            break
    inputs, outputs, cached = (
        np.concatenate([getattr(b, name) for b in batches])
        for name in ("input_tokens", "output_tokens", "cached_tokens")
    )
    return run, inputs, outputs, cached


def _run(
    traffic: Traffic,
    prefill: PoolEngines,
    decode: PoolEngines,
    transfer_s: Transfer,
    seed: int,
    requests: int,
    progress: Callable[[float], None],
) -> tuple[Run, Run]:
    """One seed where everybody waits: the same requests as the two pools see them, one pool after the other."""
    first, inputs, outputs, cached = _sent(traffic, decode, seed, requests)
    second = Run()
    router = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1])))
    every = max(first.sent // LOOKS, 1)
    _prefilled(first, RequestTable(inputs.tolist(), outputs.tolist(), cached.tolist()), prefill, router, every)

    moving = np.flatnonzero(outputs > 1)
    arrives = first.first[moving] + transfer_s(inputs[moving].astype(np.float64))
    order = moving[np.argsort(arrives, kind="stable")]
    arrives = np.sort(arrives, kind="stable")
    held = (inputs[order] + 1).tolist()
    table = RequestTable(held, (outputs[order] - 1).tolist(), [SUPPLIED] * len(held))
    pool = decode_replicas(decode, table)

    def look_again(now: float, sent: int) -> bool:
        if now < math.inf:
            second.marks.append((now, sum(r.busy_s for r in pool), sum(r.resident_s for r in pool)))
        progress(min(sent / max(order.size, 1), 1.0))
        return False

    drive(pool, arrives.tolist(), decode.routing, router, decode.slots, look_again, every)
    first.done = first.first.copy()
    first.done[order] = np.array(list(table.done))
    _same_requests(second, first)
    second.started = (arrives, np.array(list(table.done)))
    second.preemptions = sum(r.preemptions for r in pool)
    return first, second


def _same_requests(second: Run, first: Run) -> None:
    """What the decode pool serves are the requests of the prefill pool."""
    second.times, second.first, second.done = first.times, first.first, first.done
    second.outputs, second.counted, second.rejected = first.outputs, first.counted, first.rejected


def iteration_of(engines: PoolEngines) -> IterationModel:
    """The iteration-time model of engines that have one."""
    assert isinstance(engines.iteration, IterationModel)
    return engines.iteration


def decode_replicas(decode: PoolEngines, table: RequestTable) -> list[MixedReplica]:
    """Fresh replicas that decode what is prefilled elsewhere: of a request the prompt and the first token are there."""
    return [
        MixedReplica(
            table, iteration_of(decode), decode.slots, math.inf, decode.kv_tokens, shared_prefix=decode.shared_prefix
        )
        for _ in range(decode.replicas)
    ]


def _prefilled(run: Run, table: RequestTable, prefill: PoolEngines, router: np.random.Generator, every: int) -> None:
    """First tokens of all requests, where everybody waits."""
    nodes = [PrefillReplica(table, iteration_of(prefill)) for _ in range(prefill.replicas)]

    def look(now: float, sent: int) -> bool:
        if now < math.inf:
            run.marks.append((now, sum(n.busy_s for n in nodes), sum(n.resident_s for n in nodes)))
        return False

    drive(nodes, run.times.tolist(), prefill.routing, router, look=look, every=every)
    run.first = np.array(list(table.first))


def _together(
    traffic: Traffic,
    prefill: PoolEngines,
    decode: PoolEngines,
    transfer_s: Transfer,
    seed: int,
    requests: int,
    rules: ClientRules,
    coming_back: ComingBack | None,
    progress: Callable[[float], None],
) -> tuple[Run, Run, Mapping[str, float]]:
    """One seed where clients have rules or come back: both pools advance together, an answer may bring the next call.

    A prefill node is a replica of mixed batching with one slot and requests of one token: an iteration is one whole prompt.
    """
    assert isinstance(prefill.iteration, IterationModel)
    first, second = Run(), Run()
    if coming_back is None:
        first, inputs, outputs, cached = _sent(traffic, decode, seed, requests)
        count, until = first.sent, math.inf
        span = float(first.times[-1])
        calls = Calls(
            list(zip(first.times.tolist(), range(count), strict=True)),
            inputs.tolist(),
            outputs.tolist(),
            [-1] * count,
            [0] * count,
            [-1] * count,
            [0.0] * count,
            cached.tolist(),
        )
    else:
        calls, span = session_calls(coming_back.fitting(decode.kv_tokens), coming_back.rate_per_s, requests, seed)
        until = span
    router = Router(
        find_routing(decode.routing),
        decode.replicas,
        np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1]))),
    )
    onward = _Decodes(decode, calls, transfer_s, router)
    found = run_clients(
        replace(calls, output_tokens=[1] * len(calls.input_tokens)),
        rules,
        prefill.iteration,
        replicas=prefill.replicas,
        slots=1,
        token_budget=UNLIMITED_BUDGET,
        kv_tokens=math.inf if coming_back is None else prefill.kv_tokens,
        routing=prefill.routing,
        cache=None if coming_back is None else coming_back.cache,
        seed=seed,
        until_s=until,
        progress=progress,
        onward=onward,
    )
    _answered(first, found, calls)
    end = float(np.nanmax(first.done, initial=span)) if until == math.inf else span
    first.marks = [(0.0, 0.0, 0.0), (end, found.busy_s, found.resident_s)]
    _same_requests(second, first)
    pool = onward.replicas
    second.marks = [(0.0, 0.0, 0.0), (end, sum(r.busy_s for r in pool), sum(r.resident_s for r in pool))]
    second.started = onward.started()
    second.preemptions = sum(r.preemptions for r in pool)
    return first, second, account(found, calls, span)


def _answered(first: Run, found: ClientRun, calls: Calls) -> None:
    """Into the first pool's run, the requests that went through: neither refused nor given up."""
    columns = found.columns()
    lost = np.zeros(columns["call"].size, dtype=bool)
    lost[found.rejected] = lost[found.given_up] = True
    through = np.flatnonzero(~lost)
    first.rejected += int(lost.sum())
    first.times, first.first, first.done = (columns[name][through] for name in ("sent_s", "first_s", "done_s"))
    first.outputs = np.array(calls.output_tokens, dtype=np.int32)[columns["call"][through].astype(np.int64)]
    first.counted = np.ones(through.size, dtype=np.bool_)


class _Decodes:
    """The decode pool behind prefill replicas with clients; see :class:`planner.simulate.clients.Onward`.

    Parameters
    ----------
    decode, router
        Its replicas and its gateway.
    calls
        Lengths by call.
    transfer_s
        Time to move the KV cache of prompts [s] by their lengths [tokens].
    """

    def __init__(self, decode: PoolEngines, calls: Calls, transfer_s: Transfer, router: Router) -> None:
        self.calls, self.router = calls, router
        self.moves = transfer_s(np.array(calls.input_tokens, dtype=np.float64)).tolist()
        self.table = RequestTable.live()
        self.replicas = decode_replicas(decode, self.table)
        self.moving: list[tuple[float, int, int]] = []  # heap of (arrival here [s], attempt, call)
        self.attempts: list[int] = []  # by the order of their arrival
        self.arrived: list[float] = []
        self.done: list[float] = []

    @property
    def now(self) -> float:
        """When something happens here next [s]; inf = nothing."""
        return min(self.moving[0][0] if self.moving else math.inf, soonest(self.replicas)[1])

    def take(self, attempt: int, call: int, now: float) -> None:
        """The first token of an attempt is out: its KV cache travels, unless that was all."""
        several = self.calls.output_tokens[call] > 1
        heappush(self.moving, (now + (self.moves[call] if several else 0.0), attempt, call))

    def advance(self) -> list[tuple[int, float]]:
        """What happens next; the attempts that are complete with it, and when their last token came [s]."""
        here, boundary = soonest(self.replicas)
        if here >= 0 and not (self.moving and self.moving[0][0] < boundary):
            self.replicas[here].run(boundary)
            numbers, _, done = self.table.take_complete()
            self.replicas[here].run(math.nextafter(boundary, math.inf))
            self.done += done
            return [(self.attempts[n], end) for n, end in zip(numbers, done, strict=True)]
        now, attempt, call = heappop(self.moving)
        output = self.calls.output_tokens[call]
        if output == 1:
            return [(attempt, now)]
        number = len(self.attempts)
        self.attempts.append(attempt)
        self.arrived.append(now)
        self.table.add(number, [self.calls.input_tokens[call] + 1], [output - 1], [SUPPLIED])
        assert isinstance(self.table.first, dict)
        self.table.first[number] = now
        self.replicas[self.router.choose(self.replicas, now)].enqueue(number, now)
        return []

    def started(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """When requests came and when they were through, in the order in which they came, NaN = not yet [s]."""
        done = np.full(len(self.arrived), math.nan)
        done[: len(self.done)] = self.done
        return np.array(self.arrived), done


class PrefillReplica:
    """One whole prompt per iteration, first come first served: when each ends is known when it arrives.

    Parameters
    ----------
    table
        Lengths of all requests; times of first tokens are written here.
    model
        Iteration-time model.
    """

    def __init__(self, table: RequestTable, model: IterationModel) -> None:
        self.table, self.model = table, model
        self.ends: deque[tuple[float, int]] = deque()  # end of its iteration [s], request
        self.last = 0.0
        self.held = 0.0
        self.busy_s = self.resident_s = 0.0

    @property
    def now(self) -> float:
        """End of the running iteration [s]."""
        return self.ends[0][0] if self.ends else self.last

    @property
    def asleep(self) -> bool:
        """Whether nobody is here."""
        return not self.ends

    @property
    def in_system(self) -> int:
        """Requests in their prefill or waiting for it."""
        return len(self.ends)

    def held_at(self, time: float) -> float:
        """Prompt tokens here [tokens]."""
        return self.held

    def enqueue(self, request: int, time: float) -> None:
        """A request arrives."""
        prompt, past = self.table.input_tokens[request], self.table.cached_tokens[request]
        new = prompt - past
        duration = self.model.time(0, 0.0, new, new * (past + (new + 1) / 2))
        self.last = max(self.last, time) + duration
        self.ends.append((self.last, request))
        self.held += prompt
        self.busy_s += duration
        self.resident_s += duration
        self.table.first[request] = self.last

    def run(self, until: float) -> None:
        """Let those go whose iteration has ended."""
        while self.ends and self.ends[0][0] <= until:
            self.held -= self.table.input_tokens[self.ends.popleft()[1]]
