"""Requests as columns, and the queue of a replica: what the fast engines work on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["ArrivalQueue", "RequestTable", "sum_of_larger"]


@dataclass(slots=True)
class RequestTable:
    """Lengths and times of all requests of a run; requests are numbered in order of arrival.

    Parameters
    ----------
    input_tokens, output_tokens
        Lengths, whole and >= 1 [tokens].
    cached_tokens
        Prompt tokens whose KV a prefix cache supplies: held, not processed [tokens].
    first, done
        Time of the first and of the last token [s]; NaN = never.
    """

    input_tokens: list[int]
    output_tokens: list[int]
    cached_tokens: list[int]
    first: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        nan = math.nan
        self.first = [nan] * len(self.input_tokens)
        self.done = [nan] * len(self.input_tokens)


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
