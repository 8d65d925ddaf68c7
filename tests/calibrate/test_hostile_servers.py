"""Servers that mean harm or are broken: a clear error within the bound, nothing kept. All on loopback, all self-ending."""

from __future__ import annotations

import contextlib
import gc
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from planner.calibrate.http import Connection, Endpoint, HttpError, parse_json
from planner.calibrate.live import Server
from planner.calibrate.loads import OperatingRange
from planner.calibrate.run import calibrate
from planner.errors import CalibrationError, InputError

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
EVENT = b'data: {"choices":[{"text":"a"}]}\n\n'
LIFE_S = 60.0
SOON_S = 45.0
"""What ends by its own time limit of half a second has ended by now, on any machine; a server here would go on for longer."""

Talk = Callable[[socket.socket, Callable[[], bool]], None]


@contextlib.contextmanager
def hostile(talk: Talk) -> Iterator[str]:
    """A socket that reads a request and then does what `talk` says, for a minute at most."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.02)
    until = time.monotonic() + LIFE_S
    stopped = threading.Event()

    def alive() -> bool:
        return not stopped.is_set() and time.monotonic() < until

    def answer(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(LIFE_S)
            # closing with a request half read would reset the answer away
            request = b""
            while not whole(request):
                if not (piece := connection.recv(65536)):
                    return
                request += piece
            talk(connection, alive)

    def serve() -> None:
        while alive():
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stopped.set()
        thread.join(LIFE_S)
        listener.close()


def whole(request: bytes) -> bool:
    """Whether all of a request has come."""
    head, end, body = request.partition(b"\r\n\r\n")
    wanted = re.search(rb"Content-Length: (\d+)", head)
    return bool(end) and len(body) >= (int(wanted[1]) if wanted else 0)


def stream_for_ever(connection: socket.socket, alive: Callable[[], bool]) -> None:
    connection.sendall(OK)
    while alive():
        connection.sendall(EVENT * 10)
        time.sleep(0.001)


def endless_line(connection: socket.socket, alive: Callable[[], bool]) -> None:
    """2.5 GB without a line's end, made as they are sent."""
    connection.sendall(OK + b"data: ")
    piece = b"x" * 65536
    for _ in range(2_500_000_000 // len(piece)):
        if not alive():
            return
        connection.sendall(piece)


def one_byte_at_a_time(connection: socket.socket, alive: Callable[[], bool]) -> None:
    """A header that never ends: every byte comes well within a socket's timeout."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while alive():
        connection.sendall(b"y")
        time.sleep(0.02)


def headers_for_ever(connection: socket.socket, alive: Callable[[], bool]) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for i in range(100_000):
        if not alive():
            return
        connection.sendall(b"X-%d: y\r\n" % i)


def answers(data: bytes) -> Talk:
    def talk(connection: socket.socket, alive: Callable[[], bool]) -> None:
        connection.sendall(data)

    return talk


def reset(connection: socket.socket, alive: Callable[[], bool]) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


def silence(connection: socket.socket, alive: Callable[[], bool]) -> None:
    while alive():
        time.sleep(0.05)


def page(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


NESTED = OK + b"data: " + b'{"choices":' * 200_000 + b"\n\n"

ENDED_BY_TIME = {"header by the byte", "silence"}
"""All others end by what the server sends, however long a busy machine takes over it."""

CASES: dict[str, tuple[Talk, str]] = {
    "never-ending stream": (stream_for_ever, "goes on after"),
    "2.5 GB line": (endless_line, "larger than 16 MB|longer than 16 MB"),
    "header by the byte": (one_byte_at_a_time, "no complete answer within"),
    "headers for ever": (headers_for_ever, "headers"),
    "nested JSON": (answers(NESTED), "nested more than 64"),
    "not JSON": (answers(OK + b"data: {nope\n\n"), "not OpenAI's"),
    "a number": (answers(OK + b"data: 7\n\n"), "not OpenAI's"),
    "redirect": (answers(page("302 Found", b"", "Location: http://u:p@elsewhere.example/v1")), "redirected to http://elsewhere"),
    "500": (answers(page("500 Internal Server Error", b"boom")), "HTTP 500 Internal Server Error: boom"),
    "401 echoing the key": (answers(page("401 Unauthorized", b"bad key sk-secret-secret-1")), r"bad key \*\*\*"),
    "HTML": (answers(page("200 OK", b"<html>hello</html>", "Content-Type: text/html")), "HTML page"),
    "HTML 404": (answers(page("404 Not Found", b"<!doctype html><h1>nginx")), "HTML page"),
    "reset": (reset, "reset|dropped|closed"),
    "silence": (silence, "no answer in time|no complete answer"),
    "not HTTP": (answers(b"SSH-2.0-OpenSSH_9.6\r\n"), "SSH|BadStatusLine"),
    "empty": (answers(OK), "dropped before the end"),
    "control characters": (answers(page("400 Bad", b"\x1b[31mred\x00")), r"HTTP 400 Bad: \\x1b\[31mred"),
    "usage of nonsense": (
        answers(OK + EVENT + b'data: {"choices":[],"usage":{"completion_tokens":1e999}}\n\ndata: [DONE]\n\n'),
        "one event|nothing to time",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_server_is_a_clear_error_within_the_bound(case: str) -> None:
    talk, told = CASES[case]
    seconds = 0.4 if case in ENDED_BY_TIME else LIFE_S
    with hostile(talk) as url:
        started = time.monotonic()
        server = Server(url, "m", "sk-secret-secret-1", timeout_s=seconds, start_wait_s=0.1)
        with pytest.raises(CalibrationError, match=told) as caught:
            calibrate(server=server, max_seconds=1.5 * seconds, reach=OperatingRange(max_input=64, max_output=16))
        assert time.monotonic() - started < SOON_S
    message = str(caught.value)
    assert "secret" not in message and "u:p" not in message
    assert message.isprintable() or "\n" in message
    assert len(message) < 800


def test_a_slow_stream_ends_with_the_time() -> None:
    """Tokens that come, but too slowly for the bound: the run ends in time and says so."""

    def slow(connection: socket.socket, alive: Callable[[], bool]) -> None:
        connection.sendall(OK)
        while alive():
            connection.sendall(EVENT)
            time.sleep(0.2)

    with hostile(slow) as url:
        started = time.monotonic()
        with pytest.raises(CalibrationError, match="no complete answer within"):
            calibrate(server=Server(url, "m", timeout_s=LIFE_S, start_wait_s=0.1), max_seconds=0.5)
        assert time.monotonic() - started < SOON_S


def test_what_is_cut_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is ended from outside, on a connection used before, does not come back on a new one."""
    # however long a busy machine takes between the two
    monkeypatch.setattr(sys.modules[Connection.__module__], "GRACE_S", LIFE_S)
    seen: list[bytes] = []
    came = threading.Event()

    def keeps(connection: socket.socket, alive: Callable[[], bool]) -> None:
        seen.append(b"first")
        head = OK.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(head + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        while alive():
            with contextlib.suppress(TimeoutError):
                if not (more := connection.recv(65536)):
                    return
                seen.append(more)
                came.set()

    with hostile(keeps) as url:
        connection = Connection(Endpoint.parse(url), LIFE_S)
        with connection.events("/v1/completions", b"{}", LIFE_S) as events:
            assert [data for _, data in events] == [b"[DONE]"]
        threading.Thread(target=lambda: came.wait(LIFE_S) and connection.abort(), daemon=True).start()
        with pytest.raises(HttpError), connection.events("/v1/completions", b"{}", LIFE_S) as events:
            list(events)
        time.sleep(0.2)
        # A request's head and body may arrive apart: what counts is one connection and one further request on it.
        assert seen.count(b"first") == 1 and b"".join(seen).count(b"POST") == 1


def test_pages_are_bounded_too() -> None:
    with hostile(endless_line) as url, pytest.raises(HttpError, match="larger than 16 MB"):
        Connection(Endpoint.parse(url), LIFE_S).get("/metrics", LIFE_S)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://h:99999", "out of range"),
        ("http://h:port", "Port"),
        ("http://h:0", "port 0"),
        ("ftp://h", "not http"),
        ("http://", "not http"),
        ("localhost:8000", "not http"),
        ("http://[::1", "Invalid IPv6"),
        ("http://a b", "blanks"),
        ("http://h\r\nX: y", "control characters"),
        ("http://" + "a" * 70 + ".x", "host name"),
    ],
)
def test_addresses_that_are_none_are_input_errors(url: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        Server(url, "m")


def test_keys_no_header_can_carry_are_input_errors() -> None:
    with pytest.raises(InputError, match="key") as caught:
        Server("http://h", "m", "geheim\nX: y")
    assert "geheim" not in str(caught.value)
    assert "hunter2" not in repr(Server("http://me:hunter2@h", "m")) and "key1" not in repr(
        Server("http://h", "m", "key1")
    )


def test_deep_strings_are_not_deep_json() -> None:
    assert parse_json('{"text": "' + "[" * 1000 + '"}')["text"] == "[" * 1000
    assert parse_json("[" * 64 + "]" * 64)
    with pytest.raises(HttpError, match="nested"):
        parse_json("[" * 65 + "]" * 65)


def test_a_connection_that_is_made_too_late_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hardly any time, whoever asked has gone when the connection is there."""
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as silent:
        endpoint = Endpoint.parse(f"http://127.0.0.1:{silent.getsockname()[1]}")
        for k in range(400):
            with contextlib.closing(Connection(endpoint, 1.0)) as connection, contextlib.suppress(HttpError):
                connection.get("/", 1e-6 * (1 + k))
        for thread in threading.enumerate():
            if thread.name.endswith("(connect)"):
                thread.join(SOON_S)
        gc.collect()
    assert lost == []
