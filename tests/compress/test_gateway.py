"""The gateway between real HTTP clients and fake engines, all on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from planner.compress import gateway
from planner.compress.gateway import GatewaySettings

BOUNDARY = 2_000
SENTENCE = "Remark {k} says that the {a} of the {b} was changed by the operator on day {c}. "


def prose(tokens: int) -> str:
    """A text of about that many tokens at three bytes each."""
    rng = random.Random(tokens)
    text = ""
    while len(text) < 3 * tokens:
        k, a, b = len(text), rng.choice(["boundary", "queue", "budget"]), rng.choice(["pool", "replica", "fleet"])
        text += SENTENCE.format(k=k, a=a, b=b, c=rng.randint(1, 400))
    return text[: 3 * tokens]


class Engine:
    """A fake engine: remembers what it was sent, answers as told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[dict[str, Any]] = []
        self.behave = "answer"
        self.failures_left = 0

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": []})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        data = await request.json()
        self.seen.append(data)
        if self.behave == "500":
            return web.json_response({"error": "engine"}, status=500, headers={"x-engine": self.name})
        if self.behave == "die" or self.failures_left > 0:
            self.failures_left -= 1
            answer = web.StreamResponse(headers={"Content-Length": "1000"})
            await answer.prepare(request)
            await answer.write(b'{"half": ')
            assert request.transport is not None
            request.transport.abort()
            return answer
        if data.get("stream"):
            answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await answer.prepare(request)
            for k in range(5):
                await answer.write(f'data: {{"n": {k}}}\n\n'.encode())
                await asyncio.sleep(0.002)
                if self.behave == "die in stream" and k == 2:
                    assert request.transport is not None
                    request.transport.abort()
                    return answer
            await answer.write(b"data: [DONE]\n\n")
            return answer
        size = len(json.dumps(data.get("messages", data.get("prompt"))))
        return web.json_response({"engine": self.name, "usage": {"prompt_tokens": size // 4, "completion_tokens": 1}})


Check = Callable[[Any, Engine, Engine], Awaitable[None]]


def with_gateway(check: Check, *, compresses: bool = False, **changes: Any) -> None:
    """Run `check(client session bound to the gateway, short engine, long engine)`.

    What compresses nothing does not wait for the libraries of it, which each gateway's process loads anew.
    """

    async def run() -> None:
        async with AsyncExitStack() as stack:
            engines, urls = [], []
            for name in ("short", "long"):
                engine = Engine(name)
                app = web.Application(client_max_size=1 << 26)
                app.router.add_post("/v1/{path:.*}", engine.handle)
                app.router.add_get("/v1/models", engine.models)
                server = TestServer(app)
                await server.start_server()
                stack.push_async_callback(server.close)
                engines.append(engine)
                urls.append(str(server.make_url("")))
            usual = GatewaySettings(urls[0], urls[1], BOUNDARY, 2.0, default_output_tokens=100)
            server = TestServer(gateway.make_app(replace(usual, **changes)))
            await server.start_server()
            stack.push_async_callback(server.close)
            session = await stack.enter_async_context(aiohttp.ClientSession(server.make_url("")))
            await asyncio.wait_for(check(session, *engines), 60.0)

    with pytest.MonkeyPatch.context() as patch:
        if not compresses:
            patch.setattr(gateway, "_warm_up", os.getpid)
        asyncio.run(run())


def completion(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": text, "max_tokens": 100, **more}


def test_routing_and_compression() -> None:
    async def check(client: Any, short: Engine, long: Engine) -> None:
        for tokens, pool, compressed in ((500, "short", "0"), (2_500, "short", "1"), (6_000, "long", "0")):
            async with client.post("/v1/completions", json=completion(prose(tokens))) as answer:
                assert answer.status == 200
                assert (answer.headers["x-fleetopt-pool"], answer.headers["x-fleetopt-compressed"]) == (
                    pool,
                    compressed,
                )
                assert (await answer.json())["engine"] == pool
        sent = short.seen[-1]
        # T_c + L_out <= B (paper, eq. 15) as the engine counts, though the gateway only learns its bytes per token
        assert 0.5 * BOUNDARY < len(json.dumps(sent["prompt"])) // 4 + 100 <= BOUNDARY
        assert {k: v for k, v in sent.items() if k != "prompt"} == {"model": "m", "max_tokens": 100}
        code = "def f(x):\n    return x + 1\n\n\n" * 280
        async with client.post("/v1/completions", json=completion(code)) as answer:
            assert answer.headers["x-fleetopt-pool"] == "long"
        assert long.seen[-1]["prompt"] == code
        never = {"x-fleetopt-compress": "never"}
        async with client.post("/v1/completions", json=completion(prose(2_600)), headers=never) as answer:
            assert answer.headers["x-fleetopt-pool"] == "long"
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prose(2_700)}]
        body = {"messages": messages, "max_completion_tokens": 50}
        async with client.post("/v1/chat/completions", json=body) as answer:
            assert answer.headers["x-fleetopt-pool"] == "short"
        assert short.seen[-1]["messages"][0] == messages[0]
        async with client.get("/v1/models") as answer:
            assert await answer.json() == {"data": []}
        async with client.get("/metrics") as answer:
            page = await answer.text()
        assert 'fleetopt_gateway_borderline_total{result="compressed"} 2.0' in page
        assert 'fleetopt_gateway_borderline_total{result="gate"} 1.0' in page
        assert "Remark" not in page

    with_gateway(check, compresses=True)


def test_streams_are_passed_on() -> None:
    async def check(client: Any, short: Engine, long: Engine) -> None:
        async with client.post("/v1/completions", json=completion("Hello.", stream=True)) as answer:
            text = await answer.text()
        assert text.count("data: ") == 6 and text.endswith("data: [DONE]\n\n")
        short.behave = "die in stream"
        async with client.post("/v1/completions", json=completion("Hello.", stream=True)) as answer:
            text = await answer.text()
        # what came is passed on, the failure is said, nothing is sent twice
        assert text.count('"n"') == 3 and "upstream_error" in text and len(long.seen) == 0

    with_gateway(check)


def test_upstream_errors() -> None:
    async def check(client: Any, short: Engine, long: Engine) -> None:
        short.behave = "500"
        async with client.post("/v1/completions", json=completion("Hello.")) as answer:
            assert answer.status == 500 and answer.headers["x-engine"] == "short"
        short.behave, short.failures_left = "answer", 1
        async with client.post("/v1/completions", json=completion("Hello.")) as answer:
            assert answer.status == 200 and (await answer.json())["engine"] == "short"
        short.behave = "die"
        async with client.post("/v1/completions", json=completion("Hello.")) as answer:
            assert answer.status == 200 and (await answer.json())["engine"] == "long"
        long.behave = "die"
        async with client.post("/v1/completions", json=completion("Hello.")) as answer:
            assert answer.status == 502
            assert (await answer.json())["error"]["type"] == "upstream_unavailable"

    with_gateway(check)


def test_nothing_listens() -> None:
    async def check(client: Any, short: Engine, long: Engine) -> None:
        async with client.post("/v1/completions", json=completion("Hello.")) as answer:
            assert answer.status == 502 and "short pool" in (await answer.json())["error"]["message"]

    # port 9 (discard) of loopback: nothing listens there
    with_gateway(check, short_url="http://127.0.0.1:9", fall_back=False, retries=2)


def test_limits() -> None:
    async def check(client: Any, short: Engine, long: Engine) -> None:
        async with client.post("/v1/completions", data=b"{") as answer:
            assert answer.status == 400
        async with client.post("/v1/completions", data=b"[1]") as answer:
            assert answer.status == 400
        async with client.post("/v1/completions", data=b"[" * 50_000) as answer:
            assert answer.status in (400, 413)
        async with client.post("/v1/completions", json=completion("x" * 300_000)) as answer:
            assert answer.status == 413

    with_gateway(check, max_body_bytes=200_000)

    async def refused(client: Any, short: Engine, long: Engine) -> None:
        async with client.post("/v1/completions", json=completion("Hello.")) as answer:
            assert answer.status == 503

    with_gateway(refused, max_in_flight=0)
