"""The paper's gateway, running: an OpenAI-compatible proxy that routes by length and compresses what is borderline.

Prompts are never logged or written. Memory is bounded: bodies, requests in flight and compressions waiting have limits.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from typing import Any

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from planner.compress.extract import Compression, CompressorSettings, compress, compress_prompt, prompt_tokens, texts_of
from planner.compress.tokens import LearnedBytes, TokenCounter, by_bytes, by_tokenizer
from planner.errors import InputError
from planner.shared.cores import end_with_parent
from planner.shared.documents import printable

_HOP_BY_HOP = {
    *("accept-encoding", "connection", "content-length", "host", "keep-alive", "proxy-authenticate"),
    *("proxy-authorization", "te", "trailers", "transfer-encoding", "upgrade"),
}
"""Headers that belong to one connection (RFC 9110, section 7.6.1), and those the proxy sets itself."""

MOST_PORTS = 65_535
"""Largest port there is."""

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
"""Bounds of the histogram of compressing times [s]."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """How the gateway routes.

    Parameters
    ----------
    short_url, long_url
        Base addresses of the two pools, without ``/v1``.
    boundary, gamma
        B_short [tokens]; requests above it and up to gamma times it are compressed when they may be.
    default_output_tokens
        Output length taken for requests that set no limit of their own [tokens].
    tokenizer
        A ``tokenizer.json``; ``None`` = bytes per token, learned from the counts the engines report.
    compressor
        Of :mod:`planner.compress.extract`.
    retries
        Further tries at an upstream that cannot be reached.
    fall_back
        Whether the long pool takes what the short one cannot be reached for; it can serve any length.
    max_body_bytes, max_in_flight, max_waiting
        Limits: body and buffered answer [bytes], requests at once, compressions queued or running.
    connect_timeout_s, read_timeout_s
        To reach an upstream; between two pieces of its answer [s].
    workers
        Processes that compress.
    """

    short_url: str
    long_url: str
    boundary: int
    gamma: float = 1.5
    default_output_tokens: int = 512
    tokenizer: str | None = None
    compressor: CompressorSettings = field(default_factory=CompressorSettings)
    retries: int = 1
    fall_back: bool = True
    max_body_bytes: int = 16 * 1024 * 1024
    max_in_flight: int = 1024
    max_waiting: int = 32
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 300.0
    workers: int = 1


class _Metrics:
    """Prometheus metrics of one gateway."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def kept(kind: Any, name: str, told: str, *labels: str, **options: Any) -> Any:
            return kind(f"fleetopt_gateway_{name}", told, labels, registry=self.registry, **options)

        self.requests = kept(Counter, "requests", "Requests by pool and outcome.", "pool", "outcome")
        self.borderline = kept(Counter, "borderline", "Borderline requests by what became of them.", "result")
        self.tokens_removed = kept(Counter, "tokens_removed", "Prompt tokens left out.")
        self.errors = kept(Counter, "upstream_errors", "Upstream failures by pool.", "pool")
        self.in_flight = kept(Gauge, "in_flight", "Requests in flight.")
        told = "From the whole request to its forwarding."
        self.overhead = kept(Histogram, "overhead_seconds", told, "compressed", buckets=_BUCKETS)


@dataclass(frozen=True, slots=True)
class _Route:
    """Where a request goes and with what body."""

    pool: str
    body: bytes
    compressed: bool
    category: str
    prompt_bytes: int


