"""Workloads from a few numbers, for those who have no trace yet: log-normal lengths, chats that grow turn by turn, and benchmarks
whose prompts share prefixes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import MISSING, dataclass, fields, replace
from typing import ClassVar, Self

import numpy as np

from planner.errors import InputError, refuse
from planner.units import parse_duration, parse_fraction, parse_number, parse_tokens
from planner.workload.sessions import Sessions, SharedPrefix
from planner.workload.trace import Floats
from planner.workload.workload import Provenance, Workload

SPREAD = 1.0
"""Standard deviation over mean where none is given; the shipped traces have 0.9 to 2.9 (inputs) and 0.5 to 2.2 (outputs)."""

_LARGEST_SPREAD = 5.0
_HIGHEST = 0.999
"""Largest quantile of either length: beyond it nothing is known, and one endless request would size the memory."""

SESSIONS = 2_000
"""Sessions generated."""

_LEVELS = (*np.linspace(0.0, 0.9, 19), *(1.0 - np.geomspace(0.1, 1.0 - _HIGHEST, 13)[1:]))
"""Quantile levels that part the bins of a length, finer in the tail; a bin's mean stands for it."""

Reader = Callable[[str, str], float]


class _Named:
    """A workload that is its own name: pairs ``name=value`` with commas between, each a field of the dataclass."""

    __slots__ = ()
    readers: ClassVar[Mapping[str, Reader]]
    """How each value is read, by the name that people write."""
    telling: ClassVar[Set[str]]
    """Names of which one at least is there."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """What the name of a workload says; ``None`` where the text is none such."""
        pairs = [part.partition("=") for part in text.split(",")]
        given = {name: value for name, _, value in pairs}
        told = all(mark and name in cls.readers and "=" not in value for name, mark, value in pairs)
        if not told or not given.keys() & cls.telling:
            return None
        needed = [f.name for f in fields(cls) if f.default is MISSING]  # type: ignore[arg-type]
        if missing := [name for name in needed if name not in given]:
            raise InputError(f"{text}: no {missing[0]}", "Both means are needed: isl=2000,osl=300.")
        return cls(**{name.replace("-", "_"): cls.readers[name](value, name) for name, value in given.items()})


@dataclass(frozen=True, slots=True)
class SyntheticLengths(_Named):
    """Independent log-normal inputs and outputs.

    >>> SyntheticLengths.parse("isl=2000,osl=300,isl-spread=50%").isl_spread
    0.5
    >>> SyntheticLengths.parse("azure") is None
    True

    Parameters
    ----------
    isl, osl
        Mean input and output [tokens], >= 1.
    isl_spread, osl_spread
        Standard deviation over mean [1], in [0, 5]; 0 = every request alike.
    """

    isl: float
    osl: float
    isl_spread: float = SPREAD
    osl_spread: float = SPREAD

    readers = {"isl": parse_tokens, "osl": parse_tokens, "isl-spread": parse_fraction, "osl-spread": parse_fraction}  # noqa: RUF012
    telling = readers.keys()

    def __post_init__(self) -> None:
        problems = [
            f"{name}: must be at least 1 token, got {value:g}"
            for name, value in (("isl", self.isl), ("osl", self.osl))
            if not value >= 1.0
        ]
        problems += [
            f"{name}: must lie in [0, {_LARGEST_SPREAD:g}] (standard deviation over mean), got {value:g}"
            for name, value in (("isl_spread", self.isl_spread), ("osl_spread", self.osl_spread))
            if not 0.0 <= value <= _LARGEST_SPREAD
        ]
        refuse(problems)

    @property
    def name(self) -> str:
        """The workload's name, from which :meth:`parse` reads it again.

        >>> SyntheticLengths(2000, 300).name
        'isl=2000,osl=300,isl-spread=1,osl-spread=1'
        """
        return (
            f"isl={self.isl:.10g},osl={self.osl:.10g},"
            f"isl-spread={self.isl_spread:.10g},osl-spread={self.osl_spread:.10g}"
        )

    def workload(self) -> Workload:
        """The requests: a grid of bins of either length, each at its mean.

        >>> w = SyntheticLengths(2000, 300).workload()
        >>> round(w.mean_input, 6), round(w.mean_output, 6)
        (2000.0, 300.0)
        """
        inputs, shares = lognormal_bins(self.isl, self.isl_spread)
        outputs, weights = lognormal_bins(self.osl, self.osl_spread)
        told = (
            f"no trace: independent log-normal lengths assumed, mean input {self.isl:,.10g} tokens with spread "
            f"{self.isl_spread:.10g}, mean output {self.osl:,.10g} with spread {self.osl_spread:.10g} "
            f"(standard deviation over mean), cut at P{100 * _HIGHEST:.10g}"
        )
        return Workload.from_arrays(
            np.repeat(inputs, outputs.size),
            np.tile(outputs, inputs.size),
            weight=np.outer(shares, weights).ravel(),
            name=self.name,
            provenance=Provenance(source="assumed", length_split=told, exact=False),
        )


def lognormal_bins(mean: float, spread: float) -> tuple[Floats, Floats]:
    r"""Bins of a log-normal law that is cut at P99.9, each by its mean and its share.

    With :math:`\sigma^2 = \ln(1 + s^2)`, the mean between the quantiles of levels p and q is
    :math:`m\,[\Phi(z_q - \sigma) - \Phi(z_p - \sigma)] / (q - p)`; what the cut takes from the mean is put back at the end.

    Parameters
    ----------
    mean
        Mean [tokens], > 0.
    spread
        Standard deviation over mean before the cut [1], >= 0.

    Returns
    -------
    tuple
        Lengths [tokens], ascending, with mean `mean`, and their shares [1], both of shape (bins,); one bin where nothing
        varies.
    """
    if spread == 0.0:
        return np.array([mean]), np.ones(1)
    from scipy.special import ndtr, ndtri

    sigma = math.sqrt(math.log1p(spread * spread))
    levels = np.array(_LEVELS)
    shares = np.diff(levels) / _HIGHEST
    values = np.diff(ndtr(ndtri(levels) - sigma)) / shares
    return mean * values / float(shares @ values), shares


@dataclass(frozen=True, slots=True)
class SyntheticSessions(_Named):
    """Sessions as a name: ``turns=10,first=2000,growth=400,osl=300,gap=30s`` or ``groups=150,prefix=6000,prompts=5,...``.

    Numbers of turns are geometric, lengths and gaps log-normal (standard deviation over mean 1 for lengths, 3 for gaps, whose
    tails are heavy in every trace). With `prompts` there are that many prompts in every group and no sessions: what
    benchmark generators send, each prompt again and again; lengths do not vary then.

    >>> SyntheticSessions.parse("turns=10,first=2000,growth=400,osl=300,gap=30s").turns
    10.0

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

    readers = {  # noqa: RUF012
        **dict.fromkeys(("first", "growth", "osl", "prefix", "question"), parse_tokens),
        "turns": parse_number,
        "gap": parse_duration,
        "groups": lambda text, name: int(parse_tokens(text, name)),
        "prompts": lambda text, name: int(parse_tokens(text, name)),
    }
    telling = {"turns", "groups"}  # noqa: RUF012

    def __post_init__(self) -> None:
        least = {"turns": 1.0, "first": 1.0, "growth": 0.0, "osl": 1.0, "gap": 0.0, "prefix": 0.0}
        problems = [
            f"{name}: must be at least {bound:g}, got {getattr(self, name):g}"
            for name, bound in least.items()
            if not getattr(self, name) >= bound
        ]
        if (self.groups > 0) != (self.prefix > 0.0):
            problems.append("groups and prefix: one of them alone says nothing")
        if self.prompts and not (self.groups and self.question >= 1.0):
            problems.append("prompts: needs groups, prefix and question")
        refuse(problems)

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
            provenance=Provenance(source="assumed", length_split=told, exact=False),
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
        gap = np.where(first, 0.0, _lognormal(rng, self.gap, 3.0, calls))
        passed = np.cumsum(gap)
        times = passed - passed[starts][session]
        shared: tuple[SharedPrefix, ...] = ()
        if self.groups:
            group = rng.integers(self.groups, size=SESSIONS)[session]
            shared = (SharedPrefix(group, np.full(calls, self.prefix)),)
        return Sessions.of(session, times, prompt, output, shared=shared)


def _lognormal(rng: np.random.Generator, mean: float, spread: float, size: int) -> Floats:
    """Log-normal draws of that mean, cut at fifty times of it."""
    sigma = np.sqrt(np.log1p(spread * spread))
    drawn = mean * np.exp(sigma * rng.standard_normal(size) - 0.5 * sigma * sigma)
    return np.asarray(np.minimum(drawn, 50.0 * mean))
