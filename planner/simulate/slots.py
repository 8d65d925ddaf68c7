"""The slot engine: a replica with a fixed number of slots, iteration time W + H n, no memory.

This is the picture behind the M/G/c and occupancy formulas: a request holds one slot from admission to its last token.
Two ways to prefill: every slot by itself, one chunk per iteration at no cost in tokens (then a request is ceil(L/chunk) + O
equal iterations), or out of one chunk budget that the prefilling slots share, first come first served. Iterations are
equal between events and advanced in closed form.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from planner.errors import InputError
from planner.iteration.model import IterationModel
from planner.simulate.tables import ArrivalQueue, RequestTable


class SlotReplica:
    """One replica of slots.

    Parameters
    ----------
    table
        Lengths of all requests; times are written here.
    model
        Iteration-time model, only terms that do not depend on contexts (t0, w, b, c, tau, h, x); or, without a shared chunk,
        the durations with 0..slots active slots [s].
    slots
        Sequences at once, >= 1.
    chunk
        Prompt tokens per iteration, of each slot or of all together [tokens].
    shared_chunk
        False: every slot in prefill advances by one chunk per iteration and counts as a decode for the iteration time; the
        first token comes one iteration after the last chunk. True: one budget for all, slots in prefill cost their tokens
        only; the first token comes with the last chunk.
    """

    def __init__(
        self,
        table: RequestTable,
        model: IterationModel | Sequence[float],
        slots: float,
        chunk: float,
        shared_chunk: bool = False,
    ) -> None:
        if not isinstance(model, IterationModel):
            self._table = [float(t) for t in model]
            if shared_chunk or len(self._table) <= slots or min(self._table[1:], default=0.0) < 0.0:
                raise InputError(
                    "iteration: a table of durations needs one per number of active slots, 0..slots, none negative"
                )
        elif model.g or model.e or model.a:
            raise InputError("the slots preset knows no contexts: g, e and a of the iteration model must be 0")
        else:
            self._table = []
        self.table, self.model, self.slots, self.chunk, self.shared_chunk = table, model, slots, chunk, shared_chunk
        self.queue = ArrivalQueue()
        self.now = 0.0
        self.asleep = True
        self.step = 0
        self.active = 0  # slots whose iteration costs H
        self.residents = 0
        self.prefilling: deque[list[int]] = deque()  # [request, tokens left]
        self.events: list[tuple[int, int, int]] = []  # heap of (step, 0 first token | 1 done, request)
        self.finishing: list[int] = []
        self.pending = False
        self.stretch = 0
        self.start = 0.0
        self.cuttable = False
        self.base = 0.0  # duration of one iteration of the run in progress
        self.held_tokens = 0
        self.iterations = 0
        self.busy_s = 0.0
        self.resident_s = 0.0
        self.decode_s = 0.0
        self.preemptions = 0
        self.memory_bound = 0
        self.completed = 0
        self._durations: dict[tuple[int, int], float] = {}

    @property
    def in_system(self) -> int:
        """Requests resident or waiting here."""
        return self.residents + len(self.queue)

    @property
    def waiting(self) -> int:
        """Requests waiting here."""
        return len(self.queue)

    def held_at(self, time: float) -> float:
        """Prompt and output tokens of the residents [tokens]: what their KV will take, since this engine has no memory."""
        return self.held_tokens

    def enqueue(self, request: int, time: float) -> None:
        """A request arrives: wake up, or end a run of iterations at the first boundary after it."""
        self.queue.add(request, time)
        if self.asleep:
            self.asleep = False
            self.now = time
        elif self.cuttable and self.now > time:
            kept = self._iterations_until(time - self.start, self.stretch)
            dropped = self.stretch - kept
            if dropped > 0:
                end = self.start + kept * self.base
                lost = self.now - end
                self.busy_s -= lost
                self.resident_s -= lost * self.residents
                self.decode_s -= lost * self.active
                self.iterations -= dropped
                self.step -= dropped
                self.stretch = kept
                self.now = end

    def _iterations_until(self, duration: float, most: int) -> int:
        """Smallest j in 1..most with j iterations at least `duration` long (or most)."""
        j = min(max(math.ceil(duration / self.base), 1), most)
        while j > 1 and (j - 1) * self.base >= duration:
            j -= 1
        while j < most and j * self.base < duration:
            j += 1
        return j

    def _duration(self, active: int, tokens: int) -> float:
        """Time of an iteration [s], kept by its batch."""
        if not isinstance(self.model, IterationModel):
            return self._table[active]
        key = (active, tokens)
        found = self._durations.get(key)
        if found is None:
            if len(self._durations) > 1 << 18:
                self._durations.clear()
            found = self._durations[key] = self.model.time(active, 0.0, tokens, 0.0)
        return found

    def run(self, until: float) -> None:  # noqa: C901 - an inner loop: a call per step would cost more than the step
        """Run until `until`: effects of iterations ending then have happened, decisions due then are still to be made."""
        if self.asleep:
            return
        table, queue, events, prefilling = self.table, self.queue, self.events, self.prefilling
        inputs, outputs, cached = table.input_tokens, table.output_tokens, table.cached_tokens
        first, done = table.first, table.done
        times, ids = queue.times, queue.ids
        slots, chunk, shared_chunk = self.slots, self.chunk, self.shared_chunk
        while self.now <= until:
            now = self.now
            if self.pending:
                self.pending = False
                step = self.step
                for request in self.finishing:
                    first[request] = now
                    self.active += 1
                    heappush(events, (step + outputs[request] - 1, 1, request))
                self.finishing.clear()
                while events and events[0][0] <= step:
                    _, kind, request = heappop(events)
                    if kind == 0:
                        first[request] = now
                    else:
                        done[request] = now
                        self.active -= 1
                        self.residents -= 1
                        self.completed += 1
                        self.held_tokens -= inputs[request] + outputs[request]
            if now >= until:
                return
            while self.residents < slots and queue.position < len(ids) and times[queue.position] <= now:
                request = ids[queue.position]
                queue.position += 1
                self.residents += 1
                self.held_tokens += inputs[request] + outputs[request]
                left = inputs[request] - cached[request]
                if shared_chunk:
                    prefilling.append([request, left])
                else:
                    self.active += 1
                    ready = self.step - int(-left // chunk)
                    heappush(events, (ready + 1, 0, request))
                    heappush(events, (ready + outputs[request], 1, request))
            n = self.active
            if prefilling:
                budget = chunk
                while prefilling and budget > 0:
                    entry = prefilling[0]
                    if entry[1] <= budget:
                        budget -= entry[1]
                        self.finishing.append(entry[0])
                        prefilling.popleft()
                    else:
                        entry[1] -= int(budget)
                        budget = 0
                j = 1
                self.base = self._duration(n, int(chunk - budget))
                self.cuttable = False
            elif n:
                j = events[0][0] - self.step
                self.base = self._duration(n, 0)
                self.cuttable = self.residents < slots
                if self.cuttable and queue.position < len(ids):
                    j = self._iterations_until(times[queue.position] - now, j)
            else:
                self.cuttable = False
                if queue.position < len(ids):
                    self.now = times[queue.position]
                    continue
                self.asleep = True
                return
            duration = j * self.base
            self.start, self.stretch = now, j
            self.step += j
            self.iterations += j
            self.busy_s += duration
            self.resident_s += duration * self.residents
            self.decode_s += duration * n
            self.now = now + duration
            self.pending = True
