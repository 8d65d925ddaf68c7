"""Points of a sweep on disk as they are found: a journal of finished ones, which an interrupted sweep goes on from, and rows.

The journal is JSON lines. Rows are CSV line by line, or Parquet at the end.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from planner.errors import InputError
from planner.shared.documents import parse_json, printable, read_text
from planner.shared.extras import installing
from planner.shared.version import __version__
from planner.shared.writing import is_stream, refuse_unwritable, write_bytes

_KIND = "fleetopt-what-if-points"
_LARGEST = 1 << 30
"""Largest file of points that is read again [bytes]."""


def key_of(*parts: object) -> str:
    """A point's key: the same for the same question about the same traffic, asked by the same version."""
    text = json.dumps([__version__, *parts], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """What the system refuses is an error about the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{printable(str(path))}: cannot be written ({error.strerror or error})") from None


class Journal:
    """The points of a file, and the way to add to them.

    Parameters
    ----------
    path
        JSON lines; made when the first point is added. A last line that was cut off is dropped.

    Raises
    ------
    InputError
        A file that is no such list, or cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.points: dict[str, Mapping[str, Any]] = {}
        self._file: IO[str] | None = None
        if path.exists():
            self._read()

    def _read(self) -> None:
        """All whole lines."""
        where = printable(str(self.path))
        text = read_text(self.path, _LARGEST)
        whole, _, cut = text.rpartition("\n")
        for number, line in enumerate(whole.splitlines(), 1):
            point = parse_json(line, f"{where}:{number}") if line.strip() else None
            if not (isinstance(point, dict) and point.get("kind") == _KIND and isinstance(point.get("key"), str)):
                raise self._foreign(where, number)
            self.points[point["key"]] = point
        start = json.dumps({"kind": _KIND})[:-1]
        if cut and not (cut.startswith(start) or start.startswith(cut)):
            raise self._foreign(where, whole.count("\n") + 2 if whole else 1)
        if cut:
            # what was being written when the run was killed
            with _writing(self.path), self.path.open("r+b") as file:
                file.truncate(len(whole.encode()) + (1 if whole else 0))

    @staticmethod
    def _foreign(where: str, line: int) -> InputError:
        return InputError(
            f"{where}:{line}: not a point of a sweep",
            "--resume names a file of its own, which what-if makes and goes on with.",
        )

    def add(self, key: str, row: Mapping[str, object], plan: Mapping[str, object] | None, reason: str | None) -> None:
        """Keep a point, on disk before this returns."""
        point = {"kind": _KIND, "key": key, "row": row, "plan": plan, "reason": reason}
        self.points[key] = point
        with _writing(self.path):
            if self._file is None:
                self._file = self.path.open("a", encoding="utf-8")
            self._file.write(json.dumps(point) + "\n")
            self._file.flush()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


class RowFile:
    """A table that grows by a row at a time, in the order rows are found.

    A CSV file holds every row written so far, whole, whenever it is looked at. A Parquet file, which has its directory at its end,
    appears when it is closed.

    Parameters
    ----------
    path
        ``.csv`` or ``.parquet``; an existing file is replaced.
    columns, texts
        All columns there will be, and which of them hold words.

    Raises
    ------
    InputError
        Another suffix; pyarrow not installed; a file that cannot be written.
    """

    def __init__(self, path: Path, columns: Sequence[str], texts: Collection[str] = ()) -> None:
        self.path, self.columns, self.texts = path, [*columns], texts
        self._rows: list[dict[str, Any]] = []
        self._file: IO[str] | None = None
        suffix = path.suffix.lower()
        if suffix not in (".csv", ".parquet"):
            raise InputError(f"{path}: rows are written to .csv or .parquet", "Name the file so.")
        if suffix == ".csv":
            with _writing(path):
                self._file = path.open("w", encoding="utf-8", newline="")
                self._csv = csv.DictWriter(self._file, self.columns, lineterminator="\n")
                self._csv.writeheader()
        elif is_stream(path):
            raise InputError(f"{path}: Parquet cannot be written to a stream", "Name a file, or write .csv.")
        elif find_spec("pyarrow") is None:
            raise InputError(f"{path}: needs pyarrow", f"{installing('parquet')}, or name it .csv.")
        else:
            refuse_unwritable(path)

    def add(self, row: Mapping[str, Any]) -> None:
        """A row, of CSV on disk before this returns."""
        kept = {name: row.get(name) for name in self.columns}
        if self._file is None:
            self._rows.append(kept)
            return
        with _writing(self.path):
            self._csv.writerow({k: "" if v is None else v for k, v in kept.items()})
            self._file.flush()

    def _parquet(self) -> bytes:
        """All rows, with a type for each column."""
        import pyarrow as arrow
        from pyarrow import parquet

        kinds = {"feasible": arrow.bool_(), **dict.fromkeys(self.texts, arrow.string())}
        schema = arrow.schema([(name, kinds.get(name, arrow.float64())) for name in self.columns])
        plain = {name: bool if name == "feasible" else str if name in self.texts else float for name in self.columns}
        rows = [{k: None if v is None else plain[k](v) for k, v in row.items()} for row in self._rows]
        out = arrow.BufferOutputStream()
        parquet.write_table(arrow.Table.from_pylist(rows, schema), out)
        return bytes(out.getvalue())

    def __enter__(self) -> RowFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._file is not None:
            with _writing(self.path):
                self._file.close()
        elif kind is None:
            write_bytes(self.path, self._parquet())
