"""Simulates one pool of replicas, or a prefill and a decode pool: requests are drawn or laid, replayed, and measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from planner.errors import InputError, refuse_unknown
from planner.papers.measure import Played, SimulationResult, result_of
from planner.papers.presets import BY_PYTHON, PoolEngines
from planner.papers.traffic import Traffic, seeds_of
from planner.predict.records import Decoders, Floats, PrefixCache, Replicas, Requests, Run
from planner.predict.run import replay
from planner.workload.sending import Clients

Transfer = Callable[[Floats], Floats]
"""Time to move the KV cache of prompts [s] by their lengths [tokens]."""

PROGRAMS = ("kernel", "python")
"""Programs that replay: the compiled one (Python where it cannot be had), and the reference in Python."""


def simulate(
    traffic: Traffic,
    engines: PoolEngines,
    behind: tuple[PoolEngines, Transfer] | None = None,
    *,
    seeds: int | Sequence[int] = 1,
    quantiles: Sequence[float] = (0.5, 0.9, 0.99),
    clients: Clients | None = None,
    cache: PrefixCache | None = None,
    program: str = "kernel",
    helps_at: float = math.inf,
    progress: Callable[[float], None] | None = None,
) -> tuple[SimulationResult, ...]:
    """Simulate a pool of replicas, or a prefill and a decode pool, iteration by iteration.

    Parameters
    ----------
    traffic
        Its requests.
    engines
        Its replicas and its gateway; where they prefill alone, slots and token budget play no part, and memory only as a cache.
    behind
        The decode pool behind it, and how long KV caches take there; ``None`` = none. Transfers do not delay each other.
    seeds
        Number of runs, or their seeds.
    quantiles
        Shares in (0, 1).
    clients
        What clients and doors do; ``None`` = everybody waits.
    cache
        Where prompts of sessions are kept; ``None`` = nowhere. Doors and caches are those of the prefill replicas.
    program
        One of :data:`PROGRAMS`.
    helps_at
        Waiting prompts from which on the decode pool computes new ones, see :class:`planner.predict.records.Decoders`.
    progress
        Called with the share of the work done.

    Returns
    -------
    tuple of SimulationResult
        Of each pool: quantiles with intervals; `stable` is False where it cannot keep up. `clients` says what became of all
        attempts. Of two pools the same requests twice, with busy time and stability of each: TTFT ends with the first token,
        which the prefill pool emits; TPOT contains the transfer and the wait for a decode slot.

    Raises
    ------
    InputError
        Shares outside (0, 1); replicas that hold no request of the traffic; an unknown program.
    """
    if wrong := [q for q in quantiles if not 0.0 < q < 1.0]:
        raise InputError(f"quantiles: {wrong[0]!r} does not lie in (0, 1)")
    numbers, follow = seeds_of(seeds), _program(engines, program)
    # what clients met is not told where all they do is to hold requests back
    told = cache is not None or (clients is not None and clients != Clients(in_flight=clients.in_flight))
    pools = [engines] if behind is None else [engines, behind[0]]
    played: list[list[Played]] = [[] for _ in pools]
    for position, seed in enumerate(numbers):
        sent = traffic(seed)
        outputs = sent.requests.output_tokens
        if behind is None:
            sent = replace(sent, requests=_in_steps(engines, sent.requests, seed))
            first, decoders = engines.pool(sent.replicas or None), None
            _check_fits(sent.requests, first)
        else:
            first = replace(engines.pool(), engine="prefill", kv_tokens=engines.kv_tokens if cache else math.inf)
            decoders = Decoders(behind[0].pool(), np.asarray(behind[1](sent.requests.input_tokens)), helps_at)
        run = follow(sent.requests, first, _held_to(clients, first.count / engines.count), cache, decoders)
        own = slice(None if decoders is None else first.count)
        played[0].append(Played(sent, run, outputs, own, first.count, told))
        if decoders is not None:
            others = slice(first.count, None)
            played[1].append(Played(sent, run, outputs, others, decoders.replicas.count, decodes=True))
        if progress is not None:
            progress((position + 1) / len(numbers))
    return tuple(result_of(p, pool, numbers, quantiles) for p, pool in zip(played, pools, strict=True))


def _held_to(clients: Clients | None, part: float) -> Clients | None:
    """The clients of a part of the replicas."""
    if clients is None or part == 1.0 or math.isinf(clients.in_flight):
        return clients
    return replace(clients, in_flight=max(math.floor(clients.in_flight * part), 1))


def _program(engines: PoolEngines, name: str) -> Callable[..., Run]:
    """What replays."""
    refuse_unknown("verify_with:", name, PROGRAMS)
    if name == "kernel" and engines.preset != BY_PYTHON:
        return replay
    from planner.predict import reference

    return reference.replay


def _check_fits(requests: Requests, replicas: Replicas) -> None:
    """Refuse runs of nobody, and replicas none of which can ever hold any of the requests."""
    if not requests.size:
        raise InputError(
            "requests: so few end before the first of the flash crowds", "Simulate more of them (--requests)."
        )
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
    unit = engines.speculation.tokens_per_step
    inputs = np.maximum(np.rint(requests.input_tokens / unit), 1.0)
    rng = np.random.Generator(np.random.PCG64([seed, 1]))
    steps = engines.speculation.draw_steps(requests.output_tokens - 1.0, rng).astype(np.float64)
    return replace(
        requests,
        input_tokens=inputs,
        output_tokens=steps + 1.0,
        cached_tokens=np.minimum(np.rint(requests.cached_tokens / unit), inputs - 1.0),
    )
