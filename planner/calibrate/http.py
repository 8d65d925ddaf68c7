"""Requests to a server nobody vouches for: every wait, line and body is bounded, and no secret leaves in a message.

Whoever talks to a user's server goes through here: measuring it, and checking a fleet against it.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import math
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from planner.errors import InputError
from planner.shared.documents import check_depth, counted, printable

LARGEST_BODY = 16 * 2**20
"""Of a page, an answer or a line of a stream of events [bytes]."""
GRACE_S = 0.5
"""How long the end of a body may take after its last event [s]."""
ASKING_S = 5.0
"""Longest wait for one answer of a server, which may be starting, or of a tool [s]."""
SHORTEST_SECRET = 6
"""Pieces of a key this long are blotted out of messages; shorter ones would blot out ordinary words [characters]."""

PORTS = {"http": http.client.HTTP_PORT, "https": http.client.HTTPS_PORT}
"""Schemes of addresses, and the ports that need not be said."""

_CREDENTIALS = re.compile(r"(?i)\b(https?://)[^\s/@'\"]*@")
_QUERY = re.compile(r"(?i)\b(https?://[^\s?#'\"]+)\?[^\s'\"]*")


class HttpError(Exception):
    """The server did not answer as it should; the message is fit for users.

    Parameters
    ----------
    message
        What happened, without secrets.
    status
        HTTP status where there was one, else 0.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def without_credentials(text: str) -> str:
    """A text with user names, passwords and queries taken out of every address in it.

    >>> without_credentials("fleetopt calibrate --server https://me:secret@host:8000/v1?key=abc")
    'fleetopt calibrate --server https://host:8000/v1'
    """
    return _QUERY.sub(r"\1", _CREDENTIALS.sub(r"\1", text))


