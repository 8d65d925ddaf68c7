"""The prefixes that a replica of the reference keeps: in the KV memory that running requests leave, its host's and its disk."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TypeAlias

from planner.catalog.kv import BLOCK_TOKENS
from planner.predict.records import PrefixCache, Requests

Name: TypeAlias = tuple[str, int]
Pieces: TypeAlias = "tuple[tuple[Name, float], ...]"


class PrefixMemory:
    """Prefixes by session, and by the name of what sessions share; the least recently used first.

    Both memories are one list by last use, the most recent of it on the GPU. What running requests share is pinned: it is
    theirs, not the cache's.

    Parameters
    ----------
    rules
        Host memory and disk, their speeds, and for how long anything is kept.
    requests
        All requests; a row's prompt is found by its session and its pieces.
    """

    def __init__(self, rules: PrefixCache, requests: Requests) -> None:
        self.rules, self.requests = rules, requests
        self.repeated = [] if requests.repeated_tokens is None else requests.repeated_tokens.tolist()
        self.shares = requests.shared_offset is not None
        self.empty()

    def empty(self) -> None:
        """Nothing is kept."""
        self.kept: OrderedDict[Name, tuple[float, int, float]] = OrderedDict()  # tokens, row of the last call, last use
        self.held = 0.0
        self.pinned: dict[Name, int] = {}  # requests that run with it
        self.computed: dict[Name, float] = {}  # what of it the first of them had to compute [tokens]
        self.spoilt = 0
        self.link_free = 0.0  # when the link to the host's memory has moved all that was asked for [s]

    def knows(self, row: int) -> bool:
        """Whether anything is kept of a request."""
        return self.requests.session is not None and int(self.requests.session[row]) >= 0

    def session(self, row: int) -> Name:
        """Under which name a row's own prefix is kept."""
        assert self.requests.session is not None
        return ("session", int(self.requests.session[row]))

    def pieces(self, row: int) -> Pieces:
        """What a row's prompt shares with others, from its beginning on."""
        r = self.requests
        if r.shared_offset is None or r.shared_name is None or r.shared_tokens is None or not self.knows(row):
            return ()
        places = range(int(r.shared_offset[row]), int(r.shared_offset[row + 1]))
        return tuple((("piece", int(r.shared_name[k])), float(r.shared_tokens[k])) for k in places)

    def held_already(self, row: int) -> float:
        """What of a row's prompt running requests hold [tokens]."""
        return sum(tokens for name, tokens in self.pieces(row) if name in self.pinned)

    def found(self, row: int, now: float) -> dict[Name, float]:
        """What there is of a row's prompt by name [tokens]: one piece after the other until one is not whole, then what its
        session left, of which no more than any call since the last one here repeated."""
        found: dict[Name, float] = {}
        if not self.knows(row):
            return found
        for name, tokens in self.pieces(row):
            held, _, used = (tokens, 0, now) if name in self.pinned else self.kept.get(name, (0.0, 0, -math.inf))
            if now - used <= self.rules.ttl_s:
                found[name] = min(held, tokens)
            if found.get(name, 0.0) < tokens:
                return found
        name = self.session(row)
        held, last, used = self.kept.get(name, (0.0, -1, -math.inf))
        if 0 <= last < row and now - used <= self.rules.ttl_s:
            found[name] = min(held, *self.repeated[last + 1 : row + 1])
        return found

    def admit(self, row: int, free: float, now: float) -> float:
        """A request begins to run where `free` tokens are left: what is supplied of its prompt [tokens]."""
        self.trim(free)
        prompt = float(self.requests.input_tokens[row])
        supplied = min(sum(self.found(row, now).values()) // BLOCK_TOKENS * BLOCK_TOKENS, prompt - 1)
        room = free - prompt + self.held_already(row)
        self.take(self.session(row))
        left = supplied
        for name, tokens in self.pieces(row):
            had = min(left, tokens)
            self.take(name)
            if name not in self.pinned:
                self.computed[name] = tokens - had
            self.pinned[name] = self.pinned.get(name, 0) + 1
            left -= had
        # the prompt itself is held by the running request; what others keep must leave room for it
        self.trim(room)
        return supplied

    def unpin(self, name: Name, tokens: float, now: float) -> float:
        """A request leaves that ran with a piece: the memory that nobody holds any more [tokens]."""
        self.pinned[name] -= 1
        if self.pinned[name]:
            return 0.0
        del self.pinned[name]
        self.spoil(self.computed.pop(name), now)
        self.put(name, tokens, 0, now)
        return tokens

    def spoil(self, computed: float, now: float) -> None:
        """Of tokens that were computed the sliding-window layers' blocks grow old beside the others; nobody finds them again."""
        if self.rules.windows * computed > 0.0:
            self.spoilt += 1
            self.put(("window", self.spoilt), self.rules.windows * computed, 0, now)

    def keep(self, row: int, output_tokens: int, supplied: float, free: float, now: float) -> None:
        """A request is complete: its prompt and answer are kept. The last token has been sent and not been read."""
        shared = sum(tokens for _, tokens in self.pieces(row))
        size = float(self.requests.input_tokens[row]) + output_tokens - 1 - shared
        self.spoil(size - max(supplied - shared, 0.0), now)
        self.put(self.session(row), size // BLOCK_TOKENS * BLOCK_TOKENS, row, now)
        self.trim(free)

    def loaded(self, row: int, free: float, now: float) -> tuple[float, float]:
        """What only host memory or disk hold of a prompt [tokens], and when it has been copied back [s]; one after the other."""
        tokens = of_disk = 0.0
        if self.rules.host_tokens + self.rules.disk_tokens > 0.0:
            near = self.with_tier(free, self.rules.host_tokens)
            for name, held in self.found(row, now).items():
                if name not in self.pinned:
                    tokens += held - min(self.on_gpu(name, free), held)
                    of_disk += held - min(self.on_gpu(name, near), held)
        tokens, of_disk = tokens // BLOCK_TOKENS * BLOCK_TOKENS, of_disk // BLOCK_TOKENS * BLOCK_TOKENS
        if tokens == 0.0:
            return 0.0, now
        self.link_free = max(self.link_free, now) + tokens / self.rules.host_tokens_per_s
        if self.rules.disk_tokens > 0.0:
            self.link_free += of_disk / self.rules.disk_tokens_per_s
        return tokens, self.link_free

    def with_tier(self, room: float, tier: float) -> float:
        """Tokens that a memory and the tier behind it hold: of one that copies all the larger of the two."""
        return max(room, tier) if self.rules.copies else room + tier

    def on_gpu(self, name: Name, room: float) -> float:
        """Tokens of a prefix among the `room` most recent ones."""
        for other, (tokens, _, _) in reversed(self.kept.items()):
            if other == name:
                return min(max(room, 0.0), tokens) // BLOCK_TOKENS * BLOCK_TOKENS
            room -= tokens
            if room <= 0.0:
                break
        return 0.0

    def trim(self, free: float) -> None:
        """Drop from the end of the least recent prefix until all fits into `free` on the GPU, the host's memory and its disk."""
        room = self.with_tier(self.with_tier(free, self.rules.host_tokens), self.rules.disk_tokens)
        while self.held > room and self.kept:
            name, (tokens, row, used) = next(iter(self.kept.items()))
            left = (tokens - (self.held - room)) // BLOCK_TOKENS * BLOCK_TOKENS
            self.held -= tokens
            if left > 0:
                self.kept[name] = (left, row, used)
                self.held += left
                return
            del self.kept[name]

    def take(self, name: Name) -> None:
        """What is kept under a name is held by a running request from now on."""
        self.held -= self.kept.pop(name, (0.0, -1, 0.0))[0]

    def put(self, name: Name, tokens: float, row: int, now: float) -> None:
        """A prefix becomes the most recent."""
        self.take(name)
        self.kept[name] = (tokens, row, now)
        self.held += tokens
