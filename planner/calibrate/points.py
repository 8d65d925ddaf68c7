"""Measured iterations: what was in the batch, how long it took, in which order it was measured."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError, did_you_mean
from planner.shared.documents import read_text, rows_by_column
from planner.units import LEAST, MOST, MOST_SECONDS, is_measurable

FloatArray = NDArray[np.float64]

COLUMNS = (
    "n_decode", "decode_ctx", "prefill_seqs", "prefill_new_tokens_per_seq", "prefill_past_tokens", "measured_ms",
)  # fmt: skip
"""Columns a CSV of iterations needs; `gpu`, `model`, `tp`, `design_rank`, `order` and `composed`
(mixed batches added up from separate kernels) are used where present."""


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
        time_s = np.array(self.time_s, dtype=np.float64)
        time_s.setflags(write=False)
        object.__setattr__(self, "time_s", time_s)
        object.__setattr__(self, "batches", tuple(self.batches))
        problems = []
        if time_s.shape != (len(self.batches),):
            problems.append(f"{self.source}: {len(self.batches)} batches but times of shape {time_s.shape}")
        if self.order is not None:
            order = np.array(self.order, dtype=np.float64)
            order.setflags(write=False)
            object.__setattr__(self, "order", order)
            if order.shape != time_s.shape or not (np.abs(order) <= MOST).all():
                problems.append(f"{self.source}: order must give one number per point, none beyond {MOST:g}")
        for i, (batch, value) in enumerate(zip(self.batches, time_s.flat, strict=False), 1):
            if not LEAST <= value <= MOST_SECONDS:
                bounds = f"lie in [{LEAST:g}, {MOST_SECONDS:g}] s" if value > 0.0 else "be positive"
                problems.append(f"{self.source}: point {i} ({batch}): time must {bounds}, got {value!r} s")
            problems += [f"{self.source}: point {i}: {p}" for p in batch_problems(batch)]
        if problems:
            raise InputError.from_problems(problems)

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
    def context_sum(self) -> FloatArray:
        """K [tokens], shape (P,)."""
        return self.column("decodes") * self.column("context")

    @property
    def prefill_tokens(self) -> FloatArray:
        """C [tokens], shape (P,)."""
        return self.column("prefills") * self.column("new_tokens")

    @property
    def context_max(self) -> FloatArray:
        """Longest decoding context [tokens], shape (P,)."""
        return np.where(self.column("decodes") > 0, self.column("context"), 0.0)

    @property
    def prefill_end(self) -> FloatArray:
        """Largest p + c of the chunks; 0 without any [tokens]."""
        return np.array([float(b.past_tokens + b.new_tokens) if b.prefills else 0.0 for b in self.batches])

    def select(self, keep: Iterable[int]) -> Points:
        """The points at these places."""
        chosen = list(keep)
        order = None if self.order is None else self.order[chosen]
        batches = tuple(self.batches[i] for i in chosen)
        return Points(batches, self.time_s[chosen], order, self.source, self.composed)


def batch_problems(batch: Batch) -> list[str]:
    """What is wrong with a composition; empty when nothing is."""
    problems = [
        f"{name} must be a whole number >= 0, got {str(getattr(batch, name))[:40]}"
        for name in ("decodes", "context", "prefills", "new_tokens", "past_tokens")
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


def _integer(text: str) -> int:
    value = float(text)
    if not value.is_integer() or not is_measurable(value):
        raise ValueError
    return int(value)


def opened(path: Path, text: str | None = None) -> tuple[csv.DictReader[str], list[str]]:
    """Rows of a CSV, of its content where that is already read, and the names of its columns without blanks around them."""
    reader = rows_by_column(read_text(path) if text is None else text, path.name)
    reader.fieldnames = header = [name.strip() for name in reader.fieldnames or ()]
    return reader, header


def refuse(problems: Sequence[str], name: str) -> None:
    """All that is wrong with the rows of a file as one error, the first twenty told."""
    if problems:
        more = [f"... and {len(problems) - 20} more"] if len(problems) > 20 else []
        raise InputError.from_problems([*problems[:20], *more], heading=f"{name}: {len(problems)} problems")


def read_iterations_csv(
    path: Path, *, where: Mapping[str, str] | None = None, text: str | None = None
) -> dict[tuple[str, str, int], Points]:
    """Read a CSV of iterations: one row per iteration, columns :data:`COLUMNS`, grouped by (gpu, model, tp).

    Parameters
    ----------
    path
        The file.
    where
        Keep only rows whose column equals the value (compared case-insensitively).
    text
        Its content, when already read.

    Returns
    -------
    dict
        Points by (gpu, model, tp); empty strings and 1 where the file has no such columns. Rows come in the order of
        `design_rank` where the file has it; an `order` column is the order of measuring, otherwise it is not known.

    Raises
    ------
    InputError
        With every problem of the file: missing columns, rows that are not numbers, times that are not positive.
    """
    reader, header = opened(path, text)
    if missing := [c for c in COLUMNS if c not in header]:
        raise InputError.from_problems(
            [f"{path.name}: column {c!r} is missing{did_you_mean(c, header)}" for c in missing],
            f"A CSV of iterations has the columns {', '.join(COLUMNS)}.",
        )
    wanted = {key: value.lower() for key, value in (where or {}).items()}
    absent = [key for key in wanted if key not in header]
    if absent:
        raise InputError(f"{path.name}: there is no column {absent[0]!r} to select by")
    groups: dict[tuple[str, str, int], list[tuple[float, Batch, float, float]]] = {}
    composed: set[tuple[str, str, int]] = set()
    problems: list[str] = []
    for line, row in enumerate(reader, 2):
        if any((row.get(key) or "").strip().lower() != value for key, value in wanted.items()):
            continue
        try:
            batch = Batch(*(_integer(row[c]) for c in COLUMNS[:-1]))
            time_s = float(row["measured_ms"]) * 1e-3
            rank = float(row.get("design_rank") or line)
            order = float(row["order"]) if row.get("order") else math.nan
            tp = _integer(row.get("tp") or "1")
        except (TypeError, ValueError, OverflowError):
            problems.append(f"{path.name}:{line}: not numbers: {', '.join(f'{c}={row.get(c)!r}' for c in COLUMNS)}")
            continue
        if not (is_measurable(time_s) and time_s > 0.0):
            problems.append(f"{path.name}:{line}: measured_ms must be positive, got {row['measured_ms']}")
        problems += [f"{path.name}:{line}: {p}" for p in batch_problems(batch)]
        key = ((row.get("gpu") or "").strip(), (row.get("model") or "").strip(), tp)
        groups.setdefault(key, []).append((rank, batch, time_s, order))
        if batch.kind == "mixed" and (row.get("composed") or "").strip():
            composed.add(key)
    refuse(problems, path.name)
    if not groups:
        chosen = ", ".join(f"{k}={v}" for k, v in wanted.items())
        raise InputError(f"{path.name}: no iterations in it" + (f" with {chosen}" if chosen else ""))
    return {key: _grouped(rows, path.name, key in composed) for key, rows in groups.items()}


def _grouped(rows: Sequence[tuple[float, Batch, float, float]], source: str, composed: bool) -> Points:
    ranked = sorted(rows, key=lambda r: r[0])
    order = np.array([r[3] for r in ranked])
    known = order if np.isfinite(order).all() else None
    return Points(tuple(r[1] for r in ranked), np.array([r[2] for r in ranked]), known, source, composed)
