"""A server in virtual time: closed loops simulated iteration by iteration, without a clock or a network."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.calibrate.closed_loop import (
    Loads,
    Rules,
    ServerPoint,
    Stream,
    first_lengths,
    log_parameters,
    loop_times,
    steady_state,
)
from planner.calibrate.http import Endpoint
from planner.calibrate.live import Load, LoadResult
from planner.machine.iteration import IterationModel


def closed_loop_tpot(
    model: IterationModel,
    input_tokens: float,
    output_tokens: float,
    concurrency: float,
    *,
    rules: Rules | None = None,
    request_s: float = 0.0,
    overhead_s: float = 0.0,
) -> float:
    """Mean TPOT of a closed loop of equal requests by the formula, the number decoding worked out with it [s]."""
    loads = Loads([ServerPoint(input_tokens, output_tokens, concurrency, 1.0)], model)
    theta = log_parameters(model, request_s, overhead_s)[None]
    return float(loop_times(theta, loads, rules or Rules())[0][0, 0])


@dataclass
class _Request:
    stream: Stream
    left_prompt: int
    left_output: int
    context: int


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
    interrupted = False

    def __init__(
        self, model: IterationModel, seconds: float, *, overhead_s: float = 0.01, budget: int = 8192, slots: int = 10**6
    ) -> None:
        self.model, self.overhead_s, self.budget, self.slots = model, overhead_s, budget, slots
        self.left_s = seconds
        ttft_s, step_s = model.time(0, 0, 32, 32 * 16.5) + overhead_s, model.time(1, 32)
        self.first = Stream(
            0, 32, 16, 0.0, events_s=[ttft_s + k * step_s for k in range(16)], input_tokens=32, output_tokens=16
        )

    def run(self, load: Load, most_seconds: float = math.inf, window_s: float = math.inf) -> LoadResult:
        """Simulate a load, workers begin in the middle of a life."""
        now, stop = 0.0, min(most_seconds, self.left_s)
        ramping = load.concurrency
        finished = [0] * load.concurrency
        streams: list[Stream] = []
        waiting: list[_Request] = []
        running: list[_Request] = []
        share = -(-load.requests // load.concurrency)

        def start(worker: int) -> None:
            lengths = (load.input_tokens, load.output_tokens)
            opening = finished[worker] == 0
            if opening:
                lengths = first_lengths(worker, load.concurrency, *lengths)
            streams.append(Stream(worker, *lengths, now, opening))
            waiting.append(_Request(streams[-1], lengths[0], lengths[1], lengths[0]))

        for worker in range(load.concurrency):
            start(worker)
        while min(finished) <= share and now < stop:
            while waiting and len(running) < self.slots and waiting[0].stream.sent_s + self.overhead_s <= now:
                running.append(waiting.pop(0))
            if not running:
                now = waiting[0].stream.sent_s + self.overhead_s
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
                if not r.stream.events_s and r.stream.opening:
                    ramping -= 1
                    stop = stop if ramping else min(stop, now + window_s)
                r.stream.events_s.append(now)
                r.left_output -= 1
                r.context += 1
                if r.left_output == 0:
                    running.remove(r)
                    r.stream.input_tokens, r.stream.output_tokens = r.stream.asked_input, r.stream.asked_output
                    finished[r.stream.worker] += 1
                    start(r.stream.worker)
        self.left_s = max(0.0, self.left_s - now)
        found = steady_state(streams, load.concurrency)
        if isinstance(found, str):
            return LoadResult(load, None, 0, 0, found, now)
        seen, starts, _ = found
        point = ServerPoint(load.input_tokens, load.output_tokens, load.concurrency, seen.tpot_s, seen.ttft_s)
        return LoadResult(load, point, starts, 0, "", now)
