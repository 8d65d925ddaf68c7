"""How clients send: in flash crowds, at constant gaps, with a limit on what they have under way."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from planner.errors import InputError, did_you_mean
from planner.units import format_duration, parse_duration, parse_number
from planner.workload.trace import Bools, Floats

Count = Annotated[int, "must be a whole number >= 1"]
Times = Annotated[int, "must be a whole number >= 0"]
Size = Annotated[float, "must be at least 1"]
Positive = Annotated[float, "must be positive"]
Room = Annotated[float, "must be >= 0"]
Amount = Annotated[float, "must be finite and >= 0"]
"""Numbers of a replay, and what an error says of one that is none: :mod:`planner.predict.checks` sees to it."""

QUIET = 9.0
"""Time between two crowds, in lengths of a crowd."""
STEPS = 64
"""Pieces in which a ramp is laid out."""


@dataclass(frozen=True, slots=True)
class Surge:
    """A crowd: the rate is multiplied by `factor` for `length_s`, after a linear ramp of `ramp_s` and before one down.

    Crowds come one after another with :data:`QUIET` lengths of the ordinary rate in between.

    Parameters
    ----------
    factor
        Rate of the crowd over the ordinary rate, > 0.
    length_s, ramp_s
        How long it lasts, how long it takes to come and to go [s].
    """

    factor: float
    length_s: float
    ramp_s: float = 0.0

    def __post_init__(self) -> None:
        if not (0.0 < self.factor < math.inf and 0.0 < self.length_s < math.inf and 0.0 <= self.ramp_s < math.inf):
            raise InputError(f"surge: needs a positive factor and length, got {self.factor!r} for {self.length_s!r} s")

    @classmethod
    def parse(cls, text: str) -> Surge:
        """``"3x/60s"``, or ``"3x/60s/30s"`` with a ramp.

        >>> Surge.parse("3x/1min/30s")
        Surge(factor=3.0, length_s=60.0, ramp_s=30.0)
        """
        parts = text.split("/")
        number = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*x?\s*", parts[0], re.ASCII)
        if number is None or len(parts) not in (2, 3):
            raise InputError(f"surge: {text!r} is not understood: write 3x/60s, or 3x/60s/30s with a ramp of 30 s")
        return cls(float(number[1]), *(parse_duration(part, "surge") for part in parts[1:]))

    @property
    def cycle_s(self) -> float:
        """From one crowd to the next [s]."""
        return (QUIET + 1.0) * self.length_s + 2.0 * self.ramp_s

    @property
    def quiet_s(self) -> float:
        """Ordinary time between two crowds [s]."""
        return QUIET * self.length_s

    def _grid(self) -> tuple[Floats, Floats]:
        """Times within a cycle, and the ordinary time that passes until then [s]."""
        quiet, steps = QUIET * self.length_s, STEPS + 1 if self.ramp_s else 1
        ramp = np.linspace(0.0, self.ramp_s, steps)
        times = np.concatenate([[0.0], quiet + ramp, quiet + self.ramp_s + self.length_s + ramp])
        rise = np.linspace(1.0, self.factor, steps)
        rates = np.concatenate([[1.0], rise, rise[::-1]])
        pieces = np.diff(times) * (rates[1:] + rates[:-1]) / 2.0
        if not self.ramp_s:  # steps: the rate of a piece, not of its ends
            pieces = np.array([quiet, self.factor * self.length_s])
        return times, np.concatenate([[0.0], np.cumsum(pieces)])

    @property
    def ordinary_s(self) -> float:
        """Time in which the ordinary rate would send what a cycle sends [s]."""
        return float(self._grid()[1][-1])

    def warp(self, ordinary: Floats) -> Floats:
        """When requests come that would come at `ordinary` times at the ordinary rate [s]."""
        times, passed = self._grid()
        cycles, rest = np.divmod(ordinary, passed[-1])
        return np.asarray(cycles * self.cycle_s + np.interp(rest, passed, times))

    def counts(self, times: Floats) -> Bools:
        """Whether requests that come then belong to a crowd, its ramps and the time after it."""
        phase = times % self.cycle_s
        end = QUIET * self.length_s + 2.0 * self.ramp_s + self.length_s
        # a crowd's own length after its end, which wraps into the next cycle
        return np.asarray((phase >= QUIET * self.length_s) | ((phase < self.length_s) & (times >= end)))


def paced_clients(text: str) -> int | None:
    """Number of clients of ``"paced:N"``, which send at constant gaps; ``None`` of any other text.

    >>> paced_clients("paced:8"), paced_clients("auto"), paced_clients("paced:0")
    (8, None, None)
    """
    kind, _, number = text.partition(":")
    return int(number) if kind == "paced" and re.fullmatch(r"0*[1-9]\d{0,8}", number, re.ASCII) else None


LAWS = ("exponential", "fixed", "lognormal")
"""How think times are spread about their mean, the default first."""


@dataclass(frozen=True, slots=True)
class Population:
    """A fixed number of users: each waits for its answer, thinks, and asks again.

    Parameters
    ----------
    users
        How many.
    think_s
        Mean time from an answer to the user's next request, >= 0 [s]; 0 = at once, as load generators do.
    law
        One of :data:`LAWS`.
    spread
        Standard deviation over mean of a lognormal think time [1].
    asked_per_s
        Rate that stands for so many users: at twice the rate there are twice as many [1/s].
    """

    users: int
    think_s: float = 0.0
    law: str = "exponential"
    spread: float = 1.0
    asked_per_s: float = 0.0

    @classmethod
    def parse(cls, users: int, text: str) -> Population:
        """From a think time as people write it.

        >>> Population.parse(500, "60s"), Population.parse(8, "1min lognormal 1.5").spread
        (Population(users=500, think_s=60.0, law='exponential', spread=1.0, asked_per_s=0.0), 1.5)

        Raises
        ------
        InputError
            No time, a law that is none, a negative time or spread.
        """
        think, law, spread, *more = (*text.replace(":", " ").split(), *[""] * 3)
        more = [word for word in more if word]
        if more or (law and law not in LAWS):
            meant = did_you_mean(law, LAWS)
            raise InputError(
                f"think_time: {text!r} is no think time{meant}", f"Write 60s, or 60s and one of {', '.join(LAWS)}."
            )
        found = cls(
            users, parse_duration(think, "think_time"), law or LAWS[0], parse_number(spread or 1.0, "think_time")
        )
        if found.think_s < 0.0 or found.spread <= 0.0:
            raise InputError(f"think_time: must not be negative, got {text!r}")
        return found

    def gaps(self, first: Floats, second: Floats) -> Floats:
        """Think times from two draws each in [0, 1) [s], shape as the draws."""
        if self.law == "fixed":
            return np.full(first.shape, self.think_s)
        exponential = -np.log1p(-first)
        if self.law == "exponential":
            return np.asarray(self.think_s * exponential)
        sigma2 = math.log1p(self.spread**2)
        # Box and Muller
        normal = np.sqrt(2.0 * exponential) * np.cos(2.0 * math.pi * second)
        return np.asarray(self.think_s * np.exp(math.sqrt(sigma2) * normal - 0.5 * sigma2))

    @property
    def told(self) -> str:
        """In words.

        >>> Population(500, 60.0).told, Population(64).told
        ('500 users who think for 60 s (exponential)', '64 always under way')
        """
        if self.think_s == 0.0:
            return f"{self.users:,} always under way"
        return f"{self.users:,} users who think for {format_duration(self.think_s)} ({self.law})"


@dataclass(frozen=True, slots=True)
class Sending:
    """What clients do beyond what a trace shows of them.

    Parameters
    ----------
    paced
        Clients that send at constant gaps, each with a phase of its own, in place of the trace's arrivals; ``None`` = no such.
    in_flight
        Requests of all clients under way at most: one beyond waits with its client, where no latency counts.
    surge
        Flash crowds, whose requests alone are measured.
    drawn
        Whether requests are drawn one by one rather than those of a trace.
    population
        A fixed number of users, whose requests hang on answers; ``None`` = requests come whatever becomes of others.
    """

    paced: int | None = None
    in_flight: float = math.inf
    surge: Surge | None = None
    drawn: bool = False
    population: Population | None = None

    @property
    def ordinary(self) -> bool:
        """Whether a trace or Poisson arrivals tell everything."""
        return self.paced is None and self.in_flight == math.inf and self.surge is None and self.population is None

    @property
    def of_any_rate(self) -> Sending:
        """The same, however often users ask."""
        return self if self.population is None else replace(self, population=replace(self.population, asked_per_s=0.0))


ORDINARY = Sending()
"""A trace or Poisson arrivals tell everything."""


@dataclass(frozen=True, slots=True)
class Clients:
    """What clients and the engines' doors do.

    Parameters
    ----------
    max_queue, max_queued_tokens
        Requests, and prompt tokens, that may wait at a replica; what would exceed them is rejected.
    timeout_s
        A client gives up when it has no first token after so long [s]; the engine then drops the request.
    retries
        Times a client sends a rejected request, or one given up, again.
    retry_after_s
        How long it waits before [s].
    in_flight
        Requests of all clients under way at most: one beyond waits with its client, in order of arrival, and is sent, and
        its latency counted, from when another is complete.
    leave
        A request beyond `in_flight` is turned away instead: a gateway sends it elsewhere.
    """

    max_queue: Room = math.inf
    max_queued_tokens: Room = math.inf
    timeout_s: Positive = math.inf
    retries: Times = 0
    retry_after_s: Amount = 1.0
    in_flight: Size = math.inf
    leave: bool = False

    @property
    def stated(self) -> bool:
        """Whether anything is limited at doors or by patience: without, every request waits as long as it takes."""
        return min(self.max_queue, self.max_queued_tokens, self.timeout_s) < math.inf


PATIENT = Clients()
