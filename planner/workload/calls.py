"""What logs say of sessions, request by request: their names, or hashes of their prompts' blocks; and the sessions made of it."""

from __future__ import annotations

import ast
import math
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from planner.workload.sessions import Sessions, SharedPrefix
from planner.workload.trace import Floats, Ints

_MARK = re.compile(r"(?:^|:)(\d{1,4})-images$", re.ASCII)

MOST_IMAGES = 9_999
"""More no prompt has."""


def labelled(category: str, images: int) -> str:
    """The category of requests of a category with so many images.

    >>> labelled("chat", 2), labelled("", 1), labelled("chat", 0)
    ('chat:2-images', '1-images', 'chat')
    """
    return f"{images}-images" if not category else f"{category}:{images}-images" if images else category


def images_in(categories: Iterable[str]) -> dict[str, int]:
    """Images of the requests of each category that has some.

    >>> images_in(["chat", "chat:2-images", "12-images", "2-images-a-day"])
    {'chat:2-images': 2, '12-images': 12}
    """
    found = {name: int(mark[1]) for name in categories if (mark := _MARK.search(name))}
    return {name: count for name, count in found.items() if count}


ASSUMED_GAP_S = 30.0
"""Mean of the exponential gaps between the calls of a session whose times are not known [s]."""

BRANCHES = 8
"""A prefix that more requests than this go on from in different ways is shared by sessions; fewer are one session's own."""

LEVELS = 3
"""Levels of shared prefixes kept apart; deeper ones are one."""


def read_call(call: Mapping[str, Any], time_s: float, clock: Callable[[object], float]) -> tuple[Any, ...]:
    """What a request says: its ``session``, ``cached`` tokens, ``duration`` [s] or when it ``ended``, and ``blocks``.

    Raises
    ------
    ValueError
        What is wrong with one of them.
    """
    name = call.get("session")
    named = name is not None and bool(str(name).strip())
    cached = _number(call.get("cached"), "cached tokens")
    lasted = _number(call.get("duration"), "duration")
    if math.isnan(lasted) and call.get("ended") not in (None, "") and not math.isnan(time_s):
        lasted = clock(call["ended"]) - time_s
        if lasted < 0.0:
            raise ValueError(f"ends {-lasted:g} s before it starts")
    return str(name) if named else None, cached, lasted, _hashes(call.get("blocks"))


