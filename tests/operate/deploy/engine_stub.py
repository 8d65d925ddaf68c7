"""A server that streams as an engine does: ``python engine_stub.py HOST PORT SECONDS``.

It answers health checks, takes `SECONDS` for a request, closes idle connections after 5 s as uvicorn does, and, told to end,
takes no more connections and finishes what it has. Three tokens come in one event.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

IDLE_S = 5.0
TOGETHER = 3


class Stub:
    def __init__(self, host: str, port: int, seconds: float) -> None:
        self.host, self.port, self.seconds = host, port, seconds
        self.under_way = 0
        self.ending = asyncio.Event()

    async def run(self) -> None:
        server = await asyncio.start_server(self.serve, self.host, self.port)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.ending.set)
        print("ready", flush=True)
        await self.ending.wait()
        server.close()
        while self.under_way:
            await asyncio.sleep(0.02)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Requests of one connection, one after another."""
        try:
            while True:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), IDLE_S)
                length = next((int(h[15:]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:")), 0)
                asked = json.loads(await reader.readexactly(length) or b"{}")
                self.under_way += 1
                try:
                    await self.answer(head, asked, writer)
                finally:
                    self.under_way -= 1
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def answer(self, head: bytes, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        own = f"HTTP/1.1 200 OK\r\nx-server: {self.host}\r\n".encode()
        if head.startswith(b"GET /health"):
            writer.write(own + b"content-length: 0\r\n\r\n")
        else:
            writer.write(own + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            tokens = int(asked.get("max_tokens", 10))
            usage = {"prompt_tokens": len(asked.get("prompt", ())), "completion_tokens": tokens}
            events = [{"choices": [{"text": "x"}]}] * (1 if tokens == TOGETHER else tokens) + [
                {"choices": [], "usage": usage}
            ]
            for event in (*map(json.dumps, events), "[DONE]"):
                if "text" in event:
                    await asyncio.sleep(self.seconds / (1 if tokens == TOGETHER else tokens))
                data = f"data: {event}\n\n".encode()
                writer.write(b"%x\r\n%s\r\n" % (len(data), data))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        await writer.drain()


async def main() -> None:
    await Stub(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])).run()


if __name__ == "__main__":
    asyncio.run(main())
