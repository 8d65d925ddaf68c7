"""A server in virtual time: closed loops simulated iteration by iteration, without a clock or a network."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from planner.calibrate.closed_loop import ServerPoint
from planner.calibrate.http import Endpoint
from planner.calibrate.live import Load, LoadResult, Timing
from planner.iteration.model import IterationModel


@dataclass
class _Request:
    arrived: float
    left_prompt: int
    left_output: int
    context: int
    first: float = 0.0


class VirtualServer:
    """Chunked prefill beside decodes within a token budget, slots, time before the engine; what `measure_range` asks for.

    Parameters
    ----------
    model
        Time of an iteration.
    seconds
        Time there is [s].
    overhead_s
        Time before the engine [s].
    budget, slots
        Tokens of an iteration, sequences at once.
    """

    endpoint = Endpoint.parse("http://virtual")

    def __init__(
        self, model: IterationModel, seconds: float, *, overhead_s: float = 0.01, budget: int = 8192, slots: int = 10**6
    ) -> None:
        self.model, self.overhead_s, self.budget, self.slots = model, overhead_s, budget, slots
        self.left_s = seconds
        self.first = Timing(model.time(0, 0, 32, 32 * 16.5) + overhead_s, model.time(1, 32), 32, 16, 16)

    def run(self, load: Load, most_seconds: float = math.inf) -> LoadResult:
        """Simulate a load; workers start at different lengths, the first request of each does not count."""
        now = 0.0
        worker_of: dict[int, int] = {}
        finished = [0] * load.concurrency
        timings: list[tuple[float, float]] = []
        waiting: list[_Request] = []
        running: list[_Request] = []
        share = -(-load.requests // load.concurrency)

        def start(worker: int) -> None:
            output = load.output_tokens
            if finished[worker] == 0 and load.concurrency > 1:
                output = max(2, round(output * (worker + 1) / load.concurrency))
            request = _Request(now, load.input_tokens, output, load.input_tokens)
            worker_of[id(request)] = worker
            waiting.append(request)

        for worker in range(load.concurrency):
            start(worker)
        while min(finished) <= share and now < min(most_seconds, self.left_s):
            while waiting and len(running) < self.slots and waiting[0].arrived + self.overhead_s <= now:
                running.append(waiting.pop(0))
            if not running:
                now = waiting[0].arrived + self.overhead_s
                continue
            decodes = [r for r in running if r.left_prompt == 0]
            room = self.budget - len(decodes)
            tokens, pairs, chunks = 0, 0.0, []
            for r in (r for r in running if r.left_prompt):
                chunk = min(r.left_prompt, room - tokens)
                if chunk > 0:
                    past = r.context - r.left_prompt
                    pairs += chunk * (past + 0.5 * (chunk + 1))
                    tokens += chunk
                    chunks.append((r, chunk))
            now += self.model.time(len(decodes), sum(r.context for r in decodes), tokens, pairs)
            for r, chunk in chunks:
                r.left_prompt -= chunk
            for r in (*decodes, *(r for r, _ in chunks if r.left_prompt == 0)):
                r.first = r.first or now
                r.left_output -= 1
                r.context += 1
                if r.left_output == 0:
                    running.remove(r)
                    worker = worker_of.pop(id(r))
                    if finished[worker]:
                        tokens_after = load.output_tokens - 1
                        timings.append((r.first - r.arrived, (now - r.first) / tokens_after))
                    finished[worker] += 1
                    start(worker)
        self.left_s = max(0.0, self.left_s - now)
        if len(timings) < max(2, load.concurrency // 2):
            return LoadResult(load, None, len(timings), 0, "cut", now)
        ttft, tpot = (statistics.fmean(t[i] for t in timings) for i in (0, 1))
        point = ServerPoint(load.input_tokens, load.output_tokens, load.concurrency, tpot, ttft)
        return LoadResult(load, point, len(timings), 0, "", now)