class Gateway:
    """Routes, compresses and forwards; one per application."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.metrics = _Metrics()
        self.learned = LearnedBytes()
        self._exact: TokenCounter | None = None if settings.tokenizer is None else by_tokenizer(settings.tokenizer)
        self._in_flight = 0
        self.metrics.in_flight.set_function(lambda: self._in_flight)
        self._waiting = 0
        self._pool: ProcessPoolExecutor | None = None
        self._session: aiohttp.ClientSession | None = None

    async def run(self, app: web.Application) -> AsyncIterator[None]:
        """Start with the application, stop with it (aiohttp's cleanup context)."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self.settings.connect_timeout_s, sock_read=self.settings.read_timeout_s
        )
        self._session = aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
        )
        self._pool = ProcessPoolExecutor(
            self.settings.workers, mp_context=get_context("spawn"), initializer=end_with_parent
        )
        # the first compression of a process loads its libraries: before the first request, not with it
        await asyncio.get_running_loop().run_in_executor(self._pool, _warm_up)
        yield
        await self._session.close()
        self._pool.shutdown(cancel_futures=True)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One completion request."""
        if self._in_flight >= self.settings.max_in_flight:
            self.metrics.requests.labels("none", "refused").inc()
            return _error(503, "the gateway has as many requests in flight as it may", "overloaded")
        self._in_flight += 1
        try:
            return await self._handle(request)
        finally:
            self._in_flight -= 1

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            raw = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"the body is larger than {self.settings.max_body_bytes:,} bytes", "too_large")
        started = time.perf_counter()
        try:
            data = json.loads(raw)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            return _error(400, "the body is not a JSON object", "invalid_request")
        route = await self._route(data, raw, request.headers)
        self.metrics.overhead.labels("yes" if route.compressed else "no").observe(time.perf_counter() - started)
        return await self._forward(request, route, bool(data.get("stream")))

    # --- routing --------------------------------------------------------------------------------------------------

    async def _route(self, data: dict[str, Any], raw: bytes, headers: Mapping[str, str]) -> _Route:
        """The pool a request fits, compressed when that makes it fit the short one."""
        s = self.settings
        prompt = data.get("messages", data.get("prompt"))
        texts = texts_of(prompt)
        size = _size(texts)
        category = headers.get("x-fleetopt-category") or "all"
        output = _output_limit(data) or s.default_output_tokens
        # a token is at least one byte: what cannot exceed the boundary need not be counted
        if size + 16 * len(texts) + output <= s.boundary:
            return _Route("short", raw, False, category, size)
        count = self._exact or by_bytes(self.learned.bytes_per_token(category))
        # an exact tokenizer works beside the event loop
        exact = self._exact is not None
        tokens = await asyncio.to_thread(prompt_tokens, prompt, count) if exact else prompt_tokens(prompt, count)
        if tokens + output <= s.boundary:
            return _Route("short", raw, False, category, size)
        wanted = headers.get("x-fleetopt-compress", "").lower() != "never"
        borderline = wanted and tokens + output <= s.gamma * s.boundary
        shorter = await self._compress(prompt, s.boundary - output, category) if borderline else None
        if shorter is None:
            return _Route("long", raw, False, category, size)
        key = "messages" if "messages" in data else "prompt"
        body = json.dumps({**data, key: shorter}, ensure_ascii=False).encode("utf-8", "surrogatepass")
        return _Route("short", body, True, category, _size(texts_of(shorter)))

    async def _compress(self, prompt: Any, budget: int, category: str) -> Any:
        """The compressed prompt, or ``None`` when it has to stay as it is."""
        if not isinstance(prompt, (str, list)) or self._pool is None:
            self.metrics.borderline.labels("not_text").inc()
            return None
        if self._waiting >= self.settings.max_waiting:
            self.metrics.borderline.labels("busy").inc()
            return None
        self._waiting += 1
        per_token = self.learned.bytes_per_token(category)
        try:
            done = await asyncio.get_running_loop().run_in_executor(
                self._pool, _compress_task, prompt, budget, self.settings.tokenizer, per_token, self.settings.compressor
            )
        finally:
            self._waiting -= 1
        self.metrics.borderline.labels(done.reason or "compressed").inc()
        if not done.compressed:
            return None
        self.metrics.tokens_removed.inc(done.tokens_before - done.tokens_after)
        return done.prompt

    # --- forwarding -----------------------------------------------------------------------------------------------

    async def _forward(self, request: web.Request, route: _Route, streaming: bool) -> web.StreamResponse:
        """Try the pool, again as configured, then the long pool; an answer begun is never begun again."""
        s = self.settings
        pools = [route.pool] * (1 + s.retries)
        if route.pool == "short" and s.fall_back:
            pools.append("long")
        problem = ""
        for pool in pools:
            try:
                answer = await self._try(request, route, pool, streaming)
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = type(error).__name__
                self.metrics.errors.labels(pool).inc()
                continue
            self.metrics.requests.labels(pool, str(answer.status)).inc()
            return answer
        self.metrics.requests.labels(route.pool, "502").inc()
        return _error(502, f"the {route.pool} pool cannot be reached ({problem})", "upstream_unavailable")

    async def _try(self, request: web.Request, route: _Route, pool: str, streaming: bool) -> web.StreamResponse:
        assert self._session is not None
        base = self.settings.short_url if pool == "short" else self.settings.long_url
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        headers["Accept-Encoding"] = "identity"  # answers are passed on, and read for their token counts, as they are
        url = base.rstrip("/") + request.path_qs
        async with self._session.request(request.method, url, data=route.body, headers=headers) as upstream:
            own = {k: v for k, v in upstream.headers.items() if k.lower() not in _HOP_BY_HOP}
            own |= {"x-fleetopt-pool": pool, "x-fleetopt-compressed": "1" if route.compressed else "0"}
            if not streaming:
                # whole before it is passed on: an upstream that dies half-way is a retry, not half an answer
                body = await _bounded(upstream, self.settings.max_body_bytes)
                self._learn(route, body)
                return web.Response(status=upstream.status, headers=own, body=body)
            return await self._stream(request, upstream, own, route)

    async def _stream(
        self, request: web.Request, upstream: aiohttp.ClientResponse, headers: Mapping[str, str], route: _Route
    ) -> web.StreamResponse:
        """Pass pieces on as they come; once begun, a failure ends the stream with an error event."""
        answer = web.StreamResponse(status=upstream.status, headers=headers)
        piece = await upstream.content.readany()
        await answer.prepare(request)
        try:
            while piece:
                if b'"usage"' in piece and b"prompt_tokens" in piece:
                    self._learn(route, piece)
                await answer.write(piece)
                piece = await upstream.content.readany()
        except (aiohttp.ClientError, TimeoutError) as error:
            self.metrics.errors.labels(headers["x-fleetopt-pool"]).inc()
            event = {"error": {"message": f"the upstream broke off ({type(error).__name__})", "type": "upstream_error"}}
            await answer.write(b"\n\ndata: " + json.dumps(event).encode() + b"\n\n")
        await answer.write_eof()
        return answer

    def _learn(self, route: _Route, body: bytes) -> None:
        """Bytes per token from what the engine counted."""
        place = body.rfind(b'"prompt_tokens"')
        if place < 0 or self._exact is not None:
            return
        digits = body[place + 15 : place + 40].lstrip(b" :").split(b",")[0].split(b"}")[0].strip()
        if digits.isdigit():
            self.learned.observe(route.category, route.prompt_bytes, int(digits))

    async def metrics_page(self, request: web.Request) -> web.Response:
        """Prometheus text format."""
        return web.Response(
            body=generate_latest(self.metrics.registry), headers={"Content-Type": "text/plain; version=0.0.4"}
        )

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """Anything that is not a completion (models, health of the engine): the short pool answers."""
        route = _Route("short", await request.read(), False, "all", 0)
        return await self._forward(request, route, False)


def make_app(settings: GatewaySettings) -> web.Application:
    """The application of one gateway."""
    if not (math.isfinite(settings.gamma) and settings.gamma >= 1.0):
        raise ValueError(f"gamma must be at least 1, got {settings.gamma!r}")
    gateway = Gateway(settings)
    app = web.Application(client_max_size=settings.max_body_bytes)
    app.cleanup_ctx.append(gateway.run)
    app.router.add_post("/v1/chat/completions", gateway.handle)
    app.router.add_post("/v1/completions", gateway.handle)
    app.router.add_get("/metrics", gateway.metrics_page)
    app.router.add_route("GET", "/{path:.*}", gateway.pass_on)
    return app


def listening(host: str, port: int) -> list[socket.socket]:
    """Sockets on every address of a host, so that a port that is taken is told before anything is started.

    Raises
    ------
    InputError
        No such host, no such port, or one that cannot be had.
    """
    found: list[socket.socket] = []
    # the resolver would take the rest of a division
    if not 0 <= port <= MOST_PORTS:
        raise InputError(f"--port: expected one of 0 to {MOST_PORTS:,}, got {port}")
    try:
        for family, _, _, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            found.append(socket.create_server(address, family=family, backlog=128))
    # a name too long is a UnicodeError
    except (OSError, UnicodeError) as error:
        for one in found:
            one.close()
        told = getattr(error, "strerror", None) or error
        raise InputError(f"--host, --port: cannot listen on {printable(host)}:{port} ({told})") from None
    return found


def serve(settings: GatewaySettings, sockets: Sequence[socket.socket]) -> None:
    """Run until interrupted on sockets of :func:`listening`."""
    web.run_app(make_app(settings), sock=sockets, access_log=None, print=None)


def _error(status: int, message: str, kind: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": kind, "code": status}}, status=status)


async def _bounded(upstream: aiohttp.ClientResponse, limit: int) -> bytes:
    """The whole answer, at most `limit` bytes of it."""
    pieces = []
    size = 0
    async for piece in upstream.content.iter_any():
        size += len(piece)
        if size > limit:
            raise aiohttp.ClientPayloadError(f"an answer of more than {limit} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _size(texts: Sequence[str]) -> int:
    """Bytes of texts."""
    return sum(len(t.encode("utf-8", "surrogatepass")) for t in texts)


def _output_limit(data: Mapping[str, Any]) -> int | None:
    """Output tokens a request allows itself."""
    limits = (data.get(key) for key in ("max_completion_tokens", "max_tokens"))
    return next((limit for limit in limits if type(limit) is int and limit > 0), None)


# --- in the compressing process -----------------------------------------------------------------------------------

_tokenizer = cache(by_tokenizer)


def _warm_up() -> None:
    """Load the libraries with a first compression."""
    compress("One sentence. Two sentences. " * 10, 20, by_bytes(), content="prose")


def _compress_task(
    prompt: Any, budget: int, tokenizer: str | None, bytes_per_token: float, settings: CompressorSettings
) -> Compression:
    """A prompt, compressed where that is possible."""
    count = by_bytes(bytes_per_token) if tokenizer is None else _tokenizer(tokenizer)
    return compress_prompt(prompt, budget, count, settings)