@dataclass(slots=True)
class CallColumns:
    """What a reader found of sessions.

    Parameters
    ----------
    rows
        Those requests that said anything of a session, by their place, and all after the first.
    names
        Session of each, by number, -1 = not said.
    cached, duration_s
        Prompt tokens that calls before had, and duration of the call; NaN = not said.
    blocks
        Place of a request -> hashes of its prompt's blocks, where they are said.
    shared
        Parts of prompts that sessions share, where the file says so itself, shape (requests,) each.
    """

    rows: array[int] = field(default_factory=lambda: array("q"))
    names: list[int] = field(default_factory=list)
    cached: list[float] = field(default_factory=list)
    duration_s: list[float] = field(default_factory=list)
    blocks: dict[int, Sequence[Any]] = field(default_factory=dict)
    shared: tuple[SharedPrefix, ...] = ()
    _numbers: dict[str, int] = field(default_factory=dict)

    def add(self, row: int, said: tuple[Any, ...]) -> None:
        """What the `row`-th request says, as :func:`read_call` gave it."""
        name, cached, lasted, blocks = said
        if name is not None or self.rows:
            self.rows.append(row - 1)
            self.names.append(-1 if name is None else self._numbers.setdefault(name, len(self._numbers)))
            self.cached.append(cached)
            self.duration_s.append(lasted)
        if blocks:
            self.blocks[row - 1] = blocks

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        cached: Sequence[float],
        duration_s: Sequence[float],
        shared: tuple[SharedPrefix, ...],
    ) -> CallColumns:
        """What all requests say, a column each: names (empty = none), cached tokens and durations (NaN = not said)."""
        numbers = {name: k for k, name in enumerate(dict.fromkeys(name for name in names if name))}
        rows, session = array("q", range(len(names))), [numbers.get(name, -1) for name in names]
        return cls(rows, session, list(cached), list(duration_s), shared=shared, _numbers=numbers)

    def relative(self, times_s: Floats) -> bool:
        """Whether times count from the start of each session: all of several begin at the same moment, zero."""
        if len(self._numbers) < 2 or self.rows[-1] + 1 != times_s.size:
            return False
        names = np.array(self.names)
        named = names >= 0
        start = np.full(len(self._numbers), np.inf)
        np.minimum.at(start, names[named], times_s[self.rows][named])
        return bool(np.all(start == 0.0))

    def sessions(
        self, inputs: Floats, outputs: Floats, category: Ints, times_s: Floats | None
    ) -> tuple[Sessions, list[str]] | None:
        """The requests session by session, and what was assumed; ``None`` where none comes back to another's prompt.

        Parameters
        ----------
        inputs, outputs, category, times_s
            All requests of the file, shape (requests,); times [s], ``None`` = not known.
        """
        requests = inputs.size
        session, (cached, lasting) = np.full(requests, -1), np.full((2, requests), np.nan)
        shared, titles = self.shared, tuple[str, ...]()
        if self.rows:
            session[self.rows], cached[self.rows], lasting[self.rows] = self.names, self.cached, self.duration_s
            unnamed = session < 0
            if np.bincount(session[~unnamed], minlength=1).max() < 2 and not shared:
                return None
            session[unnamed] = len(self._numbers) + np.arange(np.count_nonzero(unnamed))
            notes = _left_out(int(unnamed.sum()), requests, "name no session")
            # those that name none have the last numbers, one each
            titles = *self._numbers, *(f"unnamed {k}" for k in range(int(session.max()) + 1 - len(self._numbers)))
        elif self.blocks:
            session, cached, shared, block = self._hashed(inputs, times_s)
            if np.unique(session).size == requests and not shared:
                return None
            notes = _left_out(requests - len(self.blocks), requests, "have no hashes of blocks")
            notes.append(f"sessions found by the blocks of {block:g} tokens that their prompts begin with")
        else:
            return None
        if times_s is None:
            # at exponential gaps, in the order of the file
            gaps = np.random.Generator(np.random.PCG64(0)).exponential(ASSUMED_GAP_S, requests)
            times_s = np.empty(requests)
            times_s[np.argsort(session, kind="stable")] = np.cumsum(gaps)
            notes.append(f"no times: the calls of a session are taken to come {ASSUMED_GAP_S:g} s apart on average")
        if unknown := int(np.isnan(cached).sum()):
            calls = "a call" if unknown == cached.size else f"of {unknown:,} calls that do not say it, each"
            notes.append(f"{calls} is taken to repeat the call before, prompt and answer, where its prompt has grown")
        made = Sessions.of(session, times_s, inputs, outputs, cached, lasting, category, shared)
        return replace(made, names=titles), notes

    def _hashed(self, inputs: Floats, times_s: Floats | None) -> tuple[Ints, Floats, tuple[SharedPrefix, ...], float]:
        """Sessions, cached tokens, shared prefixes and tokens of a block, by the blocks that prompts begin with.

        What many go on from is shared, what few do is a session.
        """
        # tokens of a block: the least power of two with which the blocks hold the prompts
        longest = max(float(inputs[row]) / len(found) for row, found in self.blocks.items())
        block = float(2 ** max(math.ceil(math.log2(max(longest, 1.0)) - 1e-9), 0))
        order = np.arange(inputs.size) if times_s is None else np.argsort(times_s, kind="stable")
        children: dict[tuple[int, Any], int] = {}
        branches = [0]  # different ways on from each prefix
        paths: list[list[int]] = [[]] * inputs.size
        matched = np.zeros(inputs.size, dtype=np.int64)
        for row in order.tolist():
            node, path, new = 0, [], False
            for name in self.blocks.get(row, ()):
                found = children.get((node, name))
                if found is None:
                    new = True
                    found = children[(node, name)] = len(branches)
                    branches.append(0)
                    branches[node] += 1
                matched[row] += not new
                node = found
                path.append(node)
            paths[row] = path
        group = np.full((LEVELS, inputs.size), -1, dtype=np.int64)
        tokens = np.zeros((LEVELS, inputs.size))
        session = np.zeros(inputs.size, dtype=np.int64)
        for row, path in enumerate(paths):
            shared = [k for k, node in enumerate(path) if branches[node] > BRANCHES]
            reached = 0.0
            for level, k in enumerate([*shared[: LEVELS - 1], shared[-1]] if len(shared) > LEVELS else shared):
                upto = min((k + 1.0) * block, inputs[row])
                group[level, row], tokens[level, row] = path[k], upto - reached
                reached = upto
            own = path[shared[-1] + 1 :] if shared else path
            session[row] = own[0] if own else -1 - row
        levels = tuple(SharedPrefix(g, t) for g, t in zip(group, tokens, strict=True) if (g >= 0).any())
        return session, np.minimum(matched * block, inputs), levels, block


def _left_out(count: int, of: int, what: str) -> list[str]:
    """A note that some requests say nothing of sessions."""
    return [f"{count:,} of {of:,} requests {what}: each is taken for a session of its own"] if count else []


def _number(value: Any, what: str) -> float:
    """A number >= 0; NaN where nothing is said."""
    if value is None or value == "":
        return math.nan
    try:
        if (number := float(value)) >= 0.0:
            return number
    except (TypeError, ValueError):
        pass
    raise ValueError(f"{what} {value!r} is not a number of at least 0")


def _hashes(value: Any) -> Sequence[Any]:
    """A list of hashes, also as a CSV writes one; empty where nothing is said."""
    if value is None or value == "":
        return ()
    found = value
    if isinstance(value, str) and value[:1] == "[":
        try:
            found = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found = None
    if not isinstance(found, (list, tuple)) or any(type(name) not in (int, str) for name in found):
        text = repr(value)
        raise ValueError(f"block hashes {text if len(text) <= 40 else text[:37] + '...'} are no list of hashes")
    return found
