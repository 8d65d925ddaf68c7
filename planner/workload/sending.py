"""How clients send: in flash crowds, at constant gaps, with a limit on what they have under way."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError
from planner.units import parse_duration

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUIET = 9.0
"""Time between two crowds, in lengths of a crowd."""
AFTER = 1.0
"""Lengths of a crowd after its end whose requests still count."""
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

    def _grid(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Times within a cycle, and the ordinary time that passes until then [s]."""
        quiet = QUIET * self.length_s
        ramp = np.linspace(0.0, self.ramp_s, STEPS + 1) if self.ramp_s else np.zeros(1)
        high = quiet + self.ramp_s
        times = np.concatenate([[0.0], quiet + ramp, high + self.length_s + ramp])
        rise = np.linspace(1.0, self.factor, STEPS + 1) if self.ramp_s else np.full(1, self.factor)
        rates = np.concatenate([[1.0], rise, rise[::-1]])
        if not self.ramp_s:  # steps: the rate of a piece, not of its ends
            pieces = np.array([quiet, self.factor * self.length_s])
        else:
            pieces = np.diff(times) * (rates[1:] + rates[:-1]) / 2.0
        return times, np.concatenate([[0.0], np.cumsum(pieces)])

    @property
    def ordinary_s(self) -> float:
        """Time in which the ordinary rate would send what a cycle sends [s]."""
        return float(self._grid()[1][-1])

    def warp(self, ordinary: NDArray[np.float64]) -> NDArray[np.float64]:
        """When requests come that would come at `ordinary` times at the ordinary rate [s]."""
        times, passed = self._grid()
        cycles, rest = np.divmod(ordinary, passed[-1])
        return np.asarray(cycles * self.cycle_s + np.interp(rest, passed, times))

    def counts(self, times: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether requests that come then belong to a crowd, its ramps and the time after it."""
        phase = times % self.cycle_s
        end = QUIET * self.length_s + 2.0 * self.ramp_s + self.length_s
        start = min(AFTER, QUIET) * self.length_s  # what is after the end wraps into the next cycle
        return np.asarray((phase >= QUIET * self.length_s) | ((phase < start) & (times >= end)))


def paced_clients(text: str) -> int | None:
    """Number of clients of ``"paced:N"``, which send at constant gaps; ``None`` of any other text.

    >>> paced_clients("paced:8"), paced_clients("auto"), paced_clients("paced:0")
    (8, None, None)
    """
    kind, _, number = text.partition(":")
    return int(number) if kind == "paced" and re.fullmatch(r"0*[1-9]\d{0,8}", number, re.ASCII) else None


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
    """

    paced: int | None = None
    in_flight: float = math.inf
    surge: Surge | None = None
    drawn: bool = False

    @property
    def ordinary(self) -> bool:
        """Whether a trace or Poisson arrivals tell everything."""
        return self.paced is None and self.in_flight == math.inf and self.surge is None


ORDINARY = Sending()
"""A trace or Poisson arrivals tell everything."""
