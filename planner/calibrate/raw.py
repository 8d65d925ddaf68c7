"""Raw points beside a profile: JSON lines, the first says what was measured with what, each other one is a point."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from planner.calibrate.closed_loop import ServerPoint
from planner.calibrate.points import Batch, Points
from planner.catalog.profiles import Profile
from planner.errors import InputError
from planner.shared.documents import counted, printable, read_text
from planner.shared.writing import write_text

SCHEMA = "fleetopt-points/1"
KINDS = ("server", "iterations")

UNKNOWN_GPU = "unknown-gpu"
"""What profile and points of a server say whose GPU nobody named."""


@dataclass(frozen=True, slots=True, eq=False)
class RawPoints:
    """Measurements and what they are of.

    Parameters
    ----------
    kind
        ``server`` or ``iterations``.
    header
        What was measured, with what, when; plain JSON values.
    rows
        One mapping per point. Server: ``input_tokens, output_tokens, concurrency, tpot_s, ttft_s``; iterations:
        ``decodes, context, prefills, new_tokens, past_tokens, time_s, order``; whatever else was recorded with it.
    """

    kind: str
    header: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    name: str = field(default="points")

    def server_points(self) -> list[ServerPoint]:
        """The rows as server points.

        Raises
        ------
        InputError
            Naming every line that is none.
        """
        lengths = ("input_tokens", "output_tokens", "concurrency", "tpot_s")
        return [
            self._built(line, lambda r: ServerPoint(
                **{k: float(r[k]) for k in lengths}, ttft_s=None if r.get("ttft_s") is None else float(r["ttft_s"])
            ))
            for line in range(len(self.rows))
        ]  # fmt: skip

    @property
    def tp(self) -> int:
        """GPUs of the replica; one where nothing is said."""
        found = self.header.get("tp") or 1
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise InputError(f"{self.name}:1: tp must be a whole number >= 1, got {printable(str(found), 60)!r}")
        return found

    def iterations(self) -> Points:
        """The rows as iterations."""
        names = tuple(f.name for f in fields(Batch))
        rows = [
            self._built(line, lambda r: (
                Batch(*(int(r.get(k) or 0) for k in names)), float(r["time_s"]), float(r.get("order", np.nan))
            ))
            for line in range(len(self.rows))
        ]  # fmt: skip
        return Points.of(rows, self.name, bool(self.header.get("composed", False)))

    def _built(self, line: int, build: Any) -> Any:
        try:
            return build(self.rows[line])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise InputError(f"{self.name}:{line + 2}: not a {self.kind} point ({what})") from None


def clock() -> dict[str, Any]:
    """What timed the points: clock, its resolution [s], interpreter and system."""
    info = time.get_clock_info("perf_counter")
    return {
        "clock": info.implementation,
        "clock_resolution_s": info.resolution,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def points_path(profile_file: Path) -> Path:
    """Where the points of a profile lie.

    >>> points_path(Path("a/b-tp1.yaml")).name
    'b-tp1.points.jsonl'
    """
    return profile_file.with_name(profile_file.stem + ".points.jsonl")


def write_points(raw: RawPoints, path: Path) -> Path:
    """Write them, whole or not at all.

    Parameters
    ----------
    raw
        The points.
    path
        The file.
    """
    write_text(path, "".join(json.dumps(line, allow_nan=False) + "\n" for line in as_measurements(raw)))
    return path


def as_measurements(raw: RawPoints) -> tuple[dict[str, Any], ...]:
    """The points as a shared profile carries them: the header first."""
    return ({"schema": SCHEMA, "kind": raw.kind, **raw.header}, *(dict(row) for row in raw.rows))


def points_of(profile: Profile, file: Path | None) -> RawPoints:
    """Raw points of a profile: in it, or beside its file.

    Raises
    ------
    InputError
        When there are none.
    """
    if profile.measurements:
        found = parse_points("\n".join(json.dumps(row, default=str) for row in profile.measurements), profile.name)
        if found is None:
            raise InputError(f"{profile.name}: measurements: the first row has no schema {SCHEMA}")
        return found
    if file is not None and points_path(file).exists():
        return read_points(points_path(file))
    raise InputError(
        f"{profile.name}: no points are kept with this profile",
        "They lie beside profiles that `calibrate` wrote: NAME.points.jsonl.",
    )


def read_points(path: Path) -> RawPoints:
    """Read a file of raw points.

    Raises
    ------
    InputError
        Not readable, or not such a file.
    """
    found = parse_points(read_text(path), path.name)
    if found is None:
        raise InputError(f"{path}: not a file of raw points", f"Its first line is a mapping with schema: {SCHEMA}.")
    return found


def parse_points(text: str, name: str) -> RawPoints | None:
    """Raw points of a text; ``None`` when it is something else."""
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        header = json.loads(lines[0], parse_int=counted) if lines else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        return None
    kind = header.get("kind")
    if kind not in KINDS:
        raise InputError(f"{name}:1: kind {kind!r} is none of {', '.join(KINDS)}")
    _writable(header, f"{name}:1")
    rows = []
    for number, line in enumerate(lines[1:], 2):
        try:
            row = json.loads(line, parse_int=counted)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name}:{number}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise InputError(f"{name}:{number}: expected a mapping, got {line[:60]}")
        _writable(row, f"{name}:{number}")
        rows.append(row)
    if not rows:
        raise InputError(f"{name}: no points in it")
    return RawPoints(kind, {k: v for k, v in header.items() if k not in ("schema", "kind")}, rows, name)


def _writable(line: Mapping[str, Any], where: str) -> None:
    """Refuse numbers that the file of a new fit could not hold."""
    try:
        json.dumps(line, allow_nan=False)
    except ValueError:
        raise InputError(f"{where}: a number in it is infinite, or none") from None
