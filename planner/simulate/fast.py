"""The fast engine for mixed batching: one replica, its runs of identical iterations advanced in closed form.

Mixed batching first come, first served never needs a list of its decodes: all of them take part in every iteration, so
their number n, the sum K of their contexts and the iteration number at which each ends say everything. Between two
events (an arrival that can be admitted, a completion, memory running out) the iterations are pure decode, and the
j-th lasts base(n) + g (K + n j): their sum is a quadratic in j. An iteration with prefill is stepped by itself. The cost of
a run is therefore per request, not per token.

The rules are those of :class:`planner.simulate.policies.mixed.Mixed`, and of
:class:`planner.simulate.policies.distserve.DecodeNode` for requests whose whole prompt is supplied, against which the engine
is tested iteration by iteration; memory is counted in blocks, held from admission on for the whole prompt or allocated chunk
by chunk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from heapq import heappop, heappush

import numpy as np

from planner.iteration.model import IterationModel
from planner.predict.closed import COLD_AFTER_S
from planner.simulate.tables import ArrivalQueue, RequestTable, sum_of_larger

TABLE = 1 << 16
"""Largest number of tokens whose linear time is tabulated."""


class MixedReplica:
    """One replica under mixed batching.

    Parameters
    ----------
    table
        Lengths of all requests; times are written here.
    model
        Iteration-time model.
    slots
        Most requests resident at once.
    token_budget
        Tokens per iteration.
    memory_blocks
        KV memory [blocks]; inf = unlimited.
    block
        Tokens per block.
    request_s
        Time of the host that each request takes from the iteration that admits it [s].
    shared_prefix
        Tokens that begin every longer prompt, whole blocks of which memory keeps once for all [tokens].
    wake_s
        What a request takes longer to come through the front end where none came for :data:`COLD_AFTER_S` before it [s].
    kept_once
        Prompt tokens of each request that memory keeps once and whoever shares them accounts for, in place of `shared_prefix`.
    reserve
        True: a prompt holds its memory from admission on. False: block by block with its chunks (admission still asks that
        all of it fits).
    """

    def __init__(
        self,
        table: RequestTable,
        model: IterationModel,
        slots: float,
        token_budget: float,
        memory_blocks: float = math.inf,
        block: int = 1,
        reserve: bool = True,
        request_s: float = 0.0,
        shared_prefix: int = 0,
        wake_s: float = 0.0,
        kept_once: Mapping[int, int] | None = None,
    ) -> None:
        self.table = table
        self.model = model
        # the contexts' sum is at least the longest of them: e matters only beyond g
        self.e = model.e if model.e > model.g else 0.0
        self.rows = model.rows
        self.request_s, self.wake_s = request_s, wake_s
        self.arrived = self.entered = -math.inf  # the last request, and when it came through the front end
        self.slots = slots
        self.token_budget = token_budget
        self.block = block
        self.reserve = reserve
        self.queue = ArrivalQueue()
        self.now = 0.0  # boundary between iterations: the running one ends here, the next decision is made here
        self.asleep = True
        self.shared_prefix, self.shared_blocks = shared_prefix, shared_prefix // block
        self.kept_once = kept_once
        self.free: float = memory_blocks - self.shared_blocks
        self.step = 0  # iterations done
        self.decodes = 0
        self.context = 0  # sum of what the decodes hold [tokens]
        self.residues = [0] * block  # decodes by (held - step) mod block
        self.ends: list[tuple[int, int]] = []  # heap of (step after which it is complete, request)
        self.longest: list[tuple[int, int]] = []  # heap of (step - held, request); only if e or e_m > 0
        self.residents: dict[int, int] = {}  # in order of admission; value: step at which it ends, -1 while in prefill
        self.partial = -1  # the one request in the middle of its prefill
        self.partial_done = 0
        self.partial_length = 0
        self.finishing: list[int] = []  # requests whose prefill the running iteration completes
        self.pending = False
        # a run of identical iterations that an arrival may cut: start, first step, K and pending count at its start
        self.stretch = 0
        self.stretch_offset = 0  # iterations of it that `longest_context` already contains
        self.start = 0.0
        self.cuttable = False
        # totals
        self.iterations = 0
        self.busy_s = 0.0
        self.resident_s = 0.0
        self.decode_s = 0.0
        self.residents_per_iteration = 0.0
        self.prefilled = 0
        self.recomputed = 0
        self.preemptions = 0
        self.memory_bound = 0
        self.completed = 0
        size = int(min(max(token_budget, 1), TABLE)) + 1
        tokens = np.arange(size + 4096, dtype=float)
        self.linear: list[float] = model.additive.time(np.zeros_like(tokens), 0.0, tokens, 0.0).tolist()

    @property
    def in_system(self) -> int:
        """Requests resident or waiting here."""
        return len(self.residents) + len(self.queue)

    @property
    def waiting(self) -> int:
        """Requests waiting here."""
        return len(self.queue)

    def held_at(self, time: float) -> float:
        """Tokens held at `time`, which lies in the running iteration or run of iterations; for routing."""
        held = self.context + (self.partial_length if self.reserve else self.partial_done)
        for request in self.finishing:
            held += self.table.input_tokens[request] + self.queue.emitted.get(request, 0)
        if self.pending and self.stretch and self.now > time:
            n, j = self.decodes, self.stretch
            held -= n * (j - self.iterations_until(time - self.start, n, self.context - n * j, j))
        return held

    def enqueue(self, request: int, time: float) -> None:
        """A request arrives at `time`, which is not before the replica's last decision."""
        if self.wake_s > 0.0:
            cold, self.arrived = time > self.arrived + COLD_AFTER_S, time
            time = self.entered = max(time + self.wake_s * cold, self.entered)
        self.queue.add(request, time)
        if self.asleep:
            self.asleep = False
            self.now = time
        elif self.cuttable and self.now > time:
            self.cut(time)

    def cut(self, time: float) -> None:
        """Shorten the run of decode iterations in progress to end at the first boundary at or after `time`."""
        j = self.stretch
        n = self.decodes
        k0 = self.context - n * j
        kept = self.iterations_until(time - self.start, n, k0, j)
        if kept >= j:
            return
        dropped = j - kept
        end = self.start + self.stretch_time(kept, n, k0)
        lost = self.now - end
        self.busy_s -= lost
        self.resident_s -= lost * len(self.residents)
        self.decode_s -= lost * n
        self.iterations -= dropped
        self.residents_per_iteration -= dropped * len(self.residents)
        if self.block == 1:
            self.free += n * dropped
        else:
            self.free += self.blocks_needed(self.step - dropped, dropped)
        self.context -= n * dropped
        self.step -= dropped
        self.stretch = self.stretch_offset = kept
        self.now = end

    def stretch_time(self, j: int, n: int, k0: float) -> float:
        """Duration of `j` decode iterations of `n` sequences that hold `k0` tokens before the first [s]."""
        model = self.model
        base = self.linear_time(self.rows * n) + model.h * n
        g_sum = model.g * (j * k0 + n * (j * (j + 1) / 2))
        if self.e == 0.0:
            return j * base + g_sum
        # sum of max(g (K + n i), e (l + i)) over i = 1..j: two lines, at most one crossing
        l0 = self.longest_context() - self.stretch_offset
        u, v = (model.g * k0, model.g * n), (self.e * l0, self.e)
        return j * base + sum_of_larger(u, v, j)

    def iterations_until(self, duration: float, n: int, k0: float, most: int) -> int:
        """Smallest j in 1..most with at least `duration` in the first j iterations (or most)."""
        model = self.model
        if self.e == 0.0:
            base = self.linear_time(self.rows * n) + model.h * n
            slope = model.g * n
            first = base + model.g * k0 + slope / 2
            guess = (
                duration / first
                if slope * duration <= 1e-12 * first * first
                else (math.sqrt(first * first + 2 * slope * duration) - first) / slope
            )
            j = min(max(math.ceil(guess), 1), most)
            while j > 1 and self.stretch_time(j - 1, n, k0) >= duration:
                j -= 1
            while j < most and self.stretch_time(j, n, k0) < duration:
                j += 1
            return j
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.stretch_time(middle, n, k0) >= duration else (middle, high)
        return high

    def linear_time(self, tokens: float) -> float:
        """t0 + max(w, staircase) + c T [s]."""
        if self.rows == 1.0 and tokens < len(self.linear):
            return self.linear[int(tokens)]
        return self.model.additive.time(0, 0.0, tokens, 0.0)

    def longest_context(self) -> int:
        """Longest context among the decodes, before the next claim [tokens]."""
        heap, residents, table = self.longest, self.residents, self.table
        while heap:
            offset, request = heap[0]
            end = residents.get(request, -1)
            held = self.step - offset
            if end >= 0 and held == table.input_tokens[request] + table.output_tokens[request] - 1 - (end - self.step):
                return held
            heappop(heap)
        return 0

    def blocks_needed(self, step: int, j: int) -> int:
        """Blocks the decodes claim during the `j` iterations that follow `step`."""
        b, residues = self.block, self.residues
        cycles, rest = divmod(j, b)
        need = cycles * self.decodes
        for i in range(rest):
            need += residues[-(step + i) % b]
        return need

    def iterations_in_memory(self, most: int) -> int:
        """Largest j <= most such that j decode iterations fit into the free blocks."""
        if self.free == math.inf:
            return most
        b, n, residues = self.block, self.decodes, self.residues
        if b == 1:
            return int(min(most, self.free // n))
        cycles = int(min(self.free // n, most // b))
        left = self.free - cycles * n
        j = cycles * b
        while j < most:
            need = residues[-(self.step + j) % b]
            if need > left:
                break
            left -= need
            j += 1
        return j

    def run(self, until: float) -> None:  # noqa: C901 - an inner loop: a call per step would cost more than the step
        """Run until `until`: effects of iterations ending then have happened, decisions due then are still to be made."""
        if self.asleep:
            return
        table, model, queue = self.table, self.model, self.queue
        inputs, outputs, cached = table.input_tokens, table.output_tokens, table.cached_tokens
        times, ids, evicted = queue.times, queue.ids, queue.evicted
        residents, ends, residues, linear = self.residents, self.ends, self.residues, self.linear
        longest, emitted_before = self.longest, queue.emitted
        h, g, a, x, e = model.h, model.g, model.a, model.x, self.e
        m, h_m, e_m = model.m, model.h_m, model.e_m
        rows, request_s, apart = self.rows, self.request_s, bool(model.apart)
        whole = rows == 1.0
        slots, budget_limit, block, reserve = self.slots, self.token_budget, self.block, self.reserve
        prefix, once, kept_once = self.shared_prefix, self.shared_blocks, self.kept_once
        table_size = len(linear)
        inf = math.inf
        single = block == 1
        while self.now <= until:
            now = self.now
            # --- effects of the iteration that ends now
            if self.pending:
                self.pending = False
                step = self.step
                while ends and ends[0][0] <= step:
                    end, request = heappop(ends)
                    if residents.get(request, -1) != end:
                        continue  # evicted since
                    del residents[request]
                    length = inputs[request] + outputs[request] - 1
                    self.decodes -= 1
                    self.context -= length
                    self.free += length if single else -(-length // block)
                    if kept_once is not None:
                        self.free -= kept_once[request]
                    elif inputs[request] > prefix:
                        self.free -= once
                    residues[(length - step) % block] -= 1
                    table.done[request] = now
                    self.completed += 1
                if self.finishing:
                    for request in self.finishing:
                        emitted = emitted_before.pop(request, 0)
                        held = inputs[request] + emitted
                        if emitted == 0:
                            table.first[request] = now
                        left = outputs[request] - emitted - 1
                        if left == 0:
                            del residents[request]
                            self.free += held if single else -(-held // block)
                            if kept_once is not None:
                                self.free -= kept_once[request]
                            elif inputs[request] > prefix:
                                self.free -= once
                            table.done[request] = now
                            self.completed += 1
                        else:
                            residents[request] = step + left
                            heappush(ends, (step + left, request))
                            self.decodes += 1
                            self.context += held
                            residues[(held - step) % block] += 1
                            if e or m:
                                heappush(longest, (step - held, request))
                    self.finishing.clear()
            if now >= until:
                return
            # --- decision
            n = self.decodes
            preempted = False
            if n and self.free < inf:
                need = n if single else residues[-self.step % block]
                while need > self.free:
                    victim, end = residents.popitem()
                    preempted = True
                    self.preemptions += 1
                    if end < 0:
                        self._evict_partial(victim)
                    else:
                        self._evict_decode(victim, end)
                        need = self.decodes if single else residues[-self.step % block]
                    heappush(evicted, victim)
                n = self.decodes
            # decodes that run beside the prompts
            beside = 0 if apart else n
            budget = budget_limit - beside if whole else math.floor(budget_limit - rows * beside)
            chunk_tokens = 0
            pairs = host = 0.0
            reached = 0  # the furthest position a chunk comes to
            blocked = False  # by memory
            if self.partial >= 0 and budget > 0:
                request = self.partial
                done = self.partial_done
                left = self.partial_length - done
                chunk = left if left <= budget else int(budget)
                if not reserve:
                    wanted = -(-(done + chunk) // block) - -(-done // block)
                    room = self.free - (0 if beside == 0 else n if single else residues[-self.step % block])
                    if wanted > room:
                        residents.popitem()
                        preempted = True
                        self.preemptions += 1
                        self._evict_partial(request)
                        heappush(evicted, request)
                        chunk = 0
                    else:
                        self.free -= wanted
                if chunk:
                    pairs += chunk * (done + (chunk + 1) / 2)
                    reached = done + chunk
                    chunk_tokens += chunk
                    budget -= chunk
                    if chunk == left:
                        self.finishing.append(request)
                        self.partial = -1
                        self.partial_length = 0
                    else:
                        self.partial_done = done + chunk
            head_waits = False
            if not preempted:
                claims = 0 if beside == 0 else n if single else residues[-self.step % block]
                while True:
                    if evicted:
                        request = evicted[0]
                    elif queue.position < len(ids) and times[queue.position] <= now:
                        request = ids[queue.position]
                    else:
                        break
                    if budget <= 0 or len(residents) >= slots:
                        head_waits = True
                        break
                    emitted = emitted_before.get(request, 0)
                    length = inputs[request] + emitted
                    wanted = length if single else -(-length // block)
                    common = kept_once[request] if kept_once is not None else once if inputs[request] > prefix else 0
                    wanted -= common
                    if wanted > self.free - claims:
                        head_waits = blocked = True
                        break
                    past = cached[request]
                    if evicted:
                        heappop(evicted)
                        self.recomputed += max(length - past, 0)
                    else:
                        queue.position += 1
                    if past >= length:  # prefilled elsewhere: it decodes in this very iteration
                        held = length - 1
                        residents[request] = end = self.step + outputs[request] - emitted_before.pop(request, 0)
                        heappush(ends, (end, request))
                        self.decodes = n = n + 1
                        self.context += held
                        self.free -= (held if single else -(-held // block)) - common
                        residues[(held - self.step) % block] += 1
                        if e or m:
                            heappush(longest, (self.step - held, request))
                        beside = 0 if apart else n
                        claims = 0 if beside == 0 else n if single else residues[-self.step % block]
                        budget -= rows
                        continue
                    residents[request] = -1
                    host += request_s
                    left = length - past
                    chunk = left if left <= budget else int(budget)
                    if reserve:
                        self.free -= wanted
                    else:
                        self.free -= -(-(past + chunk) // block) - common
                    pairs += chunk * (past + (chunk + 1) / 2)
                    reached = max(reached, past + chunk)
                    chunk_tokens += chunk
                    budget -= chunk
                    if chunk == left:
                        self.finishing.append(request)
                    else:
                        self.partial = request
                        self.partial_done = past + chunk
                        self.partial_length = length
            # --- the iteration, or a run of them
            if chunk_tokens:
                tokens = rows * beside + chunk_tokens
                duration = host + (linear[int(tokens)] if whole and tokens < table_size else self.linear_time(tokens))
                if beside:
                    if self.free < inf:
                        self.free -= n if single else residues[-self.step % block]
                    context = self.context = self.context + n
                    duration += x * n * chunk_tokens / tokens
                    if m:
                        walked = max(self.longest_context() + 1, reached)
                        duration += max(a * (pairs + m * context) + h_m * n, e_m * walked, g * context)
                    elif e:
                        duration += h * n + a * pairs + max(g * context, e * (self.longest_context() + 1))
                    else:
                        duration += h * n + a * pairs + g * context
                else:
                    duration += max(a * pairs, e_m * reached)
                # the clock of the decodes
                self.step += not apart
                self.iterations += 1
                self.prefilled += chunk_tokens
                count = len(residents)
                self.busy_s += duration
                self.resident_s += duration * count
                self.decode_s += duration * beside
                self.residents_per_iteration += count
                self.memory_bound += preempted or blocked
                self.now = now + duration
                self.pending = True
                self.cuttable = False
                self.stretch = 0
                continue
            if n == 0:
                self.cuttable = False
                self.stretch = 0
                if preempted:
                    continue  # the partial prefill was the only work: decide again
                if queue.position < len(ids) and not evicted:
                    self.now = max(times[queue.position], now)
                    continue
                self.asleep = True
                return
            j = ends[0][0] - self.step
            while residents.get(ends[0][1], -1) != ends[0][0]:
                heappop(ends)
                j = ends[0][0] - self.step
            k0 = self.context
            if preempted:
                j = 1  # the queue is looked at again after it
            elif j > 1 and self.free < inf:
                j = self.iterations_in_memory(j)
            # Another arrival changes nothing while the head waits for a completion, nor while every slot is taken.
            self.cuttable = not head_waits and len(residents) < slots and budget > 0
            self.stretch_offset = 0
            if self.cuttable and queue.position < len(ids):
                j = self.iterations_until(times[queue.position] - now, n, k0, j)
            duration = self.stretch_time(j, n, k0)
            if self.free < inf:
                self.free -= n * j if single else self.blocks_needed(self.step, j)
            self.context = k0 + n * j
            self.step += j
            self.stretch_offset = j
            self.stretch = j
            self.start = now
            self.iterations += j
            count = len(residents)
            self.busy_s += duration
            self.resident_s += duration * count
            self.decode_s += duration * n
            self.residents_per_iteration += count * j
            if preempted or blocked:
                self.memory_bound += j
            self.now = now + duration
            self.pending = True

    def _kept_once(self, request: int) -> int:
        """Blocks of a request that are kept once for all."""
        if self.kept_once is not None:
            return self.kept_once[request]
        return self.shared_blocks if self.table.input_tokens[request] > self.shared_prefix else 0

    def _evict_decode(self, request: int, end: int) -> None:
        table, block = self.table, self.block
        emitted = table.output_tokens[request] - (end - self.step)
        held = table.input_tokens[request] + emitted - 1
        self.queue.emitted[request] = emitted
        self.decodes -= 1
        self.context -= held
        self.free += -(-held // block) - self._kept_once(request)
        self.residues[(held - self.step) % block] -= 1

    def _evict_partial(self, request: int) -> None:
        held = self.partial_length if self.reserve else self.partial_done
        self.free += -(-held // self.block) - self._kept_once(request)
        self.partial = -1
        self.partial_length = 0
        self.partial_done = 0
