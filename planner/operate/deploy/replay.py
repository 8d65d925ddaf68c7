"""The planned traffic sent to a server: its own requests at their own times, as many and for as long as is allowed.

Clocks are those of the machine, the same for all processes.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.calibrate.closed_loop import Stream
from planner.calibrate.http import HttpError
from planner.calibrate.live import Client, Dialect, LiveServer, Server, Together
from planner.predict.records import keys_of, uniforms
from planner.predict.traffic import FleetTraffic
from planner.question.compiled import Traffic
from planner.shared.cores import answers_of, cores

Floats = NDArray[np.float64]

PLACES = 32
"""Places of a trace among which a stretch with as many requests as the mean rate brings is looked for."""

EVENTS_PER_S = 4000.0
"""Tokens that one process of this client reads in time [1/s]."""

STARTING_S = 5.0
"""Until the processes of the client have started [s]."""

AFTER_S = 30.0
"""How long requests under way may go on after the last was sent, at least [s]."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests to be sent.

    Parameters
    ----------
    times_s
        When each is sent, from 0 on, not decreasing [s], shape (requests,).
    input_tokens, output_tokens
        Lengths [tokens], shape (requests,).
    shared_tokens
        How much of each prompt a prefix cache is to find [tokens], shape (requests,).
    """

    times_s: Floats
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    shared_tokens: NDArray[np.int64]

    def records(self) -> list[dict[str, float]]:
        """A row per request, by the names of Mooncake's traces, which load generators read."""
        columns = (self.times_s.round(6), self.input_tokens, self.output_tokens)
        names = ("timestamp", "input_length", "output_length")
        return [dict(zip(names, row, strict=True)) for row in zip(*(c.tolist() for c in columns), strict=True)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request: its lengths as the server counted them [tokens], its times [s], how much later it was sent than
    it was to be [s], and why it failed, nothing where it did not."""

    input_tokens: float
    output_tokens: float
    ttft_s: float
    tpot_s: float
    e2e_s: float
    late_s: float = 0.0
    error: str = ""


def planned_requests(traffic: Traffic, requests: int, seconds: float) -> Requests:
    """The traffic of a plan, for so long or so many.

    Parameters
    ----------
    traffic
        Of the plan, at its rate. Where its requests are known one by one they come from a stretch of the trace that has as many as
        its mean rate brings; more than the trace's own rate are shifted copies, less a part of its requests. Else they are drawn.
    requests, seconds
        The most [requests], [s].
    """
    seconds = min(seconds, requests / traffic.rate_per_s)
    fleet = FleetTraffic(traffic)
    rng = np.random.default_rng(0)
    if fleet.trace is None:
        workload = traffic.workload
        number = max(1, min(requests, int(rng.poisson(traffic.rate_per_s * seconds))))
        times = np.sort(rng.uniform(0.0, seconds, number))
        rows = rng.choice(workload.weight.size, number, p=workload.weight / workload.weight.sum())
        inputs, outputs = workload.input_tokens[rows], workload.output_tokens[rows]
        category = workload.category[rows]
    else:
        times, rows = _of_trace(fleet, seconds, requests)
        trace = fleet.trace
        inputs, outputs, category = trace.input_tokens[rows], trace.output_tokens[rows], trace.category[rows]
    share: float | Floats
    if isinstance(traffic.cached_share, Mapping):
        known = [float(traffic.cached_share.get(name, 0.0)) for name in traffic.workload.categories]
        share = np.array(known)[category]
    else:
        share = float(traffic.cached_share)
    prompt = np.maximum(np.rint(inputs), 1.0)
    # the last token of a prompt is never found
    shared = np.minimum(np.maximum(np.floor(share * prompt), traffic.shared_prefix), prompt - 1.0)
    # a request of one token has no time per token
    return Requests(
        times, prompt.astype(np.int64), np.maximum(np.rint(outputs), 2.0).astype(np.int64), shared.astype(np.int64)
    )


def _of_trace(fleet: FleetTraffic, seconds: float, most: int) -> tuple[Floats, NDArray[np.int64]]:
    """Times from 0 on and rows of the trace, of the stretch whose requests are nearest in number to the mean."""
    assert fleet.trace is not None
    low, high = fleet.window
    first, last = np.searchsorted(fleet.trace.times_s, (low, high))
    times, span = fleet.trace.times_s[first:last] - low, high - low
    seconds = min(seconds, span)
    rate = fleet.traffic.rate_per_s
    copies = max(math.ceil(rate / fleet.rate_per_s - 1e-9), 1)
    part = rate / (copies * fleet.rate_per_s)
    shifts = fleet.shifts(copies, int(fleet.ranked(copies)[0]))

    def stretch(start: float) -> tuple[Floats, NDArray[np.int64]]:
        """What all copies send from then on."""
        found = []
        for copy, shift in enumerate(shifts):
            at = (times + shift) % span
            rows = np.flatnonzero((at >= start) & (at < start + seconds))
            rows = rows[uniforms(keys_of(rows, np.full(rows.size, copy), 7), 0) < part]
            found.append((at[rows] - start, rows))
        at = np.concatenate([f[0] for f in found])
        order = np.argsort(at, kind="stable")[:most]
        return at[order], np.concatenate([f[1] for f in found])[order]

    places = np.linspace(0.0, span - seconds, PLACES)
    edges = np.sort(times)
    # by the trace alone: its copies are spread over the hour
    counts = [np.searchsorted(edges, p + seconds) - np.searchsorted(edges, p) for p in places]
    nearest = int(np.argmin(np.abs(np.array(counts) - fleet.rate_per_s * seconds)))
    at, rows = stretch(float(places[nearest]))
    return at, rows + first


def send(server: Server, planned: Requests, longest_s: float) -> list[Outcome]:
    """Send requests at their times, from as many processes as it takes.

    Parameters
    ----------
    server
        Where to.
    planned
        What.
    longest_s
        How long a request may take, about [s].

    Returns
    -------
    list of Outcome
        An outcome for each, in order.

    Raises
    ------
    CalibrationError
        The server does not answer as an OpenAI-compatible one, or a process of the client ends by itself.
    """
    tokens_per_s = float(planned.output_tokens.sum()) / max(float(planned.times_s[-1]), 1.0)
    processes = min(max(math.ceil(tokens_per_s / EVENTS_PER_S), 1), cores(), planned.times_s.size)
    begun = time.monotonic()
    allowed = float(planned.times_s[-1]) + max(AFTER_S, longest_s)
    dialect = LiveServer(server, begun + allowed).dialect
    starts = time.monotonic() + (STARTING_S if processes > 1 else 0.1)
    columns = (planned.times_s, planned.input_tokens, planned.output_tokens, planned.shared_tokens)
    rows = [list(row) for row in zip(*(c.tolist() for c in columns), strict=True)]
    known = {"server": asdict(server), "dialect": asdict(dialect), "starts": starts, "until": starts + allowed}
    jobs = [known | {"seed": k, "rows": rows[k::processes]} for k in range(processes)]
    if processes == 1:
        return _sent(jobs[0])
    longest_s = allowed + STARTING_S + AFTER_S
    parts = answers_of(
        "planner.operate.deploy.replay", jobs, longest_s, "sending the traffic", "Send fewer requests a second: --rate."
    )
    found: list[Outcome] = [Outcome(0.0, 0.0, math.nan, math.nan, math.nan)] * len(rows)
    for k, part in enumerate(parts):
        found[k::processes] = [Outcome(*row) for row in part]
    return found


def _sent(job: Mapping[str, Any]) -> list[Outcome]:
    """Send one job's requests at their times; every request has a thread, connections are used again."""
    server, dialect = Server(**job["server"]), Dialect(**job["dialect"])
    rows, found = job["rows"], [Outcome(0.0, 0.0, math.nan, math.nan, math.nan, 0.0, "not sent")] * len(job["rows"])
    idle: list[Client] = []
    lock = threading.Lock()

    def one(number: int, at: float) -> None:
        """One request, to be sent then."""
        _, inputs, outputs, shared = rows[number]
        with lock:
            client = idle.pop() if idle else Client(server, server.endpoint, dialect, 1_000_003 * job["seed"] + number)
        stream = Stream(0, inputs, outputs, 0.0)
        try:
            # the first answer told that the server streams: tokens that waited for a slow reader come together
            with contextlib.suppress(Together):
                client.request(stream, max(0.05, job["until"] - time.monotonic()), shared=shared)
            e2e, error = stream.events_s[-1] - stream.sent_s, ""
            times = (stream.input_tokens, stream.output_tokens, stream.ttft_s, stream.tpot_s, e2e)
        except HttpError as failure:
            times, error = (float(inputs), float(outputs), math.nan, math.nan, math.nan), str(failure)
        with lock:
            found[number] = Outcome(*times, stream.sent_s - at, error)
            idle.append(client)

    # one clock orders sending, another times streams: both run alike
    offset = time.perf_counter() - time.monotonic()
    threads = []
    for number, (at, *_) in enumerate(rows):
        moment = job["starts"] + at
        time.sleep(max(0.0, moment - time.monotonic()))
        thread = threading.Thread(target=one, args=(number, moment + offset), daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join(max(0.0, job["until"] - time.monotonic()) + 1.0)
    for client in idle:
        client.connection.close()
    with lock:
        return list(found)


def main() -> None:
    """One process: a job comes in, its outcomes go out."""
    outcomes = _sent(json.loads(sys.stdin.read()))
    print(json.dumps([list(asdict(o).values()) for o in outcomes]))


if __name__ == "__main__":
    main()
