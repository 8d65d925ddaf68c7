"""A server that batches by iterations, in plain Python: the reference that the closed forms of queueing/ are held to.

Rules. Requests enter slots only between iterations; an idle replica starts at the arrival. With `prefill_per_token` = 0
every slot in prefill advances one chunk per iteration and t = W + H n over all active slots; the first token comes one
iteration after the last chunk. With `prefill_per_token` > 0 one budget of `chunk` prompt tokens per iteration goes first
come first served to the slots in prefill, t = W + H (decoding slots) + P (prompt tokens); the first token comes with the
last chunk. Routing: random, round robin, join the shortest queue (fewest in the replica, its queue included), or one
central queue (the emptiest replica with a free slot, else wait).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Served:
    """What one run measured: arrays over the requests after the warm-up, and the mean busy slots / slots."""

    ttft: np.ndarray
    tpot: np.ndarray
    e2e: np.ndarray
    slot_occupancy: float


def serve(
    arrivals: np.ndarray,
    input_tokens: np.ndarray,
    output_tokens: np.ndarray,
    *,
    fixed_time: float,
    time_per_slot: float,
    slots: int,
    chunk: float,
    replicas: int = 1,
    routing: str = "random",
    prefill_per_token: float = 0.0,
    seed: int = 0,
    warm: float = 0.1,
) -> Served:
    """Serve requests that arrive at `arrivals` (sorted); times in the unit of `fixed_time`."""
    count = len(arrivals)
    shared = prefill_per_token > 0
    rng = np.random.default_rng(seed)
    dealt = rng.integers(replicas, size=count) if routing == "random" else np.arange(count) % replicas
    ties = rng.random(count)
    chunks = np.maximum(np.ceil(input_tokens / chunk), 1).astype(int).tolist()
    outputs = np.maximum(output_tokens, 1).astype(int).tolist()
    prompts = np.asarray(input_tokens, dtype=float).tolist()
    when = np.asarray(arrivals, dtype=float).tolist()

    ends: list[list[float]] = [[] for _ in range(replicas)]  # end of each replica's iterations
    leaving: list[list[tuple[int, int]]] = [[] for _ in range(replicas)]  # (last iteration, request)
    prefilling: list[deque[list[float]]] = [deque() for _ in range(replicas)]
    queues: list[deque[int]] = [deque() for _ in range(replicas + 1)]
    held = [0] * replicas
    decoding = [0] * replicas
    running = [False] * replicas
    where = np.zeros(count, dtype=int)
    first = np.zeros(count, dtype=int)
    last = np.zeros(count, dtype=int)
    events: list[tuple[float, int]] = []

    def begin(r: int, now: float) -> None:
        for queue in (queues[r], queues[replicas]):
            while queue and held[r] < slots:
                i = queue.popleft()
                held[r] += 1
                where[i] = r
                if shared:
                    prefilling[r].append([prompts[i], i])
                else:
                    now_at = len(ends[r])
                    first[i] = now_at + chunks[i]
                    last[i] = first[i] + outputs[i] - 1
                    heapq.heappush(leaving[r], (int(last[i]), i))
        if held[r] == 0:
            running[r] = False
            return
        if shared:
            budget, taken = chunk, 0.0
            for part in prefilling[r]:
                taken += min(part[0], budget - taken)
                if taken >= budget:
                    break
            duration = fixed_time + time_per_slot * decoding[r] + prefill_per_token * taken
        else:
            duration = fixed_time + time_per_slot * held[r]
        running[r] = True
        heapq.heappush(events, (now + duration, r))

    def finish(r: int, now: float) -> None:
        index = len(ends[r])
        ends[r].append(now)
        while leaving[r] and leaving[r][0][0] <= index:
            heapq.heappop(leaving[r])
            held[r] -= 1
            decoding[r] -= 1
        if shared:
            budget = chunk
            while prefilling[r] and budget > 0:
                part = prefilling[r][0]
                used = min(part[0], budget)
                part[0] -= used
                budget -= used
                if part[0] <= 0:
                    i = int(part[1])
                    prefilling[r].popleft()
                    first[i] = index
                    last[i] = index + outputs[i] - 1
                    if outputs[i] > 1:
                        decoding[r] += 1
                        heapq.heappush(leaving[r], (int(last[i]), i))
                    else:
                        held[r] -= 1

    start_at = int(warm * count)
    area, before, measured_from = 0.0, 0.0, when[start_at]
    total = 0
    for i in range(count):
        while events and events[0][0] <= when[i]:
            now, r = heapq.heappop(events)
            if now > measured_from:
                area += total * (now - max(before, measured_from))
            before = now
            total -= held[r]
            finish(r, now)
            begin(r, now)
            total += held[r]
        now = when[i]
        if now > measured_from:
            area += total * (now - max(before, measured_from))
        before = now
        if routing in ("random", "rr"):
            r = int(dealt[i])
        else:
            sizes = [held[k] + len(queues[k]) for k in range(replicas)]
            fewest = min(sizes)
            if routing == "central" and fewest >= slots:
                r = replicas
            else:
                least = [k for k in range(replicas) if sizes[k] == fewest]
                r = least[int(ties[i] * len(least))]
        queues[r].append(i)
        if r < replicas and not running[r]:
            begin(r, now)
            total += held[r]
    busy = area / (when[-1] - measured_from) / (slots * replicas)
    while events:
        now, r = heapq.heappop(events)
        finish(r, now)
        begin(r, now)

    times = [np.array(e) for e in ends]
    first_at = np.array([times[where[i]][first[i]] for i in range(start_at, count)])
    last_at = np.array([times[where[i]][last[i]] for i in range(start_at, count)])
    came = np.asarray(arrivals[start_at:], dtype=float)
    gaps = np.array(outputs[start_at:]) - 1
    some = gaps > 0
    return Served(first_at - came, ((last_at - first_at)[some] / gaps[some]), last_at - came, busy)


def draw(law: tuple, size: int, rng: np.random.Generator) -> np.ndarray:
    """Lengths of a named law: (lognormal, mean, scv, cap), (geometric, mean), (constant, value), (two, p, low, high)."""
    kind, *values = law
    if kind == "lognormal":
        mean, scv, cap = values
        sigma = math.sqrt(math.log1p(scv))
        return np.clip(np.ceil(rng.lognormal(math.log(mean) - 0.5 * sigma**2, sigma, size)), 1, cap)
    if kind == "geometric":
        return rng.geometric(1.0 / values[0], size).astype(float)
    if kind == "constant":
        return np.full(size, float(values[0]))
    if kind == "two":
        share, low, high = values
        return np.where(rng.random(size) < share, float(high), float(low))
    raise ValueError(f"law {kind!r} is not known")
