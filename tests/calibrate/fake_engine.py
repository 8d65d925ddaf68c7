"""An OpenAI-compatible server on loopback whose iterations take what a known model says; with faults to order."""

from __future__ import annotations

import json
import queue
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from planner.machine.iteration import IterationModel


@dataclass
class Job:
    """One request in the engine."""

    prompt: int
    output: int
    sent: int = 0
    tokens: queue.Queue[bool] = field(default_factory=queue.Queue)


class FakeEngine:
    """Mixed batching: every iteration decodes all running requests and runs the prompts that arrived.

    Parameters
    ----------
    model
        Time of an iteration.
    fault
        ``""``; ``500`` every request fails; ``400-extras`` rejects fields only some engines know; ``hang`` never answers,
        ``silent`` not after two requests; ``drop`` closes every eighth stream half way; ``garbage`` streams something else;
        ``cold`` answers 503 at first and is slow on its first requests.
    pages
        What GET answers, by path; everything else is 404.
    burst
        Tokens per event of a stream.
    port
        To listen on; any free one when 0.
    pace
        How many times slower than `model` it is.
    """

    def __init__(
        self,
        model: IterationModel,
        fault: str = "",
        *,
        pages: dict[str, str] | None = None,
        burst: int = 1,
        port: int = 0,
        pace: float = 1.0,
    ) -> None:
        self.model = model
        self.pace = pace
        self.pages = pages or {}
        self.burst = burst
        self.fault = fault
        self.requests = 0
        self.bodies: list[dict[str, Any]] = []
        self.born = time.monotonic()
        self.lock = threading.Condition()
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.stopped = False
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                engine.serve(self)

            def do_GET(self) -> None:
                engine.page(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> FakeEngine:
        self.threads = [
            threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True),
            threading.Thread(target=self.loop, daemon=True),
        ]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.lock:
            self.stopped = True
            self.lock.notify_all()
        self.server.shutdown()
        self.server.server_close()
        for thread in self.threads:
            thread.join(60.0)

    def loop(self) -> None:
        """Iterations, one after another, on an absolute clock: a late wake-up does not add up."""
        clock = time.perf_counter()
        while True:
            with self.lock:
                while not (self.waiting or self.running or self.stopped):
                    self.lock.wait(0.5)
                    clock = time.perf_counter()
                if self.stopped:
                    # whoever still reads is told, or would complain in a minute, in the middle of another test
                    for job in (*self.running, *self.waiting):
                        job.tokens.put(True)
                    return
                new, self.waiting = self.waiting, []
            decodes = list(self.running)
            prompt = sum(j.prompt for j in new)
            pairs = sum(0.5 * j.prompt * (j.prompt + 1) for j in new)
            context = sum(j.prompt + j.sent for j in decodes)
            took = self.pace * self.model.time(len(decodes), context, prompt, pairs)
            clock = max(clock, time.perf_counter() - 0.02 * self.pace) + took
            time.sleep(max(0.0, clock - time.perf_counter()))
            for job in (*decodes, *new):
                job.sent += 1
                job.tokens.put(job.sent >= job.output)
            self.running = [j for j in (*decodes, *new) if j.sent < j.output]

    def page(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a GET."""
        if handler.path not in self.pages:
            return self.refuse(handler, 404, "not found")
        data = self.pages[handler.path].encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
        return None

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self.lock:
            self.requests += 1
            number = self.requests
            self.bodies.append(body)
        if self.fault == "500" or (self.fault == "cold" and time.monotonic() - self.born < 0.3 * self.pace):
            return self.refuse(handler, 503 if self.fault == "cold" else 500, "model is loading")
        if self.fault == "400-extras" and "ignore_eos" in body:
            return self.refuse(handler, 400, "unknown field ignore_eos")
        if self.fault == "hang" or (self.fault == "silent" and number > 2):
            with self.lock:
                self.lock.wait_for(lambda: self.stopped, 60.0)
            return None
        if self.fault == "cold" and number < 6:
            time.sleep(0.2 * self.pace)
        prompt = body["prompt"]
        job = Job(len(prompt) if isinstance(prompt, list) else len(prompt.split()), int(body["max_tokens"]))
        with self.lock:
            if self.stopped:
                handler.close_connection = True
                return None
            self.waiting.append(job)
            self.lock.notify_all()
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        dropped = self.fault == "drop" and number % 8 == 0

        def chunk(text: str) -> None:
            data = f"data: {text}\n\n".encode()
            handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            handler.wfile.flush()

        try:
            finished = False
            while not finished:
                for _ in range(self.burst):
                    finished = finished or job.tokens.get(timeout=60.0)
                if dropped and job.sent > job.output // 2:
                    handler.close_connection = True
                    handler.connection.close()
                    return None
                chunk("not json" if self.fault == "garbage" else json.dumps({"choices": [{"text": " a"}]}))
            if body.get("stream_options"):
                usage = {"prompt_tokens": job.prompt, "completion_tokens": job.sent}
                chunk(json.dumps({"choices": [], "usage": usage}))
            chunk("[DONE]")
            handler.wfile.write(b"0\r\n\r\n")
        except OSError:
            # the client hung up
            handler.close_connection = True
        return None

    @staticmethod
    def refuse(handler: BaseHTTPRequestHandler, status: int, message: str) -> None:
        """An error with a short body."""
        data = json.dumps({"error": message}).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