def parse_json(data: bytes | str, what: str = "the answer") -> Any:
    """JSON of bounded depth.

    Parameters
    ----------
    data
        Text; its size is bounded by whoever read it.
    what
        For messages.

    Raises
    ------
    HttpError
        Not JSON, or nested deeper than 64 levels.

    Examples
    --------
    >>> parse_json(b'{"a": [1]}')
    {'a': [1]}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    planner.calibrate.http.HttpError: the answer: nested more than 64 levels deep
    """
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    try:
        check_depth(text, what)
        return json.loads(text, parse_int=counted)
    except InputError as error:
        raise HttpError(error.message) from None
    except ValueError as error:
        raise HttpError(f"{what} is not JSON ({printable(str(error))})") from None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is, with its credentials kept apart from its address.

    Parameters
    ----------
    scheme, host, port, path
        Of the address; `path` without ``/v1`` and without a trailing slash.
    authorization
        Value of the header, where there is one.
    secrets
        What must not appear in any text.
    """

    scheme: str
    host: str
    port: int
    path: str
    authorization: str | None = field(default=None, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> Endpoint:
        """Check an address and take the credentials out of it.

        Parameters
        ----------
        url
            ``http(s)://[user:password@]host[:port][/path]``; ``/v1`` may follow.
        api_key
            Sent as a bearer token.

        Raises
        ------
        InputError
            Another scheme, no host, a port that is none, characters that do not belong in an address or key.

        Examples
        --------
        >>> str(Endpoint.parse("http://me:secret@localhost:8000/v1"))
        'http://localhost:8000'
        """
        shown = without_credentials(url)
        hint = "An address is http(s)://host[:port], e.g. http://localhost:8000."
        if not url.isprintable() or " " in url:
            raise InputError("the server address contains blanks or control characters", hint)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
            host.encode("idna")
        except ValueError as error:
            told = f"{host!r} cannot be a host name" if isinstance(error, UnicodeError) else error
            raise InputError(f"server address {shown!r}: {told}", hint) from None
        if parts.scheme not in PORTS or not host:
            raise InputError(f"server address {shown!r} is not http(s)://host[:port]", hint)
        if port == 0:
            raise InputError(f"server address {shown!r}: port 0 is not one to connect to", hint)
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise InputError(
                "the API key contains characters no header can carry", "Check the variable it is read from."
            )
        secrets = [s for s in (api_key, parts.password, unquote(parts.password or "")) if s]
        authorization = f"Bearer {api_key}" if api_key else None
        if authorization is None and parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            token = base64.b64encode(pair.encode()).decode()
            authorization = f"Basic {token}"
            secrets.append(token)
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.scheme, host, port or PORTS[parts.scheme], path, authorization, tuple(secrets))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"

    def safe(self, text: str) -> str:
        """A text from outside as one short line without this server's secrets, whole or in their first half."""
        for secret in self.secrets:
            for piece in (secret, secret[: max(SHORTEST_SECRET, len(secret) // 2)]):
                if len(piece) >= min(SHORTEST_SECRET, len(secret)):
                    text = text.replace(piece, "***")
        return printable(without_credentials(text))


class _Timed(socket.socket):
    """A socket whose every read ends with its connection's patience: a header sent a byte at a time passes a fixed timeout."""

    patience: Callable[[], float]

    def recv_into(self, *given: Any) -> int:
        """As a socket's."""
        self.settimeout(self.patience())
        return super().recv_into(*given)


class _TimedTls(_Timed, ssl.SSLSocket):
    """The same, encrypted."""


class Connection:
    """One connection to a server, used for one request at a time and opened again when needed.

    Parameters
    ----------
    endpoint
        Where to.
    silence_s
        Longest wait for the next byte [s].
    """

    def __init__(self, endpoint: Endpoint, silence_s: float) -> None:
        self.endpoint = endpoint
        self.silence_s = silence_s
        self._http: http.client.HTTPConnection | None = None
        self._deadline = math.inf
        self._aborted = False

    def close(self) -> None:
        """Hang up."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def abort(self) -> None:
        """End a request that waits for the server, from another thread; it is not sent again."""
        self._aborted = True
        connection = self._http
        sock = connection.sock if connection is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def get(self, path: str, seconds: float) -> bytes:
        """Body of a page, all within `seconds` [s]."""
        with self._exchange("GET", self.endpoint.path + path, None, seconds) as response:
            body = bytearray()
            while piece := response.read1(io.DEFAULT_BUFFER_SIZE):
                body += piece
                if len(body) > LARGEST_BODY:
                    self.close()
                    raise HttpError(f"the answer is larger than {LARGEST_BODY >> 20} MB")
            return bytes(body)

    @contextlib.contextmanager
    def events(self, path: str, body: bytes, seconds: float) -> Iterator[Iterator[tuple[float, bytes]]]:
        """Post JSON and read the stream of server-sent events, all within `seconds` [s].

        Yields
        ------
        iterator of (float, bytes)
            Arrival of the bytes that completed the event (``time.perf_counter``) [s], and its data.
        """
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        with self._exchange("POST", self.endpoint.path + path, body, seconds, headers) as response:
            yield self._data_lines(response)

    def _data_lines(self, response: http.client.HTTPResponse) -> Iterator[tuple[float, bytes]]:
        """Lines of a stream, each with the time at which its end arrived."""
        held = bytearray()
        while piece := response.read1(io.DEFAULT_BUFFER_SIZE):
            now = time.perf_counter()
            held += piece
            if b"\n" not in piece:
                if len(held) > LARGEST_BODY:
                    raise HttpError(f"a line of the stream is longer than {LARGEST_BODY >> 20} MB")
                continue
            *lines, held = held.split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    data = bytes(line.removeprefix(b"data:").strip())
                    yield now, data
                    if data == b"[DONE]":
                        self._finish(response)
                        return

    def _finish(self, response: http.client.HTTPResponse) -> None:
        """Read what ends the body, so that the connection can be used again; a server that goes on is hung up on."""
        self._deadline = min(self._deadline, time.monotonic() + GRACE_S)
        try:
            if response.read1(io.DEFAULT_BUFFER_SIZE).strip():
                self.close()
        except (OSError, http.client.HTTPException):
            self.close()

    @contextlib.contextmanager
    def _exchange(
        self, method: str, path: str, body: bytes | None, seconds: float, headers: dict[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request; errors become :class:`HttpError`, and a connection that is not clean afterwards is closed."""
        self._deadline = time.monotonic() + seconds
        headers = dict(headers or {})
        if self.endpoint.authorization:
            headers["Authorization"] = self.endpoint.authorization
        response = None
        clean = False
        try:
            response = self._response(method, path, body, headers)
            if response.status != http.HTTPStatus.OK:
                raise self._refusal(response)
            if "text/html" in response.getheader("Content-Type", "").lower():
                raise HttpError("an HTML page came back: this is not the address of the API", response.status)
            yield response
            clean = True
        except (OSError, http.client.HTTPException) as error:
            raise HttpError(self._told(error, seconds)) from None
        finally:
            if not clean or response is None or not response.isclosed():
                if response is not None:
                    response.close()
                self.close()

    def _response(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        """Send it and read the header; on a connection that was used before and is dead by now, once more on a new one."""
        while True:
            used = self._http is not None
            connection = self._connected()
            try:
                connection.request(method, path, body, headers)
                return connection.getresponse()
            except (ConnectionError, ssl.SSLEOFError):
                if not used or self._aborted or time.monotonic() >= self._deadline:
                    raise
            self.close()

    def _told(self, error: Exception, seconds: float) -> str:
        """What went wrong, in words without the server's key."""
        if time.monotonic() >= self._deadline:
            return f"no complete answer within {seconds:.3g} s"
        if isinstance(error, TimeoutError):
            return f"no answer in time (silent for {self.silence_s:.3g} s)"
        if isinstance(error, ssl.SSLError):
            return f"TLS: {self.endpoint.safe(str(error.reason or error))}"
        if isinstance(error, (http.client.IncompleteRead, http.client.RemoteDisconnected)):
            return "the connection was dropped before the end of the answer"
        return self.endpoint.safe(f"{error or type(error).__name__} ({type(error).__name__})")

    def _refusal(self, response: http.client.HTTPResponse) -> HttpError:
        status = f"HTTP {response.status} {printable(response.reason or '')}".strip()
        told = self.endpoint.safe(response.read1(io.DEFAULT_BUFFER_SIZE).decode("utf-8", "replace"))
        if 300 <= response.status < 400:
            target = self.endpoint.safe(response.getheader("Location", ""))
            told = f"redirected to {target or 'nowhere'}, which is not followed"
        elif told.startswith("<"):
            told = "an HTML page came back: is this the address of the API?"
        return HttpError(f"{status}: {told}", response.status)

    def _connected(self) -> http.client.HTTPConnection:
        """The connection kept from before, or a new one where it is closed."""
        if self._http is not None and self._http.sock is not None:
            self._http.sock.settimeout(self._patience())
            return self._http
        self.close()
        sock: socket.socket = self._socket()
        connection = http.client.HTTPConnection(self.endpoint.host, self.endpoint.port)
        if self.endpoint.scheme == "https":
            context = ssl.create_default_context()
            context.sslsocket_class = _TimedTls
            sock = context.wrap_socket(sock, server_hostname=self.endpoint.host)
            connection.default_port = http.client.HTTPS_PORT
        sock.patience = self._patience  # type: ignore[attr-defined]
        connection.sock = sock
        self._http = connection
        return connection

    def _patience(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0.0:
            raise TimeoutError
        return min(self.silence_s, left)

    def _socket(self) -> _Timed:
        """A connected socket; it is made aside, since a resolver of names keeps no time limit."""
        made: Future[socket.socket] = Future()
        patience = self._patience()

        def connect() -> None:
            """Make the connection, and close it where nobody waits any more."""
            found: socket.socket | OSError
            try:
                found = socket.create_connection((self.endpoint.host, self.endpoint.port), patience)
            except OSError as error:
                found = error
            wanted = made.set_running_or_notify_cancel()
            if isinstance(found, OSError):
                if wanted:
                    made.set_exception(found)
            elif wanted:
                made.set_result(found)
            else:
                found.close()

        threading.Thread(target=connect, daemon=True).start()
        try:
            found = made.result(patience)
        except TimeoutError:
            if made.cancel():
                raise TimeoutError("the name was not resolved") from None
            found = made.result()  # made, or failed, at the last moment
        sock = _Timed(fileno=found.detach())
        sock.settimeout(patience)  # asking anew what is left could raise, with the socket open
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


def page(endpoint: Endpoint, path: str, seconds: float) -> bytes:
    """Body of a page, on a connection of its own, all within `seconds` [s]."""
    with contextlib.closing(Connection(endpoint, seconds)) as connection:
        return connection.get(path, seconds)
