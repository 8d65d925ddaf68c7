"""Measured iterations: what was in the batch, how long it took, in which order it was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.units import LEAST, MOST, MOST_SECONDS

FloatArray = NDArray[np.float64]


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
        if problems:
            raise InputError.from_problems(problems)

    @classmethod
    def of(cls, rows: Iterable[tuple[Batch, float, float]], source: str, composed: bool) -> Points:
        """Of rows of a batch, its time [s] and its place in the order; one that is not finite = none is known."""
        batches, times, order = zip(*rows, strict=True)
        return cls(batches, np.array(times), np.array(order) if np.isfinite(order).all() else None, source, composed)

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
