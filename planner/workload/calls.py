"""What logs say of sessions, request by request: their names, or hashes of their prompts' blocks; and the sessions made of it."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.workload.sessions import Sessions, SharedPrefix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

ASSUMED_GAP_S = 30.0
"""Mean of the exponential gaps between the calls of a session whose times are not known [s]."""

BRANCHES = 8
"""A prefix that more requests than this go on from in different ways is shared by sessions; fewer are one session's own."""

LEVELS = 3
"""Levels of shared prefixes kept apart; deeper ones are one."""


@dataclass(slots=True)
class CallColumns:
    """What a reader found of sessions, one entry per request; of no use where some requests have none.

    Parameters
    ----------
    names
        Session of each request, by number.
    cached, duration_s
        Prompt tokens that calls before had, and duration of the call; NaN = not said.
    blocks
        Hashes of the prompt's blocks.
    """

    names: list[int] = field(default_factory=list)
    cached: list[float] = field(default_factory=list)
    duration_s: list[float] = field(default_factory=list)
    blocks: list[Sequence[Any]] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def add(self, row: int, call: Mapping[str, Any]) -> None:
        """The `row`-th request: its ``session``, ``cached`` tokens, ``duration`` [s] and ``blocks``, as far as they are said."""
        name = call.get("session")
        if name is not None and str(name).strip() and len(self.names) == row - 1:
            self.names.append(self._numbers.setdefault(str(name), len(self._numbers)))
            self.cached.append(_number(call.get("cached")))
            self.duration_s.append(_number(call.get("duration")))
        found = _hashes(call.get("blocks"))
        if found and len(self.blocks) == row - 1:
            self.blocks.append(found)

    def relative(self, times_s: Floats) -> bool:
        """Whether times count from the start of each session: all of several begin at the same moment, zero."""
        if len(self.names) != times_s.size or len(self._numbers) < 2:
            return False
        start = np.full(len(self._numbers), np.inf)
        np.minimum.at(start, np.array(self.names), times_s)
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
        if len(self.names) == inputs.size:
            names = np.array(self.names, dtype=np.int64)
            if np.bincount(names).max() < 2:
                return None
            return self._named(names, inputs, outputs, category, times_s)
        if len(self.blocks) == inputs.size:
            return self._hashed(inputs, outputs, category, times_s)
        return None

    def _named(
        self, names: Ints, inputs: Floats, outputs: Floats, category: Ints, times_s: Floats | None
    ) -> tuple[Sessions, list[str]]:
        """By the names of the sessions."""
        notes = []
        if times_s is None:
            times_s = _assumed_times(names)
            notes.append(f"no times: the calls of a session are taken to come {ASSUMED_GAP_S:g} s apart on average")
        cached = np.array(self.cached)
        known = not np.isnan(cached).any()
        if not known:
            notes.append("a call is taken to repeat the call before, prompt and answer, where its prompt has grown")
        lasting = np.array(self.duration_s)
        made = Sessions.of(names, times_s, inputs, outputs, cached if known else None, lasting, category)
        return made, notes

    def _hashed(
        self, inputs: Floats, outputs: Floats, category: Ints, times_s: Floats | None
    ) -> tuple[Sessions, list[str]] | None:
        """By the blocks their prompts begin with: what many go on from is shared, what few do is a session."""
        block = _block_tokens(inputs, self.blocks)
        order = np.arange(inputs.size) if times_s is None else np.argsort(times_s, kind="stable")
        children: dict[tuple[int, Any], int] = {}
        branches = [0]  # different ways on from each prefix
        paths: list[list[int]] = [[]] * inputs.size
        matched = np.zeros(inputs.size, dtype=np.int64)
        for row in order.tolist():
            node, path, new = 0, [], False
            for name in self.blocks[row]:
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
        if np.unique(session).size == inputs.size and not (group >= 0).any():
            return None
        levels = tuple(SharedPrefix(g, t) for g, t in zip(group, tokens, strict=True) if (g >= 0).any())
        notes = [f"sessions found by the blocks of {block:g} tokens that their prompts begin with"]
        if times_s is None:
            times_s = _assumed_times(session)
            notes.append(f"no times: the calls of a session are taken to come {ASSUMED_GAP_S:g} s apart on average")
        cached = np.minimum(matched * block, inputs)
        return Sessions.of(session, times_s, inputs, outputs, cached, None, category, levels), notes


def _assumed_times(session: Ints) -> Floats:
    """Times at exponential gaps, in the order of the file [s]."""
    gaps = np.random.Generator(np.random.PCG64(0)).exponential(ASSUMED_GAP_S, session.size)
    order = np.argsort(session, kind="stable")
    times = np.empty(session.size)
    times[order] = np.cumsum(gaps)
    return times


def _block_tokens(inputs: Floats, blocks: Sequence[Sequence[Any]]) -> float:
    """Tokens of a block: the least power of two with which the blocks hold the prompts."""
    longest = max(float(n) / len(found) for n, found in zip(inputs, blocks, strict=True))
    return float(2 ** max(math.ceil(math.log2(max(longest, 1.0)) - 1e-9), 0))


def _number(value: Any) -> float:
    """A number >= 0, NaN where it is none."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return math.nan
    return number if number >= 0.0 else math.nan


def _hashes(value: Any) -> Sequence[Any]:
    """A list of hashes, also as a CSV writes one; empty where it is none."""
    if isinstance(value, str) and value[:1] == "[":
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            return ()
    return value if isinstance(value, (list, tuple)) else ()
