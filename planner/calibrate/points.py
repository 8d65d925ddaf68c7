"""Measured iterations: what was in the batch, how long it took, in which order it was measured.

Raw points are kept beside a profile as JSON lines, the first says what was measured with what, each other one is a point.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from planner.calibrate.closed_loop import FloatArray, ServerPoint
from planner.catalog.profiles import Profile, read_fields
from planner.errors import InputError, refuse, refuse_unknown
from planner.shared.documents import counted, parse_json, printable, read_text
from planner.shared.writing import write_text
from planner.units import LEAST, MOST, MOST_SECONDS


@dataclass(frozen=True, slots=True)
class Batch:
    """Composition of one iteration: equal decodes and equal prefill chunks.

    Parameters
    ----------
    decodes
        Sequences decoding [sequences].
    context
        Context of each [tokens].
    prefills
        Prompts (or chunks) in prefill [sequences].
    new_tokens
        New tokens of each [tokens].
    past_tokens
        Tokens of each already in the cache [tokens].
    """

    decodes: int = 0
    context: int = 0
    prefills: int = 0
    new_tokens: int = 0
    past_tokens: int = 0

    @property
    def tokens(self) -> int:
        """T = n + C [tokens]."""
        return self.decodes + self.prefills * self.new_tokens

    @property
    def pairs(self) -> float:
        """A = sum c (p + (c + 1)/2) [pairs].

        >>> Batch(prefills=2, new_tokens=3, past_tokens=10).pairs
        72.0
        """
        return self.prefills * self.new_tokens * (self.past_tokens + 0.5 * (self.new_tokens + 1))

    @property
    def kind(self) -> str:
        """``decode``, ``prefill``, ``chunk`` (prefill after past tokens) or ``mixed``."""
        if self.prefills == 0:
            return "decode"
        if self.decodes:
            return "mixed"
        return "chunk" if self.past_tokens else "prefill"

    def __str__(self) -> str:
        parts = []
        if self.decodes:
            parts.append(f"{self.decodes} decodes at {self.context}")
        if self.prefills:
            past = f" after {self.past_tokens}" if self.past_tokens else ""
            parts.append(f"{self.prefills} x {self.new_tokens} new{past}")
        return " + ".join(parts) or "empty"


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Measured iterations.

    Parameters
    ----------
    batches
        Composition of each.
    time_s
        Measured time [s], shape (P,).
    order
        Place in the order of measuring, shape (P,); ``None`` = not known, and no drift can be seen.
    source
        Where they come from, for people.
    composed
        Whether mixed batches were added up from separate kernels: such points cannot show interference.

    Raises
    ------
    InputError
        Naming every point with a composition or a time that cannot be.
    """

    batches: tuple[Batch, ...]
    time_s: FloatArray
    order: FloatArray | None = None
    source: str = "points"
    composed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", tuple(self.batches))
        for name in ("time_s", "order"):
            if (given := getattr(self, name)) is not None:
                kept = np.array(given, dtype=np.float64)
                kept.setflags(write=False)
                object.__setattr__(self, name, kept)
        problems = []
        if self.time_s.shape != (len(self.batches),):
            problems.append(f"{self.source}: {len(self.batches)} batches but times of shape {self.time_s.shape}")
        if self.order is not None and not (self.order.shape == self.time_s.shape and (abs(self.order) <= MOST).all()):
            problems.append(f"{self.source}: order must give one number per point, none beyond {MOST:g}")
        for i, (batch, value) in enumerate(zip(self.batches, self.time_s.flat, strict=False), 1):
            if not LEAST <= value <= MOST_SECONDS:
                bounds = f"lie in [{LEAST:g}, {MOST_SECONDS:g}] s" if value > 0.0 else "be positive"
                problems.append(f"{self.source}: point {i} ({batch}): time must {bounds}, got {value!r} s")
            problems += [f"{self.source}: point {i}: {p}" for p in batch_problems(batch)]
        refuse(problems)

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kind of each point."""
        return tuple(b.kind for b in self.batches)

    def column(self, name: str) -> FloatArray:
        """One attribute of the batches as an array.

        >>> Points((Batch(4, 100),), np.array([0.01])).column("decodes").tolist()
        [4.0]
        """
        return np.array([getattr(b, name) for b in self.batches], dtype=np.float64)

    @property
    def columns(self) -> tuple[FloatArray, ...]:
        """What :meth:`IterationModel.time` takes of them, in its order, shape (P,) each.

        >>> [c.tolist() for c in Points((Batch(4, 100, 2, 3, 5),), np.array([0.01])).columns]
        [[4.0], [400.0], [6.0], [42.0], [100.0], [8.0]]
        """
        n, context, m, new, past = (self.column(f.name) for f in fields(Batch))
        longest, end = np.where(n > 0.0, context, 0.0), np.where(m > 0.0, past + new, 0.0)
        return n, n * context, m * new, self.column("pairs"), longest, end

    def select(self, keep: Iterable[int]) -> Points:
        """The points at these places."""
        chosen = list(keep)
        order = None if self.order is None else self.order[chosen]
        return replace(self, batches=tuple(self.batches[i] for i in chosen), time_s=self.time_s[chosen], order=order)


def batch_problems(batch: Batch) -> list[str]:
    """What is wrong with a composition; empty when nothing is."""
    problems = [
        f"{name} must be a whole number >= 0, got {printable(str(getattr(batch, name)))}"
        for name in (f.name for f in fields(Batch))
        if not 0 <= getattr(batch, name) <= MOST or getattr(batch, name) % 1 != 0
    ]
    if not problems:
        if batch.tokens == 0:
            problems.append("the batch is empty")
        held = batch.decodes * batch.context + batch.prefills * (batch.new_tokens + batch.past_tokens)
        if max(batch.tokens, held) > MOST:
            problems.append(f"tokens of all its sequences must be at most {MOST:g}, got {held:g}")
        if batch.decodes and not batch.context:
            problems.append(f"{batch.decodes} decodes need a context >= 1")
        if batch.prefills and not batch.new_tokens:
            problems.append(f"{batch.prefills} prefills need new tokens >= 1")
    return problems


SCHEMA = "fleetopt-points/1"
KINDS = ("server", "iterations")

OF = (
    "name", "gpu", "model", "tp", "dp", "ep", "weight_dtype", "kv_dtype", "engine", "engine_version", "date", "source", "kv_tokens",
)  # fmt: skip
"""Fields of a profile that its raw points have to say to be fitted again."""

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
    def of(self) -> dict[str, Any]:
        """What they are of, as far as it is said: :data:`OF`."""
        return read_fields(self.header, OF, f"{self.name}:1")

    def iterations(self) -> Points:
        """The rows as iterations."""
        names = tuple(f.name for f in fields(Batch))
        rows = [
            self._built(line, lambda r: (
                Batch(*(int(r.get(k) or 0) for k in names)), float(r["time_s"]), float(r.get("order", np.nan))
            ))
            for line in range(len(self.rows))
        ]  # fmt: skip
        batches, times, order = zip(*rows, strict=True)
        known = np.array(order) if np.isfinite(order).all() else None
        return Points(batches, np.array(times), known, self.name, bool(self.header.get("composed", False)))

    def and_those_of(self, other: RawPoints) -> RawPoints:
        """With the points of another file; two runs of one machine have no common clock."""
        rows = [{k: v for k, v in row.items() if k != "order"} for row in (*self.rows, *other.rows)]
        composed = bool(self.header.get("composed") or other.header.get("composed"))
        return replace(self, header={**self.header, "composed": composed}, rows=rows)

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
    """Write them, whole or not at all."""
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
    refuse_unknown(f"{name}:1: kind", kind := str(header.get("kind")), KINDS)
    header, *rows = [parse_json(line, f"{name}:{number}") for number, line in enumerate(lines, 1)]
    for number, row in enumerate(rows, 2):
        if not isinstance(row, dict):
            raise InputError(f"{name}:{number}: expected a mapping, got {printable(str(row))}")
    if not rows:
        raise InputError(f"{name}: no points in it")
    return RawPoints(kind, {k: v for k, v in header.items() if k not in ("schema", "kind")}, rows, name)
