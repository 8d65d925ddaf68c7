"""A prefill and a decode pool in a row: prompts are computed here, their KV cache travels, and tokens are decoded there.

Prefill replicas take one whole prompt an iteration, first come first served, and emit the first token; decode replicas follow
the rules of :mod:`planner.simulate.policies.distserve`, run by :class:`planner.simulate.fast.MixedReplica`. Clients wait, give
up and try again at the prefill replicas, which have the doors and send the first token; what is given up never travels.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError
from planner.iteration.model import IterationModel
from planner.replica.engine import UNLIMITED_BUDGET
from planner.simulate.answered import account
from planner.simulate.clients import Calls, ClientRules, run_clients
from planner.simulate.drive import drive
from planner.simulate.fast import MixedReplica
from planner.simulate.measure import Run, result_of
from planner.simulate.pool import LOOKS, STAYS
from planner.simulate.presets import PoolEngines
from planner.simulate.result import SimulationResult
from planner.simulate.tables import RequestTable
from planner.simulate.traffic import RequestBatch, Traffic

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["simulate_pair"]

SUPPLIED = 1 << 60
"""Tokens of a prompt that came with its KV cache: all, whatever was evicted since [tokens]."""

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
    progress: Callable[[float], None] | None = None,
) -> tuple[SimulationResult, SimulationResult]:
    """Simulate a prefill and a decode pool, iteration by iteration.

    Parameters
    ----------
    traffic
        Its requests.
    prefill, decode
        Replicas and gateways of the two pools; of the first, slots, token budget and memory play no part.
    transfer_s
        Time to move the KV cache of prompts [s] by their lengths [tokens]; transfers do not delay each other.
    seeds, quantiles, progress
        As for :func:`planner.simulate.pool.simulate`.
    max_requests
        Requests a run may grow to until it lasts :data:`planner.simulate.pool.STAYS` mean residence times.
    rules
        What clients and the doors of the prefill replicas do; ``None`` = everybody waits. The results then hold the attempts that
        were answered, and `clients` of the first what became of all.

    Returns
    -------
    tuple
        The same requests twice, with busy time and stability of the prefill and of the decode pool. TTFT ends with the first
        token, which the prefill pool emits; TPOT contains the transfer and the wait for a decode slot.
    """
    for engines in (prefill, decode):
        if not isinstance(engines.iteration, IterationModel):
            raise InputError("iteration: a table of durations is for the slots preset only")
    numbers = tuple(range(1, seeds + 1)) if isinstance(seeds, int) else tuple(int(s) for s in seeds)
    firsts, seconds, accounts = [], [], []
    for position, seed in enumerate(numbers):

        def tell(share: float, position: int = position) -> None:
            if progress is not None:
                progress((position + share) / len(numbers))

        requests = traffic.requests
        while True:
            first, second, counted = _run(traffic, prefill, decode, transfer_s, seed, requests, rules, tell)
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


def _run(
    traffic: Traffic,
    prefill: PoolEngines,
    decode: PoolEngines,
    transfer_s: Transfer,
    seed: int,
    requests: int,
    rules: ClientRules | None,
    progress: Callable[[float], None],
) -> tuple[Run, Run, Mapping[str, float]]:
    """One seed: the same requests as the two pools see them, and what became of all attempts where clients have rules."""
    first, second = Run(), Run()
    batches: list[RequestBatch] = []
    for batch in traffic.batches(np.random.Generator(np.random.PCG64(seed))):
        held = batch.input_tokens + batch.output_tokens - 1
        fits = (batch.output_tokens == 1) | (held <= decode.kv_tokens)
        first.rejected += int(held.size - fits.sum())
        batches.append(batch.select(fits))
        first.extend(batches[-1])
        if first.sent + first.rejected >= requests:
            break
    inputs, outputs, cached = (
        np.concatenate([getattr(b, name) for b in batches])
        for name in ("input_tokens", "output_tokens", "cached_tokens")
    )
    router = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1])))
    every = max(first.sent // LOOKS, 1)
    assert isinstance(prefill.iteration, IterationModel) and isinstance(decode.iteration, IterationModel)
    counted: Mapping[str, float] = {}
    if rules is None:
        _prefilled(first, RequestTable(inputs.tolist(), outputs.tolist(), cached.tolist()), prefill, router, every)
    else:
        call, counted = _answered(first, inputs, cached, prefill, rules, seed)
        inputs, outputs = inputs[call], outputs[call]
        first.outputs, first.counted = outputs, np.ones(call.size, dtype=np.bool_)

    moving = np.flatnonzero(outputs > 1)
    arrives = first.first[moving] + transfer_s(inputs[moving].astype(np.float64))
    order = moving[np.argsort(arrives, kind="stable")]
    arrives = np.sort(arrives, kind="stable")
    table = decode_table(inputs[order], outputs[order])
    pool = decode_replicas(decode, table)

    def look_again(now: float, sent: int) -> bool:
        if now < math.inf:
            second.marks.append((now, sum(r.busy_s for r in pool), sum(r.resident_s for r in pool)))
        progress(min(sent / max(order.size, 1), 1.0))
        return False

    drive(pool, arrives.tolist(), decode.routing, router, decode.slots, look_again, every)
    first.done = first.first.copy()
    first.done[order] = np.array(list(table.done))
    second.times, second.first, second.done = first.times, first.first, first.done
    second.outputs, second.counted, second.rejected = first.outputs, first.counted, first.rejected
    second.started = (arrives, np.array(list(table.done)))
    second.preemptions = sum(r.preemptions for r in pool)
    return first, second, counted


def _prefilled(run: Run, table: RequestTable, prefill: PoolEngines, router: np.random.Generator, every: int) -> None:
    """First tokens of all requests, where everybody waits."""
    assert isinstance(prefill.iteration, IterationModel)
    nodes = [PrefillReplica(table, prefill.iteration) for _ in range(prefill.replicas)]

    def look(now: float, sent: int) -> bool:
        if now < math.inf:
            run.marks.append((now, sum(n.busy_s for n in nodes), sum(n.resident_s for n in nodes)))
        return False

    drive(nodes, run.times.tolist(), prefill.routing, router, look=look, every=every)
    run.first = np.array(list(table.first))


def _answered(
    run: Run, inputs: NDArray[np.int64], cached: NDArray[np.int64], prefill: PoolEngines, rules: ClientRules, seed: int
) -> tuple[NDArray[np.int64], Mapping[str, float]]:
    """First tokens of the attempts that got one in time, which call each was, and what became of all.

    A prefill node is a replica of mixed batching with one slot and requests of one token: an iteration is one whole prompt.
    """
    assert isinstance(prefill.iteration, IterationModel)
    count = run.sent
    calls = Calls(
        list(zip(run.times.tolist(), range(count), strict=True)),
        inputs.tolist(),
        [1] * count,
        [-1] * count,
        [0] * count,
        [-1] * count,
        [0.0] * count,
        cached.tolist(),
    )
    found = run_clients(
        calls,
        rules,
        prefill.iteration,
        replicas=prefill.replicas,
        slots=1,
        token_budget=UNLIMITED_BUDGET,
        routing=prefill.routing,
        cache=None,
        seed=seed,
    )
    columns = found.columns()
    kept = np.flatnonzero(~np.isnan(columns["first_s"]))
    span = run.times[-1]
    run.rejected += columns["call"].size - kept.size
    run.times, run.first = columns["sent_s"][kept], columns["first_s"][kept]
    run.marks = [
        (0.0, 0.0, 0.0),
        (float(np.max(columns["done_s"][kept], initial=span)), found.busy_s, found.resident_s),
    ]
    return columns["call"][kept].astype(np.int64), account(found, calls, span)


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


def decode_table(inputs: NDArray[np.int64], outputs: NDArray[np.int64]) -> RequestTable:
    """Requests as decode replicas see them: the prompt and the first token are there, the other tokens are to come."""
    held = (inputs + 1).tolist()
    return RequestTable(held, (outputs - 1).tolist(), [SUPPLIED] * len(held))


def decode_replicas(decode: PoolEngines, table: RequestTable) -> list[MixedReplica]:
    """Fresh replicas that decode what is prefilled elsewhere."""
    assert isinstance(decode.iteration, IterationModel)
    return [
        MixedReplica(
            table, decode.iteration, decode.slots, math.inf, decode.kv_tokens, shared_prefix=decode.shared_prefix
        )
        for _ in range(decode.replicas)
    ]
