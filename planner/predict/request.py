"""A request with its progress, and the waiting queue."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """One request and its progress.

    Parameters
    ----------
    index
        Position in the list of requests; breaks ties between equal arrival times.
    arrival
        Time at which it joins the waiting queue [s].
    input_tokens, output_tokens
        Prompt and answer length [tokens], both >= 1.
    category
        Class number (a small integer), used by policies with classes.
    tbt
        Deadline between tokens [s]; only deadline-aware policies read it.
    """

    index: int
    arrival: float
    input_tokens: float
    output_tokens: int
    category: int = 0
    tbt: float = math.inf
    node_arrival: float = math.nan  # at the decode node, of a disaggregated pair
    emitted: int = 0  # output tokens the computed KV accounts for
    reported: int = 0  # output tokens the client has seen (differs from `emitted` only after a restart)
    prefilled: float = 0  # tokens of the current prefill already processed
    held: float = 0  # tokens of KV memory held
    resident: bool = False
    placed: int = -1  # number of the decision in which it was last placed
    priority: float = math.inf  # a policy's own ordering number (last schedulable time, ...)
    evictions: int = 0
    first_token_s: float = math.nan
    last_emission_s: float = math.nan
    done_s: float = math.nan
    gaps: list[float] = field(default_factory=list)

    @property
    def prefill_length(self) -> float:
        """Tokens an admission has to process and hold: the prompt and the output emitted before an eviction [tokens]."""
        return self.input_tokens + self.emitted

    @property
    def prefill_left(self) -> float:
        """Tokens of the current prefill still to process [tokens]; 0 for a decode."""
        # Once the prefill has ended `emitted` grows, so the amount to process is remembered by `prefilled` < 0.
        return 0 if self.prefilled < 0 else self.input_tokens + self.emitted - self.prefilled

    @property
    def decoding(self) -> bool:
        """Whether it is resident and its prefill is complete."""
        return self.resident and self.prefilled < 0

    def __repr__(self) -> str:
        return f"Request({self.index}, {self.arrival!r}, {self.input_tokens}, {self.output_tokens})"


by_arrival: Callable[[Request], tuple[float, ...]] = attrgetter("arrival", "index")
"""First come, first served: (arrival, index)."""

by_prompt: Callable[[Request], tuple[float, ...]] = attrgetter("input_tokens", "arrival", "index")
"""Shortest prompt first: (input length, arrival, index)."""


class WaitingQueue:
    """Requests waiting at a node, always in the order of one key. The head is at the end of the list: popping is O(1)."""

    __slots__ = ("_items", "_key")

    def __init__(self, key: Callable[[Request], tuple[float, ...]] = by_arrival) -> None:
        self._key = key
        self._items: list[tuple[tuple[float, ...], Request]] = []

    def order_by(self, key: Callable[[Request], tuple[float, ...]]) -> None:
        """Use `key` from now on; keys must differ between requests (put the index last)."""
        if key is not self._key:
            self._key = key
            self.extend([request for _, request in self._items], clear=True)

    def extend(self, requests: Iterable[Request], clear: bool = False) -> None:
        """Add many."""
        if clear:
            self._items.clear()
        self._items.extend((tuple(-x for x in self._key(r)), r) for r in requests)
        self._items.sort(key=lambda item: item[0])

    def push(self, request: Request) -> None:
        """Add one at its place."""
        insort(self._items, (tuple(-x for x in self._key(request)), request), key=lambda item: item[0])

    @property
    def head(self) -> Request:
        """The first request."""
        return self._items[-1][1]

    def pop(self) -> Request:
        """Remove and return the first request."""
        return self._items.pop()[1]

    def remove(self, request: Request) -> None:
        """Remove one request, wherever it stands."""
        key = tuple(-x for x in self._key(request))
        position = bisect_left(self._items, key, key=lambda item: item[0])
        if position < len(self._items) and self._items[position][1] is request:
            del self._items[position]
            return
        raise ValueError(f"{request!r} is not waiting")

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in reversed(self._items))
