"""Opening what people have: gzip, byte-order marks, odd encodings, a first look for recognising the format, progress."""

from __future__ import annotations

import csv
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from planner.errors import InputError
from planner.units import GIB
from planner.workload.resolve import came_from

HEAD_BYTES = 1 << 16
"""First look at a file [bytes]."""
LONG_HEAD_BYTES = 1 << 22
"""Where the first record is longer than that: a prompt of 128K tokens [bytes]."""
_PROGRESS_EVERY = 8192  # lines between two reports of progress
PIECE = 1 << 18
"""Of a text that is read in pieces [characters]."""

_KEY = re.compile(r'"([^"\\]{1,80})"\s*:')

_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "lzma"}
"""How packed files begin -> what unpacks them."""

_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, OSError)

Progress = Callable[[int, int], None]


def normal_name(column: str) -> str:
    """A column name without case, spaces and punctuation, so that ``Request tokens`` and ``request_tokens`` are one.

    >>> normal_name(" Request tokens"), normal_name("arrived_at")
    ('requesttokens', 'arrivedat')
    """
    return re.sub(r"[^a-z0-9]", "", column.lower())


@dataclass
class Source:
    """One file to read, and what a first look at it tells.

    Parameters
    ----------
    path
        The file.
    progress
        Called with (bytes read, bytes in all) now and then.
    text
        First 64 KiB, decoded.
    kind
        ``"csv"``, ``"json"`` (one object), ``"jsonl"`` (one object after another), ``"array"``, ``"metrics"`` (Prometheus
        text) or ``"parquet"``.
    columns
        Header of a CSV, each as :func:`normal_name` gives it; empty when the first line holds numbers only.
    keys
        Keys seen in a JSON file.
    record
        First complete JSON object, if one fits.
    delimiter, encoding
        Between the cells of a CSV; of the text.

    Raises
    ------
    InputError
        Empty, binary or undecodable files.
    """

    path: Path
    progress: Progress | None = None
    text: str = field(default="", init=False)
    kind: str = field(default="csv", init=False)
    columns: tuple[str, ...] = field(default=(), init=False)
    keys: frozenset[str] = field(default=frozenset(), init=False)
    record: Any = field(default=None, init=False)
    delimiter: str = field(default=",", init=False)
    encoding: str = field(default="utf-8", init=False)
    undecodable: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        start = self._beginning(HEAD_BYTES)
        if start[:4] == b"PAR1":
            self.kind = "parquet"
            return
        marks = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
        self.encoding = next((encoding for mark, encoding in marks.items() if start.startswith(mark)), "utf-8")
        if self.encoding != "utf-16" and b"\x00" in start:
            raise InputError(
                f"{self.name}: a binary file, not a workload", "Known formats: fleetopt workload import --help."
            )
        # of two bytes a character none is cut
        text = start[: len(start) // 2 * 2 if self.encoding == "utf-16" else None].decode(
            self.encoding, errors="replace"
        )
        if not text.strip():
            raise InputError(f"{self.name}: the file is empty")
        self._look(text, len(start) >= HEAD_BYTES)
        unseen = self.record is None if self.kind in ("json", "array") else self.kind == "csv" and not self.columns
        if unseen and len(start) >= HEAD_BYTES and start.lstrip()[:1] in b"{[#":
            # the first record is further on: longer than the first look, say a prompt of 128K tokens, or below many comments
            start = self._beginning(LONG_HEAD_BYTES)
            self._look(start.decode(self.encoding, errors="replace"), len(start) >= LONG_HEAD_BYTES)

    @property
    def name(self) -> str:
        """How messages name the file."""
        return came_from(self.path)

    @property
    def size(self) -> int:
        """Size of the file [bytes]."""
        return self.path.stat().st_size

    def _raw(self) -> IO[bytes]:
        try:
            return self.path.open("rb")
        except OSError as error:
            raise self._ended(error) from error

    def _ended(self, error: Exception, packed: str = "", hint: str | None = None) -> InputError:
        """What to say where reading ends too early: the disk failed, or what is packed is damaged."""
        if isinstance(error, OSError) and (error.errno is not None or not packed):
            return InputError(f"{self.name}: cannot be read: {error.strerror or error}")
        return InputError(packed, hint)

    def _unpacked(self, raw: IO[bytes]) -> Any:
        """The file as it was before it was packed."""
        start = raw.read(6)
        raw.seek(0)
        if (packed := next((module for mark, module in _PACKED.items() if start.startswith(mark)), None)) is not None:
            return import_module(packed).open(raw)
        if start[:4] == b"\x28\xb5\x2f\xfd":
            try:
                import zstandard
            except ImportError as error:
                raise InputError(
                    f"{self.name}: packed with Zstandard", "pip install zstandard, or unpack it."
                ) from error
            return zstandard.ZstdDecompressor().stream_reader(raw)
        return raw

    def _look(self, text: str, cut: bool) -> None:
        """What a text looks like from its first lines: JSON, metrics or a table."""
        body = text.lstrip("\ufeff \t\r\n")
        if body[:1] in "{[":
            self._look_json(body, cut)
            return
        self.text = text
        lines = [line for line in text.splitlines() if line.strip()]
        if cut and len(lines) > 1:
            lines.pop()
        metric = re.compile(r"^[a-zA-Z_:][\w:]*(\{.*\})?\s+[-+0-9.eEInfNa]+(\s+\d+)?\s*$")
        data = [line for line in lines if not line.lstrip().startswith("#")]
        if any(line.startswith(("# HELP ", "# TYPE ")) for line in lines[:50]) or (
            data and all(metric.match(line) for line in data[:20]) and "{" in text
        ):
            self.kind = "metrics"
        elif data:
            self.delimiter = max(",;\t|", key=data[0].count)
            if self.delimiter not in data[0]:
                self.delimiter = ","
            # a cell too long for one: no header, and whoever reads the rows says so
            with suppress(csv.Error):
                cells = next(csv.reader([data[0]], delimiter=self.delimiter), [])
                self.columns = () if all(map(_is_number, cells)) else tuple(map(normal_name, cells))

    def _look_json(self, body: str, cut: bool) -> None:
        """An array, one document, or one record a line; with the keys seen."""
        self.text, self.keys = body, frozenset(_KEY.findall(body))
        self.kind, start = "jsonl", 0
        if body[0] == "[":
            self.kind, start = "array", 1 + len(body[1:]) - len(body[1:].lstrip())
        try:
            self.record, end = json.JSONDecoder().raw_decode(body, start)
            # one object, or objects printed over several lines each, are read as documents
            document = (not body[end:].strip() and not cut) or "\n" in body[start:end]
        except (ValueError, RecursionError):
            first, more, _ = body.partition("\n")
            # an object that spans lines is one document; a broken first line of many is a bad row
            document = not more or first.strip() in ("{", "") or not first.strip().endswith("}")
        if self.kind == "jsonl" and document:
            self.kind = "json"

    def _beginning(self, size: int) -> bytes:
        """The first bytes, unpacked; of a damaged archive as many as there are: reading on will say what is wrong."""
        found = b""
        with self._raw() as raw:
            try:
                unpacked = self._unpacked(raw)
                while len(found) < size and (piece := unpacked.read1(size - len(found))):
                    found += piece
            except _DAMAGED as error:
                if not found:
                    raise self._ended(error, f"{self.name}: not a readable packed file: {error}") from error
        return found

    @contextmanager
    def open_text(self, pieces: bool = False) -> Iterator[Iterator[str]]:
        """Lines of the file, decompressed and decoded; bytes that are not text become U+FFFD and are counted.

        With `pieces` it comes in pieces of 256 Ki characters, for documents that may be one endless line.

        Raises
        ------
        InputError
            A truncated or damaged packed file.
        """
        encoding = self.encoding
        size, every = self.size, 1 if pieces else _PROGRESS_EVERY
        with self._raw() as raw:
            buffered = io.BufferedReader(self._unpacked(raw), PIECE)
            text = io.TextIOWrapper(buffered, encoding, "replace", newline="")

            def parts() -> Iterator[str]:
                """Lines or pieces, counting what is not UTF-8 and telling how far reading is."""
                number = 0
                try:
                    for part in iter(partial(text.read, PIECE), "") if pieces else text:
                        number += 1
                        if not part.isascii() and "\ufffd" in part:
                            self.undecodable += part.count("\ufffd") if pieces else 1
                        if self.progress is not None and number % every == 0:
                            self.progress(min(raw.tell(), size), size)
                        yield part
                except _DAMAGED as error:
                    where, after = ("", number * PIECE) if pieces else (f":{number + 1}", number)
                    unit = "characters" if pieces else "lines"
                    damaged = f"{self.name}{where}: the packed file is truncated or damaged after {after:,} {unit}"
                    raise self._ended(error, damaged, "Copy it again.") from error

            yield parts()
            if self.progress is not None:
                self.progress(size, size)

    def read_all(self) -> str:
        """The whole text, for formats that are one document; larger ones than a gibibyte are refused."""
        parts: list[str] = []
        size = 0
        with self.open_text(pieces=True) as chunks:
            for piece in chunks:
                size += len(piece)
                if size > GIB:
                    raise InputError(f"{self.name}: one JSON document of more than 1024 MiB; export it as JSON lines")
                parts.append(piece)
        return "".join(parts)

    def read_json(self) -> Any:
        """The whole file as one JSON document."""
        try:
            return json.loads(self.read_all())
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", 1)
            raise InputError(f"{self.name}:{line}: not valid JSON: {getattr(error, 'msg', error)}") from error


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return not cell.strip()
    return True
