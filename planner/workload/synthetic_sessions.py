"""Sessions from a few numbers: chats that grow turn by turn, and benchmarks whose prompts share prefixes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.errors import InputError
from planner.units import parse_duration, parse_number, parse_tokens
from planner.workload.sessions import Sessions, SharedPrefix
from planner.workload.workload import Provenance, Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

SESSIONS = 2_000
"""Sessions generated."""

_NAMES = ("turns", "first", "growth", "osl", "gap", "groups", "prefix", "prompts", "question")
_WRITTEN = re.compile(rf"^(?:{'|'.join(_NAMES)})=[^,=]*(?:,(?:{'|'.join(_NAMES)})=[^,=]*)*$")


@dataclass(frozen=True, slots=True)
class SyntheticSessions:
    """Sessions as a name: ``turns=10,first=2000,growth=400,osl=300,gap=30s`` or ``groups=150,prefix=6000,prompts=5,...``.

    Numbers of turns are geometric, lengths and gaps log-normal (standard deviation over mean 1 for lengths, 3 for gaps, whose
    tails are heavy in every trace). With `prompts` there are that many prompts in every group and no sessions: what
    benchmark generators send, each prompt again and again; lengths do not vary then.

    Parameters
    ----------
    turns
        Mean calls of a session [1].
    first, growth
        Mean first prompt beyond the shared prefix, and what user and tools add from call to call beside the answer [tokens].
    osl
        Mean output [tokens].
    gap
        Mean gap from an answer to the next call [s].
    groups, prefix
        Prefixes that sessions share, and their length [tokens]; a session has one of them.
    prompts, question
        Different prompts of a group, and what each has beyond the prefix [tokens].
    """

    turns: float = 1.0
    first: float = 1000.0
    growth: float = 300.0
    osl: float = 300.0
    gap: float = 30.0
    groups: int = 0
    prefix: float = 0.0
    prompts: int = 0
    question: float = 0.0

    def __post_init__(self) -> None:
        problems = [
            f"{name}: must be at least {least:g}, got {getattr(self, name):g}"
            for name, least in (
                ("turns", 1.0),
                ("first", 1.0),
                ("growth", 0.0),
                ("osl", 1.0),
                ("gap", 0.0),
                ("prefix", 0.0),
            )
            if not getattr(self, name) >= least
        ]
        if (self.groups > 0) != (self.prefix > 0.0):
            problems.append("groups and prefix: one of them alone says nothing")
        if self.prompts and not (self.groups and self.question >= 1.0):
            problems.append("prompts: needs groups, prefix and question")
        if problems:
            raise InputError.from_problems(problems)

    @classmethod
    def parse(cls, text: str) -> SyntheticSessions | None:
        """Sessions written as the name of a workload; ``None`` where the text is none such.

        >>> SyntheticSessions.parse("turns=10,first=2000,growth=400,osl=300,gap=30s").turns
        10.0
        """
        if _WRITTEN.match(text) is None or not ("turns=" in text or "groups=" in text):
            return None
        given = dict(part.split("=") for part in text.split(","))
        read: Mapping[str, Callable[[str, str], float]] = {
            "turns": parse_number,
            "gap": parse_duration,
            "groups": parse_tokens,
            "prompts": parse_tokens,
        }
        values = {name: read.get(name, parse_tokens)(value, name) for name, value in given.items()}
        numbers: dict[str, Any] = {name: int(x) if name in ("groups", "prompts") else x for name, x in values.items()}
        return cls(**numbers)

    @property
    def name(self) -> str:
        """The workload's name, from which :meth:`parse` reads it again."""
        return ",".join(
            f"{f.name}={getattr(self, f.name):.10g}" for f in fields(self) if getattr(self, f.name) != f.default
        )

    def workload(self) -> Workload:
        """The calls, drawn with a fixed seed.

        >>> w = SyntheticSessions(turns=5.0, first=1000.0).workload()
        >>> w.sessions.count, w.sessions.turns > 4.0
        (2000, True)
        """
        drawn = self._prompts() if self.prompts else self._chats(np.random.Generator(np.random.PCG64(7)))
        sessions = replace(drawn, start_s=None)
        told = f"no trace: sessions drawn from {self.name}"
        return Workload.from_arrays(
            sessions.input_tokens,
            sessions.output_tokens,
            name=self.name,
            provenance=Provenance(name=self.name, source="assumed", length_split=told, exact=False),
            sessions=sessions,
        )

    def _prompts(self) -> Sessions:
        """Every prompt once, nothing a session: all reuse is of what calls share."""
        calls = self.groups * self.prompts
        each, nothing = np.ones(calls), np.zeros(calls)
        prompt = np.arange(calls)
        shared = (SharedPrefix(prompt // self.prompts, self.prefix * each), SharedPrefix(prompt, self.question * each))
        return Sessions.of(
            prompt, nothing, (self.prefix + self.question) * each, self.osl * each, nothing, shared=shared
        )

    def _chats(self, rng: np.random.Generator) -> Sessions:
        """Sessions whose prompts hold all that was said before."""
        turns = rng.geometric(1.0 / self.turns, SESSIONS)
        session = np.repeat(np.arange(SESSIONS), turns)
        calls = session.size
        first = np.r_[True, np.diff(session) != 0]
        output = np.maximum(np.round(_lognormal(rng, self.osl, 1.0, calls)), 1.0)
        fresh = np.where(first, _lognormal(rng, self.first, 1.0, calls), _lognormal(rng, self.growth, 1.0, calls))
        fresh = np.maximum(np.round(fresh), 1.0) + np.where(first, self.prefix, 0.0)
        before = np.where(first, 0.0, np.r_[0.0, output[:-1]])
        added = np.cumsum(fresh + before)
        starts = np.flatnonzero(first)
        prompt = added - (added - fresh - before)[starts][session]
        cached = np.where(first, 0.0, np.r_[0.0, (prompt + output)[:-1]])
        gap = np.where(first, 0.0, _lognormal(rng, self.gap, 3.0, calls))
        passed = np.cumsum(gap)
        times = passed - passed[starts][session]
        shared: tuple[SharedPrefix, ...] = ()
        if self.groups:
            group = rng.integers(self.groups, size=SESSIONS)[session]
            shared = (SharedPrefix(group, np.full(calls, self.prefix)),)
        return Sessions.of(session, times, prompt, output, np.minimum(cached, prompt), shared=shared)


def _lognormal(rng: np.random.Generator, mean: float, spread: float, size: int) -> NDArray[np.float64]:
    """Log-normal draws of that mean, cut at fifty times of it."""
    sigma = np.sqrt(np.log1p(spread * spread))
    drawn = mean * np.exp(sigma * rng.standard_normal(size) - 0.5 * sigma * sigma)
    return np.asarray(np.minimum(drawn, 50.0 * mean))
