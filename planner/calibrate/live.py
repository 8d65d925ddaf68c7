"""Measure a running OpenAI-compatible server: which loads to send, sending them, and what came back."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from planner.calibrate.design import server_shapes
from planner.calibrate.servers import ServerPoint
from planner.errors import CalibrationError, InputError

__all__ = ["Load", "LoadResult", "Server", "describe_loads", "measure_server", "planned_loads"]

FAILED_SHARE = 0.2
"""A load with more failed requests than this is not used [1]."""

LOW_TOKEN, HIGH_TOKEN = 1000, 20000
"""Random prompts draw token ids from here: ordinary words in every vocabulary in use."""

Progress = Callable[[int, int, str], None]
"""Called with (loads done, loads in all, what is running)."""


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

    url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 60.0
    start_wait_s: float = 30.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"server address {self.url!r} is not http(s)://host[:port]")


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
        Requests measured; each worker sends one more first, which does not count [requests].
    """

    input_tokens: int
    output_tokens: int
    concurrency: int
    requests: int

    @property
    def sent(self) -> int:
        """Requests sent at least, warm-up included [requests]."""
        return self.requests + self.concurrency


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load gave: the point, how many requests were measured and failed, and why."""

    load: Load
    point: ServerPoint | None
    measured: int
    failed: int
    reason: str = ""


def planned_loads(
    *,
    max_input: int = 4096,
    max_output: int = 256,
    max_concurrency: int = 32,
    max_requests: int = 1000,
    rounds: int = 2,
) -> tuple[Load, ...]:
    """The loads to send: every shape alone, at a middle and at the highest concurrency, corners first.

    Parameters
    ----------
    max_input, max_output
        Longest lengths [tokens].
    max_concurrency
        Most requests in flight [requests].
    max_requests
        Bound of all requests together; the highest concurrency is lowered to keep it [requests].
    rounds
        Requests measured per worker [1].

    Returns
    -------
    tuple of Load

    Raises
    ------
    InputError
        When the bounds leave no six shapes.
    """
    if max_input < 32 or max_output < 16:
        raise InputError(f"max_input={max_input}, max_output={max_output}: too short to tell six shapes apart")
    if max_concurrency < 2:
        raise InputError(f"max_concurrency={max_concurrency}: at least 2 are needed to see a batch")
    shapes = server_shapes(max_input=max_input, max_output=max_output)
    concurrency = max_concurrency
    while True:
        levels = sorted({1, max(2, round(concurrency**0.5 * 1.4)), concurrency})
        loads = tuple(
            Load(isl, osl, level, max(3, level * rounds) if level > 1 else 3) for level in levels for isl, osl in shapes
        )
        if sum(load.sent for load in loads) <= max_requests:
            return loads
        if concurrency <= 2:
            raise InputError(
                f"max_requests={max_requests} is too few: {sum(load.sent for load in loads)} are the least for six shapes"
            )
        concurrency = max(2, concurrency * 3 // 4)


def describe_loads(loads: Sequence[Load]) -> list[str]:
    """What will be sent, one line per load and a sum; for a dry run.

    >>> describe_loads([Load(256, 32, 1, 3)])
    ['1 x (256 in, 32 out), 3 requests measured', 'in all 4 requests, 1,024 prompt tokens, 128 output tokens']
    """
    lines = [
        f"{load.concurrency} x ({load.input_tokens} in, {load.output_tokens} out), {load.requests} requests measured"
        for load in loads
    ]
    sent = sum(load.sent for load in loads)
    prompt = sum(load.sent * load.input_tokens for load in loads)
    output = sum(load.sent * load.output_tokens for load in loads)
    return [*lines, f"in all {sent} requests, {prompt:,} prompt tokens, {output:,} output tokens"]


class _Refused(Exception):
    """The server did not answer a request as it should."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class _Timing:
    ttft_s: float
    tpot_s: float
    prompt_tokens: float
    output_tokens: float


@dataclass(slots=True)
class _Dialect:
    """What this server understands."""

    token_ids: bool = True
    extras: bool = True


