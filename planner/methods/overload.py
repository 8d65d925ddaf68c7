"""What a pool's replicas do beyond their capacity: the queue's limit, clients that give up and try again."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from planner.iteration.model import IterationModel
from planner.queueing.abandonment import PromptsInIterations, WholePrompts, grouped
from planner.queueing.overload import Door, Overload, OverloadedReplica
from planner.queueing.reuse import own_tokens
from planner.workload.pools import PoolLaw

LOADS = (0.8, 1.0, 1.2, 1.5, 2.0, 3.0)
"""Loads of the table, over capacity [1]."""


def overloaded_replica(
    law: PoolLaw,
    iteration: IterationModel,
    slots: int,
    token_budget: float,
    kv_tokens: float,
    capacity_per_s: float,
    shared_prefix: float = 0.0,
) -> OverloadedReplica:
    """A replica of a pool near and beyond its capacity, from the requests it gets and its iterations.

    Parameters
    ----------
    law, iteration, slots, token_budget, kv_tokens
        Requests, iteration times and limits of the engine.
    capacity_per_s
        Its largest stable rate [1/s].
    shared_prefix
        Tokens that begin every longer prompt and are kept once [tokens].
    """
    inputs, outputs, cached = law.input_tokens, law.output_tokens, law.cached_share
    new, decodes = (1.0 - cached) * inputs, np.maximum(outputs - 1.0, 0.0)
    mean = law.weight
    held = float(mean @ (inputs + 0.5 * outputs))
    # as many as slots, memory and the time they have allow
    steps_alone = float(mean @ decodes) + 1.0
    own = float(mean @ (own_tokens(inputs, shared_prefix) + 0.5 * outputs))
    most = running = min(float(slots), (kv_tokens - shared_prefix) / max(own, 1.0), 0.95 * token_budget)
    for _ in range(8):
        room = max(token_budget - running, 0.05 * token_budget)
        steps = steps_alone + float(mean @ new) / room
        prefill = min(float(mean @ new) * running / steps, room)
        context = float(mean @ (decodes * (inputs + 0.5 * decodes))) / max(float(mean @ decodes), 1e-9)
        full = float(iteration.time(running, running * context, prefill, prefill * (held - 0.5 * prefill)))
        running = min(running, max(capacity_per_s * steps * full, 1.0))
    full = running / (capacity_per_s * steps)
    decode_work = iteration.h * decodes + iteration.g * decodes * (inputs + 0.5 * decodes) + iteration.c * decodes
    pairs = new * (inputs - 0.5 * new)
    prefill_work = (iteration.c + iteration.b) * new + iteration.a * pairs
    base = max(1.0 / capacity_per_s - float(mean @ (decode_work + prefill_work)), 0.0)
    work = decode_work + prefill_work + base * (decodes + 1.0 + new / room) / steps
    prefill_work = prefill_work + base * new / token_budget / steps

    def iteration_s(running: float, context: float, chunk: float, pairs: float) -> float:
        return float(iteration.time(running, context, chunk, pairs))

    kinds = grouped(new, mean, np.maximum(new, 1e-9), decodes, decodes * (inputs + 0.5 * decodes), pairs)
    share, prompts, after, contexts, deep = kinds
    engine = PromptsInIterations(
        iteration_s, token_budget, most, capacity_per_s, steps, prompts, after, contexts, deep, share
    )
    return OverloadedReplica(
        capacity_per_s,
        steps,
        float(iteration.time(1.0, context)),
        full,
        full * (1.5 + float(mean @ new) / room),
        work / float(mean @ work),
        prefill_work / max(float(mean @ prefill_work), 1e-300),
        mean,
        engine.at_its_capacity(),
    )


def overloaded_prefill(service_s: NDArray[np.float64], weight: NDArray[np.float64]) -> OverloadedReplica:
    """A replica that computes whole prompts one after the other, near and beyond its capacity.

    Parameters
    ----------
    service_s, weight
        Time of each prompt [s], and how frequent each is; shape (rows,).
    """
    weight = weight / weight.sum()
    mean = float(weight @ service_s)
    work = service_s / mean
    return OverloadedReplica(1.0 / mean, 1.0, mean, mean, mean, work, work, weight, WholePrompts(service_s, weight))


def door_of(
    max_queue: float,
    max_queued_tokens: float,
    timeout_s: float,
    retries: int,
    mean_prompt: float,
    retry_after_s: float = 1.0,
) -> Door:
    """The limits of a queue in requests: a limit in prompt tokens holds that many mean prompts [tokens]."""
    return Door(min(max_queue, max_queued_tokens / max(mean_prompt, 1.0)), timeout_s, retries, retry_after_s)


def overload_table(replica: OverloadedReplica, door: Door, replicas: int) -> list[dict[str, float]]:
    """A pool from below to far beyond its capacity, one row per load of :data:`LOADS`."""
    rows = []
    for load in LOADS:
        found = replica.at(load * replica.capacity_per_s, door)
        rows.append({"load": load, **overload_row(found, replicas)})
    return rows


def overload_row(found: Overload, replicas: int) -> dict[str, float]:
    """What becomes of the requests of a pool of such replicas."""
    return {
        "demand_per_s": found.demand_per_s * replicas,
        "goodput_per_s": found.goodput_per_s * replicas,
        "answered_share": found.answered_share,
        "rejected_share": found.rejected_share,
        "given_up_share": found.given_up_share,
        "amplification": found.amplification,
        "ttft_mean_s": found.ttft_mean_s if math.isfinite(found.ttft_mean_s) else -1.0,
    }
