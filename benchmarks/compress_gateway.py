"""What the gateway adds: latency of uncompressed requests through it and directly, at 200 requests/s on loopback.

    python benchmarks/compress_gateway.py [seconds]

One process each for client, gateway and fake engines; one request in ten is borderline and compressed. Bounded in time and
requests, loopback only.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from multiprocessing import get_context

import aiohttp
from aiohttp import web

RATE = 200.0
ENGINE_PORT, GATEWAY_PORT = 18_611, 18_612
BOUNDARY = 8_192


def engine() -> None:
    """A fake engine that answers at once."""

    async def handle(request: web.Request) -> web.Response:
        body = await request.read()
        return web.json_response({"usage": {"prompt_tokens": len(body) // 4}})

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/completions", handle)
    web.run_app(app, host="127.0.0.1", port=ENGINE_PORT, access_log=None, print=None)


def gateway() -> None:
    """The gateway with both pools on the one fake engine."""
    from planner.compress.gateway import GatewaySettings, listening, serve

    url = f"http://127.0.0.1:{ENGINE_PORT}"
    serve(GatewaySettings(url, url, BOUNDARY, 1.5), listening("127.0.0.1", GATEWAY_PORT))


async def load(port: int, seconds: float, seed: int) -> dict[str, list[float]]:
    """Poisson requests for `seconds`; latencies by kind."""
    rng = random.Random(seed)
    sentences = [f"Remark {k} says that the boundary of pool {k % 7} was changed on day {k % 31}. " for k in range(700)]
    times: dict[str, list[float]] = {"plain": [], "borderline": []}

    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

        async def one(kind: str) -> None:
            size = 20 if kind == "plain" else 480
            body = {"prompt": "".join(rng.sample(sentences, size)), "max_tokens": 100}
            started = time.perf_counter()
            async with session.post("/v1/completions", json=body) as answer:
                await answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"status {answer.status}")
            times[kind].append(time.perf_counter() - started)

        tasks, due, start = [], 0.0, time.perf_counter()
        while due < seconds:
            due += rng.expovariate(RATE)
            await asyncio.sleep(max(0.0, start + due - time.perf_counter()))
            tasks.append(asyncio.create_task(one("borderline" if rng.random() < 0.1 else "plain")))
        await asyncio.wait_for(asyncio.gather(*tasks), 60.0)
    return times


def quantile(values: list[float], q: float) -> float:
    """A quantile in ms."""
    return 1e3 * sorted(values)[min(int(q * len(values)), len(values) - 1)]


async def ready(port: int) -> None:
    """Wait until a server answers, at most half a minute."""
    async with aiohttp.ClientSession() as session:
        for _ in range(300):
            try:
                async with session.post(
                    f"http://127.0.0.1:{port}/v1/completions", json={"prompt": "x", "max_tokens": 1}
                ):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)
    raise RuntimeError(f"nothing answers on port {port}")


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    context = get_context("spawn")
    processes = [context.Process(target=engine), context.Process(target=gateway)]
    for process in processes:
        process.start()
    try:
        for port in (ENGINE_PORT, GATEWAY_PORT):
            asyncio.run(ready(port))
        direct = asyncio.run(load(ENGINE_PORT, seconds, 1))
        through = asyncio.run(load(GATEWAY_PORT, seconds, 1))
        for kind in direct:
            line = ", ".join(
                f"p{100 * q:g} {quantile(through[kind], q) - quantile(direct[kind], q):+.1f} ms"
                for q in (0.5, 0.95, 0.99)
            )
            print(
                f"{kind}: {len(through[kind])} requests, added {line} (direct p99 {quantile(direct[kind], 0.99):.1f} ms)"
            )
    finally:
        for process in processes:
            process.terminate()
            process.join(10.0)


if __name__ == "__main__":
    main()
