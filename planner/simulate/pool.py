"""Simulates one pool of replicas, or a prefill and a decode pool: requests are drawn or laid, replayed, and measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from planner.errors import InputError
from planner.predict.records import Decoders, Floats, PrefixCache, Replicas, Requests, Run
from planner.predict.run import replay
from planner.simulate.measure import Played, SimulationResult, result_of
from planner.simulate.presets import PoolEngines
from planner.simulate.traffic import Traffic, seeds_of
from planner.workload.sending import Clients

Transfer = Callable[[Floats], Floats]
"""Time to move the KV cache of prompts [s] by their lengths [tokens]."""

PROGRAMS = ("kernel", "python")
"""Programs that replay: the compiled one (Python where it cannot be had), and the reference in Python."""


def simulate(
    traffic: Traffic,
    engines: PoolEngines,
    *,
    seeds: int | Sequence[int] = 1,
    quantiles: Sequence[float] = (0.5, 0.9, 0.99),
    clients: Clients | None = None,
    cache: PrefixCache | None = None,
    program: str = "kernel",
    progress: Callable[[float], None] | None = None,
) -> SimulationResult:
    """Simulate a pool of replicas iteration by iteration.

    Parameters
    ----------
    traffic
        Its requests.
    engines
        Its replicas and its gateway.
    seeds
        Number of runs, or their seeds.
    quantiles
        Shares in (0, 1).
    clients
        What clients and doors do; ``None`` = everybody waits.
    cache
        Where prompts of sessions are kept; ``None`` = nowhere.
    program
        One of :data:`PROGRAMS`.
    progress
        Called with the share of the work done.

    Returns
    -------
    SimulationResult
        Quantiles with intervals; `stable` is False where the pool cannot keep up. `clients` says what became of all attempts.

    Raises
    ------
    InputError
        Shares outside (0, 1); replicas that hold no request of the traffic; an unknown program.
    """
    numbers, follow = _checked(seeds, quantiles), _program(engines, program)
    played = []
    for position, seed in enumerate(numbers):
        sent = traffic.sent(seed)
        outputs = sent.requests.output_tokens
        sent = replace(sent, requests=_in_steps(engines, sent.requests, seed))
        replicas = engines.pool(sent.replicas or None)
        _check_fits(sent.requests, replicas)
        run = follow(sent.requests, replicas, _held_to(clients, replicas.count / engines.replicas), cache)
        played.append(Played(sent, run, outputs, slice(None), replicas.count, _told(clients, cache)))
        if progress is not None:
            progress((position + 1) / len(numbers))
    return result_of(played, engines, numbers, traffic, quantiles)


def simulate_pair(
    traffic: Traffic,
    prefill: PoolEngines,
    decode: PoolEngines,
    transfer_s: Transfer,
    *,
    seeds: int | Sequence[int] = 1,
    quantiles: Sequence[float] = (0.5, 0.9, 0.99),
    clients: Clients | None = None,
    cache: PrefixCache | None = None,
    program: str = "kernel",
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
    seeds, quantiles, clients, cache, program, progress
        As for :func:`simulate`; doors and caches are those of the prefill replicas.

    Returns
    -------
    tuple
        The same requests twice, with busy time and stability of the prefill and of the decode pool. TTFT ends with the first
        token, which the prefill pool emits; TPOT contains the transfer and the wait for a decode slot.
    """
    numbers, follow = _checked(seeds, quantiles), _program(prefill, program)
    first = replace(prefill.pool(), engine="prefill")
    if cache is None:
        first = replace(first, kv_tokens=math.inf)
    second = decode.pool()
    pools: tuple[list[Played], list[Played]] = ([], [])
    for position, seed in enumerate(numbers):
        sent = traffic.sent(seed)
        requests = sent.requests
        run = follow(requests, first, clients, cache, Decoders(second, np.asarray(transfer_s(requests.input_tokens))))
        both = sent, run, requests.output_tokens
        pools[0].append(Played(*both, slice(first.count), first.count, _told(clients, cache)))
        pools[1].append(Played(*both, slice(first.count, None), second.count, decodes=True))
        if progress is not None:
            progress((position + 1) / len(numbers))
    return (
        result_of(pools[0], prefill, numbers, traffic, quantiles),
        result_of(pools[1], decode, numbers, traffic, quantiles),
    )


def _checked(seeds: int | Sequence[int], quantiles: Sequence[float]) -> tuple[int, ...]:
    """The seeds of the runs; refuses shares that are none."""
    if wrong := [q for q in quantiles if not 0.0 < q < 1.0]:
        raise InputError(f"quantiles: {wrong[0]!r} does not lie in (0, 1)")
    return seeds_of(seeds)


def _held_to(clients: Clients | None, part: float) -> Clients | None:
    """The clients of a part of the replicas."""
    if clients is None or part == 1.0 or math.isinf(clients.in_flight):
        return clients
    return replace(clients, in_flight=max(math.floor(clients.in_flight * part), 1))


def _told(clients: Clients | None, cache: PrefixCache | None) -> bool:
    """Whether it is told what clients met: not where all they do is to hold requests back."""
    return cache is not None or (clients is not None and clients != Clients(in_flight=clients.in_flight))


def _program(engines: PoolEngines, name: str) -> Callable[..., Run]:
    """What replays."""
    if name not in PROGRAMS:
        raise InputError(f"verify_with: {name!r} is not known", f"Use {' or '.join(PROGRAMS)}.")
    if name == "kernel" and not engines.rules.by_python:
        return replay
    from planner.predict import reference

    return reference.replay


def _check_fits(requests: Requests, replicas: Replicas) -> None:
    """Refuse replicas none of which can ever hold any of the requests."""
    smallest = float((requests.input_tokens + requests.output_tokens).min()) - 1.0
    if math.ceil(smallest / replicas.block) * replicas.block > replicas.kv_tokens:
        raise InputError(
            f"no request fits: the smallest needs {smallest:,.0f} tokens of KV memory, a replica has {replicas.kv_tokens:,.0f}",
            "Give the replica more GPUs (tensor parallelism) or more memory.",
        )


def _in_steps(engines: PoolEngines, requests: Requests, seed: int) -> Requests:
    """Lengths as the replicas count them: tokens, or what a step of speculative decoding yields; the steps are drawn."""
    if engines.speculation is None:
        return requests
    unit = engines.tokens_per_step
    inputs = np.maximum(np.rint(requests.input_tokens / unit), 1.0)
    rng = np.random.Generator(np.random.PCG64([seed, 1]))
    steps = engines.speculation.draw_steps(requests.output_tokens - 1.0, rng).astype(np.float64)
    return replace(
        requests,
        input_tokens=inputs,
        output_tokens=steps + 1.0,
        cached_tokens=np.minimum(np.rint(requests.cached_tokens / unit), inputs - 1.0),
    )
