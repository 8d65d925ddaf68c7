"""Finished points of a sweep in a file, one line each: an interrupted sweep goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from planner.errors import InputError
from planner.shared.documents import parse_json, printable, read_text
from planner.shared.version import __version__

_KIND = "fleetopt-what-if-points"
_LARGEST = 1 << 30


def key_of(*parts: object) -> str:
    """A point's key: the same for the same question about the same traffic, asked by the same version."""
    text = json.dumps([__version__, *parts], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


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
            try:
                with self.path.open("r+b") as file:
                    file.truncate(len(whole.encode()) + (1 if whole else 0))
            except OSError as error:
                raise InputError(f"{where}: cannot be written ({error.strerror})") from None

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
        try:
            if self._file is None:
                self._file = self.path.open("a", encoding="utf-8")
            self._file.write(json.dumps(point) + "\n")
            self._file.flush()
        except OSError as error:
            raise InputError(f"{printable(str(self.path))}: cannot be written ({error.strerror})") from None

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
