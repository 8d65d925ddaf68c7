"""Sessions: calls that come back to a prompt they sent before, when they come, and how much of it they repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from planner.workload.trace import Bools, Floats, Ints, Stretches


_COLUMNS = ("session", "times_s", "input_tokens", "output_tokens", "cached_tokens", "duration_s", "category")


@dataclass(frozen=True, slots=True, eq=False)
class SharedPrefix:
    """A part of the prompts that sessions share: a system prompt, a tool's description, a document.

    Parameters
    ----------
    group
        Which of the prefixes of this level each call begins with, -1 = none; shape (calls,).
    tokens
        How much of the prompt it is [tokens], shape (calls,).
    """

    group: Ints
    tokens: Floats

    def of(self, calls: Ints) -> SharedPrefix:
        """The same of some calls."""
        return SharedPrefix(self.group[calls], self.tokens[calls])


@dataclass(frozen=True, eq=False)
class Sessions:
    """Calls, session by session and in order of time.

    Parameters
    ----------
    session
        Number of the session, ascending from 0, shape (calls,).
    times_s
        Start of the call since the start of its session [s], shape (calls,).
    input_tokens, output_tokens
        Lengths [tokens], shape (calls,).
    cached_tokens
        Longest prefix of the prompt that the session's calls before left behind, shared parts included: what a cache without
        end would supply [tokens], shape (calls,).
    duration_s
        Recorded duration of the call [s], NaN = not known, shape (calls,).
    category
        Index into the workload's categories, shape (calls,).
    shared
        Parts of prompts that sessions share, from the beginning of the prompt on.
    start_s
        When each session starts on the clock of the requests [s], shape (sessions,); ``None`` = there is none.
    names
        What the log calls each session, in their order; empty where it does not.
    """

    session: Ints
    times_s: Floats
    input_tokens: Floats
    output_tokens: Floats
    cached_tokens: Floats
    duration_s: Floats
    category: Ints
    shared: tuple[SharedPrefix, ...] = field(default=())
    start_s: Floats | None = None
    names: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        session: Ints,
        times_s: Floats,
        input_tokens: Floats,
        output_tokens: Floats,
        cached_tokens: Floats | None = None,
        duration_s: Floats | None = None,
        category: Ints | None = None,
        shared: tuple[SharedPrefix, ...] = (),
    ) -> Sessions:
        """Put calls into order; what they repeat, where not given or NaN, is the call before, prompt and answer, if the prompt
        grew."""
        order, blank = np.lexsort((times_s, session)), np.full(session.size, np.nan)
        _, number = np.unique(session, return_inverse=True)
        number = number[order].astype(np.int64)
        first = np.r_[True, np.diff(number) != 0]
        start = times_s[order]
        inputs, outputs, said, lasted = (
            (blank if column is None else column)[order].astype(np.float64)
            for column in (input_tokens, output_tokens, cached_tokens, duration_s)
        )
        before = np.where(first, 0.0, np.r_[0.0, (inputs + outputs)[:-1]])
        grew = inputs >= np.r_[0.0, inputs[:-1]]
        guess = np.where(grew, np.minimum(before, inputs), 0.0)
        cached = np.where(np.isnan(said), guess, np.minimum(said, inputs))
        kind = np.zeros(number.size, dtype=np.int64) if category is None else category[order].astype(np.int64)
        levels, begin = tuple(s.of(order) for s in shared), start[first]
        return cls(number, start - begin[number], inputs, outputs, cached, lasted, kind, levels, begin)

    # --- what they are ---------------------------------------------------------------------------------------------

    @property
    def calls(self) -> int:
        """Number of calls."""
        return int(self.session.size)

    @property
    def count(self) -> int:
        """Number of sessions."""
        return int(self.session[-1]) + 1 if self.calls else 0

    @property
    def turns(self) -> float:
        """Mean calls of a session [1]."""
        return self.calls / self.count

    @cached_property
    def first(self) -> Bools:
        """Which calls begin a session, shape (calls,)."""
        begins: Bools = np.r_[True, np.diff(self.session) != 0]
        return begins

    @property
    def clock_s(self) -> Floats | None:
        """When each call comes on the clock of the requests [s], shape (calls,); ``None`` = not known."""
        return None if self.start_s is None else self.start_s[self.session] + self.times_s

    @property
    def gaps_s(self) -> Floats:
        """From the end of a call (its start, where its duration is not known) to the next of its session [s], shape (gaps,)."""
        ends = self.times_s + np.nan_to_num(self.duration_s)
        return np.maximum(self.times_s[1:] - ends[:-1], 0.0)[~self.first[1:]]

    @property
    def gaps_between_s(self) -> Floats:
        """The same by call: the gap before it, 0 before the first of a session [s], shape (calls,)."""
        gaps = np.zeros(self.calls)
        gaps[~self.first] = self.gaps_s
        return gaps

    @property
    def shared_tokens(self) -> Floats:
        """Tokens of each prompt that sessions share [tokens], shape (calls,)."""
        return np.sum([s.tokens for s in self.shared], axis=0) if self.shared else np.zeros(self.calls)

    @property
    def repeated_share(self) -> float:
        """Share of all prompt tokens that a cache without end would supply, shared parts included [1]."""
        found = np.maximum(self.cached_tokens, self.shared_tokens)
        return float(found.sum() / max(self.input_tokens.sum(), 1.0))

    def to_dict(self) -> dict[str, object]:
        """Summary, JSON-ready."""
        gaps, steps = self.gaps_s, np.diff(self.input_tokens)[~self.first[1:]]
        calls = np.bincount(self.session)
        return {
            "sessions": self.count,
            "calls": self.calls,
            "calls_per_session": {"mean": self.turns, "p50": float(np.median(calls)), "max": int(calls.max())},
            "gap_s": {f"p{q}": float(np.percentile(gaps, q)) for q in (50, 90, 99)} if gaps.size else None,
            "growth_tokens": float(np.median(steps)) if steps.size else None,
            "new_tokens": float(np.median(self.input_tokens - np.maximum(self.cached_tokens, self.shared_tokens))),
            "repeated_share": self.repeated_share,
            "shared_prefixes": sum(int(np.unique(s.group[s.group >= 0]).size) for s in self.shared),
        }

    def columns(self) -> dict[str, Floats | Ints]:
        """All columns by name, those of shared prefixes numbered from 0, for files and digests."""
        found = {name: getattr(self, name) for name in _COLUMNS}
        for k, level in enumerate(self.shared):
            found |= {f"group_{k}": level.group, f"shared_{k}": level.tokens}
        return found

    @classmethod
    def from_columns(cls, columns: Mapping[str, Sequence[float]]) -> Sessions:
        """From what :meth:`columns` gave; a KeyError names a column that is missing."""

        def column(name: str) -> Any:
            whole = name in ("session", "category") or name.startswith("group_")
            found = [np.nan if x is None else x for x in columns[name]]
            return np.array(found, dtype=np.int64 if whole else np.float64)

        levels = sum(name.startswith("group_") for name in columns)
        shared = tuple(SharedPrefix(column(f"group_{k}"), column(f"shared_{k}")) for k in range(levels))
        return cls(**{name: column(name) for name in _COLUMNS}, shared=shared)

    # --- changed ---------------------------------------------------------------------------------------------------

    def select(self, keep: Bools) -> Sessions | None:
        """The calls marked, shape (calls,); a call repeats of the one kept before it what all between repeated.

        ``None`` when nothing is left.
        """
        if not keep.any():
            return None
        picked = np.flatnonzero(keep)
        # every call passes what it repeats on to the next one kept of its session
        passed = np.minimum(np.searchsorted(picked, np.arange(self.calls)), picked.size - 1)
        own = (self.session[picked[passed]] == self.session) & (picked[passed] >= np.arange(self.calls))
        cached = np.full(picked.size, np.inf)
        np.minimum.at(cached, passed[own], self.cached_tokens[own])
        left, number = np.unique(self.session[picked], return_inverse=True)
        first = np.r_[True, np.diff(number) != 0]
        start = self.times_s[picked]
        columns: dict[str, Any] = {name: getattr(self, name)[picked] for name in _COLUMNS} | {
            "session": number.astype(np.int64),
            "times_s": start - start[first][number],
            "cached_tokens": np.where(first, 0.0, cached),
        }
        return Sessions(
            **columns,
            shared=tuple(s.of(picked) for s in self.shared),
            start_s=None if self.start_s is None else self.start_s[left] + start[first],
            names=tuple(self.names[k] for k in left.tolist()) if self.names else (),
        )

    def scaled(self, input_factor: float, output_factor: float) -> Sessions:
        """The same sessions with longer or shorter prompts and outputs; what repeats grows with the prompts."""
        return replace(
            self,
            input_tokens=self.input_tokens * input_factor,
            output_tokens=self.output_tokens * output_factor,
            cached_tokens=self.cached_tokens * input_factor,
            shared=tuple(SharedPrefix(s.group, s.tokens * input_factor) for s in self.shared),
        )

    def prefilled(self, answer_s: Floats) -> Sessions:
        """The same calls as replicas see them that prefill alone: answers are decoded and stay elsewhere.

        Parameters
        ----------
        answer_s
            About how long the answer of each call takes, where its duration is not known [s], shape (calls,).
        """
        before = np.where(self.first, 0.0, np.r_[0.0, self.input_tokens[:-1]])
        lasted = np.where(np.isnan(self.duration_s), answer_s, 0.0)
        passed = np.r_[0.0, np.cumsum(lasted)[:-1]]
        nothing = np.zeros(self.calls)
        return replace(
            self,
            times_s=self.times_s + passed - passed[self.first][self.session],
            output_tokens=nothing,
            cached_tokens=np.minimum(self.cached_tokens, before),
            duration_s=nothing,
        )

    def kept(self, calls: int, parts: Stretches | None) -> Sessions:
        """The calls of some stretches of the trace; where no clock tells, about so many: whole sessions, evenly by their calls."""
        if parts is not None and (clock := self.clock_s) is not None:
            keep = parts.holding(clock) >= 0
        else:
            lengths = np.bincount(self.session)
            order = np.argsort(lengths, kind="stable")
            wanted = max(round(self.count * calls / self.calls), 1)
            chosen = order[((np.arange(wanted) + 0.5) * self.count / wanted).astype(np.int64)]
            keep = np.isin(self.session, chosen)
        kept = self.select(keep)
        assert kept is not None
        return kept


def joined(parts: Sequence[Sessions]) -> Sessions:
    """Sessions of several files side by side, at least one."""
    if len(parts) == 1:
        return parts[0]
    offsets = np.cumsum([0, *(p.count for p in parts[:-1])])
    shared = []
    for level in range(max(len(p.shared) for p in parts)):
        groups, tokens, used = [], [], 0
        for part in parts:
            nothing = SharedPrefix(np.full(part.calls, -1), np.zeros(part.calls))
            own = part.shared[level] if level < len(part.shared) else nothing
            groups.append(np.where(own.group >= 0, own.group + used, -1))
            tokens.append(own.tokens)
            used = max(used, int(groups[-1].max(initial=-1)) + 1)
        shared.append(SharedPrefix(np.concatenate(groups).astype(np.int64), np.concatenate(tokens)))
    columns = {name: np.concatenate([getattr(p, name) for p in parts]) for name in _COLUMNS if name != "session"}
    session = np.concatenate([p.session + offset for p, offset in zip(parts, offsets, strict=True)])
    starts = [p.start_s for p in parts if p.start_s is not None]
    return Sessions(
        session=session,
        shared=tuple(shared),
        start_s=np.concatenate(starts) if len(starts) == len(parts) else None,
        names=tuple(name for p in parts for name in p.names) if all(p.names for p in parts) else (),
        **columns,
    )
