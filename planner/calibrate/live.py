"""Measure a running OpenAI-compatible server: closed loops of equal requests, timed at the client.

Run as a program it is one of several client processes, for a server that one cannot keep up with. Lines go both ways: the process
gets what to do, says ``ramped`` when all its workers have a first token and ``done`` when they have sent their share, and answers
``stop``, or the end of its input, with what it saw. Clocks are those of the machine, the same for all.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

from planner.calibrate.closed_loop import SHORTEST, ServerPoint, Stream, first_lengths, steady_state
from planner.calibrate.http import Connection, Endpoint, HttpError, parse_json
from planner.errors import CalibrationError
from planner.shared.cores import cores
from planner.units import number_of

FAILED_SHARE = 0.2
"""A load with more failed requests than this is not used [1]."""

BUSY_CLIENT = 0.7
"""A load during which a client process used more of its core than this measured the client, not the server [1]."""

LOW_TOKEN, HIGH_TOKEN = 1000, 20000
"""Random prompts draw token ids from here: ordinary words in every vocabulary in use."""

EVENTS_TOO_MANY = 4
"""Events per token asked for beyond which a stream is cut."""
UNKNOWN_WORDS = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
"""What a server answers to what it does not understand."""

ENDING_S = 2.0
"""How long workers may take to stop after their sockets were cut [s]."""
STARTING_S = 30.0
"""How long a client process may take to start [s]."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where to send requests.

    Parameters
    ----------
    url
        Base address, e.g. ``http://localhost:8000`` (``/v1`` may follow).
    model
        Name the server knows the model by.
    api_key
        Sent as a bearer token where given.
    timeout_s
        Longest silence of a request before it counts as failed [s].
    start_wait_s
        How long to wait for a server that is still starting (refused connections, 503) [s].
    """

    url: str = field(repr=False)
    model: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 60.0
    start_wait_s: float = 30.0

    def __post_init__(self) -> None:
        Endpoint.parse(self.url, self.api_key)

    @property
    def endpoint(self) -> Endpoint:
        """The address without its credentials, and they beside it."""
        return Endpoint.parse(self.url, self.api_key)


@dataclass(frozen=True, slots=True)
class Load:
    """One closed loop: `concurrency` requests in flight, `requests` of them measured.

    Parameters
    ----------
    input_tokens, output_tokens
        Lengths [tokens].
    concurrency
        Requests in flight [requests].
    requests
        Requests measured at most; each worker sends one more first [requests].
    """

    input_tokens: int
    output_tokens: int
    concurrency: int
    requests: int

    def __str__(self) -> str:
        return f"{self.concurrency} x ({self.input_tokens} in, {self.output_tokens} out)"


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load gave: the point, how many requests were measured and failed, why, and what it cost the client.

    Parameters
    ----------
    load
        What was sent.
    point
        What it was like; ``None`` where the load cannot be used.
    measured, failed
        Requests.
    reason
        Of the last failure, or why there is no point.
    seconds
        How long it took [s].
    client_s_per_token
        Processor time of this client per token received [s].
    tokens_per_event
        More than 1 where the server sends several tokens at once [1].
    started_s
        When it began, on the clock of the run [s].
    """

    load: Load
    point: ServerPoint | None
    measured: int
    failed: int
    reason: str = ""
    seconds: float = 0.0
    client_s_per_token: float = 0.0
    tokens_per_event: float = 1.0
    started_s: float = 0.0


@dataclass(slots=True)
class Dialect:
    """What this server understands."""

    token_ids: bool = True
    extras: bool = True


class Together(HttpError):
    """An answer whose tokens came in one event: whole, but without times between them."""


