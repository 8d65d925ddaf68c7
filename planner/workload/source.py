"""Opening what people have: gzip, byte-order marks, odd encodings, a first look for recognising the format, progress."""

from __future__ import annotations

import csv
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from planner.errors import InputError
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


@dataclass(frozen=True, slots=True)
class Head:
    """The first look at a file.

    Parameters
    ----------
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
    """

    text: str
    kind: str
    columns: tuple[str, ...] = ()
    keys: frozenset[str] = frozenset()
    record: Any = None
    delimiter: str = ","
    encoding: str = "utf-8"


@dataclass
class Source:
    """One file to read.

    Parameters
    ----------
    path
        The file.
    progress
        Called with (bytes read, bytes in all) now and then.
    """

    path: Path
    progress: Progress | None = None
    undecodable: int = field(default=0, init=False)

    @property
    def name(self) -> str:
        """How messages name the file."""
        return came_from(self.path)

    @property
    def size(self) -> int:
        """Size of the file [bytes]; 0 where it cannot be known."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def _raw(self) -> IO[bytes]:
        try:
            return io.BufferedReader(_File(self.path, self.name))
        except OSError as error:
            raise InputError(f"{self.name}: cannot be read: {error.strerror or error}") from error

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

    @cached_property
    def head(self) -> Head:
        """Look at the beginning once.

        Raises
        ------
        InputError
            Empty, binary or undecodable files.
        """
        start = self._beginning(HEAD_BYTES)
        if start[:4] == b"PAR1":
            return Head("", "parquet")
        marks = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
        encoding = next((encoding for mark, encoding in marks.items() if start.startswith(mark)), "utf-8")
        if encoding != "utf-16" and b"\x00" in start:
            raise InputError(
                f"{self.name}: a binary file, not a workload", "Known formats: fleetopt workload import --help."
            )
        # of two bytes a character none is cut
        text = start[: len(start) // 2 * 2 if encoding == "utf-16" else None].decode(encoding, errors="replace")
        if not text.strip():
            raise InputError(f"{self.name}: the file is empty")
        found = _look(text, len(start) >= HEAD_BYTES)
        unseen = found.record is None if found.kind in ("json", "array") else found.kind == "csv" and not found.columns
        if unseen and len(start) >= HEAD_BYTES and start.lstrip()[:1] in b"{[#":
            # the first record is further on: longer than the first look, say a prompt of 128K tokens, or below many comments
            start = self._beginning(LONG_HEAD_BYTES)
            found = _look(start.decode(encoding, errors="replace"), len(start) >= LONG_HEAD_BYTES)
        return replace(found, encoding=encoding)

    def _beginning(self, size: int) -> bytes:
        """The first bytes, unpacked; of a damaged archive as many as there are: reading on will say what is wrong."""
        found = b""
        with self._raw() as raw:
            unpacked = self._unpacked(raw)
            try:
                while len(found) < size and (piece := unpacked.read1(size - len(found))):
                    found += piece
            except _DAMAGED as error:
                if not found:
                    raise InputError(f"{self.name}: not a readable packed file: {error}") from error
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
        encoding = self.head.encoding
        size, every = self.path.stat().st_size, 1 if pieces else _PROGRESS_EVERY
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
                    raise InputError(
                        f"{self.name}{where}: the packed file is truncated or damaged after {after:,} "
                        + ("characters" if pieces else "lines"),
                        "Copy it again.",
                    ) from error

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
                if size > 1 << 30:
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


class _File(io.FileIO):
    """A file that says its name when the disk fails."""

    def __init__(self, path: Path, title: str) -> None:
        super().__init__(path)
        self._title = title

    def readinto(self, buffer: Any) -> int:
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise InputError(f"{self._title}: cannot be read: {error.strerror or error}") from error


def _look(text: str, cut: bool) -> Head:
    """What a text looks like from its first lines: JSON, metrics or a table."""
    body = text.lstrip("\ufeff \t\r\n")
    if body[:1] in "{[":
        return _look_json(body, cut)
    lines = [line for line in text.splitlines() if line.strip()]
    if cut and len(lines) > 1:
        lines.pop()
    metric = re.compile(r"^[a-zA-Z_:][\w:]*(\{.*\})?\s+[-+0-9.eEInfNa]+(\s+\d+)?\s*$")
    data = [line for line in lines if not line.lstrip().startswith("#")]
    if any(line.startswith(("# HELP ", "# TYPE ")) for line in lines[:50]) or (
        data and all(metric.match(line) for line in data[:20]) and "{" in text
    ):
        return Head(text, "metrics")
    if not data:
        return Head(text, "csv")
    delimiter = max(",;\t|", key=data[0].count)
    delimiter = delimiter if delimiter in data[0] else ","
    try:
        cells = next(csv.reader([data[0]], delimiter=delimiter), [])
    # a cell too long for one: no header, and whoever reads the rows says so
    except csv.Error:
        return Head(text, "csv", delimiter=delimiter)
    header = () if all(_is_number(cell) for cell in cells) else tuple(normal_name(cell) for cell in cells)
    return Head(text, "csv", header, delimiter=delimiter)


def _look_json(body: str, cut: bool) -> Head:
    """An array, one document, or one record a line; with the keys seen."""
    keys = frozenset(_KEY.findall(body))
    kind, start, record = "jsonl", 0, None
    if body[0] == "[":
        kind, start = "array", 1 + len(body[1:]) - len(body[1:].lstrip())
    try:
        record, end = json.JSONDecoder().raw_decode(body, start)
        # one object, or objects printed over several lines each, are read as documents
        document = (not body[end:].strip() and not cut) or "\n" in body[start:end]
    except (ValueError, RecursionError):
        first, more, _ = body.partition("\n")
        # an object that spans lines is one document; a broken first line of many is a bad row
        document = not more or first.strip() in ("{", "") or not first.strip().endswith("}")
    return Head(body, "json" if kind == "jsonl" and document else kind, keys=keys, record=record)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return not cell.strip()
    return True