class _Client:
    """Sends one streaming completion at a time."""

    def __init__(self, server: Server, dialect: _Dialect, seed: int) -> None:
        self.server = server
        self.dialect = dialect
        self.random = random.Random(seed)
        parts = urlsplit(server.url)
        base = parts.path.rstrip("/")
        self.path = (base if base.endswith("/v1") else base + "/v1") + "/completions"
        self.host, self.port = parts.hostname or "", parts.port
        self.secure = parts.scheme == "https"
        self.connection: http.client.HTTPConnection | None = None

    def _connect(self) -> http.client.HTTPConnection:
        if self.connection is None:
            kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
            self.connection = kind(self.host, self.port, timeout=self.server.timeout_s)
            self.connection.connect()
            self.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.connection

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def abort(self) -> None:
        """End a request that waits for the server, from another thread."""
        connection = self.connection
        sock = connection.sock if connection is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _body(self, input_tokens: int, output_tokens: int) -> bytes:
        ids = [self.random.randint(LOW_TOKEN, HIGH_TOKEN) for _ in range(input_tokens)]
        body: dict[str, object] = {
            "model": self.server.model,
            # never the same prompt twice: a prefix cache would answer instead of the GPU
            "prompt": ids if self.dialect.token_ids else " ".join(f"{i:x}" for i in ids[: max(1, input_tokens // 3)]),
            "max_tokens": output_tokens,
            "temperature": 0.0,
            "stream": True,
        }
        if self.dialect.extras:
            body |= {"ignore_eos": True, "min_tokens": output_tokens, "stream_options": {"include_usage": True}}
        return json.dumps(body).encode()

    def request(self, input_tokens: int, output_tokens: int, stop: threading.Event | None = None) -> _Timing:
        """Send one request and time its stream."""
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self.server.api_key:
            headers["Authorization"] = f"Bearer {self.server.api_key}"
        body = self._body(input_tokens, output_tokens)
        try:
            connection = self._connect()
            started = time.perf_counter()
            connection.request("POST", self.path, body, headers)
            response = connection.getresponse()
            if response.status != 200:
                text = response.read(500).decode("utf-8", "replace").strip()
                self.close()
                raise _Refused(f"HTTP {response.status} {response.reason}: {text[:200]}", response.status)
            first = last = 0.0
            chunks = 0
            prompt: float = input_tokens
            output: float | None = None
            finished = False
            for raw in response:
                line = raw.strip()
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    finished = True
                    break
                now = time.perf_counter()
                event = json.loads(data)
                if not isinstance(event, dict) or "error" in event:
                    raise _Refused(f"the stream reported an error: {data[:200]!r}")
                usage = event.get("usage")
                if isinstance(usage, dict):
                    prompt = float(usage.get("prompt_tokens") or prompt)
                    output = float(usage["completion_tokens"]) if usage.get("completion_tokens") else output
                choices = event.get("choices")
                if choices:
                    first = first or now
                    last = now
                    chunks += 1
                if stop is not None and stop.is_set():
                    self.close()
                    raise _Refused("stopped")
            if finished:
                response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            what = "no answer in time" if isinstance(error, TimeoutError) else (str(error) or type(error).__name__)
            raise _Refused(f"{what} ({type(error).__name__})") from None
        except (ValueError, KeyError, TypeError) as error:
            self.close()
            raise _Refused(f"the stream is not OpenAI's: {error}") from None
        count = output if output is not None else float(chunks)
        if not finished:
            self.close()
            raise _Refused("the connection was dropped before the end of the stream")
        if count < 2.0 or last <= first:
            raise _Refused(f"{count:g} tokens came back: nothing to time")
        return _Timing(first - started, (last - first) / (count - 1.0), prompt, count)


def _probe(server: Server) -> _Dialect:
    """Find out what the server understands, waiting for one that is still starting."""
    deadline = time.monotonic() + server.start_wait_s
    dialect = _Dialect()
    while True:
        client = _Client(server, dialect, 1)
        try:
            client.request(32, 4)
            return dialect
        except _Refused as error:
            if error.status in (400, 422) and (dialect.token_ids or dialect.extras):
                # first without what only some engines know, then with words instead of token ids
                if dialect.extras:
                    dialect = _Dialect(token_ids=dialect.token_ids, extras=False)
                else:
                    dialect = _Dialect(token_ids=False, extras=True)
                continue
            starting = error.status == 503 or (error.status == 0 and "refused" in str(error).lower())
            if not starting or time.monotonic() >= deadline:
                raise CalibrationError(
                    f"{server.url} does not serve {server.model!r}: {error}",
                    "It must answer POST /v1/completions with a stream; check the address, the model's name and the key.",
                ) from None
            time.sleep(min(1.0, 0.1 * server.start_wait_s))
        finally:
            client.close()


def measure_server(
    server: Server,
    loads: Sequence[Load],
    *,
    max_seconds: float = 300.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[LoadResult, ...]:
    """Send the loads one after another and time what comes back.

    Every worker of a load sends one request that does not count (cut to a different length each, so that the workers do
    not run in step), then its share of the measured ones, and goes on until all are done, so that the number in flight
    stays the same.

    Parameters
    ----------
    server
        Where to.
    loads
        What.
    max_seconds
        Stop starting loads after this time, and cut the one running [s].
    seed
        Of the prompts.
    progress
        Called before each load.

    Returns
    -------
    tuple of LoadResult
        In the order of `loads`; loads that were not run any more, or failed, have no point.

    Raises
    ------
    CalibrationError
        When the server does not answer at all.
    """
    deadline = time.monotonic() + max_seconds
    dialect = _probe(server)
    results = []
    for number, load in enumerate(loads):
        if progress is not None:
            what = f"{load.concurrency} x ({load.input_tokens} in, {load.output_tokens} out)"
            progress(number, len(loads), what)
        if time.monotonic() >= deadline:
            results.append(LoadResult(load, None, 0, 0, "not run: time was up"))
            continue
        results.append(_run(server, dialect, load, deadline, seed + 1000 * number))
        # nothing answers any more: the rest would only wait for its timeouts
        if all(r.point is None for r in results[-3:]) and len(results) >= 3 and results[-1].failed:
            raise CalibrationError(
                f"{server.url}: three loads in a row failed, the last with: {results[-1].reason}",
                "Nothing was written.",
            )
    if progress is not None:
        progress(len(loads), len(loads), "done")
    return tuple(results)


def _run(server: Server, dialect: _Dialect, load: Load, deadline: float, seed: int) -> LoadResult:
    share = -(-load.requests // load.concurrency)
    timings: list[_Timing] = []
    reasons: list[str] = []
    lock = threading.Lock()
    stop = threading.Event()
    remaining = [load.concurrency]
    clients = [_Client(server, dialect, seed + worker) for worker in range(load.concurrency)]

    def work(worker: int) -> None:
        client = clients[worker]
        done = failed = 0
        warm = False
        reported = False
        try:
            while not stop.is_set():
                output = load.output_tokens
                if not warm and load.concurrency > 1:
                    output = max(2, round(output * (worker + 1) / load.concurrency))
                try:
                    timing = client.request(load.input_tokens, output, stop)
                    if warm:
                        with lock:
                            if done < share:
                                timings.append(timing)
                        done += 1
                    warm = True
                except _Refused as error:
                    if stop.is_set():
                        break
                    failed += 1
                    with lock:
                        reasons.append(str(error))
                    stop.wait(0.02)
                if not reported and (done >= share or failed >= share + 1):
                    reported = True
                    with lock:
                        remaining[0] -= 1
                        if remaining[0] == 0:
                            stop.set()
        finally:
            client.close()

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(load.concurrency)]
    for thread in threads:
        thread.start()
    stop.wait(max(0.0, deadline - time.monotonic()))
    cut = not stop.is_set()
    stop.set()
    for client in clients:
        client.abort()
    for thread in threads:
        thread.join(5.0)
    with lock:
        found, failed = list(timings), len(reasons)
    reason = reasons[-1] if reasons else ("cut: time was up" if cut else "")
    if len(found) < max(2, load.concurrency // 2) or failed > FAILED_SHARE * (failed + len(found)):
        return LoadResult(load, None, len(found), failed, reason or "too few requests finished")
    point = ServerPoint(
        input_tokens=statistics.fmean(t.prompt_tokens for t in found),
        output_tokens=statistics.fmean(t.output_tokens for t in found),
        concurrency=float(load.concurrency),
        # medians: a stalled connection is not the engine's doing
        tpot_s=statistics.median(t.tpot_s for t in found),
        ttft_s=statistics.median(t.ttft_s for t in found),
    )
    return LoadResult(load, point, len(found), failed, reason)


def summary(results: Sequence[LoadResult]) -> Mapping[str, int]:
    """How many loads were measured and failed, and how many requests."""
    return {
        "loads": sum(r.point is not None for r in results),
        "loads_failed": sum(r.point is None for r in results),
        "requests": sum(r.measured for r in results),
        "requests_failed": sum(r.failed for r in results),
    }