class Client:
    """Sends one streaming completion at a time."""

    def __init__(self, server: Server, endpoint: Endpoint, dialect: Dialect, seed: int) -> None:
        self.model = server.model
        self.dialect = dialect
        self.endpoint = endpoint
        self.random = random.Random(seed)
        self.connection = Connection(endpoint, server.timeout_s)

    def _body(self, input_tokens: int, output_tokens: int, shared: int) -> bytes:
        common = random.Random(0)
        ids = [common.randint(LOW_TOKEN, HIGH_TOKEN) for _ in range(shared)]
        ids += [self.random.randint(LOW_TOKEN, HIGH_TOKEN) for _ in range(input_tokens - shared)]
        body: dict[str, object] = {
            "model": self.model,
            # beyond what is to be found there never the same prompt twice: a prefix cache would answer instead of the GPU
            "prompt": ids if self.dialect.token_ids else " ".join(f"{i:x}" for i in ids[: max(1, input_tokens // 3)]),
            # no temperature: tokens are sampled as the server does it for its users; greedy ones come cheaper
            "max_tokens": output_tokens,
            "stream": True,
        }
        if self.dialect.extras:
            body |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
        return json.dumps(body).encode()

    def request(
        self, stream: Stream, seconds: float, began: Callable[[], None] | None = None, shared: int = 0
    ) -> Stream:
        """Send one request and write down when its events come, all within `seconds` [s].

        Parameters
        ----------
        stream
            What to ask for; filled in as it goes, so that what came before a cut is not lost.
        seconds
            Longest time [s].
        began
            Called at the first event.
        shared
            Tokens that begin every prompt, for a prefix cache to find [tokens].
        """
        body = self._body(stream.asked_input, stream.asked_output, shared)
        stream.sent_s = time.perf_counter()
        events_s = stream.events_s
        prompt: float = stream.asked_input
        output: float | None = None
        finished = False
        most = EVENTS_TOO_MANY * stream.asked_output + 64
        with self.connection.events("/v1/completions", body, seconds) as events:
            for now, data in events:
                if data == b"[DONE]":
                    finished = True
                    continue
                # the first event tells whether this is OpenAI's stream; later ones are looked at where they must be
                plain = events_s and data.startswith(b'{"') and b'"choices":[{' in data and b'"usage":{' not in data
                if not plain or b'"error"' in data:
                    event = self._event(data)
                    usage = event.get("usage")
                    if isinstance(usage, dict):
                        said = {of: number_of(usage.get(f"{of}_tokens")) or 0.0 for of in ("prompt", "completion")}
                        prompt = said["prompt"] if said["prompt"] >= 1.0 else prompt
                        output = said["completion"] if said["completion"] >= 1.0 else output
                    if not event.get("choices"):
                        continue
                events_s.append(now)
                if len(events_s) == 1 and began is not None:
                    began()
                if len(events_s) > most:
                    raise HttpError(
                        f"the stream goes on after {len(events_s)} events, {stream.asked_output} tokens were asked for"
                    )
        if not finished:
            raise HttpError("the connection was dropped before the end of the stream")
        chunks = len(events_s)
        count = output if output is not None else float(chunks)
        if count < 2.0:
            raise HttpError(f"{count:g} tokens came back: nothing to time")
        stream.input_tokens, stream.output_tokens = prompt, count
        if chunks < 2 or events_s[-1] <= events_s[0]:
            raise Together(f"{count:g} tokens came back in one event: the server does not stream")
        return stream

    def _event(self, data: bytes) -> dict[str, Any]:
        event = parse_json(data, "the stream is not OpenAI's: an event of it")
        if not isinstance(event, dict):
            raise HttpError("the stream is not OpenAI's: an event of it is no mapping")
        if event.get("error") is not None:
            raise HttpError(self.endpoint.safe(f"the stream reported an error: {event['error']}"))
        return event


class LiveServer:
    """A server that answered, ready to be measured.

    Parameters
    ----------
    server
        Where.
    deadline
        When everything must be over, on ``time.monotonic`` [s].

    Raises
    ------
    CalibrationError
        When it does not answer as an OpenAI-compatible server.
    """

    def __init__(self, server: Server, deadline: float) -> None:
        self.server = server
        self.endpoint = server.endpoint
        self.deadline = deadline
        self.born = time.monotonic()
        self.loads = 0
        self.interrupted = False
        self.processes = 1
        self.dialect, self.first = self._probe()

    @property
    def left_s(self) -> float:
        """Time left [s]."""
        return max(0.0, self.deadline - time.monotonic())

    def _probe(self) -> tuple[Dialect, Stream]:
        """Find out what the server understands, waiting for one that is still starting."""
        waited_until = min(time.monotonic() + self.server.start_wait_s, self.deadline)
        dialect = Dialect()
        while True:
            client = Client(self.server, self.endpoint, dialect, 0)
            try:
                stream = Stream(0, 2 * SHORTEST[0], 2 * SHORTEST[1], 0.0)
                return dialect, client.request(stream, min(self.server.timeout_s, self.left_s))
            except HttpError as error:
                if error.status in UNKNOWN_WORDS and (dialect.token_ids or dialect.extras):
                    # first without what only some engines know, then with words instead of token ids
                    dialect = Dialect(token_ids=dialect.token_ids and dialect.extras, extras=not dialect.extras)
                    continue
                starting = error.status == HTTPStatus.SERVICE_UNAVAILABLE or (
                    error.status == 0 and "refused" in str(error).lower()
                )
                if not starting or time.monotonic() >= waited_until:
                    raise CalibrationError(
                        f"{self.endpoint} does not serve {self.server.model!r}: {error}",
                        "It must answer POST /v1/completions with a stream; check the address, the model's name and the key.",
                    ) from None
                time.sleep(min(1.0, 0.1 * self.server.start_wait_s))
            finally:
                client.connection.close()

    def run(self, load: Load, most_seconds: float = math.inf, window_s: float = math.inf) -> LoadResult:
        """Send one load and time what comes back.

        Every worker begins in the middle of a request's life (:func:`~planner.calibrate.closed_loop.first_lengths`), then sends
        whole ones; what happens between the last first token of the ramp and the end counts.

        Parameters
        ----------
        load
            What to send.
        most_seconds
            Cut it after this time, or at the deadline [s].
        window_s
            End it so long after its ramp, should its requests take longer [s].
        """
        result, busy = self._run(load, most_seconds, window_s)
        # each is to use about half of its core
        wanted = min(math.ceil(2.0 * busy), cores(), load.concurrency)
        enough = wanted <= self.processes or self.left_s <= result.seconds
        if busy > BUSY_CLIENT and not enough and not self.interrupted:
            # the client was measured: the load again, and all after it, from as many processes as it needs
            self.processes = wanted
            result, _ = self._run(load, most_seconds, window_s)
        return result

    def _run(self, load: Load, most_seconds: float, window_s: float) -> tuple[LoadResult, float]:
        """One load, and the cores the clients took [1]."""
        self.loads += 1
        started = time.monotonic()
        until, processes = min(self.deadline, started + most_seconds), min(self.processes, load.concurrency)
        crew = Crew(self.server, self.dialect, load, 1_000_003 * self.loads, until, processes=processes)
        self.interrupted = crew.run(window_s)
        seconds = time.monotonic() - started
        with crew.lock:
            streams, reasons, good = list(crew.streams), list(crew.reasons), crew.done
        failed, cpu = len(reasons), sum(crew.cpu_s)
        busy = max(crew.cpu_s) / seconds
        events = sum(len(s.events_s) for s in streams)
        found = steady_state(streams, load.concurrency)
        point, per_event, reason = None, 1.0, reasons[-1] if failed else ""
        if not isinstance(found, str):
            good, per_event = max(good, found[1]), found[2]
        if isinstance(found, str) or failed > FAILED_SHARE * (failed + good):
            reason = reason or str(found)
        elif busy > BUSY_CLIENT:
            reason = f"this client was busy for {100 * busy:.0f}% of the time: it was measured, not the server"
        else:
            reason = "; ".join(found[0].problems()) or reason
            point = None if found[0].problems() else found[0]
        per_token = cpu / (events * per_event) if events else 0.0
        result = LoadResult(load, point, good, failed, reason, seconds, per_token, per_event, started - self.born)
        return result, cpu / seconds


class Crew:
    """Workers of one load, threads of this process or of others.

    Parameters
    ----------
    server, dialect, load, seed
        What they send, and where.
    until
        When they end, on ``time.monotonic`` [s].
    places
        Which of the load's workers they are; ``None`` = all.
    processes
        More than one: that many processes have the workers, one to a thread of this one.
    tell
        Told ``ramped`` when each has a first token, and ``done`` when each has sent its share; without it they then stop.
    """

    def __init__(
        self,
        server: Server,
        dialect: Dialect,
        load: Load,
        seed: int,
        until: float,
        places: Sequence[int] | None = None,
        processes: int = 1,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.load, self.until, self.tell = load, until, tell
        self.share = -(-load.requests // load.concurrency)
        self.streams: list[Stream] = []
        self.reasons: list[str] = []
        self.cpu_s: list[float] = []
        self.done = 0
        self.lock, self.stop, self.ramp = threading.Lock(), threading.Event(), threading.Event()
        places = range(load.concurrency) if places is None else places
        self.clients: dict[int, Client] = {}
        self.jobs: list[dict[str, Any]] = []
        self.processes: list[subprocess.Popen[str]] = []
        self.threads: list[threading.Thread] = []
        if processes == 1:
            self.clients = {i: Client(server, server.endpoint, dialect, seed + i) for i in places}
        else:
            told: dict[str, Any] = {"server": asdict(server), "dialect": asdict(dialect), "load": asdict(load)}
            told |= {"seed": seed, "until": until}
            self.jobs = [{**told, "places": list(places[k::processes])} for k in range(processes)]
        self.left = dict.fromkeys(("ramped", "done"), len(self.clients) or len(self.jobs))
        self.cpu_began = time.process_time()

    def start(self) -> None:
        """Start all."""
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "planner.calibrate.live"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                # Ctrl-C is for us: they are told to stop
                start_new_session=True,
            )
            for _ in self.jobs
        ]  # fmt: skip
        work = [partial(self._work, worker) for worker in self.clients]
        work += [partial(self._follow, *one) for one in zip(self.processes, self.jobs, strict=True)]
        self.threads = [threading.Thread(target=one, daemon=True) for one in work]
        for thread in self.threads:
            thread.start()

    def run(self, window_s: float) -> bool:
        """Start all, wait for the last or for the time, and end them; whether somebody interrupted it."""
        interrupted = False
        try:
            self.start()
            while not self.stop.is_set() and not self.ramp.wait(min(0.2, max(0.0, self.until - time.monotonic()))):
                if time.monotonic() >= self.until:
                    break
            self.stop.wait(max(0.0, min(window_s, self.until - time.monotonic())))
        except KeyboardInterrupt:
            interrupted = True
        self.end()
        return interrupted

    def end(self) -> None:
        """Cut what is under way, and wait for all.

        Raises
        ------
        CalibrationError
            A client process ended without an answer, or gives none.
        """
        self.stop.set()
        for client in self.clients.values():
            client.connection.abort()
        for process in self.processes:
            _say(process, "stop")
        ending = time.monotonic() + ENDING_S + (STARTING_S if self.processes else 0.0)
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(max(0.0, ending - time.monotonic()))
        for process in self.processes:
            with contextlib.suppress(OSError), process:
                process.kill()
        if self.clients:
            self.cpu_s = [time.process_time() - self.cpu_began]
        if len(self.cpu_s) < len(self.processes):
            raise CalibrationError(
                "a client process ended by itself, or does not answer", "Measure with fewer requests in flight."
            )

    def _count(self, what: str) -> None:
        """A worker has ``ramped``, its first request having its first token, or is ``done`` with its share."""
        with self.lock:
            self.left[what] -= 1
            if self.left[what]:
                return
            if what == "ramped":
                self.ramp.set()
            elif self.tell is None:
                self.stop.set()
            if self.tell is not None:
                self.tell(what)

    def _work(self, worker: int) -> None:
        """One client: request after request of the current load until told to stop."""
        client = self.clients[worker]
        done = failed = 0
        opening, reported = True, False
        load = self.load
        try:
            while not self.stop.is_set():
                lengths = (load.input_tokens, load.output_tokens)
                if opening:
                    lengths = first_lengths(worker, load.concurrency, *lengths)
                stream = Stream(worker, *lengths, 0.0, opening)
                with self.lock:
                    self.streams.append(stream)
                try:
                    client.request(
                        stream,
                        self.until - time.monotonic(),
                        partial(self._count, "ramped") if opening else None,
                    )
                    with self.lock:
                        self.done += not opening
                    done += not opening
                    opening = False
                except HttpError as error:
                    if self.stop.is_set() or time.monotonic() >= self.until:
                        break
                    failed += 1
                    with self.lock:
                        # what a broken stream showed counts for nothing, and the next one begins where it was to begin
                        self.streams.remove(stream)
                        self.left["ramped"] += opening and bool(stream.events_s)
                        self.reasons.append(str(error))
                    self.stop.wait(0.02)
                if not reported and (done >= self.share or failed >= self.share + 1):
                    reported = True
                    self._count("done")
        finally:
            with contextlib.suppress(OSError):
                client.connection.close()

    def _follow(self, process: subprocess.Popen[str], job: dict[str, Any]) -> None:
        """A process with some of the workers: what it is to do, how far it is, what it saw."""
        _say(process, json.dumps(job))
        told: set[str] = set()
        for line in process.stdout or ():
            if (what := line.strip()) in self.left and what not in told:
                told.add(what)
                self._count(what)
            elif line.startswith("{"):
                seen = json.loads(line)
                with self.lock:
                    self.streams += [Stream(**stream) for stream in seen["streams"]]
                    self.reasons += seen["reasons"]
                    self.done += seen["done"]
                    self.cpu_s += seen["cpu_s"]
                return
        self.stop.set()


def _say(process: subprocess.Popen[str], line: str) -> None:
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.write(line + "\n")
            process.stdin.flush()


def main() -> None:
    """One client process."""
    given: dict[str, Any] = json.loads(sys.stdin.readline() or "{}")
    if not given:
        return
    crew = Crew(
        Server(**given["server"]), Dialect(**given["dialect"]), Load(**given["load"]), given["seed"], given["until"],
        given["places"], tell=partial(print, flush=True),
    )  # fmt: skip
    crew.start()
    sys.stdin.readline()
    crew.end()
    with crew.lock:
        seen = {"reasons": crew.reasons, "done": crew.done, "cpu_s": crew.cpu_s}
        seen["streams"] = [asdict(s) for s in crew.streams]
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
