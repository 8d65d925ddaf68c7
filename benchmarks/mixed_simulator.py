"""Iteration-level simulator of a pool of mixed-batching engines, to hold the closed forms of `planner.queueing.mixed.replica` to.

Rules: decodes first, one token each; the rest of the token budget goes to prefill, first come first served, a prompt
begun before goes first; a waiting request is admitted while fewer than `slots` run and its whole prompt fits in the KV
memory; out of memory, the newest running request is preempted and computed again (front of the queue). KV memory is
counted in tokens. An iteration costs O(log running): decodes are kept as the iteration at which they end.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass
class _Replica:
    waiting: deque[int] = field(default_factory=deque)
    ends: list[tuple[int, int]] = field(default_factory=list)  # (iteration at whose end it leaves, request)
    begun: dict[int, tuple[int, float]] = field(default_factory=dict)  # request -> (iteration, context then)
    order: list[int] = field(default_factory=list)  # running requests, oldest first
    partial: int = -1
    done: float = 0.0  # tokens of the partial prompt already computed
    iteration: int = 0
    contexts: float = 0.0
    memory: float = 0.0
    finished: list[int] = field(default_factory=list)


def simulate(
    cost: Mapping[str, float],
    prompts: np.ndarray,
    outputs: np.ndarray,
    arrivals: np.ndarray,
    *,
    budget: int,
    slots: int,
    kv_tokens: float,
    replicas: int = 1,
    routing: str = "random",
    seed: int = 0,
) -> dict[str, np.ndarray | float]:
    """TTFT and end of every request [s], mean decodes per replica, preemptions per request.

    `cost` holds t0, w, b, c, h, g, a (SI) of the iteration-time model.
    """
    rng = np.random.default_rng(seed)
    t0, w, b, c, h, g, a = (cost[k] for k in ("t0", "w", "b", "c", "h", "g", "a"))
    count = len(arrivals)
    length, steps = prompts.tolist(), (outputs - 1).tolist()
    made = [0] * count  # decode steps made before the last preemption
    fresh = [True] * count
    first, last = np.full(count, np.nan), np.full(count, np.nan)
    pool = [_Replica() for _ in range(replicas)]
    busy: list[tuple[float, int]] = []
    running_at = [False] * replicas
    choice = rng.integers(replicas, size=count).tolist()
    area, preempted, position = 0.0, 0, 0
    arrive = arrivals.tolist()

    def begin(k: int, now: float) -> None:
        nonlocal area, preempted
        r = pool[k]
        n = len(r.begun)
        while r.memory + n > kv_tokens and len(r.order) > 1:
            victim = r.order.pop()
            preempted += 1
            if victim == r.partial:
                r.memory -= r.done
                r.partial = -1
            else:
                since, context = r.begun.pop(victim)
                held = context + (r.iteration - since)
                r.memory -= held
                r.contexts -= held
                made[victim] += r.iteration - since
                r.ends = [e for e in r.ends if e[1] != victim]
                heapq.heapify(r.ends)
                n -= 1
            r.waiting.appendleft(victim)
        left, chunk_tokens, pairs = budget - n, 0.0, 0.0
        r.memory += n
        r.contexts += n
        if r.partial >= 0:
            need = _prompt(r.partial)
            chunk = min(need - r.done, left, kv_tokens - r.memory)
            if chunk > 0:
                pairs += chunk * (r.done + (chunk + 1) / 2)
                r.done += chunk
                r.memory += chunk
                left -= chunk
                chunk_tokens += chunk
            if r.done >= need:
                r.finished.append(r.partial)
                r.partial = -1
        while r.waiting and left > 0 and len(r.order) < slots and r.partial < 0:
            request = r.waiting[0]
            need = _prompt(request)
            if r.memory + need > kv_tokens:
                break
            r.waiting.popleft()
            r.order.append(request)
            chunk = min(need, left)
            pairs += chunk * (chunk + 1) / 2
            r.memory += chunk
            left -= chunk
            chunk_tokens += chunk
            if chunk < need:
                r.partial, r.done = request, chunk
            else:
                r.finished.append(request)
        tokens = n + chunk_tokens
        duration = t0 + max(w, b * tokens) + c * tokens + h * n + g * r.contexts + a * pairs
        r.iteration += 1
        area += n * duration
        heapq.heappush(busy, (now + duration, k))
        running_at[k] = True

    def _prompt(request: int) -> float:
        return length[request] if fresh[request] else length[request] + 1 + made[request]

    def end(k: int, now: float) -> None:
        r = pool[k]
        while r.ends and r.ends[0][0] <= r.iteration:
            request = heapq.heappop(r.ends)[1]
            since, context = r.begun.pop(request)
            held = context + (r.iteration - since)
            r.memory -= held
            r.contexts -= held
            r.order.remove(request)
            last[request] = now
        for request in r.finished:
            context = _prompt(request)
            if fresh[request]:
                fresh[request] = False
                first[request] = now
            else:
                made[request] += 1
            remaining = int(steps[request] - made[request])
            if remaining <= 0:
                r.memory -= context
                r.order.remove(request)
                last[request] = now
            else:
                r.begun[request] = (r.iteration, context)
                r.contexts += context
                heapq.heappush(r.ends, (r.iteration + remaining, request))
        r.finished.clear()

    while position < count or busy:
        if position < count and (not busy or arrive[position] <= busy[0][0]):
            now = arrive[position]
            if routing == "random":
                k = choice[position]
            elif routing == "rr":
                k = position % replicas
            else:
                present = [len(r.order) + len(r.waiting) for r in pool]
                least = min(present)
                ties = [i for i, p in enumerate(present) if p == least]
                k = ties[choice[position] * len(ties) // replicas]
            pool[k].waiting.append(position)
            position += 1
            if not running_at[k]:
                begin(k, now)
        else:
            now, k = heapq.heappop(busy)
            running_at[k] = False
            end(k, now)
            if pool[k].order or pool[k].waiting:
                begin(k, now)
    return {
        "ttft_s": first - arrivals,
        "end_s": last,
        "decodes": area / (float(arrivals[-1]) * replicas),
        "preemptions": preempted / count,
    }
