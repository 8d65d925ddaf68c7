"""Requests as columns, and the queue of a replica: what the fast engines work on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Whole: TypeAlias = "list[int] | dict[int, int]"
Times: TypeAlias = "list[float] | dict[int, float]"

TAKEN = 4096
"""Arrivals of a queue that are forgotten together once they have been taken."""


@dataclass(slots=True)
class RequestTable:
    """Lengths and times of the requests of a run; requests are numbered in order of arrival.

    As lists it holds all of them; as dicts (:meth:`live`) only those that were sent and are not complete.

    Parameters
    ----------
    input_tokens, output_tokens
        Lengths, whole and >= 1 [tokens].
    cached_tokens
        Prompt tokens whose KV a prefix cache supplies: held, not processed [tokens].
    first, done
        Time of the first and of the last token [s]; NaN = never.
    """

    input_tokens: Whole
    output_tokens: Whole
    cached_tokens: Whole
    first: Times = field(default_factory=list)
    done: Times = field(default_factory=list)

    def __post_init__(self) -> None:
        if isinstance(self.input_tokens, list):
            self.first = [math.nan] * len(self.input_tokens)
            self.done = [math.nan] * len(self.input_tokens)

    @classmethod
    def live(cls) -> RequestTable:
        """An empty table that requests enter and leave."""
        return cls({}, {}, {}, {}, {})

    def add(self, first: int, inputs: Sequence[int], outputs: Sequence[int], cached: Sequence[int]) -> None:
        """Requests `first`, `first` + 1, ... enter a live table."""
        numbers = range(first, first + len(inputs))
        for column, values in (
            (self.input_tokens, inputs),
            (self.output_tokens, outputs),
            (self.cached_tokens, cached),
        ):
            assert isinstance(column, dict)
            column.update(zip(numbers, values, strict=True))

    def take_complete(self) -> tuple[list[int], list[float], list[float]]:
        """Complete requests leave a live table: their numbers, and times of their first and last token [s]."""
        assert isinstance(self.done, dict) and isinstance(self.first, dict)
        numbers, done = list(self.done), list(self.done.values())
        self.done.clear()
        first = [self.first.pop(request) for request in numbers]
        for column in (self.input_tokens, self.output_tokens, self.cached_tokens):
            for request in numbers:
                del column[request]
        return numbers, first, done


@dataclass(slots=True)
class ArrivalQueue:
    """Arrivals of one replica in order of time, taken up to `position`, and evicted requests, which stand before them."""

    times: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    position: int = 0
    evicted: list[int] = field(default_factory=list)  # heap: numbers are in order of arrival
    emitted: dict[int, int] = field(default_factory=dict)  # tokens emitted before an eviction

    def __len__(self) -> int:
        return len(self.ids) - self.position + len(self.evicted)

    def add(self, request: int, time: float) -> None:
        """A request arrives."""
        if self.position >= TAKEN:
            del self.times[: self.position], self.ids[: self.position]
            self.position = 0
        self.times.append(time)
        self.ids.append(request)


def sum_of_larger(u: tuple[float, float], v: tuple[float, float], j: int) -> float:
    """Sum over i = 1..j of max(u0 + u1 i, v0 + v1 i)."""

    def line(p: tuple[float, float], low: int, high: int) -> float:  # sum over low < i <= high
        return (high - low) * p[0] + p[1] * (high - low) * (high + low + 1) / 2

    first_u, last_u = u[0] + u[1] >= v[0] + v[1], u[0] + u[1] * j >= v[0] + v[1] * j
    if first_u == last_u:
        return line(u, 0, j) if first_u else line(v, 0, j)
    crossing = min(max(int((v[0] - u[0]) / (u[1] - v[1])), 1), j - 1)
    before, after = (u, v) if first_u else (v, u)
    while crossing > 1 and before[0] + before[1] * crossing < after[0] + after[1] * crossing:
        crossing -= 1
    while crossing < j - 1 and before[0] + before[1] * (crossing + 1) > after[0] + after[1] * (crossing + 1):
        crossing += 1
    return line(before, 0, crossing) + line(after, crossing, j)
